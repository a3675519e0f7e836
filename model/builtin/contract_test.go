package builtin

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tokenizer"
)

// shortSample returns the tokens of the two parts of a prompt of about 200 tokens.
func shortSample(t testing.TB, tok *tokenizer.Tokenizer) (head, tail []int32) {
	for _, s := range Samples() {
		if s.Length == 256 {
			h, q := Prompt(s.Context, s.Question, s.AnswerPrefix)
			return h.Encode(tok), q.Encode(tok)
		}
	}
	t.Fatal("no sample of 256 tokens")
	return nil, nil
}

// outcome is what must not depend on the instruction set: the positions that
// every head keeps, and logits computed with them.
type outcome struct {
	name      string
	positions [][]int32 // of each layer and head
	logits    []float32
}

// outcomeOf returns the outcome of a finished session, after checking that
// something was evicted.
func outcomeOf(t testing.TB, name string, s *model.Session) outcome {
	o := outcome{name: name, logits: append([]float32(nil), s.Logits()...)}
	c, kept := s.Model().Config(), 0
	for at := range c.Layers {
		for h := range c.KVHeads {
			positions := s.Cache().Positions(at, h, nil)
			kept += len(positions)
			o.positions = append(o.positions, positions)
		}
	}
	require.Less(t, kept, s.Len()*len(o.positions)*2/3, "entries kept by %s", name)
	return o
}

// compressions compresses a prompt by every metric with every allocator, and
// answers with every form of compression while decoding.
func compressions(t testing.TB, cpu kernels.CPU, precision model.Precision) []outcome {
	ctx := context.Background()
	m, err := Open(ctx, model.WithCPU(cpu), model.WithPrecision(precision), model.WithThreads(2))
	require.NoError(t, err)
	defer m.Close()
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	head, tail := shortSample(t, tok)

	var metrics []lukv.Metric
	for _, name := range lukv.Metrics() {
		metric, err := lukv.NewMetric(lukv.MetricConfig{Name: name})
		require.NoError(t, err)
		metrics = append(metrics, metric)
	}
	ob, err := m.Observe(ctx, head, model.SessionOptions{}, metrics...)
	require.NoError(t, err)
	defer ob.Close()
	var out []outcome
	for _, metric := range metrics {
		profile, err := Profile(lukv.MetricConfigOf(metric))
		require.NoError(t, err)
		for i, name := range lukv.Allocators() {
			p := &lukv.Policy{Metric: lukv.MetricConfigOf(metric), Allocator: lukv.AllocatorConfig{Name: name}, Ratio: 0.7}
			if lukv.MetricConfigOf(metric).Name == "criticalkv" && name == "cake" {
				p.Allocator.Params = `{"cascade":false}`
			}
			if p.Allocator.Validate() != nil || !recorded(p) {
				continue // it has parameters without a default
			}
			if p.Allocator.NeedsProfile() {
				p.Profile = profile
			}
			s, err := ob.Compress(ctx, p)
			require.NoError(t, err)
			if i == 0 {
				require.NoError(t, s.Append(ctx, tail[0]))
			}
			out = append(out, outcomeOf(t, lukv.MetricConfigOf(metric).Name+" with "+name, s))
			require.NoError(t, s.Close())
		}
	}
	for _, d := range []lukv.DecodeConfig{
		{Mode: "periodic", TargetSize: 16, Interval: 5, Buffer: 8, Metric: &lukv.MetricConfig{Name: "snapkv"}},
		{Mode: "tova", TargetSize: 16}, {Mode: "h2o", TargetSize: 16}, {Mode: "streaming", TargetSize: 16},
	} {
		s, err := m.NewSession(model.SessionOptions{Compression: &lukv.Policy{Decode: d}})
		require.NoError(t, err)
		require.NoError(t, s.Prefill(ctx, head[:24]))
		for _, token := range tail[:8] {
			require.NoError(t, s.Append(ctx, token))
		}
		out = append(out, outcomeOf(t, "decoding with "+d.Mode, s))
		require.NoError(t, s.Close())
	}
	return out
}

// TestKeptSets requires equal kept sets, and equal logits computed with them,
// on every instruction set, in each precision.
func TestKeptSets(t *testing.T) {
	sets := kernels.Variants()
	if len(sets) == 1 {
		t.Skipf("this processor offers %v alone", sets[0])
	}
	if testing.Short() && len(sets) > 2 {
		sets = sets[1:] // portable Go is slow
	}
	heads, entries := 0, 0
	for _, precision := range []model.Precision{model.PrecisionF32, model.PrecisionBF16} {
		want := compressions(t, sets[0], precision)
		for _, cpu := range sets[1:] {
			got := compressions(t, cpu, precision)
			require.Len(t, got, len(want))
			for i, w := range want {
				where := fmt.Sprintf("%s, precision %s: %v against %v", w.name, precision, cpu, sets[0])
				for h := range w.positions {
					require.Equal(t, w.positions[h], got[i].positions[h], "%s, head %d of all layers", where, h)
					heads++
					entries += len(w.positions[h])
				}
				for j := range w.logits {
					require.Equal(t, math.Float32bits(w.logits[j]), math.Float32bits(got[i].logits[j]), "%s, logit %d", where, j)
				}
			}
		}
	}
	line := fmt.Sprintf("kept sets: %d checks (heads with %d entries) on %v", heads, entries, sets)
	t.Log(line)
	fmt.Println(line)
}

// TestGoldenBF16 answers the recorded prompts in bf16 precision on every
// instruction set. The recorded logits were computed without rounding to
// bf16, which moves them by up to 6e-3 of the largest.
func TestGoldenBF16(t *testing.T) {
	const bound = 2e-2
	golden, tensors := readGolden(t)
	ctx := context.Background()
	checks, tokens, equal, worst := 0, 0, 0, 0.0
	for _, cpu := range kernels.Variants() {
		m, err := Open(ctx, model.WithPrecision(model.PrecisionBF16), model.WithCPU(cpu), model.WithThreads(2))
		require.NoError(t, err)
		for _, p := range golden.Prompts {
			prompt := tensors.ids(t, p.Name+".input_ids")
			if cpu == (kernels.CPU{}) && len(prompt) > 100 {
				continue // slow, and TestContract of package model has long prompts
			}
			s, err := m.NewSession(model.SessionOptions{})
			require.NoError(t, err)
			var logits []float32
			require.NoError(t, s.PrefillEach(ctx, prompt, func(_ int, row []float32) error {
				logits = append(logits, row...)
				return nil
			}))
			ref := tensors.floats(t, p.Name+".logits")
			d := testnum.Deviation(logits[len(logits)-len(ref):], ref)
			checks += len(ref)
			greedy := tensors.ids(t, p.Name+".greedy")
			for _, want := range greedy {
				tokens++
				if cpu.Argmax(s.Logits()) == int(want) {
					equal++
				}
				require.NoError(t, s.Append(ctx, want))
			}
			t.Logf("%s on %v: deviation %.2g", p.Name, cpu, d)
			worst = max(worst, d)
			require.LessOrEqual(t, d, bound, p.Name)
			require.NoError(t, s.Close())
		}
		require.NoError(t, m.Close())
	}
	line := fmt.Sprintf("golden builtin model in bf16: %d checks, worst deviation %.2g, %d of %d greedy tokens equal", checks, worst, equal, tokens)
	t.Log(line)
	fmt.Println(line)
	require.NotZero(t, checks)
	require.GreaterOrEqual(t, equal, tokens*95/100)
}

type goldenPrompts struct {
	Prompts []struct{ Name string }
}

// goldenTensors is testdata/golden.safetensors.
type goldenTensors struct{ *safetensors.File }

func readGolden(t testing.TB) (p goldenPrompts, x goldenTensors) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &p))
	f, err := safetensors.Open("testdata/golden.safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return p, goldenTensors{f}
}

func (g goldenTensors) ids(t testing.TB, name string) (out []int32) {
	x, ok := g.Tensor(name)
	require.True(t, ok, name)
	for i := 0; i < len(x.Data); i += 8 {
		out = append(out, int32(binary.LittleEndian.Uint64(x.Data[i:])))
	}
	return out
}

func (g goldenTensors) floats(t testing.TB, name string) []float32 {
	x, ok := g.Tensor(name)
	require.True(t, ok, name)
	return x.Float32s(nil)
}
