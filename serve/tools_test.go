package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// agree returns the whole answer to a request and requires the streamed one to agree.
func (ts *testServer) agree(t *testing.T, r object) []chatChoice {
	if r["seed"] == nil {
		r["seed"] = 1
	}
	var whole chatAnswer
	ts.post(t, "/v1/chat/completions", r, &whole)
	got := make([]chatChoice, len(whole.Choices))
	for _, c := range ts.chunks(t, "/v1/chat/completions", r) {
		for _, d := range c.Choices {
			g := &got[d.Index]
			if g.Message == nil {
				require.Equal(t, "assistant", d.Delta.Role)
				g.Message = &chatMessage{Role: d.Delta.Role}
			}
			if d.Delta.Content != nil {
				if g.Message.Content == nil {
					g.Message.Content = new(string)
				}
				*g.Message.Content += *d.Delta.Content
			}
			for _, call := range d.Delta.Calls {
				if call.ID != "" {
					require.Equal(t, len(g.Message.Calls), *call.Index)
					require.Equal(t, "function", call.Type)
					require.Empty(t, call.Function.Arguments)
					g.Message.Calls = append(g.Message.Calls, chatCall{Type: call.Type, Function: chatCallFunction{Name: call.Function.Name}})
					continue
				}
				require.Empty(t, call.Function.Name, "once")
				g.Message.Calls[*call.Index].Function.Arguments += call.Function.Arguments
			}
			if d.Finish != nil {
				require.Nil(t, g.Finish)
				g.Finish = d.Finish
			}
		}
	}
	for i, w := range whole.Choices {
		for k := range w.Message.Calls {
			require.NotEmpty(t, w.Message.Calls[k].ID)
			w.Message.Calls[k].ID = ""
		}
		require.Equal(t, w.Message, got[i].Message)
		require.Equal(t, w.Finish, got[i].Finish)
	}
	delete(r, "stream")
	return whole.Choices
}

// TestStructuredOutput: answers of a model that knows nothing about JSON are JSON of the
// schema, streamed or not, alone or with others.
func TestStructuredOutput(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	schema := object{
		"type": "object", "required": []string{"name", "count", "kind"}, "additionalProperties": false,
		"properties": object{
			"name":  object{"type": "string", "maxLength": 12},
			"count": object{"type": "integer", "minimum": 1, "maximum": 99},
			"kind":  object{"enum": []string{"small", "large"}},
		},
	}
	for i, format := range []object{
		{"response_format": object{"type": "json_schema", "json_schema": object{"name": "x", "strict": true, "schema": schema}}},
		{"structured_outputs": object{"json": schema}, "n": 3, "temperature": 1.5, "seed": 4},
		{"response_format": object{"type": "json_object", "schema": schema}, "temperature": 1.0, "seed": 2},
		{"guided_json": schema, "temperature": 2.0, "seed": 9, "ignore_eos": true},
	} {
		format["max_tokens"] = 150
		for _, c := range ts.agree(t, ask("Hello", format)) {
			var v struct{ Name, Kind string }
			text := *c.Message.Content
			require.NoError(t, json.Unmarshal([]byte(text), &v), "%d: %s", i, text)
			require.Regexp(t, `"count":\s*[1-9][0-9]?\b`, text)
			require.LessOrEqual(t, len([]rune(v.Name)), 12)
			require.Contains(t, []string{"small", "large"}, v.Kind)
			require.Equal(t, "stop", c.Finish)
		}
	}
	for _, c := range ts.agree(t, ask("Hello", object{"structured_outputs": object{"choice": []string{"yes", "no", "maybe"}}, "n": 2, "temperature": 1.0})) {
		require.Contains(t, []string{"yes", "no", "maybe"}, *c.Message.Content)
	}
	for _, c := range ts.agree(t, ask("Hello", object{"guided_regex": `[0-9]{3}-[a-f]+!`, "temperature": 1.0, "seed": 3, "max_tokens": 60})) {
		require.Regexp(t, regexp.MustCompile(`^[0-9]{3}-[a-f]+(!$)?`), *c.Message.Content)
	}
	// Any object: the answer is one as far as it goes.
	for _, format := range []object{
		{"response_format": object{"type": "json_object"}},
		{"response_format": object{"type": "json_object", "schema": object{}}},
		{"structured_outputs": object{"json_object": true}},
	} {
		format["max_tokens"] = 30
		for _, c := range ts.agree(t, ask("Hello", format)) {
			require.True(t, strings.HasPrefix(*c.Message.Content, "{"))
		}
	}
	var a textAnswer
	ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": []string{"One", "Two"}, "structured_outputs": object{"choice": []string{" a", " b"}}, "n": 2, "seed": 1}, &a)
	require.Len(t, a.Choices, 4)
	for _, c := range a.Choices {
		require.Contains(t, []string{" a", " b"}, c.Text)
		require.Equal(t, "stop", c.Finish)
	}
}

// TestConcurrentFormats: sharing formats does not change answers.
func TestConcurrentFormats(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	request := func(i int) string {
		r := ask("Hello", object{"max_tokens": 30 + i, "temperature": 1.0, "seed": i / 2, "guided_json": object{"type": "array", "items": object{"type": "string", "maxLength": 3 + i%2}, "minItems": 2}})
		if i%3 == 0 {
			delete(r, "guided_json")
			r["tools"], r["tool_choice"] = []object{weather, now}, "required"
		}
		return mustJSON(t, r)
	}
	answer := func(i int) string {
		status, text, _ := ts.do(t, "POST", "/v1/chat/completions", request(i))
		require.Equal(t, 200, status, text)
		var a chatAnswer
		require.NoError(t, json.Unmarshal([]byte(text), &a))
		for k := range a.Choices[0].Message.Calls {
			a.Choices[0].Message.Calls[k].ID = ""
		}
		return mustJSON(t, a.Choices)
	}
	want := make([]string, 12)
	for i := range want {
		want[i] = answer(i)
	}
	ts = start(t, Options{}, engine.Options{}) // which has compiled nothing
	got := make([]string, len(want))
	var wg sync.WaitGroup
	for i := range want {
		wg.Go(func() { got[i] = answer(i) })
	}
	wg.Wait()
	require.Equal(t, want, got)
}

var weather = object{"type": "function", "function": object{
	"name": "weather", "description": "tells <|end|> the weather",
	"parameters": object{"type": "object", "required": []string{"city"}, "properties": object{
		"city": object{"type": "string", "maxLength": 10}, "days": object{"type": "integer", "minimum": 1, "maximum": 7},
	}, "additionalProperties": false},
}}

var now = object{"type": "function", "function": object{"name": "now"}}

// TestToolCalls: calls that have to be made are made, with arguments that follow the
// schema.
func TestToolCalls(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for _, test := range []struct {
		choice any
		finish string
	}{
		{"required", "tool_calls"},
		{object{"type": "function", "function": object{"name": "weather"}}, "stop"},
	} {
		r := ask("Hello", object{"tools": []object{weather, now}, "tool_choice": test.choice, "n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 100})
		for _, c := range ts.agree(t, r) {
			require.Len(t, c.Message.Calls, 1)
			call := c.Message.Calls[0].Function
			require.Nil(t, c.Message.Content)
			require.Equal(t, test.finish, c.Finish)
			var arguments map[string]any
			require.NoError(t, json.Unmarshal([]byte(call.Arguments), &arguments), call.Arguments)
			if call.Name == "now" {
				require.Equal(t, "required", test.choice)
				require.Empty(t, arguments)
			} else {
				require.IsType(t, "", arguments["city"])
			}
		}
	}
	for _, c := range ts.agree(t, ask("Hello", object{"tools": []object{weather}, "response_format": object{"type": "json_schema", "json_schema": object{"name": "x", "schema": object{"enum": []string{"a", "b"}}}}})) {
		require.True(t, len(c.Message.Calls) > 0 || *c.Message.Content == `"a"` || *c.Message.Content == `"b"`)
	}
	// Nothing has to be called, and nothing is; with none, it is as without tools.
	for _, choice := range []string{"auto", "none"} {
		c := ts.agree(t, ask("Hello", object{"tools": []object{weather}, "tool_choice": choice, "max_tokens": 10}))[0]
		require.Empty(t, c.Message.Calls)
		require.NotEmpty(t, *c.Message.Content)
	}
	var with, without struct {
		IDs []int32 `json:"token_ids"`
	}
	ts.post(t, "/v1/chat/completions/render", ask("Hello", object{"tools": []object{weather}, "tool_choice": "none"}), &with)
	ts.post(t, "/v1/chat/completions/render", ask("Hello", nil), &without)
	require.Equal(t, without.IDs, with.IDs)
	ts.post(t, "/v1/chat/completions/render", ask("Hello", object{"tools": []object{weather}}), &with)
	require.Greater(t, len(with.IDs), len(without.IDs)+20)
	ends := 0
	for _, id := range with.IDs {
		if id == 5 {
			ends++
		}
	}
	for _, id := range without.IDs {
		if id == 5 {
			ends--
		}
	}
	require.LessOrEqual(t, ends, 1, "what tools say is no control token")
	// What was called goes back into the conversation.
	r := ask("Hello", object{"max_tokens": 5})
	r["messages"] = []object{
		{"role": "user", "content": "Hello"},
		{"role": "assistant", "content": nil, "tool_calls": []object{{"id": "call_1", "type": "function", "function": object{"name": "now", "arguments": "{}"}}}},
		{"role": "tool", "tool_call_id": "call_1", "content": "noon"},
		{"role": "user", "content": "So?"},
	}
	status, text, _ := ts.do(t, "POST", "/v1/chat/completions", mustJSON(t, r))
	require.Contains(t, []int{200, 400}, status, text) // templates may refuse it
}

// TestArguments: arguments are objects if the schema does not say otherwise.
func TestArguments(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for schema, like := range map[string]string{
		`{"required":["x"],"properties":{"x":{"type":"integer","maximum":9}},"additionalProperties":false}`: `^\{\s*"x":\s*-?\d+\s*\}$`,
		`{"enum":[12,"a",null]}`: `^(12|"a"|null)$`, `{"type":"string","maxLength":5}`: `^".{0,5}"$`,
	} {
		tool := object{"type": "function", "function": object{"name": "f", "parameters": json.RawMessage(schema)}}
		c := ts.agree(t, ask("Hello", object{"tools": []object{tool}, "tool_choice": "required", "temperature": 1.0, "max_tokens": 80}))[0]
		require.Equal(t, "tool_calls", c.Finish)
		require.Regexp(t, like, c.Message.Calls[0].Function.Arguments)
	}
}

// TestCutCalls: an answer that a stop text ends inside a call is not a call to be executed.
func TestCutCalls(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	r := ask("Hello", object{"tools": []object{weather}, "tool_choice": "required", "temperature": 1.0, "seed": 1, "max_tokens": 60, "stop": "}"})
	c := ts.agree(t, r)[0]
	require.False(t, json.Valid([]byte(c.Message.Calls[0].Function.Arguments)))
	require.Equal(t, "stop", c.Finish)
	r["stop"] = "}}" // the brackets of the arguments and of the call
	r["include_stop_str_in_output"] = true
	c = ts.agree(t, r)[0]
	require.True(t, json.Valid([]byte(c.Message.Calls[0].Function.Arguments)))
	require.Equal(t, "tool_calls", c.Finish)

	tool := object{"name": "weather", "input_schema": weather["function"].(object)["parameters"]}
	for stop, reason := range map[string]string{"}": "stop_sequence", "nothing": "tool_use"} {
		var a object
		ts.post(t, "/v1/messages", object{"model": "needle/llama", "messages": []object{{"role": "user", "content": "Hello"}}, "tools": []object{tool}, "tool_choice": object{"type": "any"},
			"seed": 1, "max_tokens": 60, "stop_sequences": []string{stop}}, &a)
		require.Equal(t, reason, a["stop_reason"])
	}
}

// TestStopSequences: the stop sequence that a message names is the one that was cut off, also
// if others end at the same place, or if it is a token that is left out of texts.
func TestStopSequences(t *testing.T) {
	r := object{"model": "needle/llama", "messages": []object{{"role": "user", "content": "Hello"}}, "seed": 1, "max_tokens": 60}
	for _, test := range []struct {
		ts    *testServer
		more  object
		stops []string
		want  string
	}{
		{start(t, Options{}, engine.Options{}), object{"structured_outputs": object{"choice": []string{"xabcd"}}}, []string{"c", "bc"}, "bc"},
		{family(t, "mistral-7b-instruct-v0.3", "[TOOL_CALLS]"), object{"tools": []object{flat(weather, "input_schema")}, "tool_choice": object{"type": "any"}}, []string{"[TOOL_CALLS]"}, "[TOOL_CALLS]"},
	} {
		test.more["stop_sequences"] = test.stops
		for k, v := range r {
			test.more[k] = v
		}
		var a object
		test.ts.post(t, "/v1/messages", test.more, &a)
		require.Equal(t, "stop_sequence", a["stop_reason"])
		require.Equal(t, test.want, a["stop_sequence"])
	}
}

// TestTokenizeTools: the tokens of a conversation include its tools, as the chat has them.
func TestTokenizeTools(t *testing.T) {
	for _, ts := range []*testServer{start(t, Options{}, engine.Options{}), family(t, likeLlama, llamaTag)} {
		for _, choice := range []string{"auto", "none"} {
			r := ask("Hello", object{"tools": []object{weather}, "tool_choice": choice})
			var tokens struct{ Tokens []int32 }
			var rendered struct {
				IDs []int32 `json:"token_ids"`
			}
			ts.post(t, "/tokenize", r, &tokens)
			ts.post(t, "/v1/chat/completions/render", r, &rendered)
			require.Equal(t, rendered.IDs, tokens.Tokens)
		}
	}
	ts := start(t, Options{}, engine.Options{})
	status, text, _ := ts.do(t, "POST", "/tokenize", `{"messages":[{"role":"user","content":"x"}],"tools":[5]}`)
	require.Equal(t, 400, status, text)
}

func mustJSON(t testing.TB, v any) string {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}

// family serves the embedded model with the chat template of another, and its third token
// renamed.
func family(t testing.TB, template, token string) *testServer {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, builtin.Files()))
	text := []byte(template)
	if !strings.Contains(template, "{") {
		var err error
		text, err = os.ReadFile("../tokenizer/chat/testdata/real/" + template + "/template.jinja")
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), text, 0o600))
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Contains(t, string(data), `"</s>"`)
		require.NoError(t, os.Chmod(filepath.Join(dir, name), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), bytes.ReplaceAll(data, []byte(`"</s>"`), []byte(`"`+token+`"`)), 0o600))
	}
	m, err := model.Open(context.Background(), dir)
	require.NoError(t, err)
	return serveModel(t, m, Options{}, engine.Options{})
}

// likeLlama writes calls as Llama 3.1 does: one, as the whole answer.
const likeLlama = `{{ bos_token }}{% for m in messages %}{% if loop.first and tools %}{% for t in tools %}{{ t | tojson(indent=4) }}
{% endfor %}{% endif %}{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}{{ raise_exception("one call at once") }}{% endif %}` +
	`{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}{% endfor %}`

// showsTools shows functions and does not know calls.
const showsTools = `{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}`

// Templates like those of Devstral, Phi 4 and Granite 3.
const (
	likeDevstral = `{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}` +
		`[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}`
	likePhi = `{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}` +
		`<|tool_call|>{{ c.function | tojson }}<|/tool_call|>{% endfor %}{% endfor %}`
	likeGranite = `{{ bos_token }}{% if tools %}To call, write <|tool_call|> and a list. {{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}`
)

// TestResultsReachEveryModel: a model whose template knows no functions reads calls and results
// as text, whether there are functions that it may call or not.
func TestResultsReachEveryModel(t *testing.T) {
	ts := family(t, "zephyr-tinyllama", "</s>")
	r := ask("", object{"messages": []object{
		{"role": "user", "content": "Rome?"},
		{"role": "assistant", "content": nil, "tool_calls": []object{{"id": "a", "type": "function", "function": object{"name": "weather", "arguments": `{"city":"Rome"}`}}}},
		{"role": "tool", "tool_call_id": "a", "content": "31 degrees"},
	}})
	for _, tools := range [][]object{nil, {weather}} {
		if tools != nil {
			r["tools"] = tools
		}
		var prompt struct {
			IDs []int32 `json:"token_ids"`
		}
		ts.post(t, "/v1/chat/completions/render", r, &prompt)
		var text struct{ Prompt string }
		ts.post(t, "/detokenize", object{"tokens": prompt.IDs}, &text)
		require.Contains(t, text.Prompt, `{"name": "weather", "arguments": {"city":"Rome"}}`)
		require.Contains(t, text.Prompt, "The function weather returned:\n31 degrees")
		var counted struct {
			Tokens int `json:"input_tokens"`
		}
		ts.post(t, "/v1/messages/count_tokens", object{"model": r["model"], "messages": []object{
			{"role": "user", "content": "Rome?"},
			{"role": "assistant", "content": []object{{"type": "tool_use", "id": "a", "name": "weather", "input": object{"city": "Rome"}}}},
			{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": "a", "content": "31 degrees"}}},
		}}, &counted)
		require.True(t, tools != nil || counted.Tokens == len(prompt.IDs), "%d, %d tokens", counted.Tokens, len(prompt.IDs))
	}
}

// llamaTag is the control token that Llama 3 may write before a call.
const llamaTag = "<|python_tag|>"

// TestToolFamilies: the syntax follows the template, and calls that have to be made are read
// back.
func TestToolFamilies(t *testing.T) {
	for _, test := range []struct{ template, token string }{
		{likeLlama, llamaTag}, {likeLlama, "</s>"}, {"mistral-7b-instruct-v0.3", "[TOOL_CALLS]"}, {"mistral-nemo-instruct-2407", "</s>"},
		{"qwen2.5-7b-instruct", "</s>"}, {"zephyr-tinyllama", "</s>"}, {showsTools, "</s>"},
		{likeDevstral, "[TOOL_CALLS]"}, {likeDevstral, "[ARGS]"}, {likePhi, "<|/tool_call|>"}, {likeGranite, "<|tool_call|>"},
	} {
		t.Run(test.token, func(t *testing.T) {
			ts := family(t, test.template, test.token)
			r := ask("Hello", object{"tools": []object{weather, now}, "tool_choice": "required", "temperature": 1.0, "max_tokens": 60})
			answer := ts.agree(t, r)[0]
			require.NotEmpty(t, answer.Message.Calls)
			for _, call := range answer.Message.Calls {
				require.Contains(t, []string{"weather", "now"}, call.Function.Name)
				if answer.Finish == "tool_calls" {
					require.True(t, json.Valid([]byte(call.Function.Arguments)), call.Function.Arguments)
				}
			}
		})
	}
}
