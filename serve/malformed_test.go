package serve

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// malformed returns requests that are mistakes of the client, one way or another.
func malformed() [][]string { // method, path, body, headers…
	var out [][]string
	add := func(method, path, body string, headers ...string) {
		out = append(out, append([]string{method, path, body}, headers...))
	}
	posts := []string{
		"/v1/chat/completions", "/v1/completions", "/v1/chat/completions/render", "/v1/completions/render",
		"/tokenize", "/detokenize", "/v1/documents",
	}
	for _, path := range posts {
		for _, body := range []string{
			"", "{", "[]", "null", "7", `"x"`, "{]", `{"a":1,}`, `{} {}`, "{}x", "\xff\xfe", `{"model":"` + "\xff" + `"}`,
			`{"model":1}`, `{"model":[]}`, `{"model":"nothing"}`, `{"model":"a","model":"b"}`,
			strings.Repeat("[", 100_000), `{"messages":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
			`{"model":"needle/llama"}`, `{"model":"needle/llama","messages":7,"prompt":{},"text":7,"tokens":7}`,
			`{"model":"needle/llama","messages":[{"role":"king","content":"x"}],"prompt":["a",1],"text":[],"tokens":["a"]}`,
			`{"model":"needle/llama","messages":[],"prompt":[],"text":"","tokens":[-1]}`,
			`{"model":"needle/llama","messages":[1],"prompt":[[1.5]],"text":null,"tokens":[1e400]}`,
		} {
			add("POST", path, body)
		}
		add("POST", path, "{}", "Content-Type", "text/plain")
		add("POST", path, "{}", "Content-Type", "application/json;=")
		add("POST", path, "{}", "Content-Encoding", "gzip")
		add("POST", path, `{"model":"`+strings.Repeat("x", 5000)+`"}`)
		add("POST", path, "{}", "Sec-Fetch-Site", "cross-site")
		add("PUT", path, "{}")
	}
	ok := `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"prompt":"x","text":"x","max_tokens":1,`
	for _, field := range []string{
		`"temperature":-1`, `"temperature":"hot"`, `"temperature":` + strings.Repeat("9", 400), `"top_p":2`, `"top_k":1.5`, `"min_p":-0.1`,
		`"n":0`, `"n":1000000`, `"n":-1`, `"seed":"x"`, `"stop":""`, `"stop":[1]`, `"stop":{}`, `"logit_bias":{"x":1}`, `"logit_bias":{"1":1000}`, `"logit_bias":[]`,
		`"presence_penalty":3`, `"frequency_penalty":-3`, `"repetition_penalty":0`, `"stop_token_ids":[99999999]`, `"stream_options":{"include_usage":true}`,
		`"kv_compression":7`, `"kv_compression":{"ratio":2}`, `"kv_compression":{"ratio":0.5,"metric":"none"}`, `"kv_compression":{"nothing":1}`, `"kv_compression":{"profile":"none"}`,
		`"context":"c","kv_compression":{"ratio":0.5,"allocator":"lukv"}`, `"context":7`, `"max_tokens":-1`, `"max_tokens":99999999`, `"stream":"yes"`,
	} {
		add("POST", "/v1/chat/completions", ok+field+"}")
		add("POST", "/v1/completions", ok+field+"}")
	}
	add("POST", "/v1/chat/completions", ok+`"document":"doc_none"}`)
	add("POST", "/v1/chat/completions", ok+`"context":"x","document":"y"}`)
	add("POST", "/v1/completions", ok+`"logprobs":100}`)
	long, _ := json.Marshal(ask(strings.Repeat("word ", 3000), nil))
	add("POST", "/v1/chat/completions", string(long))
	for _, path := range []string{"/nowhere", "/v1/models/none", "/v1/documents/none", "/v1/documents/none/kept", "/v1/documents/none/tokens", "/v1/documents/%00", "/v1/chat/completions", "/tokenize"} {
		add("GET", path, "")
		add("DELETE", path, "")
	}
	add("GET", "/v1/models", "", "Host", "elsewhere.example")
	return out
}

// TestMalformed sends 200 malformed requests a second: every one is answered with 4xx
// and an error of the protocol, and neither memory nor goroutines grow. LUKV_MALFORMED
// says for how long, such as 1m.
func TestMalformed(t *testing.T) {
	duration := 300 * time.Millisecond
	if text := os.Getenv("LUKV_MALFORMED"); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	ts := start(t, Options{MaxBody: 1 << 20, Hosts: []string{"127.0.0.1"}}, engine.Options{MaxBytes: 64 << 20})
	requests := malformed()
	send := func(q []string) {
		status, text, h := ts.do(t, q[0], q[1], q[2], q[3:]...)
		what := fmt.Sprintf("%s %s %.200q %q: %s", q[0], q[1], q[2], q[3:], text)
		require.True(t, status >= 400 && status < 500, "%d: %s", status, what)
		require.Equal(t, "application/json", h.Get("Content-Type"), what)
		var answer struct{ Error map[string]any }
		require.NoError(t, json.Unmarshal([]byte(text), &answer), what)
		for _, key := range []string{"message", "type", "param", "code"} {
			require.Contains(t, answer.Error, key, what)
		}
		require.NotEmpty(t, answer.Error["message"], what)
	}
	grown := func() (heap int64, goroutines int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), runtime.NumGoroutine()
	}
	for _, q := range requests { // each of them once, to fill pools and caches
		send(q)
	}
	heap, goroutines := grown()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	n := 0
	for over := time.After(duration); ; n++ {
		select {
		case <-tick.C:
			send(requests[n%len(requests)])
			continue
		case <-over:
		}
		break
	}
	heapNow, goroutinesNow := grown()
	t.Logf("%d requests in %v; heap %d bytes, then %d; goroutines %d, then %d", n, duration, heap, heapNow, goroutines, goroutinesNow)
	require.Less(t, heapNow-heap, int64(4<<20), "the heap grows")
	require.LessOrEqual(t, goroutinesNow, goroutines+4)
	require.Zero(t, ts.metric(t, "lukv:kv_cache_bytes"))
	status, text, _ := ts.do(t, "POST", "/v1/chat/completions", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"max_tokens":1}`)
	require.Equal(t, 200, status, text)
}

// TestSlowBody: a client that does not send the body it announced gets an answer after a
// while and holds nothing, whether or not the body would be read.
func TestSlowBody(t *testing.T) {
	s := New(Options{Keys: []string{"k"}})
	s.bodyTime = 20 * time.Millisecond
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	for _, test := range []struct {
		head string
		want int
	}{
		{"POST /tokenize HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Type: application/json", 408},
		{"POST /tokenize HTTP/1.1\r\nContent-Type: application/json", 401},
		{"POST /tokenize HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Type: text/plain", 415},
		{"POST /nowhere HTTP/1.1", 404},
		{"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer k", 200},
		{"GET /health HTTP/1.1", 200},
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(ts.URL, "http://"))
		require.NoError(t, err)
		defer c.Close()
		fmt.Fprintf(c, "%s\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", test.head)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err, test.head)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, test.want, resp.StatusCode, "%s: %s", test.head, text)
		if test.want == 408 {
			require.Contains(t, string(text), "longer than allowed")
		}
	}
}

// TestSurrogates: escapes that are no characters are refused by name, wherever they are;
// pairs are characters, and what only looks like an escape is text.
func TestSurrogates(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	send := func(prompt, more string) (int, string) {
		status, text, _ := ts.do(t, "POST", "/tokenize", `{"prompt":"`+prompt+`"`+more+`,"return_token_strs":true}`)
		return status, text
	}
	for escape, text := range map[string]string{
		`\ud83d\ude00`: "\U0001F600", `\uD83D\uDE00\ud83d\ude00`: "\U0001F600\U0001F600", `\\ud800`: `\\ud800`, `\\\ud83d\ude00`: "\\\\\U0001F600", `\uFFFD`: "\uFFFD", `\"\u0041`: `\"A`,
	} {
		status, got := send(escape, "")
		require.Equal(t, 200, status, got)
		_, want := send(text, "")
		require.Equal(t, want, got, escape)
	}
	for escape, half := range map[string]string{
		`\ud800`: `\ud800`, `\uDFFFx`: `\uDFFF`, `a\ud83d`: `\ud83d`, `\ud83d\ud83d\ude00`: `\ud83d`, `\ude00\ud83d`: `\ude00`,
		`\ud83d\\ude00`: `\ud83d`, `\ud83d\n\ude00`: `\ud83d`, `\ud83d\ude00\ude00`: `\ude00`, `\\\ud800`: `\ud800`,
	} {
		status, text := send(escape, "")
		require.Equal(t, 400, status, text)
		var e struct {
			Error struct{ Message, Param string }
		}
		decode(t, text, &e)
		require.Equal(t, "prompt", e.Error.Param)
		require.Contains(t, e.Error.Message, half+", an unpaired surrogate")
	}
	for more, param := range map[string]string{
		`,"user":["\ud800"]`: `"user"`, `,"a":{"b":[{"\ud800":1}]}`: `"a"`, `,"\ud800":1`: "null", `,"\ud800":1,"\ud801":2`: "null",
	} {
		status, text := send("x", more)
		require.Equal(t, 400, status, text)
		require.Contains(t, text, `unpaired surrogate`)
		require.Contains(t, text, `"param":`+param)
	}
	for param, more := range map[string]object{ // JSON within strings
		"messages[0].tool_calls[0].function.arguments": {"messages": []object{{"role": "assistant", "tool_calls": []object{{"id": "1", "function": object{"name": "f", "arguments": `{"a":"\ud800"}`}}}}}},
		"guided_json": {"guided_json": `{"const":"\ud800"}`},
	} {
		status, text, _ := ts.do(t, "POST", "/v1/chat/completions", mustJSON(t, ask("x", more)))
		require.Equal(t, 400, status, text)
		require.Contains(t, text, `"param":"`+param+`"`)
	}
}
