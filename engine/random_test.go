package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/sampling"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// TestRandomRequests submits random requests that share prompts and policies to engines on
// random models with little memory, with and without a store, while others come and go:
// each gets what a session alone gives, the heads hold as many entries, and memory stays
// within its bound.
func TestRandomRequests(t *testing.T) {
	n := 5
	if testing.Short() {
		n = 2
	}
	if v := os.Getenv("LUKV_RANDOM_CASES"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	verifyWith(t, verifyHeld)
	var sum Stats
	for seed := range uint64(n) {
		st := randomCase(t, seed)
		sum.Completed, sum.Cancelled, sum.Preempted = sum.Completed+st.Completed, sum.Cancelled+st.Cancelled, sum.Preempted+st.Preempted
		sum.CachedTokens, sum.LoadedFiles, sum.Accepted = sum.CachedTokens+st.CachedTokens, sum.LoadedFiles+st.LoadedFiles, sum.Accepted+st.Accepted
	}
	t.Logf("%d cases: %d answered, %d cancelled, %d preempted, %d tokens of prompts were kept, %d files read, %d tokens looked up",
		n, sum.Completed, sum.Cancelled, sum.Preempted, sum.CachedTokens, sum.LoadedFiles, sum.Accepted)
	if n >= 5 {
		require.Positive(t, sum.CachedTokens)
	}
}

// randomRequest is a request with its result from a session alone.
type randomRequest struct {
	Request
	want *outcome // nil if err is not
	err  error
	lens []int // [L x K] entries after the prompt
}

// randomCase runs one case and returns some of its engines' figures.
func randomCase(t *testing.T, seed uint64) (sum Stats) {
	rng := rand.New(rand.NewPCG(seed, 9))
	heads := 1 + rng.IntN(3)
	cfg := &model.Config{
		Arch: []string{"llama", "mistral", "qwen2", "qwen3"}[rng.IntN(4)], Layers: 1 + rng.IntN(3), Hidden: 16 * (1 + rng.IntN(5)),
		Intermediate: 16 * (1 + rng.IntN(8)), Heads: heads * (1 + rng.IntN(4)), KVHeads: heads, HeadDim: []int{8, 16, 32, 64}[rng.IntN(4)],
		Vocab: 20 + rng.IntN(200), MaxPositions: 1024, NormEps: 1e-5, Rope: arch.RopeConfig{Theta: 10000},
		QKVBias: rng.IntN(2) == 0, QKNorm: rng.IntN(3) == 0, TiedEmbeddings: rng.IntN(2) == 0, BOS: []int{1}, EOS: []int{2},
	}
	cfg.Windows = make([]int, cfg.Layers)
	if rng.IntN(3) == 0 {
		for i := range cfg.Windows {
			cfg.Windows[i] = rng.IntN(2) * (5 + rng.IntN(200))
		}
	}
	weights, err := weights.Random(t.Context(), cfg, []tensor.Type{tensor.F32, tensor.BF16}[rng.IntN(2)], seed)
	require.NoError(t, err)
	m, err := model.New(cfg, weights, model.WithThreads(1+rng.IntN(2)))
	require.NoError(t, err)
	defer m.Close()

	o := Options{
		MaxRunning: 1 + rng.IntN(12), Lookup: rng.IntN(2) == 0, Latency: time.Duration(1+rng.IntN(3000)) * time.Microsecond,
		CacheType: []tensor.Type{0, tensor.F32, tensor.F16, tensor.BF16, tensor.I8}[rng.IntN(5)], PageEntries: 16 << rng.IntN(4),
		MaxTokens: 500 + rng.IntN(400),
	}
	if rng.IntN(4) > 0 { // room for 500 to 1,700 tokens
		o.MaxBytes = int64(8*cfg.Layers*heads*cfg.HeadDim) * int64(500+rng.IntN(1200))
		o.PrefixCacheBytes = []int64{0, 0, -1, o.MaxBytes / 3}[rng.IntN(4)]
	}
	if rng.IntN(2) == 0 {
		o.Store, o.StoreBytes = t.TempDir(), []int64{0, 1 << (16 + rng.IntN(6))}[rng.IntN(2)]
	}
	requests := randomRequests(rng, cfg, 6+rng.IntN(14))
	for i := range requests {
		r := &requests[i]
		r.want, r.err = r.alone(m, o)
	}
	for round := range 1 + rng.IntN(2) { // the second finds what the first stored
		e, err := New(m, o)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range requests {
			start, stay := time.Duration(rng.IntN(20))*time.Millisecond, time.Duration(rng.IntN(30))*time.Millisecond
			if rng.IntN(4) == 0 { // a client that goes away
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), stay)
					defer cancel()
					if s, err := e.Submit(ctx, requests[(i+3)%len(requests)].Request); err == nil {
						for range s.Events() {
						}
					}
				})
			}
			wg.Go(func() {
				time.Sleep(start)
				if err := requests[i].check(e, m); err != nil {
					t.Errorf("seed %d, round %d, request %+v with %v: %v; %+v on %+v", seed, round, requests[i].Request, requests[i].Policy, err, o, *cfg)
				}
			})
		}
		wg.Wait()
		require.NoError(t, e.Close())
		st := e.Stats()
		require.Zero(t, st.ReservedBytes+st.Running+st.Waiting, "seed %d: %+v", seed, st)
		if o.MaxBytes > 0 {
			require.LessOrEqual(t, max(st.PeakBytes, st.PrefixCacheBytes), o.MaxBytes, "seed %d", seed)
		}
		if o.StoreBytes > 0 {
			require.LessOrEqual(t, st.StoredBytes, o.StoreBytes, "seed %d", seed)
		}
		sum.Completed, sum.Cancelled, sum.Preempted = sum.Completed+st.Completed, sum.Cancelled+st.Cancelled, sum.Preempted+st.Preempted
		sum.CachedTokens, sum.LoadedFiles, sum.Accepted = sum.CachedTokens+st.CachedTokens, sum.LoadedFiles+st.LoadedFiles, sum.Accepted+st.Accepted
	}
	return sum
}

// randomPolicy returns a policy that compresses a context, or while decoding, or both.
func randomPolicy(rng *rand.Rand) *lukv.Policy {
	metrics := slices.DeleteFunc(lukv.Metrics(), func(name string) bool { return name == "triattention" || name == "kvzip" })
	allocators := []string{"uniform", "adakv", "pyramidkv", "global", "threshold", "cake"}
	p := &lukv.Policy{
		Metric: lukv.MetricConfig{Name: metrics[rng.IntN(len(metrics))]}, Allocator: lukv.AllocatorConfig{Name: allocators[rng.IntN(len(allocators))]},
		Ratio: []float64{0.3, 0.5, 0.8, 0.95}[rng.IntN(4)],
	}
	switch size := 20 + rng.IntN(100); rng.IntN(12) {
	case 0, 1, 2:
		return &lukv.Policy{Decode: lukv.DecodeConfig{Mode: []string{"tova", "h2o", "streaming"}[rng.IntN(3)], TargetSize: size}}
	case 3:
		p.Decode = lukv.DecodeConfig{Mode: "periodic", TargetSize: 40 + size, Interval: 1 + rng.IntN(9), Buffer: 16 + rng.IntN(40)}
	case 4, 5:
		p.Ratio, p.BudgetTokens = 0, size
	}
	return p
}

// randomRequests returns n requests about a few documents with a few policies.
func randomRequests(rng *rand.Rand, cfg *model.Config, n int) []randomRequest {
	tokens := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32(rng.IntN(cfg.Vocab))
		}
		if rng.IntN(2) == 0 { // something to look up
			copy(out[n/2:], out[:n/2])
		}
		return out
	}
	systems, docs := [][]int32{nil, tokens(1 + rng.IntN(50)), tokens(1 + rng.IntN(50))}, [][]int32{tokens(20 + rng.IntN(300)), tokens(20 + rng.IntN(300))}
	docs = append(docs, append(slices.Clone(docs[0]), tokens(20)...), docs[1][:len(docs[1])/2])
	policies := []*lukv.Policy{nil, randomPolicy(rng), randomPolicy(rng)}
	one := func(k int) bool { return rng.IntN(k) == 0 }
	out := make([]randomRequest, n)
	for i := range out {
		system := systems[rng.IntN(3)]
		r := &out[i].Request
		r.ID, r.Client = fmt.Sprintf("r%d", i), fmt.Sprint(rng.IntN(3))
		r.Prompt = slices.Concat(system, docs[rng.IntN(len(docs))])
		if r.Policy = policies[rng.IntN(3)]; r.Policy != nil {
			r.Context, r.Protected = len(r.Prompt), rng.IntN(2)*len(system)
		}
		if !one(8) {
			r.Prompt = append(r.Prompt, tokens(1+rng.IntN(40))...)
		}
		r.Sampling = model.Sampling{
			Temperature: float64(rng.IntN(2)), Seed: rng.Uint64(), MaxTokens: 1 + rng.IntN(40), IgnoreEOS: one(2), LogProbs: true, YieldEnd: one(3),
			TopK: rng.IntN(4) / 3 * (1 + rng.IntN(20)), FrequencyPenalty: float64(rng.IntN(4)/3) * 0.3,
		}
		if one(4) {
			r.Sampling.RepetitionPenalty, r.Sampling.RepetitionWindow = 1.2, rng.IntN(30)
			r.Sampling.LogitBias = map[int32]float64{int32(rng.IntN(cfg.Vocab)): 5}
		}
		if one(3) { // until the context is full, or there is no memory
			r.Sampling.MaxTokens = 0
		}
		if one(4) {
			r.Choices = 1 + rng.IntN(4)
		}
		if one(4) {
			r.Mask = randomMask(rng.Uint64(), cfg.Vocab)
		}
		r.Echo, r.PromptOnly = one(6), one(10)
		if one(10) {
			r.Salt = "own"
		}
	}
	return out
}

// randomMask allows some tokens after some answers, and ends others.
func randomMask(seed uint64, vocab int) func(context.Context, int, []int32) ([]uint64, error) {
	return func(_ context.Context, choice int, answer []int32) ([]uint64, error) {
		h := seed + uint64(choice)
		for _, id := range answer {
			h = h*31 + uint64(id) + 7
		}
		rng := rand.New(rand.NewPCG(h, 3))
		switch rng.IntN(30) {
		case 0:
			return nil, io.EOF
		case 1, 2, 3, 4, 5, 6, 7, 8:
			return nil, nil
		}
		mask := make([]uint64, (vocab+63)/64)
		for range 1 + rng.IntN(vocab) {
			id := rng.IntN(vocab)
			mask[id/64] |= 1 << (id % 64)
		}
		return mask, nil
	}
}

// headLens returns the entries of the heads without a window.
func headLens(s *model.Session, cfg *model.Config) []int {
	var out []int
	for at := range cfg.Layers {
		for head := range cfg.KVHeads {
			if cfg.Windows[at] == 0 {
				out = append(out, s.Cache().Len(at, head))
			}
		}
	}
	return out
}

// alone answers the request with its own sessions, reading the prompt again for each
// choice.
func (r *randomRequest) alone(m *model.Model, o Options) (*outcome, error) {
	n := max(1, r.Choices)
	out := newOutcome(n)
	for i := range n {
		if err := r.choose(m, o, i, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *randomRequest) choose(m *model.Model, o Options, i int, out *outcome) error {
	ctx := context.Background()
	so := model.SessionOptions{Compression: r.Policy, CacheType: o.CacheType, PageEntries: o.PageEntries}
	if r.Protected > 0 {
		so.Compression = nil
	}
	s, err := m.NewSession(so)
	if err != nil {
		return err
	}
	defer s.Close()
	if err = s.Prefill(ctx, r.Prompt[:r.Protected]); err == nil {
		if doc := r.Prompt[r.Protected:r.Context]; r.Protected > 0 {
			err = s.PrefillCompressed(ctx, doc, r.Policy)
		} else {
			err = s.Prefill(ctx, doc)
		}
	}
	if err != nil {
		return err
	}
	rest := r.Prompt[r.Context:]
	if i == 0 && r.Echo && len(rest) > 0 {
		out.echo, out.eprobs = rest, []float64{0}
	}
	if err := s.PrefillEach(ctx, rest, func(k int, logits []float32) error {
		if i == 0 && r.Echo && k+1 < len(rest) {
			out.eprobs = append(out.eprobs, sampling.LogProb(logits, rest[k+1]))
		}
		return nil
	}); err != nil {
		return err
	}
	if r.lens = headLens(s, m.Config()); r.PromptOnly {
		return nil
	}
	sampler, err := m.NewSampler(r.Sampling, i)
	if err != nil {
		return err
	}
	sampler.Start(r.Prompt)
	limit := r.Sampling.MaxTokens
	if limit == 0 {
		limit = o.MaxTokens - len(r.Prompt)
	}
	for answer := []int32(nil); ; {
		var mask []uint64
		if r.Mask != nil {
			if mask, err = r.Mask(ctx, i, answer); err == io.EOF {
				out.finish[i] = model.FinishStop
				return nil
			}
		}
		id, err := sampler.Next(s.Logits(), mask)
		if err != nil {
			return err
		}
		sampler.Accept(id)
		answer = append(answer, id)
		ends := m.Ends(id, &r.Sampling)
		if !ends || r.Sampling.YieldEnd {
			out.ids[i] = append(out.ids[i], id)
			out.probs[i] = append(out.probs[i], sampler.Describe(s.Logits(), id).LogProb)
		}
		switch {
		case ends:
			out.finish[i] = model.FinishStop
			return nil
		case len(answer) == limit:
			out.finish[i] = model.FinishLength
			return nil
		}
		if err := s.Append(ctx, id); err != nil {
			return err
		}
	}
}

// check has an engine answer the request and reports what differs.
func (r *randomRequest) check(e *Engine, m *model.Model) error {
	q := r.Request
	var inspected []int
	q.Inspect = func(s *model.Session) { inspected = headLens(s, m.Config()) }
	// Ample even on a slow machine: an engine that sleeps while there is work never ends.
	ctx, cancel := context.WithTimeoutCause(context.Background(), 5*time.Minute, errors.New("no answer in five minutes"))
	defer cancel()
	s, err := e.Submit(ctx, q)
	var out *outcome
	if err == nil {
		out = newOutcome(max(1, q.Choices))
		for ev, failed := range s.Events() {
			switch err = failed; {
			case err != nil:
			case ev.Echo:
				out.echo, out.eprobs = append(out.echo, ev.Token.ID), append(out.eprobs, ev.Token.LogProb)
			default:
				if out.finish[ev.Choice] != model.FinishNone {
					return errors.New("an event behind the end")
				}
				if ev.HasToken {
					out.ids[ev.Choice], out.probs[ev.Choice] = append(out.ids[ev.Choice], ev.Token.ID), append(out.probs[ev.Choice], ev.Token.LogProb)
				}
				out.finish[ev.Choice] = ev.Finish
			}
		}
	}
	var large *TooLargeError
	switch {
	case errors.As(err, &large) || errors.Is(err, model.ErrContextFull):
		return nil
	case (err == nil) != (r.err == nil):
		return fmt.Errorf("error %v, alone %v", err, r.err)
	case err != nil:
		return nil
	}
	if len(out.eprobs) > 0 {
		out.eprobs[0] = 0 // the first has none
	}
	if got, want := fmt.Sprintf("%v %x", out.echo, out.eprobs), fmt.Sprintf("%v %x", r.want.echo, r.want.eprobs); !equal(out, r.want) || got != want {
		return fmt.Errorf("found %v, alone %v", out, r.want)
	}
	if !slices.Equal(inspected, r.lens) {
		return fmt.Errorf("found heads of %d entries, alone %d", inspected, r.lens)
	}
	return nil
}
