package model

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// traced returns options that collect traces in the returned slice.
func traced(o SessionOptions) (SessionOptions, *[]*Trace) {
	all := new([]*Trace)
	o.Trace = func(t *Trace) { *all = append(*all, t) }
	return o, all
}

// TestTraceIsWhatTheCacheHolds: for every allocator, whether budgets are known before,
// layer by layer or at the end, the trace has the positions that the cache holds, as
// many as budgeted, the best by scores that are those of the metric applied to the
// whole layer.
func TestTraceIsWhatTheCacheHolds(t *testing.T) {
	ctx := context.Background()
	for _, shape := range []testShape{testShapes[0], testShapes[2]} {
		m := shape.open(t, WithThreads(2))
		prompt := randomTokens(90, 97, 1)
		whole := newTestSession(t, m, SessionOptions{})
		require.NoError(t, whole.Prefill(ctx, prompt))
		for _, p := range policies(t, m, 0.6) {
			if p.Metric.Name != "keydiff" {
				continue
			}
			t.Run(shape.name+"/"+p.Allocator.Name, func(t *testing.T) {
				metric, err := lukv.NewMetric(p.Metric)
				require.NoError(t, err)
				o, traces := traced(SessionOptions{Compression: p, ChunkTokens: 40})
				s := newTestSession(t, m, o)
				require.NoError(t, s.Prefill(ctx, prompt))
				require.NoError(t, s.Prefill(ctx, randomTokens(9, 97, 2)), "which is not compressed")
				require.Len(t, *traces, 1)
				x := (*traces)[0]
				assert.Equal(t, m.ID(), x.Model)
				assert.Equal(t, s.Policy(), x.Policy)
				assert.Equal(t, Span{0, 90}, x.Span)
				held := heldPositions(s)
				for at := range m.cfg.Layers {
					if m.cfg.Windows[at] > 0 {
						assert.Nil(t, x.Budgets[at])
						assert.Nil(t, x.Positions[at])
						assert.Nil(t, x.Scores[at])
						continue
					}
					scores, err := lukv.Score(ctx, metric, whole.layerView(at, 90))
					require.NoError(t, err)
					require.Equal(t, scores, x.Scores[at])
					for h, positions := range x.Positions[at] {
						require.Equal(t, held[at][h][:s.cache.Len(at, h)-9], positions)
						require.Len(t, positions, x.Budgets[at][h])
						worst, best := math.Inf(1), math.Inf(-1)
						for i, score := range scores[h] {
							if _, kept := slices.BinarySearch(positions, int32(i)); kept {
								worst = min(worst, float64(score))
							} else {
								best = max(best, float64(score))
							}
						}
						if p := x.Policy.Protection; p == nil || *p == (lukv.Protection{}) {
							require.GreaterOrEqual(t, worst, best, "layer %d, head %d", at, h)
						}
					}
				}
			})
		}
	}
}

// TestTraceOfSpans: a span's trace is the same whether its prefill, a later Compress or
// an observation compressed it. What was evicted before has no score.
func TestTraceOfSpans(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	tokens := randomTokens(80, 97, 1)
	for _, allocator := range []string{"uniform", "adakv", "global", "cake"} {
		p := &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: 0.5}
		o, traces := traced(SessionOptions{})
		within := newTestSession(t, m, o)
		require.NoError(t, within.PrefillCompressed(ctx, tokens, p), allocator)
		after := newTestSession(t, m, o)
		require.NoError(t, after.Prefill(ctx, tokens))
		require.NoError(t, after.Compress(ctx, Span{0, 80}, p))
		metric, err := lukv.NewMetric(p.Metric)
		require.NoError(t, err)
		ob, err := m.Observe(ctx, tokens, o, metric)
		require.NoError(t, err)
		defer ob.Close()
		derived, err := ob.Compress(ctx, p)
		require.NoError(t, err)
		defer derived.Close()
		require.Len(t, *traces, 3)
		assert.Equal(t, (*traces)[0], (*traces)[1], allocator)
		assert.Equal(t, (*traces)[0], (*traces)[2], allocator)

		before := heldPositions(after)
		p = &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: 0.7}
		require.NoError(t, after.Compress(ctx, Span{20, 70}, p), allocator)
		x := (*traces)[3]
		for at, heads := range heldPositions(after) {
			for h, held := range heads {
				inside := func(p int32) bool { return p >= 20 && p < 70 }
				assert.Equal(t, slices.DeleteFunc(held, func(p int32) bool { return !inside(p) }), x.Positions[at][h], "%s, layer %d", allocator, at)
				for i, score := range x.Scores[at][h] {
					_, was := slices.BinarySearch(before[at][h], int32(20+i))
					assert.Equal(t, was, !math.IsNaN(float64(score)), "%s, layer %d, token %d", allocator, at, 20+i)
				}
			}
		}
	}
}

// TestTraceOnlyOfWhatHappened: a prefill that does not compress, or fails, has no trace.
func TestTraceOnlyOfWhatHappened(t *testing.T) {
	m := testShapes[0].open(t)
	o, traces := traced(SessionOptions{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, BudgetTokens: 60}})
	s := newTestSession(t, m, o)
	require.NoError(t, s.Prefill(context.Background(), randomTokens(60, 97, 1)))
	assert.Empty(t, *traces, "a budget of the length")
	require.NoError(t, s.Truncate(0))
	ctx, cancel := context.WithCancel(context.Background())
	s.opts.Progress = func(done, total int) {
		if done == total {
			cancel()
		}
	}
	require.ErrorIs(t, s.Prefill(ctx, randomTokens(80, 97, 1)), context.Canceled)
	assert.Empty(t, *traces)
}

// TestTraceMemory: a trace counts while it is made and reported, no longer, and is
// refused before any work if there is no room for it.
func TestTraceMemory(t *testing.T) {
	const T = 400
	prefill := func(max int64, trace func(*Model)) (used int64, err error) {
		m := testShapes[0].open(t, WithMaxMemory(max))
		o := SessionOptions{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.9}}
		started := false
		o.Progress = func(int, int) { started = true }
		if trace != nil {
			o.Trace = func(*Trace) { trace(m) }
		}
		s := newTestSession(t, m, o)
		err = s.Prefill(context.Background(), randomTokens(T, 97, 1))
		if err != nil {
			assert.False(t, started)
		}
		return m.memory.Used(), err
	}
	used, err := prefill(1<<30, nil)
	require.NoError(t, err)
	reported := int64(0)
	after, err := prefill(1<<30, func(m *Model) { reported = m.memory.Used() })
	require.NoError(t, err)
	assert.Equal(t, used, after)
	assert.GreaterOrEqual(t, reported, used+3*2*T*traceBytes)
	var peak int64
	for peak = used; ; peak += 4096 {
		if _, err = prefill(peak, nil); err == nil {
			break
		}
	}
	_, err = prefill(peak, func(*Model) { t.Error("reported") })
	require.ErrorIs(t, err, kvcache.ErrFull)
}

func TestTraceFile(t *testing.T) {
	trace := func() *Trace {
		return &Trace{
			Model: "sha256:x", Precision: PrecisionF32, Policy: &lukv.Policy{Ratio: 0.5}, Span: Span{10, 14},
			Budgets:   [][]int{{1, 2}, nil, {0, 3}},
			Positions: [][][]int32{{{12}, {10, 13}}, nil, {{}, {10, 11, 12}}},
			Scores:    []lukv.Scores{{{1, 2, 3, 4}, {5, 6, 7, 8}}, nil, {{0, 0, 0, 0}, {-1, float32(math.Inf(1)), 2, 3}}},
		}
	}
	var b bytes.Buffer
	require.NoError(t, trace().Write(&b))
	f, err := safetensors.Parse("x", b.Bytes())
	require.NoError(t, err)
	got, err := ReadTrace(f)
	require.NoError(t, err)
	require.Equal(t, trace(), got)
	var again bytes.Buffer
	require.NoError(t, got.Write(&again))
	require.Equal(t, b.Bytes(), again.Bytes())
	budgets, ok := f.Tensor("budgets")
	require.True(t, ok)
	assert.Equal(t, "I32[3, 2]", budgets.String())
	assert.Equal(t, []int64{1, 2, -1, -1, 0, 3}, budgets.Int64s(nil))

	i32 := func(shape []int, numbers ...int32) tensor.Tensor {
		data, err := binary.Append(nil, binary.LittleEndian, numbers)
		require.NoError(t, err)
		return tensor.Tensor{Type: tensor.I32, Shape: shape, Data: data}
	}
	for want, damage := range map[string]func(meta map[string]string, all map[string]tensor.Tensor){
		`version "2"`:             func(meta map[string]string, _ map[string]tensor.Tensor) { meta["lukv_trace"] = "2" },
		"policy":                  func(meta map[string]string, _ map[string]tensor.Tensor) { meta["policy"] = "{" },
		`span from "-1"`:          func(meta map[string]string, _ map[string]tensor.Tensor) { meta["from"] = "-1" },
		`to "10"`:                 func(meta map[string]string, _ map[string]tensor.Tensor) { meta["to"] = "10" },
		`to "9999999999"`:         func(meta map[string]string, _ map[string]tensor.Tensor) { meta["to"] = "9999999999" },
		`to "15x"`:                func(meta map[string]string, _ map[string]tensor.Tensor) { meta["to"] = "15x" },
		"expected F32[5]":         func(meta map[string]string, _ map[string]tensor.Tensor) { meta["to"] = "15" },
		"budgets: found":          func(_ map[string]string, all map[string]tensor.Tensor) { delete(all, "budgets") },
		"I32[1000, 0]":            func(_ map[string]string, all map[string]tensor.Tensor) { all["budgets"] = i32([]int{1000, 0}) },
		"found a budget of 5":     func(_ map[string]string, all map[string]tensor.Tensor) { all["budgets"] = i32([]int{1, 1}, 5) },
		"found a budget of -1":    func(_ map[string]string, all map[string]tensor.Tensor) { all["budgets"] = i32([]int{1, 2}, 1, -1) },
		"layer 1, head 0: scores": func(_ map[string]string, all map[string]tensor.Tensor) { all["budgets"] = i32([]int{2, 1}, 1, 2) },
		"positions: found":        func(_ map[string]string, all map[string]tensor.Tensor) { delete(all, "layer.2.head.1.positions") },
		"found position 10, expect": func(_ map[string]string, all map[string]tensor.Tensor) {
			all["layer.2.head.1.positions"] = i32([]int{2}, 11, 10)
		},
		"found position 14": func(_ map[string]string, all map[string]tensor.Tensor) {
			all["layer.2.head.1.positions"] = i32([]int{2}, 11, 14)
		},
		"found position 9": func(_ map[string]string, all map[string]tensor.Tensor) {
			all["layer.2.head.1.positions"] = i32([]int{1}, 9)
		},
	} {
		meta, all := map[string]string{}, map[string]tensor.Tensor{}
		for k, v := range f.Metadata() {
			meta[k] = v
		}
		for name, x := range f.All() {
			all[name] = x
		}
		damage(meta, all)
		var list []safetensors.Named
		for name, x := range all {
			list = append(list, safetensors.Named{Name: name, Tensor: x})
		}
		var b bytes.Buffer
		require.NoError(t, safetensors.Write(&b, list, meta))
		damaged, err := safetensors.Parse("x", b.Bytes())
		require.NoError(t, err)
		_, err = ReadTrace(damaged)
		assert.ErrorContains(t, err, "read trace: x: ", want)
		assert.ErrorContains(t, err, want)
	}
}

// TestTraceEvicted: what the heads lost while decoding and what they hold make up, together,
// every token that followed and what the context's compression kept, each once, for every way
// of compressing while decoding; tracing changes nothing.
func TestTraceEvicted(t *testing.T) {
	ctx := context.Background()
	for _, shape := range []testShape{testShapes[0], testShapes[2]} {
		m := shape.open(t, WithThreads(2))
		for _, d := range []lukv.DecodeConfig{
			{Mode: "periodic", TargetSize: 30, Interval: 5},
			{Mode: "tova", TargetSize: 30},
			{Mode: "h2o", TargetSize: 30, Metric: &lukv.MetricConfig{Name: "h2o", Params: `{"window":10}`}},
			{Mode: "streaming", TargetSize: 30},
		} {
			o := SessionOptions{Compression: &lukv.Policy{Ratio: 0.1, Metric: lukv.MetricConfig{Name: "keydiff"}, Decode: d}}
			plain := newTestSession(t, m, o)
			o, traces := traced(o)
			var x Trace
			calls := 0
			o.TraceEvicted = func(layer, head int, evicted []Eviction) {
				calls++
				require.NotEmpty(t, evicted)
				x.AddEvicted(layer, head, evicted)
			}
			s := newTestSession(t, m, o)
			for _, s := range []*Session{plain, s} {
				require.NoError(t, s.Prefill(ctx, randomTokens(50, 97, 1)))
				for i := range int32(25) {
					require.NoError(t, s.Append(ctx, i))
				}
				require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 2)), "a later turn")
			}
			require.Equal(t, heldPositions(plain), heldPositions(s), d.Mode)
			require.Len(t, *traces, 1)
			require.Positive(t, calls, d.Mode)
			for at, heads := range heldPositions(s) {
				if m.cfg.Windows[at] > 0 {
					require.True(t, at >= len(x.Evicted) || x.Evicted[at] == nil)
					continue
				}
				for h, held := range heads {
					kept := (*traces)[0].Positions[at][h]
					seen := slices.Clone(held)
					last := int32(0)
					for _, e := range x.evictedOf(at, h) {
						seen = append(seen, e.Position)
						require.GreaterOrEqual(t, e.At, last, "in the order in which they went")
						require.Greater(t, e.At, e.Position)
						last = e.At
					}
					slices.Sort(seen)
					want := slices.Clone(kept)
					for p := int32(50); p < 115; p++ {
						want = append(want, p)
					}
					require.Equal(t, want, seen, "%s: layer %d, head %d", d.Mode, at, h)
				}
			}
			whole := (*traces)[0]
			whole.Evicted = x.Evicted
			var b bytes.Buffer
			require.NoError(t, whole.Write(&b))
			f, err := safetensors.Parse("x", b.Bytes())
			require.NoError(t, err)
			got, err := ReadTrace(f)
			require.NoError(t, err)
			require.Equal(t, whole.Evicted, got.Evicted)

			// Without a context that was compressed.
			alone := &Trace{Model: "x", Precision: PrecisionF32, Policy: plain.Policy(), Span: Span{0, 50}, Budgets: make([][]int, m.cfg.Layers), Evicted: x.Evicted}
			b.Reset()
			require.NoError(t, alone.Write(&b))
			f, err = safetensors.Parse("x", b.Bytes())
			require.NoError(t, err)
			got, err = ReadTrace(f)
			require.NoError(t, err)
			require.Equal(t, x.Evicted, got.Evicted)
			require.Nil(t, got.Positions[0])
		}
	}
}
