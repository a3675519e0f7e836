package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/drafting"
	"github.com/lukv/lukv/model/sampling"
	"github.com/lukv/lukv/tensor"
)

// SessionOptions configure a session. The zero value is a session without
// compression.
type SessionOptions struct {
	// Compression says how the first prefill and, while decoding, the cache are
	// compressed; nil means not at all. A policy with the allocator "lukv" needs
	// a profile of this model and metric.
	Compression *lukv.Policy

	// MaxTokens bounds the positions of the session; the default is the
	// model's context length.
	MaxTokens int

	// CacheType is the element type of cached keys and values: F32, F16 or
	// BF16, or, on the host, I8 or Q4_0 (see kernels.IntRows). The default is F32 with PrecisionF32,
	// otherwise BF16. CacheValues is that of values, if it is not CacheType. A cache type that
	// Compression names comes before both.
	CacheType, CacheValues tensor.Type

	// PageEntries is the page size of the cache in entries (default 64), and
	// MaxCacheBytes a bound on its bytes (default none; ErrFull of package
	// kvcache when it is exceeded).
	PageEntries   int
	MaxCacheBytes int64

	// HugePages puts the cache in the system's large pages where there are any
	// (Linux), see kvcache.Options. It does not change results and has no effect with
	// Compression.
	HugePages bool

	// ChunkTokens is the number of tokens computed together in a prefill; the
	// default is 512, the maximum 16,384. It does not change results.
	ChunkTokens int

	// Lookup lets Generate, and passes that ask for it, compute several tokens in
	// one pass where the answer quotes the prompt, evicted or not, or itself. It
	// does not change answers and backs off where it does not help. With compression
	// while decoding or dynamic rope scaling it is off, as Notes says. It takes 16
	// bytes per token and four rows of logits.
	Lookup bool

	// ProbeLoss, if not nil, keeps what measuring the loss of compression needs. A prefill
	// without compression keeps the first readings of its tokens, at the cost of logits for
	// each and 8 bytes per token, for [Session.ProbeLoss]. A prefill that compresses
	// sends the passages of the sweep through every layer before it is cut, which
	// takes 42 more entries per head of one layer; [Session.LossProbe] is the result.
	ProbeLoss *LossOptions

	// Progress, if not nil, is called from time to time during a prefill with
	// the work done and the total work in token-layers.
	Progress func(done, total int)

	// Trace, if not nil, is called after every successful compression of a span of
	// tokens, with what each head kept and why. The trace belongs to the callback.
	// Until the call returns, 12 bytes per KV head, layer and token of the span count
	// towards the memory of all sessions.
	Trace func(*Trace)

	// TraceEvicted, if not nil, is called when a cut while decoding evicts entries of a
	// head. The slice is valid during the call; the session does not keep the evictions.
	// See [Trace.AddEvicted].
	TraceEvicted func(layer, head int, evicted []Eviction)
}

// Session is one sequence of tokens with its cache. It belongs to one goroutine
// at a time: a call while another is in progress is refused with ErrBusy, except
// Close, which ends it. Callbacks of a call belong to it. Different sessions of a
// model run concurrently.
type Session struct {
	m     *Model
	opts  SessionOptions
	cache *kvcache.Cache
	comp  *compression // nil without a policy

	pos     int     // next position
	tokens  []int32 // all tokens in the cache, evicted ones included
	pending []int32 // generated but not yet fed

	renumbered bool // positions were made slots; see compression.renumber
	long       bool // entries are those of a sequence beyond LongFrom

	logits     []float32 // [Vocab] after the last token
	hasLogits  bool
	finish     FinishReason
	generated  int                 // where the session stands in its generation, pending tokens included
	sampler    *sampling.Sampler   // of Generate
	lookup     *drafting.Index     // nil before the first draft
	draftCache *draftCache         // see DraftCompressed
	slack      int                 // positions that the session can go back in spite of windows
	ahead      ahead               // computed beyond pos
	prefilling *Prefilling         // a prefill in pieces that is not done
	recorder   *oracleRecorder     // oracle measurement in progress
	answer     []*lukv.QueryWindow // where the queries of an answer go, nil: nowhere
	one        [1]*Session         // for single steps
	oneToken   [1]int32

	charged int64 // bytes in Model.memory for tokens and logits

	// While the cache is still being loaded: waits for the entries of a layer and of those
	// before it. See Model.LoadAndPrefill.
	await func(layer int) error

	readings []float64  // [≤ pos] of first readings, see SessionOptions.ProbeLoss
	probe    *LossProbe // of the last prefill that compressed, likewise

	stats SessionStats
	saved *lukv.Policy // of a loaded session's file
	notes []string     // on the compression of the context
	use   inUse
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
	if err := m.hold(); err != nil {
		return nil, err
	}
	defer m.release()
	if o.MaxTokens < 0 || o.ChunkTokens < 0 {
		return nil, fmt.Errorf("max tokens %d and chunk tokens %d: want 0 for the default or more", o.MaxTokens, o.ChunkTokens)
	}
	if o.ChunkTokens > maxPassRows {
		return nil, fmt.Errorf("chunks of %d tokens, want at most %d", o.ChunkTokens, maxPassRows)
	}
	if o.MaxTokens > arch.PositionLimit {
		return nil, fmt.Errorf("at most %d tokens, want at most %d", o.MaxTokens, arch.PositionLimit)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = m.cfg.MaxPositions
	}
	if o.ChunkTokens == 0 {
		o.ChunkTokens = defaultChunk
	}
	if err := m.resolveCacheType(&o); err != nil {
		return nil, err
	}
	s := &Session{m: m, opts: o}
	s.one[0] = s
	if err := s.cacheOptions().Validate(); err != nil {
		return nil, err
	}
	var err error
	s.comp, err = newCompression(m, o)
	return s, err
}

// defaultChunk is the default of SessionOptions.ChunkTokens.
const defaultChunk = 512

func (s *Session) cacheOptions() kvcache.Options { return s.m.cacheOptions(&s.opts, s.comp != nil) }

// cacheOptions returns the options of a session's cache.
func (m *Model) cacheOptions(o *SessionOptions, evicts bool) kvcache.Options {
	c := m.cfg
	return kvcache.Options{
		Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim, CPU: &m.cpu,
		Type: o.CacheType, Values: o.CacheValues, WideKeys: m.wideKeys(o),
		PageEntries: o.PageEntries, HugePages: o.HugePages && !evicts,
		Windows: c.Windows, MaxBytes: o.MaxCacheBytes, Account: m.memory,
		Device: m.Device(), DeviceLayers: m.DeviceLayers(),
	}
}

// attentionInBF16 reports whether rotated queries and attention weights are rounded
// to bf16 for caches of a type, like other operands of products with bf16.
func (m *Model) attentionInBF16(cache tensor.Type) bool {
	return m.precision.roundsBF16() && cache == tensor.BF16
}

func (s *Session) attentionInBF16() bool { return s.m.attentionInBF16(s.opts.CacheType) }

// page returns the layout of the cache's pages.
func (s *Session) page() kernels.PageLayout {
	o := s.cache.Options()
	return o.Layout(0)
}

// slots returns the number of logical slots of a layer's KV head, view what attention
// reads of it.
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

// Tokens returns a copy of all tokens processed so far. Like Stats, it may be called
// from any goroutine.
func (s *Session) Tokens() []int32 {
	defer s.quiet()()
	return slices.Clone(s.tokens)
}

// Cache returns the session's cache, for inspection until the next call. It must not
// be changed.
func (s *Session) Cache() *kvcache.Cache {
	if len(s.ahead.tokens) > 0 {
		s.quiet()()
	}
	return s.cache
}

// Logits returns the logits after the last token, [Vocab], or nil if there are
// none. The slice is valid until the session's next call.
func (s *Session) Logits() []float32 {
	if !s.hasLogits {
		return nil
	}
	return s.logits
}

// ready returns an error if the session, whose call this is, cannot compute. It also
// makes the cuts that the last pass left to do.
func (s *Session) ready() error {
	if err := s.idle(); err != nil {
		return err
	}
	return s.comp.cut(s)
}

// idle returns an error if a prefill is in progress.
func (s *Session) idle() error {
	if s.prefilling != nil {
		return fmt.Errorf("session: %w", ErrPrefilling)
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

// commit accepts tokens whose entries are in the cache.
func (s *Session) commit(tokens []int32) {
	s.pos += len(tokens)
	s.tokens = append(s.tokens, tokens...)
	s.pending = append(s.pending[:0], s.pending[min(len(tokens), len(s.pending)):]...)
	s.stats.Tokens += len(tokens)
}

// begin forgets what an empty session must no longer know.
func (s *Session) begin() {
	s.renumbered, s.notes, s.saved, s.probe, s.stats.ContextTokens = false, nil, nil, nil, 0
	if s.comp != nil {
		s.comp.reset()
	}
}

// undo removes the entries from position pos on from the cache after err, and then
// calls follow, which takes the decode state back. It returns err joined with any
// new error, unless that follows from a failed device.
func (s *Session) undo(err error, pos int, follow func()) error {
	if s.await != nil && s.await(s.m.cfg.Layers-1) != nil { // what is not there cannot be cut
		follow()
		return err
	}
	if e := s.cache.Truncate(int32(pos)); e != nil && s.cache.Err() == nil && !errors.Is(err, kernels.ErrDeviceLost) {
		err = errors.Join(err, e)
	}
	follow()
	return err
}

// Truncate goes back to the first n tokens (n ≤ Len). Entries that compression
// evicted do not come back. Unless n is Len, there are no logits afterwards; feed
// a token first.
// A model with sliding windows can go back only as far as its windows still
// reach; otherwise Truncate returns an error and changes nothing. Truncate(0)
// always works: the session is as good as new and compresses its next prefill.
func (s *Session) Truncate(n int) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	defer s.leave()
	err := s.idle()
	if err == nil && n != 0 { // of nothing, nothing is left to cut
		err = s.ready()
	}
	if err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	if n < 0 || n > s.pos {
		return fmt.Errorf("truncate to %d tokens: the session has %d", n, s.pos)
	}
	if n == s.pos {
		s.pending = nil
		return nil
	}
	if s.renumbered && n > 0 {
		return fmt.Errorf("truncate to %d tokens: the session's positions were renumbered", n)
	}
	if err := s.cache.Truncate(int32(n)); err != nil {
		return fmt.Errorf("truncate to %d tokens: %w", n, err)
	}
	s.comp.rewind(s, n)
	s.lookup.Forget()
	err = s.draftCache.rewound(n)
	s.pos, s.tokens, s.pending, s.hasLogits = n, s.tokens[:n], nil, false
	s.trimReadings()
	if n == 0 {
		s.begin()
	}
	if err != nil {
		return fmt.Errorf("truncate to %d tokens: %w", n, err)
	}
	return nil
}

// Fork returns an independent session that continues from the same state, with the
// same options except those given. The caches share their pages until one of them
// changes them. The caller closes both.
func (s *Session) Fork(opts ...ForkOption) (*Session, error) {
	if err := s.enter(); err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	defer s.leave()
	f, err := s.fork(opts...)
	if err == nil {
		if f.draftCache, err = s.draftCache.forkFor(f, opts...); err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	return f, nil
}

// ForkOption is an option of [Session.Fork].
type ForkOption func(*SessionOptions)

// ForkMaxTokens bounds the positions of a fork; 0 means the model's context length.
// It must leave room for the tokens that are there.
func ForkMaxTokens(n int) ForkOption { return func(o *SessionOptions) { o.MaxTokens = n } }

// ForkMaxCacheBytes bounds the cache of a fork, shared pages included; 0 means no
// bound. It must leave room for what is there.
func ForkMaxCacheBytes(n int64) ForkOption { return func(o *SessionOptions) { o.MaxCacheBytes = n } }

// forkOptions returns the options of a fork.
func (s *Session) forkOptions(opts []ForkOption) (SessionOptions, error) {
	o := s.opts
	for _, set := range opts {
		set(&o)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = s.m.cfg.MaxPositions
	}
	switch {
	case o.MaxTokens < 0 || o.MaxTokens > arch.PositionLimit:
		return o, fmt.Errorf("at most %d tokens, want 0 for the default to %d", o.MaxTokens, arch.PositionLimit)
	case o.MaxTokens < s.pos:
		return o, fmt.Errorf("%w: at most %d tokens, the session has %d", ErrContextFull, o.MaxTokens, s.pos)
	}
	return o, nil
}

func (s *Session) fork(opts ...ForkOption) (*Session, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	o, err := s.forkOptions(opts)
	if err != nil {
		return nil, err
	}
	cache, err := s.cache.Fork()
	if err != nil {
		return nil, err
	}
	if o.MaxCacheBytes != s.opts.MaxCacheBytes {
		if err := cache.SetMaxBytes(o.MaxCacheBytes); err != nil {
			return nil, errors.Join(err, cache.Close())
		}
	}
	f := &Session{
		m: s.m, opts: o, cache: cache, comp: s.comp.clone(),
		pos: s.pos, tokens: slices.Clone(s.tokens), pending: slices.Clone(s.pending),
		renumbered: s.renumbered, long: s.long,
		logits: slices.Clone(s.logits), hasLogits: s.hasLogits, stats: s.stats,
		saved: s.saved, notes: slices.Clone(s.notes),
		readings: slices.Clone(s.readings), probe: s.probe,
	}
	f.one[0] = f
	if err := f.takeTokens(0); err != nil {
		return nil, errors.Join(err, cache.Close())
	}
	return f, nil
}
