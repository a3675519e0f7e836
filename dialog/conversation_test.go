package dialog

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

func quiet(string) error { return nil }

func begin(t *testing.T, m *model.Model, plain bool) *Conversation {
	t.Helper()
	f, err := NewFormat(m, FixedDate)
	if plain {
		f, err = PlainFormat(m)
	}
	require.NoError(t, err)
	c := NewConversation(m, f)
	t.Cleanup(c.Close)
	return c
}

// TestConversationFeedsWhatIsNew checks that a turn reads only what the session
// does not hold, and that this does not change any answer.
func TestConversationFeedsWhatIsNew(t *testing.T) {
	c := begin(t, open(t), false)
	c.Sampling.MaxTokens = 30
	turn := func(text string) (Turn, string) {
		t.Helper()
		var pieces strings.Builder
		turn, err := c.Ask(t.Context(), text, func(s string) error { pieces.WriteString(s); return nil })
		require.NoError(t, err)
		content, _ := c.Messages[len(c.Messages)-1].Get("content")
		assert.Equal(t, content, pieces.String())
		return turn, pieces.String()
	}
	// holds checks that the session has read the prompt and nothing else.
	holds := func(messages int) {
		t.Helper()
		prompt, err := c.Prompt(t.Context(), c.Messages[:messages])
		require.NoError(t, err)
		want, err := c.encode(t.Context(), prompt)
		require.NoError(t, err)
		got := c.s.Tokens()
		require.GreaterOrEqual(t, len(got), len(want))
		assert.Equal(t, want, got[:len(want)])
	}
	questions := []string{"Who is Ada?", "And where does she live?", "What is her dog called?"}
	var answers []string
	total := 0
	for i, q := range questions {
		st, a := turn(q)
		holds(2*i + 1)
		answers = append(answers, a)
		if i > 0 {
			assert.Less(t, st.Read, 40, "turn %d", i)
			assert.Greater(t, st.Held, total, "turn %d", i)
		}
		total = st.Held
	}
	// The same, each turn from scratch.
	messages := c.Messages
	for i, q := range questions {
		c.Forget()
		c.Messages = messages[:2*i]
		st, a := turn(q)
		assert.Equal(t, answers[i], a)
		assert.Equal(t, st.Held, st.Read)
	}
	// A past message changes: back to the common prefix.
	c.Messages[1].Set("content", "Something else entirely.")
	st, _ := turn(questions[0])
	holds(len(c.Messages) - 1)
	assert.Less(t, st.Read, st.Held)
}

// swept writes a model of two layers that see 16 tokens back, with a template
// that, like Mistral's own, puts the system prompt into the last user
// message.
func swept(t *testing.T) *model.Model {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := fs.ReadFile(builtin.Files(), name)
		require.NoError(t, err)
		write(name, data)
	}
	write("chat_template.jinja", []byte(
		`<s>{% for m in messages if m.role != 'system' %}{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}: {% endif %}`+
			`[{{ m.role }}] {{ m.content }}{% endfor %}[/]`))
	config, err := json.Marshal(map[string]any{
		"architectures": []string{"MistralForCausalLM"}, "model_type": "mistral", "hidden_size": 32, "intermediate_size": 48,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 2176,
		"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 16,
		"hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
	})
	require.NoError(t, err)
	write("config.json", config)
	cfg, err := arch.Load(dir)
	require.NoError(t, err)
	var tensors []safetensors.Named
	w, err := weights.Random(t.Context(), cfg, tensor.BF16, 7)
	require.NoError(t, err)
	w.Each(func(name string, x tensor.Tensor) {
		tensors = append(tensors, safetensors.Named{Name: name, Tensor: x})
	})
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, safetensors.SingleName), tensors, nil))
	m, err := model.Open(t.Context(), dir)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// TestConversationStartsAgain covers what makes a conversation begin a new
// session: sliding windows that do not reach back, and a template that moves what
// comes before the document.
func TestConversationStartsAgain(t *testing.T) {
	m := swept(t)
	for _, document := range []string{"", strings.Repeat("Some words stand in a row. ", 30) + "\n"} {
		for _, plain := range []bool{false, true} {
			c := begin(t, m, plain)
			c.System, c.Sampling.MaxTokens = "Be kind", 5
			c.Session.Compression = &lukv.Policy{Ratio: 0.5}
			if document != "" {
				require.NoError(t, c.ReadDocument(t.Context(), document))
				assert.Equal(t, c.DocumentTokens(), c.s.Len())
			}
			for i := range 3 {
				turn, err := c.Ask(t.Context(), strings.Repeat("What does it mean? ", 20), quiet)
				require.NoError(t, err)
				assert.False(t, turn.NoSystem)
				prompt, err := c.Prompt(t.Context(), c.Messages[:2*i+1])
				require.NoError(t, err)
				want, err := c.encode(t.Context(), prompt)
				require.NoError(t, err)
				require.Equal(t, want, c.s.Tokens()[:len(want)])
				if document != "" {
					assert.True(t, strings.HasPrefix(prompt.Text, c.head))
					assert.True(t, strings.HasSuffix(c.head, strings.TrimSpace(document)))
				}
				if plain && i > 0 {
					assert.Less(t, turn.Read, turn.Held/2, "plain lines only grow")
				}
			}
			// Far behind the window.
			c.Messages[0].Set("content", "Something else.")
			_, err := c.Ask(t.Context(), "And now?", quiet)
			require.NoError(t, err)
			prompt, err := c.Prompt(t.Context(), c.Messages[:len(c.Messages)-1])
			require.NoError(t, err)
			want, err := c.encode(t.Context(), prompt)
			require.NoError(t, err)
			assert.Equal(t, want, c.s.Tokens()[:len(want)])
			require.NoError(t, c.Clear(t.Context()))
			if document != "" {
				assert.Equal(t, c.headTokens, c.s.Tokens())
			} else {
				assert.Nil(t, c.s)
			}
		}
	}
}

// TestConversationBrokenOff: a cancelled answer stays as far as it got; a reader
// that goes away and a message that does not fit leave nothing.
func TestConversationBrokenOff(t *testing.T) {
	m := swept(t)
	c := begin(t, m, true)
	c.Sampling = model.Sampling{MaxTokens: 200, IgnoreEOS: true}
	ctx, cancel := context.WithCancel(t.Context())
	var came strings.Builder
	_, err := c.Ask(ctx, "Talk", func(s string) error {
		if came.WriteString(s); came.Len() > 20 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, c.Messages, 2)
	content, _ := c.Messages[1].Get("content")
	assert.Equal(t, came.String(), content)

	_, err = c.Ask(t.Context(), "Talk", func(string) error { return fs.ErrClosed })
	require.ErrorIs(t, err, fs.ErrClosed)
	require.Len(t, c.Messages, 2)
	_, err = c.Ask(t.Context(), strings.Repeat("far too long ", 4000), quiet)
	require.ErrorIs(t, err, model.ErrContextFull)
	require.Len(t, c.Messages, 2)
	c.Sampling.MaxTokens = 3
	_, err = c.Ask(t.Context(), "Still there?", quiet)
	require.NoError(t, err)
}

// TestConversationSaved continues where a saved conversation was, and refuses
// parts that do not belong together.
func TestConversationSaved(t *testing.T) {
	m := open(t)
	path := filepath.Join(t.TempDir(), "saved")
	c := begin(t, m, false)
	c.Sampling.MaxTokens = 10
	c.Session.Compression = &lukv.Policy{Ratio: 0.3}
	require.ErrorContains(t, c.Save(t.Context(), path), "nothing has been read")
	require.NoError(t, c.ReadDocument(t.Context(), builtin.Samples()[0].Context))
	_, err := c.Ask(t.Context(), "Who?", quiet)
	require.NoError(t, err)
	require.NoError(t, c.Save(t.Context(), path))
	info, err := os.Stat(StateFile(path))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), "what was said is its owner's")

	again := begin(t, m, false)
	again.Sampling = c.Sampling
	require.NoError(t, again.Restore(t.Context(), path, model.SessionOptions{}))
	assert.Equal(t, c.headTokens, again.headTokens)
	assert.Equal(t, c.Document, again.Document)
	first, err := c.Ask(t.Context(), "Where?", quiet)
	require.NoError(t, err)
	second, err := again.Ask(t.Context(), "Where?", quiet)
	require.NoError(t, err)
	assert.Equal(t, first.Read, second.Read)
	assert.Equal(t, c.s.Tokens(), again.s.Tokens())

	for text, want := range map[string]string{`{"messages":[],"head_tokens":100000}`: "100000 tokens", `{`: "messages in"} {
		require.NoError(t, os.WriteFile(StateFile(path), []byte(text), 0o600))
		require.ErrorContains(t, again.Restore(t.Context(), path, model.SessionOptions{}), want)
	}
}
