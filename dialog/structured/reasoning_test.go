package structured

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// TestReadThoughts reads answers in every way of cutting them into three pieces.
func TestReadThoughts(t *testing.T) {
	for _, test := range []struct {
		opened, formatted       bool
		answer, thought, spoken string
	}{
		{false, false, "<think>\nWell. </thin\n\nSo\n</think>\n\nYes. <think>", "Well. </thin\n\nSo", "Yes. <think>"},
		{false, false, "\n <think></think>Yes", "", "Yes"},
		{false, false, "<think>\n\n</think>\n\nYes\n", "", "Yes\n"},
		{false, false, " Yes </think>", "", " Yes </think>"},
		{false, false, "<thin", "", "<thin"},
		{false, false, "<thinly> </think>", "", "<thinly> </think>"},
		{false, false, "<think>a </thi", "a </thi", ""},
		{false, false, "<think>a </think>", "a", ""},
		{true, false, "\nWell\n</think>\n\nYes", "Well", "Yes"},
		{true, false, " a", "a", ""},
		{true, false, "</think>b", "", "b"},
		{false, false, "", "", ""},
		{true, true, "Well\n</think>\n yes", "Well", "\n yes"},
		{false, true, "\n<think> Well</think>  ", "Well", "  "},
	} {
		n := len(test.answer)
		for i := range n + 1 {
			for j := i; j <= n; j++ {
				r := (&Reasoning{opened: test.opened}).newReader(test.formatted)
				thought, spoken := "", ""
				for k, piece := range []string{test.answer[:i], test.answer[i:j], test.answer[j:]} {
					a, b := r.add(piece, true, k == 2)
					thought, spoken = thought+a, spoken+b
				}
				require.Equal(t, [2]string{test.thought, test.spoken}, [2]string{thought, spoken}, "%q cut at %d and %d", test.answer, i, j)
			}
		}
	}
}

// Templates that know reasoning: like Qwen3's, where the model begins them, and like those
// of models that always think, where the prompt does.
const (
	likeQwen3 = `{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{% endfor %}` +
		`[assistant]{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}`
	likeR1 = `{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]<think>
`
)

// TestTemplatesThatReason: a template shows that it knows reasoning by what it leaves out, by
// how a prompt ends, or by what it tells the model (SmolLM3, Phi 4 reasoning).
func TestTemplatesThatReason(t *testing.T) {
	const messages = `{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]`
	for template, want := range map[string]bool{
		likeQwen3:                 true,
		likeR1:                    true,
		messages:                  false,
		"Think first." + messages: false,
		"Write <think> your thoughts </think> and an answer." + messages:                                                             true,
		messages + `{% if enable_thinking is defined and not enable_thinking %}<think>` + "\n\n" + `</think>` + "\n" + `{% endif %}`: true,
		messages + `{% if enable_thinking is defined and not enable_thinking %}Be brief.{% endif %}`:                                 false,
		`{{ raise_exception("never") }}`: false,
	} {
		_, s := family(t, template, "</s>")
		require.Equal(t, want, s.Reasons(), template)
	}
}

// markID is the token that family renames.
const markID = 2

// TestReasoningMask: a model that decides by itself to reason may begin with the mark or
// with what the format says, may not end while it reasons, and follows the format
// afterwards.
func TestReasoningMask(t *testing.T) {
	c, s := family(t, likeQwen3, thinkBegin)
	require.True(t, s.Reasons())
	vocab := c.m.Config().Vocab
	yes := uint64(1) << 40
	var seen [][]int32
	after := func(_ context.Context, _ int, answer []int32) ([]uint64, error) {
		seen = append(seen, answer)
		mask := make([]uint64, (vocab+63)/64)
		mask[0] = yes
		return mask, nil
	}
	r, err := s.Reasoning([]int32{1}, -1)
	require.NoError(t, err)
	require.True(t, r.special)
	var ends []int32
	for id := range int32(vocab) {
		if c.m.Ends(id, &model.Sampling{}) {
			ends = append(ends, id)
		}
	}
	require.Nil(t, r.before(nil, ends, vocab, 1), "nothing to constrain")
	next := r.before(after, ends, vocab, 1)
	mask, err := next(t.Context(), 0, nil)
	require.NoError(t, err)
	require.Equal(t, yes|1<<markID, mask[0])
	answer := []int32{markID}
	for _, id := range c.tok.Encode("well"+thinkEnd, tokenizer.EncodeOptions{}) {
		mask, err = next(t.Context(), 0, answer)
		require.NoError(t, err)
		for e := range int32(vocab) {
			require.Equal(t, !c.m.Ends(e, &model.Sampling{}), mask[e>>6]>>(e&63)&1 == 1)
		}
		answer = append(answer, id)
	}
	for range 2 {
		mask, err = next(t.Context(), 0, answer)
		require.NoError(t, err)
		require.Equal(t, yes, mask[0])
		answer = append(answer, 40)
	}
	require.Equal(t, [][]int32{{}, {}, {40}}, append([][]int32{{}}, seen[1:]...))
}

// TestWhoReasons: the template and the end of the prompt decide, and a limit needs a mark of
// one token.
func TestWhoReasons(t *testing.T) {
	c, s := family(t, likeR1, thinkEnd)
	encode := func(text string) []int32 { return c.tok.Encode(text, tokenizer.EncodeOptions{}) }
	for prompt, want := range map[string]*Reasoning{"x": {}, "x<think>\n": {opened: true}, "x<think></think>\n\n": nil} {
		r, err := s.Reasoning(encode(prompt), 0)
		require.NoError(t, err)
		require.Equal(t, want == nil, r == nil, prompt)
		require.True(t, r == nil || r.opened == want.opened && r.budget == 0 && r.end == markID, prompt)
	}
	_, s = family(t, likeR1, "</s>")
	_, err := s.Reasoning(nil, 0)
	require.ErrorIs(t, err, ErrNoBudget)
	r, err := s.Reasoning(nil, -1)
	require.NoError(t, err)
	require.NotNil(t, r)
	_, s = family(t, showsTools, thinkEnd)
	r, err = s.Reasoning(nil, 5)
	require.True(t, r == nil && err == nil)
}
