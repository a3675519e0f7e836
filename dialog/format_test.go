package dialog

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tokenizer/chat"
)

// TestContinueTokens: an answer's beginning that occurs in what the template writes
// behind it, as "<" does in "</s>", is continued where it ends.
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
