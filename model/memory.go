package model

import (
	"fmt"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
)

// Memory is refused before any work is done: what a prefill takes is known beforehand.

// affords returns an error that wraps kvcache.ErrFull if the cache's limit, or that
// of all sessions, leaves no room for n more tokens, which comp compresses. If budgets
// depend on scores, up to a page per head too much is counted; what compression while
// decoding will evict is not subtracted.
func (s *Session) affords(n int, comp *compression) error {
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
	count := s.needCounter()
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

// needCounter counts the pages of the session's cache.
func (s *Session) needCounter() needCounter {
	o := s.cacheOptions()
	if o.PageEntries == 0 {
		o.PageEntries = defaultPageEntries
	}
	return needCounter{m: s.m, cache: o, page: o.Layout(0), chunk: s.opts.ChunkTokens, loss: s.opts.ProbeLoss}
}

// tokenBlock is how many bytes a session takes for tokens from the memory of all
// sessions at a time.
const tokenBlock = 4096

// takeTokens charges the memory of all sessions for n more tokens, the logits, with
// the first tokens, and what drafts take. free gives it back.
func (s *Session) takeTokens(n int) error {
	if s.m.memory == nil {
		return nil
	}
	need := 4*int64(s.m.cfg.Vocab+len(s.tokens)+n+len(s.ahead.room)) + s.lookup.Bytes()
	if s.opts.ProbeLoss != nil {
		need += 8 * int64(len(s.tokens)+n)
	}
	if need <= s.charged {
		return nil
	}
	more := (need - s.charged + tokenBlock - 1) / tokenBlock * tokenBlock
	if err := s.m.memory.Take(more); err != nil {
		return err
	}
	s.charged += more
	return nil
}

// giveTokens gives back what takeTokens charged.
func (s *Session) giveTokens() {
	if s.m.memory != nil {
		s.m.memory.Give(s.charged)
		s.charged = 0
	}
}
