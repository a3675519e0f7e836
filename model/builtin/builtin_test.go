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

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tokenizer"
)

// TestGolden compares tokens, logits and greedy continuations with the
// recorded ones, on every available instruction set.
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	var golden struct {
		Prompts []struct {
			Name, Text string
			Greedy     string `json:"greedy_text"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	f, err := safetensors.Open("testdata/golden.safetensors")
	require.NoError(t, err)
	defer f.Close()
	ids := func(name string) []int32 {
		x, ok := f.Tensor(name)
		require.True(t, ok, name)
		var out []int32
		for i := 0; i < len(x.Data); i += 8 {
			out = append(out, int32(binary.LittleEndian.Uint64(x.Data[i:])))
		}
		return out
	}
	checks, worst := 0, 0.0
	ctx := context.Background()
	for _, cpu := range kernels.Variants() {
		m, err := Open(ctx, model.WithPrecision(model.PrecisionF32), model.WithCPU(cpu))
		require.NoError(t, err)
		tok, err := m.Tokenizer()
		require.NoError(t, err)
		for _, p := range golden.Prompts {
			want := ids(p.Name + ".input_ids")
			if p.Text != "" {
				require.Equal(t, want, tok.Encode(p.Text, tokenizer.EncodeOptions{}), p.Name)
			}
			s, err := m.NewSession(model.SessionOptions{})
			require.NoError(t, err)
			var logits []float32
			require.NoError(t, s.PrefillEach(ctx, want, func(_ int, row []float32) error {
				logits = append(logits, row...)
				return nil
			}))
			x, ok := f.Tensor(p.Name + ".logits")
			require.True(t, ok)
			ref := x.Float32s(nil)
			logits = logits[len(logits)-len(ref):]
			diff, size := 0.0, 0.0
			for i := range ref {
				diff = max(diff, math.Abs(float64(logits[i])-float64(ref[i])))
				size = max(size, math.Abs(float64(ref[i])))
			}
			require.LessOrEqual(t, diff/size, 1e-4, p.Name)
			worst = max(worst, diff/size)
			checks += len(ref)

			var greedy []int32
			for tk, err := range s.Generate(ctx, model.Sampling{MaxTokens: 32, IgnoreEOS: true}) {
				require.NoError(t, err)
				greedy = append(greedy, tk.ID)
			}
			require.Equal(t, ids(p.Name+".greedy"), greedy, p.Name)
			if p.Greedy != "" {
				require.Equal(t, p.Greedy, tok.Decode(greedy, false), p.Name)
			}
			checks += len(greedy)
			require.NoError(t, s.Close())
		}
		require.NoError(t, m.Close())
	}
	fmt.Printf("golden builtin model: %d checks, worst deviation %.2g\n", checks, worst)
	require.NotZero(t, checks)
}

// TestSamples checks that prompts encode to as many tokens as the samples say.
func TestSamples(t *testing.T) {
	tok, err := tokenizer.Load(Files())
	require.NoError(t, err)
	samples := Samples()
	require.Len(t, samples, 221)
	for i, s := range samples {
		head, tail := Prompt(s.Context, s.Question, s.AnswerPrefix)
		require.Equal(t, s.PromptTokens, len(head.Encode(tok))+len(tail.Encode(tok)), "sample %d", i)
	}
	require.Len(t, Calibration(), 8)
	for _, c := range Calibration() {
		require.Len(t, c.Questions, 10)
	}
}

// TestProfiles checks that every metric has embedded profiles of both objectives,
// and that they belong to the embedded model.
func TestProfiles(t *testing.T) {
	m, err := Open(context.Background())
	require.NoError(t, err)
	defer m.Close()
	c := m.Config()
	for objective, of := range map[string]func(lukv.MetricConfig) (*lukv.Profile, error){
		lukv.ObjectiveUtility: Profile, lukv.ObjectiveOutputError: OutputErrorProfile,
	} {
		for _, name := range lukv.Metrics() {
			p, err := of(lukv.MetricConfig{Name: name})
			require.NoError(t, err)
			require.NotNil(t, p, name)
			policy := lukv.Policy{Metric: lukv.MetricConfig{Name: name}, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Ratio: 0.8, Profile: p}
			_, err = policy.Compile(m.ID(), lukv.CacheShape{Layers: c.Layers, KVHeads: c.KVHeads})
			require.NoError(t, err)
			require.Equal(t, 80, p.Pairs)
			require.Equal(t, objective, p.Identity.Objective)
			require.Equal(t, name == "triattention", p.QueryCenters != nil, name)
		}
	}
	p, err := Profile(lukv.MetricConfig{Name: "snapkv", Params: `{"window":16}`})
	require.NoError(t, err)
	require.Nil(t, p, "a profile of other parameters")
}
