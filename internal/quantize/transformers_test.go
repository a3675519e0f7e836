package quantize

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// TestTransformers opens written folders with the Python packages transformers and
// compressed-tensors, and compares the weights that they compute with to the bit: integer ×
// scale, rounded to the type of the scales, in which they multiply. That this program reads the
// same products is shown by TestIntegers.
func TestTransformers(t *testing.T) {
	python := os.Getenv("LUKV_TRANSFORMERS")
	if python == "" {
		t.Skip("LUKV_TRANSFORMERS names no Python that has transformers and compressed-tensors")
	}
	sources := map[string]string{
		"embedded": embedded(t), "small": folderOf(t, settings, floats(t, settings, tensor.F16)),
		"mixture": folderOf(t, mixtureSettings, floats(t, mixtureSettings, tensor.BF16)),
	}
	if root := os.Getenv("LUKV_GOLDEN_FAMILIES"); root != "" {
		for _, name := range []string{"phi3-partial-f16", "gemma2-bf16"} {
			sources[name] = filepath.Join(root, name)
		}
	}
	var list []made
	args := []string{"testdata/open.py"}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		for _, bits := range []int{4, 8} {
			if name == "mixture" && bits == 8 {
				continue // transformers 5 opens experts in words only
			}
			m := write(t, sources[name], bits)
			list, args = append(list, m), append(args, m.dir)
		}
	}
	out, err := exec.Command(python, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, m := range list {
		m.sameWeights()
	}
}

// sameWeights compares the folder's weights with those in its weights.safetensors.
func (m made) sameWeights() {
	m.Helper()
	theirs, err := safetensors.Open(filepath.Join(m.dir, "weights.safetensors"))
	require.NoError(m, err)
	defer theirs.Close()
	for name, x := range theirs.All() {
		var want []float32
		if module, ok := strings.CutSuffix(name, "gate_up_proj"); ok && len(x.Shape) == 3 {
			for e := range x.Shape[0] {
				want = slices.Concat(want, m.values(fmt.Sprintf("%s%d.gate_proj.weight", module, e)), m.values(fmt.Sprintf("%s%d.up_proj.weight", module, e)))
			}
		} else if module, ok := strings.CutSuffix(name, "down_proj"); ok && len(x.Shape) == 3 {
			for e := range x.Shape[0] {
				want = append(want, m.values(fmt.Sprintf("%s%d.down_proj.weight", module, e))...)
			}
		} else {
			want = m.values(name)
		}
		got := x.Float32s(nil)
		require.Len(m, got, len(want), name)
		for i := range got {
			require.Equal(m, want[i], got[i], "%s %s: element %d", m.dir, name, i)
		}
	}
	m.Logf("%s: %d tensors are the same", m.dir, theirs.Len())
}

// values returns a weight of the folder, as it is or as rounded products of the type of the scales.
func (m made) values(name string) []float32 {
	m.Helper()
	module := strings.TrimSuffix(name, ".weight")
	s, _, ok := m.c.Tensor(module + ".weight_scale")
	if !ok {
		return m.tensor(name).Float32s(nil)
	}
	var rows, cols int
	if x, _, ok := m.c.Tensor(name); ok {
		rows, cols = x.Shape[0], x.Shape[1]
	} else {
		x := m.tensor(module + ".weight_packed")
		rows, cols = x.Shape[0], 8*x.Shape[1]
	}
	q, scales, group := m.integers(module, rows, cols)
	values := make([]float32, len(q))
	for i := range q {
		values[i] = float32(q[i]) * scales[i/group]
	}
	return tensor.FromF32s(s.Type, values, len(values)).Float32s(nil)
}
