package quantize

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/tensor"
)

// source writes a file of random matrices, a router and a vector, and returns its path.
func source(t *testing.T) string {
	random := rand.New(rand.NewPCG(1, 2))
	entry := func(name string, typ gguf.Type, shape ...int) gguf.Entry {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(random.NormFloat64())
		}
		return gguf.Entry{Name: name, Type: typ, Shape: shape, Stream: func(w io.Writer) error {
			_, err := w.Write(tensor.FromF32s(typ.Stored(), x, n).Data)
			return err
		}}
	}
	path := filepath.Join(t.TempDir(), "source.gguf")
	require.NoError(t, gguf.WriteFile(path, []gguf.Pair{
		{Key: "general.architecture", Value: "llama"}, {Key: "general.file_type", Value: uint32(1)},
		{Key: "tokenizer.ggml.tokens", Value: []string{"a", "", "bc"}}, {Key: "llama.rope.freq_base", Value: float32(5e5)},
	}, []gguf.Entry{
		entry("token_embd.weight", gguf.F16, 8, 256), entry("blk.0.attn_q.weight", gguf.BF16, 37, 512), entry("blk.0.attn_norm.weight", gguf.F32, 256),
		entry("blk.0.ffn_gate_inp.weight", gguf.F32, 4, 256), entry("blk.0.ffn_gate_exps.weight", gguf.F16, 4, 6, 256),
		entry("blk.0.narrow.weight", gguf.F16, 4, 96), entry("blk.0.odd.weight", gguf.F32, 3, 10),
	}))
	return path
}

func TestTypes(t *testing.T) {
	path := source(t)
	for typ, want := range map[gguf.Type]map[string]gguf.Type{
		gguf.Q8_0: {"token_embd.weight": gguf.Q8_0, "blk.0.attn_q.weight": gguf.Q8_0, "blk.0.ffn_gate_exps.weight": gguf.Q8_0},
		gguf.Q4_0: {"token_embd.weight": gguf.Q6_K, "blk.0.attn_q.weight": gguf.Q4_0, "blk.0.narrow.weight": gguf.Q4_0},
		gguf.Q4_K: {"token_embd.weight": gguf.Q6_K, "blk.0.attn_q.weight": gguf.Q4_K, "blk.0.narrow.weight": gguf.Q8_0},
	} {
		out := filepath.Join(t.TempDir(), "out.gguf")
		last := int64(0)
		r, err := GGUF(t.Context(), path, out, Options{Type: typ, Progress: func(done, total int64) {
			require.LessOrEqual(t, done, total)
			last = total - done
		}})
		require.NoError(t, err)
		require.Zero(t, last)
		require.Equal(t, 7, r.Tensors)
		require.Less(t, r.Bytes, r.Before)
		f, err := gguf.Open(out)
		require.NoError(t, err)
		defer f.Close()
		for name, want := range want {
			require.Equal(t, want, f.Tensor(name).Type, name)
		}
		require.Equal(t, gguf.F32, f.Tensor("blk.0.attn_norm.weight").Type)
		require.Equal(t, gguf.F32, f.Tensor("blk.0.ffn_gate_inp.weight").Type, "routers stay")
		require.Equal(t, gguf.F16, f.Tensor("blk.0.odd.weight").Type)
		tokens, err := f.Texts("tokenizer.ggml.tokens")
		require.NoError(t, err)
		require.Equal(t, []string{"a", "", "bc"}, tokens)
		base, err := f.Float("llama.rope.freq_base")
		require.NoError(t, err)
		require.Equal(t, 5e5, base)

		// Each row is what its own encoding gives, whoever computed it.
		src, err := gguf.Open(path)
		require.NoError(t, err)
		defer src.Close()
		from := src.Tensor("blk.0.attn_q.weight")
		row := make([]float32, 512)
		require.NoError(t, from.Rows(row, 36, 1))
		one, err := gguf.Encode(nil, typ, row, 512, nil)
		require.NoError(t, err)
		require.True(t, bytes.HasSuffix(f.Tensor("blk.0.attn_q.weight").Data, one))
	}
}

// TestMixture: with Mixed, the output matrix and the matrices that matter most are Q6_K, in the
// first and the last eighth of the layers and in every third of those between.
func TestMixture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "source.gguf")
	const layers = 17
	one := func(name string) gguf.Entry {
		return gguf.Entry{Name: name, Type: gguf.F16, Shape: []int{1, 256}, Stream: func(w io.Writer) error {
			_, err := w.Write(make([]byte, 512))
			return err
		}}
	}
	for _, tied := range []bool{false, true} {
		entries := []gguf.Entry{one("token_embd.weight")}
		if !tied {
			entries = append(entries, one("output.weight"))
		}
		for at := range layers {
			for _, name := range []string{"attn_q", "attn_v", "ffn_down", "ffn_down_exps", "ffn_up"} {
				entries = append(entries, one(fmt.Sprintf("blk.%d.%s.weight", at, name)))
			}
		}
		require.NoError(t, gguf.WriteFile(path, []gguf.Pair{{Key: "general.architecture", Value: "llama"}}, entries))
		out := filepath.Join(t.TempDir(), "out.gguf")
		_, err := GGUF(t.Context(), path, out, Options{Type: gguf.Q4_K, Mixed: true})
		require.NoError(t, err)
		f, err := gguf.Open(out)
		require.NoError(t, err)
		defer f.Close()
		kind, err := f.Uint("general.file_type")
		require.NoError(t, err)
		require.Equal(t, uint64(15), kind)
		for at := range layers {
			for name, more := range map[string]bool{"attn_q": false, "attn_v": true, "ffn_down": true, "ffn_down_exps": true, "ffn_up": false} {
				want := gguf.Q4_K
				if more && slices.Contains([]int{0, 1, 4, 7, 10, 13, 14, 15, 16}, at) {
					want = gguf.Q6_K
				}
				require.Equal(t, want, f.Tensor(fmt.Sprintf("blk.%d.%s.weight", at, name)).Type, "%d %s", at, name)
			}
		}
		if tied {
			require.Equal(t, gguf.Q6_K, f.Tensor("token_embd.weight").Type)
		} else {
			require.Equal(t, gguf.Q4_K, f.Tensor("token_embd.weight").Type)
			require.Equal(t, gguf.Q6_K, f.Tensor("output.weight").Type)
		}
	}
	_, err := GGUF(t.Context(), path, filepath.Join(t.TempDir(), "x"), Options{Type: gguf.Q4_0, Mixed: true})
	require.ErrorContains(t, err, "expected Q4_K")
}

func TestRefuses(t *testing.T) {
	path, dir := source(t), t.TempDir()
	out := filepath.Join(dir, "out.gguf")
	_, err := GGUF(t.Context(), path, out, Options{Type: gguf.Q8_0})
	require.NoError(t, err)
	_, err = GGUF(t.Context(), path, out, Options{Type: gguf.Q8_0})
	require.ErrorContains(t, err, "exists already")
	again := filepath.Join(dir, "again.gguf")
	_, err = GGUF(t.Context(), out, again, Options{Type: gguf.Q4_0})
	require.ErrorContains(t, err, "rounding it again")
	_, err = os.Stat(again)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = GGUF(t.Context(), out, again, Options{Type: gguf.Q4_0, Again: true})
	require.NoError(t, err)
	_, err = GGUF(t.Context(), path, filepath.Join(dir, "x"), Options{Type: gguf.Q5_K})
	require.ErrorContains(t, err, "expected one of [Q8_0 Q4_0 Q4_K]")
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err = GGUF(stopped, path, filepath.Join(dir, "x"), Options{Type: gguf.Q4_0})
	require.ErrorIs(t, err, context.Canceled)
	_, err = os.Stat(filepath.Join(dir, "x"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
