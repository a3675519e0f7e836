package quantize

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// calibrated returns the importance of the embedded model's columns on the first n of its
// calibration texts.
func calibrated(t *testing.T, dir string, n int) *Importance {
	t.Helper()
	var texts []string
	for _, text := range builtin.Calibration()[:n] {
		texts = append(texts, text.Context)
	}
	last := -1
	im, err := Calibrate(t.Context(), dir, strings.Join(texts, "\n"), func(done, total int) { last = total - done })
	require.NoError(t, err)
	require.Zero(t, last)
	return im
}

// TestCalibration: on other texts than the calibration's, importance brings models nearer to
// the source, whatever the type.
func TestCalibration(t *testing.T) {
	if testing.Short() {
		t.Skip("rounds the embedded model eight times")
	}
	dir := embedded(t)
	im := calibrated(t, dir, 4)
	for at := range 6 {
		for role := range inputOf {
			if s := im.sums[place{at, role}]; s != nil {
				require.Equal(t, im.Tokens, s.rows, "layer %d, role %d", at, role)
			}
		}
	}
	var ids [][]int32
	var want [][][]float64
	for i := 4; i < 8; i++ {
		ids = append(ids, text(t, dir, i, 1000))
		want = append(want, logProbs(t, dir, ids[i-4]))
	}
	from := func(out string) (kl float64) {
		for i := range ids {
			kl += divergence(want[i], logProbs(t, out, ids[i])) / float64(len(ids))
		}
		return kl
	}
	makers := map[string]func(im *Importance) string{}
	for name, bits := range map[string]int{"int4": 4, "int8": 8} {
		makers[name] = func(im *Importance) string {
			out := filepath.Join(t.TempDir(), "out")
			_, err := Folder(t.Context(), dir, out, FolderOptions{Bits: bits, Importance: im})
			require.NoError(t, err)
			return out
		}
	}
	for _, typ := range []gguf.Type{gguf.Q4_0, gguf.Q4_K} {
		makers[typ.String()] = func(im *Importance) string { return throughBlocks(t, dir, typ, im) }
	}
	for name, make := range makers {
		alike, weighed := from(make(nil)), from(make(im))
		t.Logf("%s: KL %.3g, with importance %.3g (%+.0f %%)", name, alike, weighed, 100*(weighed/alike-1))
		require.Less(t, weighed, alike, name)
	}
}

// throughBlocks writes the model of a folder in F32 after its matrices were blocks of a type.
func throughBlocks(t *testing.T, dir string, typ gguf.Type, im *Importance) string {
	t.Helper()
	c, err := safetensors.OpenCheckpoint(dir)
	require.NoError(t, err)
	defer c.Close()
	tensors := map[string]tensor.Tensor{}
	for name, x := range c.All() {
		tensors[name] = x
	}
	cfg, err := arch.Load(dir)
	require.NoError(t, err)
	for at := range cfg.Plans() {
		for _, role := range matrixRoles {
			name := cfg.Tensors().Name(arch.HuggingFace, role, at)
			x, ok := tensors[name]
			if !ok {
				continue
			}
			values := x.Float32s(nil)
			data, err := gguf.Encode(nil, typ, values, x.Shape[1], im.of(at, role))
			require.NoError(t, err)
			block := gguf.Tensor{Name: name, Type: typ, Shape: x.Shape, Data: data}
			require.NoError(t, block.Rows(values, 0, x.Shape[0]))
			tensors[name] = tensor.FromF32s(tensor.F32, values, x.Shape...)
		}
	}
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	return folderOf(t, string(config), tensors)
}

// TestImportanceOfTensors: a GGUF file's tensors have the importance of their own inputs, and are
// encoded with it.
func TestImportanceOfTensors(t *testing.T) {
	cfg, err := arch.Parse([]byte(mixtureSettings))
	require.NoError(t, err)
	im := &Importance{cfg: cfg, sums: map[place]*squares{}}
	for i, role := range []arch.Role{arch.RoleQ, arch.RoleO, arch.RoleGate, arch.RoleExpertDown} {
		x := make([]float32, map[bool]int{true: 64, false: 128}[role == arch.RoleExpertDown])
		for j := range x {
			x[j] = float32(i + j%3)
		}
		im.add(0, role, x)
		im.add(0, role, make([]float32, len(x)))
	}
	tensors := im.tensors()
	for name, i := range map[string]float32{
		"attn_q": 0, "attn_k": 0, "attn_v": 0, "attn_output": 1, "ffn_gate_exps": 2, "ffn_up_exps": 2, "ffn_gate.2": 2, "ffn_down_exps": 3, "ffn_down.0": 3,
	} {
		got := tensors["blk.0."+name+".weight"]
		require.NotEmpty(t, got, name)
		require.Equal(t, []float32{i * i / 2, (i + 1) * (i + 1) / 2, (i + 2) * (i + 2) / 2}, got[:3], name)
	}
	require.NotContains(t, tensors, "blk.0.ffn_gate_inp.weight")
	require.Nil(t, im.of(0, arch.RoleSharedDown))
	require.Nil(t, (*Importance)(nil).of(0, arch.RoleQ))
	zeros := &Importance{cfg: cfg, sums: map[place]*squares{}}
	zeros.add(0, arch.RoleQ, make([]float32, 128))
	require.Nil(t, zeros.of(0, arch.RoleQ), "inputs of 0 weigh nothing")

	x := make([]float32, 5*128)
	for i := range x {
		x[i] = float32((i*7919)%127) - 60
	}
	path, out := filepath.Join(t.TempDir(), "in.gguf"), filepath.Join(t.TempDir(), "out.gguf")
	require.NoError(t, gguf.WriteFile(path, nil, []gguf.Entry{{Name: "blk.0.attn_output.weight", Type: gguf.F32, Shape: []int{5, 128}, Stream: func(w io.Writer) error {
		_, err := w.Write(tensor.FromF32s(tensor.F32, x, len(x)).Data)
		return err
	}}}))
	_, err = GGUF(t.Context(), path, out, Options{Type: gguf.Q4_0, Importance: im})
	require.NoError(t, err)
	f, err := gguf.Open(out)
	require.NoError(t, err)
	defer f.Close()
	want, err := gguf.Encode(nil, gguf.Q4_0, x, 128, tensors["blk.0.attn_output.weight"])
	require.NoError(t, err)
	alike, err := gguf.Encode(nil, gguf.Q4_0, x, 128, nil)
	require.NoError(t, err)
	require.NotEqual(t, alike, want)
	require.True(t, bytes.Equal(want, f.Tensors()[0].Data))
}

func TestCalibrateRefuses(t *testing.T) {
	dir := embedded(t)
	_, err := Calibrate(t.Context(), dir, "", nil)
	require.ErrorContains(t, err, "no tokens")
	_, err = Calibrate(t.Context(), filepath.Join(dir, "none"), "x", nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Calibrate(t.Context(), write(t, dir, 8).dir, "x", nil)
	require.ErrorContains(t, err, "already stored")
	ctx, stop := context.WithCancel(t.Context())
	_, err = Calibrate(ctx, dir, strings.Repeat("One two three. ", 500), func(int, int) { stop() })
	require.ErrorIs(t, err, context.Canceled)
}
