package model

import "time"

// SessionStats says what a session did and what its cache holds.
type SessionStats struct {
	Tokens        int // tokens processed
	Decoded       int // of these, one at a time
	Drafted       int // tokens that were looked up, or drafted by a compressed cache, and computed ahead
	Accepted      int // of these, those that were right; Decoded counts them too
	Verified      int // passes that computed tokens ahead
	ContextTokens int // tokens up to the end of the last span that was compressed, 0 if none was

	PrefillTime time.Duration // scoring and eviction included
	ScoreTime   time.Duration // ranking the context's entries
	EvictTime   time.Duration // selecting and compacting
	DecodeTime  time.Duration
	Cuts        int // layers cut while decoding

	Entries     int64   // entries held, over all layers and KV heads
	FullEntries int64   // entries that an uncompressed cache would hold
	CacheBytes  int64   // bytes held now, page slack and positions included
	DeviceBytes int64   // of these on the model's device
	DraftBytes  int64   // bytes that the cache that drafts holds besides, see DraftCompressed
	FullBytes   int64   // bytes that an uncompressed cache would hold
	PeakBytes   int64   // the most held so far
	Ratio       float64 // fraction of entries removed: 1 - Entries/FullEntries
	Layers      []LayerStats
}

// LayerStats are the entries of one layer.
type LayerStats struct {
	Window  int   // sliding window in tokens, 0 if none
	Entries []int // per KV head

	Ratio float64 // fraction of entries removed, of those that an uncompressed layer would hold
	Bytes int64   // keys and values of the entries, page slack and positions not counted
}

// Stats returns the session's statistics. Any goroutine may call it; it waits for
// a call in progress to end or to reach a callback.
func (s *Session) Stats() SessionStats {
	defer s.quiet()()
	st := s.stats
	st.FullBytes = 0
	c := s.m.cfg
	cache := s.cache.Options()
	page := cache.PageEntries
	for at := range c.Layers {
		kept, whole, layout := st.Entries, st.FullEntries, cache.Layout(at)
		l := LayerStats{Window: c.Windows[at], Entries: make([]int, c.KVHeads)}
		full := s.pos
		if l.Window > 0 {
			full = min(full, l.Window)
		}
		for h := range l.Entries {
			l.Entries[h] = s.cache.Len(at, h)
			st.Entries += int64(l.Entries[h])
			// A windowed layer holds whole pages around its window.
			held := max(full, l.Entries[h])
			st.FullEntries += int64(held)
			st.FullBytes += int64((held+page-1)/page) * int64(layout.Bytes())
		}
		l.Bytes = (st.Entries - kept) * int64(layout.KeyBytes()+layout.ValueBytes())
		if st.FullEntries > whole {
			l.Ratio = 1 - float64(st.Entries-kept)/float64(st.FullEntries-whole)
		}
		st.Layers = append(st.Layers, l)
	}
	cs := s.cache.Stats()
	st.CacheBytes, st.PeakBytes, st.DeviceBytes = cs.Bytes, cs.HighWater, cs.DeviceBytes
	st.DraftBytes = s.draftCache.bytes()
	if st.FullEntries > 0 {
		st.Ratio = 1 - float64(st.Entries)/float64(st.FullEntries)
	}
	return st
}
