package dialog

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer/chat"
)

// The system prompt that a template writes by itself stays uncompressed, like one that was
// sent; the header of a message does not.
func TestSystemPromptOfTemplateStays(t *testing.T) {
	const loop = `{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: `
	for template, stays := range map[string]bool{
		`{% if messages[0].role != 'system' %}system: You are a helpful assistant of the old mill, and answer in as few words as you can.\n{% endif %}` + loop: true,
		loop: false,
	} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, builtin.Files()))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600))
		m, err := model.Open(t.Context(), dir)
		require.NoError(t, err)
		defer m.Close()
		f, err := NewFormat(m, FixedDate)
		require.NoError(t, err)
		document := builtin.Samples()[0].Context
		in := chat.Input{AddGenerationPrompt: true, Messages: []*chat.Object{chat.NewMessage("user", "Who?")}}
		tokens, front, n, err := f.SplitTokens(t.Context(), in, document, 2000)
		require.NoError(t, err)
		policy := &lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "knorm"}}
		got := Protected(m, policy, front, tokens[:n])
		require.Equal(t, stays, got > 16, "%d", got)
		c := begin(t, m, false)
		c.Session.Compression = policy
		require.NoError(t, c.ReadDocument(t.Context(), document))
		least, _ := held(c, 0, got)
		require.Equal(t, got, least)
		c.Close()
	}
}
