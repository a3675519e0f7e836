package probe

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testmem"
)

const short = 5 * time.Millisecond

func TestBuffer(t *testing.T) {
	b, err := NewBuffer(5<<20 + 1)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	require.Equal(t, 8<<20, b.Bytes())
	require.NotEmpty(t, ReadName())
	for _, threads := range []int{0, 1, 2, 9} {
		begin := time.Now()
		rate := b.Read(threads, short)
		took := time.Since(begin)
		// A byte costs between a thousandth of a nanosecond and a microsecond.
		assert.Greater(t, rate, 1e6, threads)
		assert.Less(t, rate, 1e12*float64(max(1, threads)), threads)
		assert.GreaterOrEqual(t, took, short)
	}
}

// Readers do not read outside the given range.
func TestReadBounds(t *testing.T) {
	for _, place := range testmem.Places {
		for _, n := range []int{512, 1024, 4096} {
			b := testmem.New(t, n, place, 16)
			for name, f := range allReaders() {
				f(unsafe.Pointer(&b.Bytes[0]), n)
				assert.NoError(t, b.Check(), "%s, %d bytes %v", name, n, place)
			}
		}
	}
}

func TestUnits(t *testing.T) {
	all := Units()
	require.NotEmpty(t, all)
	assert.Equal(t, "portable", all[0].Set)
	seen := map[string]bool{}
	for _, u := range all {
		assert.False(t, seen[u.Set], u.Set)
		seen[u.Set] = true
		assert.Equal(t, u.Name, UnitOf(u.Set).Name)
		for _, threads := range []int{1, 2} {
			rate := u.Rate(threads, short)
			t.Logf("%-45s %d threads %8.1f GFLOP/s", u.Name, threads, rate/1e9)
			assert.Greater(t, rate, 1e6)
			assert.Less(t, rate, 1e13)
		}
	}
	assert.Equal(t, "portable", UnitOf("none such").Set)
}

func TestRoundTrip(t *testing.T) {
	d := RoundTrip(short)
	if runtime.GOMAXPROCS(0) < 2 || runtime.NumCPU() < 2 {
		require.Zero(t, d)
		return
	}
	t.Log(d)
	assert.Positive(t, d)
	assert.Less(t, d, time.Second)

	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	assert.Zero(t, RoundTrip(short))
}

// A thread's rate is measured over its own time, so rates add up.
func TestTogether(t *testing.T) {
	rate := together(3, 20*time.Millisecond, func(worker, threads int) func() float64 {
		assert.Equal(t, 3, threads)
		return func() float64 {
			time.Sleep(time.Millisecond)
			return float64(worker + 1)
		}
	})
	assert.LessOrEqual(t, rate, 6000.0) // a sleep takes at least a millisecond
	assert.Greater(t, rate, 60.0)
}
