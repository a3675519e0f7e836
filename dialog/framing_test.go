package dialog

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
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

	plain, err := PlainFraming(m)
	require.NoError(t, err)
	assert.Equal(t, Framing{Before: "<s>", After: "\n"}, plain)
}
