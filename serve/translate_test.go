package serve

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// named reads a stream of named events.
func (ts *testServer) named(t testing.TB, path string, body object) []object {
	t.Helper()
	body["stream"] = true
	resp, err := ts.Client().Post(ts.URL+path, "application/json", strings.NewReader(mustJSON(t, body)))
	require.NoError(t, err)
	defer resp.Body.Close()
	delete(body, "stream")
	var out []object
	name := ""
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = n
		} else if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var v object
			require.NoError(t, json.Unmarshal([]byte(data), &v), data)
			require.Equal(t, name, v["type"])
			require.NotContains(t, v, "error")
			checkEvent(t, "POST "+path, "text/event-stream", data)
			out = append(out, v)
		}
	}
	require.NotEmpty(t, out)
	return out
}

// without removes keys that differ from answer to answer, at any depth.
func without(v any, keys ...string) any {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range keys {
			delete(v, k)
		}
		for _, x := range v {
			without(x, keys...)
		}
	case []any:
		for _, x := range v {
			without(x, keys...)
		}
	}
	return v
}

// flat is a tool in the form of /v1/responses, or of /v1/messages.
func flat(tool object, schema string) object {
	f := tool["function"].(object)
	out := object{"name": f["name"], "description": f["description"]}
	if schema == "parameters" {
		out["type"] = "function"
	}
	if p := f["parameters"]; p != nil {
		out[schema] = p
	} else {
		out[schema] = object{"type": "object"}
	}
	return out
}

func TestResponses(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	format := object{"format": object{"type": "json_schema", "name": "x", "schema": object{"type": "object", "properties": object{"a": object{"type": "integer"}}, "required": []string{"a"}}, "strict": true}}
	for i, more := range []object{
		{"input": "Hello"},
		{"input": []object{{"role": "user", "content": "Hello"}, {"type": "message", "role": "assistant", "content": []object{{"type": "output_text", "text": "Hm."}}}, {"role": "user", "content": []object{{"type": "input_text", "text": "So?"}}}}, "instructions": "Be brief."},
		{"input": "Hello", "text": format, "max_output_tokens": 100},
		{"input": "Hello", "tools": []object{flat(weather, "parameters"), flat(now, "parameters")}, "tool_choice": "required", "max_output_tokens": 160},
		{"input": "Hello", "tools": []object{flat(weather, "parameters")}, "tool_choice": object{"type": "function", "name": "weather"}, "max_output_tokens": 160},
		{"input": []object{{"role": "user", "content": "Hello"}, {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c1", "output": "noon"}, {"type": "reasoning", "summary": []any{}}, {"role": "user", "content": "So?"}}},
		{"input": sample(0).Question, "context": sample(0).Context, "kv_compression": object{"ratio": 0.5}, "max_output_tokens": 5},
	} {
		r := object{"model": "needle/llama", "seed": 3, "store": false, "max_output_tokens": 12, "temperature": 0.5}
		for k, v := range more {
			r[k] = v
		}
		var whole object
		ts.post(t, "/v1/responses", r, &whole)
		events := ts.named(t, "/v1/responses", r)
		var items []any
		text := map[string]string{} // by item
		for n, e := range events {
			require.EqualValues(t, n, e["sequence_number"])
			id, _ := e["item_id"].(string)
			switch e["type"] {
			case "response.output_item.added":
				require.EqualValues(t, len(items), e["output_index"])
				require.Equal(t, "in_progress", e["item"].(object)["status"])
				items = append(items, nil)
			case "response.output_text.delta", "response.function_call_arguments.delta":
				text[id] += e["delta"].(string)
			case "response.output_text.done":
				require.Equal(t, text[id], e["text"])
			case "response.function_call_arguments.done":
				require.Equal(t, text[id], e["arguments"])
			case "response.output_item.done":
				items[int(e["output_index"].(float64))] = e["item"]
			}
		}
		require.Equal(t, "response.created", events[0]["type"])
		last := events[len(events)-1]
		require.Equal(t, fmt.Sprint("response.", whole["status"]), last["type"])
		require.Equal(t, last["response"].(object)["output"], items)
		differ := []string{"id", "call_id", "created_at", "input_tokens_details", "kv_cache"}
		require.Equal(t, without(whole, differ...), without(last["response"], differ...), "%d", i)
		first := whole["output"].([]any)[0].(object)
		switch i {
		case 2:
			require.True(t, json.Valid([]byte(first["content"].([]any)[0].(object)["text"].(string))))
			require.Equal(t, "completed", whole["status"])
		case 3, 4:
			require.Equal(t, "function_call", first["type"])
			require.True(t, json.Valid([]byte(first["arguments"].(string))))
		case 6:
			require.Equal(t, "incomplete", whole["status"])
			require.Equal(t, object{"reason": "max_output_tokens"}, whole["incomplete_details"])
			require.Equal(t, "incomplete", first["status"])
		}
	}
	for body, want := range map[string]string{
		`{"model":"needle/llama","input":"x","previous_response_id":"resp_1"}`: `"param":"previous_response_id"`,
		`{"model":"needle/llama"}`:                                                              "input: missing",
		`{"model":"needle/llama","input":[{"type":"image"}]}`:                                   "not supported",
		`{"model":"needle/llama","input":[{"role":"user","content":[{"type":"input_image"}]}]}`: "not supported",
		`{"model":"needle/llama","input":[]}`:                                                   "expected at least one",
		`{"model":"needle/llama","input":"x","background":true}`:                                "not supported",
		`{"model":"needle/llama","input":"x","tools":[{"type":"web_search"}]}`:                  "web_search",
		`{"model":"needle/llama","input":"x","text":{"format":{"type":"json_schema"}}}`:         "schema: missing",
		`{"model":"needle/llama","input":"x","max_output_tokens":5000}`:                         "maximum context length",
		`{"model":"x","input":"x"}`:                                                             "model_not_found",
	} {
		status, text, _ := ts.do(t, "POST", "/v1/responses", body)
		require.Contains(t, []int{400, 404}, status, text)
		require.Contains(t, text, want)
	}
}

func TestMessages(t *testing.T) {
	ts := start(t, Options{Keys: []string{"one"}}, engine.Options{})
	transport := ts.Client().Transport
	ts.Client().Transport = keyed{transport}
	for i, more := range []object{
		{"messages": []object{{"role": "user", "content": "Hello"}}},
		{"system": []object{{"type": "text", "text": "Be brief."}}, "messages": []object{{"role": "user", "content": []object{{"type": "text", "text": "Hello", "cache_control": object{"type": "ephemeral"}}}}}, "stop_sequences": []string{"zzz", "e", " "}, "max_tokens": 30},
		{"messages": []object{{"role": "user", "content": "Hello"}}, "tools": []object{flat(weather, "input_schema"), flat(now, "input_schema")}, "tool_choice": object{"type": "any"}, "max_tokens": 160},
		{"messages": []object{{"role": "user", "content": "Hello"}}, "tools": []object{flat(weather, "input_schema")}, "tool_choice": object{"type": "tool", "name": "weather"}, "max_tokens": 160},
		{"messages": []object{
			{"role": "user", "content": "Hello"},
			{"role": "assistant", "content": []object{{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "now", "input": object{}}}},
			{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": "t1", "content": []object{{"type": "text", "text": "noon"}}}, {"type": "text", "text": "So?"}}},
		}},
		{"messages": []object{{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "One of the"}}},
	} {
		r := object{"model": "needle/llama", "seed": 3, "max_tokens": 12, "temperature": 0.5, "metadata": object{"user_id": "x"}}
		for k, v := range more {
			r[k] = v
		}
		var whole, count object
		ts.post(t, "/v1/messages", r, &whole)
		ts.post(t, "/v1/messages/count_tokens", object{"model": "needle/llama", "messages": r["messages"], "system": r["system"], "tools": r["tools"], "tool_choice": r["tool_choice"]}, &count)
		use := whole["usage"].(object)
		require.Equal(t, count["input_tokens"].(float64), use["input_tokens"].(float64)+use["cache_read_input_tokens"].(float64))
		var got object
		var pieces []string
		open := false
		for _, e := range ts.named(t, "/v1/messages", r) {
			content, _ := got["content"].([]any)
			switch e["type"] {
			case "message_start":
				got = e["message"].(object)
			case "content_block_start":
				require.False(t, open)
				open = true
				require.EqualValues(t, len(content), e["index"])
				got["content"], pieces = append(content, e["content_block"]), append(pieces, "")
			case "content_block_delta":
				d := e["delta"].(object)
				for _, k := range []string{"text", "partial_json"} {
					if s, ok := d[k].(string); ok {
						pieces[int(e["index"].(float64))] += s
					}
				}
			case "content_block_stop":
				open = false
				b := content[int(e["index"].(float64))].(object)
				if s := pieces[int(e["index"].(float64))]; b["type"] == "text" {
					b["text"] = s
				} else {
					var input object
					require.NoError(t, json.Unmarshal([]byte(s), &input))
					b["input"] = input
				}
			case "message_delta":
				for k, v := range e["delta"].(object) {
					got[k] = v
				}
				got["usage"] = e["usage"]
			}
		}
		require.Equal(t, without(whole, "id", "usage"), without(got, "id", "usage"), "%d", i)
		switch i {
		case 1:
			require.Equal(t, "stop_sequence", whole["stop_reason"])
			require.Contains(t, []any{"e", " "}, whole["stop_sequence"])
			require.NotContains(t, whole["content"].([]any)[0].(object)["text"], whole["stop_sequence"])
		case 2, 3:
			require.Equal(t, "tool_use", whole["stop_reason"])
			require.Equal(t, "tool_use", whole["content"].([]any)[0].(object)["type"])
		}
	}
	for body, want := range map[string]string{
		`{"model":"needle/llama","messages":[{"role":"user","content":"x"}]}`:                                              "max_tokens: missing",
		`{"model":"needle/llama","max_tokens":3}`:                                                                          "messages: missing",
		`{"model":"needle/llama","max_tokens":3,"messages":[{"role":"system","content":"x"}]}`:                             "expected user or assistant",
		`{"model":"needle/llama","max_tokens":3,"messages":[{"role":"user","content":[{"type":"image"}]}]}`:                "not supported",
		`{"model":"needle/llama","max_tokens":3,"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled"}}`: "thinking",
		`{"model":"needle/llama","max_tokens":3,"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"x"}}`:    "unknown",
		`{"model":"x","max_tokens":3,"messages":[{"role":"user","content":"x"}]}`:                                          "not_found_error",
		`{`: "read the body",
	} {
		status, text, h := ts.do(t, "POST", "/v1/messages", body)
		require.Contains(t, []int{400, 404}, status, text)
		require.Contains(t, text, want)
		var e struct {
			Type      string
			Error     struct{ Type, Message string }
			RequestID string `json:"request_id"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &e))
		require.Equal(t, "error", e.Type)
		require.NotEmpty(t, e.Error.Message)
		require.Equal(t, h.Get("Request-Id"), e.RequestID)
	}
	ts.Client().Transport = transport
	status, text, _ := ts.do(t, "POST", "/v1/messages", `{}`)
	require.Equal(t, 401, status)
	require.Contains(t, text, `"authentication_error"`)
}

// keyed sends the key as clients of this API do.
type keyed struct{ http.RoundTripper }

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Api-Key", "one")
	return k.RoundTripper.RoundTrip(r)
}

// TestContinue: an answer continues from what is already there.
func TestContinue(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	r := ask("Hello", object{"max_tokens": 12, "temperature": 0})
	whole := *ts.agree(t, r)[0].Message.Content
	begin := whole[:strings.LastIndex(whole[:len(whole)/2+1], " ")]
	r["messages"] = append(r["messages"].([]object), object{"role": "assistant", "content": begin})
	r["continue_final_message"], r["add_generation_prompt"] = true, false
	rest := *ts.agree(t, r)[0].Message.Content
	require.True(t, strings.HasPrefix(begin+rest, whole), "%q and %q, whole %q", begin, rest, whole)
	for want, change := range map[string]object{
		"combined with add_generation_prompt": {"add_generation_prompt": true},
		"combined with a context":             {"context": "x"},
		"expected assistant":                  {"messages": []object{{"role": "user", "content": "x"}}},
		"no text":                             {"messages": []object{{"role": "assistant", "content": " "}}},
	} {
		bad := object{}
		for k, v := range r {
			bad[k] = v
		}
		for k, v := range change {
			bad[k] = v
		}
		status, text, _ := ts.do(t, "POST", "/v1/chat/completions", mustJSON(t, bad))
		require.Equal(t, 400, status, text)
		require.Contains(t, text, want)
	}
}

// TestResponseLogProbs: those of a chat, in pieces and whole, if they are asked for.
func TestResponseLogProbs(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	chat := ask("Hello", object{"max_tokens": 12, "seed": 1, "ignore_eos": true, "logprobs": true, "top_logprobs": 2})
	var want struct {
		Choices []struct {
			LogProbs struct{ Content []any } `json:"logprobs"`
		}
	}
	ts.post(t, "/v1/chat/completions", chat, &want)
	q := object{
		"model": "needle/llama", "input": "Hello", "max_output_tokens": 12, "seed": 1, "ignore_eos": true,
		"include": []string{"reasoning.encrypted_content", "message.output_text.logprobs"}, "top_logprobs": 2,
	}
	text := func(response any) object {
		return response.(object)["output"].([]any)[0].(object)["content"].([]any)[0].(object)
	}
	var whole object
	ts.post(t, "/v1/responses", q, &whole)
	require.Equal(t, want.Choices[0].LogProbs.Content, text(whole)["logprobs"])
	var pieces []any
	for _, e := range ts.named(t, "/v1/responses", q) {
		switch e["type"] {
		case "response.output_text.delta":
			pieces = append(pieces, e["logprobs"].([]any)...)
		case "response.output_text.done":
			require.Equal(t, pieces, e["logprobs"])
		case "response.incomplete":
			require.Equal(t, pieces, text(e["response"])["logprobs"])
		}
	}
	require.Equal(t, text(whole)["logprobs"], any(pieces))
	delete(q, "include")
	status, answer, _ := ts.do(t, "POST", "/v1/responses", mustJSON(t, q))
	require.Equal(t, 400, status)
	require.Contains(t, answer, "top_logprobs")
	delete(q, "top_logprobs")
	ts.post(t, "/v1/responses", q, &whole)
	require.Empty(t, text(whole)["logprobs"])
}

// TestCountLong: prompts that the model cannot take are counted all the same.
func TestCountLong(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	count := func(words int) (messages, tokens int) {
		var a struct {
			Input int `json:"input_tokens"`
		}
		ts.post(t, "/v1/messages/count_tokens", ask(strings.Repeat("word ", words), nil), &a)
		var b struct{ Count int }
		ts.post(t, "/tokenize", ask(strings.Repeat("word ", words), nil), &b)
		return a.Input, b.Count
	}
	short, same := count(10)
	require.Equal(t, same, short)
	more, _ := count(20)
	long, same := count(5010)
	require.Equal(t, same, long)
	require.Equal(t, short+500*(more-short), long)
	require.Greater(t, long, 2*ts.m.Config().MaxPositions)
	status, text, _ := ts.do(t, "POST", "/v1/messages", mustJSON(t, ask(strings.Repeat("word ", 5010), object{"max_tokens": 1})))
	require.Equal(t, 400, status)
	require.Contains(t, text, "maximum context length")
}

// TestNamesInErrors: errors of translated requests name the fields of the request.
func TestNamesInErrors(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	long := strings.Repeat("word ", 5000)
	user := `{"role":"user","content":"x"}`
	for _, x := range []struct{ path, body, want, param string }{
		{"messages", `"messages":[` + user + `],"stop_sequences":[""]`, "stop_sequences: found an empty text", ""},
		{"messages", `"messages":[` + user + `],"tools":[{"name":"a b"}]`, "tools[0].name: found", ""},
		{"messages", `"messages":[` + user + `],"tools":[{"name":"a","input_schema":7}]`, "tools[0].input_schema: found", ""},
		{"messages", `"messages":[` + user + `],"tools":[{"name":"a"}],"tool_choice":{"type":"tool","name":"b"}`, `tool_choice.name: found `, ""},
		{"messages", `"messages":[` + user + `,{"role":"assistant","content":"x"}],"context":"c"`, "messages: cannot be combined with a context", ""},
		{"messages", `"messages":[` + user + `,{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":7}]},` + user + `]`, "messages[1].content[0].input: found a number", ""},
		{"messages", `"messages":[` + user + `],"structured_outputs":{"regex":"["}`, "structured_outputs.regex: ", ""},
		{"messages", `"messages":[` + user + `],"temperature":7`, "temperature: found", ""},
		{"responses", `"input":[]`, "input: found an empty list", "input"},
		{"responses", `"input":"` + long + `"`, "maximum context length", "input"},
		{"responses", `"input":"x","max_output_tokens":5000`, "maximum context length", "max_output_tokens"},
		{"responses", `"input":[` + user + `,{"role":"king","content":"x"}],"instructions":"i"`, `input[1].role: \"king\" is unknown`, "input[1].role"},
		{"responses", `"input":[` + user + `,{"type":"function_call","call_id":"c","name":"n","arguments":"{}"},{"type":"function_call","call_id":"d","name":"n","arguments":"7"}],"instructions":"i"`,
			"input[2].arguments: expected", "input[2].arguments"},
		{"responses", `"input":"x","tools":[{"type":"web_search"}]`, "tools[0].type: ", "tools[0].type"},
		{"responses", `"input":"x","tools":[{"type":"function","name":"a","parameters":7}]`, "tools[0].parameters: found", "tools[0].parameters"},
		{"responses", `"input":"x","tools":[{"type":"function","name":"a"}],"tool_choice":{"type":"function","name":"b"}`, "tool_choice.name: ", "tool_choice.name"},
		{"responses", `"input":"x","text":{"format":{"type":"json_schema"}}`, "text.format.schema: missing", "text.format.schema"},
		{"responses", `"input":"x","text":{"format":{"type":"xml"}}`, "text.format.type: ", "text.format.type"},
		{"responses", `"input":"x","text":{"format":{"type":"json_schema","schema":{"not":{}}}}`, "text.format: ", "text.format"},
		{"responses", `"input":"x","structured_outputs":{"regex":"["}`, "structured_outputs.regex: ", "structured_outputs.regex"},
		{"responses", `"input":"x","text":{"format":{"type":"text"}},"structured_outputs":{"regex":"["}`, "structured_outputs.regex: ", "structured_outputs.regex"},
	} {
		status, text, _ := ts.do(t, "POST", "/v1/"+x.path, `{"model":"needle/llama","max_tokens":3,`+x.body+`}`)
		require.Equal(t, 400, status, text)
		require.Contains(t, text, x.want)
		if x.param != "" {
			require.Contains(t, text, `"param":"`+x.param+`"`)
		}
	}
}
