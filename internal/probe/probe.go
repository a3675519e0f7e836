package probe

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
)

// part is how many bytes of a buffer are read between two looks at the clock: enough for
// the beginning of streams, which is slow, not to count.
const part = 4 << 20

// Buffer is memory to be read, outside the Go heap. To measure the bandwidth of main
// memory, it must be several times the size of the last-level cache.
type Buffer struct {
	mem    *arena.Arena
	blocks []arena.Block // of part bytes
}

// NewBuffer returns a buffer of at least n bytes, every page of it in memory. The
// caller closes it.
func NewBuffer(n int) (*Buffer, error) {
	mem, err := arena.New(part)
	if err != nil {
		return nil, err
	}
	b := &Buffer{mem: mem}
	if b.blocks, err = mem.Alloc(nil, max(1, (n+part-1)/part)); err != nil {
		mem.Close()
		return nil, fmt.Errorf("buffer of %d bytes to read: %w", n, err)
	}
	for i, block := range b.blocks {
		// Pages that were never written may all be the same page of zeros.
		for data := mem.Bytes(block); len(data) > 0; data = data[min(len(data), 4096):] {
			data[0] = byte(i + 1)
		}
	}
	return b, nil
}

// Close frees the memory. No Read may be in progress.
func (b *Buffer) Close() error {
	b.mem.Unref(b.blocks)
	b.blocks = nil
	return b.mem.Close()
}

// Bytes returns the size of the buffer.
func (b *Buffer) Bytes() int { return len(b.blocks) * part }

// ReadName describes how Read reads.
func ReadName() string { return readName }

// readTurns is how often each way to read has its turn.
const readTurns = 4

// Read returns the bytes per second that the given number of threads read together,
// each its own share of the buffer over and over. It takes about d to try all ways to
// read in turn, of which the best counts. Taking several turns each, they meet the same
// neighbours: the best of single tries would be the one that met the fewest.
func (b *Buffer) Read(threads int, d time.Duration) float64 {
	ways := readers()
	rates := make([]float64, len(ways))
	at := make([]int, max(1, threads)) // parts that each thread has read
	for range readTurns {
		for i, read := range ways {
			rates[i] += b.readWith(read, at, d/time.Duration(readTurns*len(ways))) / readTurns
		}
	}
	return slices.Max(rates)
}

// readWith reads for about d with as many threads as at is long, from the part on at which
// each of them stopped before.
func (b *Buffer) readWith(read func(p unsafe.Pointer, n int), at []int, d time.Duration) float64 {
	parts := len(b.blocks)
	return together(len(at), d, func(worker, threads int) func() float64 {
		lo, hi := parts*worker/threads, parts*(worker+1)/threads
		hi = max(hi, lo+1) // more threads than parts share
		return func() float64 {
			read(b.mem.Ptr(b.blocks[lo+at[worker]%(hi-lo)]), part)
			at[worker]++
			return part
		}
	})
}

// Unit is one instruction whose rate can be measured.
type Unit struct {
	// Name is the instruction with its width, such as "VFMADD231PS 512 bit".
	Name string

	// Set is the instruction set it belongs to, spelled as for kernels.ParseCPU.
	Set string

	flop int         // per repetition; an addition and a multiplication count 1 each
	run  func(n int) // n repetitions
}

// Units returns the units of this processor, from the portable one to the fastest.
func Units() []Unit { return slices.Clone(units()) }

// UnitOf returns the unit of an instruction set, the portable one if there is none.
func UnitOf(set string) Unit {
	all := units()
	if i := slices.IndexFunc(all, func(u Unit) bool { return u.Set == set }); i >= 0 {
		return all[i]
	}
	return all[0]
}

var units = sync.OnceValue(func() []Unit {
	return append([]Unit{{Name: "scalar float32 multiply and add, compiled Go", Set: "portable", flop: 16, run: scalar}}, assembly()...)
})

// Rate returns the operations per second, floating-point or of 8-bit integers, that the given number of
// threads reach together, measured for about d.
func (u Unit) Rate(threads int, d time.Duration) float64 {
	const n = 4096 // takes microseconds to tens of them
	return together(threads, d, func(int, int) func() float64 {
		return func() float64 {
			u.run(n)
			return float64(n * u.flop)
		}
	})
}

var sink atomic.Uint32

// scalar keeps eight sums, enough to hide the latency of one addition.
func scalar(n int) {
	var a, b, c, d, e, f, g, h float32
	x, y := float32(0.5), float32(1)
	for range n {
		a, b, c, d = a*x+y, b*x+y, c*x+y, d*x+y
		e, f, g, h = e*x+y, f*x+y, g*x+y, h*x+y
	}
	sink.Store(uint32(a + b + c + d + e + f + g + h))
}

// together runs the steps that prepare returns on the given number of goroutines,
// started at the same moment, for about d, and returns the sum of their rates: what
// the steps return, per second.
func together(threads int, d time.Duration, prepare func(worker, threads int) func() float64) float64 {
	threads = max(1, threads)
	rates := make([]float64, threads)
	var ready atomic.Int32
	worker := func(i int) {
		step := prepare(i, threads)
		step()
		ready.Add(1)
		for int(ready.Load()) < threads {
			runtime.Gosched()
		}
		begin := time.Now()
		sum := 0.0
		for {
			sum += step()
			if took := time.Since(begin); took >= d {
				rates[i] = sum / took.Seconds()
				return
			}
		}
	}
	var wg sync.WaitGroup
	for i := range threads - 1 {
		wg.Go(func() { worker(i + 1) })
	}
	worker(0)
	wg.Wait()
	total := 0.0
	for _, r := range rates {
		total += r
	}
	return total
}

// line is a flag that shares no cache line.
type line struct {
	_ [128]byte
	v atomic.Uint32
	_ [124]byte
}

// RoundTrip returns the median time for one thread to write a cache line, a second
// to see it and answer in another line, and the first to see that. It measures for
// about d and returns 0 on a single processor.
func RoundTrip(d time.Duration) time.Duration {
	if runtime.GOMAXPROCS(0) < 2 || runtime.NumCPU() < 2 {
		return 0
	}
	const trips = 100 // between two looks at the clock
	var ping, pong line
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for next := uint32(1); ; next++ {
			if !await(&ping.v, next, &stop) {
				return
			}
			pong.v.Store(next)
		}
	})
	var times []time.Duration
	next := uint32(0)
	for begin := time.Now(); len(times) == 0 || time.Since(begin) < d; {
		t := time.Now()
		for range trips {
			next++
			ping.v.Store(next)
			await(&pong.v, next, &stop)
		}
		times = append(times, time.Since(t)/trips)
	}
	stop.Store(true)
	wg.Wait()
	slices.Sort(times)
	return times[len(times)/2]
}

// await spins until v is want, and returns false if stop is set first. It yields now
// and then, in case the other side is waiting for this processor.
func await(v *atomic.Uint32, want uint32, stop *atomic.Bool) bool {
	for i := 1; v.Load() != want; i++ {
		if i%8192 == 0 {
			if stop.Load() {
				return false
			}
			runtime.Gosched()
		}
	}
	return true
}
