package lukv

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/kernels"
)

func mustMetric(t testing.TB, c MetricConfig) Metric {
	t.Helper()
	m, err := NewMetric(c)
	require.NoError(t, err)
	return m
}

// configured is a configuration with parameters given as name, value, ….
func configured(name string, params ...any) MetricConfig {
	c := config{Name: name}
	var members []member
	for i := 0; i < len(params); i += 2 {
		value, err := json.Marshal(params[i+1])
		if err != nil {
			panic(err)
		}
		members = append(members, member{params[i].(string), value})
	}
	if members != nil {
		c.Params = string(joinMembers(members))
	}
	return MetricConfig(c)
}

func mustAllocator(t testing.TB, name string, params ...any) Allocator {
	t.Helper()
	a, err := NewAllocator(AllocatorConfig(configured(name, params...)), nil)
	require.NoError(t, err)
	return a
}

func TestMetricConfigIsCanonical(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`snapkv`, `{"name":"snapkv","window":32,"kernel":7,"pool":"max","group":"mean","order":"pool-then-reduce","shrink_window":false}`},
		{`{"name":"snapkv","preset":"kvpress"}`, `{"name":"snapkv","window":64,"kernel":5,"pool":"avg","group":"mean","order":"pool-then-reduce","shrink_window":false}`},
		{`{"name":"snapkv","preset":"snapkv"}`, `{"name":"snapkv","window":32,"kernel":5,"pool":"avg","group":"mean","order":"pool-then-reduce","shrink_window":false}`},
		{`{"name":"snapkv","preset":"adakv","group":"max"}`, `{"name":"snapkv","window":32,"kernel":7,"pool":"max","group":"max","order":"reduce-then-pool","shrink_window":false}`},
		{`{"name":"snapkv","preset":"kvpress","window":8}`, `{"name":"snapkv","window":8,"kernel":5,"pool":"avg","group":"mean","order":"pool-then-reduce","shrink_window":false}`},
		{`keydiff`, `{"name":"keydiff","block":0}`},
		{`ea`, `{"name":"expected_attention","future":512,"sinks":4,"covariance":true,"value_norm":true,"epsilon":0.02}`},
		{`{"name":"expected_attention","preset":"kvpress"}`, `{"name":"expected_attention","future":512,"sinks":4,"covariance":true,"value_norm":true,"epsilon":0}`},
		{`{"name":"ea","preset":"kvpress-leaderboard","sinks":0}`, `{"name":"expected_attention","future":512,"sinks":0,"covariance":true,"value_norm":true,"epsilon":0.01}`},
		{`streaming`, `{"name":"streaming_llm","sinks":4,"rerotate":false}`},
		{`knorm`, `{"name":"knorm"}`},
		{`tova`, `{"name":"tova","window":1}`},
		{`observed`, `{"name":"observed"}`},
		{`h2o`, `{"name":"h2o","window":-1}`},
	} {
		t.Run(c.in, func(t *testing.T) {
			cfg, err := ParseMetricConfig(c.in)
			require.NoError(t, err)
			m := mustMetric(t, cfg)
			require.Equal(t, c.want, MetricConfigOf(m).String())
			again, err := ParseMetricConfig(c.want)
			require.NoError(t, err)
			require.Equal(t, m, mustMetric(t, again), "the full configuration builds the same metric")
			data, err := json.Marshal(MetricConfigOf(m))
			require.NoError(t, err)
			require.Equal(t, c.want, string(data))
			require.Contains(t, Metrics(), MetricConfigOf(m).Name)
		})
	}
}

func TestMetricConfigErrors(t *testing.T) {
	for in, want := range map[string]string{
		`snapvk`:                                   `metric "snapvk" is unknown, expected one of snapkv, keydiff`,
		`lerned`:                                   `, learned`,
		``:                                         `metric "" is unknown`,
		`{"name":"snapkv","window":0}`:             `metric snapkv: window: found 0, expected 1 to`,
		`{"name":"snapkv","kernel":4}`:             `metric snapkv: kernel: found 4, expected an odd number`,
		`{"name":"snapkv","pool":"sum"}`:           `metric snapkv: pool: found "sum", expected one of max, avg`,
		`{"name":"snapkv","epsilon":0.1}`:          `metric snapkv: it has no parameter epsilon`,
		`{"name":"snapkv","preset":"x"}`:           `metric snapkv: preset: found "x", expected one of default, kvpress`,
		`{"name":"knorm","preset":"kvpress"}`:      `metric knorm: preset: found "kvpress", expected one of default`,
		`{"name":"knorm","window":1}`:              `metric knorm: it has no parameter window`,
		`{"name":"ea","epsilon":-1}`:               `metric expected_attention: epsilon: found -1`,
		`{"name":"ea","future":0}`:                 `metric expected_attention: future: found 0`,
		`{"name":"ea","future":65537}`:             `metric expected_attention: future: found 65537, expected 1 to 65536`,
		`{"name":"tova","window":2}`:               `metric tova: window: found 2, expected 0 to 1`,
		`{"name":"keydiff","block":-1}`:            `metric keydiff: block: found -1`,
		`{"name":"knorm","colour":1}`:              `metric knorm: it has no parameter colour`,
		`{"name":"knorm"}}`:                        `after the value, expected the end`,
		`{"name":"knorm"} x`:                       `after the value, expected the end`,
		`{"name":"snapkv","window":1e99}`:          `metric snapkv: window: found number 1e99, expected a whole number`,
		`{"name":"lagkv","lag":0}`:                 `metric lagkv: lag: found 0, expected 1 to`,
		`{"name":"lagkv","sinks":-1}`:              `metric lagkv: sinks: found -1, expected 0 to`,
		`{"name":"leverage","ridge":0}`:            `metric leverage: ridge: found 0, expected 1e-06 to`,
		`{"name":"compactor","chunk":70000}`:       `metric compactor: chunk: found 70000, expected 1 to 65536`,
		`{"name":"compactor","blending":-1}`:       `metric compactor: blending: found -1, expected 0 to`,
		`{"name":"compactor","ridge":-1}`:          `metric compactor: ridge: found -1`,
		`{"name":"cur","of":"sum"}`:                `metric cur: of: found "sum", expected one of product, mean, key, value`,
		`{"name":"cur","local":-1}`:                `metric cur: local: found -1`,
		`{"name":"chunkkv","size":0}`:              `metric chunkkv: size: found 0, expected 1 to`,
		`{"name":"chunkkv","heads":"all"}`:         `metric chunkkv: heads: found "all", expected one of layer, each`,
		`{"name":"chunkkv","metric":"criticalkv"}`: `metric chunkkv: metric: found criticalkv, which ranks in two steps`,
		`{"name":"chunkkv","metric":"snapvk"}`:     `metric "snapvk" is unknown`,
		`{"name":"criticalkv","metric":{"name":"chunkkv","metric":"keydiff"}}`:                                `metric criticalkv: metric: found chunkkv, whose scores may be negative`,
		`{"name":"criticalkv","metric":"compactor"}`:                                                          `found compactor, whose scores may be negative`,
		`{"name":"triattention","future":25}`:                                                                 `metric triattention: future: found 25, expected 1 to 24`,
		`{"name":"triattention","centers":[[]]}`:                                                              `metric triattention: centers: layer 0: found 0 query heads`,
		`{"name":"triattention","centers":[[{"mean":[1]}]]}`:                                                  `centers: layer 0, query head 0: found a mean of 1 channels and 0 lengths`,
		`{"name":"triattention","centers":[[{"mean":[1,2],"lengths":[3]}],[]]}`:                               `centers: layer 1: found 0 query heads, expected 1`,
		`{"name":"triattention","centers":[[{"mean":[1,2],"lengths":[3]},{"mean":[1,2,3],"lengths":[3]}]]}`:   `centers: layer 0, query head 1: found a mean of 3 channels and 1 lengths, expected an even number`,
		`{"name":"triattention","centers":[[{"mean":[1,2],"lengths":[3]},{"mean":[1,2],"lengths":[3,4]}]]}`:   `centers: layer 0, query head 1: found a mean of 2 channels and 2 lengths`,
		`{"name":"triattention","centers":[[{"mean":[1,2,3],"lengths":[3]},{"mean":[1,2,3],"lengths":[3]}]]}`: `centers: layer 0, query head 0: found a mean of 3 channels and 1 lengths`,
		`{"name":"triattention","centers":[[{"mean":[1,2],"lengths":[-3]}]]}`:                                 `centers: layer 0, query head 0: found a number that is not finite or a length below 0`,
		`{"name":"triattention","centers":5}`:                                                                 `metric triattention: centers: found number, expected`,

		`{"name":"kvzip","suffix":"` + strings.Repeat("x", 257) + `"}`: `metric kvzip: bytes of suffix: found 257, expected 0 to 256`,
	} {
		t.Run(in, func(t *testing.T) {
			cfg, err := ParseMetricConfig(in)
			if err == nil {
				_, err = NewMetric(cfg)
			}
			require.ErrorContains(t, err, want)
		})
	}
	_, err := NewMetric(MetricConfig{Name: "ea", Params: `{"epsilon":`})
	require.ErrorContains(t, err, "metric expected_attention: read parameters: JSON at byte 11: found the end of the text, expected a value")
}

func FuzzParseMetricConfig(f *testing.F) {
	for _, name := range Metrics() {
		f.Add(name)
		f.Add(fmt.Sprintf(`{"name":%q,"window":3,"preset":"kvpress"}`, name))
	}
	f.Add(`{"name":"snapkv","kernel":9,"pool":"avg"} `)
	f.Fuzz(func(t *testing.T, text string) {
		defer testfuzz.Bound(t, len(text))()
		cfg, err := ParseMetricConfig(text)
		if err != nil {
			return
		}
		m, err := NewMetric(cfg)
		if err != nil {
			return
		}
		again, err := ParseMetricConfig(MetricConfigOf(m).String())
		require.NoError(t, err)
		require.Equal(t, m, mustMetric(t, again))
	})
}

// everyMetric lists every metric, and the variants with code paths of their own.
func everyMetric(t testing.TB) map[string]Metric {
	out := map[string]Metric{}
	for _, name := range Metrics() {
		out[name] = mustMetric(t, MetricConfig{Name: name})
	}
	out["snapkv avg"] = mustMetric(t, MetricConfig{Name: "snapkv", Params: `{"preset":"kvpress","window":5}`})
	out["snapkv max first"] = mustMetric(t, MetricConfig{Name: "snapkv", Params: `{"preset":"adakv","group":"max"}`})
	out["keydiff block"] = mustMetric(t, MetricConfig{Name: "keydiff", Params: `{"block":16}`})
	out["lagkv cross"] = mustMetric(t, configured("lagkv", "lag", 9, "cross", true))
	out["compactor chunks"] = mustMetric(t, configured("compactor", "chunk", 7, "sinks", 2, "window", 1))
	out["cur mean"] = mustMetric(t, configured("cur", "of", "mean", "local", 0))
	out["chunkkv each"] = mustMetric(t, configured("chunkkv", "metric", "keydiff", "size", 3, "heads", "each"))
	out["ea plain"] = mustMetric(t, MetricConfig{Name: "ea", Params: `{"covariance":false,"value_norm":false}`})
	return out
}

// withSums adds accumulated attention of the last rows to a layer.
func withSums(t testing.TB, l *Layer, seed uint64) *Layer {
	rng := rand.New(rand.NewPCG(seed, 3))
	q := make([]float32, l.T*l.Heads*l.HeadDim)
	for i := range q {
		q[i] = float32(rng.NormFloat64())
	}
	l.Sums = NewColumnSums(l.Heads, l.KVHeads, 1)
	for h := range l.KVHeads {
		require.NoError(t, l.Sums.Attend(context.Background(), l, h, 0, q, l.T, l.Heads*l.HeadDim))
	}
	return l
}

func TestMetricsEdgeLengths(t *testing.T) {
	for _, heads := range [][2]int{{4, 2}, {3, 3}, {4, 1}} {
		for _, T := range []int{0, 1, 2, 3, 4, 5, 31, 32, 33, 257, 300} {
			l := randomAttention(max(T, 1), heads[0], heads[1], 6)
			l.T, l.NextPosition, l.Share = T, T, max(T/3, 1)
			if T == 0 {
				l.Queries = NewQueryWindow(heads[0], 6, 64)
				l.Queries.Append(0, make([]float32, heads[0]*6))
				l.Stats.Reset()
				l.Repeats = NewRepeatScores(make([]int, heads[1]))
			}
			withSums(t, l, uint64(T))
			for name, m := range everyMetric(t) {
				t.Run(fmt.Sprintf("%s/H%dK%d/T%d", name, heads[0], heads[1], T), func(t *testing.T) {
					s, err := Score(context.Background(), m, l)
					require.NoError(t, err)
					require.Len(t, s, heads[1])
					require.Zero(t, s.NaNs())
					p := m.Protection(T, l.Share)
					for h := range s {
						require.Len(t, s[h], T)
						for i, v := range s[h] {
							if math.IsInf(float64(v), 1) && T > 1 {
								require.True(t, p.Has(i, T), "slot %d has +Inf but is not protected by %+v", i, p)
							}
						}
						require.Len(t, Keep(nil, s[h], l.Share, p), min(l.Share, T))
					}
				})
			}
		}
	}
}

func TestMetricsDoNotDependOnParallelism(t *testing.T) {
	l := withSums(t, randomAttention(300, 8, 4, 8), 1)
	for name, m := range everyMetric(t) {
		t.Run(name, func(t *testing.T) {
			l.Parallel = nil
			want, err := Score(context.Background(), m, l)
			require.NoError(t, err)
			l.Parallel = func(n int, fn func(i int)) {
				var wg sync.WaitGroup
				for i := n - 1; i >= 0; i-- {
					wg.Go(func() { fn(i) })
				}
				wg.Wait()
			}
			got, err := Score(context.Background(), m, l)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// TestScoreBits pins the bits of every metric's scores. They are the same on
// every CPU; a change means that the order of some arithmetic has changed,
// which needs a reason and new numbers here.
func TestScoreBits(t *testing.T) {
	const T, H, K, D = 301, 6, 2, 10
	state := uint64(1)
	fill := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			state = state*6364136223846793005 + 1442695040888963407
			x[i] = float32(int32(state>>32)) / (1 << 30)
		}
		return x
	}
	keys, values := [][]float32{fill(T * D), fill(T * D)}, [][]float32{fill(T * D), fill(T * D)}
	q := fill(T * H * D)
	l := &Layer{
		T: T, Heads: H, KVHeads: K, HeadDim: D, NextPosition: T, Share: 60,
		Keys:    func(h, lo, hi int, _ []float32) []float32 { return keys[h][lo*D : hi*D] },
		Values:  func(h, lo, hi int, _ []float32) []float32 { return values[h][lo*D : hi*D] },
		Queries: NewQueryWindow(H, D, T), Stats: NewQueryStats(H, D, 4, true, kernels.Detect()).KeepChannelNorms(), Sums: NewColumnSums(H, K, 1),
		OutputDim: 2 * D,
		InvFreq:   []float64{1, 0.15, 0.025, 0.004, 0.0006}, RopeScale: 1.25,
	}
	for p := range T {
		l.Queries.Append(p, q[p*H*D:])
	}
	for h := range H {
		l.Stats.Add(h, 0, q[h*D:], T, H*D)
	}
	for h := range K {
		require.NoError(t, l.Sums.Attend(context.Background(), l, h, 0, q, T, H*D))
	}
	output := fill(2 * D * H * D)
	l.Output = func(q, lo, hi int, _ []float32) []float32 {
		return output[(q*2*D+lo)*D : (q*2*D+hi)*D]
	}
	l.Repeats = NewRepeatScores(slices.Repeat([]int{T}, K))
	for h := range K {
		require.NoError(t, l.Repeats.Add(context.Background(), l, h, Repetition{
			From: 5, To: 200, Sinks: 4, Queries: q[:70*H*D], Keys: func(h int) []float32 { return keys[h][:70*D] },
		}))
	}
	want := map[string]string{
		"snapkv": "edd13b9302f7d86c", "snapkv avg": "a4c8f294b6e48d93", "snapkv max first": "ba0e9128363b6229",
		"keydiff": "b3a388b7b93712c0", "keydiff block": "2ea7bbadc16000c6", "knorm": "95d681442e45072a",
		"expected_attention": "c6b389d49ba5963f", "ea plain": "6ea85954b2ce43bf", "tova": "e6dcd6649fdb33a9",
		"streaming_llm": "75323b8cfc31c29d", "observed": "231a46251131eabe", "h2o": "bec3e283edde6d81",
		"criticalkv": "623833d1317d5801", "kvzip": "df6f8886b810fdc1", "key_distance": "9da6304608234fad", "cake": "0e5ed8a94775b76f", "defensivekv": "17f0fc40a72dd71d",
		"leverage": "ac3601f6a26d0404", "compactor": "6cf43cf6ae080d9d", "cur": "2c23966231a58764", "lagkv": "5c44b0d2b76f85bd", "chunkkv": "ad21b5e02eb3ba75", "triattention": "25bd4fada3e94614",
		"lagkv cross": "14d7db87aea6c942", "compactor chunks": "276e92dab273343a", "cur mean": "2c46cf2da2de8476", "chunkkv each": "9c80d7a5c4dab6d1",
	}
	for name, m := range everyMetric(t) {
		s, err := Score(context.Background(), m, l)
		require.NoError(t, err)
		s, err = Refine(context.Background(), m, l, s, []int{60, 60})
		require.NoError(t, err)
		sum := fnv.New64a()
		for _, row := range s {
			for _, v := range row {
				var b [4]byte
				binary.LittleEndian.PutUint32(b[:], math.Float32bits(v))
				sum.Write(b[:])
			}
		}
		assert.Equal(t, want[name], fmt.Sprintf("%016x", sum.Sum64()), name)
	}
}

func TestMetricsReadFromScratch(t *testing.T) {
	// A cache of another element type widens into the buffer it is given.
	l := withSums(t, randomAttention(600, 4, 2, 8), 1)
	copying := *l
	copying.Keys, copying.Values = filling(l.Keys, 8), filling(l.Values, 8)
	for name, m := range everyMetric(t) {
		want, err := Score(context.Background(), m, l)
		require.NoError(t, err)
		got, err := Score(context.Background(), m, &copying)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
}

func TestMetricsReportWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		metric string
		spoil  func(l *Layer)
		want   string
	}{
		"no keys":          {"keydiff", func(l *Layer) { l.Keys = nil }, "score layer 3 with keydiff: keys are missing"},
		"no values":        {"ea", func(l *Layer) { l.Values = nil }, "values are missing"},
		"no queries":       {"snapkv", func(l *Layer) { l.Queries = nil }, "the last queries are missing"},
		"empty queries":    {"tova", func(l *Layer) { l.Queries = NewQueryWindow(4, 8, 3) }, "the last queries are missing"},
		"other queries":    {"snapkv", func(l *Layer) { l.Queries = NewQueryWindow(2, 8, 3); l.Queries.Append(0, make([]float32, 16)) }, "found queries of 2 heads × 8, expected 4 × 8"},
		"no statistics":    {"ea", func(l *Layer) { l.Stats = nil }, "query statistics are missing"},
		"no covariance":    {"ea", func(l *Layer) { l.Stats = NewQueryStats(4, 8, 4, false, kernels.Detect()) }, "no second moments"},
		"frequencies":      {"ea", func(l *Layer) { l.InvFreq = l.InvFreq[:1] }, "found 1 rope frequencies, expected half of head dimension 8"},
		"no sums":          {"h2o", func(l *Layer) { l.Sums = nil }, "accumulated attention is missing"},
		"short sums":       {"observed", func(l *Layer) { l.Sums.Truncate(1, 5) }, "kv head 1 has accumulated attention for 5 of 40 entries"},
		"heads":            {"knorm", func(l *Layer) { l.Heads = 3 }, "found 3 query heads and 2 kv heads, expected a multiple"},
		"lengths":          {"knorm", func(l *Layer) { l.Lens = []int{1} }, "found 1 lengths, expected one for each of 2 kv heads"},
		"positions":        {"snapkv", func(l *Layer) { l.Positions = func(int) []int32 { return make([]int32, 3) } }, "kv head 0 has 3 positions for 40 entries"},
		"short keys":       {"knorm", func(l *Layer) { l.Keys = func(h, lo, hi int, dst []float32) []float32 { return dst[:1] } }, "read slots [0,40) of layer 3, kv head 0: found 1 values, expected 320"},
		"negative length":  {"knorm", func(l *Layer) { l.Lens = []int{2, -1} }, "kv head 1 has -1 entries"},
		"number of budget": {"knorm", func(l *Layer) { l.Budgets = []int{2} }, "found 1 budgets"},
		"no projection":    {"defensivekv", func(l *Layer) { l.Output = nil }, "the output projection is missing"},
		"no outputs":       {"criticalkv", func(l *Layer) { l.OutputDim = 0 }, "the output projection is missing"},
		"no repetition":    {"kvzip", func(l *Layer) { l.Repeats = nil }, "the scores of a repetition of the context are missing"},
		"other repetition": {"kvzip", func(l *Layer) { l.Repeats = NewRepeatScores([]int{40}) }, "the scores of a repetition of the context are missing"},
		"short repetition": {"kvzip", func(l *Layer) { l.Repeats = NewRepeatScores([]int{40, 39}) }, "kv head 1 has the scores of a repetition for 39 of 40 entries"},
		"no lengths":       {"triattention", func(l *Layer) { l.Stats = NewQueryStats(4, 8, 4, true, kernels.Detect()) }, "query statistics have no lengths"},
		"no hidden states": {"newest_hidden", func(l *Layer) { l.Hidden = nil }, "the hidden states are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			l := withSums(t, randomAttention(40, 4, 2, 8), 1)
			l.Index = 3
			c.spoil(l)
			_, err := Score(context.Background(), mustMetric(t, MetricConfig{Name: c.metric}), l)
			require.ErrorContains(t, err, c.want)
		})
	}
	l := randomAttention(40, 4, 2, 8)
	l.Share = 0
	_, err := Score(context.Background(), mustMetric(t, MetricConfig{Name: "keydiff", Params: `{"block":8}`}), l)
	require.ErrorContains(t, err, "budgets must be known beforehand")
}

// newestHidden reads the hidden state of the newest token and ranks nothing.
type newestHidden struct{}

func (newestHidden) Needs(T, n int) Needs           { return Needs{Hidden: 1} }
func (newestHidden) Protection(T, n int) Protection { return Protection{} }
func (newestHidden) Score(_ context.Context, l *Layer) (Scores, error) {
	s := make(Scores, l.KVHeads)
	for h := range s {
		s[h] = make([]float32, l.Len(h))
	}
	return s, nil
}

func init() {
	RegisterMetric("newest_hidden", newestHidden{})
	metrics.unlist("newest_hidden")
}

// TestMetricsReadWhatTheyName: metrics get by with a layer that has what Needs
// names and nothing else.
func TestMetricsReadWhatTheyName(t *testing.T) {
	all := everyMetric(t)
	for _, of := range []string{"key", "value", "mean"} {
		all["cur "+of] = mustMetric(t, configured("cur", "of", of, "local", 7))
	}
	for name, m := range all {
		full := withSums(t, randomAttention(60, 4, 2, 8), 1)
		want, err := Score(context.Background(), m, full)
		require.NoError(t, err)
		want, err = Refine(context.Background(), m, full, want, []int{12, 12})
		require.NoError(t, err)
		n, l := m.Needs(60, full.Share), *full
		if !n.Keys {
			l.Keys = nil
		}
		if !n.Values {
			l.Values = nil
		}
		if !n.Output {
			l.Output = nil
		}
		if l.Queries.Trim(n.Window); n.Window == 0 {
			l.Queries = nil
		}
		if !n.Stats {
			l.Stats = nil
		}
		if !n.ColumnSums {
			l.Sums = nil
		}
		if n.Repeat.Chunk == 0 {
			l.Repeats = nil
		}
		if !n.Budgets {
			l.Share, l.Budgets, l.Ratio = 0, nil, 0
		}
		got, err := Score(context.Background(), m, &l)
		require.NoError(t, err, name)
		got, err = Refine(context.Background(), m, &l, got, []int{12, 12})
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
}

// TestOneOutput: a projection to a single output works, too.
func TestOneOutput(t *testing.T) {
	l := randomAttention(20, 2, 1, 4)
	l.OutputDim = 1
	norms, err := l.OutputNorms(context.Background())
	require.NoError(t, err)
	require.InEpsilon(t, (outputLength(l, 0, l.Values(0, 3, 4, nil))+outputLength(l, 1, l.Values(0, 3, 4, nil)))/2, norms[0][3], 1e-5)
	_, err = Score(context.Background(), mustMetric(t, MetricConfig{Name: "defensivekv"}), l)
	require.NoError(t, err)
}

// TestNegativeScoresAreSigned: CriticalKV multiplies scores, so it rejects every
// metric that has been seen to give a negative one.
func TestNegativeScoresAreSigned(t *testing.T) {
	l := withSums(t, randomAttention(60, 4, 2, 8), 1)
	negative := 0
	for _, name := range Metrics() {
		s, err := Score(context.Background(), mustMetric(t, MetricConfig{Name: name}), l)
		require.NoError(t, err)
		if !slices.ContainsFunc(slices.Concat(s...), func(v float32) bool { return v < 0 }) {
			continue
		}
		negative++
		_, err = NewMetric(configured("criticalkv", "metric", name))
		require.ErrorContains(t, err, "metric criticalkv: metric: found "+name+", whose scores may be negative")
		_, err = NewMetric(configured("criticalkv", "metric", name, "shift", true))
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, negative, 5)
}

// TestEmptyLayers: layers without entries are fine.
func TestEmptyLayers(t *testing.T) {
	rows := func(_, _, _ int, dst []float32) []float32 { return dst[:0] }
	for _, lens := range [][]int{nil, {0, 0}} {
		l := &Layer{Heads: 4, KVHeads: 2, HeadDim: 4, Lens: lens, Keys: rows, Values: rows, Output: rows, OutputDim: 1, InvFreq: []float64{1, 0.1}}
		for _, name := range []string{"snapkv", "cake", "compactor", "keydiff", "knorm", "leverage", "lagkv", "streaming_llm"} {
			s, err := Score(context.Background(), mustMetric(t, MetricConfig{Name: name}), l)
			require.NoError(t, err, name)
			require.Equal(t, [2]int{}, [2]int{len(s[0]), len(s[1])}, name)
		}
	}
}

// TestNeedsUnion: what two metrics read together is what either reads; from one
// pass they can only want the same.
func TestNeedsUnion(t *testing.T) {
	repeat := RepeatText{Chunk: 1, Suffix: "x"}
	all := []Needs{
		{Keys: true}, {Values: true}, {Output: true}, {Window: 5}, {Stats: true, StatsSkip: 4}, {Stats: true, StatsSkip: 4, Covariance: true},
		{Stats: true, StatsSkip: 4, ChannelNorms: true}, {Hidden: 3}, {ColumnSums: true}, {Repeat: repeat}, {Budgets: true},
	}
	for _, a := range all {
		for _, b := range append(all, Needs{}) {
			want := a
			for _, x := range []struct{ to, of *bool }{
				{&want.Keys, &b.Keys}, {&want.Values, &b.Values}, {&want.Output, &b.Output}, {&want.Stats, &b.Stats}, {&want.Covariance, &b.Covariance},
				{&want.ChannelNorms, &b.ChannelNorms}, {&want.ColumnSums, &b.ColumnSums}, {&want.Budgets, &b.Budgets},
			} {
				if *x.of {
					*x.to = true
				}
			}
			for _, x := range []struct{ to, of *int }{{&want.Window, &b.Window}, {&want.StatsSkip, &b.StatsSkip}, {&want.Hidden, &b.Hidden}} {
				*x.to = max(*x.to, *x.of)
			}
			if b.Repeat != (RepeatText{}) {
				want.Repeat = b.Repeat
			}
			for _, pair := range [][2]Needs{{a, b}, {b, a}} {
				got, err := pair[0].Union(pair[1])
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
	}
	device, err := Needs{Window: 2, WindowMeans: true}.Union(Needs{Window: 2})
	require.NoError(t, err)
	require.Equal(t, Needs{Window: 2}, device)
	other := repeat
	other.Chunk = 2
	_, err = Needs{Repeat: repeat}.Union(Needs{Repeat: other})
	require.ErrorContains(t, err, "in different ways")
	other = repeat
	other.Suffix = "y"
	_, err = Needs{Repeat: other}.Union(Needs{Repeat: repeat})
	require.ErrorContains(t, err, "in different ways")
	_, err = Needs{Stats: true, StatsSkip: 4}.Union(Needs{Stats: true})
	require.ErrorContains(t, err, "metrics that leave out 4 and 0 first positions cannot share one prefill")
}

func TestHiddenStates(t *testing.T) {
	s := HiddenStates{From: 7, Dim: 2, Rows: []float32{1, 2, 3, 4, 5, 6}}
	require.Equal(t, 3, s.Len())
	for position, want := range map[int][]float32{6: nil, 7: {1, 2}, 8: {3, 4}, 9: {5, 6}, 10: nil} {
		require.Equal(t, want, s.At(position), "position %d", position)
	}
	l := randomAttention(4, 2, 1, 4)
	l.Hidden = &HiddenStates{From: 3, Dim: 1, Rows: []float32{5}}
	_, err := Score(context.Background(), newestHidden{}, l)
	require.NoError(t, err, "one number of one token")
}

func TestMetricsAreCancellable(t *testing.T) {
	l := withSums(t, randomAttention(40, 4, 2, 8), 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, m := range everyMetric(t) {
		_, err := Score(ctx, m, l)
		require.ErrorIs(t, err, context.Canceled, name)
	}
}

func TestNonFiniteInputIsReported(t *testing.T) {
	l := randomAttention(40, 4, 2, 8)
	bad := slices.Clone(l.Keys(0, 0, 40, nil))
	bad[17*8] = float32(math.NaN())
	keys := l.Keys
	l.Keys = func(h, lo, hi int, dst []float32) []float32 {
		if h == 0 {
			return bad[lo*8 : hi*8]
		}
		return keys(h, lo, hi, dst)
	}
	s, err := Score(context.Background(), mustMetric(t, MetricConfig{Name: "knorm"}), l)
	require.NoError(t, err)
	require.Equal(t, 1, s.NaNs())
	require.NotContains(t, Keep(nil, s[0], 39, Protection{}), int32(17), "nan goes first")
}

func TestScoresHelpers(t *testing.T) {
	inf := float32(math.Inf(1))
	s := Scores{{inf, 1, 2}, {5, inf, -1}}
	s.ReplaceInf(1)
	require.Equal(t, Scores{{6, 1, 2}, {5, 6, -1}}, s)
	s = Scores{{inf, inf}}
	s.ReplaceInf(0)
	require.Equal(t, Scores{{0, 0}}, s)
	require.True(t, Scores{{1, 2}, {inf, 3, 3}}.Degenerate())
	require.False(t, Scores{{1, 2}, {inf, 3}}.Degenerate())
	require.Equal(t, Protection{5, 3, true}, Protection{5, 1, false}.Union(Protection{4, 3, true}))
}

func TestSnapKVPooling(t *testing.T) {
	x, dst := []float64{9, 0, 0, 3}, make([]float64, 4)
	snapKV{Kernel: 3, Pool: "max"}.pool(dst, x)
	require.Equal(t, []float64{9, 9, 3, 3}, dst, "maxima see nothing beyond the ends")
	snapKV{Kernel: 3, Pool: "avg"}.pool(dst, x)
	require.Equal(t, []float64{3, 3, 1, 1}, dst, "averages count the zeros beyond the ends")
	snapKV{Kernel: 9, Pool: "max"}.pool(dst, x)
	require.Equal(t, []float64{9, 9, 9, 9}, dst)
}

// TestWidePooling: kernels of every width give what their definition does, up to wider
// than the text.
func TestWidePooling(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 2, 63, 64, 65, 130, 257} {
		x, got := make([]float64, n), make([]float64, n)
		for i := range x {
			x[i] = float64(rng.IntN(1000)) // sums are exact
		}
		for _, kernel := range []int{1, 3, 63, 65, 67, 127, 129, 131, 255, 257, 259, 1001, maxSlots - 1} {
			for _, pool := range []string{"max", "avg"} {
				snapKV{Kernel: kernel, Pool: pool}.pool(got, x)
				for i, v := range got {
					near := x[max(i-kernel/2, 0):min(i+kernel/2+1, n)]
					want := slices.Max(near)
					if pool == "avg" {
						want = 0
						for _, y := range near {
							want += y
						}
						want /= float64(kernel)
					}
					require.Equal(t, want, v, "%s over %d of %d values at %d", pool, kernel, n, i)
				}
			}
		}
	}
}

func TestSnapKVWindow(t *testing.T) {
	m := mustMetric(t, MetricConfig{Name: "snapkv", Params: `{"shrink_window":true}`})
	for _, c := range []struct{ T, n, want int }{
		{100, 0, 32}, {100, 33, 32}, {100, 32, 16}, {100, 5, 2}, {100, 1, 1}, {20, 0, 19}, {1, 1, 0}, {0, 0, 0},
	} {
		require.Equal(t, Protection{Window: c.want}, m.Protection(c.T, c.n), "T=%d n=%d", c.T, c.n)
		require.Equal(t, c.want, m.Needs(c.T, c.n).Window)
	}
	require.Equal(t, 32, mustMetric(t, MetricConfig{Name: "snapkv"}).Protection(100, 5).Window, "shrinking is an option")
}

func TestStreamingLLMKeepsSinksAndNewest(t *testing.T) {
	m := mustMetric(t, MetricConfig{Name: "streaming_llm"})
	s, err := Score(context.Background(), m, randomAttention(12, 2, 1, 4))
	require.NoError(t, err)
	for n, want := range [][]int32{
		{}, {11}, {0, 11}, {0, 1, 11}, {0, 1, 2, 11}, {0, 1, 2, 3, 11}, {0, 1, 2, 3, 10, 11}, {0, 1, 2, 3, 9, 10, 11},
	} {
		require.Equal(t, want, Keep([]int32{}, s[0], n, m.Protection(12, n)), "n = %d", n)
	}
}

func TestH2OProtectsHalf(t *testing.T) {
	m := mustMetric(t, MetricConfig{Name: "h2o"})
	require.Equal(t, Protection{Window: 3}, m.Protection(100, 7))
	require.Equal(t, Protection{Window: 5}, mustMetric(t, MetricConfig{Name: "h2o", Params: `{"window":5}`}).Protection(100, 7))
}

// attentionOf computes softmax(q·k/√D) in float64 over the slots that a query
// at position p sees.
func attentionOf(l *Layer, h int, q []float32, p int) []float64 {
	D, T := l.HeadDim, l.Len(h)
	keys := l.Keys(h, 0, T, make([]float32, T*D))
	out := make([]float64, T)
	top := math.Inf(-1)
	for t := range T {
		pos := t
		if l.Positions != nil {
			pos = int(l.Positions(h)[t])
		}
		if out[t] = math.Inf(-1); pos > p {
			continue
		}
		var z float64
		for i := range D {
			z += float64(q[i]) * float64(keys[t*D+i])
		}
		out[t] = z / math.Sqrt(float64(D))
		top = max(top, out[t])
	}
	var sum float64
	for t, z := range out {
		out[t] = math.Exp(z - top)
		sum += out[t]
	}
	for t := range out {
		out[t] /= sum
	}
	return out
}

func TestTOVAOnRaggedHeads(t *testing.T) {
	l := randomAttention(9, 4, 2, 8)
	pos := [][]int32{{0, 2, 3, 7, 8}, {0, 1, 3, 8}}
	full := l.Keys
	l.Lens = []int{5, 4}
	l.Positions = func(h int) []int32 { return pos[h] }
	l.Keys = func(h, lo, hi int, dst []float32) []float32 {
		dst = dst[:0]
		for _, p := range pos[h][lo:hi] {
			dst = append(dst, full(h, int(p), int(p)+1, nil)...)
		}
		return dst
	}
	s, err := mustMetric(t, MetricConfig{Name: "tova", Params: `{"window":0}`}).Score(context.Background(), l)
	require.NoError(t, err)
	last := l.Queries.Len() - 1
	want := map[int32]float64{}
	for h := range 2 {
		for g := range 2 {
			for i, a := range attentionOf(l, h, l.Queries.Row(last, 2*h+g), 8) {
				want[pos[h][i]] += a
			}
		}
	}
	holders := map[int32]float64{0: 4, 1: 2, 2: 2, 3: 4, 7: 2, 8: 4}
	for h := range 2 {
		for i, p := range pos[h] {
			require.InDelta(t, want[p]/holders[p], s[h][i], 1e-6, "head %d, position %d", h, p)
		}
	}
}

func TestExpectedAttentionRotatesByMeanAngles(t *testing.T) {
	freq := []float64{0.7, 0.01}
	r := meanRotation(freq, 100, 3, 2)
	mu := []float64{1, 2, 3, 4}
	cov := []float64{4, 1, 0, 1, 1, 3, 1, 0, 0, 1, 5, 2, 1, 0, 2, 6}
	// The rotation as a matrix, averaged and scaled.
	var R [4][4]float64
	for p := 100; p < 103; p++ {
		for i, f := range freq {
			s, c := math.Sincos(float64(p) * f)
			R[i][i] += c * 2 / 3
			R[i][i+2] -= s * 2 / 3
			R[i+2][i] += s * 2 / 3
			R[i+2][i+2] += c * 2 / 3
		}
	}
	var wantMu [4]float64
	var wantCov [4][4]float64
	for i := range 4 {
		for j := range 4 {
			wantMu[i] += R[i][j] * mu[j]
			for a := range 4 {
				for b := range 4 {
					wantCov[i][j] += R[i][a] * cov[a*4+b] * R[j][b]
				}
			}
		}
	}
	r.apply(mu)
	r.conjugate(cov)
	for i := range 4 {
		require.InDelta(t, wantMu[i], mu[i], 1e-12)
		for j := range 4 {
			require.InDelta(t, wantCov[i][j], cov[i*4+j], 1e-12, "%d %d", i, j)
		}
	}
}

func TestRerotate(t *testing.T) {
	freq := []float64{1, 0.1, 0.001}
	base := make([]float64, 5*6)
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range base {
		base[i] = rng.NormFloat64()
	}
	positions := []int32{0, 1, 5, 6, 9}
	keys, want := make([]float32, 0, 30), make([]float64, 0, 30)
	for i, p := range positions {
		row := base[i*6 : (i+1)*6]
		keys = append(keys, narrow(rotate(row, 1, 6, int(p), freq))...)
		want = append(want, rotate(row, 1, 6, i, freq)...)
	}
	require.NoError(t, Rerotate(keys, positions, freq))
	for i := range want {
		require.InDelta(t, want[i], keys[i], 1e-5, "row %d", i/6)
	}
	require.ErrorContains(t, Rerotate(keys, positions[:3], freq), "found 30 values for 3 positions, expected 18")
}

func TestBlockwiseKeyDiffTakesEachHeadsBudget(t *testing.T) {
	m := mustMetric(t, MetricConfig{Name: "keydiff", Params: `{"block":16}`})
	l := randomAttention(100, 4, 2, 8)
	l.Budgets = []int{20, 150}
	got, err := Score(context.Background(), m, l)
	require.NoError(t, err)
	l.Budgets, l.Share = nil, 20
	want, err := Score(context.Background(), m, l)
	require.NoError(t, err)
	require.Equal(t, want[0], got[0])
	dropped := 0
	for _, v := range got[0] {
		if math.IsInf(float64(v), -1) {
			dropped++
		}
	}
	require.Equal(t, 80, dropped, "only the survivors have a score")
	plain, err := Score(context.Background(), mustMetric(t, MetricConfig{Name: "keydiff"}), l)
	require.NoError(t, err)
	require.Equal(t, plain[1], got[1], "nothing to cut")
}

// TestCountsFromOutsideTakeNoMemory gives each count of each metric the largest value
// that it accepts, one at a time, and scores a small layer.
func TestCountsFromOutsideTakeNoMemory(t *testing.T) {
	tried := 0
	for name, m := range everyMetric(t) {
		var params map[string]any
		require.NoError(t, json.Unmarshal([]byte(MetricConfigOf(m).String()), &params))
		for key, value := range params {
			if n, ok := value.(float64); !ok || n != math.Trunc(n) {
				continue
			}
			for _, count := range []int{maxSlots, maxSlots - 1} { // some must be even, or odd
				changed := maps.Clone(params)
				changed[key] = count
				text, err := json.Marshal(changed)
				require.NoError(t, err)
				cfg, err := ParseMetricConfig(string(text))
				if err != nil {
					continue
				}
				big, err := NewMetric(cfg)
				if err != nil {
					continue
				}
				tried++
				l := withSums(t, randomAttention(100, 4, 2, 8), 1)
				l.Share = 20
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err = Score(context.Background(), big, l)
				runtime.ReadMemStats(&after)
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "%s with %s = %d: %v", name, key, count, err)
			}
		}
	}
	require.Greater(t, tried, 20)
}

// TestExpectedAttentionMatchesDefinition computes the metric term by term, with
// the true rotation matrices, a yarn factor and a cache that has lost slots.
func TestExpectedAttentionMatchesDefinition(t *testing.T) {
	const T, D, G, next, future = 40, 6, 2, 55, 9
	l := randomAttention(T, 2*G, 2, D)
	l.NextPosition, l.RopeScale = next, 1.3
	pos := make([]int32, T)
	for i := range pos {
		pos[i] = int32(i) + 2 + int32(i/7) // two of the four sinks are gone
	}
	l.Positions = func(int) []int32 { return pos }
	m := mustMetric(t, configured("ea", "future", future, "epsilon", 0.1))
	got, err := Score(context.Background(), m, l)
	require.NoError(t, err)
	for h := range 2 {
		keys, values := l.Keys(h, 0, T, nil), l.Values(h, 0, T, nil)
		total := make([]float64, T)
		for q := h * G; q < (h+1)*G; q++ {
			mu, cov := make([]float64, D), make([]float64, D*D)
			l.Stats.Mean(q, mu)
			require.NoError(t, l.Stats.Cov(q, cov))
			var R [D][D]float64
			for p := next; p < next+future; p++ {
				for i, f := range l.InvFreq {
					s, c := math.Sincos(float64(p) * f)
					R[i][i] += 1.3 * c / future
					R[i+D/2][i+D/2] += 1.3 * c / future
					R[i][i+D/2] -= 1.3 * s / future
					R[i+D/2][i] += 1.3 * s / future
				}
			}
			var sum float64
			e := make([]float64, T)
			for i := 2; i < T; i++ {
				var z float64
				for a := range D {
					for b := range D {
						k := float64(keys[i*D+a])
						z += k * R[a][b] * mu[b] / math.Sqrt(D)
						for x := range D {
							for y := range D {
								z += k * R[a][x] * cov[x*D+y] * R[b][y] * float64(keys[i*D+b]) / (2 * D)
							}
						}
					}
				}
				e[i] = math.Exp(z)
				sum += e[i]
			}
			for i := range total {
				total[i] += e[i] / sum / G
			}
		}
		for i := range T {
			if i < 2 {
				require.True(t, math.IsInf(float64(got[h][i]), 1), "slot %d holds a sink", i)
				continue
			}
			want := (total[i] + 0.1) * math.Sqrt(sumSquares(values[i*D:(i+1)*D]))
			require.InEpsilon(t, want, got[h][i], 1e-4, "head %d, slot %d", h, i)
		}
	}
}
