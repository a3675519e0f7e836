package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/sampling"
)

// Divergence is how far a method moves the predictions of one item's answer: the
// Kullback-Leibler divergence of the full cache's distributions of the next token from
// those of the method, both reading the full cache's own greedy answer.
type Divergence struct {
	Item      int     `json:"item"`           // index into the items; in files, among all data
	Line      int     `json:"line,omitempty"` // of the data file
	Task      string  `json:"task"`
	Method    string  `json:"method"`
	Metric    string  `json:"metric"`
	Allocator string  `json:"allocator"`
	Ratio     float64 `json:"ratio"`
	Tokens    int     `json:"budget_tokens,omitempty"` // or Bytes: the budget instead of a ratio
	Bytes     int64   `json:"budget_bytes,omitempty"`

	KL           float64 `json:"kl"`            // nats, mean over the tokens of the answer
	AnswerTokens int     `json:"answer_tokens"` // with the one that ends it

	// Notes are remarks for users about the compression; Error says why the item
	// could not be measured.
	Notes []string `json:"notes,omitempty"`
	Error string   `json:"error,omitempty"`

	ContextTokens int     `json:"context_tokens"`
	Truncated     int     `json:"truncated,omitempty"`
	RatioAchieved float64 `json:"ratio_achieved"`
	CacheBytes    int64   `json:"cache_bytes"`
	FullBytes     int64   `json:"full_bytes"`
}

// maxReferenceBytes bounds the distributions of answers that are held at a time: those
// of questions about one context.
const maxReferenceBytes = 256 << 20

// Divergences measures every item under every method that has a policy (with a reference of
// another model or type, under every method), and passes each
// measurement to emit, in order of contexts, then groups of questions, then methods. The
// context is prefilled once with the full cache, which answers; then each method's cache
// reads question and answer in one pass. Policies that compress while decoding are
// refused. Of the options, scoring and Parallel have no effect.
func Divergences(ctx context.Context, m *model.Model, items []Item, methods []Method, o Options, emit func(Divergence) error) error {
	r, err := newRunner(m, items, methods, o)
	if err != nil {
		return err
	}
	d := divergences{runner: r, answers: r, emit: emit}
	if o.Reference != nil || o.ReferenceType != 0 {
		if d.answers, err = r.reference(); err != nil {
			return fmt.Errorf("evaluate: %w", err)
		}
	} else {
		r.methods = slices.DeleteFunc(slices.Clone(methods), func(m Method) bool { return m.Policy == nil })
	}
	for _, method := range r.methods {
		if method.Policy != nil && method.Policy.Decode.Enabled() {
			return fmt.Errorf("evaluate: method %s: found compression while decoding, expected none: an answer is read in one pass", method.Name)
		}
	}
	r.progress(0)
	for _, group := range r.groups() {
		for _, c := range r.cut(group) {
			if err := d.group(ctx, c); err != nil {
				return r.failed(group, err)
			}
		}
	}
	return nil
}

// reference returns a runner with the model and cache type of the reference.
func (r *runner) reference() (*runner, error) {
	o := r.o
	if o.ReferenceType != 0 {
		o.Session.CacheType, o.Session.CacheValues = o.ReferenceType, o.ReferenceValues
	}
	m := cmp.Or(o.Reference, r.m)
	answers, err := newRunner(m, r.items, nil, o)
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	if n, want := m.Config().Vocab, r.m.Config().Vocab; n != want {
		return nil, fmt.Errorf("reference: found a vocabulary of %d tokens, expected one of %d, as the measured model has", n, want)
	}
	for i := range r.items {
		head, tail := r.parts(i)
		if refHead, refTail := answers.parts(i); !slices.Equal(head, refHead) || !slices.Equal(tail, refTail) {
			return nil, fmt.Errorf("reference: item %d has other tokens than in the measured model, expected the same", i)
		}
	}
	return answers, nil
}

type divergences struct {
	*runner
	answers *runner // itself, unless the reference has another model or cache type
	emit    func(Divergence) error
}

// reference is the full cache's answer to an item.
type reference struct {
	item   int
	tokens []int32     // the question and the answer, as far as it is read
	first  int         // index of the last token of the question
	logits [][]float32 // after it and after every token of the answer
	err    error       // why there is none
}

// group measures the items whose contexts are cut alike.
func (d *divergences) group(ctx context.Context, c cutGroup) error {
	var shared, apart sharedPrefill
	defer shared.close()
	defer apart.close()
	items := d.remaining(c.items)
	if len(items) == 0 {
		return nil
	}
	if err := d.prefillOnce(ctx, &shared, c.head, len(items)); err != nil {
		return err
	}
	full := &shared
	if d.answers != d.runner {
		full = &apart
		if err := d.answers.prefillOnce(ctx, full, c.head, len(items)); err != nil {
			return err
		}
	}
	each := maxReferenceBytes / (4 * d.m.Config().Vocab)
	for len(items) > 0 {
		var references []*reference
		for rows := 0; len(items) > 0 && (rows == 0 || rows+d.answerTokens(items[0]) < each); items = items[1:] {
			ref, err := d.answers.answer(ctx, full, items[0])
			if err != nil {
				return err
			}
			rows += len(ref.logits)
			references = append(references, ref)
		}
		for _, method := range d.methods {
			if err := d.method(ctx, method, c, &shared, d.left(method, references)); err != nil {
				return fmt.Errorf("method %s: %w", method.Name, err)
			}
		}
	}
	return nil
}

// left returns the references of items that a method has not been measured on.
func (d *divergences) left(method Method, references []*reference) []*reference {
	if d.o.Done == nil {
		return references
	}
	done := func(ref *reference) bool { return d.o.Done(ref.item, method.Name) }
	return slices.DeleteFunc(slices.Clone(references), done)
}

// remaining returns those of the items that an earlier run has not measured under every
// method, and counts the measurements that it has.
func (d *divergences) remaining(items []int) []int {
	left := map[int]bool{}
	done := len(items) * len(d.methods)
	for _, method := range d.methods {
		for _, i := range d.todo(method, items) {
			left[i] = true
			done--
		}
	}
	if done > 0 {
		d.progress(done)
	}
	return slices.DeleteFunc(slices.Clone(items), func(i int) bool { return !left[i] })
}

// answer answers an item with the full cache.
func (r *runner) answer(ctx context.Context, shared *sharedPrefill, item int) (*reference, error) {
	ref := &reference{item: item}
	if shared.ob == nil {
		ref.err = errors.New("the full cache of the context did not fit")
		return ref, nil
	}
	s, err := shared.ob.Session().Fork()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	_, ref.tokens = r.parts(item)
	ref.first = len(ref.tokens) - 1
	if err := s.Prefill(ctx, ref.tokens); err != nil {
		return ref.missing(err)
	}
	for {
		ref.logits = append(ref.logits, slices.Clone(s.Logits()))
		id, err := r.sampler.Next(s.Logits(), nil)
		if err != nil {
			return nil, err
		}
		if r.m.Ends(id, &model.Sampling{}) || len(ref.logits) == r.answerTokens(item) || s.Len()+1 >= s.MaxTokens() {
			return ref, nil
		}
		ref.tokens = append(ref.tokens, id)
		if err := s.Append(ctx, id); err != nil {
			return ref.missing(err)
		}
	}
}

// missing records an error that concerns one item only.
func (ref *reference) missing(err error) (*reference, error) {
	if !doesNotFit(err) {
		return nil, err
	}
	ref.err, ref.logits = err, nil
	return ref, nil
}

// method measures some items of one context under one method.
func (d *divergences) method(ctx context.Context, method Method, c cutGroup, shared *sharedPrefill, references []*reference) error {
	if len(references) == 0 {
		return nil
	}
	s, _, err := d.session(ctx, method, c.head, shared)
	if err != nil && !doesNotFit(err) {
		return err
	}
	if err == nil {
		defer s.Close()
	}
	for _, ref := range references {
		x := d.about(method, ref.item)
		x.ContextTokens, x.Truncated = len(c.head), c.truncated
		failed := err
		if failed == nil {
			failed = ref.err
		}
		if failed == nil {
			st := s.Stats()
			x.RatioAchieved, x.CacheBytes, x.FullBytes, x.Notes = st.Ratio, st.CacheBytes, st.FullBytes, s.Notes()
			if x.KL, failed = read(ctx, s, ref); failed != nil && !doesNotFit(failed) {
				return failed
			}
			x.AnswerTokens = len(ref.logits)
		}
		if failed != nil {
			x.Error = failed.Error()
		}
		if err := d.emit(x); err != nil {
			return err
		}
		d.progress(1)
	}
	return nil
}

// read returns the mean divergence over an answer, read by a fork of s.
func read(ctx context.Context, s *model.Session, ref *reference) (float64, error) {
	f, err := s.Fork()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	sum := 0.0
	err = f.PrefillEach(ctx, ref.tokens, func(i int, logits []float32) error {
		if i >= ref.first {
			sum += sampling.Divergence(ref.logits[i-ref.first], logits)
		}
		return nil
	})
	if err == nil && (math.IsNaN(sum) || math.IsInf(sum, 0)) {
		err = fmt.Errorf("divergence: found %v, expected a number", sum)
	}
	return sum / float64(len(ref.logits)), err
}

// about is a measurement before it is made.
func (d *divergences) about(method Method, i int) Divergence {
	it, p := d.items[i], method.Policy
	out := Divergence{Item: i, Line: it.Line, Task: it.Task, Method: method.Name}
	if p != nil {
		out.Metric, out.Allocator, out.Ratio, out.Tokens, out.Bytes = p.Metric.Name, p.Allocator.Name, p.Ratio, p.BudgetTokens, p.BudgetBytes
	}
	return out
}
