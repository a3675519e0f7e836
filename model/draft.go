package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/drafting"
)

// A session can draft with a compressed copy of its cache: a fork, one span of which is
// compressed, decodes the next tokens while it reads only what it kept; then one pass over
// the whole cache computes the logits after all of them, and those that the session draws
// itself are taken. So each token is drawn from the logits of the whole cache, to the bit,
// while that is read less than once per token. The fork then goes back to what was taken.
// (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023; with
// the model's own sparse cache as the draft: Sun et al., "TriForce", 2024. Here a draft is
// right if it equals the token drawn, for which the fork draws with the same random numbers.)

// draftCache is the compressed fork that drafts for a session.
type draftCache struct {
	of    *Session // whose drafts it computes
	fork  *Session // holds the tokens of of, as far as the two agree, and drafts of the last pass
	end   int      // of the compressed span
	same  int      // the first tokens on which they are known to agree
	fixed int      // drafts for each pass, 0: as many as pay
	gain  drafting.Gain

	// Of the pass in preparation.
	next  int32    // token that fork takes next; those in fork.ahead.found follow
	left  int      // drafts to come
	rng   rand.PCG // of the sampler, before it drew drafts
	batch []*draftCache
}

// DraftCompressed lets a copy of the session, in which a span is compressed by a policy
// (see [Session.Compress]), draft the session's next tokens: Generate, and passes that ask
// for it (see [Part]), compute up to 8 drafts with the copy and verify them together, in
// one pass over the session's own cache. Answers do not change by a bit. The copy follows
// the session, whatever is done to it, and forks have one of their own. A second call
// replaces it.
//
// drafts is the number of tokens drafted for each pass, at most 8; with 0, it is as many
// as pay by the time of passes and the share of drafts that were right so far, perhaps
// none. Both caches are in memory; MaxCacheBytes bounds their sum. If the copy can no
// longer draft, as when memory is short, the session goes on without it, as Notes says.
//
// Compression while decoding, of the session or by the policy, and dynamic rope scaling
// are an error; for others see Compress. On an error nothing has changed.
func (s *Session) DraftCompressed(ctx context.Context, span Span, policy *lukv.Policy, drafts int) error {
	err := s.calling(ctx, func(ctx context.Context) error { return s.draftCompressed(ctx, span, policy, drafts) })
	if err != nil {
		return fmt.Errorf("draft with a compressed cache: %w", err)
	}
	return nil
}

func (s *Session) draftCompressed(ctx context.Context, span Span, policy *lukv.Policy, drafts int) error {
	switch {
	case drafts < 0 || drafts > drafting.MostDrafts:
		return fmt.Errorf("found %d drafts for each pass, expected 0 to %d", drafts, drafting.MostDrafts)
	case s.cannotDraft() != "":
		return errors.New(s.cannotDraft())
	}
	comp, err := s.spanCompression(policy)
	if err != nil {
		return err
	}
	if err := s.affordsCopy(comp, span); err != nil {
		return err
	}
	f, err := s.fork(ForkMaxCacheBytes(0))
	if err != nil {
		return err
	}
	f.pending, f.readings, f.probe = nil, nil, nil
	f.opts.Progress, f.opts.TraceEvicted, f.opts.ProbeLoss, f.opts.Lookup = nil, nil, nil, false
	if err := f.Compress(ctx, span, policy); err != nil {
		return errors.Join(err, f.Close())
	}
	f.opts.Trace, f.slack = nil, drafting.MostDrafts
	if err := s.closeDrafts(); err != nil {
		return errors.Join(err, f.Close())
	}
	s.notes = f.notes
	s.stats.ScoreTime, s.stats.EvictTime = f.stats.ScoreTime, f.stats.EvictTime
	s.draftCache = &draftCache{of: s, fork: f, end: span.To, fixed: drafts, gain: drafting.NewGain(s.m.StepBytes)}
	return nil
}

// affordsCopy returns an error that wraps kvcache.ErrFull if the cache's limit leaves no
// room for a copy in which a span is compressed.
func (s *Session) affordsCopy(comp *compression, span Span) error {
	limit := s.opts.MaxCacheBytes
	if limit == 0 || !comp.touches(span.From, span.To-span.From) {
		return nil
	}
	count := s.cacheCounter()
	need, err := count.compressed(comp, Lengths{Before: span.From, Context: span.To - span.From, Rest: s.pos - span.To})
	if err != nil {
		return err
	}
	if held := s.cache.Bytes(); need.Held > limit-held {
		return fmt.Errorf("%w: %d bytes are held, up to %d more are needed, the limit is %d", kvcache.ErrFull, held, need.Held, limit)
	}
	return nil
}

// DraftPolicy returns the policy under which the cache that drafts is compressed, with
// every parameter written out, nil if there is none. See [Session.DraftCompressed].
func (s *Session) DraftPolicy() *lukv.Policy {
	if s.draftCache == nil {
		return nil
	}
	return s.draftCache.fork.Policy()
}

// closeDrafts ends drafting with a compressed cache.
func (s *Session) closeDrafts() error {
	c := s.draftCache
	if c == nil {
		return nil
	}
	s.draftCache = nil
	return c.fork.Close()
}

// forkFor returns the draft cache of a fork of its session.
func (c *draftCache) forkFor(s *Session, opts ...ForkOption) (*draftCache, error) {
	if c == nil {
		return nil, nil
	}
	if c.fork.pos > s.pos { // by drafts, which may exceed the fork's limit
		if err := c.fork.Truncate(s.pos); err != nil {
			return nil, err
		}
		c.same = min(c.same, s.pos)
	}
	f, err := c.fork.fork(slices.Concat(opts, []ForkOption{ForkMaxCacheBytes(0)})...)
	if err != nil {
		return nil, err
	}
	f.slack = c.fork.slack
	return &draftCache{of: s, fork: f, end: c.end, same: c.same, fixed: c.fixed, gain: c.gain}, nil
}

// bytes returns the size of the draft cache.
func (c *draftCache) bytes() int64 {
	if c == nil {
		return 0
	}
	return c.fork.cache.Bytes()
}

// rewound is told that the session went back to its first n tokens: if they do not include
// the compressed span, the drafts end.
func (c *draftCache) rewound(n int) error {
	switch {
	case c == nil:
		return nil
	case n < c.end:
		return c.of.closeDrafts()
	}
	c.same = min(c.same, n)
	return nil
}

// draftAll lets the draft caches of sessions that are about to take a token draft what
// follows, all in the same passes. at returns session i of n and its token, or nil where
// there is nothing to draft.
func (m *Model) draftAll(ctx context.Context, n int, at func(i int) (*Session, int32)) error {
	var first *draftCache // has the memory for the batch
	for i := range n {
		s, token := at(i)
		if s == nil || s.draftCache == nil || len(s.ahead.found) > 0 {
			continue
		}
		c := s.draftCache
		if err := c.begin(ctx, token, n); err != nil {
			c.fail(ctx, err)
		}
		if c.left == 0 {
			continue
		}
		if first == nil {
			first = c
		}
		first.batch = append(first.batch, c)
	}
	if first != nil {
		m.draftBatch(ctx, first.batch)
		clear(first.batch)
		first.batch = first.batch[:0]
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// draftBatch computes the drafts of several caches, a pass for each round of drafts.
func (m *Model) draftBatch(ctx context.Context, batch []*draftCache) {
	for len(batch) > 0 {
		start := time.Now()
		err := m.runParts(ctx, len(batch), func(i int) part { return decodes(batch[i].fork, batch[i].next) })
		took := time.Since(start)
		rest := batch[:0]
		for i, c := range batch {
			c.gain.Drafted(took, c.reads(len(batch)))
			if e := c.took(blamed(err, i)); e != nil {
				c.fail(ctx, e)
			}
			if c.left > 0 {
				rest = append(rest, c)
			}
		}
		batch = rest
	}
}

// blamed returns the error of a pass for its part i: itself, unless it is another part's.
func blamed(err error, i int) error {
	if err == nil {
		return nil
	}
	var at *PartError
	if errors.As(err, &at) && at.Part != i {
		return errNotDrafted
	}
	return err
}

// errNotDrafted ends the drafts for one pass, no more.
var errNotDrafted = errors.New("the pass of another session failed")

// begin prepares the drafts that follow a token that the session is about to take in a
// pass of so many parts: left says how many there are to be.
func (c *draftCache) begin(ctx context.Context, token int32, parts int) error {
	s, f := c.of, c.fork
	c.left = 0
	n := s.mayDraft(drafting.MostDrafts)
	if n == 0 {
		return nil
	}
	if c.fixed > 0 {
		n = min(n, c.fixed)
	} else if n = c.gain.Best(n, c.reads(parts)); n == 0 {
		return nil
	}
	if err := c.fits(); err != nil {
		return err
	}
	if err := c.catchUp(ctx); err != nil {
		return err
	}
	f.ahead.found = f.ahead.found[:0]
	if c.next = token; f.pos < len(s.tokens) { // the last draft was right, and the fork has not taken it
		c.next = s.tokens[f.pos]
		f.ahead.found = append(f.ahead.found, token)
		f.aheadRoom(1)
	}
	if err := c.takes(1 + len(f.ahead.found)); err != nil {
		return err
	}
	if c.left = n; s.ahead.sampler != nil {
		c.rng = s.ahead.sampler.Stream()
	}
	return nil
}

// reads returns what passes that a session shares with other parts read for it.
func (c *draftCache) reads(parts int) drafting.Reads {
	return drafting.Reads{Weights: 1 / float64(parts), Whole: float64(c.of.cache.Bytes()), Small: float64(c.bytes())}
}

// passed takes note of the time of the pass that took the session's token, with its drafts.
func (c *draftCache) passed(took time.Duration, parts int) {
	if c != nil {
		c.gain.Passed(len(c.of.ahead.found), took, c.reads(parts))
	}
}

func (c *draftCache) Right() { c.gain.Seen(1) }
func (c *draftCache) Wrong() { c.gain.Seen(0) }

// fits returns an error if both caches together may exceed the session's limit.
func (c *draftCache) fits() error {
	limit := c.of.opts.MaxCacheBytes
	if limit == 0 {
		return nil
	}
	count := c.of.cacheCounter()
	held := c.of.cache.Bytes() + c.bytes()
	for at := range c.of.m.cfg.Layers { // both may begin a page in every head
		held += 2 * count.bytes(at, int64(c.of.m.cfg.KVHeads))
	}
	if held > limit {
		return fmt.Errorf("%w: two caches need %d bytes, the limit is %d", kvcache.ErrFull, held, limit)
	}
	return nil
}

// catchUp makes the fork hold the tokens of its session, perhaps without the last.
func (c *draftCache) catchUp(ctx context.Context) error {
	s, f := c.of, c.fork
	for c.same < min(len(s.tokens), len(f.tokens)) && s.tokens[c.same] == f.tokens[c.same] {
		c.same++
	}
	if c.same < f.pos {
		if err := f.Truncate(c.same); err != nil {
			return err
		}
	}
	if len(s.tokens)-f.pos < 2 {
		return nil
	}
	ctx, cancel := s.cancellable(ctx)
	defer cancel(nil)
	return f.Prefill(ctx, s.tokens[f.pos:])
}

// takes returns an error if the fork cannot take so many tokens now.
func (c *draftCache) takes(n int) error {
	f := c.fork
	if err := f.ready(); err != nil {
		return err
	}
	if f.pos+n > f.opts.MaxTokens {
		return ErrContextFull
	}
	return f.takeTokens(n)
}

// took draws a draft from what a pass computed for the fork, and prepares the next pass.
// err is that of the pass. When left is 0, the drafts are ready to be verified.
func (c *draftCache) took(err error) error {
	s, f := c.of, c.fork
	for err == nil && len(f.ahead.tokens) > 0 {
		f.follow(f.ahead.tokens[0])
	}
	if err == nil && f.pos != s.pos+1+len(s.ahead.found) {
		err = f.notFinite(1)
	}
	if err == nil {
		c.next, err = c.draw()
	}
	if err == nil && !(s.ahead.sampler != nil && s.m.Ends(c.next, s.ahead.sampler.Options())) {
		s.ahead.found = append(s.ahead.found, c.next)
		if c.left--; c.left > 0 {
			if f.ahead.found, err = f.ahead.found[:0], c.takes(1); err == nil {
				return nil
			}
		}
	}
	c.left = 0
	if s.ahead.sampler != nil {
		s.ahead.sampler.Rewind(c.rng)
	}
	s.takeDrafts(c, drafting.MostDrafts)
	return err
}

// draw returns the token that the session would draw from the fork's logits.
func (c *draftCache) draw() (int32, error) {
	if sampler := c.of.ahead.sampler; sampler != nil {
		return sampler.Next(c.fork.logits, nil)
	}
	return int32(c.of.m.net.CPU.Argmax(c.fork.logits)), nil
}

// fail ends drafting after an error, unless it is that of a cancelled call or of another
// session in the pass.
func (c *draftCache) fail(ctx context.Context, err error) {
	c.left = 0
	s := c.of
	if ctx.Err() != nil || errors.Is(err, errNotDrafted) {
		return
	}
	s.notes = append(slices.Clip(s.notes), fmt.Sprintf("drafts with a compressed cache ended: %v", err))
	// If closing fails, so does the device, which the next pass reports.
	_ = s.closeDrafts()
}
