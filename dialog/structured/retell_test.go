package structured

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/tokenizer/chat"
)

// conversation is a conversation with two calls, their results and a further question.
func conversation(t *testing.T) chat.Input {
	var messages []*chat.Object
	require.NoError(t, json.Unmarshal([]byte(`[
		{"role": "user", "content": "Rome?"},
		{"role": "assistant", "content": "Let me see.", "name": "me", "tool_calls": [
			{"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
			{"id": "b", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
		{"role": "tool", "tool_call_id": "a", "content": "31 degrees"},
		{"role": "tool", "tool_call_id": "b", "content": "noon"},
		{"role": "user", "content": "Thanks. And?"}]`), &messages))
	return chat.Input{Messages: messages}
}

// TestRetell: whatever a template leaves out is told as text, in turns of users and the
// assistant, and what it writes stays.
func TestRetell(t *testing.T) {
	const plain = "Let me see.\n" + `{"name": "weather", "arguments": {"city":"Rome"}}` + "\n" + `{"name": "now", "arguments": {}}`
	const results = "The function weather returned:\n31 degrees\n\nThe function now returned:\nnoon\n\nThanks. And?"
	alternate := `{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}`
	for _, test := range []struct {
		template string
		want     [][2]string // roles and texts; nil: as it was
	}{
		{"qwen2.5-7b-instruct", nil},
		{"zephyr-tinyllama", [][2]string{{"user", "Rome?"}, {"assistant", plain}, {"user", results}}},
		{alternate, [][2]string{{"user", "Rome?"}, {"assistant", plain}, {"user", results}}},
		{`{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}`,
			[][2]string{{"user", "Rome?"}, {"assistant", plain}, {"user", results}}},
		{likeGranite, [][2]string{{"user", "Rome?"},
			{"assistant", "Let me see.\n" + `<|tool_call|>[{"name": "weather", "arguments": {"city":"Rome"}}, {"name": "now", "arguments": {}}]`},
			{"tool", "31 degrees"}, {"tool", "noon"}, {"user", "Thanks. And?"}}},
		{likeSmolLM3, [][2]string{{"user", "Rome?"},
			{"assistant", "Let me see.\n<tool_call>\n" + `{"name": "weather", "arguments": {"city":"Rome"}}` + "\n</tool_call>\n<tool_call>\n" + `{"name": "now", "arguments": {}}` + "\n</tool_call>"},
			{"tool", "31 degrees"}, {"tool", "noon"}, {"user", "Thanks. And?"}}},
	} {
		c, s := family(t, test.template, "</s>")
		in, before := conversation(t), conversation(t)
		own := in.Messages
		s.Retell(&in)
		require.Equal(t, before.Messages, own, "the caller's messages stay as they are")
		if test.want == nil {
			require.Equal(t, own, in.Messages)
			continue
		}
		var got [][2]string
		for _, m := range in.Messages {
			got = append(got, [2]string{textOf(m, "role"), textOf(m, "content")})
			require.Empty(t, callsOf(m))
		}
		require.Equal(t, test.want, got, test.template)
		name, _ := in.Messages[1].Get("name")
		require.Equal(t, "me", name)

		// The prompt has all of it.
		format, err := dialog.NewFormat(c.m, time.Now())
		require.NoError(t, err)
		p, err := format.Render(t.Context(), in)
		require.NoError(t, err)
		for _, text := range []string{`{"city":"Rome"}`, "31 degrees", "noon", "Thanks. And?"} {
			require.Equal(t, 1, strings.Count(p.Text, text), text)
		}

		// With functions, too.
		in = conversation(t)
		calls, err := s.Tools(functions, ToolOptions{})
		require.NoError(t, err)
		require.NoError(t, calls.Show(&in))
		require.Len(t, in.Messages, len(test.want))
	}
}

// TestRetellOddMessages: results without a call, without a question after them, and calls
// without a function are told as far as they go.
func TestRetellOddMessages(t *testing.T) {
	_, s := family(t, "zephyr-tinyllama", "</s>")
	in := chat.Input{Messages: []*chat.Object{
		chat.NewMessage("tool", "x"),
		chat.NewMessage("assistant", "").Set("tool_calls", []any{new(chat.Object).Set("id", "a"), "?"}),
		chat.NewMessage("tool", "y").Set("tool_call_id", "a"),
	}}
	s.Retell(&in)
	var got []string
	for _, m := range in.Messages {
		got = append(got, textOf(m, "role")+": "+textOf(m, "content"))
	}
	require.Equal(t, []string{"user: The function returned:\nx", "assistant: " + `{"name": "", "arguments": {}}` + "\n" + `{"name": "", "arguments": {}}`, "user: The function returned:\ny"}, got)

	none := chat.Input{Messages: []*chat.Object{chat.NewMessage("user", "x")}}
	(*Syntax)(nil).Retell(&none) // templates are not looked at for conversations without calls
	require.Len(t, none.Messages, 1)
}

// TestRetellManyResults: the texts of many results become one message without being copied
// for each of them.
func TestRetellManyResults(t *testing.T) {
	_, s := family(t, "zephyr-tinyllama", "</s>")
	const many = 4096
	in := chat.Input{Messages: slices.Repeat([]*chat.Object{chat.NewMessage("tool", strings.Repeat("x", 400))}, many)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.Retell(&in)
	runtime.ReadMemStats(&after)
	require.Len(t, in.Messages, 1)
	text := textOf(in.Messages[0], "content")
	require.Equal(t, many, strings.Count(text, " returned:"))
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*len(text)))
}
