package serve

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// TestOneCallIfAsked: clients that do not want several calls at once get one, by either
// protocol's name for it; and an answer that its length cuts is not one of calls, even if
// some of them are whole.
func TestOneCallIfAsked(t *testing.T) {
	ts := family(t, "qwen2.5-7b-instruct", "</s>")
	goesOn := object{} // the answer ends only where nothing else is allowed
	v := ts.s.models.find("").loaded
	for id := range int32(v.m.Config().Vocab) {
		if o := v.m.DefaultSampling(); v.m.Ends(id, &o) {
			goesOn[strconv.Itoa(int(id))] = -100
		}
	}
	r := ask("Hello", object{"tools": []object{now}, "tool_choice": "required", "temperature": 0, "max_tokens": 90, "logit_bias": goesOn})
	c := ts.agree(t, r)[0]
	require.Greater(t, len(c.Message.Calls), 1)
	require.Equal(t, "length", c.Finish)
	r["parallel_tool_calls"] = true
	require.Greater(t, len(ts.agree(t, r)[0].Message.Calls), 1)
	r["parallel_tool_calls"] = false
	c = ts.agree(t, r)[0]
	require.Len(t, c.Message.Calls, 1)
	require.Equal(t, "tool_calls", c.Finish)

	own := now["function"].(object)
	tool := object{"name": own["name"], "input_schema": object{"type": "object", "properties": object{}, "additionalProperties": false}}
	for _, single := range []bool{false, true} {
		var a struct {
			Content []object `json:"content"`
			Reason  string   `json:"stop_reason"`
		}
		ts.post(t, "/v1/messages", object{
			"model": "needle/llama", "messages": []object{{"role": "user", "content": "Hello"}}, "tools": []object{tool}, "max_tokens": 90,
			"temperature": 0, "logit_bias": goesOn, "tool_choice": object{"type": "any", "disable_parallel_tool_use": single},
		}, &a)
		require.Equal(t, single, len(a.Content) == 1, "%v", a.Content)
		require.Equal(t, map[bool]string{true: "tool_use", false: "max_tokens"}[single], a.Reason)
	}
}

// TestTimingsOfPrompts: the timings of several prompts count all of them.
func TestTimingsOfPrompts(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	r := object{"model": "needle/llama", "prompt": []string{sample(0).Context[:300], sample(1).Context[:500]}, "max_tokens": 2, "ignore_eos": true}
	for again := range 2 {
		var a textAnswer
		ts.post(t, "/v1/completions", r, &a)
		require.Equal(t, again > 0, a.Timings.Cached > a.Usage.Prompt/2)
		require.Equal(t, []int{a.Usage.Details.Cached, a.Usage.Prompt - a.Usage.Details.Cached, 4}, []int{a.Timings.Cached, a.Timings.Prompt, a.Timings.Answer})
	}
}

// TestPromptProbsAlone: without alternatives every token of the prompt still has its own.
func TestPromptProbsAlone(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	var a textAnswer
	ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": "The road to the", "max_tokens": 1, "prompt_logprobs": 0}, &a)
	require.Len(t, a.Choices[0].Prompt, len(ts.prompt(t, "The road to the")))
	for _, at := range a.Choices[0].Prompt[1:] {
		require.Len(t, at, 1)
	}
}

// TestOneNameForAToken: each token has one name in a bias, and it is one of the model's.
func TestOneNameForAToken(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for id, status := range map[string]int{"5": 200, "05": 400, "+5": 400, "2175": 200, "2176": 400, "-1": 400} {
		got, text, _ := ts.do(t, "POST", "/v1/completions", mustJSON(t, object{"model": "needle/llama", "prompt": "x", "max_tokens": 1, "logit_bias": object{id: 1}}))
		require.Equal(t, status, got, "%s: %s", id, text)
	}
	got, text, _ := ts.do(t, "POST", "/v1/responses", mustJSON(t, object{"model": "needle/llama", "input": "x", "max_output_tokens": 1, "truncation": "auto"}))
	require.Equal(t, 400, got)
	require.Contains(t, text, "truncation")
}

// TestItemsKeepTheirNames: an item of a streamed response is done under the name by which it
// was announced.
func TestItemsKeepTheirNames(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	added, done := []any{}, []any{}
	for _, e := range ts.named(t, "/v1/responses", object{"model": "needle/llama", "input": "Hello", "max_output_tokens": 5}) {
		switch item, _ := e["item"].(object); e["type"] {
		case "response.output_item.added":
			added = append(added, item["id"])
		case "response.output_item.done":
			done = append(done, item["id"])
		}
	}
	require.NotEmpty(t, added)
	require.Equal(t, added, done)
}

// TestHeldOfNothing: an owner is remembered as long as it holds a document or a byte.
func TestHeldOfNothing(t *testing.T) {
	d := newDocuments(1<<30, func() bool { return false })
	d.hold("a", 1, 0)
	d.hold("a", 0, 5)
	require.Equal(t, holding{1, 5}, *d.heldBy["a"])
	d.hold("a", -1, 0)
	require.Equal(t, holding{0, 5}, *d.heldBy["a"])
	d.hold("a", 0, -5)
	require.Empty(t, d.heldBy)
	require.Equal(t, holding{}, d.held)
}
