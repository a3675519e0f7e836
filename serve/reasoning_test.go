package serve

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

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

// The marks of reasoning.
const thinkBegin, thinkEnd = "<think>", "</think>"

// markID is the token that family renames.
const markID = 2

// reasoning is agree for answers with reasoning: it requires the stream of a chat to equal
// the whole answer.
func (ts *testServer) reasoning(t *testing.T, r object) chatChoice {
	r["seed"] = 1
	var whole chatAnswer
	ts.post(t, "/v1/chat/completions", r, &whole)
	thought, text, last := "", "", ""
	for _, c := range ts.chunks(t, "/v1/chat/completions", r) {
		for _, d := range c.Choices {
			thought += d.Delta.Reasoning
			if d.Delta.Content != nil {
				text += *d.Delta.Content
			}
			require.True(t, text == "" || d.Delta.Reasoning == "", "reasoning comes first")
			last, _ = d.Finish.(string)
		}
	}
	delete(r, "stream")
	c := whole.Choices[0]
	require.Equal(t, c.Message.Reasoning, thought)
	if c.Message.Content == nil {
		require.Empty(t, text)
	} else {
		require.Equal(t, *c.Message.Content, text)
	}
	require.Equal(t, c.Finish, last)
	return c
}

// TestReasoning: what a model thinks is separated from what it says, if its template knows
// reasoning, and formats apply to what it says.
func TestReasoning(t *testing.T) {
	ts := family(t, likeR1, thinkEnd)
	force := object{"max_tokens": 60, "ignore_eos": true, "thinking_token_budget": 7}
	var usage struct {
		Usage struct {
			Details struct {
				Reasoning int `json:"reasoning_tokens"`
			} `json:"completion_tokens_details"`
		}
	}
	ts.post(t, "/v1/chat/completions", ask("Hello", force), &usage)
	require.Equal(t, 8, usage.Usage.Details.Reasoning, "with the mark")
	c := ts.reasoning(t, ask("Hello", force))
	require.NotEmpty(t, c.Message.Reasoning)
	require.NotEmpty(t, *c.Message.Content)
	require.NotContains(t, c.Message.Reasoning+*c.Message.Content, thinkEnd)

	// No budget is none, and not no bound.
	none := ts.reasoning(t, ask("Hello", object{"max_tokens": 10, "ignore_eos": true, "thinking_token_budget": 0}))
	require.Empty(t, none.Message.Reasoning)
	require.NotEmpty(t, *none.Message.Content)

	// Formats and calls come after the reasoning.
	force["structured_outputs"] = object{"choice": []string{"yes", "no"}}
	with := ts.reasoning(t, ask("Hello", force))
	require.Equal(t, c.Message.Reasoning, with.Message.Reasoning, "the same reasoning")
	require.Contains(t, []string{"yes", "no"}, *with.Message.Content)
	force["structured_outputs"] = object{"choice": []string{"\n  yes"}}
	require.Equal(t, "\n  yes", *ts.reasoning(t, ask("Hello", force)).Message.Content)
	delete(force, "structured_outputs")
	force["tools"], force["tool_choice"] = []object{now}, "required"
	var called chatAnswer
	ts.post(t, "/v1/chat/completions", ask("Hello", force), &called)
	require.NotEmpty(t, called.Choices[0].Message.Reasoning)
	require.Equal(t, "now", called.Choices[0].Message.Calls[0].Function.Name)
	delete(force, "tools")
	delete(force, "tool_choice")

	// An answer cut within its reasoning, and hidden reasoning.
	cut := ts.reasoning(t, ask("Hello", object{"max_tokens": 5, "ignore_eos": true}))
	require.NotEmpty(t, cut.Message.Reasoning)
	require.Nil(t, cut.Message.Content)
	require.Equal(t, "length", cut.Finish)
	force["include_reasoning"] = false
	hidden := ts.reasoning(t, ask("Hello", force))
	require.Empty(t, hidden.Message.Reasoning)
	require.NotEmpty(t, *hidden.Message.Content)
}

// TestReasoningOfOtherForms: reasoning comes as separate items or blocks.
func TestReasoningOfOtherForms(t *testing.T) {
	ts := family(t, likeR1, thinkEnd)
	var a struct {
		Content []struct{ Type, Thinking, Text string }
	}
	q := object{
		"model": "needle/llama", "max_tokens": 30, "ignore_eos": true, "seed": 1, "messages": []object{{"role": "user", "content": "Hello"}},
		"thinking": object{"type": "enabled", "budget_tokens": 7},
	}
	ts.post(t, "/v1/messages", q, &a)
	require.Len(t, a.Content, 2)
	require.Equal(t, []string{"thinking", "text"}, []string{a.Content[0].Type, a.Content[1].Type})
	require.NotEmpty(t, a.Content[0].Thinking)
	stream := func(path string, q object) string {
		q["stream"] = true
		status, text, _ := ts.do(t, "POST", path, mustJSON(t, q))
		require.Equal(t, 200, status, text)
		return text
	}
	deltas := func(stream, kind, key string) (all string) {
		for line := range strings.Lines(stream) {
			var e map[string]any
			if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &e) == nil {
				if d, ok := e["delta"].(map[string]any); ok && d["type"] == kind {
					all += d[key].(string)
				} else if text, ok := e["delta"].(string); ok && e["type"] == kind {
					all += text
				}
			}
		}
		return all
	}
	text := stream("/v1/messages", q)
	require.Equal(t, a.Content[0].Thinking, deltas(text, "thinking_delta", "thinking"))
	require.Equal(t, a.Content[1].Text, deltas(text, "text_delta", "text"))

	var b struct {
		Output []struct {
			Type    string
			Content []struct{ Type, Text string }
		}
		Usage struct {
			Details struct {
				Reasoning int `json:"reasoning_tokens"`
			} `json:"output_tokens_details"`
		}
	}
	q = object{"model": "needle/llama", "input": "Hello", "max_output_tokens": 30, "ignore_eos": true, "seed": 1, "thinking_token_budget": 7}
	ts.post(t, "/v1/responses", q, &b)
	require.Len(t, b.Output, 2)
	require.Equal(t, []string{"reasoning", "message"}, []string{b.Output[0].Type, b.Output[1].Type})
	require.Equal(t, a.Content[0].Thinking, b.Output[0].Content[0].Text)
	require.Equal(t, 8, b.Usage.Details.Reasoning)
	text = stream("/v1/responses", q)
	require.Equal(t, b.Output[0].Content[0].Text, deltas(text, "response.reasoning_text.delta", ""))
	require.Equal(t, b.Output[1].Content[0].Text, deltas(text, "response.output_text.delta", ""))
}

// TestWhoReasons: the template and the request decide.
func TestWhoReasons(t *testing.T) {
	ts := family(t, likeQwen3, thinkEnd)
	begin := object{"max_tokens": 12, "ignore_eos": true, "logit_bias": object{"2": 100}} // nothing but the end mark
	c := ts.reasoning(t, ask("Hello", begin))
	require.Empty(t, c.Message.Reasoning, "no thought begins")
	require.Equal(t, strings.Repeat(thinkEnd, 12), *c.Message.Content)
	var on, off struct {
		IDs []int32 `json:"token_ids"`
	}
	ts.post(t, "/v1/chat/completions/render", ask("Hello", nil), &on)
	ts.post(t, "/v1/chat/completions/render", ask("Hello", object{"chat_template_kwargs": object{"enable_thinking": false}}), &off)
	require.NotContains(t, on.IDs, int32(markID))
	require.Contains(t, off.IDs, int32(markID))
	var counted struct {
		N int `json:"input_tokens"`
	}
	q := object{"model": "needle/llama", "messages": []object{{"role": "user", "content": "Hello"}}, "thinking": object{"type": "disabled"}}
	ts.post(t, "/v1/messages/count_tokens", q, &counted)
	require.Equal(t, len(off.IDs), counted.N)

	// Earlier reasoning is sent back.
	thought := object{"role": "assistant", "content": []object{{"type": "thinking", "thinking": "abc abc abc", "signature": ""}, {"type": "text", "text": "x"}}}
	q["messages"] = []object{{"role": "user", "content": "Hello"}, thought, {"role": "user", "content": "So?"}}
	ts.post(t, "/v1/messages/count_tokens", q, &counted)
	long := counted.N
	thought["content"] = "x"
	ts.post(t, "/v1/messages/count_tokens", q, &counted)
	require.Greater(t, long, counted.N)

	// So are items of reasoning, with the message or the calls that follow them.
	user, said := object{"role": "user", "content": "Hello"}, object{"role": "assistant", "content": "x"}
	item := func(text string) object {
		return object{"type": "reasoning", "summary": []any{}, "content": []object{{"type": "reasoning_text", "text": text}}}
	}
	call := func(id string) object {
		return object{"type": "function_call", "call_id": id, "name": "now", "arguments": "{}"}
	}
	output := object{"type": "function_call_output", "call_id": "c", "output": "noon"}
	calls := []object{}
	for _, id := range []string{"c", "d"} {
		calls = append(calls, object{"id": id, "type": "function", "function": object{"name": "now", "arguments": "{}"}})
	}
	for _, test := range []struct{ items, messages []object }{
		{[]object{user, item("abc"), said, user}, []object{user, {"role": "assistant", "content": "x", "reasoning_content": "abc"}, user}},
		{[]object{user, item("abc"), {"type": "reasoning", "summary": []any{}}, item(" abc"), said, user}, []object{user, {"role": "assistant", "content": "x", "reasoning_content": "abc abc"}, user}},
		{[]object{user, item("abc"), call("c"), call("d"), output}, []object{user, {"role": "assistant", "content": nil, "reasoning_content": "abc", "tool_calls": calls}, {"role": "tool", "tool_call_id": "c", "content": "noon"}}},
		{[]object{user, item("abc"), said, call("c"), output}, []object{user, {"role": "assistant", "content": "x", "reasoning_content": "abc", "tool_calls": calls[:1]}, {"role": "tool", "tool_call_id": "c", "content": "noon"}}},
		{[]object{user, said, item("abc"), call("c"), output}, []object{user, said, {"role": "assistant", "content": nil, "reasoning_content": "abc", "tool_calls": calls[:1]}, {"role": "tool", "tool_call_id": "c", "content": "noon"}}},
		{[]object{user, item("abc"), user}, []object{user, {"role": "assistant", "content": nil, "reasoning_content": "abc"}, user}}, // an answer cut within it
	} {
		f := newFields(t.Context(), "")
		f.values["input"] = json.RawMessage(mustJSON(t, test.items))
		got := responseInput(f, nil, names{})
		require.Nil(t, f.err)
		require.Equal(t, test.messages, got)
	}
	var with, without struct {
		Usage struct {
			Tokens int `json:"input_tokens"`
		}
	}
	r := object{"model": "needle/llama", "max_output_tokens": 1, "input": []object{user, item("abc abc abc"), said, user}}
	ts.post(t, "/v1/responses", r, &with)
	r["input"] = []object{user, said, user}
	ts.post(t, "/v1/responses", r, &without)
	require.Greater(t, with.Usage.Tokens, without.Usage.Tokens)

	// Without such a template, it is refused.
	plain := start(t, Options{}, engine.Options{})
	q["thinking"], q["max_tokens"] = object{"type": "enabled", "budget_tokens": 5}, 3
	status, text, _ := plain.do(t, "POST", "/v1/messages", mustJSON(t, q))
	require.Equal(t, 400, status, text)
	require.Contains(t, text, "not supported by the chat template")
}

// TestBudgetNames: where a limit of the reasoning cannot be kept, each endpoint names its own
// field.
func TestBudgetNames(t *testing.T) {
	ts := family(t, likeR1, "<x>") // </think> is several tokens
	for path, test := range map[string]struct {
		r    object
		want string
	}{
		"/v1/chat/completions": {object{"thinking_token_budget": 3}, "thinking_token_budget: not supported"},
		"/v1/responses":        {object{"thinking_token_budget": 3}, "thinking_token_budget: not supported"},
		"/v1/messages":         {object{"max_tokens": 9, "thinking": object{"type": "enabled", "budget_tokens": 3}}, "thinking.budget_tokens: not supported"},
	} {
		test.r["model"], test.r["input"], test.r["messages"] = "needle/llama", "x", []object{{"role": "user", "content": "x"}}
		status, text, _ := ts.do(t, "POST", path, mustJSON(t, test.r))
		require.Equal(t, 400, status, text)
		require.Contains(t, text, test.want)
	}
}
