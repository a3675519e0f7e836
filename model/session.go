package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
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

	// CacheType is the element type of cached keys and values, as [kvcache.Options] and
	// [kvcache.ParseType] have it. The default is F32 with PrecisionF32, otherwise BF16.
	// CacheValues is that of values, if it is not CacheType. A cache type that
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
	prefilling *PartialPrefill     // a prefill in pieces that is not done
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
			return fmt.Errorf("token %d is %d, expected 0 to %d", i, t, s.m.cfg.Vocab-1)
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

// logitRow returns the memory in which the session keeps its logits.
func (s *Session) logitRow() []float32 {
	if s.logits == nil {
		s.logits = make([]float32, s.m.cfg.Vocab)
	}
	return s.logits
}

// Span is a run of tokens of a session: those at positions From to To-1.
type Span struct{ From, To int }

func (p Span) String() string { return fmt.Sprintf("tokens %d to %d", p.From, p.To) }
