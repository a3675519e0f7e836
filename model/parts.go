package model

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/lukv/lukv/kernels"
)

// part is what a session does in a pass: it takes a token, after which the n-1
// drafts in ahead.found are computed, or the next n tokens of f.
type part struct {
	s     *Session
	f     *prefillState
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

// last reports whether the logits of the part's last row are wanted.
func (p *part) last() bool { return p.f == nil || p.f.fed+p.n == len(p.f.tokens) }

// runParts runs n parts in one pass or, on a device, in one for each page layout.
func (m *Model) runParts(ctx context.Context, n int, at func(i int) part) error {
	first := at(0).s.page()
	alike, rows := true, 0
	for i := range n {
		p := at(i)
		alike = alike && (m.net.Device == nil || p.s.page() == first)
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
		r.parts[0].s.computes(r.Pass)
		defer r.parts[0].s.computes(nil)
	} else {
		share(r.parts, r.parts)
		defer share(r.parts, nil)
	}
	err := r.computeAndDecide(ctx)
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
		if err = r.computeAndDecide(ctx); err != nil {
			return undoParts(err, all)
		}
	}
	var err error
	for _, r := range runs {
		err = errors.Join(err, r.commit())
	}
	return err
}

// computeAndDecide does everything in a run that can fail by itself.
func (r *run) computeAndDecide(ctx context.Context) error {
	if err := r.compute(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil { // since the last layer checked
		return context.Cause(ctx)
	}
	return r.decideCuts(ctx)
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
	r.Each(len(r.parts), 1, (*checkStage)(r))
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
			r.wanted = append(r.wanted, r.Rows()+row)
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
		if err := r.Forward(ctx, r.tokens, !drafts, nil); err != nil {
			return err
		}
		return r.wantedLogits(ctx)
	}
	defer r.WatchContext(ctx)()
	if err := r.Forward(ctx, r.tokens, false, r.progress); err != nil {
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

// wantedLogits computes the logits of the wanted rows, adjacent ones together.
func (r *run) wantedLogits(ctx context.Context) error {
	vocab := r.m.cfg.Vocab
	out := r.room(len(r.wanted), vocab)
	for from := 0; from < len(r.wanted); {
		n := 1
		for from+n < len(r.wanted) && r.wanted[from+n] == r.wanted[from]+n && n < r.LogitRows() {
			n++
		}
		if err := r.Logits(ctx, out[from*vocab:(from+n)*vocab], r.wanted[from], n); err != nil {
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
			if err := r.emitHidden(ctx, p, r.First(i)); err != nil {
				return &PartError{i, err}
			}
			continue
		}
		row := r.First(i) - p.f.fed // of the prompt's first token, if it were in this pass
		compute := func(dst []float32, first, n int) error { return r.Logits(ctx, dst, row+first, n) }
		if err := p.f.emitEach(p.f.fed, p.f.fed+p.n, r.LogitRows(), compute); err != nil {
			return &PartError{i, err}
		}
	}
	return nil
}

// decideCuts decides what the compression while decoding evicts, the last step that can
// fail by itself.
func (r *run) decideCuts(ctx context.Context) error {
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
	r.Each(len(r.parts), 1, (*keepStage)(r))
	for i := range r.parts {
		p := &r.parts[i]
		s := p.s
		n := p.logits()
		s.hasLogits = s.hasLogits || n > 0
		from := r.First(i)
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
