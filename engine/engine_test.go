package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/sampling"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" { // checking every change would be measured, too
		os.Setenv("LUKV_CHECK", "1")
	}
	verifySteps = verify
	os.Exit(m.Run())
}

// within returns a context for a test's requests, which end in minutes if the engine hangs.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 3*time.Minute, errors.New("no answer in three minutes"))
	t.Cleanup(cancel)
	return ctx
}

func openModel(t testing.TB, opts ...model.Option) *model.Model {
	m, err := builtin.Open(context.Background(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func newEngine(t testing.TB, m *model.Model, o Options) *Engine {
	e, err := New(m, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		// An engine that cannot even be closed ends the tests, with all stacks.
		hung := time.AfterFunc(3*time.Minute, func() { panic(t.Name() + ": the engine does not close") })
		defer hung.Stop()
		e.Close()
	})
	return e
}

// occupy submits a short request that holds the engine's loop until release is called: what
// is submitted before that is there together.
func occupy(t testing.TB, e *Engine) (s *Stream, release func()) {
	reached, released := make(chan struct{}), make(chan struct{})
	s, err := e.Submit(within(t), Request{
		Prompt: []int32{1, 2, 3}, Sampling: model.Sampling{MaxTokens: 1},
		Inspect: func(*model.Session) { close(reached); <-released },
	})
	require.NoError(t, err)
	<-reached
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // a test that fails must not wait for the engine for ever
	return s, release
}

// prompts returns the tokens of n sample prompts of the embedded model, and how many
// of them are context.
func prompts(t testing.TB, m *model.Model, n int) (tokens [][]int32, contexts []int) {
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	for _, s := range builtin.Samples() {
		head := tok.Encode("<s><|user|>"+s.Context, tokenizer.EncodeOptions{})
		if len(tokens) == n {
			break
		}
		if len(head) > 350 {
			continue
		}
		tail := tok.Encode("\n\n"+s.Question+"<|assistant|>"+s.AnswerPrefix, tokenizer.EncodeOptions{})
		tokens = append(tokens, append(head, tail...))
		contexts = append(contexts, len(head))
	}
	require.Len(t, tokens, n)
	return tokens, contexts
}

// outcome is the result of a request, choice by choice.
type outcome struct {
	ids    [][]int32
	text   []string
	probs  [][]float64
	finish []model.FinishReason
	echo   []int32
	eprobs []float64
}

func newOutcome(n int) *outcome {
	return &outcome{ids: make([][]int32, n), text: make([]string, n), probs: make([][]float64, n), finish: make([]model.FinishReason, n)}
}

func collect(t testing.TB, s *Stream, choices int) *outcome {
	out := newOutcome(choices)
	for ev, err := range s.Events() {
		require.NoError(t, err)
		switch {
		case ev.Echo:
			out.echo, out.eprobs = append(out.echo, ev.Token.ID), append(out.eprobs, ev.Token.LogProb)
			continue
		case ev.HasToken:
			out.ids[ev.Choice] = append(out.ids[ev.Choice], ev.Token.ID)
			out.probs[ev.Choice] = append(out.probs[ev.Choice], ev.Token.LogProb)
		}
		out.text[ev.Choice] += ev.Text
		require.Equal(t, model.FinishNone, out.finish[ev.Choice], "an event behind the end")
		out.finish[ev.Choice] = ev.Finish
	}
	return out
}

// alone answers a request with nothing but a session and a sampler.
func alone(t testing.TB, m *model.Model, r Request) *outcome {
	ctx := context.Background()
	n := max(1, r.Choices)
	out := newOutcome(n)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	for i := range n {
		o := model.SessionOptions{Compression: r.Policy}
		if r.Protected > 0 {
			o.Compression = nil
		}
		s, err := m.NewSession(o)
		require.NoError(t, err)
		if r.Protected > 0 {
			require.NoError(t, s.Prefill(ctx, r.Prompt[:r.Protected]))
			require.NoError(t, s.PrefillCompressed(ctx, r.Prompt[r.Protected:r.Context], r.Policy))
		} else {
			require.NoError(t, s.Prefill(ctx, r.Prompt[:r.Context]))
		}
		require.NoError(t, s.Prefill(ctx, r.Prompt[r.Context:]))
		sampler, err := m.NewSampler(r.Sampling, i)
		require.NoError(t, err)
		sampler.Start(r.Prompt)
		stops, err := dialog.NewStops(r.Stop)
		require.NoError(t, err)
		a := dialog.NewAnswer(tok, stops)
		limit := r.Sampling.MaxTokens
		if limit == 0 {
			limit = m.Config().MaxPositions - len(r.Prompt)
		}
		for out.finish[i] == model.FinishNone {
			id, err := sampler.Next(s.Logits(), nil)
			require.NoError(t, err)
			sampler.Accept(id)
			ends := m.Ends(id, &r.Sampling)
			if !ends || r.Sampling.YieldEnd {
				out.ids[i] = append(out.ids[i], id)
				out.probs[i] = append(out.probs[i], sampler.Describe(s.Logits(), id).LogProb)
			}
			stopped := false
			if !ends {
				_, stopped = a.Token(id)
			}
			switch {
			case ends || stopped:
				out.finish[i] = model.FinishStop
			case len(out.ids[i]) == limit:
				out.finish[i] = model.FinishLength
			default:
				require.NoError(t, s.Append(ctx, id))
			}
		}
		a.End()
		out.text[i] = a.Text()
		require.NoError(t, s.Close())
	}
	return out
}

// mixedRequests returns n requests of many kinds.
func mixedRequests(t testing.TB, m *model.Model, n int) []Request {
	policies := []*lukv.Policy{
		nil,
		{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "keydiff"}},
		{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}},
		{Ratio: 0, Metric: lukv.MetricConfig{Name: "keydiff"}},
		{BudgetTokens: 60, Metric: lukv.MetricConfig{Name: "expected_attention"}},
		{Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 64, Interval: 8}},
	}
	tokens, contexts := prompts(t, m, 6)
	var out []Request
	rng := rand.New(rand.NewPCG(uint64(n), 8))
	for i := range n {
		at := rng.IntN(len(tokens))
		r := Request{
			ID: fmt.Sprintf("r%d", i), Client: fmt.Sprint(i % 3), Prompt: tokens[at],
			Sampling: model.Sampling{Temperature: float64(rng.IntN(2)), Seed: uint64(i), MaxTokens: 4 + rng.IntN(30), IgnoreEOS: rng.IntN(2) == 0, LogProbs: true},
		}
		if p := policies[rng.IntN(len(policies))]; p != nil {
			r.Policy, r.Context = p, contexts[at]
		}
		if r.Policy != nil && !r.Policy.Decode.Enabled() && i%2 == 0 {
			r.Protected = []int{3, 20, 50}[i/2%3]
		}
		if i%7 == 3 {
			r.Choices = 3
		}
		if i%11 == 4 {
			r.Sampling.MaxTokens, r.Sampling.IgnoreEOS, r.Sampling.Temperature = 0, false, 0
		}
		if i%5 == 2 {
			r.Stop = []string{".", "e "}
		}
		out = append(out, r)
	}
	return out
}

// TestAnswersDoNotDependOnNeighbours runs many requests together, with room for only a few
// of them, while others come and go, and compares each with its run alone.
func TestAnswersDoNotDependOnNeighbours(t *testing.T) {
	for _, cpu := range kernels.Variants() {
		n := 6
		switch {
		case cpu == kernels.Detect():
			n = 32
		case testing.Short():
			continue
		case cpu == kernels.CPU{}:
			n = 3 // slow
		}
		t.Run(cpu.String(), func(t *testing.T) {
			m := openModel(t, model.WithCPU(cpu), model.WithThreads(2))
			requests := mixedRequests(t, m, n)
			want := make([]*outcome, n)
			for i, r := range requests {
				want[i] = alone(t, m, r)
			}
			settings := []Options{{MaxBytes: 7 << 20, MaxRunning: 6, Lookup: true}, {}}
			for _, o := range settings[:min(n, 4)/2] {
				e := newEngine(t, m, o)
				var wg sync.WaitGroup
				for i, r := range requests {
					wg.Go(func() {
						time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
						s, err := e.Submit(within(t), r)
						if err != nil {
							t.Errorf("%s: %v", r.ID, err)
							return
						}
						got := collect(t, s, max(1, r.Choices))
						if !equal(got, want[i]) {
							t.Errorf("%s: found %v, expected %v", r.ID, got, want[i])
						}
					})
					if i%3 == 0 { // a client that goes away
						wg.Go(func() {
							ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(200))*time.Millisecond)
							defer cancel()
							other := requests[(i+5)%n]
							other.ID = "gone"
							if s, err := e.Submit(ctx, other); err == nil {
								for range s.Events() {
								}
							}
						})
					}
				}
				wg.Wait()
				require.NoError(t, e.Close())
				st := e.Stats()
				require.Zero(t, st.ReservedBytes)
				require.Zero(t, st.Running+st.Waiting)
				require.GreaterOrEqual(t, st.Completed, int64(n)) // some of those that go away are answered first
				t.Logf("%+v", st)
			}
		})
	}
}

func equal(a, b *outcome) bool {
	return fmt.Sprintf("%x", a.probs) == fmt.Sprintf("%x", b.probs) && fmt.Sprint(a.ids, a.text, a.finish) == fmt.Sprint(b.ids, b.text, b.finish)
}

// TestPreemption: answers without a bound grow until there is no room; the last of them
// are recomputed.
func TestPreemption(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 3)
	const prompt, limit = 250, 850 // the answers grow twice
	var requests []Request
	for i := range 3 {
		long := slices.Concat(tokens[i], tokens[0], tokens[1])
		requests = append(requests, Request{Prompt: long[:prompt+i], Sampling: model.Sampling{IgnoreEOS: true, Temperature: 1, Seed: uint64(i), LogProbs: true}})
	}
	need, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: limit})
	require.NoError(t, err)
	e := newEngine(t, m, Options{MaxBytes: 13 * need.Peak / 5, MaxTokens: limit})
	var streams []*Stream
	for _, r := range requests {
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		streams = append(streams, s)
	}
	var wg sync.WaitGroup
	for i, s := range streams {
		wg.Go(func() {
			got := collect(t, s, 1)
			r := requests[i]
			r.Sampling.MaxTokens = limit - len(r.Prompt)
			if want := alone(t, m, r); !equal(got, want) {
				t.Errorf("request %d differs from its run alone", i)
			}
			if got.finish[0] != model.FinishLength {
				t.Errorf("request %d: %s", i, got.finish[0])
			}
		})
	}
	wg.Wait()
	require.Positive(t, e.Stats().Preempted)
}

// TestPreemptedWithItsPromptCached: a preempted answer continues when its whole prompt is
// kept.
func TestPreemptedWithItsPromptCached(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	e := newEngine(t, m, Options{MaxBytes: 64 << 20})
	r := Request{Prompt: tokens[0], Sampling: model.Sampling{MaxTokens: 30, IgnoreEOS: true, LogProbs: true}}
	want := alone(t, m, r)
	var found atomic.Int64
	r.Mask = func(_ context.Context, _ int, answer []int32) ([]uint64, error) {
		e.post(func() { // in the loop, whose the requests are
			if len(e.running) > 0 {
				found.Store(int64(e.running[0].cached))
			}
		})
		if len(answer)%7 == 6 {
			e.post(func() {
				preemptLast(e)
				select {
				case <-e.wake: // from post; growing requests do not signal
				default:
				}
			})
		}
		return nil, nil
	}
	s, err := e.Submit(within(t), r)
	require.NoError(t, err)
	got := collect(t, s, 1)
	require.True(t, equal(got, want), "found %v, expected %v", got, want)
	require.Positive(t, e.Stats().Preempted)
	require.EqualValues(t, len(tokens[0]), found.Load())
	require.Zero(t, s.Usage().Cached, "no earlier request kept it")
	require.Zero(t, s.Cached())
}

func TestPrefixCache(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 2)
	e := newEngine(t, m, Options{MaxBytes: 64 << 20})
	ask := func(r Request) (*outcome, Usage) {
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		out := collect(t, s, 1)
		require.True(t, equal(out, alone(t, m, r)), "%v", r.Prompt[:3])
		return out, s.Usage()
	}
	o := model.Sampling{MaxTokens: 8, LogProbs: true, IgnoreEOS: true}
	plain := Request{Prompt: tokens[0], Sampling: o}
	_, u := ask(plain)
	require.Equal(t, Usage{Prompt: len(tokens[0]), Generated: 8}, Usage{Prompt: u.Prompt, Cached: u.Cached, Generated: u.Generated})
	_, u = ask(plain)
	require.Equal(t, len(tokens[0]), u.Cached, "with its logits")
	// A prompt that diverges from the kept one in the middle, and one that ends inside it.
	branch := plain
	branch.Prompt = append(append([]int32{}, tokens[0][:200]...), tokens[1][:50]...)
	_, u = ask(branch)
	require.Equal(t, 200, u.Cached)
	short := plain
	short.Prompt = tokens[0][:150]
	_, u = ask(short)
	require.Equal(t, 149, u.Cached)
	// Another salt shares nothing.
	salted := plain
	salted.Salt = "x"
	_, u = ask(salted)
	require.Zero(t, u.Cached)

	// A compressed context serves only itself.
	comp := Request{Prompt: tokens[0], Context: contexts[0], Sampling: o, Policy: &lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "keydiff"}}}
	_, u = ask(comp)
	require.Zero(t, u.Cached)
	other := comp
	other.Prompt = append(append([]int32{}, tokens[0][:contexts[0]]...), tokens[1][contexts[1]:]...)
	_, u = ask(other)
	require.GreaterOrEqual(t, u.Cached, contexts[0])
	longer := comp
	longer.Context++
	_, u = ask(longer)
	require.Zero(t, u.Cached)
	weaker := comp
	weaker.Policy = &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}
	_, u = ask(weaker)
	require.Zero(t, u.Cached)

	// Where positions are renumbered it serves prompts that continue all of it, but not
	// one that shares as many tokens as there are positions.
	renumbered := Request{
		Prompt: slices.Concat(tokens[0][:100], tokens[1][:80]), Context: 100, Sampling: o,
		Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "streaming_llm", Params: `{"rerotate":true}`}},
	}
	_, u = ask(renumbered)
	require.Zero(t, u.Cached)
	on := renumbered
	on.Prompt = slices.Concat(renumbered.Prompt[:130], tokens[0][100:120])
	_, u = ask(on)
	require.Zero(t, u.Cached)
	on.Prompt = slices.Concat(renumbered.Prompt, tokens[0][100:120])
	_, u = ask(on)
	require.Equal(t, 180, u.Cached)

	// Nothing is kept where there is no room for it.
	st := e.Stats()
	require.Positive(t, st.PrefixCacheBytes)
	require.LessOrEqual(t, st.PrefixCacheBytes+st.ReservedBytes, st.MaxBytes)
	none := newEngine(t, m, Options{MaxBytes: 64 << 20, PrefixCacheBytes: -1})
	for range 2 {
		s, err := none.Submit(within(t), plain)
		require.NoError(t, err)
		collect(t, s, 1)
		require.Zero(t, s.Usage().Cached)
	}
}

// TestNeighbourOfAFailure: a request that makes a pass fail does not affect those that
// shared it, whether they are in the middle of their prompts or about to draw their first
// token.
func TestNeighbourOfAFailure(t *testing.T) {
	cfg := &model.Config{
		Arch: "llama", Layers: 2, Hidden: 32, Intermediate: 48, Heads: 2, KVHeads: 1, HeadDim: 16, Vocab: 97, MaxPositions: 2000,
		NormEps: 1e-5, Rope: arch.RopeConfig{Theta: 10000}, Windows: make([]int, 2), Type: tensor.F32,
	}
	w, err := weights.Random(t.Context(), cfg, tensor.F32, 7)
	require.NoError(t, err)
	m, err := model.New(cfg, w, model.WithThreads(1))
	require.NoError(t, err)
	defer m.Close()
	const bad = 96
	for i := range cfg.Hidden { // the embedding of one token is damaged
		binary.LittleEndian.PutUint32(w.Embed.Data[4*(bad*cfg.Hidden+i):], math.Float32bits(float32(math.NaN())))
	}
	e := newEngine(t, m, Options{PrefixCacheBytes: 1 << 20, MaxBytes: 64 << 20})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	submit := func(r Request) *Stream {
		r.Sampling = model.Sampling{MaxTokens: 3, IgnoreEOS: true}
		s, err := e.Submit(ctx, r)
		require.NoError(t, err)
		return s
	}
	end := func(s *Stream) error {
		for _, err := range s.Events() {
			if err != nil {
				return err
			}
		}
		return nil
	}
	prompt := func(n int) []int32 {
		p := make([]int32, n)
		for i := range p {
			p[i] = int32(i * 7 % bad)
		}
		return p
	}
	require.NoError(t, end(submit(Request{Prompt: prompt(40)})))
	first, release := occupy(t, e)
	damaged := submit(Request{Prompt: []int32{5, bad}})
	all := []*Stream{submit(Request{Prompt: prompt(40)}), submit(Request{Prompt: prompt(300)[1:]})}
	release()
	require.NoError(t, end(first))
	require.ErrorIs(t, end(damaged), model.ErrNotFinite)
	for _, s := range all {
		require.NoError(t, end(s))
		require.Equal(t, 3, s.Usage().Generated)
	}
	require.Equal(t, 40, all[0].Usage().Cached)
}

// TestPromptOnlyTakesNoRoomForAnswers: whatever it says about these, a request without any
// needs what its prompt does.
func TestPromptOnlyTakesNoRoomForAnswers(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	need, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: len(tokens[0])})
	require.NoError(t, err)
	e := newEngine(t, m, Options{MaxBytes: need.Peak, MaxRunning: 2})
	for _, n := range []int{0, 200} {
		r := Request{Prompt: tokens[0], PromptOnly: true, Echo: true, Choices: 3, Sampling: model.Sampling{MaxTokens: n}}
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		require.Equal(t, tokens[0], collect(t, s, 3).echo)
		require.Equal(t, need.Peak, e.Stats().PeakBytes)
	}
}

// TestPromptThatFillsTheContext: no token follows it, as in Session.Generate.
func TestPromptThatFillsTheContext(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	e := newEngine(t, m, Options{MaxTokens: len(tokens[0])})
	for range 2 {
		s, err := e.Submit(within(t), Request{Prompt: tokens[0], Choices: 2})
		require.NoError(t, err)
		out := collect(t, s, 2)
		require.Equal(t, []model.FinishReason{model.FinishLength, model.FinishLength}, out.finish)
		require.Empty(t, slices.Concat(out.ids...))
		require.Zero(t, s.Usage().Generated)
	}
	require.EqualValues(t, 2, e.Stats().ReachedLength)
}

// TestChoicesThatCompressWhileDecoding: each answer cuts the prompt's entries separately,
// in its own pages, and the reservation covers them.
func TestChoicesThatCompressWhileDecoding(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 1)
	for _, d := range []lukv.DecodeConfig{
		{Mode: "h2o", TargetSize: len(tokens[0]) - 20},
		{Mode: "periodic", TargetSize: len(tokens[0]) - 20, Interval: 2, Metric: &lukv.MetricConfig{Name: "keydiff"}},
	} {
		var most atomic.Int64
		verifyWith(t, func(e *Engine) {
			verify(e)
			for _, j := range e.running {
				if s := j.choices[0].session; s != nil {
					most.Store(max(most.Load(), s.Cache().PoolStats().Bytes))
				}
			}
		})
		e := newEngine(t, m, Options{MaxBytes: 256 << 20, PageEntries: 16})
		r := Request{
			Prompt: tokens[0], Context: contexts[0], Policy: &lukv.Policy{Decode: d}, Choices: 6,
			Sampling: model.Sampling{MaxTokens: 20, Temperature: 1, IgnoreEOS: true},
		}
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		collect(t, s, 6)
		require.NoError(t, e.Close())
		require.Positive(t, most.Load())
		require.LessOrEqual(t, most.Load(), e.Stats().PeakBytes, "%v", d)
	}
}

// TestProtected: a system prompt stays whole in every head, and the document after it is
// compressed; prompts with other documents, or none, share the system prompt that was
// read.
func TestProtected(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 3)
	system := tokens[2][:60]
	policy := &lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "snapkv"}}
	request := func(i int) Request {
		return Request{
			Prompt: slices.Concat(system, tokens[i]), Policy: policy, Protected: len(system), Context: len(system) + contexts[i],
			Sampling: model.Sampling{MaxTokens: 8, LogProbs: true, IgnoreEOS: true},
		}
	}
	dir := t.TempDir()
	e := newEngine(t, m, Options{MaxBytes: 64 << 20, Store: dir})
	cached := func(r Request) int {
		t.Helper()
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		require.True(t, equal(collect(t, s, 1), alone(t, m, r)))
		return s.Usage().Cached
	}
	first := request(0)
	first.Inspect = func(s *model.Session) {
		st := s.Stats()
		require.InDelta(t, 0.8*float64(contexts[0])/float64(len(first.Prompt)), st.Ratio, 0.01)
		for at := range m.Config().Layers {
			for h := range m.Config().KVHeads {
				require.EqualValues(t, len(system)-1, s.Cache().Positions(at, h, nil)[len(system)-1])
			}
		}
	}
	require.Zero(t, cached(first))
	require.Equal(t, len(first.Prompt), cached(first))
	require.Equal(t, len(system), cached(request(1)), "the system prompt of another document")
	plain := request(1)
	plain.Policy, plain.Context, plain.Protected = nil, 0, 0
	require.Equal(t, len(system), cached(plain), "and of none")
	shorter := request(0)
	shorter.Protected -= 10
	require.Equal(t, len(system)-10, cached(shorter), "what is protected decides what is kept")
	whole := request(0)
	whole.Protected = 0
	require.Zero(t, cached(whole))
	salted := request(1)
	salted.Salt = "x"
	require.Zero(t, cached(salted))

	// The same from disk; the document can be forgotten by itself.
	require.NoError(t, e.Close())
	e = newEngine(t, m, Options{MaxBytes: 64 << 20, Store: dir})
	require.Equal(t, len(first.Prompt), cached(first))
	require.NoError(t, e.Close())
	e = newEngine(t, m, Options{MaxBytes: 64 << 20, Store: dir})
	document := first
	document.Prompt = first.Prompt[:first.Context]
	require.NoError(t, e.Forget(document))
	other := request(0)
	other.Prompt = slices.Concat(system, tokens[2])
	require.GreaterOrEqual(t, cached(other), len(system))
	require.Equal(t, len(system), cached(first))

	// Admission accounts for what is protected: the bytes that CacheEstimate returns are
	// enough.
	need, err := m.CacheEstimate(model.SessionOptions{Compression: policy}, model.Lengths{
		Before: first.Protected, Context: first.Context - first.Protected, Rest: len(first.Prompt) - first.Context + 8,
	})
	require.NoError(t, err)
	e = newEngine(t, m, Options{MaxBytes: need.Peak})
	cached(request(0))
	require.Equal(t, need.Peak, e.Stats().PeakBytes)
	small := newEngine(t, m, Options{MaxBytes: need.Peak - 1})
	_, err = small.Submit(within(t), first)
	var large *TooLargeError
	require.ErrorAs(t, err, &large)
	require.Equal(t, need.Peak, large.Needed)
	require.Greater(t, large.Ratio, 0.8)
}

// TestProbeLossReserves: the survivors of a fork that is compressed while the request runs
// have room beside the cache that was read.
func TestProbeLossReserves(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	r := Request{Prompt: tokens[0], Sampling: model.Sampling{MaxTokens: 1}}
	need, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: len(r.Prompt) + 1})
	require.NoError(t, err)
	e := newEngine(t, m, Options{MaxBytes: 2*need.Peak - 1})
	_, err = e.Submit(within(t), r)
	require.NoError(t, err)
	r.ProbeLoss = true
	_, err = e.Submit(within(t), r)
	var large *TooLargeError
	require.ErrorAs(t, err, &large)
	require.Equal(t, 2*need.Peak, large.Needed)
}

func TestEcho(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 1)
	e := newEngine(t, m, Options{MaxBytes: 64 << 20})
	for _, policy := range []*lukv.Policy{nil, {Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}} {
		for range 2 { // the second time, something is kept
			r := Request{Prompt: tokens[0], Policy: policy, Echo: true,
				Sampling: model.Sampling{MaxTokens: 3, IgnoreEOS: true, LogProbs: true, TopLogProbs: 2}}
			if policy != nil {
				r.Context = contexts[0]
			}
			s, err := e.Submit(within(t), r)
			require.NoError(t, err)
			got := collect(t, s, 1)
			require.Equal(t, r.Prompt[r.Context:], got.echo)
			require.True(t, math.IsNaN(got.eprobs[0]))
			// The same from a session.
			plain, err := m.NewSession(model.SessionOptions{Compression: policy})
			require.NoError(t, err)
			require.NoError(t, plain.Prefill(context.Background(), r.Prompt[:r.Context]))
			rest := r.Prompt[r.Context:]
			require.NoError(t, plain.PrefillEach(context.Background(), rest, func(i int, logits []float32) error {
				if i+1 < len(rest) {
					require.Equal(t, sampling.LogProb(logits, rest[i+1]), got.eprobs[i+1], "token %d", i+1)
				}
				return nil
			}))
			require.NoError(t, plain.Close())
			require.True(t, equal(got, alone(t, m, r)))
		}
	}
	s, err := e.Submit(within(t), Request{Prompt: tokens[0], PromptOnly: true, Echo: true, Sampling: model.Sampling{LogProbs: true}})
	require.NoError(t, err)
	got := collect(t, s, 1)
	require.Len(t, got.echo, len(tokens[0]))
	require.Empty(t, got.ids[0])
	require.Positive(t, s.Cache().Entries)
}

func TestEndsAndMasks(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	e := newEngine(t, m, Options{})
	r := Request{Prompt: tokens[0], Sampling: model.Sampling{YieldEnd: true, LogProbs: true}}
	s, err := e.Submit(within(t), r)
	require.NoError(t, err)
	got := collect(t, s, 1)
	ids := got.ids[0]
	require.True(t, m.Ends(ids[len(ids)-1], &r.Sampling))
	require.True(t, equal(got, alone(t, m, r)))
	require.Equal(t, len(ids), s.Usage().Generated)
	require.Equal(t, model.FinishStop, got.finish[0])

	mask := make([]uint64, (m.Config().Vocab+63)/64)
	mask[1], mask[2] = 1<<3, 1<<5
	r.Sampling = model.Sampling{MaxTokens: 6, Temperature: 1}
	r.Mask = func(_ context.Context, choice int, answer []int32) ([]uint64, error) {
		if len(answer) == 4 {
			return nil, errors.New("enough")
		}
		return mask, nil
	}
	s, err = e.Submit(within(t), r)
	require.NoError(t, err)
	var last error
	n := 0
	for ev, err := range s.Events() {
		if last = err; err == nil {
			require.Contains(t, []int32{67, 133}, ev.Token.ID)
			n++
		}
	}
	require.Equal(t, 4, n)
	require.ErrorContains(t, last, "enough")

	r.Choices = 2
	r.Mask = func(_ context.Context, choice int, answer []int32) ([]uint64, error) {
		if len(answer) == 2+choice {
			return nil, io.EOF
		}
		return mask, nil
	}
	s, err = e.Submit(within(t), r)
	require.NoError(t, err)
	got = collect(t, s, 2)
	for i := range 2 {
		require.Len(t, got.ids[i], 2+i, "the mask ends the answer")
		require.Equal(t, model.FinishStop, got.finish[i])
	}
	require.ErrorContains(t, last, "request req-")
}

func TestSubmitRefuses(t *testing.T) {
	ctx := context.Background()
	m := openModel(t)
	tokens, contexts := prompts(t, m, 1)
	whole, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: len(tokens[0]) + 100})
	require.NoError(t, err)
	e := newEngine(t, m, Options{MaxBytes: whole.Peak * 3 / 4})
	policy := &lukv.Policy{Ratio: 0.1, Metric: lukv.MetricConfig{Name: "keydiff"}}
	for want, r := range map[string]Request{
		"prompt is empty":          {},
		"expected 0 to 2175":       {Prompt: []int32{1, 2176}},
		"129 choices":              {Prompt: tokens[0], Choices: 129},
		"without a policy":         {Prompt: tokens[0], Context: 3},
		"a context of 0 tokens":    {Prompt: tokens[0], Policy: policy},
		"-1 protected":             {Prompt: tokens[0], Context: 3, Protected: -1, Policy: policy},
		"3 protected":              {Prompt: tokens[0], Context: 3, Protected: 3, Policy: policy},
		"1 protected":              {Prompt: tokens[0], Protected: 1},
		"compresses while":         {Prompt: tokens[0], Context: 9, Protected: 3, Policy: &lukv.Policy{Ratio: 0.5, Decode: lukv.DecodeConfig{Mode: "tova"}}},
		"renumbers positions":      {Prompt: tokens[0], Context: 9, Protected: 3, Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "streaming_llm", Params: `{"rerotate":true}`}}},
		"queries of all":           {Prompt: tokens[0], Context: 9, Protected: 3, Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "compactor"}}},
		"stop text":                {Prompt: tokens[0], Stop: []string{""}},
		"context full":             {Prompt: tokens[0], Sampling: model.Sampling{MaxTokens: 2000}},
		"2176, expected 0 to 2175": {Prompt: tokens[0], Sampling: model.Sampling{LogitBias: map[int32]float64{2176: 1}}},
		"temperature":              {Prompt: tokens[0], Sampling: model.Sampling{Temperature: -1}},
		"metric \"no\"":            {Prompt: tokens[0], Context: 5, Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "no"}}},
	} {
		_, err := e.Submit(ctx, r)
		require.ErrorContains(t, err, want)
	}
	var large *TooLargeError
	_, err = e.Submit(ctx, Request{Prompt: tokens[0], Sampling: model.Sampling{MaxTokens: 100}})
	require.ErrorAs(t, err, &large)
	require.Zero(t, large.Ratio)
	_, err = e.Submit(ctx, Request{Prompt: tokens[0], Policy: policy, Context: contexts[0], Sampling: model.Sampling{MaxTokens: 100}})
	require.ErrorAs(t, err, &large)
	require.Greater(t, large.Needed, large.Limit)
	require.Greater(t, large.Ratio, 0.1)
	// The ratio in the error is enough, and the one below it is not.
	fits := *policy
	fits.Ratio = large.Ratio
	s, err := e.Submit(ctx, Request{Prompt: tokens[0], Policy: &fits, Context: contexts[0], Sampling: model.Sampling{MaxTokens: 100}})
	require.NoError(t, err)
	s.Close()
	fits.Ratio -= 0.01
	_, err = e.Submit(ctx, Request{Prompt: tokens[0], Policy: &fits, Context: contexts[0], Sampling: model.Sampling{MaxTokens: 100}})
	require.ErrorAs(t, err, &large)

	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err = e.Submit(gone, Request{Prompt: tokens[0]})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, e.Close())
	_, err = e.Submit(ctx, Request{Prompt: tokens[0][:20], Sampling: model.Sampling{MaxTokens: 1}})
	require.ErrorIs(t, err, ErrClosed)
}

func TestQueueIsBoundedAndFair(t *testing.T) {
	var q queue
	add := func(client string, n int) *job {
		j := &job{req: Request{Client: client, Prompt: make([]int32, n)}}
		q.push(j)
		return j
	}
	a1, a2, a3 := add("a", 1), add("a", 2), add("a", 3)
	b1, c1 := add("b", 4), add("c", 5)
	require.Equal(t, []int{5, 15}, []int{q.n, q.tokens})
	q.remove(c1)
	require.Equal(t, []int{4, 10}, []int{q.n, q.tokens})
	var order []*job
	take := func() { order = append(order, q.front()); q.pop() }
	take()
	take()
	q.pushFront(b1)
	for q.front() != nil {
		take()
	}
	require.Equal(t, []*job{a1, b1, b1, a2, a3}, order)
	require.Equal(t, []int{0, 0, 0}, []int{q.n, q.tokens, len(q.by)})

	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	e := newEngine(t, m, Options{MaxRunning: 1, MaxQueue: 2})
	long := Request{Prompt: tokens[0], Sampling: model.Sampling{IgnoreEOS: true}}
	s, err := e.Submit(within(t), long)
	require.NoError(t, err)
	_, err = s.Next(context.Background()) // it runs
	require.NoError(t, err)
	for range 2 {
		_, err := e.Submit(within(t), long)
		require.NoError(t, err)
	}
	_, err = e.Submit(within(t), long)
	require.ErrorIs(t, err, ErrQueueFull)
	require.EqualValues(t, 2, e.Stats().Waiting)
}

// TestSlowReader: a client that does not read holds up nobody else, and later continues
// where it stopped.
func TestSlowReader(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	e := newEngine(t, m, Options{})
	r := Request{Prompt: tokens[0], Choices: 2, Sampling: model.Sampling{IgnoreEOS: true, MaxTokens: 200, Temperature: 1}}
	slow, err := e.Submit(within(t), r)
	require.NoError(t, err)
	for range 3 {
		quick := r
		quick.Choices = 1
		s, err := e.Submit(within(t), quick)
		require.NoError(t, err)
		require.Len(t, collect(t, s, 1).ids[0], 200)
	}
	require.Less(t, len(slow.events), cap(slow.events))
	require.True(t, equal(collect(t, slow, 2), alone(t, m, r)))
}

func TestDrain(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	e := newEngine(t, m, Options{MaxRunning: 1})
	var streams []*Stream
	for range 3 {
		s, err := e.Submit(within(t), Request{Prompt: tokens[0], Sampling: model.Sampling{MaxTokens: 5, IgnoreEOS: true}})
		require.NoError(t, err)
		streams = append(streams, s)
	}
	require.NoError(t, e.Drain(context.Background()))
	for _, s := range streams {
		require.Len(t, collect(t, s, 1).ids[0], 5)
	}
	e = newEngine(t, m, Options{})
	s, err := e.Submit(within(t), Request{Prompt: tokens[0], Sampling: model.Sampling{IgnoreEOS: true}})
	require.NoError(t, err)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, e.Drain(over), context.Canceled)
	var last error
	for _, last = range s.Events() {
	}
	require.ErrorIs(t, last, ErrClosed)
}

// TestCancelledForACause: a request whose context gives its own cause counts as
// cancelled, not failed.
func TestCancelledForACause(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	e := newEngine(t, m, Options{})
	ctx, cancel := context.WithCancelCause(context.Background())
	s, err := e.Submit(ctx, Request{Prompt: tokens[0], Sampling: model.Sampling{IgnoreEOS: true}})
	require.NoError(t, err)
	gone := errors.New("the client is gone")
	cancel(gone)
	for err == nil {
		_, err = s.Next(context.Background())
	}
	require.ErrorIs(t, err, gone)
	require.Equal(t, []int64{1, 0}, []int64{e.Stats().Cancelled, e.Stats().Failed})
}

// TestNothingLeaks sends a thousand requests or more, most of which are cancelled at some
// point.
func TestNothingLeaks(t *testing.T) {
	n := 1000
	if v := os.Getenv("LUKV_ENGINE_REQUESTS"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	m := openModel(t, model.WithThreads(1))
	tokens, contexts := prompts(t, m, 3)
	before := runtime.NumGoroutine()
	e := newEngine(t, m, Options{MaxBytes: 12 << 20, MaxRunning: 24, MaxQueue: 1 << 20, MaxQueueTokens: 1 << 30})
	var wg sync.WaitGroup
	gate := make(chan struct{}, 64)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			at := rng.IntN(3)
			r := Request{Prompt: tokens[at][:20+rng.IntN(60)], Client: fmt.Sprint(i % 5), Sampling: model.Sampling{MaxTokens: 1 + rng.IntN(6)}, Choices: 1 + rng.IntN(2)}
			if i%4 == 0 {
				r.Policy, r.Context = &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "knorm"}}, min(len(r.Prompt), contexts[at])
			}
			s, err := e.Submit(ctx, r)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			if rng.IntN(3) > 0 {
				for range rng.IntN(4) {
					s.Next(ctx)
				}
				s.Close()
				return
			}
			for range s.Events() {
			}
		})
	}
	wg.Wait()
	st := e.Stats()
	require.Zero(t, st.ReservedBytes+st.Running+st.Waiting, "%+v", st)
	require.EqualValues(t, n, st.Completed+st.Cancelled)
	require.LessOrEqual(t, st.PrefixCacheBytes, st.MaxBytes)
	require.NoError(t, e.Close())
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<16)
	t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, strings.TrimSpace(string(buf[:runtime.Stack(buf, true)])))
}

// TestProgress: the progress of a prompt is known while it is read.
func TestProgress(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	prompt := slices.Concat(slices.Concat(tokens...), tokens[0], tokens[1])
	e := newEngine(t, m, Options{})
	// An echo that nobody reads pauses the prompt.
	s, err := e.Submit(within(t), Request{Prompt: prompt, PromptOnly: true, Echo: true, Sampling: model.Sampling{LogProbs: true}})
	require.NoError(t, err)
	before := 0.0
	for i := range prompt {
		_, err := s.Next(t.Context())
		require.NoError(t, err)
		now := s.Progress()
		require.GreaterOrEqual(t, now, before)
		if i == 3*echoRows {
			require.GreaterOrEqual(t, now, float64(echoRows)/float64(len(prompt)))
			require.Less(t, now, 1.0)
		}
		before = now
	}
	_, err = s.Next(t.Context())
	require.Equal(t, io.EOF, err)
	require.Equal(t, 1.0, s.Progress())

	// The same for a prompt that is computed layer by layer.
	policy := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "knorm"}}
	s, err = e.Submit(within(t), Request{Prompt: prompt, Context: len(prompt), Policy: policy, PromptOnly: true})
	require.NoError(t, err)
	for before = 0; before < 1; before = s.Progress() {
		require.GreaterOrEqual(t, s.Progress(), before)
	}
	collect(t, s, 1)
}

// TestLongAnswersOfACompressedPrompt: reading a prompt can take more memory than its first
// answer tokens do; room for later ones is reserved all the same.
func TestLongAnswersOfACompressedPrompt(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 3)
	prompt := slices.Concat(slices.Concat(tokens...), tokens[0], tokens[1])
	const context, all = 700, 1500
	e := newEngine(t, m, Options{MaxBytes: 1 << 30, MaxTokens: all})
	p := &lukv.Policy{Ratio: 0.9, Metric: lukv.MetricConfig{Name: "knorm"}, Allocator: lukv.AllocatorConfig{Name: "global"}}
	s, err := e.Submit(within(t), Request{Prompt: prompt[:context+5], Policy: p, Context: context, Sampling: model.Sampling{IgnoreEOS: true}})
	require.NoError(t, err)
	collect(t, s, 1)
	need, err := m.CacheEstimate(model.SessionOptions{Compression: p}, model.Lengths{Context: context, Rest: all - context})
	require.NoError(t, err)
	require.Equal(t, need.Peak, e.Stats().PeakBytes)
}

// TestPromptBelongsToTheCaller: a request may reuse the memory of an earlier prompt, of
// which a cache is kept.
func TestPromptBelongsToTheCaller(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	e := newEngine(t, m, Options{MaxBytes: 64 << 20})
	n := min(len(tokens[0]), len(tokens[1]))
	buf := slices.Clone(tokens[0][:n])
	r := Request{Prompt: buf, Sampling: model.Sampling{MaxTokens: 8, LogProbs: true, IgnoreEOS: true}}
	for _, p := range tokens {
		copy(buf[1:], p[1:n]) // texts begin alike
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		require.True(t, equal(collect(t, s, 1), alone(t, m, r)))
		require.Less(t, s.Usage().Cached, n)
	}
}

// TestReplaysAreLimited: answers that lost their cache are recomputed in pieces that leave
// others their time, however many there are.
func TestReplaysAreLimited(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	most := 0
	verifyWith(t, func(e *Engine) {
		verify(e)
		most = max(most, e.replayed)
	})
	e := newEngine(t, m, Options{PrefixCacheBytes: -1})
	o := model.Sampling{MaxTokens: 120, IgnoreEOS: true, Temperature: 1, LogProbs: true}
	r := Request{Prompt: tokens[0][:40], Choices: 12, Sampling: o}
	want := alone(t, m, r)
	lose := sync.OnceFunc(func() { e.post(func() { preemptLast(e) }) })
	r.Mask = func(_ context.Context, choice int, answer []int32) ([]uint64, error) {
		if choice == 0 && len(answer) == 100 {
			lose()
		}
		return nil, nil
	}
	other, err := e.Submit(within(t), Request{Prompt: tokens[0][:20], Sampling: model.Sampling{MaxTokens: 400, IgnoreEOS: true}})
	require.NoError(t, err)
	s, err := e.Submit(within(t), r)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { collect(t, other, 1) })
	require.True(t, equal(collect(t, s, r.Choices), want))
	wg.Wait()
	require.EqualValues(t, 1, e.Stats().Preempted)
	require.NoError(t, e.Close()) // the engine's goroutine writes most
	require.Positive(t, most)
	require.LessOrEqual(t, most, e.chunk)
}

// TestPromptsTakeTurns: of two prompts that are read while others answer, neither is read
// first because of where it stands among them.
func TestPromptsTakeTurns(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 6)
	e := newEngine(t, m, Options{Latency: time.Nanosecond}) // the fewest tokens of prompts in each step
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, release := occupy(t, e)
	submit := func(r Request) *Stream {
		s, err := e.Submit(ctx, r)
		require.NoError(t, err)
		return s
	}
	long := slices.Concat(tokens...)[:1200]
	one := model.Sampling{MaxTokens: 1}
	first := submit(Request{Prompt: long, Sampling: one})
	var answers []*Stream
	for i := range 10 {
		answers = append(answers, submit(Request{Prompt: tokens[i%6][:4], Sampling: model.Sampling{IgnoreEOS: true}}))
	}
	last := submit(Request{Prompt: append([]int32{5}, long...), Sampling: one})
	release()
	for _, s := range answers { // until there are any, prompts get more
		_, err := s.Next(ctx)
		require.NoError(t, err)
		go func() {
			for range s.Events() {
			}
		}()
	}
	was := [2]float64{first.Progress(), last.Progress()}
	for first.Progress()+last.Progress() < was[0]+was[1]+0.6 {
		time.Sleep(time.Millisecond)
	}
	require.InDelta(t, first.Progress()-was[0], last.Progress()-was[1], 0.2)
}
