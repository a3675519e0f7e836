package structured

import (
	"context"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// TestPlanReads: a plan's reader has reasoning, text and calls, each in its place.
func TestPlanReads(t *testing.T) {
	c, s := family(t, likeQwen3, thinkBegin)
	tools, err := s.Tools(functions, ToolOptions{})
	require.NoError(t, err)
	reasoning, err := s.Reasoning(nil, -1)
	require.NoError(t, err)
	p, err := c.Plan(t.Context(), Output{Tools: tools, Reasoning: reasoning}, &model.Sampling{}, 1)
	require.NoError(t, err)
	require.True(t, p.Splits())
	r := p.NewReader()
	var got Piece
	for _, text := range []string{"<thi", "nk>a", " b</think>", "\n", `{"name": "now", "arguments": {`, `}}`} {
		x := r.Add(text, true, false)
		got.Reasoning, got.Text = got.Reasoning+x.Reasoning, got.Text+x.Text
		got.Calls = append(got.Calls, x.Calls...)
	}
	last := r.Add("", false, true)
	require.Equal(t, [2]string{"a b", ""}, [2]string{got.Reasoning, got.Text + last.Text})
	require.Equal(t, "now", got.Calls[0].Name)
	require.Equal(t, 3, r.ReasoningTokens())
	require.True(t, r.Called())
}

// TestRequiredCallsBegin: a call that has to be made begins with the token of the mark and
// nothing else, where there is one.
func TestRequiredCallsBegin(t *testing.T) {
	c, s := family(t, "mistral-7b-instruct-v0.3", "[TOOL_CALLS]")
	tools, err := s.Tools(functions, ToolOptions{Required: true})
	require.NoError(t, err)
	p, err := c.Plan(t.Context(), Output{Tools: tools}, &model.Sampling{}, 1)
	require.NoError(t, err)
	mask, err := p.Mask(t.Context(), 0, nil)
	require.NoError(t, err)
	allowed := 0
	for _, word := range mask {
		allowed += bits.OnesCount64(word)
	}
	require.Equal(t, 1, allowed)
	require.Equal(t, uint64(1)<<markID, mask[0])
}

// TestReasoningThatThePromptBegins: it goes on until its mark, whatever the first token is; a
// mark that is no token has none.
func TestReasoningThatThePromptBegins(t *testing.T) {
	c, s := family(t, likeR1, thinkEnd)
	r, err := s.Reasoning(c.tok.Encode("x<think>\n", tokenizer.EncodeOptions{}), -1)
	require.NoError(t, err)
	require.Equal(t, [2]int32{-1, markID}, [2]int32{r.begin, r.end})
	asked := 0
	after := func(context.Context, int, []int32) ([]uint64, error) {
		asked++
		return []uint64{1}, nil
	}
	mask := r.before(after, nil, 128, 1)
	for _, answer := range [][]int32{{}, {40}, {40, 41}} {
		got, err := mask(t.Context(), 0, answer)
		require.NoError(t, err)
		require.Equal(t, []uint64{^uint64(0), ^uint64(0)}, got, "anything may come")
	}
	require.Zero(t, asked)
	got, err := mask(t.Context(), 0, []int32{40, 41, markID})
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, got)
}
