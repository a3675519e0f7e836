package model

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testctx"
	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// held is a session whose prefill is held in its progress callback until goOn is
// closed.
type held struct {
	s       *Session
	entered chan struct{}
	goOn    chan struct{}
	ended   chan error
}

func hold(t *testing.T, m *Model, o SessionOptions) *held {
	h := &held{entered: make(chan struct{}), goOn: make(chan struct{}), ended: make(chan error, 1)}
	var once sync.Once
	o.ChunkTokens = 16
	o.Progress = func(int, int) {
		once.Do(func() {
			close(h.entered)
			<-h.goOn
		})
	}
	h.s = newTestSession(t, m, o)
	go func() { h.ended <- h.s.Prefill(context.Background(), randomTokens(100, 97, 1)) }()
	<-h.entered
	return h
}

// TestBusy: any other call on a session during a call is refused and does not
// touch it.
func TestBusy(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	h := hold(t, m, SessionOptions{})
	other := newTestSession(t, m, SessionOptions{})
	require.NoError(t, other.Prefill(ctx, []int32{1}))
	_, fork := h.s.Fork()
	_, start := h.s.StartPrefill([]int32{1}, nil)
	var generate error
	for _, err := range h.s.Generate(ctx, Sampling{}) {
		generate = err
	}
	for what, err := range map[string]error{
		"prefill": h.s.Prefill(ctx, []int32{1}), "append": h.s.Append(ctx, 1), "truncate": h.s.Truncate(0),
		"fork": fork, "save": h.s.Save(t.Context(), filepath.Join(t.TempDir(), "x")), "fill": h.s.FillRandom(3, 1),
		"generate": generate, "start a prefill": start,
		"step": m.Step(ctx, []*Session{other, h.s}, []int32{1, 2}),
		"pass": m.Pass(ctx, []Part{{Session: other, Token: 1}, {Session: h.s, Token: 1}}),
	} {
		require.ErrorIs(t, err, ErrBusy, what)
	}
	require.Equal(t, 1, other.Len(), "a neighbour is not touched")
	require.NoError(t, other.Append(ctx, 5), "nor is it busy")
	require.ErrorIs(t, m.Step(ctx, []*Session{other, other}, []int32{1, 2}), ErrBusy, "twice in a step")
	close(h.goOn)
	require.NoError(t, <-h.ended)
	want := newTestSession(t, m, SessionOptions{})
	require.NoError(t, want.Prefill(ctx, randomTokens(100, 97, 1)))
	testnum.SameBits(t, "the call in progress", want.Logits(), h.s.Logits())
}

// TestLookingOn: statistics and tokens can be read from any goroutine at any time,
// and in callbacks.
func TestLookingOn(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{ChunkTokens: 8})
	s.opts.Progress = func(int, int) { require.NotZero(t, s.Stats().CacheBytes) }
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if st := s.Stats(); st.Entries > st.FullEntries || len(s.Tokens()) > 60 {
					t.Error("impossible statistics", st)
				}
			}
		})
	}
	require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 1)))
	for i := range int32(20) {
		require.NoError(t, s.Append(ctx, i))
	}
	close(stop)
	wg.Wait()
	require.Len(t, s.Tokens(), 60)
	require.NoError(t, s.Close())
	require.Zero(t, s.Stats().CacheBytes)
}

// TestCloseDuringACall: Close cancels what is in progress and waits for it.
func TestCloseDuringACall(t *testing.T) {
	m := testShape{layers: 4, hidden: 256, ffn: 512, heads: 8, kv: 4, dim: 32, weights: tensor.BF16}.open(t, WithThreads(2))
	tokens := randomTokens(4000, 97, 1)
	for name, policy := range map[string]*lukv.Policy{
		"chunks": nil,
		"layers": {Metric: lukv.MetricConfig{Name: "snapkv"}, Ratio: 0.8},
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				s := newTestSession(t, m, SessionOptions{Compression: policy, ChunkTokens: 64})
				began, ended := make(chan struct{}), make(chan error, 1)
				var once sync.Once
				s.opts.Progress = func(int, int) { once.Do(func() { close(began) }) }
				go func() { ended <- s.Prefill(context.Background(), tokens) }()
				<-began
				require.NoError(t, s.Close())
				err := <-ended
				require.ErrorIs(t, err, ErrClosed)
				require.ErrorIs(t, s.Prefill(context.Background(), tokens[:3]), ErrClosed)
				require.NoError(t, s.Close())
			}
		})
	}
	t.Run("generate", func(t *testing.T) {
		for range 5 {
			s := newTestSession(t, m, SessionOptions{})
			require.NoError(t, s.Prefill(context.Background(), tokens[:20]))
			began, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				var last error
				n := 0
				for _, err := range s.Generate(context.Background(), Sampling{IgnoreEOS: true}) {
					if n++; n == 3 {
						close(began)
					}
					last = err
				}
				ended <- last
			}()
			<-began
			require.NoError(t, s.Close())
			require.ErrorIs(t, <-ended, ErrClosed)
		}
	})
}

// TestCloseWithinACallback: Close, wherever it is called, does not wait for a callback,
// since that may be where it was called; the session is closed when the call returns.
func TestCloseWithinACallback(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	h := hold(t, m, SessionOptions{})
	require.NoError(t, h.s.Close())
	require.NotZero(t, h.s.cache.Bytes(), "the call in progress still has it")
	close(h.goOn)
	require.ErrorIs(t, <-h.ended, ErrClosed)
	require.Zero(t, h.s.cache.Bytes())

	s := newTestSession(t, m, SessionOptions{})
	err := s.PrefillEach(context.Background(), randomTokens(30, 97, 1), func(i int, _ []float32) error {
		if i == 3 {
			return s.Close()
		}
		return nil
	})
	require.ErrorIs(t, err, ErrClosed)
	require.Zero(t, s.cache.Bytes())

	// The body of a loop over tokens may use and close the session.
	g := newTestSession(t, m, SessionOptions{})
	require.NoError(t, g.Prefill(context.Background(), randomTokens(30, 97, 1)))
	n := 0
	var last error
	for _, err := range g.Generate(context.Background(), Sampling{IgnoreEOS: true}) {
		if n++; n == 3 {
			f, err := g.Fork()
			require.NoError(t, err)
			require.Equal(t, 32, f.Len())
			require.NoError(t, f.Close())
			require.NoError(t, g.Close())
		}
		last = err
	}
	require.Equal(t, 4, n)
	require.ErrorIs(t, last, ErrClosed)

	// It must not change what the generation continues from.
	g = newTestSession(t, m, SessionOptions{})
	require.NoError(t, g.Prefill(context.Background(), randomTokens(30, 97, 1)))
	for _, err := range g.Generate(context.Background(), Sampling{IgnoreEOS: true, MaxTokens: 5}) {
		if last = err; err == nil {
			require.NoError(t, g.Prefill(context.Background(), []int32{1, 2}))
		}
	}
	require.ErrorIs(t, last, ErrBusy)
}

// TestCallbacksOfANeighbour: a callback of one session may look at those that share its
// pass, and close them.
func TestCallbacksOfANeighbour(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	var look func()
	a := newTestSession(t, m, SessionOptions{Progress: func(int, int) { look() }})
	b := newTestSession(t, m, SessionOptions{})
	require.NoError(t, b.Prefill(ctx, []int32{1}))
	p, err := a.StartPrefill(randomTokens(50, 97, 1), nil)
	require.NoError(t, err)
	for i, f := range []func(){func() { b.Stats() }, func() { b.Close() }} {
		look = f
		done := make(chan error, 1)
		go func() {
			done <- m.Pass(ctx, []Part{{Session: a, Prefill: p, N: 20}, {Session: b, Token: 1}})
		}()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(20 * time.Second):
			panic("a callback waits for its own call") // and so would closing the sessions
		}
		require.Equal(t, 20*(i+1), a.Len())
	}
	require.ErrorIs(t, b.Append(ctx, 1), ErrClosed)
	require.Zero(t, b.cache.Bytes())
}

// TestCallbacksMayUseAClosingModel: while a model's Close waits for a prefill, the
// prefill's callback may use the model: small things work, computations are refused.
func TestCallbacksMayUseAClosingModel(t *testing.T) {
	cfg := testShapes[0].config()
	m, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithThreads(2))
	require.NoError(t, err)
	other := newTestSession(t, m, SessionOptions{})
	h := hold(t, m, SessionOptions{})
	closed := make(chan error, 1)
	go func() { closed <- m.Close() }()
	for closing := false; !closing; runtime.Gosched() {
		m.use.mu.Lock()
		closing = m.use.closing
		m.use.mu.Unlock()
	}
	require.ErrorIs(t, other.Prefill(context.Background(), []int32{1}), ErrClosed)
	require.NotEmpty(t, m.ID())
	_, err = m.NewSession(SessionOptions{})
	require.NoError(t, err)
	require.Empty(t, closed)
	close(h.goOn)
	require.ErrorIs(t, <-h.ended, ErrClosed, "the next chunk is a computation of its own")
	require.NoError(t, <-closed)
	require.Empty(t, m.ID())
}

// TestCallbacksThatDoNotReturn: a callback that panics or ends its goroutine
// leaves cache and session in step.
func TestCallbacksThatDoNotReturn(t *testing.T) {
	ctx := context.Background()
	compressing := &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Ratio: 0.5}
	streaming := &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 40}}
	for _, shape := range []testShape{testShapes[0], testShapes[2]} {
		for name, policy := range map[string]*lukv.Policy{"whole": nil, "compressed": compressing, "h2o": streaming} {
			m := shape.open(t, WithThreads(2))
			tokens := randomTokens(120, 97, 1)
			want := newTestSession(t, m, SessionOptions{Compression: policy, ChunkTokens: 16})
			require.NoError(t, want.Prefill(ctx, tokens))
			for _, leave := range []func(){func() { panic("callback") }, runtime.Goexit} {
				for _, at := range []int{0, 50, 119} {
					what := fmt.Sprintf("%s, %s, token %d", shape.name, name, at)
					s := newTestSession(t, m, SessionOptions{Compression: policy, ChunkTokens: 16})
					var wg sync.WaitGroup
					wg.Go(func() {
						defer func() { recover() }()
						s.PrefillEach(ctx, tokens, func(i int, _ []float32) error {
							if i == at {
								leave()
							}
							return nil
						})
					})
					wg.Wait()
					held := s.Len()
					for l := range m.cfg.Layers {
						require.Equal(t, int32(held-1), s.cache.LastPosition(l, 0), what)
					}
					require.NoError(t, s.Prefill(ctx, tokens[held:]), what)
					if policy == nil || held == 0 {
						testnum.SameBits(t, what, want.Logits(), s.Logits())
					}
				}
			}
		}
	}
}

// TestEvictionsThatDoNotReturn: if a callback panics while being told of a cut, all
// sessions of the step have taken their token, and caches and accumulated attention are
// in step.
func TestEvictionsThatDoNotReturn(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	for _, mode := range []string{"h2o", "tova"} {
		o := SessionOptions{Compression: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: mode, TargetSize: 40}}}
		told := o
		calls := 0
		told.TraceEvicted = func(int, int, []Eviction) {
			if calls++; calls == 2 {
				panic("callback")
			}
		}
		with := []*Session{newTestSession(t, m, told), newTestSession(t, m, SessionOptions{})}
		want := []*Session{newTestSession(t, m, o), newTestSession(t, m, SessionOptions{})}
		for i := range with {
			require.NoError(t, want[i].Prefill(ctx, randomTokens(60, 97, 2)))
			calls = 10
			require.NoError(t, with[i].Prefill(ctx, randomTokens(60, 97, 2)))
		}
		for i := range int32(4) {
			if calls = 10; i == 0 {
				calls = 0
			}
			step := func() { require.NoError(t, m.Step(ctx, with, []int32{i, i + 1})) }
			if i == 0 {
				require.PanicsWithValue(t, "callback", step)
			} else {
				step()
			}
			require.NoError(t, m.Step(ctx, want, []int32{i, i + 1}))
			for j := range with {
				sameSession(t, fmt.Sprint(mode, ", step ", i, ", session ", j), want[j], with[j])
			}
		}
	}
}

// TestFailedStepsChangeNothing: a step whose compression is cancelled has not
// taken its token, and what it observed on the way is forgotten: the session
// goes on as if it had not failed, for every form of compression while decoding.
func TestFailedStepsChangeNothing(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	for _, d := range []lukv.DecodeConfig{
		{Mode: "periodic", TargetSize: 40, Interval: 4, Buffer: 8, Metric: &lukv.MetricConfig{Name: "snapkv"}},
		{Mode: "periodic", TargetSize: 40, Interval: 4, Buffer: 8, Metric: &lukv.MetricConfig{Name: "expected_attention"}},
		{Mode: "tova", TargetSize: 40},
		{Mode: "h2o", TargetSize: 40},
		{Mode: "h2o", TargetSize: 40, Decay: 0.9},
		{Mode: "streaming", TargetSize: 40},
	} {
		policy := &lukv.Policy{Decode: d}
		open := func() *Session {
			s := newTestSession(t, m, SessionOptions{Compression: policy, ChunkTokens: 16})
			require.NoError(t, s.Prefill(ctx, randomTokens(60, 97, 1)))
			return s
		}
		want, got := open(), open()
		failed := 0
		for i := range int32(16) {
			require.NoError(t, want.Append(ctx, i))
			// After the forward pass only the metrics look at the context.
			for after := range 12 {
				c := testctx.DoneAfter(ctx, after)
				if err := got.Append(c, i); err == nil {
					break
				}
				failed++
				require.Equal(t, int(60+i), got.Len(), "%v", d)
			}
			if got.Len() == int(60+i) {
				require.NoError(t, got.Append(ctx, i))
			}
			testnum.SameBits(t, fmt.Sprintf("%v, step %d", d, i), want.Logits(), got.Logits())
			for l := range m.cfg.Layers {
				for h := range m.cfg.KVHeads {
					require.Equal(t, want.cache.Positions(l, h, nil), got.cache.Positions(l, h, nil), "%v, step %d", d, i)
				}
			}
		}
		require.Greater(t, failed, 16, "%v", d)
	}
}

// TestTruncateToNothing: an empty session is as good as new, whatever it was before.
func TestTruncateToNothing(t *testing.T) {
	ctx := context.Background()
	for _, shape := range testShapes {
		for name, policy := range map[string]*lukv.Policy{
			"whole": nil, "compressed": {Metric: lukv.MetricConfig{Name: "expected_attention"}, Ratio: 0.5},
			"h2o":        {Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 40}},
			"renumbered": {Metric: lukv.MetricConfig{Name: "streaming_llm", Params: `{"rerotate":true}`}, Ratio: 0.5},
		} {
			if name == "renumbered" && shape.window > 0 {
				continue
			}
			what := shape.name + ", " + name
			m := shape.open(t, WithThreads(2))
			tokens := randomTokens(150, 97, 1)
			want := newTestSession(t, m, SessionOptions{Compression: policy})
			require.NoError(t, want.Prefill(ctx, tokens))
			s := newTestSession(t, m, SessionOptions{Compression: policy})
			require.NoError(t, s.Prefill(ctx, randomTokens(200, 97, 2)))
			require.NoError(t, s.Append(ctx, 4))
			require.NoError(t, s.Truncate(0), what)
			require.Zero(t, s.cache.Bytes(), what)
			require.NoError(t, s.Prefill(ctx, tokens))
			testnum.SameBits(t, what, want.Logits(), s.Logits())
			require.Equal(t, want.Stats().Entries, s.Stats().Entries, what)
			for _, x := range []*Session{want, s} {
				require.NoError(t, x.Append(ctx, 7))
			}
			testnum.SameBits(t, what, want.Logits(), s.Logits())
		}
	}
}

// TestCancelledCompressedPrefillGoesOn: a cancelled prefill that compresses can be
// made again, also with sliding windows.
func TestCancelledCompressedPrefillGoesOn(t *testing.T) {
	ctx := context.Background()
	m := testShapes[2].open(t, WithThreads(2))
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5}
	tokens := randomTokens(200, 97, 1)
	want := newTestSession(t, m, SessionOptions{Compression: policy, ChunkTokens: 32})
	require.NoError(t, want.Prefill(ctx, tokens))
	for _, at := range []int{1, 9, 20} {
		c, cancel := context.WithCancel(ctx)
		n := 0
		s := newTestSession(t, m, SessionOptions{Compression: policy, ChunkTokens: 32})
		s.opts.Progress = func(int, int) {
			if n++; n == at {
				cancel()
			}
		}
		require.ErrorIs(t, s.Prefill(c, tokens), context.Canceled)
		require.Zero(t, s.Len())
		require.NoError(t, s.Prefill(ctx, tokens))
		testnum.SameBits(t, fmt.Sprint("cancelled at ", at), want.Logits(), s.Logits())
	}
}

// TestCancelledLaterPrefillGoesOn: the same for a document after other tokens, where
// windows have moved past what the next token reads.
func TestCancelledLaterPrefillGoesOn(t *testing.T) {
	ctx := t.Context()
	m := testShapes[2].open(t, WithThreads(2)) // sliding windows
	policy := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "snapkv"}}
	front, document := randomTokens(100, 97, 1), randomTokens(200, 97, 2)
	units := 0
	for stop := 1; ; stop++ {
		var told func()
		o := SessionOptions{ChunkTokens: 32, PageEntries: 16, Progress: func(int, int) { told() }}
		var both [2]*Session
		for i := range both {
			told = func() {}
			both[i] = newTestSession(t, m, o)
			require.NoError(t, both[i].Prefill(ctx, front))
		}
		some, cancel := context.WithCancel(ctx)
		defer cancel()
		units = 0
		told = func() {
			if units++; units == stop {
				cancel()
			}
		}
		err := both[1].PrefillCompressed(some, document, policy)
		told = func() {}
		if units < stop {
			require.NoError(t, err)
			require.Greater(t, stop, 20)
			break
		}
		require.ErrorIs(t, err, context.Canceled)
		sameSession(t, fmt.Sprint("cancelled in unit ", stop), both[0], both[1])
		for _, s := range both {
			require.NoError(t, s.PrefillCompressed(ctx, document, policy))
		}
		sameSession(t, fmt.Sprint("goes on after unit ", stop), both[0], both[1])
	}
}

// TestCancelledAtTheLastUnit: the logits of a session stay those of its last token.
func TestCancelledAtTheLastUnit(t *testing.T) {
	m := testShapes[2].open(t, WithThreads(2)) // nothing looks at the context in the last layer, which has a window
	ctx, cancel := context.WithCancel(t.Context())
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, randomTokens(30, 97, 1)))
	before := append([]float32(nil), s.Logits()...)
	s.opts.Progress = func(done, total int) {
		if done == total {
			cancel()
		}
	}
	policy := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}
	require.ErrorIs(t, s.PrefillCompressed(ctx, randomTokens(40, 97, 2), policy), context.Canceled)
	require.Equal(t, 30, s.Len())
	testnum.SameBits(t, "logits", before, s.Logits())
}

// TestCancelledBehindTheLastLogits: if the context is done while the last logits are handed
// out, the prefill fails and can go on, chunk by chunk and layer by layer.
func TestCancelledBehindTheLastLogits(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	tokens := randomTokens(50, 97, 1)
	for name, policy := range map[string]*lukv.Policy{"chunks": nil, "layers": {Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5}} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := newTestSession(t, m, SessionOptions{Compression: policy, ChunkTokens: 16})
		err := s.PrefillEach(ctx, tokens, func(i int, _ []float32) error {
			if i == len(tokens)-1 {
				cancel()
			}
			return nil
		})
		require.ErrorIs(t, err, context.Canceled, name)
		require.NoError(t, s.Prefill(context.Background(), tokens[s.Len():]), name)
	}
}
