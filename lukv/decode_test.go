package lukv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
)

func TestDecodeConfigDefaults(t *testing.T) {
	h2o := func(target, window int, decay string) string {
		return fmt.Sprintf(`{"mode":"periodic","target_size":%d,"interval":1,"buffer":-1,"prefill":true,"metric":{"name":"h2o","window":%d},"decay":%s}`, target, window, decay)
	}
	streaming := func(target, sinks int) string {
		return fmt.Sprintf(`{"mode":"periodic","target_size":%d,"interval":1,"buffer":-1,"prefill":true,"metric":{"name":"streaming_llm","sinks":%d},"decay":1}`, target, sinks)
	}
	for in, want := range map[string]string{
		`{}`:                  `{}`,
		`{"mode":"periodic"}`: `{"mode":"periodic","target_size":2048,"interval":512,"buffer":256,"decay":1}`,
		`{"mode":"periodic","ratio":0.5,"buffer":-1}`:                `{"mode":"periodic","ratio":0.5,"interval":512,"buffer":-1,"decay":1}`,
		`{"mode":"periodic","interval":3,"metric":{"name":"knorm"}}`: `{"mode":"periodic","target_size":2048,"interval":3,"buffer":256,"metric":{"name":"knorm"},"decay":1}`,
		`{"mode":"tova"}`:                             `{"mode":"periodic","target_size":2048,"interval":1,"buffer":-1,"prefill":true,"metric":{"name":"tova","window":0},"decay":1}`,
		`{"mode":"tova","interval":4,"ratio":0.5}`:    `{"mode":"periodic","ratio":0.5,"interval":4,"buffer":-1,"prefill":true,"metric":{"name":"tova","window":0},"decay":1}`,
		`{"mode":"h2o","metric":{"name":"observed"}}`: `{"mode":"periodic","target_size":2048,"interval":1,"buffer":-1,"prefill":true,"metric":{"name":"observed"},"decay":1}`,
		// What was written before the modes were presets.
		`{"mode":"h2o","target_size":7,"heavy":4,"recent":3,"decay":1}`:   h2o(7, 3, "1"),
		`{"mode":"h2o","heavy":5}`:                                        h2o(5, 0, "1"),
		`{"mode":"h2o","heavy":1,"recent":2,"target_size":3,"decay":0.5}`: h2o(3, 2, "0.5"),
		`{"mode":"streaming","sinks":-1,"target_size":9}`:                 streaming(9, 0),
		`{"mode":"streaming","target_size":2048,"sinks":4}`:               streaming(2048, 4),
	} {
		var c DecodeConfig
		require.NoError(t, json.Unmarshal([]byte(in), &c))
		full, err := c.WithDefaults()
		require.NoError(t, err, in)
		data, err := json.Marshal(full)
		require.NoError(t, err)
		require.Equal(t, want, string(data), in)
		again, err := full.WithDefaults()
		require.NoError(t, err, in)
		require.Equal(t, full, again, "defaults of the full configuration")
	}
}

func TestDecodeConfigErrors(t *testing.T) {
	beyond := maxSlots
	beyond++ // negative where int has 32 bits
	for name, c := range map[string]struct {
		cfg  DecodeConfig
		want string
	}{
		"unknown mode":   {DecodeConfig{Mode: "h20"}, `mode: found "h20", expected one of h2o, periodic, streaming, tova`},
		"no mode":        {DecodeConfig{TargetSize: 4}, `mode: found "", expected one of h2o, periodic`},
		"ratio of one":   {DecodeConfig{Mode: "periodic", Ratio: 1}, "ratio: found 1, expected at least 0 and below 1"},
		"two targets":    {DecodeConfig{Mode: "periodic", Ratio: 0.5, TargetSize: 4}, "target_size: found 4, expected none beside a ratio"},
		"negative":       {DecodeConfig{Mode: "periodic", Interval: -1}, "interval: found -1"},
		"growing":        {DecodeConfig{Mode: "h2o", Decay: 1.5}, "decay: found 1.5"},
		"shrinking":      {DecodeConfig{Mode: "h2o", Decay: -0.5}, "decay: found -0.5, expected above 0, at most 1"},
		"no size":        {DecodeConfig{Mode: "tova", TargetSize: -1}, "target_size: found -1"},
		"huge size":      {DecodeConfig{Mode: "tova", TargetSize: beyond}, "target_size: found"},
		"negative ratio": {DecodeConfig{Mode: "periodic", Ratio: -0.1}, "ratio: found -0.1"},
		"huge interval":  {DecodeConfig{Mode: "periodic", Interval: beyond}, "interval: found"},
		"no buffer":      {DecodeConfig{Mode: "periodic", Buffer: -2}, "buffer: found -2, expected at least 1, or -1 for none"},
		"huge buffer":    {DecodeConfig{Mode: "periodic", Buffer: beyond}, "buffer: found"},
		"no metric":      {DecodeConfig{Mode: "periodic"}, "metric: found none, expected one of snapkv"},
		"unknown metric": {DecodeConfig{Mode: "periodic", Metric: &MetricConfig{Name: "x"}}, `metric "x" is unknown`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewDecoding(c.cfg, nil)
			require.ErrorContains(t, err, c.want)
		})
	}
	d, err := NewDecoding(DecodeConfig{}, nil)
	require.NoError(t, err)
	require.Nil(t, d)
	for in, want := range map[string]string{
		`{"mode":"tova","x":1}`:                               `unknown field "x"`,
		`{"mode":"tova","heavy":3}`:                           "decode compression tova: heavy and recent: found 3 and 0, expected none in this mode",
		`{"mode":"h2o","sinks":3}`:                            "sinks: found 3, expected none in this mode",
		`{"mode":"h2o","heavy":2,"recent":2,"target_size":5}`: "target_size: found 5, expected heavy + recent = 4",
		`{"mode":"h2o","heavy":-1}`:                           "heavy: found -1",
		`{"mode":"h2o","heavy":2147483648}`:                   "2147483648",
		`{"mode":"h2o","recent":-1}`:                          "recent: found -1",
		`{"mode":"h2o","recent":2147483648}`:                  "2147483648",
		`{"mode":"streaming","sinks":-2}`:                     "sinks: found -2",
		`{"mode":"streaming","sinks":2147483648}`:             "2147483648",
		`{"mode":"h2o","heavy":2,"metric":{"name":"h2o"}}`:    "expected none beside a metric",
		`{"mode":"h2o","heavy":"2"}`:                          "heavy: found string",
		`{"mode":2}`:                                          "compression: mode: found number, expected a string",
		`{"mode":"h2o","mode":"tova"}`:                        `key "mode" occurs twice`,
	} {
		var c DecodeConfig
		require.ErrorContains(t, json.Unmarshal([]byte(in), &c), want, in)
	}
}

// decodeRun drives one layer of random attention token by token.
type decodeRun struct {
	t     *testing.T
	a     *goldenAttention
	cache *goldenCache
	state *DecodeLayer
	next  int
}

func newDecodeRun(t *testing.T, d *Decoding, prompt, total int) *decodeRun {
	const H, K, D = 4, 2, 8
	rng := rand.New(rand.NewPCG(4, 4))
	fill := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	a := &goldenAttention{goldenSetup: goldenSetup{Heads: H, KVHeads: K, HeadDim: D}}
	a.keys, a.values = [][]float32{fill(total * D), fill(total * D)}, [][]float32{fill(total * D), fill(total * D)}
	a.pre, a.post, a.invFreq = fill(total*H*D), fill(total*H*D), []float64{1, 0.5, 0.1, 0.01}
	return &decodeRun{t, a, newGoldenCache(a, prompt), d.NewLayer(H, K, D), prompt}
}

// pass feeds n tokens at once and applies what After decides.
func (r *decodeRun) pass(n int, prefill bool, budgets DecodeBudgets) (cut bool) {
	r.t.Helper()
	width, first := r.a.Heads*r.a.HeadDim, r.next
	for p := first; p < first+n; p++ {
		r.cache.append(p)
	}
	r.next += n
	l := r.cache.layer(r.next)
	r.state.Record(first, r.a.post[first*width:], r.a.pre[first*width:], n, width)
	if sums := r.state.Sums(); sums != nil {
		for h := range r.a.KVHeads {
			require.NoError(r.t, sums.Attend(context.Background(), l, h, first, r.a.post[first*width:], n, width))
		}
	}
	kept, err := r.state.After(context.Background(), l, n, prefill, budgets)
	require.NoError(r.t, err)
	r.cache.cut(kept)
	return kept != nil
}

func periodic(t *testing.T, c DecodeConfig, m MetricConfig) *Decoding {
	t.Helper()
	c.Mode = "periodic"
	d, err := NewDecoding(c, mustMetric(t, m))
	require.NoError(t, err)
	return d
}

func TestPeriodicSchedule(t *testing.T) {
	r := newDecodeRun(t, periodic(t, DecodeConfig{Interval: 4, TargetSize: 10}, MetricConfig{Name: "knorm"}), 0, 100)
	require.False(t, r.pass(5, true, nil), "prefill is left alone")
	var cuts []int
	for range 20 {
		if r.pass(1, false, nil) {
			cuts = append(cuts, r.next)
			require.Len(t, r.cache.pos[0], 10)
		}
	}
	// The counter starts over at 9 although nothing was cut there.
	require.Equal(t, []int{13, 17, 21, 25}, cuts)
	require.False(t, r.pass(3, false, nil), "a pass counts once, whatever its length")
	require.Equal(t, 1, r.state.passes)
	require.True(t, r.pass(10, false, nil), "a pass of the target's length cuts at once")
	require.Equal(t, 0, r.state.passes)
}

// TestLaterPrefillIsAPass: of passes of several tokens only the first prefill
// is left alone. A later one counts once, fills the buffer, and cuts at once
// if it has as many tokens as the target.
func TestLaterPrefillIsAPass(t *testing.T) {
	d := periodic(t, DecodeConfig{Interval: 3, TargetSize: 10, Buffer: 4}, MetricConfig{Name: "snapkv", Params: `{"window":6,"kernel":1}`})
	r := newDecodeRun(t, d, 0, 100)
	require.False(t, r.pass(20, true, nil), "the first prefill")
	require.False(t, r.pass(5, false, nil))
	require.Equal(t, 4, r.state.post.Len(), "trimmed to the buffer")
	require.Equal(t, 24, r.state.post.Position(3))
	require.False(t, r.pass(1, false, nil))
	require.True(t, r.pass(2, false, nil), "the third pass")
	require.Len(t, r.cache.pos[0], 10)
	require.Equal(t, []int32{22, 23, 24, 25, 26, 27}, r.cache.pos[0][4:], "the last six queries protect themselves")
	require.True(t, r.pass(10, false, nil), "as many tokens as the target")
	require.Len(t, r.cache.pos[1], 10)
	require.False(t, r.pass(9, false, nil))
	require.False(t, r.pass(9, false, nil), "the counter began anew")
	require.True(t, r.pass(9, false, nil))
}

func TestPeriodicBuffer(t *testing.T) {
	snap := MetricConfig{Name: "snapkv", Params: `{"window":4,"kernel":3}`}
	r := newDecodeRun(t, periodic(t, DecodeConfig{Interval: 5, TargetSize: 12, Buffer: 2}, snap), 20, 100)
	lens := []int{}
	for range 4 {
		r.pass(1, false, nil)
		lens = append(lens, r.state.post.Len())
	}
	require.Equal(t, []int{1, 2, 2, 2}, lens, "trimmed to the buffer after every pass")
	require.True(t, r.pass(1, false, nil))
	require.Zero(t, r.state.post.Len(), "reset with the cut")
	// The cut saw three rows: two from the buffer and the current one.
	for h := range r.cache.pos {
		require.Subset(t, r.cache.pos[h], []int32{22, 23, 24}, "the shortened window is protected")
		require.True(t, slices.IsSorted(r.cache.pos[h]))
	}
	r = newDecodeRun(t, periodic(t, DecodeConfig{Interval: 5, TargetSize: 12, Buffer: -1}, snap), 20, 100)
	r.pass(3, false, nil)
	require.Zero(t, r.state.post.Len())
	require.Equal(t, 3, r.state.post.Cap(), "room for the pass of three rows, none beyond")
}

// TestWindowLargerThanTheBuffer: a metric whose window exceeds the buffered rows looks at
// these, and only they are protected.
func TestWindowLargerThanTheBuffer(t *testing.T) {
	ctx := context.Background()
	d := periodic(t, DecodeConfig{Interval: 5, TargetSize: 12, Buffer: 2}, MetricConfig{Name: "snapkv", Params: `{"window":8,"kernel":1}`})
	r := newDecodeRun(t, d, 20, 100)
	for range 4 {
		require.False(t, r.pass(1, false, nil))
	}
	layer := newGoldenCache(r.a, 25).layer(25)
	layer.Queries = NewQueryWindow(4, 8, 3)
	for p := 22; p < 25; p++ { // two rows of the buffer and that of the last pass
		layer.Queries.Append(p, r.a.post[p*32:])
	}
	s, err := Score(ctx, mustMetric(t, MetricConfig{Name: "snapkv", Params: `{"window":3,"kernel":1}`}), layer)
	require.NoError(t, err)
	require.True(t, r.pass(1, false, nil))
	differs := false
	for h := range s {
		require.Equal(t, Keep(nil, s[h], 12, Protection{Window: 3}), r.cache.pos[h], "head %d", h)
		differs = differs || !slices.Equal(Keep(nil, s[h], 12, Protection{Window: 8}), r.cache.pos[h])
	}
	require.True(t, differs, "protecting the whole window would be something else")
}

// TestPeriodicScoresSurvivors checks the second cut of SnapKV against the
// definition on a cache whose slots are no longer positions.
func TestPeriodicScoresSurvivors(t *testing.T) {
	const w = 3
	d := periodic(t, DecodeConfig{Interval: 6, TargetSize: 14}, configured("snapkv", "window", w, "kernel", 3))
	r := newDecodeRun(t, d, 30, 100)
	for range 11 {
		r.pass(1, false, nil)
	}
	require.Len(t, r.cache.pos[0], 14+5)
	before := [][]int32{r.cache.ids(0), r.cache.ids(1)}
	for h := range before {
		before[h] = append(before[h], int32(r.next))
	}
	require.True(t, r.pass(1, false, nil))
	naive := &goldenCache{a: r.a, pos: before}
	layer := naive.layer(r.next)
	for h := range before {
		T := len(before[h])
		n := T - w
		mean := make([]float64, n)
		for g := range 2 {
			x := make([]float64, n)
			for p := r.next - w; p < r.next; p++ {
				q := r.a.post[(p*4+h*2+g)*8:][:8]
				for i, v := range attentionOf(layer, h, q, p)[:n] {
					x[i] += v / w
				}
			}
			for i := range x {
				mean[i] += slices.Max(x[max(i-1, 0):min(i+2, n)]) / 2
			}
		}
		scores := narrow(mean)
		var want []int32
		for _, slot := range keepBySorting(scores, 14-w, Protection{}) {
			want = append(want, before[h][slot])
		}
		want = append(want, before[h][n:]...)
		require.Equal(t, want, r.cache.pos[h], "head %d", h)
	}
}

func TestPeriodicRaggedBudgets(t *testing.T) {
	d := periodic(t, DecodeConfig{Interval: 2, TargetSize: 10}, MetricConfig{Name: "keydiff"})
	r := newDecodeRun(t, d, 16, 100)
	calls := 0
	budgets := func(l *Layer, lens []int, target int, s Scores, p Protection) ([]int, error) {
		calls++
		require.Equal(t, 10, target)
		require.Len(t, s[0], lens[0])
		return []int{target + 4, target - 4}, nil
	}
	r.pass(1, false, budgets)
	require.True(t, r.pass(1, false, budgets))
	require.Len(t, r.cache.pos[0], 14)
	require.Len(t, r.cache.pos[1], 6)
	r.pass(1, false, budgets)
	require.True(t, r.pass(1, false, budgets))
	require.Len(t, r.cache.pos[0], 14)
	require.Len(t, r.cache.pos[1], 6)
	require.Equal(t, 2, calls)

	// An error leaves the state as it was, so that the pass can be tried again.
	r.pass(1, false, budgets)
	l, before := r.cache.layer(r.next), r.state.State()
	boom := errors.New("boom")
	_, err := r.state.After(context.Background(), l, 1, false, func(*Layer, []int, int, Scores, Protection) ([]int, error) { return nil, boom })
	require.ErrorIs(t, err, boom)
	_, err = r.state.After(context.Background(), l, 1, false, func(*Layer, []int, int, Scores, Protection) ([]int, error) { return []int{1}, nil })
	require.ErrorContains(t, err, "found 1 budgets, expected one for each of 2 kv heads")
	other := *l
	other.KVHeads, other.Lens = 4, []int{20, 20, 20, 20}
	_, err = r.state.After(context.Background(), &other, 1, false, budgets)
	require.ErrorContains(t, err, "found 4 kv heads, expected 2")
	require.Equal(t, before, r.state.State())
	kept, err := r.state.After(context.Background(), l, 1, false, budgets)
	require.NoError(t, err)
	require.NotNil(t, kept)
}

func TestPeriodicExpectedAttention(t *testing.T) {
	d := periodic(t, DecodeConfig{Interval: 4, TargetSize: 9, Buffer: 3}, MetricConfig{Name: "ea", Params: `{"future":8}`})
	r := newDecodeRun(t, d, 12, 100)
	for range 3 {
		require.False(t, r.pass(1, false, nil))
	}
	layer := newGoldenCache(r.a, 16).layer(16)
	layer.Stats = NewQueryStats(4, 8, 4, true, kernels.Detect())
	for q := range 4 {
		layer.Stats.Add(q, 12, r.a.pre[12*32+q*8:], 4, 32)
	}
	s, err := Score(context.Background(), d.Metric(), layer)
	require.NoError(t, err)
	require.True(t, r.pass(1, false, nil))
	for h := range s {
		require.Equal(t, Keep(nil, s[h], 9, Protection{Sinks: 4}), r.cache.pos[h])
	}
}

func TestStreamingFormKeepsEnds(t *testing.T) {
	d, err := NewDecoding(DecodeConfig{Mode: "streaming", TargetSize: 8}, nil)
	require.NoError(t, err)
	r := newDecodeRun(t, d, 0, 60)
	require.True(t, r.pass(20, true, nil), "prefill is a pass")
	require.Equal(t, []int32{0, 1, 2, 3, 16, 17, 18, 19}, r.cache.pos[1])
	for range 30 {
		require.True(t, r.pass(1, false, nil))
	}
	require.Equal(t, []int32{0, 1, 2, 3, 46, 47, 48, 49}, r.cache.pos[0])
}

// TestH2OFormWithDecay runs the accumulators against a map from each
// position to what it has received.
func TestH2OFormWithDecay(t *testing.T) {
	d, err := NewDecoding(DecodeConfig{Mode: "h2o", TargetSize: 5, Decay: 0.75}, nil)
	require.NoError(t, err)
	r := newDecodeRun(t, d, 0, 60)
	got := []map[int32]float64{{}, {}}
	for step := range 30 {
		held := &goldenCache{a: r.a, pos: [][]int32{r.cache.ids(0), r.cache.ids(1)}}
		held.append(r.next)
		l := held.layer(r.next + 1)
		cut := r.pass(1, step == 0, nil)
		for h := range held.pos {
			for p := range got[h] {
				got[h][p] *= 0.75
			}
			for g := range 2 {
				for i, v := range attentionOf(l, h, r.a.post[((r.next-1)*4+h*2+g)*8:][:8], r.next-1) {
					got[h][held.pos[h][i]] += v / 2
				}
			}
			if !cut {
				require.LessOrEqual(t, len(held.pos[h]), 5)
				continue
			}
			scores := make([]float32, 0, 6)
			for _, p := range held.pos[h] {
				scores = append(scores, float32(got[h][p]))
			}
			var want []int32
			for _, slot := range keepBySorting(scores[:len(scores)-2], 3, Protection{}) {
				want = append(want, held.pos[h][slot])
			}
			want = append(want, held.pos[h][len(scores)-2:]...)
			require.Equal(t, want, r.cache.pos[h], "step %d, head %d", step, h)
			for p := range got[h] {
				if !slices.Contains(want, p) {
					delete(got[h], p)
				}
			}
		}
	}
}

func TestDecodeRatioTarget(t *testing.T) {
	d := periodic(t, DecodeConfig{Ratio: 0.6}, MetricConfig{Name: "knorm"})
	require.Equal(t, 19, d.Target(47))
	require.Equal(t, 1, d.Target(0))
}

func TestDecodeProtectionOverride(t *testing.T) {
	d := periodic(t, DecodeConfig{Interval: 1, TargetSize: 6}, MetricConfig{Name: "knorm"}).Protect(Protection{Sinks: 2, Window: 2})
	r := newDecodeRun(t, d, 20, 40)
	require.True(t, r.pass(1, false, nil))
	require.Subset(t, r.cache.pos[0], []int32{0, 1, 19, 20})
}

func TestDecodeNeeds(t *testing.T) {
	needs := func(mode, metric string) DecodeNeeds {
		d, err := NewDecoding(DecodeConfig{Mode: mode}, mustMetric(t, MetricConfig{Name: metric}))
		require.NoError(t, err)
		return d.Needs()
	}
	require.Equal(t, DecodeNeeds{Queries: true, Keys: true}, needs("periodic", "snapkv"))
	require.Equal(t, DecodeNeeds{PreRoPE: true, Keys: true, Values: true}, needs("periodic", "ea"))
	require.Equal(t, DecodeNeeds{Queries: true, Keys: true, Prefill: true}, needs("tova", "knorm"))
	require.Equal(t, DecodeNeeds{Sums: true, Prefill: true}, needs("h2o", "knorm"))
	require.Equal(t, DecodeNeeds{Prefill: true}, needs("streaming", "knorm"))
}

func TestDecodeLayerCloneAndRewind(t *testing.T) {
	d, err := NewDecoding(DecodeConfig{Mode: "h2o", TargetSize: 6}, nil)
	require.NoError(t, err)
	r := newDecodeRun(t, d, 0, 60)
	for range 10 {
		r.pass(1, false, nil)
	}
	fork := *r
	fork.state = r.state.Clone()
	fork.cache = &goldenCache{a: r.a, pos: [][]int32{r.cache.ids(0), r.cache.ids(1)}}
	for range 10 {
		r.pass(1, false, nil)
	}
	for range 10 {
		fork.pass(1, false, nil)
	}
	require.Equal(t, r.cache.pos, fork.cache.pos)
	require.Equal(t, r.state.sums.sum, fork.state.sums.sum)
	r.state.Rewind([]int{3, 4}, 17)
	require.Equal(t, 3, r.state.Sums().Len(0))
	require.Equal(t, 4, r.state.Sums().Len(1))

	p := newDecodeRun(t, periodic(t, DecodeConfig{Interval: 9}, MetricConfig{Name: "snapkv"}), 5, 60)
	for range 4 {
		p.pass(1, false, nil)
	}
	p.state.Rewind([]int{7, 7}, 7)
	require.Equal(t, 2, p.state.post.Len())
	require.Equal(t, 6, p.state.post.Position(1))
}

// everyDecoding returns a Decoding for each kind of state.
func everyDecoding(t *testing.T) map[string]*Decoding {
	h2o, err := NewDecoding(DecodeConfig{Mode: "h2o", TargetSize: 9, Metric: &MetricConfig{"h2o", `{"window":5}`}, Decay: 0.9}, nil)
	require.NoError(t, err)
	tova, err := NewDecoding(DecodeConfig{Mode: "tova", TargetSize: 9}, nil)
	require.NoError(t, err)
	return map[string]*Decoding{
		"h2o": h2o, "tova": tova,
		"window": periodic(t, DecodeConfig{Interval: 4, TargetSize: 9, Buffer: 3}, configured("snapkv", "window", 6, "kernel", 3)),
		"stats":  periodic(t, DecodeConfig{Interval: 4, TargetSize: 9, Buffer: 3}, configured("ea", "future", 8)),
	}
}

// TestDecodeRollback: after a pass is rolled back, everything continues as if it
// had not happened, even if the pass had cut the cache.
func TestDecodeRollback(t *testing.T) {
	for name, d := range everyDecoding(t) {
		r, undisturbed := newDecodeRun(t, d, 0, 200), newDecodeRun(t, d, 0, 200)
		rng := rand.New(rand.NewPCG(3, 3))
		for step := range 25 {
			for range rng.IntN(3) {
				before, next, held := r.state.State(), r.next, [][]int32{r.cache.ids(0), r.cache.ids(1)}
				n := 1 + rng.IntN(12)*rng.IntN(2)
				r.state.Begin(n)
				r.pass(n, step == 0, nil)
				r.state.Rollback()
				r.next, r.cache.pos = next, held
				require.Equal(t, before, r.state.State(), "%s step %d", name, step)
			}
			n := 1 + rng.IntN(4)*rng.IntN(2)
			r.state.Begin(n)
			r.pass(n, step == 0, nil)
			undisturbed.pass(n, step == 0, nil)
			require.Equal(t, undisturbed.cache.pos, r.cache.pos, "%s step %d", name, step)
			require.Equal(t, undisturbed.state.State(), r.state.State(), "%s step %d", name, step)
		}
	}
}

// TestDecodePassInPieces: how the rows of a pass are split into calls makes
// no difference.
func TestDecodePassInPieces(t *testing.T) {
	for name, d := range everyDecoding(t) {
		whole, pieces := newDecodeRun(t, d, 0, 200), newDecodeRun(t, d, 0, 200)
		for step, n := range []int{15, 1, 5, 1, 8, 3, 9, 7} {
			whole.pass(n, step == 0, nil)
			width, first := pieces.a.Heads*pieces.a.HeadDim, pieces.next
			for p := first; p < first+n; p++ {
				pieces.cache.append(p)
			}
			pieces.next += n
			l := pieces.cache.layer(pieces.next)
			for at := 0; at < n; {
				m := min(2, n-at)
				from := (first + at) * width
				pieces.state.Record(first+at, pieces.a.post[from:], pieces.a.pre[from:], m, width)
				if sums := pieces.state.Sums(); sums != nil {
					for h := range pieces.a.KVHeads {
						require.NoError(t, sums.Attend(context.Background(), l, h, first+at, pieces.a.post[from:], m, width))
					}
				}
				at += m
			}
			kept, err := pieces.state.After(context.Background(), l, n, step == 0, nil)
			require.NoError(t, err)
			pieces.cache.cut(kept)
			require.Equal(t, whole.cache.pos, pieces.cache.pos, "%s step %d", name, step)
			require.Equal(t, whole.state.State(), pieces.state.State(), "%s step %d", name, step)
		}
	}
}

// TestDecodeStateComesBack: a layer given the state of another continues as that
// one would.
func TestDecodeStateComesBack(t *testing.T) {
	for name, d := range everyDecoding(t) {
		r := newDecodeRun(t, d, 0, 200)
		require.Equal(t, d.cfg.Prefill, r.pass(20, true, nil), name)
		if !d.cfg.Prefill {
			require.Empty(t, r.state.State().Post.Positions, "the queries of the prefill do not count")
			require.Empty(t, r.state.State().Pre.Positions)
		}
		for step := range 12 {
			r.pass(1+step%2, false, nil)
			restored := *r
			restored.state = d.NewLayer(r.a.Heads, r.a.KVHeads, r.a.HeadDim)
			lens := []int{len(r.cache.pos[0]), len(r.cache.pos[1])}
			require.NoError(t, restored.state.Restore(r.state.State(), lens, r.next))
			require.Equal(t, r.state.State(), restored.state.State(), name)
			restored.cache = &goldenCache{a: r.a, pos: [][]int32{r.cache.ids(0), r.cache.ids(1)}}
			twin := *r
			twin.state, twin.cache = r.state.Clone(), &goldenCache{a: r.a, pos: [][]int32{r.cache.ids(0), r.cache.ids(1)}}
			for range 5 {
				twin.pass(1, false, nil)
				restored.pass(1, false, nil)
				require.Equal(t, twin.cache.pos, restored.cache.pos, "%s step %d", name, step)
			}
		}
	}
}

func TestDecodeRestoreRefuses(t *testing.T) {
	all := everyDecoding(t)
	for _, c := range []struct {
		mode, want string
		change     func(st *DecodeState)
	}{
		{"window", "found -1 passes since the last cut", func(st *DecodeState) { st.Passes = -1 }},
		{"window", "queries after RoPE: found 7 rows, expected at most 6", func(st *DecodeState) { st.Post.Positions = []int32{1, 2, 3, 4, 5, 6, 7} }},
		{"window", "queries after RoPE: found 63 values for 2 rows", func(st *DecodeState) { st.Post.Rows = st.Post.Rows[1:] }},
		{"window", "found position 18 after 18, expected ascending positions below 20", func(st *DecodeState) { st.Post.Positions[1] = 18 }},
		{"window", "found position 20 after 18, expected ascending positions below 20", func(st *DecodeState) { st.Post.Positions[1] = 20 }},
		{"window", "queries before RoPE: found 1 rows, expected at most 0", func(st *DecodeState) { st.Pre.Positions = []int32{1} }},
		{"window", "queries before RoPE: found 1 values for 0 rows", func(st *DecodeState) { st.Pre.Rows = []float32{1} }},
		{"window", "found accumulated attention, expected none", func(st *DecodeState) { st.Sums = [][]float64{{1}} }},
		{"window", "found accumulated attention, expected none", func(st *DecodeState) { st.Seen = [][]int64{{1}} }},
		{"stats", "queries before RoPE: found 4 rows, expected at most 3", func(st *DecodeState) { st.Pre.Positions = []int32{1, 2, 3, 4} }},
		{"h2o", "accumulated attention: found 1 heads, expected 2", func(st *DecodeState) { st.Sums = st.Sums[:1] }},
		{"h2o", "accumulated attention: found 2 heads, expected 2", func(st *DecodeState) { st.Seen = st.Seen[:1] }},
		{"h2o", "accumulated attention of head 1: found 10 and 9 entries, expected at most 9", func(st *DecodeState) { st.Sums[1] = append(st.Sums[1], 1) }},
		{"h2o", "accumulated attention of head 0: found 9 and 8 entries, expected at most 9", func(st *DecodeState) { st.Seen[0] = st.Seen[0][1:] }},
	} {
		r := newDecodeRun(t, all[c.mode], 0, 60)
		r.pass(18, true, nil)
		r.pass(1, false, nil)
		r.pass(1, false, nil)
		st := r.state.State()
		c.change(&st)
		empty := all[c.mode].NewLayer(r.a.Heads, r.a.KVHeads, r.a.HeadDim)
		before := empty.State()
		require.ErrorContains(t, empty.Restore(st, []int{9, 9}, 20), c.want)
		require.Equal(t, before, empty.State(), "nothing changes")
	}
}

// TestDecodeRefusesWholeContexts: metrics that look at more than what passes by are
// rejected.
func TestDecodeRefusesWholeContexts(t *testing.T) {
	for _, name := range []string{"kvzip", "compactor", "newest_hidden"} {
		_, err := NewDecoding(DecodeConfig{Mode: "periodic"}, mustMetric(t, MetricConfig{Name: name}))
		require.ErrorContains(t, err, "decode compression: metric: found "+name+", which reads a whole context at once")
	}
}

// TestDecodeTellsTheMetricItsBudget: the target of every head, whatever the layer says.
func TestDecodeTellsTheMetricItsBudget(t *testing.T) {
	m := configured("keydiff", "block", 4)
	r := newDecodeRun(t, periodic(t, DecodeConfig{Interval: 1, TargetSize: 9}, m), 30, 60)
	l := r.cache.layer(30)
	l.Share, l.Budgets = 20, []int{3, 25}
	kept, err := r.state.After(t.Context(), l, 1, false, nil)
	require.NoError(t, err)
	plain := r.cache.layer(30)
	plain.Share = 9
	s, err := Score(t.Context(), mustMetric(t, m), plain)
	require.NoError(t, err)
	for h := range kept {
		require.Equal(t, Keep(nil, s[h], 9, Protection{}), kept[h])
	}
}

// TestDecodeLetsGoOfTheLayer: what a pass has looked at is not held until the next
// one, because it refers to a cache.
func TestDecodeLetsGoOfTheLayer(t *testing.T) {
	for name, d := range everyDecoding(t) {
		r := newDecodeRun(t, d, 0, 60)
		var layers []weak.Pointer[Layer]
		for step := range 6 {
			layers = append(layers, weak.Make(passOf(t, r, step == 0)))
		}
		runtime.GC()
		for _, l := range layers {
			require.Nil(t, l.Value(), name)
		}
		runtime.KeepAlive(r)
	}
}

// passOf feeds four tokens and returns the layer that was looked at.
func passOf(t *testing.T, r *decodeRun, prefill bool) *Layer {
	const n = 4
	width := r.a.Heads * r.a.HeadDim
	for range n {
		r.cache.append(r.next)
		r.next++
	}
	l := r.cache.layer(r.next)
	r.state.Record(r.next-n, r.a.post[(r.next-n)*width:], r.a.pre[(r.next-n)*width:], n, width)
	if sums := r.state.Sums(); sums != nil {
		for h := range r.a.KVHeads {
			require.NoError(t, sums.Attend(t.Context(), l, h, r.next-n, r.a.post[(r.next-n)*width:], n, width))
		}
	}
	kept, err := r.state.After(t.Context(), l, n, prefill, nil)
	require.NoError(t, err)
	r.cache.cut(kept)
	return l
}

func TestDecodeAllocatesNothing(t *testing.T) {
	for name, cfg := range map[string]DecodeConfig{
		"periodic":  {Mode: "periodic", Interval: 1000, Metric: &MetricConfig{Name: "snapkv"}},
		"h2o":       {Mode: "h2o", TargetSize: 16},
		"streaming": {Mode: "streaming", TargetSize: 16},
		"tova":      {Mode: "tova", TargetSize: 16},
		"knorm":     {Mode: "tova", TargetSize: 16, Metric: &MetricConfig{Name: "knorm"}},
		"keydiff":   {Mode: "tova", TargetSize: 16, Metric: &MetricConfig{Name: "keydiff"}},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := NewDecoding(cfg, nil)
			require.NoError(t, err)
			s := d.NewLayer(4, 2, 8)
			if s.Sums() != nil { // as after a prefill of 16 tokens
				s.Sums().Grow(0, 16)
				s.Sums().Grow(1, 16)
			}
			row := make([]float32, 32)
			keys := make([]float32, 64*8)
			l := &Layer{
				Heads: 4, KVHeads: 2, HeadDim: 8, Lens: []int{16, 16}, NextPosition: 16,
				Keys: func(_, lo, hi int, _ []float32) []float32 { return keys[lo*8 : hi*8] },
			}
			step := func() {
				l.NextPosition++
				s.Record(l.NextPosition-1, row, row, 1, 32)
				for h := range l.Lens {
					l.Lens[h]++
					if s.Sums() != nil {
						if err := s.Sums().Attend(context.Background(), l, h, l.NextPosition-1, row, 1, 32); err != nil {
							t.Fatal(err)
						}
					}
				}
				kept, err := s.After(context.Background(), l, 1, false, nil)
				if err != nil {
					t.Fatal(err)
				}
				for h := range kept {
					l.Lens[h] = len(kept[h])
				}
				if name == "periodic" {
					l.Lens[0], l.Lens[1] = 16, 16
				}
			}
			for range 20 {
				step()
			}
			require.Zero(t, testing.AllocsPerRun(50, step))
		})
	}
}

// TestDecodeProtectionOfMoreThanTheWindow: a policy's protection is not limited to
// the queries that its metric looks at.
func TestDecodeProtectionOfMoreThanTheWindow(t *testing.T) {
	d := periodic(t, DecodeConfig{Interval: 1, TargetSize: 8}, MetricConfig{Name: "snapkv", Params: `{"window":2}`}).Protect(Protection{Sinks: 1, Window: 5})
	r := newDecodeRun(t, d, 20, 40)
	require.True(t, r.pass(1, false, nil))
	require.Subset(t, r.cache.pos[0], []int32{0, 16, 17, 18, 19, 20})
}
