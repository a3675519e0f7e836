package testmem

import "fmt"

// Place says what surrounds a buffer.
type Place int

const (
	Between Place = iota // guard bytes before and after
	End                  // guard bytes before, an unreadable page after
	Start                // an unreadable page before, guard bytes after
)

// Places lists all places.
var Places = []Place{Between, End, Start}

func (p Place) String() string {
	return [...]string{"between guards", "at page end", "at page start"}[p]
}

const (
	guardBytes = 256 // at least
	guardValue = 0xA5
	page       = 1 << 16 // a multiple of every page size in use
)

// Buffer is memory of an exact size and its surroundings.
type Buffer struct {
	Bytes         []byte // exactly the size asked for
	before, after []byte // guard bytes, may be empty
}

// TB is the part of testing.TB that New needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// New returns a zeroed buffer of n bytes at the given place. With Between it starts
// offset mod 64 bytes after a 64-byte boundary; the other places ignore offset.
func New(tb TB, n int, place Place, offset int) *Buffer {
	tb.Helper()
	all, release, err := reserve((n+2*guardBytes+page-1)/page*page, place)
	if err != nil {
		tb.Fatalf("reserve %d bytes %v: %v", n, place, err)
	}
	tb.Cleanup(release)
	lo := guardBytes + offset%64
	switch place {
	case End:
		lo = len(all) - n - tailGuard
	case Start:
		lo = headGuard
	}
	b := &Buffer{
		Bytes:  all[lo : lo+n : lo+n],
		before: all[max(0, lo-guardBytes):lo],
		after:  all[lo+n : min(len(all), lo+n+guardBytes)],
	}
	for i := range b.before {
		b.before[i] = guardValue
	}
	for i := range b.after {
		b.after[i] = guardValue
	}
	return b
}

// Check returns an error if a byte around the buffer has changed.
func (b *Buffer) Check() error {
	for i, v := range b.before {
		if v != guardValue {
			return fmt.Errorf("byte %d before the buffer was overwritten with %#x", len(b.before)-i, v)
		}
	}
	for i, v := range b.after {
		if v != guardValue {
			return fmt.Errorf("byte %d after the buffer was overwritten with %#x", i+1, v)
		}
	}
	return nil
}
