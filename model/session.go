package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// SessionOptions configure a session. The zero value is a session without
// compression.
type SessionOptions struct {
	// Compression says how the first prefill, and the cache while decoding, are
	// compressed; nil: not at all. A policy with the allocator "lukv" needs a
	// profile of this model and metric.
	Compression *lukv.Policy

	// MaxTokens bounds the positions of the session; the default is the
	// model's context length.
	MaxTokens int

	// CacheType is the element type of cached keys and values: F32, F16 or
	// BF16. The default is F32 with PrecisionF32 and BF16 with PrecisionBF16.
	CacheType tensor.Type

	// PageEntries is the page size of the cache in entries (default 64), and
	// MaxCacheBytes a bound on its bytes (default none; ErrFull of package
	// kvcache when it is exceeded).
	PageEntries   int
	MaxCacheBytes int64

	// ChunkTokens is the number of tokens computed together in a prefill; the
	// default is 512. It does not change results.
	ChunkTokens int

	// Progress, if not nil, is called from time to time during a prefill with
	// the work done and the whole work in token-layers.
	Progress func(done, total int)
}

// Session is one sequence of tokens with its cache. It belongs to one goroutine
// at a time; different sessions of a model run concurrently.
type Session struct {
	m     *Model
	opts  SessionOptions
	cache *kvcache.Cache
	comp  *compression // nil without a policy

	pos     int     // next position
	tokens  []int32 // all tokens in the cache, evicted ones included
	pending []int32 // generated but not yet fed

	renumbered bool // positions were made slots; see compression.renumber

	logits    []float32 // [Vocab] after the last token
	hasLogits bool
	finish    FinishReason
	sampler   *Sampler    // of Generate
	probe     *probe      // oracle measurement in progress
	one       [1]*Session // for single steps
	oneToken  [1]int32

	stats  SessionStats
	closed bool
}

// NewSession returns an empty session. The caller closes it.
func (m *Model) NewSession(o SessionOptions) (*Session, error) {
	s, err := m.newSession(o)
	if err != nil {
		return nil, fmt.Errorf("new session: %w", err)
	}
	s.cache, err = kvcache.New(s.cacheOptions())
	if err != nil {
		return nil, fmt.Errorf("new session: %w", err)
	}
	return s, nil
}

// newSession checks the options and returns a session without a cache.
func (m *Model) newSession(o SessionOptions) (*Session, error) {
	if err := m.acquire(); err != nil {
		return nil, err
	}
	defer m.release()
	if o.MaxTokens < 0 || o.ChunkTokens < 0 {
		return nil, fmt.Errorf("max tokens %d and chunk tokens %d: want 0 for the default or more", o.MaxTokens, o.ChunkTokens)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = m.cfg.MaxPositions
	}
	if o.ChunkTokens == 0 {
		o.ChunkTokens = defaultChunk
	}
	if o.CacheType == 0 {
		o.CacheType = tensor.F32
		if m.precision == PrecisionBF16 {
			o.CacheType = tensor.BF16
		}
	}
	s := &Session{m: m, opts: o}
	s.one[0] = s
	var err error
	s.comp, err = newCompression(m, o)
	return s, err
}

// defaultChunk is the default of SessionOptions.ChunkTokens.
const defaultChunk = 512

func (s *Session) cacheOptions() kvcache.Options {
	c := s.m.cfg
	return kvcache.Options{
		Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Type: s.opts.CacheType, PageEntries: s.opts.PageEntries,
		Windows: c.Windows, MaxBytes: s.opts.MaxCacheBytes,
		Device: s.m.Device(), DeviceLayers: s.m.DeviceLayers(),
	}
}

// attentionInBF16 reports whether rotated queries and attention weights are rounded
// to bf16 over caches of a type: as other operands of products with bf16 are.
func (m *Model) attentionInBF16(cache tensor.Type) bool {
	return m.precision == PrecisionBF16 && cache == tensor.BF16
}

func (s *Session) attentionInBF16() bool { return s.m.attentionInBF16(s.opts.CacheType) }

// page returns the layout of the cache's pages.
func (s *Session) page() kernels.PageLayout {
	o := s.cache.Options()
	return kernels.PageLayout{Type: o.Type, HeadDim: o.HeadDim, PageEntries: o.PageEntries}
}

// slots returns the logical slots of a layer's KV head, view what attention reads.
func (s *Session) slots(layer, head int) int {
	return s.cache.Base(layer, head) + s.cache.Len(layer, head)
}

func (s *Session) view(layer, head int) kernels.KV { return s.cache.View(layer, head) }

// Model returns the session's model.
func (s *Session) Model() *Model { return s.m }

// Len returns the number of tokens that the session has processed, evicted
// ones included: the position of the next token.
func (s *Session) Len() int { return s.pos }

// MaxTokens returns the bound on Len.
func (s *Session) MaxTokens() int { return s.opts.MaxTokens }

// Tokens returns a copy of all tokens processed so far.
func (s *Session) Tokens() []int32 { return slices.Clone(s.tokens) }

// Cache returns the session's cache, to inspect it. It must not be changed.
func (s *Session) Cache() *kvcache.Cache { return s.cache }

// Logits returns the logits after the last token, [Vocab], or nil if there are
// none. The slice is valid until the session's next call.
func (s *Session) Logits() []float32 {
	if !s.hasLogits {
		return nil
	}
	return s.logits
}

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

// ready returns an error if the session cannot compute.
func (s *Session) ready() error {
	if s.closed {
		return fmt.Errorf("session: %w", ErrClosed)
	}
	return nil
}

// accepts checks tokens against vocabulary and context length.
func (s *Session) accepts(tokens []int32) error {
	for i, t := range tokens {
		if t < 0 || int(t) >= s.m.cfg.Vocab {
			return fmt.Errorf("token %d is %d, want 0 to %d", i, t, s.m.cfg.Vocab-1)
		}
	}
	if n := s.pos + len(tokens); n > s.opts.MaxTokens {
		return fmt.Errorf("%w: %d tokens so far and %d more exceed %d", ErrContextFull, s.pos, len(tokens), s.opts.MaxTokens)
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
	w := s.comp.watchDecode(s, true)
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
	return s.comp.afterPass(f.ctx, s, len(f.tokens), true)
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

// commit accepts tokens whose entries are in the cache.
func (s *Session) commit(tokens []int32) {
	s.pos += len(tokens)
	s.tokens = append(s.tokens, tokens...)
	s.pending = append(s.pending[:0], s.pending[min(len(tokens), len(s.pending)):]...)
	s.stats.Tokens += len(tokens)
}

// rewind takes entries from position pos on back out of the cache.
func (s *Session) rewind(pos int) error {
	if err := s.cache.TruncateTo(int32(pos)); err != nil {
		return err
	}
	s.comp.rewind(s, pos)
	return nil
}

// undo rewinds after err, which it returns together with what goes wrong now,
// unless that follows from a device that failed.
func (s *Session) undo(err error, pos int) error {
	if e := s.rewind(pos); e != nil && s.cache.Err() == nil && !errors.Is(err, kernels.ErrDeviceLost) {
		return errors.Join(err, e)
	}
	return err
}

// Truncate goes back to the first n tokens (n ≤ Len). Entries that compression
// evicted do not come back. There are no logits afterwards; feed a token first.
// A model with sliding windows can go back only as far as its windows still
// reach; otherwise Truncate returns an error and changes nothing.
func (s *Session) Truncate(n int) error {
	if err := s.ready(); err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	if n < 0 || n > s.pos {
		return fmt.Errorf("truncate to %d tokens: the session has %d", n, s.pos)
	}
	if n == s.pos {
		s.pending = nil
		return nil
	}
	if s.renumbered {
		return fmt.Errorf("truncate to %d tokens: the session's positions were renumbered", n)
	}
	if err := s.rewind(n); err != nil {
		return fmt.Errorf("truncate to %d tokens: %w", n, err)
	}
	s.pos, s.tokens, s.pending, s.hasLogits = n, s.tokens[:n], nil, false
	return nil
}

// Fork returns an independent session that continues from the same state. The
// caches share their pages until one of them changes them. The caller closes both.
func (s *Session) Fork() (*Session, error) {
	if err := s.ready(); err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	cache, err := s.cache.Fork()
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	f := &Session{
		m: s.m, opts: s.opts, cache: cache, comp: s.comp.clone(),
		pos: s.pos, tokens: slices.Clone(s.tokens), pending: slices.Clone(s.pending),
		renumbered: s.renumbered,
		logits:     slices.Clone(s.logits), hasLogits: s.hasLogits, stats: s.stats,
	}
	f.one[0] = f
	return f, nil
}

// Close gives the session's memory back. Closing twice is fine.
func (s *Session) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.logits, s.tokens, s.hasLogits = nil, nil, false
	return s.cache.Close()
}

// Step feeds one token to each of several sessions of this model, in one pass
// over the weights. Results equal those of single steps. Sessions must be
// distinct and not in use elsewhere. On an error every session stands where it
// stood before.
func (m *Model) Step(ctx context.Context, sessions []*Session, tokens []int32) error {
	if len(sessions) != len(tokens) {
		return fmt.Errorf("step: %d sessions and %d tokens", len(sessions), len(tokens))
	}
	if len(sessions) == 0 {
		return nil
	}
	start := time.Now()
	if err := m.step(ctx, sessions, tokens); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	took := time.Since(start)
	for _, s := range sessions {
		s.stats.DecodeTime += took
		s.stats.Decoded++
	}
	return nil
}

func (m *Model) step(ctx context.Context, sessions []*Session, tokens []int32) error {
	if err := m.acquire(); err != nil {
		return err
	}
	defer m.release()
	for i, s := range sessions {
		if s.m != m {
			return fmt.Errorf("session %d belongs to another model", i)
		}
		if err := s.ready(); err != nil {
			return err
		}
		if len(s.pending) > 0 && tokens[i] != s.pending[0] || len(s.pending) > 1 {
			return fmt.Errorf("session %d has generated tokens that were not fed", i)
		}
		if err := s.accepts(tokens[i : i+1]); err != nil {
			return fmt.Errorf("session %d: %w", i, err)
		}
	}
	for _, s := range sessions {
		if s.logits == nil {
			s.logits = make([]float32, m.cfg.Vocab)
		}
	}
	err := m.decode(ctx, sessions, tokens)
	if err != nil {
		for _, s := range sessions {
			err = s.undo(err, s.pos)
		}
		return err
	}
	for i, s := range sessions {
		s.commit(tokens[i : i+1])
		s.hasLogits = true
		for at, win := range m.cfg.Windows {
			if win > 0 {
				s.cache.DropBefore(at, int32(s.pos-win+1))
			}
		}
		if e := s.comp.afterPass(ctx, s, 1, false); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

// decode runs all layers over one token of each session and leaves the logits
// with the sessions.
func (m *Model) decode(ctx context.Context, sessions []*Session, tokens []int32) error {
	page := sessions[0].page()
	alike := true
	for _, s := range sessions {
		alike = alike && (m.acc == nil || s.page() == page)
	}
	if !alike {
		return m.decodeUnlike(ctx, sessions, tokens)
	}
	r, err := m.runs.get(len(sessions), len(sessions), page)
	if err != nil {
		return err
	}
	defer m.runs.put(r)
	for _, s := range sessions {
		r.add(s, 0, 1, s.pos+1, s.comp.watchDecode(s, false))
	}
	if err := r.forward(ctx, tokens, true, nil); err != nil {
		return err
	}
	if len(sessions) == 1 || r.host == nil {
		for i, s := range sessions {
			if err := r.logits(ctx, s.logits, i, 1); err != nil {
				return err
			}
		}
		return nil
	}
	vocab := m.cfg.Vocab
	if n := len(sessions) * vocab; cap(r.batch) < n {
		r.batch = make([]float32, n)
	}
	all := r.batch[:len(sessions)*vocab]
	if err := r.logits(ctx, all, 0, len(sessions)); err != nil {
		return err
	}
	for i, s := range sessions {
		copy(s.logits, all[i*vocab:(i+1)*vocab])
	}
	return nil
}

// decodeUnlike decodes sessions whose caches have different kinds of pages on a
// device: one batch per kind.
func (m *Model) decodeUnlike(ctx context.Context, sessions []*Session, tokens []int32) error {
	type batch struct {
		sessions []*Session
		tokens   []int32
	}
	batches := map[kernels.PageLayout]*batch{}
	before := make([][]float32, len(sessions))
	for i, s := range sessions {
		b := batches[s.page()]
		if b == nil {
			b = &batch{}
			batches[s.page()] = b
		}
		b.sessions, b.tokens = append(b.sessions, s), append(b.tokens, tokens[i])
		before[i] = slices.Clone(s.logits)
	}
	for _, b := range batches {
		if err := m.decode(ctx, b.sessions, b.tokens); err != nil {
			for i, s := range sessions {
				copy(s.logits, before[i])
			}
			return err
		}
	}
	return nil
}

// Append feeds one token and computes the logits after it.
func (s *Session) Append(ctx context.Context, token int32) error {
	s.oneToken[0] = token
	return s.m.Step(ctx, s.one[:], s.oneToken[:])
}
