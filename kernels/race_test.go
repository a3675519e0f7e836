//go:build race

package kernels

import (
	"os"
	"os/exec"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// racy holds operations that write what another goroutine reads or writes at the same time.
var racy = map[string]func(c CPU, shared []float32){
	"MatMul": func(c CPU, shared []float32) {
		w := F32Matrix(make([]float32, 64*8), 8, 64)
		c.MatMul(shared, 8, make([]float32, 64), 64, 1, &w, 0, 8)
	},
	"MatMulInt8": func(c CPU, shared []float32) {
		w := Matrix{Type: tensor.Q8_0, Rows: 8, Cols: 64, Data: make([]byte, 8*68)}
		o := NewOperand(make([]float32, OperandWords(FormInt8x32, 1, 64)), FormInt8x32, 1, 64)
		c.Multiply(shared, 8, &o, 1, &w, 0, 8)
	},
	"RMSNorm": func(c CPU, shared []float32) { c.RMSNorm(shared, make([]float32, 64), make([]float32, 64), 1e-5) },
	"Add":     func(c CPU, shared []float32) { c.Add(shared, make([]float32, 64)) },
	"Rope":    func(c CPU, shared []float32) { c.Rope(shared, make([]float32, 32), make([]float32, 32)) },
	"Gated":   func(c CPU, shared []float32) { c.Gated(SiLU, shared, make([]float32, 64), make([]float32, 64)) },
	"Exp":     func(c CPU, shared []float32) { c.Exp(shared, make([]float32, 64)) },
	"Widen":   func(c CPU, shared []float32) { c.Widen(shared, make([]byte, 128), tensor.BF16) },
	"Dot":     func(c CPU, shared []float32) { shared[0] = c.Dot(shared, shared) },
	"Attention": func(c CPU, shared []float32) {
		k, v := make([]float32, 16*64), make([]float32, 16*64)
		kv := KV{Type: tensor.F32, HeadDim: 64, PageEntries: 16, Pages: []Page{{K: unsafe.Pointer(&k[0]), V: unsafe.Pointer(&v[0])}}}
		c.Attention(&AttentionArgs{Out: shared, Q: make([]float32, 64), Stride: 64, N: 1, Group: 1, End: 16, Scale: 1, KV: kv}, new(AttentionScratch))
	},
}

// TestRaces runs itself with two goroutines in one operation on the same memory:
// the race detector, which does not see into assembly, must report a race.
func TestRaces(t *testing.T) {
	if name := os.Getenv("LUKV_RACE"); name != "" {
		shared := make([]float32, 64)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { racy[name](Detect(), shared) })
		}
		wg.Wait()
		return
	}
	for name := range racy {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestRaces$", "-test.count=1")
			cmd.Env = append(os.Environ(), "LUKV_RACE="+name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "DATA RACE")
		})
	}
}
