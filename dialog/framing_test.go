package dialog

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

func open(t *testing.T) *model.Model {
	t.Helper()
	m, err := builtin.Open(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func TestFraming(t *testing.T) {
	m := open(t)
	f, err := ChatFraming(t.Context(), m, FixedDate)
	require.NoError(t, err)
	assert.Equal(t, Framing{Before: "<s><|user|>", After: "<|assistant|>"}, f)
	f.Between = "\n\n"
	head, tail := f.Prompt("c", "q", "a")
	wantHead, wantTail := builtin.Prompt("c", "q", "a")
	assert.Equal(t, wantHead, head)
	assert.Equal(t, wantTail, tail)

	_, err = SystemFraming(t.Context(), m, FixedDate, "s")
	require.ErrorContains(t, err, "no system prompt")
	with := f.WithSystem("<s>be kind", "\n")
	head, _ = with.Prompt("c", "q", "a")
	assert.Equal(t, "<s><|user|><s>be kind\nc", head.Text)
	assert.Equal(t, []tokenizer.Span{{Start: 11, End: 21}, {Start: 22, End: 23}}, head.Data, "the text of a system prompt is data")
	assert.Equal(t, f, f.WithSystem("", "\n"))

	plain, err := PlainFraming(m)
	require.NoError(t, err)
	assert.Equal(t, Framing{Before: "<s>", After: "\n"}, plain)
}
