package openaigo

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// TestCompletions asks for the whole answer and for a stream, which must agree.
func TestCompletions(t *testing.T) {
	c := start(t, engine.Options{}).client()
	text := func(s string) openai.CompletionNewParamsPromptUnion {
		return openai.CompletionNewParamsPromptUnion{OfString: openai.String(s)}
	}
	for name, p := range map[string]openai.CompletionNewParams{
		"plain":   {Prompt: text("One of the special")},
		"echo":    {Prompt: text("One of the naïve café’s 🙂 guests"), Echo: openai.Bool(true), Logprobs: openai.Int(2)},
		"scores":  {Prompt: text("One of the"), Echo: openai.Bool(true), Logprobs: openai.Int(1), Temperature: openai.Float(0)},
		"choices": {Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"One of", "The"}}, N: openai.Int(2), Seed: openai.Int(3)},
		"tokens":  {Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{300, 301}}, Echo: openai.Bool(true)},
		"lists":   {Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokenArrays: [][]int64{{300}, {301, 302}}}, Stop: openai.CompletionNewParamsStopUnion{OfString: openai.String("e")}},
	} {
		t.Run(name, func(t *testing.T) {
			p.Model, p.MaxTokens = modelID, openai.Int(12)
			if !p.Seed.Valid() {
				p.Seed = openai.Int(1)
			}
			whole, err := c.Completions.New(t.Context(), p)
			require.NoError(t, err)
			complete(t, whole)
			require.Equal(t, "text_completion", string(whole.Object))
			prompts := max(1, len(p.Prompt.OfArrayOfStrings)+len(p.Prompt.OfArrayOfTokenArrays))
			require.Len(t, whole.Choices, prompts*int(max(1, p.N.Value)))
			for i, choice := range whole.Choices {
				require.Equal(t, int64(i), choice.Index)
			}
			p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
			streamed := make([]openai.CompletionChoice, len(whole.Choices))
			chunks := c.Completions.NewStreaming(t.Context(), p)
			var last openai.Completion
			for chunks.Next() {
				last = chunks.Current()
				complete(t, last)
				for _, choice := range last.Choices {
					s := &streamed[choice.Index]
					require.Empty(t, s.FinishReason, "nothing comes after the end")
					s.Text += choice.Text
					s.FinishReason = choice.FinishReason
					s.Logprobs.Tokens = append(s.Logprobs.Tokens, choice.Logprobs.Tokens...)
					s.Logprobs.TokenLogprobs = append(s.Logprobs.TokenLogprobs, choice.Logprobs.TokenLogprobs...)
					s.Logprobs.TopLogprobs = append(s.Logprobs.TopLogprobs, alternatives(t, choice)...)
					s.Logprobs.TextOffset = append(s.Logprobs.TextOffset, choice.Logprobs.TextOffset...)
				}
			}
			require.NoError(t, chunks.Err())
			require.Empty(t, last.Choices)
			require.Equal(t, whole.Usage.TotalTokens, last.Usage.TotalTokens)
			for i, choice := range whole.Choices {
				require.Equal(t, choice.Text, streamed[i].Text)
				require.Equal(t, choice.FinishReason, streamed[i].FinishReason)
				require.Equal(t, choice.Logprobs.Tokens, streamed[i].Logprobs.Tokens)
				require.Equal(t, choice.Logprobs.TokenLogprobs, streamed[i].Logprobs.TokenLogprobs)
				require.Equal(t, alternatives(t, choice), streamed[i].Logprobs.TopLogprobs)
				require.Equal(t, choice.Logprobs.TextOffset, streamed[i].Logprobs.TextOffset)
				if p.Echo.Value && p.Prompt.OfString.Valid() {
					require.Contains(t, choice.Text, p.Prompt.OfString.Value)
				}
				if p.Logprobs.Valid() {
					checkLogprobs(t, choice)
				}
			}
		})
	}
}

// alternatives returns the top_logprobs of a choice. The client cannot decode the list if
// it begins with null, as it does where a prompt is scored, here and in OpenAI's own API.
func alternatives(t *testing.T, choice openai.CompletionChoice) []map[string]float64 {
	t.Helper()
	var top []map[string]float64
	if raw := choice.Logprobs.JSON.TopLogprobs.Raw(); raw != "" {
		require.NoError(t, json.Unmarshal([]byte(raw), &top))
	}
	return top
}

// checkLogprobs requires a value and an offset in the text for every token. From the second
// on, the alternatives include the token itself, with a value no lower than its own.
func checkLogprobs(t *testing.T, choice openai.CompletionChoice) {
	t.Helper()
	l := choice.Logprobs
	require.NotEmpty(t, l.Tokens)
	require.Len(t, l.TokenLogprobs, len(l.Tokens))
	top := alternatives(t, choice)
	require.Len(t, top, len(l.Tokens))
	require.Len(t, l.TextOffset, len(l.Tokens))
	characters := []rune(choice.Text)
	for i, token := range l.Tokens {
		if i > 0 {
			require.GreaterOrEqual(t, top[i][token], l.TokenLogprobs[i])
			require.LessOrEqual(t, l.TokenLogprobs[i], 0.0)
		}
		if utf8.ValidString(token) && !strings.Contains(token, "\uFFFD") && int(l.TextOffset[i]) < len(characters) {
			require.True(t, strings.HasPrefix(string(characters[l.TextOffset[i]:]), token), "token %d is %q, the text has %q there",
				i, token, string(characters[l.TextOffset[i]:]))
		}
	}
}
