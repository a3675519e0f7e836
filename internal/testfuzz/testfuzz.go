// Package testfuzz bounds what one input of a fuzz target may cost.
package testfuzz

import (
	"flag"
	"fmt"
	"runtime/metrics"
	"testing"
	"time"
)

// Limits for one input.
const (
	maxTime = time.Second // CPU time
	maxHang = time.Minute // wall-clock time, on a machine that has other work
	// Bytes allocated in total, including freed ones: a constant, plus a multiple of the input's size.
	maxBytes, perByte = 64 << 20, 8
)

// Bound fails a test of an input of n bytes that allocates more than 64 MiB + 8 n bytes
// between this call and that of the returned function or, while fuzzing, takes more
// than a second of CPU time or hangs:
//
//	defer testfuzz.Bound(t, len(input))()
func Bound(t testing.TB, n int) func() {
	t.Helper()
	before := allocated()
	if !fuzzing() {
		return func() {
			t.Helper()
			boundBytes(t, allocated()-before, n)
		}
	}
	// A panic makes the fuzzer keep the input.
	hang := time.AfterFunc(maxHang, func() { panic(fmt.Sprintf("no end after %v", maxHang)) })
	start := processorTime()
	return func() {
		t.Helper()
		hang.Stop()
		if took := processorTime() - start; took > maxTime {
			t.Errorf("%d bytes of input took %v of the processor, bound %v", n, took, maxTime)
		}
		boundBytes(t, allocated()-before, n)
	}
}

func boundBytes(t testing.TB, got uint64, n int) {
	t.Helper()
	if bound := uint64(maxBytes + perByte*n); got > bound {
		t.Errorf("%d bytes of input made the program allocate %d bytes, bound %d", n, got, bound)
	}
}

// fuzzing reports whether this process is a worker of the fuzzer.
func fuzzing() bool {
	f := flag.Lookup("test.fuzzworker")
	return f != nil && f.Value.String() == "true"
}

// allocated returns the bytes that the program has allocated so far.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
