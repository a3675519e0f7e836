package model

// Eviction is an entry that was evicted while decoding.
type Eviction struct {
	Position int32 // of its token; the new one if positions were renumbered
	At       int32 // tokens that the session had processed by then
}

// reportEvicted tells the session's callback what a cut while decoding is about to evict
// from a head that keeps the given slots.
func (c *compression) reportEvicted(s *Session, layer, head int, kept []int32) {
	c.held = s.cache.Positions(layer, head, c.held[:0])
	c.gone = c.gone[:0]
	for i, p := range c.held {
		if len(kept) > 0 && int(kept[0]) == i {
			kept = kept[1:]
			continue
		}
		c.gone = append(c.gone, Eviction{Position: p, At: int32(s.pos)})
	}
	if len(c.gone) == 0 {
		return
	}
	defer s.callBack()()
	s.opts.TraceEvicted(layer, head, c.gone)
}

// AddEvicted appends what a head lost while decoding: used as
// [SessionOptions.TraceEvicted], it collects everything in the trace, 8 bytes for each
// evicted entry. No entry is evicted twice.
func (t *Trace) AddEvicted(layer, head int, evicted []Eviction) {
	for len(t.Evicted) <= layer {
		t.Evicted = append(t.Evicted, nil)
	}
	for len(t.Evicted[layer]) <= head {
		t.Evicted[layer] = append(t.Evicted[layer], nil)
	}
	t.Evicted[layer][head] = append(t.Evicted[layer][head], evicted...)
}

// evictedOf returns what a head lost while decoding.
func (t *Trace) evictedOf(layer, head int) []Eviction {
	if layer >= len(t.Evicted) || head >= len(t.Evicted[layer]) {
		return nil
	}
	return t.Evicted[layer][head]
}
