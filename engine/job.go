package engine

import (
	"context"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/sampling"
)

// job is a request that was submitted.
type job struct {
	e      *Engine
	req    Request
	ctx    context.Context
	stream *Stream

	plan         *structured.Plan // nil: answers are text
	answerTokens int              // most tokens of a choice
	covered      int              // tokens of an answer that the reservation covers
	need         int64            // bytes needed to admit it
	step         int64            // bytes that the next growTokens tokens of every answer take
	reserved     int64
	saved        int64 // bytes that compression saves

	preempted bool // it lost its cache
	guest     bool // it was admitted before one for which there were no places or bytes

	drafted, accepted int // tokens computed ahead, and those of them that were right

	arrived time.Time
	began   time.Time // when it was first admitted
	isRead  time.Time // when its prompt was first read

	label string // under which its prompt is kept
	front string // under which its protected tokens are kept: a prompt without a policy
	load  *load  // of the file that it waits for
	write *write // likewise
	tried bool   // a file was loaded, whether it helped or not

	// While the prompt is being read: the session, and the prefill in progress, nil
	// between two.
	session *model.Session
	fill    *model.PartialPrefill
	at      int   // tokens of the prompt in the session once fill is done
	cached  int   // of these, kept
	turn    int64 // the last step with a piece of it

	counted Usage // what of its tokens the engine's counters have

	choices []*choice
	echoed  int // tokens of the prompt sent so far

	stops *dialog.Stops
	held  int64 // bytes taken from the account

	slowSince  time.Time // that many of its events are unread; zero: they are not
	yielded    bool      // others have its places
	readySince time.Time // that it could go on if it had its places again
	masks      masks
}

// choice is one answer of a request.
type choice struct {
	j       *job
	index   int
	sampler *sampling.Sampler
	text    *dialog.Answer     // nil without a tokenizer
	parts   *structured.Reader // nil: all of it is text

	session *model.Session        // nil while the prompt is read
	base    int                   // its length after the prompt
	fill    *model.PartialPrefill // recomputes an answer that lost its cache
	answer  []int32               // drawn tokens, the first fed of which went into the session
	fed     int
	drawn   int   // including the one that ended it
	step    int64 // the last step that it was in
	done    bool
	finish  model.FinishReason // of an answer that is done

	events []Event // of the step
	again  bool    // the step has the logits after the last token, too
	err    error

	// mask is what Request.Mask has returned for the next token.
	mask      []uint64
	maskErr   error
	maskState maskState
}

// growTokens is the number of tokens that an answer without a bound is given room for at
// a time.
const growTokens = 256

// sessionOptions returns the options of the request's sessions. With protected tokens,
// the policy is not the session's but that of a single prefill.
func (j *job) sessionOptions() model.SessionOptions {
	o := j.policyOptions()
	if j.req.ProbeLoss {
		o.ProbeLoss = new(model.LossOptions)
	}
	if j.req.Protected > 0 {
		o = o.WithoutCompression()
	}
	return o
}

// policyOptions returns the session options with the request's policy.
func (j *job) policyOptions() model.SessionOptions {
	return model.SessionOptions{
		Compression: j.req.Policy, CacheType: j.e.o.CacheType, CacheValues: j.e.o.CacheValues, PageEntries: j.e.o.PageEntries, ChunkTokens: j.e.chunk,
		Lookup: j.e.o.Lookup,
	}
}

// size computes how much cache the request needs, and refuses one that can never fit.
func (j *job) size() error {
	r, e := &j.req, j.e
	answer := j.answerTokens
	if r.Sampling.MaxTokens == 0 {
		answer = min(answer, growTokens)
	}
	need, err := j.bytes(answer)
	if err != nil {
		return err
	}
	j.covered, j.need = answer, need
	if err := j.measureStep(); err != nil {
		return err
	}
	if e.o.MaxBytes > 0 && need > e.o.MaxBytes {
		return &TooLargeError{Needed: need, Limit: e.o.MaxBytes, Ratio: j.fittingRatio(answer)}
	}
	return nil
}

// measureStep computes how many bytes it takes to cover growTokens more tokens. They
// differ from step to step: at first, the answers grow into the extra room that reading
// the prompt took.
func (j *job) measureStep() error {
	more := min(j.answerTokens, j.covered+growTokens)
	if j.step = 0; more == j.covered {
		return nil
	}
	later, err := j.bytes(more)
	if err != nil {
		return err
	}
	j.step = later - j.need
	return nil
}

// bytes returns the most that the request can take with answers of the given number of
// tokens.
func (j *job) bytes(answer int) (int64, error) {
	r, o := &j.req, j.policyOptions()
	rest := len(r.Prompt) - r.Context
	one, err := j.e.m.CacheEstimate(o, model.Lengths{Before: r.Protected, Context: r.Context - r.Protected, Rest: rest + answer})
	if r.ProbeLoss { // and a copy, whose survivors have pages of their own
		one.Peak *= 2
	}
	if err != nil {
		return 0, err
	}
	copies, err := j.draftBytes(answer)
	if err != nil || r.Choices == 1 {
		return one.Peak + copies, err
	}
	if j.countsPasses() { // each cuts the prompt separately, and the survivors move to pages of its own
		return max(one.Peak, int64(r.Choices)*one.Held), nil
	}
	more, err := j.furtherChoice(answer)
	return copies + max(one.Peak, one.Held+int64(r.Choices-1)*more), err
}

// fittingRatio finds the smallest ratio, in hundredths, at which the request fits.
func (j *job) fittingRatio(answer int) float64 {
	if j.req.Policy == nil {
		return 0
	}
	// The need never grows with the ratio.
	percent := 1 + sort.Search(99, func(i int) bool {
		p := *j.req.Policy
		p.BudgetTokens, p.BudgetBytes = 0, 0
		p.Ratio = float64(i+1) / 100
		try := job{e: j.e, req: j.req}
		try.req.Policy = &p
		n, err := try.bytes(answer)
		return err == nil && n <= j.e.o.MaxBytes
	})
	if percent == 100 {
		return 0
	}
	return float64(percent) / 100
}

// start gives an admitted request a session: with what was kept of its prompt, or empty.
func (j *job) start() error {
	if j.began.IsZero() {
		j.began = time.Now()
		for i := range j.req.Choices {
			c := &choice{j: j, index: i}
			if j.e.tok != nil {
				if c.text = dialog.NewAnswer(j.e.tok, j.stops); j.req.ShowSpecial {
					c.text.ShowSpecial()
				}
				if j.req.Continues || j.req.Mask != nil {
					c.text.Continue()
				}
				if j.req.KeepStop {
					c.text.KeepStop()
				}
				if j.plan != nil && j.plan.Splits() {
					c.parts = j.plan.NewReader()
				}
			}
			var err error
			if c.sampler, err = j.e.m.NewSampler(j.req.Sampling, i); err != nil {
				return err
			}
			c.sampler.Start(j.req.Prompt)
			j.choices = append(j.choices, c)
			c.askMask()
		}
	}
	j.tried = false
	return j.compute()
}

// compute gives the request a session to read its prompt with, and what it needs of the
// room that there is, or makes it wait for a file that has more of the prompt than memory
// does.
func (j *job) compute() error {
	e := j.e
	if err := j.name(); err != nil {
		return err
	}
	s, at := e.cache.find(j)
	if s == nil {
		var err error
		if s, err = e.m.NewSession(j.sessionOptions()); err != nil {
			return err
		}
	}
	// Only now, as it may drop what was found: a fork takes no memory and keeps its pages.
	// It fits, or the request would still wait.
	e.reserve(j, j.need-j.reserved)
	j.begin(s, at, at)
	if e.disk != nil && !j.tried {
		if f, n := e.disk.find(j); f != nil && n >= j.at+leastShared && e.startLoad(j, f, n) {
			j.session.Close()
			j.begin(nil, 0, 0)
		}
	}
	return nil
}

// begin lets the request continue from a session that has read the first tokens of its
// prompt, of which some were kept: by earlier requests, or by itself before it lost its
// cache.
func (j *job) begin(s *model.Session, at, cached int) {
	j.session, j.at, j.cached = s, at, cached
	if !j.preempted {
		j.stream.cached.Store(int64(cached))
	}
}

// name computes the labels under which the request's prompt is kept.
func (j *job) name() error {
	if j.label != "" {
		return nil
	}
	s, err := j.e.m.NewSession(j.policyOptions())
	if err != nil {
		return err
	}
	defer s.Close()
	if j.req.Protected > 0 {
		j.front = j.e.label(s, &Request{Salt: j.req.Salt})
	}
	j.label = j.e.label(s, &j.req)
	return nil
}

// next starts the next prefill of the prompt unless one is in progress. It reports
// whether the whole prompt has been read.
func (j *job) next() (bool, error) {
	for j.fill == nil || j.fill.Done() {
		j.fill = nil
		at, end := j.at, len(j.req.Prompt)
		if at == end {
			return true, nil
		}
		switch r := &j.req; {
		case at < r.Protected:
			end = r.Protected
		case at < r.Context:
			end = r.Context
		}
		if at > 0 && at == j.req.Protected {
			j.keepFront()
			var err error
			if j.fill, err = j.session.StartPrefillCompressed(j.req.Prompt[at:end], j.req.Policy); err != nil {
				return false, err
			}
			j.at = end
			continue
		}
		var each func(int, []float32) error
		if j.req.Echo && at >= j.req.Context {
			j.echo(at, nil)
			each = func(i int, logits []float32) error { j.echo(at+i+1, logits); return nil }
		}
		var err error
		if hidden := j.req.Hidden; hidden != nil {
			each = func(i int, state []float32) error { hidden(i, state); return nil }
			j.fill, err = j.session.StartPrefillHidden(j.req.Prompt, each)
		} else {
			j.fill, err = j.session.StartPrefill(j.req.Prompt[at:end], each)
		}
		if err != nil {
			return false, err
		}
		j.at = end
	}
	return false, nil
}

// echo sends token i of the prompt. Its log-probability comes from logits, those of the
// token before it; if they are nil, as for the first token, it has none. Tokens that
// were sent before the request lost its cache are not sent again.
func (j *job) echo(i int, logits []float32) {
	if i-j.req.Context < j.echoed || i >= len(j.req.Prompt) {
		return
	}
	j.echoed++
	t := model.Token{ID: j.req.Prompt[i], LogProb: math.NaN()}
	if logits != nil {
		t = j.choices[0].sampler.Describe(logits, t.ID)
		t.Top = slices.Clone(t.Top)
	}
	j.stream.events <- Event{Token: t, HasToken: true, Echo: true}
}

// room returns the number of events that the stream takes before answers pause.
func (j *job) room() int { return streamRoom - len(j.stream.events) }

// fork gives every choice that is not done its own session.
func (j *job) fork() error {
	j.draft()
	left := 0
	for _, c := range j.choices {
		if !c.done {
			left++
		}
	}
	for _, c := range j.choices {
		if c.done {
			continue
		}
		c.fed, c.base = 0, j.session.Len()
		if left--; left == 0 {
			c.session, j.session = j.session, nil
			break
		}
		var err error
		if c.session, err = j.session.Fork(); err != nil {
			return err
		}
	}
	return nil
}

// over reports whether all choices are done.
func (j *job) over() bool {
	for _, c := range j.choices {
		if !c.done {
			return false
		}
	}
	return true
}

// free closes all sessions of the request.
func (j *job) free() {
	if j.fill != nil {
		j.fill.Close()
		j.fill = nil
	}
	if j.session != nil {
		j.session.Close()
		j.session = nil
	}
	for _, c := range j.choices {
		c.free()
	}
}

func (c *choice) free() {
	if c.fill != nil {
		c.fill.Close()
		c.fill = nil
	}
	if c.session != nil {
		c.countDrafts()
		c.session.Close()
		c.session = nil
	}
}
