package model

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/sampling"
)

// Part is what one session does in a pass: it takes its next token, or with
// Prefill the next N tokens of that prefill, which must not be layered.
//
// After a token, a session with [SessionOptions.Lookup] or [Session.DraftCompressed]
// computes the tokens that it expects next, at most Drafts. It does not take them yet:
// [Session.Follow] does. Sampler is the one that will draw them, or nil if the most likely
// tokens will be taken; it is left as it is.
type Part struct {
	Session *Session
	Token   int32
	Drafts  int
	Sampler *sampling.Sampler
	Prefill *Prefilling
	N       int
}

// maxPassRows bounds the tokens of a pass; their activations are in memory at once.
const maxPassRows = 1 << 14

// PartError says which part of a pass an error belongs to.
type PartError struct {
	Part int
	Err  error
}

func (e *PartError) Error() string { return fmt.Sprintf("part %d: %v", e.Part, e.Err) }

// Unwrap returns the underlying error.
func (e *PartError) Unwrap() error { return e.Err }

// Pass computes parts of several sessions of this model together, in one pass over
// the weights: tokens of some, and chunks of the prompts of others. Results are
// bit-identical to those of Step and Prefill. Sessions must be distinct and not in
// use elsewhere. Those that took a token, and those whose prefill is done, have
// logits afterwards.
//
// On an error every session is left as it was, and a [PartError] says
// which part caused it, if one did; only a prefill that caused it is over. A pass
// takes at most 16,384 tokens.
func (m *Model) Pass(ctx context.Context, parts []Part) error {
	if len(parts) == 0 {
		return nil
	}
	for i := range parts {
		if parts[i].Session == nil {
			return fmt.Errorf("pass: %w", &PartError{i, errors.New("no session")})
		}
	}
	session := func(i int) *Session { return parts[i].Session }
	if at, err := enterAll(len(parts), session); err != nil {
		return fmt.Errorf("pass: %w", &PartError{at, err})
	}
	defer leaveAll(len(parts), session)
	start := time.Now()
	if err := m.passParts(ctx, parts); err != nil {
		return fmt.Errorf("pass: %w", err)
	}
	took := time.Since(start)
	for _, p := range parts {
		if p.Prefill != nil {
			p.Session.stats.PrefillTime += took
			p.Prefill.settle(nil)
		} else {
			p.Session.stats.DecodeTime += took
			p.Session.stats.Decoded++
		}
	}
	return nil
}

func (m *Model) passParts(ctx context.Context, parts []Part) error {
	if err := m.acquire(); err != nil {
		return err
	}
	defer m.release()
	rows, each, prefills := 0, false, false
	for _, p := range parts {
		prefills = prefills || p.Prefill != nil
		each = each || p.Prefill != nil && p.Prefill.f.each != nil
	}
	for i, p := range parts {
		var err error
		if p.Prefill == nil {
			if err = m.takes(p.Session, p.Token); err == nil {
				drafts := p.Drafts
				if each { // such a pass cannot be repeated
					drafts = 0
				}
				p.Session.wantsDrafts(p.Token, drafts, p.Sampler)
			}
		} else {
			err = m.takesPiece(p)
		}
		if err != nil {
			return &PartError{i, err}
		}
	}
	err := m.draftAll(ctx, len(parts), func(i int) (*Session, int32) {
		if parts[i].Prefill != nil {
			return nil, 0
		}
		return parts[i].Session, parts[i].Token
	})
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Prefill == nil {
			rows += 1 + len(p.Session.ahead.found)
		} else {
			rows += p.N
		}
	}
	if rows > maxPassRows {
		return fmt.Errorf("%d tokens, want at most %d", rows, maxPassRows)
	}
	start := time.Now()
	err = m.runDrafting(ctx, len(parts), func(i int) part {
		if f := parts[i].Prefill; f != nil {
			return part{s: parts[i].Session, f: &f.f, n: parts[i].N}
		}
		return decodes(parts[i].Session, parts[i].Token)
	})
	for i := range parts {
		if err == nil && !prefills {
			parts[i].Session.draftCache.passed(time.Since(start), len(parts))
		}
	}
	var at *PartError
	if errors.As(err, &at) && parts[at.Part].Prefill != nil {
		parts[at.Part].Prefill.settle(err)
	}
	return err
}

// takes returns an error if a session cannot take a token now.
func (m *Model) takes(s *Session, token int32) error {
	if s.m != m {
		return errors.New("it belongs to another model")
	}
	if err := s.ready(); err != nil {
		return err
	}
	if len(s.pending) > 0 && token != s.pending[0] || len(s.pending) > 1 {
		return errors.New("it has generated tokens that were not fed")
	}
	if err := s.accepts([]int32{token}); err != nil {
		return err
	}
	return s.takeTokens(1)
}

// takesPiece returns an error if a piece of a prefill cannot be run now.
func (m *Model) takesPiece(p Part) error {
	f := p.Prefill
	switch {
	case p.Session.m != m:
		return errors.New("it belongs to another model")
	case p.Session.prefilling != f:
		return fmt.Errorf("prefill: %w", errPrefillOver)
	case f.Layered():
		return errors.New("a prompt that goes layer by layer cannot share a pass")
	case p.N < 1 || p.N > len(f.f.tokens)-f.f.fed:
		return fmt.Errorf("a piece of %d tokens, want 1 to %d", p.N, len(f.f.tokens)-f.f.fed)
	}
	return nil
}

// part is what a session does in a pass: it takes a token, after which the n-1
// drafts in ahead.found are computed, or the next n tokens of f.
type part struct {
	s     *Session
	f     *feeding
	token int32
	n     int

	at      int  // row of batch with its first wanted logits
	damaged bool // they are not finite
}

// decodes returns the part for a token and the drafts that were found for it.
func decodes(s *Session, token int32) part {
	return part{s: s, token: token, n: 1 + len(s.ahead.found)}
}

// end returns the length of the sequence at the end of the call that the part belongs to.
func (p *part) end() int {
	if p.f == nil {
		return p.s.pos + p.n
	}
	return p.f.end()
}

// taken returns how many of the part's rows the session takes.
func (p *part) taken() int {
	if p.f == nil {
		return 1
	}
	return p.n
}

// logits returns the number of rows at the part's end whose logits are wanted.
func (p *part) logits() int {
	switch {
	case p.f == nil:
		return p.n
	case p.last() && !p.f.hidden:
		return 1
	}
	return 0
}

// runDrafting is runParts for parts with drafts: if it fails, perhaps because a cache
// has no room for the drafts, it is repeated without them.
func (m *Model) runDrafting(ctx context.Context, n int, at func(i int) part) error {
	drafts := false
	for i := range n {
		p := at(i)
		drafts = drafts || p.f == nil && p.n > 1
	}
	err := m.runParts(ctx, n, at)
	if err == nil || !drafts || ctx.Err() != nil || errors.Is(err, kernels.ErrDeviceLost) {
		return err
	}
	for i := range n {
		if p := at(i); p.f == nil {
			p.s.undraft()
		}
	}
	return m.runParts(ctx, n, at)
}

// last reports whether the logits of the part's last row are wanted.
func (p *part) last() bool { return p.f == nil || p.f.fed+p.n == len(p.f.tokens) }

// runParts runs n parts in one pass or, on a device, in one for each page layout.
func (m *Model) runParts(ctx context.Context, n int, at func(i int) part) error {
	first := at(0).s.page()
	alike, rows := true, 0
	for i := range n {
		p := at(i)
		alike = alike && (m.acc == nil || p.s.page() == first)
		rows += p.n
	}
	if !alike {
		return m.runUnlike(ctx, n, at)
	}
	r, err := m.runs.get(rows, n, first)
	if err != nil {
		return err
	}
	defer m.runs.put(r)
	for i := range n {
		r.parts = append(r.parts, at(i))
	}
	return r.computeAndCommit(ctx)
}

// computeAndCommit runs the parts of a run. If they fail, or a callback panics,
// nothing of them remains.
func (r *run) computeAndCommit(ctx context.Context) error {
	beforeParts(r.parts)
	done := false
	defer func() {
		if !done {
			undoParts(nil, r.parts)
		}
	}()
	if len(r.parts) == 1 {
		r.parts[0].s.computes(&r.pass)
		defer r.parts[0].s.computes(nil)
	} else {
		share(r.parts, r.parts)
		defer share(r.parts, nil)
	}
	err := r.computeAndSettle(ctx)
	if done = true; err != nil {
		return undoParts(err, r.parts)
	}
	return r.commit()
}

// runUnlike runs parts of sessions whose caches have different page layouts on a
// device. Nothing is committed before all are computed.
func (m *Model) runUnlike(ctx context.Context, n int, at func(i int) part) error {
	groups := map[kernels.PageLayout][]part{}
	var all []part
	for i := range n {
		p := at(i)
		all = append(all, p)
		groups[p.s.page()] = append(groups[p.s.page()], p)
	}
	beforeParts(all)
	share(all, all)
	defer share(all, nil)
	var runs []*run
	defer func() {
		for _, r := range runs {
			m.runs.put(r)
		}
	}()
	for page, parts := range groups {
		rows := 0
		for _, p := range parts {
			rows += p.n
		}
		r, err := m.runs.get(rows, len(parts), page)
		if err != nil {
			return undoParts(err, all)
		}
		runs = append(runs, r)
		r.parts = append(r.parts, parts...)
		if err = r.computeAndSettle(ctx); err != nil {
			return undoParts(err, all)
		}
	}
	var err error
	for _, r := range runs {
		err = errors.Join(err, r.commit())
	}
	return err
}

// computeAndSettle does everything in a run that can fail by itself.
func (r *run) computeAndSettle(ctx context.Context) error {
	if err := r.compute(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil { // since the last layer checked
		return context.Cause(ctx)
	}
	return r.settle(ctx)
}

// beforeParts remembers the state that undoParts restores.
func beforeParts(parts []part) {
	for i := range parts {
		p := &parts[i]
		p.s.comp.beforePass(p.taken())
		if p.f != nil {
			p.f.before = p.f.work
		}
	}
}

// undoParts removes the entries of a failed pass.
func undoParts(err error, parts []part) error {
	for i := range parts {
		s := parts[i].s
		err = s.undo(err, s.pos, s.comp.rollback)
		if f := parts[i].f; f != nil { // it may go on, with as much work left as before
			f.work = f.before
		}
	}
	return err
}

// compute runs the parts of a run and leaves the wanted logits in batch.
func (r *run) compute(ctx context.Context) (err error) {
	was := debug.SetPanicOnFault(true)
	defer func() { r.m.weights.EndReading(was, recover(), &err) }()
	if err := r.computeParts(ctx); err != nil {
		return err
	}
	return r.checkLogits()
}

// checkLogits returns an error if wanted logits are not finite.
func (r *run) checkLogits() error {
	r.each(len(r.parts), 1, (*checkStage)(r))
	for i := range r.parts {
		if p := &r.parts[i]; p.damaged {
			return &PartError{i, p.s.notFinite(p.n)}
		}
	}
	return nil
}

// checkStage looks at the logits of parts; those of drafts do not matter yet.
type checkStage run

func (st *checkStage) Run(lo, hi, _ int) {
	for i := lo; i < hi; i++ {
		p := &st.parts[i]
		p.damaged = p.logits() > 0 && !finite((*run)(st).rowsOf(p, 1))
	}
}

// rowsOf returns the first n rows of a part's wanted logits.
func (r *run) rowsOf(p *part, n int) []float32 {
	vocab := r.m.cfg.Vocab
	return r.batch[p.at*vocab : (p.at+n)*vocab]
}

func (r *run) computeParts(ctx context.Context) error {
	r.tokens, r.wanted = r.tokens[:0], r.wanted[:0]
	prompts, drafts := false, false
	for i := range r.parts {
		p := &r.parts[i]
		if err := p.s.refill(ctx, p.end()); err != nil {
			return &PartError{i, err}
		}
		p.at = len(r.wanted)
		for row := p.n - p.logits(); row < p.n; row++ {
			r.wanted = append(r.wanted, r.rows+row)
		}
		if p.f == nil {
			r.add(p.s, 0, p.n, p.end(), p.s.comp.watchDecode(p.s, false))
			r.tokens = append(append(r.tokens, p.token), p.s.ahead.found...)
			drafts = drafts || p.n > 1
			continue
		}
		prompts = true
		r.add(p.s, 0, p.n, p.end(), p.f.watch)
		r.tokens = append(r.tokens, p.f.tokens[p.f.fed:p.f.fed+p.n]...)
	}
	if !prompts {
		if err := r.forward(ctx, r.tokens, !drafts, nil); err != nil {
			return err
		}
		return r.wantedLogits(ctx)
	}
	defer r.watchContext(ctx)()
	if err := r.forward(ctx, r.tokens, false, r.progress); err != nil {
		return err
	}
	if err := r.wantedLogits(ctx); err != nil {
		return err
	}
	return r.emitEach(ctx)
}

// progress tells the prompts in the pass how many more layers are done.
func (r *run) progress(layers int) {
	for i := range r.parts {
		if p := &r.parts[i]; p.f != nil {
			p.f.progress(layers * p.n)
		}
	}
}

// room returns memory for n rows of logits.
func (r *run) room(n, vocab int) []float32 {
	if cap(r.batch) < n*vocab {
		r.batch = make([]float32, n*vocab)
	}
	return r.batch[:n*vocab]
}

// wantedLogits computes the logits of the wanted rows, adjacent ones together.
func (r *run) wantedLogits(ctx context.Context) error {
	vocab := r.m.cfg.Vocab
	out := r.room(len(r.wanted), vocab)
	for from := 0; from < len(r.wanted); {
		n := 1
		for from+n < len(r.wanted) && r.wanted[from+n] == r.wanted[from]+n && n < r.logitRows() {
			n++
		}
		if err := r.logits(ctx, out[from*vocab:(from+n)*vocab], r.wanted[from], n); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// emitEach hands all logits of a chunk to the callbacks that want them.
func (r *run) emitEach(ctx context.Context) error {
	for i := range r.parts {
		p := &r.parts[i]
		if p.f == nil || !p.f.emits() {
			continue
		}
		if p.f.hidden {
			if err := r.emitHidden(ctx, p, r.spans[i].row); err != nil {
				return &PartError{i, err}
			}
			continue
		}
		row := r.spans[i].row - p.f.fed // of the prompt's first token, if it were in this pass
		compute := func(dst []float32, first, n int) error { return r.logits(ctx, dst, row+first, n) }
		if err := p.f.emitEach(p.f.fed, p.f.fed+p.n, r.logitRows(), compute); err != nil {
			return &PartError{i, err}
		}
	}
	return nil
}

// settle decides what the compression while decoding evicts, the last step that can
// fail by itself.
func (r *run) settle(ctx context.Context) error {
	for i := range r.parts {
		p := &r.parts[i]
		var err error
		switch {
		case p.f == nil:
			err = p.s.comp.afterPass(ctx, p.s, 1, p.s.pos+1, false)
		case p.last():
			err = p.s.comp.afterPass(ctx, p.s, len(p.f.tokens), p.f.end(), p.f.first())
		}
		if err != nil {
			return &PartError{i, err}
		}
	}
	return nil
}

// commit makes what compute did part of the sessions. No callback runs before all of
// them have advanced.
func (r *run) commit() error {
	var errs error
	r.each(len(r.parts), 1, (*keepStage)(r))
	for i := range r.parts {
		p := &r.parts[i]
		s := p.s
		n := p.logits()
		s.hasLogits = s.hasLogits || n > 0
		from := r.spans[i].row
		s.commit(r.tokens[from : from+p.taken()])
		s.dropWindows()
		if p.f == nil && n > 1 {
			s.stats.Verified++
			if err := s.foresee(r.tokens[from+1:from+n], r.rowsOf(p, n)[r.m.cfg.Vocab:]); err != nil {
				errs = errors.Join(errs, &PartError{i, err})
			}
		}
		if p.f != nil {
			p.f.complete = p.last()
			p.f.fed += p.n
		}
	}
	r.cut()
	return errs
}

// keepStage copies logits to the sessions of parts.
type keepStage run

func (st *keepStage) Run(lo, hi, _ int) {
	for i := lo; i < hi; i++ {
		if p := &st.parts[i]; p.logits() > 0 {
			copy(p.s.logitRow(), (*run)(st).rowsOf(p, 1))
		}
	}
}

// cut evicts what the compression while decoding decided, even if a callback of one of
// the sessions does not return.
func (r *run) cut() {
	defer func() {
		for i := range r.parts {
			_ = r.parts[i].s.comp.cut(r.parts[i].s) // what is left is cut by the next call
		}
	}()
	for i := range r.parts {
		r.parts[i].s.comp.report(r.parts[i].s)
	}
}

// logitRow returns the memory in which the session keeps its logits.
func (s *Session) logitRow() []float32 {
	if s.logits == nil {
		s.logits = make([]float32, s.m.cfg.Vocab)
	}
	return s.logits
}
