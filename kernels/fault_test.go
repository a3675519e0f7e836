//go:build unix

package kernels

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lukv/lukv/tensor"
)

// leastF16 is the smallest subnormal number of f16, which the compiler does not know.
var leastF16 = uint16(1)

// TestFaults: products whose weights are in a mapped file that becomes shorter panic, and
// leave nothing on the thread that changes later results: subnormal numbers stay what they are.
func TestFaults(t *testing.T) {
	const rows, cols = 24, 4096
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		f, err := os.Create(filepath.Join(t.TempDir(), "weights"))
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, f.Truncate(int64(typ.Bytes(cols)*rows)))
		data, err := unix.Mmap(int(f.Fd()), 0, typ.Bytes(cols)*rows, unix.PROT_READ, unix.MAP_SHARED)
		require.NoError(t, err)
		defer unix.Munmap(data)
		require.NoError(t, f.Truncate(int64(os.Getpagesize())))
		w := &Matrix{Type: typ, Rows: rows, Cols: cols, Data: data}
		for _, cpu := range Variants() {
			for _, n := range []int{1, 2, 3, 6, 24, 64} {
				t.Run(fmt.Sprintf("%v/%v/%d", typ, cpu, n), func(t *testing.T) {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
					dst := make([]float32, n*rows)
					require.Panics(t, func() { cpu.MatMul(dst, rows, make([]float32, n*cols), cols, n, w, 0, rows) })
					require.Equal(t, float32(0x1p-24), tensor.F16ToF32(leastF16), "f32")
					if typ == tensor.BF16 {
						require.Panics(t, func() { cpu.MatMulBF16(dst, rows, make([]uint16, n*cols), cols, n, w, 0, rows) })
						require.Equal(t, float32(0x1p-24), tensor.F16ToF32(leastF16), "bf16")
					}
				})
			}
		}
	}
}
