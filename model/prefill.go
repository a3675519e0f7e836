package model

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Prefill feeds tokens. If the session is empty and has a compression policy,
// the tokens are the context that the policy compresses: layer by layer, so
// that the cache never holds more than the compressed layers and one whole one
// (for allocators that can decide so early). Later calls append without
// compressing.
//
// When ctx is done, Prefill returns soon with its error; the session then
// stands at its last completed token and can be used again.
func (s *Session) Prefill(ctx context.Context, tokens []int32) error {
	return s.feed(ctx, tokens, nil)
}

// PrefillEach is Prefill that calls each with the logits, [Vocab], after every
// token i of tokens. They are valid during the call. An error ends the prefill
// and is returned. Tokens generated before and not fed yet (see Generate) go
// first and get no call.
func (s *Session) PrefillEach(ctx context.Context, tokens []int32, each func(i int, logits []float32) error) error {
	return s.feed(ctx, tokens, each)
}

func (s *Session) feed(ctx context.Context, tokens []int32, each func(i int, logits []float32) error) error {
	if err := s.ready(); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	skip := len(s.pending)
	if skip > 0 {
		tokens = slices.Concat(s.pending, tokens)
	}
	if len(tokens) == 0 {
		return nil
	}
	if err := s.accepts(tokens); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	if err := s.m.acquire(); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	defer s.m.release()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	start := time.Now()
	s.hasLogits = false
	f := feeding{ctx: ctx, s: s, tokens: tokens, each: each, skip: skip}
	err := f.run()
	s.stats.PrefillTime += time.Since(start)
	if err != nil {
		return fmt.Errorf("prefill of %d tokens: %w", len(tokens), err)
	}
	return nil
}

// feeding is one prefill in progress.
type feeding struct {
	ctx    context.Context
	s      *Session
	tokens []int32
	each   func(i int, logits []float32) error
	skip   int // tokens in front that each does not hear of

	// job is told of every layer as it is done; with one, the prefill runs layer
	// by layer over the whole prompt instead of chunk by chunk.
	job layerJob

	r     *run
	keep  bool // the caller gives the run back
	start int  // position of the first token
	done  int  // token-layers, for progress
}

// layerJob follows a prefill that runs layer by layer. watch returns the
// watcher of the layer that r is about to run, or nil; finish is called after the
// last, release at the end, also of a prefill that failed.
type layerJob interface {
	watch(r *run, at int) (*watcher, error)
	layerDone(ctx context.Context, at int) error
	finish(ctx context.Context) error
	release()
}

func (f *feeding) run() error {
	s, m := f.s, f.s.m
	f.start = s.pos
	var err error
	if f.r, err = m.runs.get(min(len(f.tokens), s.opts.ChunkTokens), 1, s.page()); err != nil {
		return err
	}
	if !f.keep {
		defer m.runs.put(f.r)
	}
	defer f.r.watchContext(f.ctx)()
	if f.job == nil && f.start == 0 && s.comp.prefillEnabled(len(f.tokens)) {
		f.job = s.comp.begin(s, len(f.tokens))
	}
	if f.job != nil {
		defer f.job.release()
		return f.byLayer()
	}
	return f.byChunk()
}

func (f *feeding) progress(n int) {
	f.done += n
	if f.s.opts.Progress != nil {
		f.s.opts.Progress(f.done, len(f.tokens)*f.s.m.cfg.Layers)
	}
}

// byChunk runs all layers over one chunk after the other. Chunks that are
// complete stay when a later one fails.
func (f *feeding) byChunk() error {
	s, r, c := f.s, f.r, f.s.m.cfg
	first := f.start == 0 // a later prefill is a decoding pass of many tokens
	w := s.comp.watchDecode(s, first)
	for from := 0; from < len(f.tokens); from += r.cap {
		n := min(r.cap, len(f.tokens)-from)
		r.reset()
		r.add(s, 0, n, f.start+len(f.tokens), w)
		err := r.forward(f.ctx, f.tokens[from:from+n], false, func(layers int) { f.progress(layers * n) })
		if err == nil {
			err = f.emit(nil, from, n)
		}
		if err != nil {
			return s.undo(err, s.pos)
		}
		s.commit(f.tokens[from : from+n])
		for at, win := range c.Windows {
			if win > 0 {
				s.cache.DropBefore(at, int32(s.pos-win+1))
			}
		}
	}
	return s.comp.afterPass(f.ctx, s, len(f.tokens), first)
}

// byLayer runs one layer after the other over the whole prompt and compresses
// each as soon as it can be. Nothing of a failed call stays.
func (f *feeding) byLayer() error {
	s := f.s
	x, err := f.r.newStream(f.tokens)
	if err != nil {
		return err
	}
	defer x.close()
	err = f.compressLayers(x)
	if err == nil {
		err = f.emitAll(x)
	}
	if err != nil {
		err = s.undo(err, 0)
		if s.comp != nil {
			s.comp.reset()
		}
		return err
	}
	s.commit(f.tokens)
	if s.comp != nil && s.comp.renumber {
		if err := s.renumber(); err != nil {
			return err
		}
	}
	return s.comp.afterPass(f.ctx, s, len(f.tokens), true)
}

func (f *feeding) compressLayers(x *stream) error {
	s, r, c := f.s, f.r, f.s.m.cfg
	for at := range c.Layers {
		w, err := f.job.watch(r, at)
		if err != nil {
			return fmt.Errorf("layer %d: %w", at, err)
		}
		for from := 0; from < len(f.tokens); from += r.cap {
			n := min(r.cap, len(f.tokens)-from)
			r.reset()
			r.add(s, from, n, len(f.tokens), w)
			if err := r.forwardLayer(f.ctx, at, x, from); err != nil {
				return err
			}
			if win := c.Windows[at]; win > 0 {
				s.cache.DropBefore(at, int32(from+n-win+1))
			}
			f.progress(n)
		}
		if err := f.job.layerDone(f.ctx, at); err != nil {
			return err
		}
	}
	return f.job.finish(f.ctx)
}

// emitAll hands out the logits of a prompt whose residual stream is complete.
func (f *feeding) emitAll(x *stream) error {
	for from := 0; from < len(f.tokens); from += f.r.cap {
		n := min(f.r.cap, len(f.tokens)-from)
		if err := f.emit(x, from, n); err != nil {
			return err
		}
	}
	return nil
}

// emit computes the logits that are wanted of the n tokens from on: all of them
// for each, and the prompt's last. Their residual stream is that of the run, or
// rows from on of x if there is one.
func (f *feeding) emit(x *stream, from, n int) error {
	s, c := f.s, f.s.m.cfg
	if s.logits == nil {
		s.logits = make([]float32, c.Vocab)
	}
	first := n
	if from+n == len(f.tokens) {
		first = n - 1
	}
	if f.each != nil {
		first = max(0, f.skip-from)
	}
	rows := f.r.logitRows()
	var buf []float32
	for i := first; i < n; i += rows {
		k := min(rows, n-i)
		dst := s.logits
		if k > 1 {
			if buf == nil {
				buf = make([]float32, k*c.Vocab)
			}
			dst = buf[:k*c.Vocab]
		}
		var err error
		if x != nil {
			err = f.r.streamLogits(f.ctx, dst, x, from+i, k)
		} else {
			err = f.r.logits(f.ctx, dst, i, k)
		}
		if err != nil {
			return err
		}
		for j := range k {
			row := dst[j*c.Vocab : (j+1)*c.Vocab]
			if f.each != nil {
				if err := f.each(from+i+j-f.skip, row); err != nil {
					return err
				}
			}
			if j == k-1 {
				copy(s.logits, row)
			}
		}
	}
	s.hasLogits = from+n == len(f.tokens)
	return nil
}
