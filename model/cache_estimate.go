package model

import (
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
)

// CacheEstimate is the memory that a session's cache takes, in bytes of whole pages.
type CacheEstimate struct {
	Peak int64 // the most at any moment
	Held int64 // at the end
}

// Lengths are the numbers of tokens that a session will be given, in this order:
// those before the context, which stay; the context, which is compressed; and the
// rest.
type Lengths struct{ Before, Context, Rest int }

func (l Lengths) String() string {
	return fmt.Sprintf("%d, %d and %d tokens", l.Before, l.Context, l.Rest)
}

// CacheEstimate returns what a new session takes if o.Compression compresses its
// context, in its first prefill or, with tokens before it, by
// [Session.PrefillCompressed]. The numbers are exact if the budgets of all heads
// are known beforehand; if budgets depend on scores they are upper bounds, and Held
// is too high by at most a page per head. What compression while decoding evicts is
// not subtracted. Peak is the larger of Held and the compressed layers plus one
// whole layer, or the whole cache for allocators that look at scores of several
// layers.
func (m *Model) CacheEstimate(o SessionOptions, l Lengths) (CacheEstimate, error) {
	need, err := m.cacheEstimate(o, l)
	if err != nil {
		return CacheEstimate{}, fmt.Errorf("cache for %v: %w", l, err)
	}
	return need, nil
}

func (m *Model) cacheEstimate(o SessionOptions, l Lengths) (CacheEstimate, error) {
	most := m.cfg.MaxPositions
	if min(l.Before, l.Context, l.Rest) < 0 || max(l.Before, l.Context, l.Rest) > most || l.Before+l.Context+l.Rest > most {
		return CacheEstimate{}, fmt.Errorf("expected 0 to %d in all", most)
	}
	s, err := m.newSession(o)
	if err != nil {
		return CacheEstimate{}, err
	}
	n := s.cacheCounter()
	if s.comp != nil && l.Before > 0 && l.Context > 0 {
		if err := s.comp.spans(); err != nil {
			return CacheEstimate{}, err
		}
	}
	if !s.comp.touches(l.Before, l.Context) {
		held := n.whole(l.Before + l.Context + l.Rest)
		return CacheEstimate{Peak: held, Held: held}, nil
	}
	return n.compressed(s.comp, l)
}

// cacheCounter counts pages.
type cacheCounter struct {
	m     *Model
	cache kvcache.Options
	page  kernels.PageLayout // of the first layer
	chunk int                // tokens that a layer with a window holds besides its window
	loss  *LossOptions       // of the session, nil if its loss is not to be measured
}

func (n *cacheCounter) pages(entries int) int64 {
	return int64((entries + n.page.PageEntries - 1) / n.page.PageEntries)
}

// layer returns the bytes of an uncompressed layer after the given number of tokens;
// with a window, it holds no more than the window needs.
func (n *cacheCounter) layer(at, tokens int) int64 {
	if win := n.m.cfg.Windows[at]; win > 0 {
		// Only whole pages are freed, so one may hold a single entry of the window.
		tokens = min(tokens, win+n.chunk+n.page.PageEntries)
	}
	return n.bytes(at, n.pages(tokens)*int64(n.m.cfg.KVHeads))
}

// bytes returns the size of pages of a layer.
func (n *cacheCounter) bytes(at int, pages int64) int64 {
	return pages * int64(n.cache.Layout(at).Bytes())
}

// largest is bytes for the layer with the largest pages.
func (n *cacheCounter) largest(pages int64) int64 {
	most := int64(0)
	for at := range n.m.cfg.Layers {
		most = max(most, n.bytes(at, pages))
	}
	return most
}

// whole returns the bytes of an uncompressed cache of the given number of tokens.
func (n *cacheCounter) whole(tokens int) int64 {
	sum := int64(0)
	for at := range n.m.cfg.Layers {
		sum += n.layer(at, tokens)
	}
	return sum
}

// compressed returns the need if the context is compressed.
func (n *cacheCounter) compressed(comp *compression, l Lengths) (CacheEstimate, error) {
	plan, d, end := comp.plan, comp.demand(l.Before, l.Context), l.Before+l.Context
	if l.Before > 0 && plan.Metric().Needs(end, l.Before+d.Share()).Window >= end {
		return CacheEstimate{}, wantsWhole(plan.Metric())
	}
	budgets, err := n.m.plans.divide(plan, l.Before, l.Context, d)
	if err != nil {
		return CacheEstimate{}, err
	}
	var peak, held int64
	others := n.whole(l.Before) // layers that are done, and those that hold only what is before
	again := max(n.repetition(plan, l.Context), n.sweepNeed(n.loss))
	for at := range n.m.cfg.Layers {
		others -= n.layer(at, l.Before)
		peak = max(peak, others+n.layer(at, end)+again)
		after := n.layer(at, end)
		if d.Includes(at) {
			held += n.kept(d, budgets, at, l.Before, l.Rest)
			after = n.kept(d, budgets, at, l.Before, 0)
		} else {
			held += n.layer(at, end+l.Rest)
		}
		others += after
	}
	switch plan.Allocator().BudgetsKnown() {
	case lukv.KnownSoFar, lukv.KnownAtEnd: // how much goes before the end depends on scores
		peak = n.whole(end) + again
	}
	return CacheEstimate{Peak: max(peak, held), Held: held}, nil
}

// repetition returns the bytes that a metric's repetition of a context adds to a layer
// while passing through it: a chunk and what leads into it.
func (n *cacheCounter) repetition(plan *lukv.Compiled, context int) int64 {
	text := plan.Metric().Needs(context, 0).Repeat
	if text.Chunk == 0 {
		return 0
	}
	const lead = 64 // the instructions and the preceding tokens, rounded up
	tokens := min(text.Chunk, context) + lead + len(text.Suffix)
	return n.largest((n.pages(tokens) + 1) * int64(n.m.cfg.KVHeads))
}

// kept returns the bytes of a layer after the cut, with the tokens before and after
// the context.
func (n *cacheCounter) kept(d lukv.Demand, budgets [][]int, at, before, rest int) int64 {
	heads := n.m.cfg.KVHeads
	if budgets == nil { // the heads of a layer compete for a common budget
		return n.bytes(at, n.pages((before+d.Share()+rest)*heads)+int64(heads))
	}
	pages := int64(0)
	for _, b := range budgets[at] {
		pages += n.pages(before + min(b, d.T) + rest)
	}
	return n.bytes(at, pages)
}

// Memory is refused before any work is done: what a prefill takes is known beforehand.

// checkMemory returns an error that wraps kvcache.ErrFull if the cache's limit, or that
// of all sessions, leaves no room for n more tokens, which comp compresses. If budgets
// depend on scores, up to a page per head too much is counted; what compression while
// decoding will evict is not subtracted.
func (s *Session) checkMemory(n int, comp *compression) error {
	if s.opts.MaxCacheBytes == 0 && s.m.memory == nil {
		return nil
	}
	cache, work, err := s.growth(n, comp)
	if err != nil {
		return err
	}
	if held := s.cache.Bytes(); s.opts.MaxCacheBytes > 0 && cache > s.opts.MaxCacheBytes-held {
		return fmt.Errorf("%w: %d bytes are held, up to %d more are needed, the limit is %d", kvcache.ErrFull, held, cache, s.opts.MaxCacheBytes)
	}
	if s.m.memory == nil {
		return nil
	}
	return s.m.memory.Fits(cache + work)
}

// growth returns by how many bytes at most the cache grows during a prefill of n
// tokens, and what else the prefill takes: hidden states, scores and trace.
func (s *Session) growth(n int, comp *compression) (cache, work int64, err error) {
	count := s.cacheCounter()
	c := s.m.cfg
	if !comp.touches(s.pos, n) {
		for at := range c.Layers {
			for h := range c.KVHeads {
				held := s.cache.Len(at, h)
				after := held + n
				if win := c.Windows[at]; win > 0 {
					after = max(held, min(after, win+count.chunk+count.page.PageEntries))
				}
				cache += count.bytes(at, count.pages(after)-count.pages(held))
			}
		}
		return cache, 0, nil
	}
	need, err := count.compressed(comp, Lengths{Context: n})
	if err != nil {
		return 0, 0, err
	}
	layers := int64(1)
	if comp.plan.Allocator().BudgetsKnown() == lukv.KnownAtEnd {
		layers = int64(c.Layers)
	}
	work = 4*int64(n)*(int64(c.Hidden)+layers*int64(c.KVHeads)) + s.m.hiddenBytes(comp.plan.Metric().Needs(s.pos+n, 0), n)
	if s.windowed() && s.pos > 0 { // what the windows leave behind, and last pages of heads
		for at, win := range c.Windows {
			pages := int64(1)
			if win > 0 {
				pages = count.pages(s.cache.Len(at, 0))
			}
			work += count.bytes(at, pages*int64(c.KVHeads))
		}
	}
	if s.opts.ProbeLoss != nil { // streams of the sweep
		work += 4 * int64(c.Hidden) * sweepCount * int64(sweepTokens+len(s.opts.ProbeLoss.Frame))
	}
	if s.opts.Trace != nil {
		work += traceNeed(comp.demand(s.pos, n))
	}
	return need.Peak, work, nil
}

// cacheCounter counts the pages of the session's cache.
func (s *Session) cacheCounter() cacheCounter {
	o := s.cacheOptions()
	if o.PageEntries == 0 {
		o.PageEntries = defaultPageEntries
	}
	return cacheCounter{m: s.m, cache: o, page: o.Layout(0), chunk: s.opts.ChunkTokens, loss: s.opts.ProbeLoss}
}

// hiddenBytes returns the size of the hidden states that a metric needs from a layer for a
// span of T tokens.
func (m *Model) hiddenBytes(needs lukv.Needs, T int) int64 {
	return 4 * int64(min(needs.Hidden, T)) * int64(m.cfg.Hidden)
}
