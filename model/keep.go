package model

import (
	"fmt"
	"slices"

	"github.com/lukv/lukv/lukv"
)

// Keep evicts all entries except those at the given positions: kept[l][h] are the
// positions that KV head h of layer l keeps, ascending, each held by the head
// now. A nil layer stays as it is; one with a sliding window must be nil. Keep
// applies a choice made elsewhere; a policy makes its own during prefill. On an
// error nothing is evicted, unless the system or a device has no memory for the
// survivors in pages that forks share: heads cut before that stay cut. The
// session's position, tokens and logits stay.
func (s *Session) Keep(kept [][][]int32) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("keep entries: %w", err)
	}
	defer s.leave()
	if err := s.ready(); err != nil {
		return fmt.Errorf("keep entries: %w", err)
	}
	if err := s.m.acquire(); err != nil {
		return fmt.Errorf("keep entries: %w", err)
	}
	defer s.m.release()
	slots, err := s.slotsOf(kept)
	if err != nil {
		return fmt.Errorf("keep entries: %w", err)
	}
	for at, layer := range slots {
		for h, row := range layer {
			if err := s.cache.Keep(at, h, row); err != nil {
				return fmt.Errorf("keep entries of layer %d, kv head %d: %w", at, h, err)
			}
			if sums := s.comp.sums(at); sums != nil {
				sums.Compact(h, row)
			}
		}
	}
	return nil
}

// sums returns the attention accumulated in a layer while decoding, nil if none.
func (c *compression) sums(at int) *lukv.ColumnSums {
	if c == nil || c.decode == nil || c.decode[at] == nil {
		return nil
	}
	return c.decode[at].Sums()
}

// slotsOf turns positions into slots.
func (s *Session) slotsOf(kept [][][]int32) ([][][]int32, error) {
	c := s.m.cfg
	if len(kept) != c.Layers {
		return nil, fmt.Errorf("found %d layers, expected %d", len(kept), c.Layers)
	}
	slots := make([][][]int32, c.Layers)
	for at, layer := range kept {
		switch {
		case layer == nil:
			continue
		case !c.Ragged(at):
			return nil, fmt.Errorf("layer %d: found a choice for a layer with a sliding window, expected none", at)
		case len(layer) != c.KVHeads:
			return nil, fmt.Errorf("layer %d: found %d kv heads, expected %d", at, len(layer), c.KVHeads)
		}
		slots[at] = make([][]int32, c.KVHeads)
		for h, positions := range layer {
			held := s.cache.Positions(at, h, nil)
			row := make([]int32, len(positions))
			from := 0
			for i, p := range positions {
				n, ok := slices.BinarySearch(held[from:], p)
				if !ok {
					return nil, fmt.Errorf("layer %d, kv head %d: found position %d at place %d, expected positions that the head holds, ascending", at, h, p, i)
				}
				row[i] = int32(from + n)
				from += n + 1
			}
			slots[at][h] = row
		}
	}
	return slots, s.cache.Err()
}
