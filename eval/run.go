package eval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/sampling"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// Method is one way of keeping the cache: a name for reports and a policy, nil
// for the full cache.
type Method struct {
	Name   string
	Policy *lukv.Policy

	// MaxLoss, if not nil, chooses the policy's ratio for each context: the largest that
	// loses at most this share of its facts, see model.Session.CompressWithin. Answers
	// then have the ratio 0 and the ratio achieved.
	MaxLoss *float64
}

// Options configure a run.
type Options struct {
	Framing      dialog.Framing
	Scoring      scoring.Options
	MaxNewTokens int // for items that set none; 64 if 0

	// Session holds the options of all sessions; its Compression is replaced.
	Session model.SessionOptions

	// Reference is the model that answers in [Divergences], if it is not the measured one:
	// the same before its weights were quantised, say. Its tokens must be those of the
	// measured one. ReferenceType and ReferenceValues are the types of the caches that
	// answer, if they are not those of Session. With any of them, the full cache of the
	// measured model is a method like others.
	Reference                      *model.Model
	ReferenceType, ReferenceValues tensor.Type

	// OwnPrefills gives every method a prefill of its own, so that peaks can be
	// measured. Otherwise a context is prefilled once, with the full cache, and each
	// method's cache is derived from it: answers are the same, to the bit, and a
	// sweep takes a fraction of the time. Methods that compress while decoding
	// always have their own prefill, as does a single method, and so do all methods,
	// with a note, where the full cache does not fit.
	OwnPrefills bool

	// MeasureLoss measures how many of the facts of a context each method loses: with
	// the passages that surprised the model where methods share a prefill, otherwise with
	// those of the sweep, see model.LossOptions.
	MeasureLoss bool

	// QueryAware puts the question into the context before it is compressed.
	// Such results are not comparable with the default.
	QueryAware bool

	// Truncate shortens contexts that do not fit together with question and
	// answer. If it is "", such items fail.
	Truncate Truncate

	// Parallel is the number of contexts worked on at the same time; 0 means one.
	// There are fewer if twice their full caches would take more than Memory
	// bytes (0: no limit). Answers are the same, but not their order.
	Parallel int
	Memory   int64

	// Done, if not nil, reports items that need no answer under a method
	// because an earlier run gave it.
	Done func(item int, method string) bool

	// Progress, if not nil, is called at the start and after every answer; done
	// counts those of earlier runs too.
	Progress func(done, total int)
}

// Answer is the outcome of one item under one method.
type Answer struct {
	Item       int      `json:"item"`           // index into the items given to Run; in files, among all data
	Line       int      `json:"line,omitempty"` // of the data file
	Task       string   `json:"task"`
	Method     string   `json:"method"`
	Metric     string   `json:"metric,omitempty"`
	Allocator  string   `json:"allocator,omitempty"`
	Ratio      float64  `json:"ratio"`
	Tokens     int      `json:"budget_tokens,omitempty"` // or Bytes: the budget instead of a ratio
	Bytes      int64    `json:"budget_bytes,omitempty"`
	Prediction string   `json:"prediction"`
	References []string `json:"references"`
	Classes    []string `json:"all_classes,omitempty"`
	Score      float64  `json:"score"`
	Empty      bool     `json:"empty,omitempty"` // nothing was left to score once cleaned

	// Notes are remarks for users about the compression of the context.
	Notes []string `json:"notes,omitempty"`

	// Error says why there is no answer: the context, the question or the
	// cache did not fit. Such items are listed, not scored.
	Error string `json:"error,omitempty"`

	Length        int           `json:"length,omitempty"` // the item's
	ContextTokens int           `json:"context_tokens"`
	Truncated     int           `json:"truncated,omitempty"` // context tokens cut off beforehand
	NewTokens     int           `json:"new_tokens"`
	Stop          string        `json:"stop"` // "stop" or "length"
	KeptEntries   int64         `json:"kept_entries"`
	RatioAchieved float64       `json:"ratio_achieved"`
	Facts         int           `json:"facts,omitempty"`      // of the context that the full cache can repeat
	FactsLost     *float64      `json:"facts_lost,omitempty"` // their share that this cache cannot; absent: not measured
	NatsLost      *float64      `json:"nats_lost,omitempty"`  // mean over their tokens, likewise
	CacheBytes    int64         `json:"cache_bytes"`          // after compression, before the question
	PeakBytes     int64         `json:"peak_bytes,omitempty"`
	FullBytes     int64         `json:"full_bytes"`
	Time          time.Duration `json:"time_ns"` // question and answer, and the item's share of the prefill

	// Milliseconds from the start of the context's prefill. Prefill and eviction
	// (metrics that observe the prefill do so within its time) and the question up to
	// its first token count in full, though questions and methods share them. Later
	// tokens are decoded for many questions at a time; only the answer's share of that
	// time counts.
	PrefillMS    float64 `json:"prefill_ms,omitempty"`
	EvictMS      float64 `json:"evict_ms,omitempty"`
	FirstTokenMS float64 `json:"ttft_ms,omitempty"`
	DecodeMS     float64 `json:"decode_ms,omitempty"`
}

// Run answers every item under every method and hands each answer to emit, in order
// of contexts, then methods, then items. Answers about one context are decoded
// together, one token of each per pass over the weights; a stopped run loses those
// it was working on. An item that does not fit into context or cache gives an answer
// with an Error; any other error, including one from emit, ends the run.
func Run(ctx context.Context, m *model.Model, items []Item, methods []Method, o Options, emit func(Answer) error) error {
	r, err := newRunner(m, items, methods, o)
	if err != nil {
		return err
	}
	r.emit = emit
	if o.Parallel > 1 {
		return r.runParallel(ctx)
	}
	r.progress(0)
	defer r.forget()
	return r.contexts(ctx, r.groups())
}

// newRunner returns a runner without emit, once every method has been checked.
func newRunner(m *model.Model, items []Item, methods []Method, o Options) (*runner, error) {
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, fmt.Errorf("evaluate: %w", err)
	}
	if o.MaxNewTokens == 0 {
		o.MaxNewTokens = 64
	}
	if o.MeasureLoss || slices.ContainsFunc(methods, func(x Method) bool { return x.MaxLoss != nil }) {
		o.Session.ProbeLoss = new(model.LossOptions)
	}
	r := &runner{m: m, tok: tok, o: o, items: items, methods: methods}
	if r.sampler, err = m.NewSampler(model.Sampling{}, 0); err != nil {
		return nil, fmt.Errorf("evaluate: %w", err)
	}
	for _, method := range methods {
		if err := r.check(method); err != nil {
			return nil, fmt.Errorf("evaluate: method %s: %w", method.Name, err)
		}
	}
	return r, nil
}

// contexts answers the items of some contexts, one context after another.
func (r *runner) contexts(ctx context.Context, groups [][]int) error {
	for _, group := range groups {
		if err := r.group(ctx, group); err != nil {
			return r.failed(group, err)
		}
	}
	return nil
}

// failed wraps the error that ends a run at the items of a context.
func (r *runner) failed(group []int, err error) error {
	return fmt.Errorf("evaluate item %d (%s): %w", group[0], r.items[group[0]].Task, err)
}

// check reports a policy that this model cannot run, before any work is done.
func (r *runner) check(method Method) error {
	o := r.o.Session
	o.Compression = method.Policy
	s, err := r.m.NewSession(o)
	if err != nil {
		return err
	}
	return s.Close()
}

type runner struct {
	m       *model.Model
	tok     *tokenizer.Tokenizer
	o       Options
	items   []Item
	methods []Method
	emit    func(Answer) error
	done    int
	asked   []*question       // waiting for answers, in order
	sampler *sampling.Sampler // greedy
}

// groups returns the indices of items with equal contexts, in order of first
// appearance.
func (r *runner) groups() [][]int {
	at := map[string]int{}
	var out [][]int
	for i, it := range r.items {
		key := it.Context
		if r.o.QueryAware {
			key = fmt.Sprintf("%d", i)
		}
		g, ok := at[key]
		if !ok {
			g = len(out)
			at[key] = g
			out = append(out, nil)
		}
		out[g] = append(out[g], i)
	}
	return out
}

// parts returns the tokens before and after the point of compression.
func (r *runner) parts(i int) (head, tail []int32) {
	it, framing := r.items[i], r.o.Framing
	if r.o.QueryAware {
		it.Context += framing.Between + it.Question
		it.Question, framing.Between = "", ""
	}
	a, b := framing.Prompt(it.Context, it.Question, it.AnswerPrefix)
	return a.Encode(r.tok), b.Encode(r.tok)
}

func (r *runner) progress(n int) {
	r.done += n
	if r.o.Progress != nil {
		r.o.Progress(r.done, len(r.items)*len(r.methods))
	}
}

// todo returns the items of a group that a method has not answered yet.
func (r *runner) todo(method Method, group []int) []int {
	if r.o.Done == nil {
		return group
	}
	var out []int
	for _, i := range group {
		if !r.o.Done(i, method.Name) {
			out = append(out, i)
		}
	}
	return out
}

// doesNotFit reports whether an error concerns one context only.
func doesNotFit(err error) bool {
	return errors.Is(err, model.ErrContextFull) || errors.Is(err, kvcache.ErrFull) || errors.Is(err, kernels.ErrDeviceMemory)
}

// sharedPrefill is one prefill of a context with the full cache, from which
// sessions are derived; ob is nil where each has its own.
type sharedPrefill struct {
	ob       *model.Observation
	observed []lukv.Metric
	note     string        // why each has its own, if that was not intended
	took     time.Duration // of the prefill
	answers  int           // that share it
	probe    *model.LossProbe
}

func (p *sharedPrefill) close() {
	if p.ob != nil {
		p.ob.Close()
		p.ob = nil
	}
}

// giveUp makes the remaining methods do without a shared prefill.
func (p *sharedPrefill) giveUp(why error) {
	p.close()
	p.note = fmt.Sprintf("the full cache of the context did not fit, so that methods had prefills of their own: %v", why)
}

// serves reports whether a method's session can be derived from the prefill.
func (p *sharedPrefill) serves(m Method) bool {
	if p.ob == nil || m.Policy == nil || m.MaxLoss != nil {
		return p.ob != nil
	}
	metric, err := metricOf(m)
	return err == nil && !m.Policy.Decode.Enabled() && slices.ContainsFunc(p.observed, func(o lukv.Metric) bool { return sameMetric(o, metric) })
}

// group answers the items of one context.
func (r *runner) group(ctx context.Context, group []int) error {
	for _, c := range r.cut(group) {
		if err := r.cutGroup(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// cutGroup answers the items whose contexts are cut alike.
func (r *runner) cutGroup(ctx context.Context, c cutGroup) error {
	group, head, truncated := c.items, c.head, c.truncated
	answers, derived := 0, 0 // a resumed run shares as an uninterrupted one does
	for _, method := range r.methods {
		answers += len(r.todo(method, group))
		if method.Policy == nil || !method.Policy.Decode.Enabled() {
			derived++
		}
	}
	var shared sharedPrefill
	defer func() { shared.close() }()
	if !r.o.OwnPrefills && derived > 1 && answers > 0 {
		if err := r.prefillOnce(ctx, &shared, head, answers); err != nil {
			return err
		}
	}
	for _, method := range r.methods {
		todo := r.todo(method, group)
		if n := len(group) - len(todo); n > 0 {
			r.progress(n)
		}
		if len(todo) == 0 {
			continue
		}
		if err := r.method(ctx, method, head, truncated, todo, &shared); err != nil {
			return fmt.Errorf("method %s: %w", method.Name, err)
		}
	}
	return r.answerAll(ctx)
}

// prefillOnce makes the prefill that the methods of a context share.
func (r *runner) prefillOnce(ctx context.Context, shared *sharedPrefill, head []int32, answers int) error {
	start := time.Now()
	metrics, err := r.metrics(len(head))
	if err != nil {
		return err
	}
	ob, err := r.m.Observe(ctx, head, r.o.Session, metrics...)
	switch {
	case err == nil:
		shared.ob, shared.observed = ob, metrics
		shared.took, shared.answers = time.Since(start), answers
		if r.o.MeasureLoss {
			shared.probe, err = ob.Session().ProbeLoss(ctx, model.Span{To: len(head)}, model.LossOptions{})
			return err
		}
	case errors.Is(err, model.ErrContextFull): // each method finds that for itself
	case doesNotFit(err):
		shared.giveUp(err)
	default:
		return err
	}
	return nil
}

// method asks the questions of one context under one method.
func (r *runner) method(ctx context.Context, method Method, head []int32, truncated int, todo []int, shared *sharedPrefill) error {
	if !shared.serves(method) { // waiting questions would take memory beside the prefill
		if err := r.answerAll(ctx); err != nil {
			return err
		}
	}
	start := time.Now()
	var chosen *model.Loss
	s, own, err := r.session(ctx, method, head, shared)
	if err == nil && method.MaxLoss != nil {
		chosen, err = compressWithin(ctx, s, method)
	}
	if err != nil {
		if !doesNotFit(err) {
			return err
		}
		for _, i := range todo {
			a := r.blank(method, i)
			a.ContextTokens, a.Truncated, a.Error = len(head), truncated, err.Error()
			if err := r.ask(ctx, nil, a); err != nil {
				return err
			}
		}
		return nil
	}
	defer s.Close()
	st := s.Stats()
	a := Answer{Truncated: truncated, ContextTokens: s.Len(), KeptEntries: st.Entries, RatioAchieved: st.Ratio,
		CacheBytes: st.CacheBytes, FullBytes: st.FullBytes, Notes: s.Notes()}
	took := time.Since(start)
	a.Time = took / time.Duration(len(todo))
	if own {
		a.PeakBytes = st.PeakBytes
		a.EvictMS = milliseconds(st.ScoreTime + st.EvictTime)
		a.PrefillMS = milliseconds(took) - a.EvictMS
		if shared.note != "" {
			a.Notes = append(slices.Clone(a.Notes), shared.note)
		}
	} else {
		a.Time += shared.took / time.Duration(shared.answers)
		a.PrefillMS, a.EvictMS = milliseconds(shared.took), milliseconds(took)
	}
	if err := r.measureLoss(ctx, s, chosen, shared, &a); err != nil {
		return err
	}
	for _, i := range todo {
		if err := r.ask(ctx, s, r.about(a, method, i)); err != nil {
			return err
		}
	}
	return nil
}

// compressWithin compresses a session that holds a context whole as far as the method's bound
// allows. It closes the session if that fails.
func compressWithin(ctx context.Context, s *model.Session, method Method) (*model.Loss, error) {
	l, _, err := s.CompressWithin(ctx, model.Span{To: s.Len()}, method.Policy, *method.MaxLoss, model.LossOptions{})
	if err != nil {
		s.Close()
		return nil, err
	}
	return &l, nil
}

// giveLoss records a loss.
func (a *Answer) giveLoss(l model.Loss) {
	if a.Facts = l.Facts; l.Measured() {
		share := l.Share()
		a.FactsLost, a.NatsLost = &share, &l.Nats
	}
}

// measureLoss measures the loss of a context's facts under a method, unless choosing its
// ratio did.
func (r *runner) measureLoss(ctx context.Context, s *model.Session, chosen *model.Loss, shared *sharedPrefill, a *Answer) error {
	if chosen != nil {
		a.giveLoss(*chosen)
		return nil
	}
	if !r.o.MeasureLoss {
		return nil
	}
	probe := shared.probe
	if probe == nil {
		probe = s.LossProbe()
	}
	if probe == nil { // nothing was evicted
		return nil
	}
	l, err := probe.Measure(ctx, s)
	if err != nil {
		return err
	}
	a.giveLoss(l)
	return nil
}

// about is an answer before its question is asked.
func (r *runner) about(context Answer, method Method, i int) Answer {
	a := r.blank(method, i)
	a.Truncated, a.ContextTokens, a.KeptEntries, a.RatioAchieved = context.Truncated, context.ContextTokens, context.KeptEntries, context.RatioAchieved
	a.CacheBytes, a.FullBytes, a.PeakBytes, a.Notes = context.CacheBytes, context.FullBytes, context.PeakBytes, context.Notes
	a.Facts, a.FactsLost, a.NatsLost = context.Facts, context.FactsLost, context.NatsLost
	a.PrefillMS, a.EvictMS, a.Time = context.PrefillMS, context.EvictMS, context.Time
	return a
}

// blank is an answer with nothing but its question.
func (r *runner) blank(method Method, i int) Answer {
	a := Answer{Item: i, Task: r.items[i].Task, Method: method.Name, References: r.items[i].Answers, Length: r.items[i].Length,
		Line: r.items[i].Line, Classes: r.items[i].Classes}
	if p := method.Policy; p != nil {
		a.Metric, a.Allocator, a.Ratio = p.Metric.Name, p.Allocator.Name, p.Ratio
		a.Tokens, a.Bytes = p.BudgetTokens, p.BudgetBytes
	}
	return a
}

// give hands out an answer.
func (r *runner) give(a Answer) error {
	if err := r.emit(a); err != nil {
		return err
	}
	r.progress(1)
	return nil
}

// metricOf returns the metric of a method that has a policy.
func metricOf(m Method) (lukv.Metric, error) {
	cfg := m.Policy.Metric
	if cfg.Name == "" {
		cfg.Name = "snapkv"
	}
	return lukv.NewMetric(cfg)
}

func sameMetric(a, b lukv.Metric) bool {
	return lukv.MetricConfigOf(a).String() == lukv.MetricConfigOf(b).String()
}

// metrics returns, each once, the metrics of methods and allocators that can
// observe one prefill of T tokens together; those of earlier methods take
// precedence.
func (r *runner) metrics(T int) ([]lukv.Metric, error) {
	var out []lukv.Metric
	for _, m := range r.methods {
		if m.Policy == nil || m.Policy.Decode.Enabled() || m.MaxLoss != nil {
			continue
		}
		metric, err := metricOf(m)
		if err != nil {
			return nil, err
		}
		need := []lukv.Metric{metric}
		if a, err := lukv.NewAllocator(m.Policy.Allocator, m.Policy.Profile); err == nil {
			if o := lukv.ObserverOf(a); o != nil {
				need = append(need, o)
			}
		}
		with := slices.Clone(out)
		for _, x := range need {
			if !slices.ContainsFunc(out, func(o lukv.Metric) bool { return sameMetric(o, x) }) {
				with = append(with, x)
			}
		}
		if model.ObserveTogether(T, with...) == nil {
			out = with
		}
	}
	return out, nil
}

// session returns a session that holds the context under a method, derived from the
// shared prefill or with a prefill of its own.
func (r *runner) session(ctx context.Context, method Method, head []int32, shared *sharedPrefill) (s *model.Session, own bool, err error) {
	if shared.serves(method) {
		if method.Policy == nil || method.MaxLoss != nil {
			s, err = shared.ob.Session().Fork()
		} else {
			s, err = shared.ob.Compress(ctx, method.Policy)
		}
		if err == nil || !doesNotFit(err) {
			return s, false, err
		}
		if len(r.asked) > 0 { // it may fit once these are gone
			if err := r.answerAll(ctx); err != nil {
				return nil, false, err
			}
			return r.session(ctx, method, head, shared)
		}
		shared.giveUp(err)
	}
	o := r.o.Session
	if method.MaxLoss == nil {
		o.Compression = method.Policy
	}
	if s, err = r.m.NewSession(o); err != nil {
		return nil, true, err
	}
	if err := s.Prefill(ctx, head); err != nil {
		s.Close()
		return nil, true, err
	}
	return s, true, nil
}
