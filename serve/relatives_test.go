package serve

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// A constraint asked for by a name that is not this endpoint's is refused by that name: left
// out, it would give answers of another form than was asked for.
func TestForeignConstraints(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	hello := []object{{"role": "user", "content": "hello"}}
	for _, test := range []struct {
		path, field string
		value       any
	}{
		{"/v1/chat/completions", "guided_decoding", object{"regex": "a"}},
		{"/v1/chat/completions", "guided_whitespace_pattern", "a"},
		{"/v1/chat/completions", "extra_body", object{"guided_regex": "a"}},
		{"/v1/chat/completions", "json_mode", true},
		{"/v1/chat/completions", "gbnf", "root ::= x"},
		{"/v1/chat/completions", "sampling_params", object{"regex": "a"}},
		{"/v1/completions", "banned_tokens", []int{3}},
		{"/v1/completions", "banned_strings", []string{"a"}},
		{"/v1/completions", "logits_processors", []string{"a"}},
		{"/v1/completions", "lark", "start: x"},
		{"/v1/messages", "output_config", object{"schema": object{}}},
		{"/v1/messages", "json_schema", object{"type": "object"}},
		{"/v1/messages", "grammar", "x"},
		{"/v1/responses", "response_format", object{"type": "json_object"}},
		{"/v1/responses", "guided_decoding", object{"choice": []string{"a"}}},
	} {
		data, err := json.Marshal(object{"model": "needle/llama", "messages": hello, "input": "hello", "prompt": "hello", test.field: test.value})
		require.NoError(t, err)
		if test.path == "/v1/responses" {
			data, err = json.Marshal(object{"model": "needle/llama", "input": "hello", test.field: test.value})
		} else if test.path == "/v1/messages" {
			data, err = json.Marshal(object{"model": "needle/llama", "messages": hello, "max_tokens": 4, test.field: test.value})
		}
		require.NoError(t, err)
		status, text, _ := ts.do(t, "POST", test.path, string(data))
		require.Equal(t, http.StatusBadRequest, status, "%s %s: %s", test.path, test.field, text)
		require.Contains(t, text, test.field)
	}
}

// TestConstraintsOfOtherForms: each form of the chat endpoint and ollama's API follow vLLM's
// fields for the format and the end of an answer, and refuse fields of a chat that they do not
// have and names of other servers: left out, they would give other answers than were asked for.
func TestConstraintsOfOtherForms(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	hello := []object{{"role": "user", "content": "hello"}}
	schema := object{"type": "object", "properties": object{"a": object{"const": 7}}, "required": []string{"a"}, "additionalProperties": false}
	for path, test := range map[string]struct {
		base   object
		format string // its own field
	}{
		"/v1/messages":  {object{"messages": hello, "max_tokens": 60}, "output_config.format"},
		"/v1/responses": {object{"input": "hello", "max_output_tokens": 60}, "text.format"},
		"/api/chat":     {object{"messages": hello, "stream": false, "options": object{"num_predict": 60}}, "format"},
		"/api/generate": {object{"prompt": "hello", "stream": false, "options": object{"num_predict": 60}}, "format"},
	} {
		ask := func(more object) (int, string) {
			r := object{"model": "needle/llama"}
			maps.Copy(r, test.base)
			maps.Copy(r, more)
			status, text, _ := ts.do(t, "POST", path, mustJSON(t, r))
			return status, text
		}
		for _, more := range []object{
			{"guided_regex": "zq{3}"}, {"guided_choice": []string{"zqqq"}}, {"structured_outputs": object{"regex": "zq{3}"}, "n": 1},
		} {
			status, text := ask(more)
			require.Equal(t, http.StatusOK, status, "%s: %s", path, text)
			require.Contains(t, text, `"zqqq"`, path)
		}
		status, text := ask(object{"guided_json": schema})
		require.Equal(t, http.StatusOK, status, "%s: %s", path, text)
		require.Regexp(t, `\{\s*\\"a\\":\s*7\s*\}`, strings.ReplaceAll(text, `\n`, ""), path)
		for field, refused := range map[string]struct {
			value any
			want  string
		}{
			"response_format": {object{"type": "json_object"}, "response_format: not a field of this endpoint, expected " + test.format},
			"n":               {2, "n: not supported"},
			"grammar":         {"x", "grammar: not supported"},
			"min_tokens":      {61, "min_tokens: found 61"},
			"guided_regex":    {"(", "guided_regex: "},
		} {
			status, text := ask(object{field: refused.value})
			require.Equal(t, http.StatusBadRequest, status, "%s %s: %s", path, field, text)
			require.Contains(t, text, refused.want, path)
		}
	}
	answer := func(more object) (text string, tokens int) {
		r := object{"model": "needle/llama", "messages": hello, "max_tokens": 200, "temperature": 0}
		maps.Copy(r, more)
		var a struct {
			Content []struct{ Text string }
			Usage   struct {
				Tokens int `json:"output_tokens"`
			}
		}
		ts.post(t, "/v1/messages", r, &a)
		return a.Content[0].Text, a.Usage.Tokens
	}
	free, n := answer(nil)
	_, longer := answer(object{"min_tokens": n + 3})
	require.GreaterOrEqual(t, longer, n+3)
	stop := strings.Fields(free)[1]
	without, _ := answer(object{"stop_sequences": []string{stop}})
	with, _ := answer(object{"stop_sequences": []string{stop}, "include_stop_str_in_output": true})
	require.Equal(t, without+stop, with)
}

// Rules for drawing tokens and changes of the text that lukv does not have are refused, unless
// their value changes nothing, however it is written.
func TestForeignRules(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	hello := []object{{"role": "user", "content": "hello"}}
	for path, base := range map[string]object{
		"/v1/chat/completions": {"messages": hello, "max_tokens": 2}, "/v1/completions": {"prompt": "hello", "max_tokens": 2},
		"/v1/messages": {"messages": hello, "max_tokens": 2}, "/v1/responses": {"input": "hello", "max_output_tokens": 2},
	} {
		for field, value := range map[string]struct{ neutral, other string }{
			"typical_p": {"1.0", "0.9"}, "top_n_sigma": {"-1", "1"}, "mirostat_mode": {"0", "2"}, "xtc_probability": {"0.00", "1e-1"},
			"no_repeat_ngram_size": {"0", "3"}, "use_beam_search": {"false", "true"}, "truncate_prompt_tokens": {"-1", "2"}, "skip_special_tokens": {"true", "false"},
		} {
			ask := func(value string) (int, string) {
				r := object{"model": "needle/llama", field: json.RawMessage(value)}
				maps.Copy(r, base)
				status, text, _ := ts.do(t, "POST", path, mustJSON(t, r))
				return status, text
			}
			for _, harmless := range []string{value.neutral, "null"} {
				status, text := ask(harmless)
				require.Equal(t, http.StatusOK, status, "%s %s %s: %s", path, field, harmless, text)
			}
			for _, refused := range []string{value.other, `"x"`} {
				status, text := ask(refused)
				require.Equal(t, http.StatusBadRequest, status, "%s %s %s: %s", path, field, refused, text)
				require.Contains(t, text, field+": not supported")
			}
		}
	}
	for field, value := range map[string]any{"best_of": 2, "echo": true, "prompt_logprobs": 1, "modalities": []string{"audio"}} {
		status, text, _ := ts.do(t, "POST", "/v1/chat/completions", mustJSON(t, ask("hello", object{field: value})))
		require.Equal(t, http.StatusBadRequest, status, "%s: %s", field, text)
		require.Contains(t, text, field+": not supported")
	}
}

// A limit or stop texts under a name of another server or endpoint are refused by that
// name, unless the endpoint's own name is there as well: left out, they would give longer
// answers than were asked for.
func TestForeignLimits(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	hello := []object{{"role": "user", "content": "hello"}}
	for path, test := range map[string]struct {
		base    object
		refused []string
		own     map[string]any // what makes the refused ones harmless
		limit   string         // the endpoint's own field for an answer's length
	}{
		"/v1/chat/completions": {object{"messages": hello},
			[]string{"max_new_tokens", "n_predict", "max_output_tokens", "stop_sequences", "thinking_budget", "reasoning_budget", "thinking", "enable_thinking"},
			object{"max_completion_tokens": 3, "stop": "zzz", "chat_template_kwargs": object{"enable_thinking": false}}, "max_completion_tokens"},
		"/v1/completions": {object{"prompt": "hello"}, []string{"max_new_tokens", "max_completion_tokens", "n_predict", "stop_strings"}, object{"max_tokens": 3, "stop": "zzz"}, "max_tokens"},
		"/v1/messages":    {object{"messages": hello, "max_tokens": 3}, []string{"stop", "stop_strings", "thinking_budget"}, object{"stop_sequences": []string{"zzz"}, "thinking": object{"type": "disabled"}}, "max_tokens"},
		"/v1/responses":   {object{"input": "hello"}, []string{"max_completion_tokens", "n_predict", "stop", "stop_sequences", "reasoning_budget"}, nil, "max_output_tokens"},
	} {
		for _, field := range test.refused {
			r := object{"model": "needle/llama", field: 3}
			maps.Copy(r, test.base)
			status, text, _ := ts.do(t, "POST", path, mustJSON(t, r))
			require.Equal(t, http.StatusBadRequest, status, "%s %s: %s", path, field, text)
			require.Contains(t, text, field+": not ", path)
			maps.Copy(r, test.own)
			status, text, _ = ts.do(t, "POST", path, mustJSON(t, r))
			require.Equal(t, test.own != nil, status == http.StatusOK, "%s %s: %s", path, field, text)
		}
		r := object{"model": "needle/llama", test.limit: 3, "n_predict": -1, "thinking_budget": nil, "stop_strings": []string{}}
		maps.Copy(r, test.base)
		status, text, _ := ts.do(t, "POST", path, mustJSON(t, r))
		require.Equal(t, http.StatusOK, status, "%s: %s", path, text)
	}
}

// Parts without what they are made of, keys that are mistyped and formats given twice are
// refused.
func TestIncompleteParts(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	part := object{"role": "user", "content": []object{{"type": "text"}}}
	hello := object{"role": "user", "content": "hello"}
	format := object{"type": "json_schema", "schema": object{"type": "integer"}}
	for _, test := range []struct {
		path string
		r    object
		want string
	}{
		{"/v1/chat/completions", object{"messages": []object{part}}, "messages[0].content[0].text: missing"},
		{"/v1/messages", object{"messages": []object{part}, "max_tokens": 3}, "messages[0].content[0].text: missing"},
		{"/v1/messages", object{"messages": []object{hello}, "max_tokens": 3, "system": part["content"]}, "system[0].text: missing"},
		{"/v1/responses", object{"input": []object{part}}, "input[0].content[0].text: missing"},
		{"/v1/responses", object{"input": []object{{"type": "function_call_output", "call_id": "c"}}}, "input[0].output: missing"},
		{"/v1/responses", object{"input": "hello", "text": object{"fromat": format}}, "text.fromat: unknown"},
		{"/v1/messages", object{"messages": []object{hello}, "max_tokens": 3, "output_format": format, "output_config": object{"format": format}}, "output_format: found a second format"},
	} {
		test.r["model"] = "needle/llama"
		status, text, _ := ts.do(t, "POST", test.path, mustJSON(t, test.r))
		require.Equal(t, http.StatusBadRequest, status, text)
		require.Contains(t, text, test.want)
	}
}

// An error in the format of an answer names the field that asks for it, at every endpoint.
func TestFormatErrors(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for key, value := range map[string]any{
		"structured_outputs.regex": object{"regex": "("}, "structured_outputs.json": object{"json": object{"type": "foo"}}, "structured_outputs.choice": object{"choice": []string{}},
		"guided_regex": "(", "guided_json": object{"type": "foo"}, "guided_choice": []string{},
		"response_format": object{"type": "json_schema", "json_schema": object{"schema": object{"type": "foo"}}},
	} {
		field, _, _ := strings.Cut(key, ".")
		for path, r := range map[string]object{"/v1/completions": {"prompt": "hello"}, "/v1/chat/completions": {"messages": []object{{"role": "user", "content": "hello"}}}} {
			r["model"], r[field] = "needle/llama", value
			status, text, _ := ts.do(t, "POST", path, mustJSON(t, r))
			require.Equal(t, http.StatusBadRequest, status, text)
			require.Contains(t, text, `"message":"`+key+": ", path)
			require.Contains(t, text, `"param":"`+key+`"`, path)
		}
	}
	status, text, _ := ts.do(t, "POST", "/api/generate", `{"model":"needle/llama","prompt":"x","raw":true,"stream":false,"format":{"type":"foo"}}`)
	require.Equal(t, http.StatusBadRequest, status, text)
	require.Contains(t, text, `"format: schema at`)
}

// TestUsageInChunks: where a stream is asked for its usage, all chunks have the field, and
// only the last one a value; elsewhere none has it.
func TestUsageInChunks(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for path, r := range map[string]object{
		"/v1/completions":      {"prompt": []string{"hello", "x"}, "n": 2, "logprobs": 1},
		"/v1/chat/completions": {"messages": []object{{"role": "user", "content": "hello"}}, "n": 2, "return_progress": true},
	} {
		r["model"], r["max_tokens"], r["stream"] = "needle/llama", 3, true
		for _, asked := range []bool{false, true} {
			if asked {
				r["stream_options"] = object{"include_usage": true}
			}
			status, text, _ := ts.do(t, "POST", path, mustJSON(t, r))
			require.Equal(t, http.StatusOK, status, text)
			var chunks []map[string]json.RawMessage
			for line := range strings.Lines(text) {
				if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {"); ok {
					var chunk map[string]json.RawMessage
					require.NoError(t, json.Unmarshal([]byte("{"+data), &chunk))
					chunks = append(chunks, chunk)
				}
			}
			require.Greater(t, len(chunks), 3)
			for i, chunk := range chunks {
				usage, ok := chunk["usage"]
				require.Equal(t, asked, ok, "%s", text)
				require.Equal(t, asked && i < len(chunks)-1, string(usage) == "null", "%s", text)
			}
		}
	}
}
