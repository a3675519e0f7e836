package engine

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/drafting"
)

// draftedBy returns a draft of the whole prompt but its last ten tokens.
func draftedBy(r *Request, metric string, ratio float64, tokens int) *Draft {
	return &Draft{
		Policy: &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Ratio: ratio},
		Span:   model.Span{From: len(r.Prompt) % 9, To: len(r.Prompt) - 10}, Tokens: tokens,
	}
}

// wholeRequests are requests whose caches stay whole, of all other kinds.
func wholeRequests(t testing.TB, m *model.Model, n int) []Request {
	out := mixedRequests(t, m, n)
	for i := range out {
		r := &out[i]
		r.Prompt = r.Prompt[len(r.Prompt)-150:]
		r.Policy, r.Context, r.Protected = nil, 0, 0
		if i%6 == 1 { // as of a document that was not compressed
			r.Policy, r.Context = &lukv.Policy{}, 100
		}
		if i%8 == 5 {
			r.Mask = func(_ context.Context, _ int, answer []int32) ([]uint64, error) {
				allowed := make([]uint64, (m.Config().Vocab+63)/64)
				for k := range allowed {
					allowed[k] = 0x5555_5555_5555_5555 << (len(answer) % 2)
				}
				return allowed, nil
			}
		}
	}
	return out
}

// answersOf runs requests on an engine, all at once.
func answersOf(t testing.TB, e *Engine, requests []Request) ([]*outcome, []Usage) {
	out, usage := make([]*outcome, len(requests)), make([]Usage, len(requests))
	var wg sync.WaitGroup
	for i, r := range requests {
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		wg.Go(func() {
			out[i] = collect(t, s, max(1, r.Choices))
			usage[i] = s.Usage()
		})
	}
	wg.Wait()
	return out, usage
}

// TestDraftedAnswers: requests of all kinds, alone and in batches, where there is room for
// all and where caches are lost, have the same answers to the bit whether a compressed copy
// drafts them or not, and most of what is drafted greedily is right.
func TestDraftedAnswers(t *testing.T) {
	preempts := false
	verifyWith(t, func(e *Engine) {
		verifyHeld(e)
		if preempts && e.stats.steps.Load()%16 == 0 {
			e.preempt()
		}
	})
	m := openModel(t, model.WithThreads(2))
	n := 100
	if testing.Short() {
		n = 50
	}
	requests := wholeRequests(t, m, n)
	e := newEngine(t, m, Options{MaxRunning: 4})
	want, plain := answersOf(t, e, requests)
	require.NoError(t, e.Close())
	for i := range requests {
		require.Zero(t, plain[i].Drafted)
		r := &requests[i]
		r.Draft = draftedBy(r, []string{"key_distance", "snapkv", "streaming_llm"}[i%3], []float64{0.5, 0.8, 0.9}[i/3%3], i%drafting.MostDrafts)
	}
	for _, o := range []Options{{MaxRunning: 4}, {MaxRunning: 6, MaxBytes: 8 << 20, PrefixCacheBytes: -1}, {MaxRunning: 1, Lookup: true}} {
		preempts = o.MaxBytes > 0
		e := newEngine(t, m, o)
		got, usage := answersOf(t, e, requests)
		drafted, accepted := 0, 0
		for i := range requests {
			require.True(t, equal(want[i], got[i]), "%s: found %v, expected %v", requests[i].ID, got[i], want[i])
			require.Equal(t, plain[i].Generated, usage[i].Generated)
			require.Equal(t, plain[i].Evicted, usage[i].Evicted)
			drafted, accepted = drafted+usage[i].Drafted, accepted+usage[i].Accepted
		}
		require.Greater(t, accepted, n/2, "of %d", drafted)
		st := e.Stats()
		require.EqualValues(t, drafted, st.Drafted)
		require.EqualValues(t, accepted, st.Accepted)
		require.Equal(t, preempts, st.Preempted > 0)
		t.Logf("%d running, %d bytes: %d of %d drafts right, %d steps, %d lost their caches", o.MaxRunning, o.MaxBytes, accepted, drafted, st.Steps, st.Preempted)
		require.NoError(t, e.Close())
		require.Zero(t, e.Stats().ReservedBytes)
	}
}

// TestDraftsRefused: what a copy cannot draft for is an error at once.
func TestDraftsRefused(t *testing.T) {
	m := openModel(t)
	e := newEngine(t, m, Options{})
	base := wholeRequests(t, m, 1)[0]
	base.Mask = nil
	for want, change := range map[string]func(*Request){
		"expected one of them":    func(r *Request) { r.Policy, r.Context = &lukv.Policy{Ratio: 0.5}, 10 },
		"without an answer":       func(r *Request) { r.PromptOnly = true },
		"without a policy":        func(r *Request) { r.Draft.Policy = &lukv.Policy{} },
		"expected that of the en": func(r *Request) { r.Draft.Policy.CacheType = "int8" },
		"expected some of the":    func(r *Request) { r.Draft.Span.To = len(r.Prompt) + 1 },
		"reads the prompt again":  func(r *Request) { r.Draft.Policy.Metric.Name = "kvzip" },
		"expected 0 to 8":         func(r *Request) { r.Draft.Tokens = 9 },
		"profile":                 func(r *Request) { r.Draft.Policy.Allocator.Name = "lukv" },
		"decoding":                func(r *Request) { r.Draft.Policy.Decode = lukv.DecodeConfig{Mode: "h2o", TargetSize: 64} },
	} {
		r := base
		r.Draft = draftedBy(&r, "key_distance", 0.5, 2)
		change(&r)
		_, err := e.Submit(within(t), r)
		require.ErrorContains(t, err, want)
	}

	// The copy counts: a bound that is enough without it is too little with it.
	r := base
	r.Sampling.MaxTokens = 20
	plain, err := (&job{e: e, req: r, answerTokens: 20}).sized()
	require.NoError(t, err)
	tight := newEngine(t, m, Options{MaxBytes: plain})
	r.Draft = draftedBy(&r, "key_distance", 0.5, 2)
	_, err = tight.Submit(within(t), r)
	var large *TooLargeError
	require.True(t, errors.As(err, &large), "%v", err)
	r.Draft = nil
	_, usage := answersOf(t, tight, []Request{r})
	require.Positive(t, usage[0].Generated)
}

// sized returns the bytes that a request needs.
func (j *job) sized() (int64, error) {
	if j.req.Choices == 0 {
		j.req.Choices = 1
	}
	return j.bytes(j.answerTokens)
}
