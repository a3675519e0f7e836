package dialog

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tokenizer/chat"
)

// TestContextInFront: a context is found in its message, even if a message before it or
// the template's own words hold the same text.
func TestContextInFront(t *testing.T) {
	m := open(t)
	plain, err := PlainFormat(m)
	require.NoError(t, err)
	in := chat.Input{Messages: []*chat.Object{
		chat.NewMessage("system", "You know the old garden."), chat.NewMessage("user", "Where? In the old garden?"),
	}}
	got, front, n, err := plain.SplitTokens(t.Context(), in, "the old garden", 1000)
	require.NoError(t, err)
	assert.Equal(t, "<s>You know the old garden.\nthe old garden", plain.tok.Decode(got[:n], false))
	assert.Equal(t, "\n\nWhere? In the old garden?\n", plain.tok.Decode(got[n:], false))
	assert.Equal(t, "<s>You know the old garden.\n", plain.tok.Decode(front, false))

	templated, err := NewFormat(m, FixedDate)
	require.NoError(t, err)
	in.Messages = in.Messages[1:]
	got, _, n, err = templated.SplitTokens(t.Context(), in, "user", 1000)
	require.NoError(t, err)
	assert.Equal(t, "<s><|user|>user", templated.tok.Decode(got[:n], false))

	for f, about := range map[*Format]string{plain: "the old garden", templated: "user"} {
		c := NewConversation(m, f)
		defer c.Close()
		c.Sampling.MaxTokens = 1
		if f == plain { // the other template has no place for it
			c.System = "You know the old garden."
		}
		require.NoError(t, c.ReadDocument(t.Context(), about))
		s := c.Held()
		_, err = c.Ask(t.Context(), "Where?", quiet)
		require.NoError(t, err)
		assert.True(t, s == c.Held(), "the document is not read again")
		_, err = c.Ask(t.Context(), "Since when?", quiet)
		require.NoError(t, err)
		assert.True(t, s == c.Held())
	}

	// A session that holds only a document may begin with blanks.
	c := NewConversation(m, plain)
	defer c.Close()
	c.Sampling.MaxTokens = 1
	c.Document = "\n  the old garden"
	require.NoError(t, c.Reread(t.Context()))
	s := c.Held()
	_, err = c.Ask(t.Context(), "Where?", quiet)
	require.NoError(t, err)
	assert.True(t, s == c.Held(), "the document is not read again")
}

// TestContinueTokens: the beginning of an answer is continued where it ends, even
// if it occurs in what the template writes after it, as "<" does in "</s>".
func TestContinueTokens(t *testing.T) {
	m := open(t)
	f, err := NewFormat(m, FixedDate)
	require.NoError(t, err)
	for _, text := range []string{"<", "s", "/s>", "</s>", "Yes", "<b>", "s s"} {
		in := chat.Input{AddGenerationPrompt: true, Messages: []*chat.Object{chat.NewMessage("user", "How?")}}
		asked, err := f.Render(t.Context(), in)
		require.NoError(t, err)
		in.Messages = append(in.Messages, chat.NewMessage("assistant", text))
		got, err := f.ContinueTokens(t.Context(), in, 1000)
		require.NoError(t, err)
		assert.Equal(t, chat.Join(asked, chat.Data(text)).Encode(f.tok), got, text)
	}
}
