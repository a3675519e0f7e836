package tokenizer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIdleScratch: between calls a scratch keeps the memory that ordinary texts
// need, and none of what one very long text has taken.
func TestIdleScratch(t *testing.T) {
	with := func(bytes, entries int) *scratch {
		s := &scratch{
			ids: make([]int32, entries), spans: make([]Span, entries), pieces: make([]piece, entries), spare: make([]piece, entries),
			matches: make([]match, entries), found: make([]piece, entries), search: patternSearch{stack: make([]choice, entries)},
			cur: "text", out: make([]byte, bytes), outSrc: make([]Span, entries),
		}
		for i := range 2 {
			s.bufs[i], s.altBufs[i] = make([]byte, bytes), make([]byte, bytes)
			s.srcs[i], s.altSrcs[i] = make([]Span, entries), make([]Span, entries)
		}
		s.begin(t.Context(), 1)
		s.trim()
		require.Nil(t, s.ctx)
		require.Empty(t, s.cur)
		require.Nil(t, s.out)
		require.Nil(t, s.outSrc)
		return s
	}
	held := func(s *scratch) (n, of int) {
		for _, c := range []int{
			cap(s.ids), cap(s.spans), cap(s.pieces), cap(s.spare), cap(s.matches), cap(s.found), cap(s.search.stack), cap(s.bufs[0]),
			cap(s.bufs[1]), cap(s.altBufs[0]), cap(s.altBufs[1]), cap(s.srcs[0]), cap(s.srcs[1]), cap(s.altSrcs[0]), cap(s.altSrcs[1]),
		} {
			of++
			if c > 0 {
				n++
			}
		}
		return n, of
	}
	n, of := held(with(keepBytes, keepEntries))
	require.Equal(t, of, n)
	n, _ = held(with(keepBytes+1, keepEntries+1))
	require.Zero(t, n)
}
