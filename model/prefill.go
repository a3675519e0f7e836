package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
)

// Prefill feeds tokens. If the session is empty and has a compression policy,
// the tokens are the context that the policy compresses: layer by layer, so
// that the cache never holds more than the compressed layers and one whole one
// (for allocators that can decide so early). Later calls append without
// compressing.
//
// When ctx is done, Prefill returns soon with its error; the session then
// is left at its last completed token and can be used again.
func (s *Session) Prefill(ctx context.Context, tokens []int32) error {
	return s.feed(ctx, func() (*PartialPrefill, error) { return s.startPrefill(tokens, nil, nil) })
}

// PrefillCompressed is Prefill for tokens that are compressed by a policy of their own,
// wherever the session stands: a document after a system prompt, a second document.
// It goes layer by layer, like the first prefill of a session with a policy, with the
// same bound on the peak; entries before the tokens stay. A token generated before and
// not fed yet is the first of them. The session is bit-identical to one after Prefill
// and [Session.Compress]; see there.
func (s *Session) PrefillCompressed(ctx context.Context, tokens []int32, policy *lukv.Policy) error {
	return s.feed(ctx, func() (*PartialPrefill, error) { return s.startCompressed(tokens, policy) })
}

// prefillCompression resolves a policy that compresses the next n tokens.
func (s *Session) prefillCompression(n int, policy *lukv.Policy) (*compression, error) {
	comp, err := s.spanCompression(policy)
	if err == nil && s.comp != nil && s.comp.decode != nil && comp.touches(s.Len(), n) {
		err = errors.New("the session compresses while decoding, where a later prefill is one pass; expected Prefill and then Compress")
	}
	return comp, err
}

// PrefillEach is like Prefill but calls each with the logits, [Vocab], after every
// token i of tokens. They are valid during the call. An error ends the prefill
// and is returned. Tokens generated before and not fed yet (see Generate) are
// fed first, without a call.
func (s *Session) PrefillEach(ctx context.Context, tokens []int32, each func(i int, logits []float32) error) error {
	return s.feed(ctx, func() (*PartialPrefill, error) { return s.startPrefill(tokens, each, nil) })
}

// feed runs the prefill that start begins to completion.
func (s *Session) feed(ctx context.Context, start func() (*PartialPrefill, error)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	if err := s.enter(); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	defer s.leave()
	p, err := start()
	if err != nil {
		return err
	}
	defer p.close()
	ctx, cancel := s.cancellable(ctx)
	defer cancel(nil)
	for !p.Done() {
		if err := p.advance(ctx, s.opts.ChunkTokens); err != nil {
			return err
		}
	}
	return nil
}

// PartialPrefill is a prefill that is done in pieces: by [PartialPrefill.Advance], or in
// passes that it shares with other sessions, see [Model.Pass]. Its result is
// bit-identical to that of [Session.Prefill], however it is divided. Until it is done
// or closed the session can do nothing else. It belongs to one goroutine at a time.
type PartialPrefill struct {
	s    *Session
	f    prefillState
	over bool // done, failed or closed
}

// StartPrefill begins to feed tokens but processes none yet. each, which may be
// nil, is that of [Session.PrefillEach]. The caller closes the result.
func (s *Session) StartPrefill(tokens []int32, each func(i int, logits []float32) error) (*PartialPrefill, error) {
	if err := s.enter(); err != nil {
		return nil, fmt.Errorf("prefill: %w", err)
	}
	defer s.leave()
	return s.startPrefill(tokens, each, nil)
}

// StartPrefillCompressed is StartPrefill for tokens that are compressed by a policy
// of their own: [Session.PrefillCompressed] piece by piece.
func (s *Session) StartPrefillCompressed(tokens []int32, policy *lukv.Policy) (*PartialPrefill, error) {
	if err := s.enter(); err != nil {
		return nil, fmt.Errorf("compressed prefill: %w", err)
	}
	defer s.leave()
	return s.startCompressed(tokens, policy)
}

// startCompressed is StartPrefillCompressed within a call.
func (s *Session) startCompressed(tokens []int32, policy *lukv.Policy) (*PartialPrefill, error) {
	comp, err := s.prefillCompression(len(tokens), policy)
	if err != nil {
		return nil, fmt.Errorf("compressed prefill: %w", err)
	}
	return s.startPrefill(tokens, nil, comp)
}

// startPrefill is StartPrefill with a compression of the tokens. If comp is nil, the
// session's own compresses them, provided that they are its first.
func (s *Session) startPrefill(tokens []int32, each func(i int, logits []float32) error, comp *compression) (*PartialPrefill, error) {
	if err := s.ready(); err != nil {
		return nil, fmt.Errorf("prefill: %w", err)
	}
	skip := len(s.pending)
	tokens = slices.Concat(s.pending, tokens) // the caller's may change before they are fed
	if comp == nil && s.pos == 0 {
		comp = s.comp
	}
	p := &PartialPrefill{s: s, f: prefillState{s: s, tokens: tokens, each: each, skip: skip, comp: comp}}
	if len(tokens) == 0 {
		p.over = true
		return p, nil
	}
	if err := s.accepts(tokens); err != nil {
		return nil, fmt.Errorf("prefill: %w", err)
	}
	if err := s.checkMemory(len(tokens), comp); err != nil {
		return nil, fmt.Errorf("prefill of %d tokens: %w", len(tokens), err)
	}
	if err := s.takeTokens(len(tokens)); err != nil {
		return nil, fmt.Errorf("prefill of %d tokens: %w", len(tokens), err)
	}
	if err := p.f.begin(); err != nil {
		return nil, fmt.Errorf("prefill of %d tokens: %w", len(tokens), err)
	}
	s.prefilling = p
	return p, nil
}

// Done reports whether all tokens are in the cache.
func (p *PartialPrefill) Done() bool { return p.over }

// Remaining returns the work left, in tokens through all layers, rounded up. Tokens
// that the session repeats for a metric are included.
func (p *PartialPrefill) Remaining() int {
	if p.over {
		return 0
	}
	layers := p.s.m.cfg.Layers
	return (p.f.total() - p.f.work + layers - 1) / layers
}

// Layered reports whether the prompt goes through the model layer by layer, as it
// does when a policy compresses it; it then cannot share passes.
func (p *PartialPrefill) Layered() bool { return p.f.job != nil }

// Advance does about as much work as n tokens through all layers take, in whole
// units: a piece of the prompt, at most a chunk, through one layer or through all;
// or a chunk that is repeated for a metric, through one layer. If ctx is done
// from the start, or the session is in use, nothing happens and the prefill can
// go on. After an error while computing it is over; the session stands at its
// last completed token: the end of the last chunk, or where it stood before, if
// the prompt was to be compressed.
func (p *PartialPrefill) Advance(ctx context.Context, n int) error {
	s := p.s
	if err := s.enter(); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	defer s.leave()
	ctx, cancel := s.cancellable(ctx)
	defer cancel(nil)
	return p.advance(ctx, n)
}

func (p *PartialPrefill) advance(ctx context.Context, n int) error {
	if p.over {
		return fmt.Errorf("prefill: %w", errPrefillOver)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("prefill: %w", context.Cause(ctx))
	}
	s := p.s
	if err := s.m.acquire(); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	defer s.m.release()
	start := time.Now()
	var err error
	if p.Layered() {
		err = p.f.units(ctx, n)
	} else {
		err = s.m.advance(ctx, p, n)
	}
	s.stats.PrefillTime += time.Since(start)
	if closed := s.closing(); closed != nil && errors.Is(err, context.Canceled) {
		err = closed // the error says that the context was cancelled, but the caller's was not
	}
	p.finishIfDone(err)
	if err != nil {
		return fmt.Errorf("prefill of %d tokens: %w", len(p.f.tokens), err)
	}
	return nil
}

var errPrefillOver = errors.New("already done, failed or closed")

// finishIfDone ends the prefill if a piece was the last or failed.
func (p *PartialPrefill) finishIfDone(err error) {
	if err != nil || p.f.complete {
		p.end()
	}
}

func (p *PartialPrefill) end() {
	p.over = true
	if p.s.pos == p.f.start && !p.f.complete { // nothing has happened
		p.s.hasLogits = p.f.had
	}
	p.f.release()
	p.s.trimReadings()
	p.s.prefilling = nil
}

// Close ends a prefill. If it is not done, the session is left as after an
// error of Advance. Closing twice is fine.
func (p *PartialPrefill) Close() error {
	if err := p.s.enter(); err != nil {
		if errors.Is(err, ErrClosed) { // with the session
			return nil
		}
		return fmt.Errorf("close a prefill: %w", err)
	}
	defer p.s.leave()
	return p.close()
}

func (p *PartialPrefill) close() error {
	if p.over {
		return nil
	}
	var err error
	if p.Layered() {
		err = p.f.rollBack(nil)
	}
	p.end()
	return err
}

// advance runs the next n tokens of a prefill chunk by chunk through all layers.
func (m *Model) advance(ctx context.Context, p *PartialPrefill, n int) error {
	n = min(n, p.s.opts.ChunkTokens, len(p.f.tokens)-p.f.fed)
	r, err := m.runs.get(n, 1, p.s.page())
	if err != nil {
		return err
	}
	defer m.runs.put(r)
	r.parts = append(r.parts[:0], part{s: p.s, f: &p.f, n: n})
	return r.computeAndCommit(ctx)
}

// prefillState is one prefill in progress.
type prefillState struct {
	s      *Session
	tokens []int32
	each   func(i int, logits []float32) error
	skip   int  // leading tokens that each is not called for
	hidden bool // each wants hidden states, and nobody logits

	comp *compression // of the tokens, nil if they are not compressed

	// job is told of every layer as it is done; with one, the prefill runs layer
	// by layer over the whole prompt instead of chunk by chunk.
	job   layerJob
	sweep *lossSweep // of the job, nil unless the loss is to be measured

	start    int            // position of the first token
	saved    *kvcache.Cache // as of start, if windows forbid going back; otherwise nil
	had      bool           // logits before
	notes    []string       // before
	context  int            // ContextTokens before
	work     int            // token-layers done, for progress
	complete bool

	fed    int              // tokens fed, chunk by chunk
	watch  *forward.Watcher // of the chunks
	before int              // work when the pass in progress began

	// The next unit of a layer-by-layer prefill: row from of layer at, or the logits
	// after the last layer.
	r        *run // while it runs
	keep     bool // the caller gives the run back
	x        *forward.Stream
	at, from int
	w        *forward.Watcher // of the layer
}

// begin decides how the prompt is fed. After an error nothing has changed.
func (f *prefillState) begin() error {
	s := f.s
	f.start, f.notes, f.context = s.pos, s.notes, s.stats.ContextTokens
	if f.job == nil && f.comp.touches(f.start, len(f.tokens)) {
		sweep, err := s.newSweep(f.tokens)
		if err != nil {
			return err
		}
		job := f.comp.begin(s, f.start, f.tokens)
		job.sweep = sweep
		f.job, f.sweep = job, sweep
	}
	if f.job != nil {
		err := f.job.prepare()
		if err == nil && f.start > 0 && s.windowed() {
			f.saved, err = s.cache.Fork()
		}
		if err != nil {
			f.job.release()
			return err
		}
	} else {
		f.watch = s.comp.watchDecode(s, f.first())
	}
	f.startReadings()
	f.had, s.hasLogits = s.hasLogits, false
	return nil
}

// first reports whether this is the session's first prefill: a later one is a
// decoding pass of many tokens.
func (f *prefillState) first() bool { return f.start == 0 }

// end returns the position after the last token.
func (f *prefillState) end() int { return f.start + len(f.tokens) }

func (f *prefillState) progress(n int) {
	f.work += n
	if f.s.opts.Progress != nil {
		defer f.s.callBack()()
		f.s.opts.Progress(f.work, f.total())
	}
}

// total returns the total work in token-layers.
func (f *prefillState) total() int {
	rows := len(f.tokens)
	if f.job != nil {
		rows += f.job.aside() + f.sweep.readRows() // the head and ln p take about as long as the layers
	}
	return rows * f.s.m.cfg.Layers
}

// units runs units of a layer-by-layer prefill until they amount to n tokens through
// all layers. Nothing of a failed prefill remains.
func (f *prefillState) units(ctx context.Context, n int) error {
	s, m := f.s, f.s.m
	var err error
	if f.r == nil {
		if err = m.weights.Reading(func() error { return f.refill(ctx) }); err != nil {
			return f.rollBack(err)
		}
		if f.r, err = m.runs.get(min(len(f.tokens), s.opts.ChunkTokens), 1, s.page()); err == nil {
			err = m.weights.Reading(func() (err error) {
				if f.x, err = f.r.newStream(f.tokens); err != nil {
					return err
				}
				return f.job.embed(f.r)
			})
		}
	}
	if err == nil {
		err = m.weights.Reading(func() error { return f.unitsTo(ctx, n*m.cfg.Layers) })
	}
	if err != nil {
		return f.rollBack(err)
	}
	return nil
}

// refill is that of the session; what rollBack restores follows.
func (f *prefillState) refill(ctx context.Context) error {
	was := f.s.cache
	if err := f.s.refill(ctx, f.end()); err != nil || f.s.cache == was || f.saved == nil {
		return err
	}
	saved, err := f.s.cache.Fork()
	if err != nil {
		return err
	}
	old := f.saved
	f.saved = saved
	return old.Close()
}

// unitsTo runs units until that many more token-layers are done.
func (f *prefillState) unitsTo(ctx context.Context, rows int) error {
	defer f.r.WatchContext(ctx)()
	goal, piece := f.work+rows, min(rows, f.s.opts.ChunkTokens)
	for f.at < f.s.m.cfg.Layers && f.work < goal {
		if err := f.unit(ctx, piece); err != nil {
			return err
		}
	}
	if f.at < f.s.m.cfg.Layers {
		return nil
	}
	for {
		if f.work >= goal && f.work < f.total() {
			return nil
		}
		n, err := f.sweep.read(ctx, f.r, f.x, max(1, (goal-f.work)/f.s.m.cfg.Layers))
		if err != nil {
			return err
		}
		if n == 0 {
			return f.finish(ctx)
		}
		f.progress(n * f.s.m.cfg.Layers)
	}
}

// unit runs at most rows tokens through one layer, or does a piece of what follows it.
func (f *prefillState) unit(ctx context.Context, rows int) error {
	if f.from < len(f.tokens) {
		if err := f.through(ctx, rows); err != nil {
			return err
		}
		if f.from < len(f.tokens) || f.job.aside() > 0 {
			return nil
		}
	}
	n, more, err := f.job.layerDone(ctx, f.at, rows)
	if err != nil {
		return err
	}
	if n > 0 {
		f.progress(n)
	}
	if !more {
		f.at, f.from = f.at+1, 0
	}
	return nil
}

// through runs the next tokens, at most rows, through the layer in progress.
func (f *prefillState) through(ctx context.Context, rows int) error {
	s, r := f.s, f.r
	if f.from == 0 {
		var err error
		if f.w, err = f.job.watch(r, f.at); err != nil {
			return fmt.Errorf("layer %d: %w", f.at, err)
		}
	}
	n := min(rows, len(f.tokens)-f.from)
	r.reset()
	r.add(s, f.from, n, f.end(), f.w)
	if err := r.ForwardLayer(ctx, f.at, f.x, f.from); err != nil {
		return err
	}
	f.from += n
	s.dropWindow(f.at, f.start+f.from)
	f.progress(n)
	return nil
}

// finish ends a prefill whose layers are all done.
func (f *prefillState) finish(ctx context.Context) error {
	s := f.s
	if err := f.job.finish(ctx); err != nil {
		return err
	}
	probe := f.sweep.finish()
	logits, err := f.emitAll(ctx)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // a short prompt is over before a pass notices
		return context.Cause(ctx)
	}
	next := f.end()
	if f.comp != nil && f.comp.renumber {
		var err error
		if next, err = s.renumber(next); err != nil {
			return err
		}
	}
	if err := s.comp.afterPass(ctx, s, len(f.tokens), next, true); err != nil {
		return err
	}
	copy(s.logitRow(), logits)
	s.commit(f.tokens)
	if s.pos = next; next != f.end() {
		s.renumbered = true
	}
	if f.comp != nil && f.comp != s.comp {
		s.compressedBy(f.comp)
	}
	s.hasLogits, s.probe = true, probe
	f.complete = true
	s.cut()
	f.job.done()
	return nil
}

// rollBack undoes everything that a layer-by-layer prefill has done.
func (f *prefillState) rollBack(err error) error {
	f.s.notes, f.s.stats.ContextTokens = f.notes, f.context
	if f.saved != nil {
		f.s.cache, f.saved = f.saved, f.s.cache // release closes the other one
		return err
	}
	return f.s.undo(err, f.start, func() {
		if f.start == 0 { // later, no session that compresses while decoding gets here
			f.s.comp.reset()
		}
	})
}

// release gives back what a layer-by-layer prefill holds.
func (f *prefillState) release() {
	if f.job != nil {
		f.job.release()
	}
	if f.saved != nil {
		// Closing fails only if the device has failed, which the next call reports.
		_ = f.saved.Close()
		f.saved = nil
	}
	if f.x != nil {
		f.x.Close()
		f.x = nil
	}
	if f.r != nil {
		f.r.Release()
	}
	if f.r != nil && !f.keep {
		f.s.m.runs.put(f.r)
		f.r = nil
	}
}

// emitAll computes the wanted logits of a prompt whose residual stream is complete: all
// of them for each, and the last, which it returns, since the session keeps its own until
// nothing can fail any more.
func (f *prefillState) emitAll(ctx context.Context) ([]float32, error) {
	compute := func(dst []float32, first, n int) error { return f.r.StreamLogits(ctx, dst, f.x, first, n) }
	if f.emits() {
		if err := f.emitEach(0, len(f.tokens), f.r.LogitRows(), compute); err != nil {
			return nil, err
		}
	}
	last := f.r.room(1, f.s.m.cfg.Vocab)
	if err := compute(last, len(f.tokens)-1, 1); err != nil {
		return nil, err
	}
	if !finite(last) {
		return nil, f.s.notFinite(1)
	}
	return last, nil
}

// emitEach hands out the logits of tokens [from, to). compute writes those of n tokens
// from first on, at most rows at a time, to dst.
func (f *prefillState) emitEach(from, to, rows int, compute func(dst []float32, first, n int) error) error {
	vocab := f.s.m.cfg.Vocab
	buf := make([]float32, min(rows, to-from)*vocab)
	for i := max(from, f.skip); i < to; i += rows {
		k := min(rows, to-i)
		if err := compute(buf[:k*vocab], i, k); err != nil {
			return err
		}
		f.read(i, k, buf)
		for j := 0; j < k && f.each != nil; j++ {
			if err := f.hand(i+j-f.skip, buf[j*vocab:(j+1)*vocab]); err != nil {
				return err
			}
		}
	}
	return nil
}

// hand passes logits to the caller's function.
func (f *prefillState) hand(i int, logits []float32) error {
	defer f.s.callBack()()
	if err := f.each(i, logits); err != nil {
		return err
	}
	return f.s.closing()
}
