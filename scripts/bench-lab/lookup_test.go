package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/builtin"
)

func TestLookup(t *testing.T) {
	s := quick()
	s.items = 2
	x, err := s.lookup(t.Context(), builtin.Name)
	require.NoError(t, err)
	list := x.([]Lookup)
	require.Len(t, list, 3)
	for i, set := range []string{LookupQuote, LookupAnswer, LookupFree} {
		x := list[i]
		assert.Equal(t, set, x.Set)
		assert.Equal(t, 2, x.Items)
		assert.Equal(t, 1, x.Threads)
		assert.Positive(t, x.Speed)
		assert.Positive(t, x.Plain)
		assert.LessOrEqual(t, x.Low, x.Faster)
		assert.GreaterOrEqual(t, x.High, x.Faster)
		assert.LessOrEqual(t, x.Accepted, x.Drafted)
	}
	assert.Greater(t, list[0].Accepted, 0.2, "a recited passage is found")

	_, err = s.lookup(t.Context(), "150m:1")
	require.ErrorContains(t, err, "tokenizer of 150m:1")
}
