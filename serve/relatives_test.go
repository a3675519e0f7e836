package serve

import (
	"encoding/json"
	"net/http"
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
