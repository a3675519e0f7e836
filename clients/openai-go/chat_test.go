package openaigo

import (
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// stream reads a stream with the client's accumulator, which checks the order of
// events, and returns the accumulator and the last chunk.
func stream(t *testing.T, c openai.Client, p openai.ChatCompletionNewParams) (openai.ChatCompletionAccumulator, openai.ChatCompletionChunk) {
	t.Helper()
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	var acc openai.ChatCompletionAccumulator
	var last openai.ChatCompletionChunk
	ended := map[int64]int{}
	s := c.Chat.Completions.NewStreaming(t.Context(), p)
	for s.Next() {
		last = s.Current()
		complete(t, last)
		require.True(t, acc.AddChunk(last), "the accumulator takes no chunk like %s", last.RawJSON())
		for _, choice := range last.Choices {
			if choice.FinishReason != "" {
				ended[choice.Index]++
			}
		}
	}
	require.NoError(t, s.Err())
	require.Len(t, ended, len(acc.Choices))
	for choice, times := range ended {
		require.Equal(t, 1, times, "ends of choice %d", choice)
	}
	return acc, last
}

// TestChat makes every kind of request twice, for the whole answer and for a stream,
// which must agree.
func TestChat(t *testing.T) {
	c := start(t, engine.Options{}).client()
	withSeed := ask(1)
	withSeed.Temperature, withSeed.Seed, withSeed.N = openai.Float(1), openai.Int(7), openai.Int(3)
	logprobs := ask(2)
	logprobs.Logprobs, logprobs.TopLogprobs = openai.Bool(true), openai.Int(3)
	alone := ask(2)
	alone.Logprobs = openai.Bool(true)
	biased := ask(3)
	biased.LogitBias = map[string]int64{"300": 50}
	biased.PresencePenalty, biased.FrequencyPenalty = openai.Float(1), openai.Float(0.5)
	parts := ask(0)
	parts.Messages = []openai.ChatCompletionMessageParamUnion{
		openai.SystemMessage("Answer."), openai.UserMessage("Hello"), openai.AssistantMessage("Hello."),
		openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.TextContentPart("What "), openai.TextContentPart("now?")}),
	}
	for name, p := range map[string]openai.ChatCompletionNewParams{
		"plain": ask(0), "sampled": withSeed, "logprobs": logprobs, "logprobs alone": alone, "biased": biased, "parts": parts,
	} {
		t.Run(name, func(t *testing.T) {
			p.MaxCompletionTokens = openai.Int(20)
			if !p.Seed.Valid() {
				p.Seed = openai.Int(1)
			}
			p.User, p.Store = openai.String("somebody"), openai.Bool(false) // fields that mean nothing here
			whole, err := c.Chat.Completions.New(t.Context(), p)
			require.NoError(t, err)
			complete(t, whole)
			require.Equal(t, "chat.completion", string(whole.Object))
			require.Equal(t, modelID, whole.Model)
			require.Len(t, whole.Choices, int(max(1, p.N.Value)))
			require.Equal(t, whole.Usage.PromptTokens+whole.Usage.CompletionTokens, whole.Usage.TotalTokens)
			require.Positive(t, whole.Usage.CompletionTokens)

			acc, last := stream(t, c, p)
			require.Empty(t, last.Choices)
			require.Equal(t, whole.Usage.TotalTokens, last.Usage.TotalTokens)
			require.Equal(t, whole.Usage.CompletionTokens, last.Usage.CompletionTokens)
			for i, choice := range whole.Choices {
				got := acc.Choices[i]
				require.Equal(t, int64(i), choice.Index)
				require.Equal(t, "assistant", string(got.Message.Role))
				require.Equal(t, choice.Message.Content, got.Message.Content)
				require.Equal(t, choice.FinishReason, got.FinishReason)
				require.Len(t, got.Logprobs.Content, len(choice.Logprobs.Content))
				for k, token := range choice.Logprobs.Content {
					require.Equal(t, token.RawJSON(), got.Logprobs.Content[k].RawJSON())
					require.LessOrEqual(t, token.Logprob, 0.0)
					require.Len(t, token.TopLogprobs, int(p.TopLogprobs.Value))
				}
			}
			if p.Logprobs.Value {
				require.NotEmpty(t, whole.Choices[0].Logprobs.Content)
			}
		})
	}
	again, err := c.Chat.Completions.New(t.Context(), withSeed)
	require.NoError(t, err)
	same, err := c.Chat.Completions.New(t.Context(), withSeed)
	require.NoError(t, err)
	for i := range again.Choices {
		require.Equal(t, again.Choices[i].Message.Content, same.Choices[i].Message.Content, "the seed decides")
	}
}

// TestStop: an answer ends before the stop text, wherever token boundaries fall.
func TestStop(t *testing.T) {
	c := start(t, engine.Options{}).client()
	p := ask(0)
	p.MaxTokens, p.Seed = openai.Int(20), openai.Int(1)
	whole, err := c.Chat.Completions.New(t.Context(), p)
	require.NoError(t, err)
	text := whole.Choices[0].Message.Content
	require.Greater(t, len(text), 8, "an answer to cut")
	for from := 1; from+4 <= len(text); from++ {
		p.Stop = openai.ChatCompletionNewParamsStopUnion{OfStringArray: []string{"never said", text[from : from+4]}}
		cut, err := c.Chat.Completions.New(t.Context(), p)
		require.NoError(t, err)
		want := text[:indexOf(text, text[from:from+4])]
		require.Equal(t, want, cut.Choices[0].Message.Content)
		require.Equal(t, "stop", cut.Choices[0].FinishReason)
		acc, _ := stream(t, c, p)
		require.Equal(t, want, acc.Choices[0].Message.Content)
		require.Equal(t, "stop", acc.Choices[0].FinishReason)
	}
	p.Stop = openai.ChatCompletionNewParamsStopUnion{OfString: openai.String(text[2:])}
	cut, err := c.Chat.Completions.New(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, text[:2], cut.Choices[0].Message.Content)
}

func indexOf(text, part string) int {
	for i := range text {
		if len(text)-i >= len(part) && text[i:i+len(part)] == part {
			return i
		}
	}
	return -1
}

// cacheUse is what an answer says about a compressed cache.
type cacheUse struct {
	Entries     int64   `json:"entries"`
	FullEntries int64   `json:"full_entries"`
	Ratio       float64 `json:"ratio"`
	Document    string  `json:"document"`
}

// TestCompression asks about a context and a document, passed in fields that the client
// does not know.
func TestCompression(t *testing.T) {
	c := start(t, engine.Options{MaxBytes: 64 << 20}).client()
	s := sample(1)
	policy := map[string]any{"ratio": 0.5, "metric": "keydiff"}
	p := openai.ChatCompletionNewParams{
		Model:     modelID,
		MaxTokens: openai.Int(20),
		Seed:      openai.Int(1),
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage(s.Question)},
	}
	p.SetExtraFields(map[string]any{"context": s.Context, "kv_compression": policy})
	about, err := c.Chat.Completions.New(t.Context(), p)
	require.NoError(t, err)
	complete(t, about)
	use := extra[cacheUse](t, about.JSON.ExtraFields, "kv_cache")
	require.InDelta(t, 0.5, use.Ratio, 0.1)
	require.Less(t, use.Entries, use.FullEntries)
	acc, last := stream(t, c, p)
	require.Equal(t, about.Choices[0].Message.Content, acc.Choices[0].Message.Content)
	require.Equal(t, use, extra[cacheUse](t, last.JSON.ExtraFields, "kv_cache"))

	var doc struct {
		ID     string `json:"id"`
		Tokens int64  `json:"tokens"`
	}
	require.NoError(t, c.Post(t.Context(), "documents", map[string]any{"model": modelID, "text": s.Context, "kv_compression": policy}, &doc))
	p.SetExtraFields(map[string]any{"document": doc.ID})
	read, err := c.Chat.Completions.New(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, about.Choices[0].Message.Content, read.Choices[0].Message.Content)
	require.GreaterOrEqual(t, read.Usage.PromptTokensDetails.CachedTokens, doc.Tokens)
	require.Equal(t, doc.ID, extra[cacheUse](t, read.JSON.ExtraFields, "kv_cache").Document)
	require.NoError(t, c.Delete(t.Context(), "documents/"+doc.ID, nil, nil))

	p.SetExtraFields(map[string]any{"context": s.Context})
	full, err := c.Chat.Completions.New(t.Context(), p)
	require.NoError(t, err)
	p.SetExtraFields(map[string]any{"context": s.Context, "kv_compression": map[string]any{"ratio": 0}})
	none, err := c.Chat.Completions.New(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, full.Choices[0].Message.Content, none.Choices[0].Message.Content)

	completion := openai.CompletionNewParams{
		Model: modelID, MaxTokens: openai.Int(8), Seed: openai.Int(1),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("One of")},
	}
	completion.SetExtraFields(map[string]any{"context": s.Context, "kv_compression": policy})
	text, err := c.Completions.New(t.Context(), completion)
	require.NoError(t, err)
	use = extra[cacheUse](t, text.JSON.ExtraFields, "kv_cache")
	require.InDelta(t, 0.5, use.Ratio, 0.1)
	completion.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	chunks := c.Completions.NewStreaming(t.Context(), completion)
	var said string
	var streamed cacheUse
	for chunks.Next() {
		if chunk := chunks.Current(); len(chunk.Choices) > 0 {
			said += chunk.Choices[0].Text
		} else {
			streamed = extra[cacheUse](t, chunk.JSON.ExtraFields, "kv_cache")
		}
	}
	require.NoError(t, chunks.Err())
	require.Equal(t, text.Choices[0].Text, said)
	require.Equal(t, use, streamed)
}
