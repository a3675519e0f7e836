package model

import (
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
)

// CacheNeed is the memory that a session's cache takes, in bytes of whole pages.
type CacheNeed struct {
	Peak int64 // the most at any moment
	Held int64 // at the end
}

// CacheNeed returns what a new session with options o takes if it is given a
// context of that many tokens in its first prefill, which o.Compression
// compresses, and rest tokens after it. The numbers are exact where the budgets of
// all heads are known beforehand, and bounds that are a page per head too high at
// most where they follow from scores. What compression while decoding evicts is
// not taken off. Peak is the promise of a bounded peak in numbers: the compressed
// layers and one whole layer, or the end, whichever is more.
func (m *Model) CacheNeed(o SessionOptions, context, rest int) (CacheNeed, error) {
	need, err := m.cacheNeed(o, context, rest)
	if err != nil {
		return CacheNeed{}, fmt.Errorf("cache for %d and %d tokens: %w", context, rest, err)
	}
	return need, nil
}

func (m *Model) cacheNeed(o SessionOptions, context, rest int) (CacheNeed, error) {
	if context < 0 || rest < 0 || context+rest > m.cfg.MaxPositions {
		return CacheNeed{}, fmt.Errorf("want 0 to %d in all", m.cfg.MaxPositions)
	}
	s, err := m.newSession(o)
	if err != nil {
		return CacheNeed{}, err
	}
	n := s.needCounter()
	if !s.comp.prefillEnabled(context) {
		held := n.whole(context + rest)
		return CacheNeed{Peak: held, Held: held}, nil
	}
	return n.compressed(s.comp.plan, context, rest)
}

// defaultPageEntries is the page size of caches, see kvcache.Options.
const defaultPageEntries = 64

// needCounter counts pages.
type needCounter struct {
	m     *Model
	page  kernels.PageLayout
	chunk int // tokens that a layer with a window holds beside its window
}

func (n *needCounter) pages(entries int) int64 {
	return int64((entries + n.page.PageEntries - 1) / n.page.PageEntries)
}

// layer returns the bytes of a layer that holds all of some tokens, as far as its
// window reaches.
func (n *needCounter) layer(at, tokens int) int64 {
	if win := n.m.cfg.Windows[at]; win > 0 {
		// Whole pages go, so that one may hold a single entry of the window.
		tokens = min(tokens, win+n.chunk+n.page.PageEntries)
	}
	return n.bytes(n.pages(tokens) * int64(n.m.cfg.KVHeads))
}

func (n *needCounter) bytes(pages int64) int64 { return pages * int64(n.page.Bytes()) }

// whole returns the bytes of a cache of all of some tokens.
func (n *needCounter) whole(tokens int) int64 {
	sum := int64(0)
	for at := range n.m.cfg.Layers {
		sum += n.layer(at, tokens)
	}
	return sum
}

// compressed returns the need of a context that a plan compresses.
func (n *needCounter) compressed(plan *lukv.Compiled, context, rest int) (CacheNeed, error) {
	d := plan.Demand(context)
	var budgets [][]int
	if plan.Allocator().Knows() == lukv.KnownBefore {
		var err error
		if budgets, err = lukv.Allocate(plan.Allocator(), d, nil); err != nil {
			return CacheNeed{}, err
		}
	}
	var peak, cut, held int64
	again := n.repetition(plan, context)
	for at := range n.m.cfg.Layers {
		peak = max(peak, cut+n.layer(at, context)+again)
		after := n.layer(at, context)
		if d.Takes(at) {
			held += n.kept(d, budgets, at, rest)
			after = n.kept(d, budgets, at, 0)
		} else {
			held += n.layer(at, context+rest)
		}
		cut += after
	}
	switch plan.Allocator().Knows() {
	case lukv.KnownSoFar, lukv.KnownAtEnd: // how much goes before the end follows from scores
		peak = n.whole(context) + again
	}
	return CacheNeed{Peak: max(peak, held), Held: held}, nil
}

// repetition returns the bytes that a metric's repetition of a context adds to a layer
// while it passes through it: a chunk and what leads into it.
func (n *needCounter) repetition(plan *lukv.Compiled, context int) int64 {
	text := plan.Metric().Needs(context, 0).Repeat
	if text.Chunk == 0 {
		return 0
	}
	const lead = 64 // the instructions and the tokens before, rounded up
	tokens := min(text.Chunk, context) + lead + len(text.Suffix)
	return n.bytes((n.pages(tokens) + 1) * int64(n.m.cfg.KVHeads))
}

// kept returns the bytes of a layer after the cut, with rest tokens behind it.
func (n *needCounter) kept(d lukv.Demand, budgets [][]int, at, rest int) int64 {
	heads := n.m.cfg.KVHeads
	if budgets == nil { // the heads of a layer compete for what they have together
		return n.bytes(n.pages((d.Share()+rest)*heads) + int64(heads))
	}
	pages := int64(0)
	for _, b := range budgets[at] {
		pages += n.pages(min(b, d.T) + rest)
	}
	return n.bytes(pages)
}
