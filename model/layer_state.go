package model

import (
	"fmt"
	"slices"
)

// What a layer keeps of the past is its state. There are two kinds: a ragged cache (see
// Config.Ragged), which compression, observation and traces are about, and the sliding
// window, whose layers forget by themselves. What a session does with its states whatever
// their kind (append, fork, truncate, save) is the cache's work; what differs is here.

// windowed reports whether a layer has a sliding window.
func (s *Session) windowed() bool { return slices.Max(s.m.cfg.Windows) > 0 }

// dropWindows gives up the entries that no window reaches any more.
func (s *Session) dropWindows() {
	for at := range s.m.cfg.Layers {
		s.dropWindow(at, s.pos-s.slack)
	}
}

// dropWindow gives up the entries of a layer that its window, if it has one, does not reach
// from position pos on.
func (s *Session) dropWindow(at, pos int) {
	if window := s.m.cfg.Windows[at]; window > 0 {
		s.cache.DropBefore(at, int32(pos-window+1))
	}
}

// dropFrom gives up the entries of ragged layers at position end and above, and goes back
// to there.
func (s *Session) dropFrom(end int) error {
	for at := range s.m.cfg.Layers {
		for h := 0; h < s.m.cfg.KVHeads && s.m.cfg.Ragged(at); h++ {
			var stay []int32
			for i, p := range s.cache.Positions(at, h, nil) {
				if int(p) < end {
					stay = append(stay, int32(i))
				}
			}
			if err := s.cache.Keep(at, h, stay); err != nil {
				return err
			}
		}
	}
	s.pos = end
	return nil
}

// lacking returns an error that names a head of a ragged layer that does not hold every
// entry of a span, nil if there is none.
func (s *Session) lacking(span Span) error {
	for at := range s.m.cfg.Layers {
		for h := 0; h < s.m.cfg.KVHeads && s.m.cfg.Ragged(at); h++ {
			positions := s.cache.Positions(at, h, nil)
			from, _ := slices.BinarySearch(positions, int32(span.From))
			to, _ := slices.BinarySearch(positions, int32(span.To))
			if to-from != span.To-span.From {
				return fmt.Errorf("%w: layer %d, KV head %d holds %d of its entries, expected all of them", ErrNotObserved, at, h, to-from)
			}
		}
	}
	return nil
}
