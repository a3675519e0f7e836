package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

func newAccount(limit int64, shared bool) *account {
	return &account{all: engine.NewAccount(limit), shared: func() bool { return shared }, by: map[string]int64{}}
}

// TestAccount: what is taken never exceeds the limit, answers take at most half of it, and
// where it is shared nobody takes more than is left for others; all of it comes back.
func TestAccount(t *testing.T) {
	a := newAccount(100, false)
	c := &charge{a: a}
	require.NoError(t, c.take(50, forAnswers))
	require.ErrorContains(t, c.take(1, forAnswers), "hold 1 more bytes for a request: requests in progress hold 50, the limit is 50")
	require.NoError(t, c.take(50, forRequests))
	other := &charge{a: a, owner: "b"}
	err := other.take(1, forRequests)
	require.ErrorContains(t, err, "hold 100, the limit is 100")
	require.Equal(t, 503, err.(*apiError).status)
	c.give(30)
	c.give(1000) // not more than there is
	require.Zero(t, a.used)
	require.Empty(t, a.by)

	a = newAccount(100, true)
	c, other = &charge{a: a, owner: "a"}, &charge{a: a, owner: "b"}
	err = c.take(51, forRequests)
	require.ErrorContains(t, err, "the requests of this API key hold 0, those of all keys 0 of 100")
	require.Equal(t, 429, err.(*apiError).status)
	require.NoError(t, c.take(50, forRequests))
	require.Error(t, c.take(1, forRequests))
	require.NoError(t, other.take(25, forRequests))
	require.Error(t, other.take(1, forRequests))
	c.end()
	other.end()
	require.Zero(t, a.used)
	require.Empty(t, a.by)

	// Whatever happens, the sums are right.
	a = newAccount(1<<20, true)
	charges := make([]*charge, 8)
	for i := range charges {
		charges[i] = &charge{a: a, owner: fmt.Sprint(i % 3)}
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for range 10_000 {
				switch c := charges[r.IntN(len(charges))]; r.IntN(8) {
				case 0:
					c.end()
				case 1, 2, 3:
					c.give(r.Int64N(1 << 14))
				default:
					_ = c.take(r.Int64N(1<<15), 1+r.Int64N(2))
				}
				a.mu.Lock()
				sum := int64(0)
				for _, n := range a.by {
					sum += n
				}
				if sum != a.used || sum > a.all.Limit() || sum < 0 {
					t.Errorf("%d bytes by owner, %d together, the limit is %d", sum, a.used, a.all.Limit())
				}
				a.mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, c := range charges {
		c.end()
	}
	require.Zero(t, a.used)
	require.Empty(t, a.by)
}

// TestBodiesAreCounted: bodies that would take more memory than there is are refused as they
// come, whatever they are and whatever they say of their length, and give it back.
func TestBodiesAreCounted(t *testing.T) {
	const limit = 12 << 20
	ts := start(t, Options{Requests: engine.NewAccount(limit)}, engine.Options{})
	large := strings.Repeat("x", limit/bodyCost+1)
	var form bytes.Buffer
	form.WriteString("--b\r\nContent-Disposition: form-data; name=\"text\"\r\n\r\n" + large + "\r\n--b--\r\n")
	for _, test := range []struct{ path, kind, body string }{
		{"/v1/chat/completions", "application/json", mustJSON(t, ask(large, nil))},
		{"/v1/completions", "application/json", mustJSON(t, object{"model": "needle/llama", "prompt": large})},
		{"/tokenize", "application/json", mustJSON(t, object{"prompt": large})},
		{"/v1/documents", "multipart/form-data; boundary=b", form.String()},
	} {
		for _, length := range []int64{int64(len(test.body)), -1} { // in chunks
			r, err := http.NewRequest("POST", ts.URL+test.path, io.NopCloser(strings.NewReader(test.body)))
			require.NoError(t, err)
			r.ContentLength = length
			r.Header.Set("Content-Type", test.kind)
			resp, err := ts.Client().Do(r)
			require.NoError(t, err)
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, 503, resp.StatusCode, "%s: %s", test.path, text)
			require.Contains(t, string(text), "the limit is 12582912")
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
		}
	}
	ts.end()
	require.Zero(t, ts.s.account.used)
}

// TestAnswersAreCounted: an answer that is collected takes no more memory than there is,
// in every format, and one that is streamed and read does not need it.
func TestAnswersAreCounted(t *testing.T) {
	ts := start(t, Options{Requests: engine.NewAccount(1 << 18)}, engine.Options{})
	for path, r := range map[string]object{
		"/v1/chat/completions": ask("x", object{"max_tokens": 80, "ignore_eos": true, "n": 4, "logprobs": true, "top_logprobs": 20}),
		"/v1/completions":      {"prompt": "x", "max_tokens": 80, "ignore_eos": true, "n": 4, "logprobs": 20},
		"/v1/responses":        {"input": "x", "max_output_tokens": 240, "ignore_eos": true, "include": []string{"message.output_text.logprobs"}, "top_logprobs": 20},
	} {
		r["model"] = "needle/llama"
		status, text, _ := ts.do(t, "POST", path, mustJSON(t, r))
		require.Equal(t, 503, status, "%s: %.300s", path, text)
		require.Contains(t, text, "the limit is 131072")
		require.Zero(t, ts.s.account.used)
		if path != "/v1/responses" { // its last event repeats the answer
			require.NotEmpty(t, ts.lines(t, path, r))
		}
	}
}

// stuckWriter is a client that does not read until it is released.
type stuckWriter struct {
	*httptest.ResponseRecorder
	read chan struct{}
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.read
	return w.ResponseRecorder.Write(p)
}

// TestSlowReader: a client that does not read does not keep its request in the engine, and
// gets all of the answer all the same.
func TestSlowReader(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxRunning: 2})
	for path, r := range map[string]object{
		"/v1/chat/completions": ask("x", object{"max_tokens": 150, "ignore_eos": true, "n": 2, "logprobs": true, "top_logprobs": 5}),
		"/v1/completions":      {"prompt": "x", "max_tokens": 150, "ignore_eos": true, "n": 2, "logprobs": 5},
		"/v1/messages":         {"messages": []object{{"role": "user", "content": "x"}}, "max_tokens": 300, "ignore_eos": true},
		"/v1/responses":        {"input": "x", "max_output_tokens": 300, "ignore_eos": true},
	} {
		r["model"], r["stream"] = "needle/llama", true
		w := &stuckWriter{httptest.NewRecorder(), make(chan struct{})}
		q := httptest.NewRequest("POST", path, strings.NewReader(mustJSON(t, r)))
		q.Header.Set("Content-Type", "application/json")
		over := make(chan struct{})
		go func() {
			defer close(over)
			ts.s.Handler().ServeHTTP(w, q)
		}()
		for ts.s.models.find("").loaded.e.Stats().Running == 0 {
			select {
			case <-over:
				t.Fatalf("%.300s", w.Body.String())
			default:
			}
		}
		ts.post(t, "/v1/chat/completions", ask("x", object{"max_tokens": 1, "n": 2}), &object{})
		require.Zero(t, ts.s.models.find("").loaded.e.Stats().Running, path)
		close(w.read)
		<-over
		end := w.Body.String()[max(0, w.Body.Len()-100):]
		require.True(t, strings.Contains(end, "[DONE]") || strings.Contains(w.Body.String(), "event: message_stop") || strings.Contains(w.Body.String(), "event: response.incomplete"), "%s: %s", path, end)
	}
	require.Zero(t, ts.s.account.used)
}

// TestSlowReaderWithoutMemory: where there is no memory for what a client does not read,
// its stream ends, and others go on.
func TestSlowReaderWithoutMemory(t *testing.T) {
	s := New(Options{Requests: engine.NewAccount(1)})
	w := &stuckWriter{httptest.NewRecorder(), make(chan struct{})}
	out := newEventStream(w, requestOf(s, ""))
	out.held = writeTimeout - 1
	line := strings.Repeat("x", 1000)
	n := 0
	for ; out.err == nil; n++ {
		out.line(line)
	}
	require.ErrorIs(t, out.err, errSlowClient)
	require.Equal(t, 1+freeEvents/(len(line)+2), n)
	close(w.read)
	require.ErrorIs(t, out.close(), errSlowClient)

	out = newEventStream(httptest.NewRecorder(), requestOf(s, ""))
	for range 1000 {
		out.line(line)
	}
	require.NoError(t, out.err, "a client that reads needs no memory")
	require.NoError(t, out.close())
	require.Zero(t, s.account.used)
}

// TestTokensAreCounted: a request for tokens takes no more memory than is counted for it,
// whatever it asks for, and is refused where there is less.
func TestTokensAreCounted(t *testing.T) {
	ts := start(t, Options{Requests: engine.NewAccount(1 << 30)}, engine.Options{})
	v := ts.s.models.find("").loaded
	text := strings.Repeat("word and 12, more; ", 1<<16)
	requests := map[string]object{
		"/tokenize":                 {"prompt": text, "return_token_strs": true},
		"/v1/messages/count_tokens": {"model": "needle/llama", "messages": []object{{"role": "user", "content": text}}},
	}
	long := int32(0) // the token with the longest text
	for id := range int32(v.m.Config().Vocab) {
		if len(v.tok.TokenBytes(id)) > len(v.tok.TokenBytes(long)) {
			long = id
		}
	}
	tokens := make([]int32, 1<<18)
	for i := range tokens {
		tokens[i] = long
	}
	requests["/detokenize"] = object{"tokens": tokens}
	for path, r := range requests {
		body := mustJSON(t, r)
		send := func() (peak int64) {
			runtime.GC()
			before, most := heap(), int64(0)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						runtime.GC()
						most = max(most, heap()-before)
					}
				}
			}()
			q := httptest.NewRequest("POST", path, strings.NewReader(body))
			q.Header.Set("Content-Type", "application/json")
			w := &discardWriter{h: http.Header{}}
			ts.s.Handler().ServeHTTP(w, q)
			close(stop)
			<-stopped
			require.Equal(t, 200, w.status, path)
			return most
		}
		send()
		peak := send()
		t.Logf("%s: %.1f bytes for each of the body's", path, float64(peak)/float64(len(body)))
		require.Less(t, peak, int64(len(body))*(bodyCost+tokenCost), path)
	}
	small := start(t, Options{Requests: engine.NewAccount(int64(len(text)) * bodyCost * 3)}, engine.Options{})
	for path, r := range requests {
		status, text, _ := small.do(t, "POST", path, mustJSON(t, r))
		require.Equal(t, 503, status, "%s: %.200s", path, text)
	}
	require.Zero(t, small.s.account.used)
}

// TestStructureIsCounted: what is small as text and large as values is counted as values, or
// refused where they would have to be made all at once.
func TestStructureIsCounted(t *testing.T) {
	ts := start(t, Options{Requests: engine.NewAccount(12 << 20)}, engine.Options{})
	calls := func(n int) object {
		return ask("", object{"messages": []object{{"role": "user", "content": "x"}, {"role": "assistant",
			"tool_calls": slices.Repeat([]object{{"function": object{"name": "a", "arguments": "{}"}}}, 16)},
			{"role": "user", "content": strings.Repeat("[", n)}}, "parts": slices.Repeat([]object{{}}, n)})
	}
	status, text, _ := ts.do(t, "POST", "/v1/chat/completions/render", mustJSON(t, calls(1000)))
	require.Equal(t, 200, status, text)
	status, text, _ = ts.do(t, "POST", "/v1/chat/completions/render", mustJSON(t, calls(12<<20/partCost)))
	require.Equal(t, 503, status, text)
	status, text, _ = ts.do(t, "POST", "/v1/chat/completions/render", mustJSON(t, ask("", object{"messages": []object{
		{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": []object{{"function": object{"name": "a", "arguments": `{"a":[` + strings.Repeat("{},", 12<<20/partCost) + `0]}`}}}}}})))
	require.Equal(t, 503, status, text)

	large := start(t, Options{}, engine.Options{})
	list := `{"a":[` + strings.Repeat("0,", maxEmbedded/2) + `0]}`
	for field, r := range map[string]object{
		"chat_template_kwargs":                         {"chat_template_kwargs": json.RawMessage(list)},
		"kv_compression":                               {"context": "x", "kv_compression": json.RawMessage(list)},
		"messages[0].tool_calls[0].function.arguments": {"messages": []object{{"role": "assistant", "tool_calls": []object{{"function": object{"name": "f", "arguments": list}}}}}},
	} {
		status, text, _ := large.do(t, "POST", "/v1/chat/completions", mustJSON(t, ask("x", r)))
		require.Equal(t, 400, status, text)
		require.Contains(t, text, fmt.Sprintf("%s: found %d bytes, expected at most %d", field, len(list), maxEmbedded))
	}
}

// TestDocumentsInAnswersAreCounted: documents are shown only as far as there is memory for
// what clients may leave unread, and their names are short.
func TestDocumentsInAnswersAreCounted(t *testing.T) {
	ts := start(t, Options{Requests: engine.NewAccount(1 << 20)}, engine.Options{})
	system := strings.Repeat("x ", 50)
	var doc document
	ts.post(t, "/v1/documents", object{"text": "The end.", "name": "n", "system": system}, &doc)
	var list struct{ Data []document }
	_, text, _ := ts.do(t, "GET", "/v1/documents", "")
	decode(t, text, &list)
	require.Equal(t, system, list.Data[0].System)
	status, text, _ := ts.do(t, "POST", "/v1/documents", mustJSON(t, object{"text": "The end.", "name": strings.Repeat("n", maxName+1)}))
	require.Equal(t, 400, status, text)
	require.Contains(t, text, "name: found 1025 bytes, expected at most 1024")

	c := &charge{a: &ts.s.account, owner: "other"}
	require.NoError(t, c.take(1<<19-100, forAnswers))
	defer c.end()
	for _, path := range []string{"/v1/documents", "/v1/documents/" + doc.ID, "/v1/documents/" + doc.ID + "/tokens"} {
		status, text, _ := ts.do(t, "GET", path, "")
		require.Equal(t, 503, status, text)
		require.Contains(t, text, "memory_limit")
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// discardWriter keeps nothing but the status of an answer.
type discardWriter struct {
	h      http.Header
	status int
}

func (w *discardWriter) Header() http.Header { return w.h }

func (w *discardWriter) WriteHeader(status int) { w.status = status }

func (w *discardWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = 200
	}
	return len(p), nil
}

// TestOneBound: what engines take of the account is not there for bodies, and comes back.
func TestOneBound(t *testing.T) {
	all := engine.NewAccount(100)
	a := &account{all: all, shared: func() bool { return false }, by: map[string]int64{}}
	c := &charge{a: a}
	require.NoError(t, all.Take(70)) // an engine's
	require.NoError(t, c.take(30, forRequests))
	require.ErrorContains(t, c.take(1, forRequests), "requests in progress hold 100, the limit is 100")
	var large *engine.MemoryError
	require.ErrorAs(t, all.Take(1), &large)
	all.Give(70)
	require.NoError(t, c.take(50, forRequests))
	c.end()
	require.Zero(t, all.Used())
}
