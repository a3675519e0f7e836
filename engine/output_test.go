package engine

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer/chat"
)

// whole is an answer with its pieces together.
type whole struct {
	text, reasoning string
	names, calls    []string
	finish          model.FinishReason
}

func answerOf(t *testing.T, e *Engine, r Request) whole {
	stream, err := e.Submit(t.Context(), r)
	require.NoError(t, err)
	var out whole
	for event, err := range stream.Events() {
		require.NoError(t, err)
		out.text += event.Text
		out.reasoning += event.Reasoning
		out.finish = event.Finish
		for _, c := range event.Calls {
			if c.Name != "" {
				require.NotEmpty(t, c.ID)
				out.names, out.calls = append(out.names, c.Name), append(out.calls, "")
			}
			out.calls[c.Index] += c.Arguments
		}
	}
	return out
}

func builtinEngine(t *testing.T) (*Engine, *model.Model, *dialog.Format) {
	m := openModel(t)
	format, err := dialog.NewFormat(m, time.Now())
	require.NoError(t, err)
	return newEngine(t, m, Options{}), m, format
}

func promptOf(t *testing.T, f *dialog.Format, tools *structured.Tools) []int32 {
	in := chat.Input{Messages: []*chat.Object{chat.NewMessage("user", "Hello")}, AddGenerationPrompt: true}
	if tools != nil {
		require.NoError(t, tools.Show(&in))
	}
	tokens, err := f.Tokens(t.Context(), in, 1<<12)
	require.NoError(t, err)
	return tokens
}

// TestAsk: an answer is decoded into a type, and one that was cut is an error.
func TestAsk(t *testing.T) {
	e, _, format := builtinEngine(t)
	type ticket struct {
		Kind  string `json:"kind" jsonschema:"enum=bug,enum=question"`
		Title string `json:"title" jsonschema:"maxLength=9"`
		Votes uint8  `json:"votes"`
	}
	r := Request{Prompt: promptOf(t, format, nil), Sampling: model.Sampling{Temperature: 1.5, MaxTokens: 200}}
	for seed := range uint64(4) {
		r.Sampling.Seed = seed
		got, err := Ask[ticket](t.Context(), e, r)
		require.NoError(t, err)
		require.Contains(t, []string{"bug", "question"}, got.Kind)
		require.LessOrEqual(t, len([]rune(got.Title)), 9)
	}
	r.Sampling.MaxTokens = 3
	_, err := Ask[ticket](t.Context(), e, r)
	require.ErrorContains(t, err, "not a whole engine.ticket: it ended by length")
	var wrong *structured.FormatError
	_, err = Ask[chan int](t.Context(), e, r)
	require.ErrorAs(t, err, &wrong)
}

// TestFormats: answers follow the format, and a mask of the request's own applies, too.
func TestFormats(t *testing.T) {
	e, m, format := builtinEngine(t)
	r := Request{Prompt: promptOf(t, format, nil), Sampling: model.Sampling{Temperature: 1, MaxTokens: 60}}
	r.Format = structured.Regexp(`[0-9]{2}-[a-c]+!`)
	require.Regexp(t, regexp.MustCompile(`^[0-9]{2}-[a-c]+(!$)?`), answerOf(t, e, r).text)
	r.Format = structured.Choice("yes", "no")
	both := map[string]bool{}
	for seed := range uint64(12) {
		r.Sampling.Seed = seed
		both[answerOf(t, e, r).text] = true
	}
	require.Equal(t, map[string]bool{"yes": true, "no": true}, both)

	tok, err := m.Tokenizer()
	require.NoError(t, err)
	r.Mask = func(_ context.Context, _ int, answer []int32) ([]uint64, error) {
		mask := make([]uint64, (m.Config().Vocab+63)/64)
		for id := range int32(m.Config().Vocab) {
			if len(answer) > 0 || !strings.HasPrefix(string(tok.TokenBytes(id)), "n") {
				mask[id>>6] |= 1 << (id & 63)
			}
		}
		return mask, nil
	}
	for seed := range uint64(6) {
		r.Sampling.Seed = seed
		require.Equal(t, "yes", answerOf(t, e, r).text)
	}
	r.Mask, r.Format = nil, structured.Schema([]byte(`{"not":{}}`), false)
	_, err = e.Submit(t.Context(), r)
	var wrong *structured.FormatError
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, `keyword "not"`)
}

// TestTools: calls that have to be made come as calls, whole unless the answer is cut.
func TestTools(t *testing.T) {
	e, m, format := builtinEngine(t)
	syntax, err := structured.NewSyntax(m, format)
	require.NoError(t, err)
	schema, err := structured.SchemaOf[struct {
		City string `json:"city" jsonschema:"maxLength=8"`
	}]()
	require.NoError(t, err)
	functions := []structured.Function{{Name: "weather", Description: "tells the weather", Parameters: schema}, {Name: "now"}}
	tools, err := syntax.Tools(functions, structured.ToolOptions{Only: "weather"})
	require.NoError(t, err)
	r := Request{Prompt: promptOf(t, format, tools), Tools: tools, Sampling: model.Sampling{Temperature: 1, MaxTokens: 120}}
	got := answerOf(t, e, r)
	require.Empty(t, got.text)
	require.Equal(t, []string{"weather"}, got.names)
	require.Equal(t, FinishCalls, got.finish)
	var arguments struct{ City *string }
	require.NoError(t, json.Unmarshal([]byte(got.calls[0]), &arguments), got.calls[0])
	require.NotNil(t, arguments.City)
	r.Stop = []string{"}"}
	require.Equal(t, model.FinishStop, answerOf(t, e, r).finish, "cut within the arguments")

	// What the model decides to say is text.
	if tools, err = syntax.Tools(functions, structured.ToolOptions{}); err != nil {
		t.Fatal(err)
	}
	r = Request{Prompt: promptOf(t, format, tools), Tools: tools, Sampling: model.Sampling{MaxTokens: 20}}
	got = answerOf(t, e, r)
	require.NotEmpty(t, got.text)
	require.Empty(t, got.names)
}
