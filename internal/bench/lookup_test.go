package bench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tensor"
)

func TestLookup(t *testing.T) {
	o := quick()
	o.Lookup = 2
	r, err := Run(t.Context(), []*Source{Checkpoint(builtin.Name, builtin.Open)}, o)
	require.NoError(t, err)
	assert.Empty(t, r.Points, "nothing else was asked for")
	require.Len(t, r.Lookups, 3)
	for i, set := range []string{LookupQuote, LookupAnswer, LookupFree} {
		x := r.Lookups[i]
		assert.Equal(t, set, x.Set)
		assert.Equal(t, 2, x.Items)
		assert.Equal(t, 1, x.Threads)
		assert.Positive(t, x.Speed)
		assert.Positive(t, x.Plain)
		assert.LessOrEqual(t, x.Low, x.Faster)
		assert.GreaterOrEqual(t, x.High, x.Faster)
		assert.LessOrEqual(t, x.Accepted, x.Drafted)
	}
	assert.Greater(t, r.Lookups[0].Accepted, 0.2, "what is recited is found")
	var table, markdown bytes.Buffer
	require.NoError(t, r.WriteTable(&table))
	require.NoError(t, r.WriteMarkdown(&markdown))
	assert.Contains(t, table.String(), LookupQuote)
	assert.Contains(t, markdown.String(), "| "+LookupQuote+" |")

	_, err = Run(t.Context(), []*Source{Random("tiny", tiny(0), tensor.BF16)}, o)
	require.ErrorContains(t, err, "lookup decoding of tiny")
}
