package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tokenizer"
)

func TestTokenizerJSON(t *testing.T) {
	const size = 5000
	text, err := tokenizerJSON(size)
	require.NoError(t, err)
	tok, err := tokenizer.Load(fstest.MapFS{"tokenizer.json": &fstest.MapFile{Data: text}})
	require.NoError(t, err)
	assert.Equal(t, size, tok.VocabSize())
	const sentence = "Ein Text,\nzweimal \x00 gelesen: ∑ 12345"
	assert.Equal(t, sentence, tok.Decode(tok.Encode(sentence, tokenizer.EncodeOptions{}), false))
	word := []int32{size - 1}
	assert.Equal(t, word, tok.Encode(tok.Decode(word, false), tokenizer.EncodeOptions{}))
}
