package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/builtin"
)

func TestExact(t *testing.T) {
	s := quick()
	s.items = 1
	x, err := s.exact(t.Context(), builtin.Name)
	require.NoError(t, err)
	list := x.([]Exact)
	require.Len(t, list, 4*3*2)
	for _, x := range list {
		assert.Positive(t, x.Tokens)
		assert.LessOrEqual(t, x.Right, 1.0)
		assert.GreaterOrEqual(t, x.PerPass, 1.0)
		assert.LessOrEqual(t, x.PerPass, 1.0+exactDrafts)
	}
	_, err = s.exact(t.Context(), "150m:1")
	require.ErrorContains(t, err, "tokenizer of 150m:1")
}
