package serve

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// ollamaLine is a whole answer or a line of a stream.
type ollamaLine struct {
	Model    string
	Response string
	Message  struct {
		Role, Content, Thinking string
		Calls                   []struct {
			Function struct {
				Name      string
				Arguments map[string]any
			}
		} `json:"tool_calls"`
	}
	Done       bool
	DoneReason string `json:"done_reason"`
	Prompt     int    `json:"prompt_eval_count"`
	Answer     int    `json:"eval_count"`
	Error      string
}

// ollama sends a request and returns the lines of the answer.
func (ts *testServer) ollama(t *testing.T, path string, body object) (lines []ollamaLine) {
	data, err := json.Marshal(body)
	require.NoError(t, err)
	status, text, head := ts.do(t, "POST", path, string(data))
	require.Equal(t, http.StatusOK, status, text)
	if body["stream"] != false {
		require.Equal(t, "application/x-ndjson", head.Get("Content-Type"))
	}
	for line := range strings.Lines(text) {
		var x ollamaLine
		require.NoError(t, json.Unmarshal([]byte(line), &x), text)
		lines = append(lines, x)
	}
	return lines
}

// Answers are those of the chat and of the text completion with the same settings, whole and
// in lines.
func TestOllamaAnswers(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	messages := []object{{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}}
	options := object{"temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 3, "num_predict": 9, "repeat_penalty": 1.2, "num_ctx": 512, "stop": []string{"zzz"}}
	var chat chatAnswer
	ts.post(t, "/v1/chat/completions", object{"model": "needle/llama", "messages": messages, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 3,
		"max_tokens": 9, "repetition_penalty": 1.2, "stop": "zzz"}, &chat)
	want := *chat.Choices[0].Message.Content
	require.NotEmpty(t, want)
	for _, body := range []struct {
		path string
		body object
	}{
		{"/api/chat", object{"messages": messages}},
		{"/api/generate", object{"system": "Be brief.", "prompt": "hello"}},
	} {
		for _, stream := range []any{nil, true, false} {
			body.body["model"], body.body["options"], body.body["stream"] = "needle/llama", options, stream
			lines := ts.ollama(t, body.path, body.body)
			text := ""
			for i, x := range lines {
				text += x.Message.Content + x.Response
				require.Equal(t, i == len(lines)-1, x.Done)
			}
			require.Equal(t, want, text)
			require.Equal(t, stream == false, len(lines) == 1)
			last := lines[len(lines)-1]
			require.Equal(t, chat.Choices[0].Finish, last.DoneReason)
			require.Equal(t, chat.Usage.Prompt, last.Prompt)
			require.Equal(t, chat.Usage.Completion, last.Answer)
		}
	}
	var raw textAnswer
	ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": "hello", "temperature": 0, "max_tokens": 5}, &raw)
	got := ts.ollama(t, "/api/generate", object{"model": "needle/llama:latest", "prompt": "hello", "raw": true, "stream": false, "options": object{"temperature": 0, "num_predict": 5}})
	require.Equal(t, raw.Choices[0].Text, got[0].Response)
	got = ts.ollama(t, "/api/generate", object{"model": "needle/llama", "prompt": "hello", "raw": true, "stream": false, "think": false,
		"options": object{"temperature": 0, "num_predict": 5, "repeat_last_n": 0, "repeat_penalty": 100, "presence_penalty": 2, "frequency_penalty": 2}})
	require.Equal(t, raw.Choices[0].Text, got[0].Response, "penalties that look at no token")
	got = ts.ollama(t, "/api/chat", object{"model": "needle/llama", "stream": false, "messages": messages, "options": object{"num_predict": -1, "seed": 1},
		"format": object{"type": "object", "properties": object{"a": object{"enum": []string{"x", "y"}}}, "required": []string{"a"}, "additionalProperties": false}})
	require.Contains(t, []string{`{"a":"x"}`, `{"a":"y"}`}, strings.Join(strings.Fields(got[0].Message.Content), ""))
}

// Requests that would be misunderstood are refused in ollama's form, by the names of its
// fields.
func TestOllamaRefuses(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	hello := []object{{"role": "user", "content": "hello"}}
	for want, test := range map[string]struct {
		path   string
		status int
		body   object
	}{
		"options.num_predict":     {"/api/chat", 400, object{"messages": hello, "options": object{"num_predict": 0}}},
		"options.num_predict: f":  {"/api/chat", 400, object{"messages": hello, "options": object{"num_predict": -3}}},
		"options.temperature":     {"/api/chat", 400, object{"messages": hello, "options": object{"temperature": 9}}},
		"options.repeat_penalty":  {"/api/chat", 400, object{"messages": hello, "options": object{"repeat_penalty": "x"}}},
		"options.temprature":      {"/api/chat", 400, object{"messages": hello, "options": object{"temprature": 1}}},
		"options.mirostat":        {"/api/chat", 400, object{"messages": hello, "options": object{"mirostat": 2}}},
		"format":                  {"/api/chat", 400, object{"messages": hello, "format": "xml"}},
		"messages[0].images":      {"/api/chat", 400, object{"messages": []object{{"role": "user", "content": "x", "images": []string{"aaaa"}}}}},
		"messages[0].role":        {"/api/chat", 400, object{"messages": []object{{"role": "robot", "content": "x"}}}},
		"arguments":               {"/api/chat", 400, object{"messages": []object{{"role": "assistant", "content": "", "tool_calls": []object{{"function": object{"name": "f", "arguments": "x"}}}}}}},
		"think: not supported":    {"/api/chat", 400, object{"messages": hello, "think": true}},
		"think: not supported by": {"/api/generate", 400, object{"prompt": "x", "think": "high"}},
		"options.repeat_last_n":   {"/api/chat", 400, object{"messages": hello, "options": object{"repeat_last_n": -2}}},
		"think: not supported in": {"/api/generate", 400, object{"prompt": "x", "raw": true, "think": true}},
		"suffix":                  {"/api/generate", 400, object{"prompt": "x", "suffix": "y"}},
		"template":                {"/api/generate", 400, object{"prompt": "x", "template": "y"}},
		"context":                 {"/api/generate", 400, object{"prompt": "x", "context": []int{1}}},
		"maximum context length":  {"/api/generate", 400, object{"prompt": strings.Repeat("word ", 4000)}},
		"no embeddings":           {"/api/embed", 501, object{"input": "x"}},
		"has no embeddings":       {"/api/embeddings", 501, object{"prompt": "x"}},
		"does not exist":          {"/api/show", 404, object{"model": "other"}},
		"/api/pull":               {"/api/pull", 404, object{}},
	} {
		if test.body["model"] == nil {
			test.body["model"] = "needle/llama"
		}
		data, err := json.Marshal(test.body)
		require.NoError(t, err)
		status, text, _ := ts.do(t, "POST", test.path, string(data))
		require.Equal(t, test.status, status, text)
		var answer map[string]string // nothing but a text
		require.NoError(t, json.Unmarshal([]byte(text), &answer), text)
		require.Contains(t, answer["error"], want)
	}
	for _, more := range []object{{"system": "y"}, {"template": "y"}, {"context": []int{1}}} {
		more["model"], more["prompt"], more["raw"] = "needle/llama", "x", true
		status, text, _ := ts.do(t, "POST", "/api/generate", mustJSON(t, more))
		require.Equal(t, http.StatusBadRequest, status, text)
		require.Contains(t, text, "raw mode does not support template, system, or context")
	}
	for _, path := range []string{"/api/chat", "/api/generate", "/api/show", "/api/embed", "/api/embeddings"} {
		status, text, _ := ts.do(t, "POST", path, "{}")
		require.Equal(t, http.StatusBadRequest, status, text)
		require.Contains(t, text, `"model is required"`)
	}
	status, text, _ := ts.do(t, "POST", "/api/chat", `{"model":"needle/llama","messages":[],"keep_alive":-1}`)
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, text, `"done_reason":"load"`)
	// Their clients name no type of content; pages of other sites are refused all the same.
	status, text, _ = ts.do(t, "POST", "/api/generate", `{"model":"needle/llama","prompt":""}`, "Content-Type", "")
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, text, `"done_reason":"load"`)
	status, _, _ = ts.do(t, "POST", "/api/generate", `{}`, "Content-Type", "", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, status)
	status, _, _ = ts.do(t, "POST", "/v1/completions", `{}`, "Content-Type", "")
	require.Equal(t, http.StatusUnsupportedMediaType, status)
}

func TestOllamaModels(t *testing.T) {
	ts := embedder(t)
	var show struct {
		Capabilities []string
		Info         map[string]any `json:"model_info"`
	}
	ts.post(t, "/api/show", object{"name": "needle/llama"}, &show)
	require.Equal(t, []string{"embedding"}, show.Capabilities)
	require.EqualValues(t, 2048, show.Info["llama.context_length"])
	for _, path := range []string{"/api/tags", "/api/ps"} {
		var list struct {
			Models []struct {
				Name, Model, Digest string
				Size                int64
			}
		}
		_, text, _ := ts.do(t, "GET", path, "")
		decode(t, text, &list)
		require.Equal(t, "needle/llama", list.Models[0].Name)
		require.Equal(t, ts.m.WeightBytes(), list.Models[0].Size)
	}
	var vectors struct {
		Embeddings [][]float32
		Prompt     int `json:"prompt_eval_count"`
	}
	ts.post(t, "/api/embed", object{"model": "needle/llama", "input": []string{"one", "two"}}, &vectors)
	require.Len(t, vectors.Embeddings, 2)
	require.Positive(t, vectors.Prompt)
	var one struct{ Embedding []float32 }
	ts.post(t, "/api/embeddings", object{"model": "needle/llama", "prompt": "two"}, &one)
	require.Equal(t, vectors.Embeddings[1], one.Embedding)
	for _, prompt := range []any{[]string{"one", "two"}, []int{1, 2}} {
		status, text, _ := ts.do(t, "POST", "/api/embeddings", mustJSON(t, object{"model": "needle/llama", "prompt": prompt}))
		require.Equal(t, http.StatusBadRequest, status, text)
		require.Contains(t, text, "prompt: found a list, expected a string")
	}
}
