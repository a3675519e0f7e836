package serve

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// TestCachedOfPrompts: the cached tokens of several prompts are those of each together, of a
// stream as well, and never more than the prompts have.
func TestCachedOfPrompts(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	prompts := []string{"One " + sample(0).Context[:400], "Two " + sample(1).Context[:600], "And " + sample(2).Context[:300]}
	complete := func(prompt any) usage {
		var a textAnswer
		ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": prompt, "max_tokens": 1}, &a)
		return *a.Usage
	}
	cached, tokens := 0, 0
	for _, p := range prompts[:2] {
		require.Zero(t, complete(p).Details.Cached)
		again := complete(p)
		require.Greater(t, again.Details.Cached, again.Prompt/2)
		cached += again.Details.Cached
		tokens += again.Prompt
	}
	all := complete(prompts[:2])
	require.Equal(t, []int{tokens, cached}, []int{all.Prompt, all.Details.Cached})
	mixed := complete(prompts) // the last one is new
	require.Equal(t, cached, mixed.Details.Cached)
	require.Greater(t, mixed.Prompt, tokens)
	lines := ts.lines(t, "/v1/completions", object{"model": "needle/llama", "prompt": prompts[:2], "max_tokens": 1, "stream_options": object{"include_usage": true}})
	var last textAnswer
	decode(t, lines[len(lines)-1], &last)
	require.Equal(t, []int{tokens, cached}, []int{last.Usage.Prompt, last.Usage.Details.Cached})
}

// TestKeysAreApart: no key sees what is cached of another, also where it is the only one
// and has replaced it.
func TestKeysAreApart(t *testing.T) {
	ts := start(t, Options{Keys: []string{"old"}}, engine.Options{MaxBytes: 64 << 20})
	cached := func(key string) int {
		body := mustJSON(t, object{"model": "needle/llama", "prompt": sample(0).Context[:500], "max_tokens": 1})
		status, text, _ := ts.do(t, "POST", "/v1/completions", body, "Authorization", "Bearer "+key)
		require.Equal(t, 200, status, text)
		var a textAnswer
		decode(t, text, &a)
		return a.Usage.Details.Cached
	}
	require.Zero(t, cached("old"))
	require.NotZero(t, cached("old"))
	ts.s.SetKeys([]string{"new"})
	require.Zero(t, cached("new"))
	require.NotZero(t, cached("new"))
	ts.s.SetKeys([]string{"new", "old"})
	require.NotZero(t, cached("old"), "its own is still there")
	ts.s.SetKeys([]string{"third", "new"})
	require.Zero(t, cached("third"))
	require.NotZero(t, cached("new"))
	ts.s.SetKeys(nil)
	require.Zero(t, cached("any"))
}

// TestInputOfMessages: a message's input and what came from the cache add up to its prompt.
func TestInputOfMessages(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	r := object{"model": "needle/llama", "max_tokens": 2, "messages": []object{{"role": "user", "content": sample(0).Context[:500]}}}
	var count struct {
		Input int `json:"input_tokens"`
	}
	ts.post(t, "/v1/messages/count_tokens", r, &count)
	type split struct {
		Input  int `json:"input_tokens"`
		Cached int `json:"cache_read_input_tokens"`
		Output int `json:"output_tokens"`
	}
	send := func() split {
		var a struct{ Usage split }
		ts.post(t, "/v1/messages", r, &a)
		return a.Usage
	}
	require.Equal(t, split{count.Input, 0, 2}, send())
	again := send()
	require.Greater(t, again.Cached, count.Input/2)
	require.Equal(t, count.Input, again.Input+again.Cached)
	var whole chatAnswer
	ts.post(t, "/v1/chat/completions", r, &whole)
	require.Equal(t, whole.Usage.Details.Cached, again.Cached)
	for _, e := range ts.named(t, "/v1/messages", r) {
		if e["type"] == "message_delta" {
			u := e["usage"].(map[string]any)
			require.EqualValues(t, again.Cached, u["cache_read_input_tokens"])
			require.EqualValues(t, again.Input, u["input_tokens"])
			return
		}
	}
	t.Fatal("there is no message_delta")
}

// TestBestOf: the answer with the largest mean log-probability is returned, which is not
// always the one with the largest sum.
func TestBestOf(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	differ := 0
	for seed := range 12 {
		r := object{"model": "needle/llama", "prompt": "One of the", "max_tokens": 12, "stop": []string{"e", "."}, "temperature": 1.2, "seed": seed, "n": 6, "logprobs": 0}
		var all, best textAnswer
		ts.post(t, "/v1/completions", r, &all)
		largest := func(mean bool) int {
			best, at := 0.0, -1
			for i, c := range all.Choices {
				sum := 0.0
				for _, p := range c.LogProbs.Values {
					sum += *p
				}
				if mean {
					sum /= float64(len(c.LogProbs.Values))
				}
				if at < 0 || sum > best {
					best, at = sum, i
				}
			}
			return at
		}
		r["n"], r["best_of"] = 1, 6
		ts.post(t, "/v1/completions", r, &best)
		want := largest(true)
		require.Len(t, best.Choices, 1)
		require.Zero(t, best.Choices[0].Index)
		require.Equal(t, all.Choices[want].Text, best.Choices[0].Text)
		require.Equal(t, all.Choices[want].LogProbs, best.Choices[0].LogProbs)
		if want != largest(false) {
			differ++
		}
	}
	require.Positive(t, differ, "sums would have done")
}

// TestFinishReasons: every protocol says in its words why an answer ended.
func TestFinishReasons(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	v := ts.s.models.find("").loaded
	eos := int32(-1)
	for id := range int32(v.m.Config().Vocab) {
		if s := v.m.DefaultSampling(); v.m.Ends(id, &s) {
			eos = id
		}
	}
	ended := object{"logit_bias": object{strconv.Itoa(int(eos)): 100}, "max_tokens": 4}
	stopped := object{"structured_outputs": object{"choice": []string{"alpha beta"}}, "stop": []string{"beta"}, "stop_sequences": []string{"beta"}, "max_tokens": 40}
	called := object{"tools": []object{now}, "tool_choice": "required", "max_tokens": 90, "temperature": 0.0}
	cut := object{"max_tokens": 3, "ignore_eos": true}
	with := func(base, more object) object {
		out := object{"model": "needle/llama"}
		for k, v := range base {
			out[k] = v
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	messages := object{"messages": []object{{"role": "user", "content": "x"}}}
	for _, test := range []struct {
		path       string
		r          object
		key        string
		want, also any
	}{
		{"/v1/chat/completions", with(messages, ended), "finish_reason", "stop", nil},
		{"/v1/chat/completions", with(messages, stopped), "finish_reason", "stop", nil},
		{"/v1/chat/completions", with(messages, called), "finish_reason", "tool_calls", nil},
		{"/v1/chat/completions", with(messages, cut), "finish_reason", "length", nil},
		{"/v1/completions", with(object{"prompt": "x"}, ended), "finish_reason", "stop", nil},
		{"/v1/completions", with(object{"prompt": "x"}, stopped), "finish_reason", "stop", nil},
		{"/v1/completions", with(object{"prompt": "x"}, cut), "finish_reason", "length", nil},
		{"/v1/messages", with(messages, ended), "stop_reason", "end_turn", nil},
		{"/v1/messages", with(messages, stopped), "stop_reason", "stop_sequence", "beta"},
		{"/v1/messages", with(messages, cut), "stop_reason", "max_tokens", nil},
		{"/v1/responses", with(object{"input": "x"}, ended), "status", "completed", nil},
		{"/v1/responses", with(object{"input": "x"}, object{"max_output_tokens": 3, "ignore_eos": true}), "status", "incomplete", nil},
	} {
		var a object
		ts.post(t, test.path, test.r, &a)
		if list, ok := a["choices"].([]any); ok {
			a = list[0].(object)
		}
		require.Equal(t, test.want, a[test.key], "%s %v: %v", test.path, test.r, a)
		require.Equal(t, test.also, a["stop_sequence"])
	}
}

// TestOffsets: text_offset counts characters, not bytes, from the beginning of the text,
// which an echo begins with the prompt as it was sent.
func TestOffsets(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for _, echo := range []bool{false, true} {
		for _, prompt := range []string{"One of", "日本 – é\n\nOne", " a  b "} {
			r := object{
				"model": "needle/llama", "prompt": prompt, "max_tokens": 30, "echo": echo, "logprobs": 0, "temperature": 0,
				"structured_outputs": object{"choice": []string{"née à 東京, oh"}},
			}
			var a textAnswer
			ts.post(t, "/v1/completions", r, &a)
			c := a.Choices[0]
			answer := "née à 東京, oh"
			if echo {
				answer = prompt + answer
			}
			require.Equal(t, answer, c.Text)
			text := []rune(c.Text)
			at := 0
			for i, offset := range c.LogProbs.Offsets {
				require.GreaterOrEqual(t, offset, at)
				require.LessOrEqual(t, offset, len(text))
				at = offset
				if token := c.LogProbs.Tokens[i]; !strings.Contains(token, "\uFFFD") && !strings.HasPrefix(token, "<") {
					require.True(t, strings.HasPrefix(string(text[offset:]), token), "%q at %d of %q", token, offset, c.Text)
				}
			}
			streamed := ""
			for _, line := range ts.lines(t, "/v1/completions", r) {
				var chunk textAnswer
				decode(t, line, &chunk)
				for _, c := range chunk.Choices {
					streamed += c.Text
				}
			}
			require.Equal(t, c.Text, streamed)
		}
	}
}

// TestLargestNumbers: the largest number that a field takes is no fault of the server,
// alone or together with a prompt.
func TestLargestNumbers(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	const large, larger = 2147483647, int64(9223372036854775807)
	for _, more := range []object{
		{"max_tokens": large}, {"min_tokens": large, "max_tokens": large}, {"min_tokens": large}, {"top_k": 1 << 30}, {"thinking_token_budget": large},
		{"seed": larger},
		{"context": "a b c", "kv_compression": object{"budget_tokens": large}},
		{"context": "a b c", "kv_compression": object{"budget_tokens": larger}},
		{"context": "a b c", "kv_compression": object{"budget_bytes": larger}},
		{"context": "a b c", "kv_compression": object{"ratio": 0.5, "protection": object{"sinks": large, "window": large}}},
		{"context": "a b c", "kv_compression": object{"ratio": 0.5, "decode": object{"mode": "periodic", "target_size": large, "buffer": large}}},
		{"context": "a b c", "kv_compression": object{"ratio": 0.5, "decode": object{"mode": "periodic", "target_size": 8, "interval": large, "buffer": large}}},
		{"context": "a b c", "kv_compression": object{"ratio": 0.5, "metric": object{"name": "snapkv", "window": large}}},
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
			r := ask("hello", object{"max_tokens": 3})
			for k, v := range more {
				r[k] = v
			}
			if r["prompt"] = "hello"; path == "/v1/completions" {
				delete(r, "messages")
			}
			status, text, _ := ts.do(t, "POST", path, mustJSON(t, r))
			require.Less(t, status, 500, "%v: %s", more, text)
			require.NotContains(t, text, "unknown field", "%v", more)
		}
	}
}
