package sampling

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/kernels"
)

func newTestSampler(t testing.TB, vocab int, o Options, choice int) *Sampler {
	t.Helper()
	s := &Sampler{cpu: kernels.Detect(), vocab: vocab}
	require.NoError(t, s.Reset(o, choice))
	return s
}

// draws counts the tokens that n draws give.
func draws(t testing.TB, o Options, logits []float32, history []int32, mask []uint64, n int) map[int32]int {
	t.Helper()
	s := newTestSampler(t, len(logits), o, 0)
	s.Start(history)
	got := map[int32]int{}
	for range n {
		id, err := s.Next(logits, mask)
		require.NoError(t, err)
		got[id]++
	}
	return got
}

func TestSampler(t *testing.T) {
	logits := []float32{1, 3, 2, -1, 3, 0.5}
	pick := func(o Options, history []int32, n int) map[int32]int { return draws(t, o, logits, history, nil, n) }
	require.Equal(t, map[int32]int{1: 5}, pick(Options{}, nil, 5), "greedy takes the first of equals")
	require.Equal(t, map[int32]int{1: 50}, pick(Options{Temperature: 1, TopK: 1}, nil, 50))
	require.Equal(t, pick(Options{Temperature: 1, Seed: 9}, nil, 100), pick(Options{Temperature: 1, Seed: 9}, nil, 100))
	for _, bad := range []Options{
		{Temperature: -1}, {TopP: 2}, {TopK: -1}, {MinP: -0.1}, {MaxTokens: -1}, {Temperature: math.NaN()},
		{TopLogProbs: MaxTopLogProbs + 1}, {PresencePenalty: math.NaN()}, {FrequencyPenalty: math.Inf(1)},
		{LogitBias: map[int32]float64{-1: 0}}, {LogitBias: map[int32]float64{2: math.NaN()}},
	} {
		require.Error(t, bad.Validate(), "%+v", bad)
	}
	s := &Sampler{vocab: 6}
	require.ErrorContains(t, s.Reset(Options{LogitBias: map[int32]float64{6: 1}}, 0), "token 6, expected 0 to 5")
	_, err := newTestSampler(t, 5, Options{}, 0).Next(logits, nil)
	require.ErrorContains(t, err, "6 logits for a vocabulary of 5")
}

func TestPenalties(t *testing.T) {
	logits := []float32{1, 3, 2, -1, 3, 0.5}
	greedy := func(o Options, history, accepted []int32) int32 {
		s := newTestSampler(t, len(logits), o, 0)
		s.Start(history)
		for _, id := range accepted {
			s.Accept(id)
		}
		id, err := s.Next(logits, nil)
		require.NoError(t, err)
		return id
	}
	// A token counts once, however often it occurs: 3/1.4 is still above 2.
	require.EqualValues(t, 4, greedy(Options{RepetitionPenalty: 1.4}, []int32{1, 1, 1}, nil))
	require.EqualValues(t, 1, greedy(Options{RepetitionPenalty: 1.4}, []int32{1, 4, 4, 4}, nil))
	require.EqualValues(t, 2, greedy(Options{RepetitionPenalty: 1.6}, []int32{1, 4}, nil))
	// The window holds the last tokens of prompt and answer together.
	require.EqualValues(t, 1, greedy(Options{RepetitionPenalty: 1.5, RepetitionWindow: 1}, []int32{1, 3}, nil))
	require.EqualValues(t, 4, greedy(Options{RepetitionPenalty: 1.5, RepetitionWindow: 2}, []int32{1, 3}, nil))
	require.EqualValues(t, 1, greedy(Options{RepetitionPenalty: 1.5, RepetitionWindow: 2}, []int32{1, 3}, []int32{0}))
	require.EqualValues(t, 4, greedy(Options{RepetitionPenalty: 1.5, RepetitionWindow: 3}, []int32{2, 1, 3}, []int32{0}))
	require.EqualValues(t, 4, greedy(Options{RepetitionPenalty: 1.5, RepetitionWindow: 2}, []int32{2, 3, 1}, []int32{1}))
	// Negative logits are multiplied.
	below := []float32{-1, -1.2}
	s := newTestSampler(t, 2, Options{RepetitionPenalty: 1.5}, 0)
	s.Start([]int32{0})
	id, err := s.Next(below, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, id)
	// Presence once, frequency every time, and only for what was generated.
	require.EqualValues(t, 1, greedy(Options{PresencePenalty: 2}, []int32{1, 1}, nil))
	require.EqualValues(t, 4, greedy(Options{PresencePenalty: 0.5}, nil, []int32{1}))
	require.EqualValues(t, 1, greedy(Options{PresencePenalty: 0.5}, nil, []int32{1, 4, 4}))
	require.EqualValues(t, 2, greedy(Options{FrequencyPenalty: 0.4}, nil, []int32{1, 1, 1, 4, 4, 4}))
	require.EqualValues(t, 1, greedy(Options{FrequencyPenalty: 0.4}, nil, []int32{1, 4, 4, 4}))
	require.EqualValues(t, 3, greedy(Options{LogitBias: map[int32]float64{3: 4.5}}, nil, nil))
	require.EqualValues(t, 4, greedy(Options{LogitBias: map[int32]float64{1: -100}}, nil, nil))
}

func TestMask(t *testing.T) {
	logits := make([]float32, 130)
	logits[70], logits[129] = 5, 9
	mask := []uint64{0, 1<<6 | 1<<7} // 70, 71; 129 is beyond its end
	require.Equal(t, map[int32]int{70: 3}, draws(t, Options{}, logits, nil, mask, 3))
	got := draws(t, Options{Temperature: 5}, logits, nil, mask, 200)
	require.Len(t, got, 2)
	require.Positive(t, got[71])
	_, err := newTestSampler(t, 130, Options{}, 0).Next(logits, []uint64{0})
	require.ErrorIs(t, err, ErrNoToken)
}

// TestSamplerNumbers: any logits give a token that may be drawn or an error.
func TestSamplerNumbers(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, temperature := range []float64{0, 1e-320, 1e-300, 1e-3, 1, 1e300} {
		for _, o := range []Options{{}, {MinP: 0.5}, {TopP: 0.5}, {TopK: 2}, {TopK: 2, TopP: 0.9, MinP: 1}, {MinP: 1}, {TopP: 1e-300}} {
			o.Temperature = temperature
			for _, logits := range [][]float32{
				{nan, 1, nan, 1}, {-inf, -inf, 3, 2}, {1, inf, 2, inf}, {3e38, -3e38, 0, 3e38}, {1e-40, 0, -1e-40, 0}, {nan, nan, nan, -5},
			} {
				for id := range draws(t, o, logits, nil, nil, 20) {
					require.Greater(t, logits[id], -inf, "%v: %+v", logits, o)
					if temperature < 1e-300 { // the reciprocal is infinite: the likeliest token is drawn
						for _, v := range logits {
							require.False(t, v > logits[id], "%v: %+v drew %d", logits, o, id)
						}
					}
				}
			}
			for _, logits := range [][]float32{{nan, nan}, {-inf, nan}, {-inf, -inf}} {
				_, err := newTestSampler(t, 2, o, 0).Next(logits, nil)
				require.ErrorIs(t, err, ErrNoToken)
			}
		}
	}
	few := []float32{nan, 1, -inf, 2}
	require.Len(t, topLogProbs(nil, few, 9, LogSumExp(few), new(topTokens)), 2)
	require.True(t, math.IsNaN(LogProb([]float32{nan, 1}, 1)))
}

// support determines in the plainest way, by sorting everything, what may be drawn and
// how likely it is.
func support(logits []float32, o Options) map[int32]float64 {
	type token struct {
		id int32
		p  float64
	}
	all := make([]token, len(logits))
	peak := math.Inf(-1)
	for _, v := range logits {
		peak = max(peak, float64(v))
	}
	for i, v := range logits {
		all[i] = token{int32(i), math.Exp((float64(v) - peak) / o.Temperature)}
	}
	slices.SortStableFunc(all, func(a, b token) int { return cmp.Compare(b.p, a.p) })
	if o.TopK > 0 && o.TopK < len(all) {
		all = all[:o.TopK]
	}
	total := 0.0
	for _, x := range all {
		total += x.p
	}
	if o.TopP > 0 && o.TopP < 1 {
		n, held := 0, 0.0
		for held < o.TopP*total {
			held += all[n].p
			n++
		}
		all = all[:n]
	}
	out, kept := map[int32]float64{}, 0.0
	for _, x := range all {
		if x.p >= o.MinP {
			out[x.id] = x.p
			kept += x.p
		}
	}
	for id := range out {
		out[id] /= kept
	}
	return out
}

func TestSamplerAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "vocabulary")
		// Distinct logits, far enough apart that no border depends on rounding.
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		logits := make([]float32, n)
		for i, p := range rng.Perm(n) {
			logits[i] = float32(p)*0.37 + rng.Float32()*0.1
		}
		o := Options{
			Temperature: rapid.SampledFrom([]float64{0.3, 1, 2.5}).Draw(rt, "temperature"),
			TopK:        rapid.SampledFrom([]int{0, 1, 3, 10, 100}).Draw(rt, "k"),
			TopP:        rapid.SampledFrom([]float64{0, 0.2, 0.55, 0.913, 1}).Draw(rt, "p"),
			MinP:        rapid.SampledFrom([]float64{0, 0.01, 0.31}).Draw(rt, "min"),
			Seed:        rng.Uint64(),
		}
		want := support(logits, o)
		const tries = 3000
		got := draws(t, o, logits, nil, nil, tries)
		for id, c := range got {
			if want[id] == 0 {
				rt.Fatalf("%+v drew token %d, which is out; in are %v", o, id, want)
			}
			if p := want[id]; math.Abs(float64(c)/tries-p) > 6*math.Sqrt(p*(1-p)/tries)+2e-3 {
				rt.Fatalf("%+v drew token %d in %d of %d tries, want a share of %.4f", o, id, c, tries, p)
			}
		}
		for id, p := range want {
			if p > 0.02 && got[id] == 0 {
				rt.Fatalf("%+v never drew token %d of probability %.3f", o, id, p)
			}
		}
	})
}

// TestTopPBorder: the token that reaches the share exactly is the last one in.
func TestTopPBorder(t *testing.T) {
	equal := []float32{2, 2, 2, 2}
	require.Len(t, draws(t, Options{Temperature: 1, TopP: 0.5}, equal, nil, nil, 300), 2)
	require.Len(t, draws(t, Options{Temperature: 1, TopP: 0.51}, equal, nil, nil, 300), 3)
	require.Len(t, draws(t, Options{Temperature: 1, TopP: 0.25}, equal, nil, nil, 300), 1)
	// More tokens than one round of selection looks at.
	flat := make([]float32, 1000)
	got := draws(t, Options{Temperature: 1, TopP: 0.3}, flat, nil, nil, 30000)
	require.Len(t, got, 300)
	for id := range got {
		require.Less(t, id, int32(300), "the lower token first among equals")
	}
}

func TestChoicesDiffer(t *testing.T) {
	logits := make([]float32, 50)
	streams := map[string]bool{}
	for choice := range 128 {
		s := newTestSampler(t, 50, Options{Temperature: 1, Seed: 5}, choice)
		var ids []int32
		for range 12 {
			id, err := s.Next(logits, nil)
			require.NoError(t, err)
			ids = append(ids, id)
		}
		streams[fmt.Sprint(ids)] = true
	}
	require.Len(t, streams, 128)
}

func TestTopLogProbs(t *testing.T) {
	logits := []float32{1, 3, 2, -1, 3, 0.5}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v))
	}
	top := topLogProbs(nil, logits, 3, LogSumExp(logits), new(topTokens))
	require.Equal(t, []int32{1, 4, 2}, []int32{top[0].ID, top[1].ID, top[2].ID})
	require.InDelta(t, math.Log(math.Exp(3)/sum), top[0].LogProb, 1e-6)
	require.InDelta(t, top[0].LogProb, LogProb(logits, 1), 1e-12)
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(rt, "vocabulary")
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rapid.IntRange(-5, 5).Draw(rt, "logit"))
		}
		order := make([]int32, n)
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(x[b], x[a]) })
		k := rapid.IntRange(0, n+3).Draw(rt, "k")
		var got []int32
		for _, p := range topLogProbs(nil, x, k, LogSumExp(x), new(topTokens)) {
			got = append(got, p.ID)
		}
		if want := order[:min(k, n)]; !slices.Equal(got, want) {
			rt.Fatalf("the %d best of %v: found %v, expected %v", k, x, got, want)
		}
	})
}

// BenchmarkSampler draws from the vocabulary of the largest checkpoints.
func BenchmarkSampler(b *testing.B) {
	const vocab = 152064
	rng := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, vocab)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64()*2.5 - 4)
	}
	for i := range 12 {
		logits[rng.IntN(vocab)] = 12 + float32(i)
	}
	for _, bc := range []struct {
		name string
		o    Options
	}{
		{"greedy", Options{}},
		{"top-k 20, top-p 0.8", Options{Temperature: 0.7, TopK: 20, TopP: 0.8, RepetitionPenalty: 1.05}},
		{"top-p 0.9", Options{Temperature: 0.6, TopP: 0.9}},
		{"temperature 1", Options{Temperature: 1}},
		{"top-k 20, 5 log-probabilities", Options{Temperature: 1, TopK: 20, TopLogProbs: 5}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			s := newTestSampler(b, vocab, bc.o, 0)
			b.ReportAllocs()
			for b.Loop() {
				id, err := s.Next(logits, nil)
				if err != nil {
					b.Fatal(err)
				}
				s.Accept(id)
				s.Describe(logits, id)
			}
		})
	}
}
