package lukv

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// DecodeState is the state of a [DecodeLayer] between two passes,
// as plain arrays: all that a saved session needs to continue with the same bits.
type DecodeState struct {
	Passes    int         // since the last cut
	Post, Pre QueryRows   // buffered queries, after and before RoPE
	Sums      [][]float64 // [K][T] attention received by the slots, nil if none is accumulated
	Seen      [][]int64   // [K][T] rows that could see them
}

// QueryRows are buffered queries of a layer: rows of [H*D], one after another, and
// their positions, ascending.
type QueryRows struct {
	Positions []int32
	Rows      []float32
}

// State returns a copy of the layer's state.
func (s *DecodeLayer) State() DecodeState {
	st := DecodeState{Passes: s.passes, Post: s.post.state(), Pre: s.pre.state()}
	if s.sums != nil {
		for h := range s.kvHeads {
			st.Sums = append(st.Sums, slices.Clone(s.sums.sum[h]))
			st.Seen = append(st.Seen, slices.Clone(s.sums.seen[h]))
		}
	}
	return st
}

func (w *QueryWindow) state() (q QueryRows) {
	if w == nil {
		return q
	}
	width := w.heads * w.dim
	for i := range w.n {
		at := w.slot(i)
		q.Positions = append(q.Positions, w.pos[at])
		q.Rows = append(q.Rows, w.rows[at*width:(at+1)*width]...)
	}
	return q
}

// Restore gives an empty layer the state that another of the same [Decoding] had. lens
// holds the number of entries of each head, next is the position of the next token. A
// state that does not agree with them, or with what the layer needs, is an error and
// changes nothing.
func (s *DecodeLayer) Restore(st DecodeState, lens []int, next int) error {
	if st.Passes < 0 || st.Passes > math.MaxInt32 {
		return fmt.Errorf("found %d passes since the last cut", st.Passes)
	}
	if err := s.post.check(st.Post, s.needs.Window, next); err != nil {
		return fmt.Errorf("queries after RoPE: %w", err)
	}
	if err := s.pre.check(st.Pre, s.d.buffer(), next); err != nil {
		return fmt.Errorf("queries before RoPE: %w", err)
	}
	if s.sums == nil && len(st.Sums)+len(st.Seen) > 0 {
		return errors.New("found accumulated attention, expected none")
	}
	if s.sums != nil {
		if len(st.Sums) != s.kvHeads || len(st.Seen) != s.kvHeads {
			return fmt.Errorf("accumulated attention: found %d heads, expected %d", len(st.Sums), s.kvHeads)
		}
		for h, n := range lens {
			if k := len(st.Sums[h]); k > n || len(st.Seen[h]) != k {
				return fmt.Errorf("accumulated attention of head %d: found %d and %d entries, expected at most %d", h, k, len(st.Seen[h]), n)
			}
		}
	}
	s.passes = st.Passes
	s.post.restore(st.Post)
	s.pre.restore(st.Pre)
	if s.sums != nil {
		for h := range lens {
			s.sums.sum[h], s.sums.seen[h] = slices.Clone(st.Sums[h]), slices.Clone(st.Seen[h])
		}
	}
	return nil
}

// check reports rows that a window of at most most rows, before position next,
// cannot have held. A nil window holds none.
func (w *QueryWindow) check(q QueryRows, most, next int) error {
	if w == nil {
		most = 0
	}
	if len(q.Positions) > most {
		return fmt.Errorf("found %d rows, expected at most %d", len(q.Positions), most)
	}
	if w != nil && len(q.Rows) != len(q.Positions)*w.heads*w.dim || w == nil && len(q.Rows) > 0 {
		return fmt.Errorf("found %d values for %d rows", len(q.Rows), len(q.Positions))
	}
	last := int32(-1)
	for _, p := range q.Positions {
		if p <= last || int(p) >= next {
			return fmt.Errorf("found position %d after %d, expected ascending positions below %d", p, last, next)
		}
		last = p
	}
	return nil
}

func (w *QueryWindow) restore(q QueryRows) {
	if w == nil {
		return
	}
	w.Reserve(len(q.Positions))
	w.Trim(0)
	width := w.heads * w.dim
	for i, p := range q.Positions {
		w.Append(int(p), q.Rows[i*width:(i+1)*width])
	}
}
