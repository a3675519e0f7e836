package model

import (
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
)

// CacheNeed is the memory that a session's cache takes, in bytes of whole pages.
type CacheNeed struct {
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

// CacheNeed returns what a new session takes if o.Compression compresses its
// context, in its first prefill or, with tokens before it, by
// [Session.PrefillCompressed]. The numbers are exact if the budgets of all heads
// are known beforehand; if budgets depend on scores they are upper bounds, and Held
// is too high by at most a page per head. What compression while decoding evicts is
// not subtracted. Peak is the larger of Held and the compressed layers plus one
// whole layer, or the whole cache for allocators that look at scores of several
// layers.
func (m *Model) CacheNeed(o SessionOptions, l Lengths) (CacheNeed, error) {
	need, err := m.cacheNeed(o, l)
	if err != nil {
		return CacheNeed{}, fmt.Errorf("cache for %v: %w", l, err)
	}
	return need, nil
}

func (m *Model) cacheNeed(o SessionOptions, l Lengths) (CacheNeed, error) {
	most := m.cfg.MaxPositions
	if min(l.Before, l.Context, l.Rest) < 0 || max(l.Before, l.Context, l.Rest) > most || l.Before+l.Context+l.Rest > most {
		return CacheNeed{}, fmt.Errorf("want 0 to %d in all", most)
	}
	s, err := m.newSession(o)
	if err != nil {
		return CacheNeed{}, err
	}
	n := s.needCounter()
	if s.comp != nil && l.Before > 0 && l.Context > 0 {
		if err := s.comp.spans(); err != nil {
			return CacheNeed{}, err
		}
	}
	if !s.comp.touches(l.Before, l.Context) {
		held := n.whole(l.Before + l.Context + l.Rest)
		return CacheNeed{Peak: held, Held: held}, nil
	}
	return n.compressed(s.comp, l)
}

// defaultPageEntries is the page size of caches, see kvcache.Options.
const defaultPageEntries = 64

// needCounter counts pages.
type needCounter struct {
	m     *Model
	cache kvcache.Options
	page  kernels.PageLayout // of the first layer
	chunk int                // tokens that a layer with a window holds besides its window
	loss  *LossOptions       // of the session, nil if its loss is not to be measured
}

func (n *needCounter) pages(entries int) int64 {
	return int64((entries + n.page.PageEntries - 1) / n.page.PageEntries)
}

// layer returns the bytes of an uncompressed layer after the given number of tokens;
// with a window, it holds no more than the window needs.
func (n *needCounter) layer(at, tokens int) int64 {
	if win := n.m.cfg.Windows[at]; win > 0 {
		// Only whole pages are freed, so one may hold a single entry of the window.
		tokens = min(tokens, win+n.chunk+n.page.PageEntries)
	}
	return n.bytes(at, n.pages(tokens)*int64(n.m.cfg.KVHeads))
}

// bytes returns the size of pages of a layer.
func (n *needCounter) bytes(at int, pages int64) int64 {
	return pages * int64(n.cache.Layout(at).Bytes())
}

// largest is bytes for the layer with the largest pages.
func (n *needCounter) largest(pages int64) int64 {
	most := int64(0)
	for at := range n.m.cfg.Layers {
		most = max(most, n.bytes(at, pages))
	}
	return most
}

// whole returns the bytes of an uncompressed cache of the given number of tokens.
func (n *needCounter) whole(tokens int) int64 {
	sum := int64(0)
	for at := range n.m.cfg.Layers {
		sum += n.layer(at, tokens)
	}
	return sum
}

// compressed returns the need if the context is compressed.
func (n *needCounter) compressed(comp *compression, l Lengths) (CacheNeed, error) {
	plan, d, end := comp.plan, comp.demand(l.Before, l.Context), l.Before+l.Context
	if l.Before > 0 && plan.Metric().Needs(end, l.Before+d.Share()).Window >= end {
		return CacheNeed{}, wantsWhole(plan.Metric())
	}
	var budgets [][]int
	if plan.Allocator().BudgetsKnown() == lukv.KnownBefore {
		var err error
		if budgets, err = lukv.Allocate(plan.Allocator(), d, nil); err != nil {
			return CacheNeed{}, err
		}
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
	return CacheNeed{Peak: max(peak, held), Held: held}, nil
}

// repetition returns the bytes that a metric's repetition of a context adds to a layer
// while passing through it: a chunk and what leads into it.
func (n *needCounter) repetition(plan *lukv.Compiled, context int) int64 {
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
func (n *needCounter) kept(d lukv.Demand, budgets [][]int, at, before, rest int) int64 {
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
