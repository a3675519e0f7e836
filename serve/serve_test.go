package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lukv/lukv/model/sampling"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" { // checking every change would be measured, too
		os.Setenv("LUKV_CHECK", "1")
	}
	os.Exit(m.Run())
}

// testServer is a server with the embedded model.
type testServer struct {
	*httptest.Server
	s *Server
	m *model.Model

	end func()
}

func start(t testing.TB, o Options, eo engine.Options) *testServer {
	m, err := builtin.Open(context.Background())
	require.NoError(t, err)
	return serveModel(t, m, o, eo)
}

func serveModel(t testing.TB, m *model.Model, o Options, eo engine.Options) *testServer {
	s := New(o)
	require.NoError(t, s.Add("needle/llama", m, eo))
	return serveTest(t, s, m)
}

// serveTest serves until the end of the test, or until end is called.
func serveTest(t testing.TB, s *Server, m *model.Model) *testServer {
	ts := &testServer{Server: httptest.NewServer(s.Handler()), s: s, m: m}
	ts.end = sync.OnceFunc(func() {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		s.Drain(done)
		ts.Close()
		m.Close()
	})
	t.Cleanup(ts.end)
	return ts
}

// do sends a request and returns status and body.
func (ts *testServer) do(t testing.TB, method, path, body string, headers ...string) (int, string, http.Header) {
	r, err := http.NewRequest(method, ts.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	if method == "POST" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	resp, err := ts.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	ts.checkAnswer(t, r, resp.StatusCode, resp.Header, string(data))
	return resp.StatusCode, string(data), resp.Header
}

// post sends a request that must succeed, and decodes the answer.
func (ts *testServer) post(t testing.TB, path string, body any, into any) {
	data, err := json.Marshal(body)
	require.NoError(t, err)
	status, text, _ := ts.do(t, "POST", path, string(data))
	require.Less(t, status, 300, text)
	require.NoError(t, json.Unmarshal([]byte(text), into), text)
}

func decode(t testing.TB, text string, into any) {
	require.NoError(t, json.Unmarshal([]byte(text), into), text)
}

func ask(text string, more object) object {
	r := object{"model": "needle/llama", "messages": []object{{"role": "user", "content": text}}}
	for k, v := range more {
		r[k] = v
	}
	return r
}

// chunks reads a stream of a chat.
func (ts *testServer) chunks(t testing.TB, path string, body object) []chatAnswer {
	var out []chatAnswer
	for _, text := range ts.lines(t, path, body) {
		var c chatAnswer
		decode(t, text, &c)
		out = append(out, c)
	}
	return out
}

// lines returns the data of a stream, to [DONE].
func (ts *testServer) lines(t testing.TB, path string, body object) []string {
	body["stream"] = true
	data, err := json.Marshal(body)
	require.NoError(t, err)
	resp, err := ts.Client().Post(ts.URL+path, "application/json", bytes.NewReader(data))
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	var out []string
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			require.True(t, lines.Text() == "" || strings.HasPrefix(lines.Text(), ":"), lines.Text())
			continue
		}
		if text == "[DONE]" {
			return out
		}
		checkEvent(t, "POST "+path, "text/event-stream", text)
		require.NotContains(t, text, `"error"`, "not even null")
		out = append(out, text)
	}
	t.Fatal("the stream has no end")
	return nil
}

func sample(n int) builtin.Sample {
	for _, s := range builtin.Samples() {
		if len(s.Context) < 1500 {
			if n == 0 {
				return s
			}
			n--
		}
	}
	panic("no sample")
}

// TestStreamIsTheAnswer: the pieces of a stream add up to the answer without streaming.
func TestStreamIsTheAnswer(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	for i, more := range []object{
		{"max_tokens": 20},
		{"max_tokens": 20, "n": 3, "temperature": 1.0, "seed": 7},
		{"max_tokens": 30, "stop": []string{"e "}, "temperature": 0.5, "seed": -1},
		{"max_completion_tokens": 12, "logprobs": true, "top_logprobs": 3},
		{"max_tokens": 25, "context": sample(0).Context, "kv_compression": object{"ratio": 0.5, "metric": "keydiff"}},
		{"max_tokens": 15, "logit_bias": object{"300": 50.0}, "presence_penalty": 1.0, "frequency_penalty": 0.5},
	} {
		r := ask(sample(i).Context+"\n\n"+sample(i).Question, more)
		var whole chatAnswer
		ts.post(t, "/v1/chat/completions", r, &whole)
		n := max(1, len(whole.Choices))
		r["stream_options"] = object{"include_usage": true}
		texts, finishes, roles := make([]string, n), make([]int, n), make([]int, n)
		probs := make([][]chatLogProb, n)
		chunks := ts.chunks(t, "/v1/chat/completions", r)
		last := chunks[len(chunks)-1]
		require.Empty(t, last.Choices)
		require.NotNil(t, last.Usage)
		for _, c := range chunks[:len(chunks)-1] {
			require.Equal(t, "chat.completion.chunk", c.Object)
			require.Equal(t, chunks[0].ID, c.ID)
			require.Nil(t, c.Usage)
			require.Len(t, c.Choices, 1)
			ch := c.Choices[0]
			if ch.Delta.Role != "" {
				roles[ch.Index]++
				require.Empty(t, texts[ch.Index])
			}
			if ch.Delta.Content != nil {
				texts[ch.Index] += *ch.Delta.Content
			}
			if ch.LogProbs != nil {
				probs[ch.Index] = append(probs[ch.Index], ch.LogProbs.Content...)
			}
			if ch.Finish != nil {
				finishes[ch.Index]++
				require.Equal(t, whole.Choices[ch.Index].Finish, ch.Finish)
			}
		}
		for k, ch := range whole.Choices {
			require.Equal(t, *ch.Message.Content, texts[k])
			require.Equal(t, []int{1, 1}, []int{roles[k], finishes[k]})
			if ch.LogProbs != nil {
				require.Equal(t, ch.LogProbs.Content, probs[k])
				require.Len(t, probs[k][0].Top, 3)
			}
		}
		require.Equal(t, whole.Usage.Prompt, last.Usage.Prompt)
		require.Equal(t, whole.Usage.Completion, last.Usage.Completion)
		if more["kv_compression"] != nil {
			require.Greater(t, whole.Cache.Ratio, 0.1)
			require.Equal(t, whole.Cache, last.Cache)
		}
	}
}

// TestStreamedEcho: a prompt that ends within a character is echoed alike with and
// without streaming, and so are the offsets of the tokens in the text.
func TestStreamedEcho(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	tok, err := ts.m.Tokenizer()
	require.NoError(t, err)
	part := int32(0)
	for b := tok.TokenBytes(part); len(b) != 1 || b[0] < 0xe2 || b[0] > 0xef; b = tok.TokenBytes(part) {
		part++ // to the first byte of a three-byte character
	}
	prompt := append(tok.Encode("One of", tokenizer.EncodeOptions{}), part)
	for _, n := range []int{0, 4} {
		r := object{"model": "needle/llama", "prompt": prompt, "max_tokens": n, "n": 2, "echo": true, "logprobs": 0, "temperature": 1.0, "seed": 3}
		var whole textAnswer
		ts.post(t, "/v1/completions", r, &whole)
		require.Contains(t, whole.Choices[0].Text, "One of\uFFFD")
		texts, offsets := make([]string, 2), make([][]int, 2)
		for _, text := range ts.lines(t, "/v1/completions", r) {
			var c textAnswer
			decode(t, text, &c)
			for _, ch := range c.Choices {
				texts[ch.Index] += ch.Text
				if ch.LogProbs != nil {
					offsets[ch.Index] = append(offsets[ch.Index], ch.LogProbs.Offsets...)
				}
			}
		}
		for i, ch := range whole.Choices {
			require.Equal(t, ch.Text, texts[i])
			require.Equal(t, ch.LogProbs.Offsets, offsets[i])
			if n > 0 {
				require.Equal(t, len([]rune("One of"))+1, ch.LogProbs.Offsets[len(prompt)], "the answer begins behind what is left of the prompt")
			}
		}
	}
}

// TestConcurrentStreams: 32 streams at once, each equal to its own answer alone.
func TestConcurrentStreams(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 24 << 20})
	request := func(i int) object {
		s := sample(i % 6)
		r := ask(s.Question, object{"max_tokens": 6 + i%20, "temperature": float64(i % 2), "seed": i, "context": s.Context, "logprobs": true})
		if i%3 > 0 {
			r["kv_compression"] = object{"ratio": 0.4 * float64(i%3), "metric": object{"name": "snapkv"}}
		}
		return r
	}
	want := make([][]chatChoice, 32)
	for i := range want {
		var a chatAnswer
		ts.post(t, "/v1/chat/completions", request(i), &a)
		want[i] = a.Choices
	}
	var wg sync.WaitGroup
	for i := range want {
		wg.Go(func() {
			text, probs := "", []chatLogProb{}
			for _, c := range ts.chunks(t, "/v1/chat/completions", request(i)) {
				for _, ch := range c.Choices {
					if ch.Delta.Content != nil {
						text += *ch.Delta.Content
					}
					if ch.LogProbs != nil {
						probs = append(probs, ch.LogProbs.Content...)
					}
				}
			}
			if w := want[i][0]; text != *w.Message.Content || fmt.Sprint(probs) != fmt.Sprint(w.LogProbs.Content) {
				t.Errorf("stream %d: %q, alone %q", i, text, *w.Message.Content)
			}
		})
	}
	wg.Wait()
}

// TestEvaluation does what lm-eval's local-completions does, and compares with sums from
// the library.
func TestEvaluation(t *testing.T) {
	ctx := context.Background()
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	tok, err := ts.m.Tokenizer()
	require.NoError(t, err)
	for i := range 3 {
		s := sample(i)
		head, cont := []int32{}, []int32{}
		var tokens struct {
			Tokens []int32 `json:"tokens"`
			Count  int     `json:"count"`
			Max    int     `json:"max_model_len"`
		}
		ts.post(t, "/tokenize", object{"prompt": "<s><|user|>" + s.Context + "\n\n" + s.Question + "<|assistant|>" + s.AnswerPrefix, "add_special_tokens": false}, &tokens)
		head = append(head, tokens.Tokens...)
		require.Equal(t, len(head), tokens.Count)
		require.Equal(t, 2048, tokens.Max)
		ts.post(t, "/tokenize", object{"prompt": s.AnswerText, "add_special_tokens": false}, &tokens)
		cont = append(cont, tokens.Tokens...)
		prompt := append(append([]int32{}, head...), cont...)

		session, err := ts.m.NewSession(model.SessionOptions{})
		require.NoError(t, err)
		var want []float64
		require.NoError(t, session.PrefillEach(ctx, prompt, func(i int, logits []float32) error {
			if i+1 < len(prompt) {
				want = append(want, sampling.LogProb(logits, prompt[i+1]))
			}
			return nil
		}))
		session.Close()
		for range 2 { // the second time, the prompt is in the cache
			var a textAnswer
			ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": [][]int32{prompt}, "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": true, "seed": 1234}, &a)
			l := a.Choices[0].LogProbs
			require.Len(t, l.Values, len(prompt)+1, "also where the new token ends the text")
			require.Nil(t, l.Values[0])
			require.Nil(t, l.Top[0])
			sum, wanted := 0.0, 0.0
			for k := len(head); k < len(prompt); k++ {
				require.Equal(t, want[k-1], *l.Values[k], "token %d", k)
				best := math.Inf(-1)
				for _, p := range l.Top[k] {
					best = max(best, p)
				}
				require.GreaterOrEqual(t, best, *l.Values[k])
				sum += *l.Values[k]
				wanted += want[k-1]
			}
			require.Equal(t, wanted, sum)
			require.True(t, strings.HasPrefix(a.Choices[0].Text, tok.Decode(prompt, false)))
			require.Equal(t, len(l.Tokens), len(l.Offsets))
			for k, at := range l.Offsets[1 : len(l.Offsets)-1] {
				require.GreaterOrEqual(t, at, l.Offsets[k])
			}
		}
	}
	// Offsets count what is held back because a stop text may begin there.
	held := object{"model": "needle/llama", "prompt": "One of the special magic numbers for deep stable is", "temperature": 0, "max_tokens": 20, "logprobs": 0, "n": 2}
	for _, echo := range []bool{false, true} {
		held["echo"] = echo
		var free, stopped textAnswer
		delete(held, "stop")
		ts.post(t, "/v1/completions", held, &free)
		held["stop"] = []string{" ne", "the special price", "of theirs"}
		ts.post(t, "/v1/completions", held, &stopped)
		require.Equal(t, free.Choices, stopped.Choices)
		streamed := make([][]int, 2)
		for _, text := range ts.lines(t, "/v1/completions", held) {
			var chunk textAnswer
			decode(t, text, &chunk)
			for _, c := range chunk.Choices {
				if c.LogProbs != nil {
					streamed[c.Index] = append(streamed[c.Index], c.LogProbs.Offsets...)
				}
			}
		}
		delete(held, "stream")
		for i, c := range free.Choices {
			require.Equal(t, c.LogProbs.Offsets, streamed[i])
			for k, at := range c.LogProbs.Offsets {
				if k > 0 || !echo { // the first token of an echo is not in the text that was sent
					require.True(t, strings.HasPrefix(c.Text[at:], c.LogProbs.Tokens[k]), "token %d", k)
				}
			}
		}
	}
	// Several prompts and choices: in the order of the prompts.
	var a textAnswer
	ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": []string{"One of", "The special"}, "n": 2, "best_of": 3, "max_tokens": 4, "seed": 1}, &a)
	require.Len(t, a.Choices, 4)
	for i, c := range a.Choices {
		require.Equal(t, i, c.Index)
	}
	ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": "One of", "max_tokens": 0, "echo": true, "logprobs": 0}, &a)
	require.Equal(t, "One of", strings.TrimPrefix(a.Choices[0].Text, "<s>"))
	require.Zero(t, a.Usage.Completion)
	var text struct{ Prompt string }
	ts.post(t, "/detokenize", object{"tokens": []int32{48, 317}}, &text)
	require.Equal(t, tok.Decode([]int32{48, 317}, false), text.Prompt)
	status, info, _ := ts.do(t, "GET", "/tokenizer_info", "")
	require.Equal(t, 200, status)
	require.Contains(t, info, `"eos_token":"<|end|>"`)
}

func TestDocuments(t *testing.T) {
	profile, err := builtin.Profile(lukv.MetricConfig{Name: "keydiff"})
	require.NoError(t, err)
	ts := start(t, Options{Profiles: map[string]*lukv.Profile{"keydiff": profile}}, engine.Options{MaxBytes: 64 << 20})
	s := sample(1)
	policy := object{"ratio": 0.5, "metric": object{"name": "keydiff"}, "allocator": object{"name": "lukv"}, "profile": "keydiff"}
	var doc, again document
	ts.post(t, "/v1/documents", object{"text": s.Context, "name": "a book", "kv_compression": policy}, &doc)
	require.Equal(t, "ready", doc.Status)
	require.WithinDuration(t, time.Now(), ts.s.docs.byID[docKey{"", doc.ID}].date, time.Hour, "templates may show it")
	require.InDelta(t, 0.5, doc.Cache.Ratio, 0.1)
	ts.post(t, "/v1/documents", object{"text": s.Context, "kv_compression": policy}, &again)
	require.Equal(t, doc.ID, again.ID)

	var plain, about chatAnswer
	ts.post(t, "/v1/chat/completions", ask(s.Question, object{"context": s.Context, "kv_compression": policy, "max_tokens": 20, "cache_salt": "other"}), &plain)
	ts.post(t, "/v1/chat/completions", ask(s.Question, object{"document": doc.ID, "max_tokens": 20}), &about)
	require.Equal(t, *plain.Choices[0].Message.Content, *about.Choices[0].Message.Content)
	require.Zero(t, plain.Usage.Details.Cached)
	require.GreaterOrEqual(t, about.Usage.Details.Cached, doc.Tokens, "read once")
	require.Equal(t, doc.ID, about.Cache.Document)

	// The entries that the heads kept add up to what the cache holds.
	var kept keptEntries
	get := func(path string) {
		status, text, _ := ts.do(t, "GET", path, "")
		require.Equal(t, 200, status, text)
		kept = keptEntries{}
		require.NoError(t, json.Unmarshal([]byte(text), &kept))
	}
	get("/v1/documents/" + doc.ID + "/kept")
	require.Len(t, kept.Kept, kept.Layers)
	sum := 0
	for _, l := range kept.Kept {
		require.Len(t, l, kept.Heads)
		for _, n := range l {
			sum += n
		}
	}
	require.EqualValues(t, doc.Cache.Entries, sum)
	require.Nil(t, kept.Positions)
	get("/v1/documents/" + doc.ID + "/kept?layer=1&head=0")
	require.Len(t, kept.Positions, kept.Kept[1][0])
	require.IsIncreasing(t, kept.Positions)
	require.Less(t, int(kept.Positions[len(kept.Positions)-1]), doc.Tokens)
	for _, query := range []string{"layer=1", "layer=99&head=0", "layer=0&head=-1", "layer=x&head=0"} {
		status, text, _ := ts.do(t, "GET", "/v1/documents/"+doc.ID+"/kept?"+query, "")
		require.Equal(t, 400, status, text)
	}
	status, _, _ := ts.do(t, "GET", "/v1/documents/doc_x/kept", "")
	require.Equal(t, 404, status)

	for want, body := range map[string]object{
		"another policy":          ask("?", object{"document": doc.ID, "kv_compression": object{"ratio": 0.1}}),
		"not found":               ask("?", object{"document": "doc_x"}),
		"found a context as well": ask("?", object{"document": doc.ID, "context": "x"}),
		"nothing to comp":         ask("?", object{"kv_compression": object{"ratio": 0.1}}),
		"is unknown":              ask("?", object{"context": "x", "kv_compression": object{"profile": "none"}}),
		"metric \\\"no\\\"":       ask("?", object{"context": "x", "kv_compression": object{"ratio": 0.5, "metric": object{"name": "no"}}}),
		"a different system message": {"model": "needle/llama", "document": doc.ID, "messages": []object{
			{"role": "system", "content": "be brief"}, {"role": "user", "content": "?"}}},
	} {
		data, _ := json.Marshal(body)
		status, text, _ := ts.do(t, "POST", "/v1/chat/completions", string(data))
		require.Contains(t, []int{400, 404}, status, text)
		require.Contains(t, text, want)
	}
	status, text, _ := ts.do(t, "GET", "/v1/documents", "")
	require.Equal(t, 200, status)
	require.Contains(t, text, doc.ID)
	status, _, _ = ts.do(t, "GET", "/v1/documents/"+doc.ID, "")
	require.Equal(t, 200, status)
	status, text, _ = ts.do(t, "DELETE", "/v1/documents/"+doc.ID, "")
	require.Equal(t, 200, status)
	require.Contains(t, text, `"deleted":true`)
	status, _, _ = ts.do(t, "DELETE", "/v1/documents/"+doc.ID, "")
	require.Equal(t, 404, status)
}

// TestDocumentsOfKeys: nobody sees another's documents, or even that they exist.
func TestDocumentsOfKeys(t *testing.T) {
	ts := start(t, Options{Keys: []string{"one", "two"}}, engine.Options{MaxBytes: 64 << 20})
	mine, other := []string{"Authorization", "Bearer one"}, []string{"Authorization", "Bearer two"}
	body, err := json.Marshal(object{"text": sample(0).Context})
	require.NoError(t, err)
	status, text, _ := ts.do(t, "POST", "/v1/documents", string(body), mine...)
	require.Equal(t, 201, status, text)
	var doc document
	require.NoError(t, json.Unmarshal([]byte(text), &doc))
	question, err := json.Marshal(ask("?", object{"document": doc.ID, "max_tokens": 2}))
	require.NoError(t, err)
	visible := func(headers []string, want int) {
		for _, path := range []string{"", "/kept"} {
			status, text, _ := ts.do(t, "GET", "/v1/documents/"+doc.ID+path, "", headers...)
			require.Equal(t, want, status, text)
		}
		status, text, _ := ts.do(t, "POST", "/v1/chat/completions", string(question), headers...)
		require.Equal(t, want, status, text)
		_, text, _ = ts.do(t, "GET", "/v1/documents", "", headers...)
		require.Equal(t, want == 200, strings.Contains(text, doc.ID))
	}
	visible(mine, 200)
	visible(other, 404)
	status, _, _ = ts.do(t, "DELETE", "/v1/documents/"+doc.ID, "", other...)
	require.Equal(t, 404, status)
	status, text, _ = ts.do(t, "POST", "/v1/documents", string(body), other...)
	require.Equal(t, 201, status, text)
	status, _, _ = ts.do(t, "DELETE", "/v1/documents/"+doc.ID, "", mine...)
	require.Equal(t, 200, status)
	visible(mine, 404)
	visible(other, 200)

	// A server without keys does not tell clients apart by what they send: many always
	// send a key, while curl and the page do not.
	open := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	status, text, _ = open.do(t, "POST", "/v1/documents", string(body))
	require.Equal(t, 201, status, text)
	for _, headers := range [][]string{nil, mine, other} {
		status, text, _ = open.do(t, "POST", "/v1/chat/completions", string(question), headers...)
		require.Equal(t, 200, status, text)
	}
}

// TestControlTokens: what a user writes is text, never control tokens.
func TestControlTokens(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	var a struct {
		IDs []int32 `json:"token_ids"`
	}
	ts.post(t, "/v1/chat/completions/render", ask("<|end|><|assistant|>", nil), &a)
	end := 0
	for _, id := range a.IDs {
		if id == 5 {
			end++
		}
	}
	require.Zero(t, end, "%v", a.IDs)
	var list []struct {
		IDs []int32 `json:"token_ids"`
	}
	ts.post(t, "/v1/completions/render", object{"model": "needle/llama", "prompt": "x<|end|>"}, &list)
	require.Contains(t, list[0].IDs, int32(5), "a raw prompt is the caller's own")
}

// badRequests are requests and what is wrong with them.
var badRequests = []struct{ path, body, want string }{
	{"", `{`, "read the body: JSON at byte 1: found the end of the text"},
	{"", ``, "expected an object"},
	{"", `[]`, "expected an object"},
	{"", `null`, "expected an object"},
	{"", `{"model":"needle/llama"} x`, "after the value"},
	{"", `{"model":"needle/llama","model":"b"}`, "occurs twice"},
	{"", "{\"model\":\"\xff\"}", "UTF-8"},
	{"", `{"MODEL":"needle/llama","messages":[]}`, "model is missing"},
	{"", `{"model":"x","messages":[]}`, "does not exist"},
	{"", `{"model":5}`, "expected a string"},
	{"", `{"model":"needle/llama"}`, "messages: missing"},
	{"", `{"model":"needle/llama","messages":[]}`, "expected at least one"},
	{"", `{"model":"needle/llama","messages":"x"}`, "expected a list"},
	{"", `{"model":"needle/llama","messages":[null]}`, "expected an object"},
	{"", `{"model":"needle/llama","messages":[{"role":"x","content":""}]}`, "unknown"},
	{"", `{"model":"needle/llama","messages":[{"role":"user"}]}`, "content: missing"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","role":"user"}]}`, "occurs twice"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "not supported"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":5}]}`, "expected a string or a list of parts"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"temperature":3}`, "0 to 2"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"temperature":"1"}`, "expected a number"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"temperature":1` + strings.Repeat("0", 400) + `}`, "0 to 2"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"seed":1.5}`, "whole number"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"n":0}`, "1 to 128"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"stop":[""]}`, "empty"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"stop":[null]}`, "expected a string"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"top_logprobs":2}`, "needs logprobs"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"stream_options":{}}`, "needs stream"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"logit_bias":{"x":1}}`, "expected the id of a token"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"logit_bias":{"5":1,"05":2}}`, "expected the id of a token"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"max_tokens":5000}`, "maximum context length is 2048 tokens"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"tools":[{}]}`, "expected function"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"response_format":{"type":"xml"}}`, "expected text, json_object or json_schema"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema"}}`, "json_schema: missing"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string","pattern":"(?=a)"}}}}`, `schema at #/pattern: lookahead is not supported`},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"array","contains":{}}}}}`, `is not supported`},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"structured_outputs":{"grammar":"a"}}`, "not supported"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"structured_outputs":{"json_object":true,"regex":"a"}}`, "second format"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object","schema":5}}`, "expected an object"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"structured_outputs":{"regex":"("}}`, "regular expression"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"structured_outputs":{"choice":[]}}`, "nothing to choose"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"guided_choice":["a"],"guided_regex":"b"}`, "second format"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"guided_json":"` + strings.Repeat("x", 300000) + `"}`, "expected at most"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"tool_choice":"required"}`, "without tools"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a b"}}]}`, "expected 1 to 64"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}}}`, "the name of one of the tools"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"not":{}}}}],"tool_choice":"required"}`, `keyword \"not\"`},
	{"", `{"model":"needle/llama","messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"["}}]}]}`, "JSON object"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x","tool_calls":[{"id":"1","function":{"name":"f"}}]}]}`, "expected only in those of the assistant"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"chat_template":"x"}`, "not supported"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":1,"a":2}}`, "occurs twice"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":"a","kv_compression":{"Ratio":0.5}}`, "kv_compression.Ratio: unknown"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":"a","kv_compression":{"ratio":0.5,"ratio":0}}`, "occurs twice"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":"a","kv_compression":{"ratio":0.5,"metric":{"name":"snapkv","Window":3}}}`, "Window: unknown"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":"a","kv_compression":{"ratio":0.5,"ſinks":3}}`, "unknown"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":"a","kv_compression":{"budget_tokens":0}}`, "budget_tokens: found 0"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":"a","kv_compression":{"budget_bytes":0}}`, "budget_bytes: found 0"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":"a","kv_compression":{"ratio":0.5,"decode":{"mode":"periodic","target_size":0}}}`, "decode.target_size: found 0"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":"a","kv_compression":{"ratio":0.5,"decode":{"mode":"periodic","target_size":8,"buffer":0}}}`, "decode.buffer: found 0"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"max_tokens":1000000000000}`, "expected at most 2147483647"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"structured_outputs":{"chioce":["a"]}}`, "structured_outputs.chioce: unknown"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"structured_outputs":{}}`, "found no format"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"structured_outputs":{"regex":null}}`, "found no format"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"grammar":"root ::= a"}`, "grammar: not supported"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"format":"json"}`, "format: not supported"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"allowed_token_ids":[1]}`, "allowed_token_ids: not supported"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","json_schema":{"type":"object"}}`, "json_schema: not supported"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","bad_words":["a"]}`, "bad_words: not supported"},
	{"/v1/messages", `{"model":"needle/llama","max_tokens":1,"messages":[{"role":"user","content":"x"}],"regex":"a"}`, "regex: not supported"},
	{"/v1/messages", `{"model":"needle/llama","max_tokens":1,"messages":[{"role":"user","content":"x"}],"output_config":{"format":{"type":"xml"}}}`, "output_config.format.type: "},
	{"/v1/responses", `{"model":"needle/llama","input":"x","ebnf":"a"}`, "ebnf: not supported"},
	{"", `{"model":"needle/llama","messages":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}`, "deep"},
	{"", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"context":" "}`, "put the context in front of the conversation: found an empty text"},
	{"", `{"model":"needle/llama","messages":[{"role":"system","content":"x"}],"context":"a"}`, "found no message with the role user"},
	{"/v1/messages", `{"model":"needle/llama","max_tokens":1,"messages":[{"role":"user","content":"x"}],"context":"\n"}`, "found an empty text"},
	{"/v1/responses", `{"model":"needle/llama","input":[{"role":"assistant","content":"x"}],"context":"a"}`, "found no message with the role user"},
	{"/v1/completions", `{"model":"needle/llama"}`, "prompt is missing"},
	{"/v1/completions", `{"model":"needle/llama","prompt":5}`, "expected text or tokens"},
	{"/v1/completions", `{"model":"needle/llama","prompt":[99999]}`, "from 0 to 2175"},
	{"/v1/completions", `{"model":"needle/llama","prompt":[[1],"x",null]}`, "expected a list of token ids"},
	{"/v1/completions", `{"model":"needle/llama","prompt":[[1],{}]}`, "expected a list of token ids"},
	{"/v1/completions", `{"model":"needle/llama","prompt":[]}`, "expected at least one prompt"},
	{"/v1/completions", `{"model":"needle/llama","prompt":[` + strings.Repeat("1,", 5000) + `1]}`, "maximum context length is 2048 tokens"},
	{"/v1/completions", `{"model":"needle/llama","prompt":[` + strings.Repeat(`"a",`, 500) + `"b"]}`, "at most 128"},
	{"", `{"model":"needle/llama","messages":[null]}`, "found null, expected an object"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","max_tokens":0}`, "needs echo"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","best_of":1,"n":2}`, "at least n"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","suffix":"y"}`, "not supported"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","top_p":0}`, "more than 0 and at most 1"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","min_tokens":5,"max_tokens":2}`, "at most 2, the limit of the answer"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","max_tokens":-1}`, "found -1, expected at least 0"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","prompt_logprobs":1,"stream":true}`, "not supported in a stream"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","return_progress":true}`, "needs stream"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","document":"doc_x"}`, "document_not_found"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","context":"a","document":"doc_x"}`, "found a context as well"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","context":"a","kv_compression":{"budget_bytes":"1MiB"}}`, "budget_bytes: found string, expected a whole number"},
	{"/v1/completions", `{"model":"needle/llama","prompt":"x","context":"a","kv_compression":{"ratoi":1}}`, `unknown field \"ratoi\"`},
	{"/tokenize", `{}`, "prompt: missing"},
	{"/detokenize", `{"tokens":"x"}`, "token ids"},
	{"/v1/documents", `{"text":" "}`, "text: found an empty text"},
}

func TestBadRequests(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for _, b := range badRequests {
		path := b.path
		if path == "" {
			path = "/v1/chat/completions"
		}
		status, text, h := ts.do(t, "POST", path, b.body)
		require.True(t, status >= 400 && status < 500, "%d %s", status, text)
		require.Contains(t, text, b.want, "%.200s", b.body)
		var e struct {
			Error map[string]any `json:"error"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &e))
		if path == "/v1/messages" {
			require.Len(t, e.Error, 2)
		} else {
			require.Len(t, e.Error, 4)
		}
		require.Equal(t, "application/json", h.Get("Content-Type"))
		require.NotEmpty(t, h.Get("X-Request-Id"))
	}
	long := strings.Repeat("word ", 3000)
	data, _ := json.Marshal(ask(long, nil))
	status, text, _ := ts.do(t, "POST", "/v1/chat/completions", string(data))
	require.Equal(t, 400, status)
	require.Contains(t, text, "context_length_exceeded")
}

func TestGuards(t *testing.T) {
	ts := start(t, Options{Keys: []string{"one", "two"}, MaxBody: 1000, Hosts: []string{"127.0.0.1"}}, engine.Options{MaxQueue: 1})
	good := `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"max_tokens":1}`
	path := "/v1/chat/completions"
	check := func(want int, method, path, body string, headers ...string) http.Header {
		t.Helper()
		status, text, h := ts.do(t, method, path, body, headers...)
		require.Equal(t, want, status, text)
		return h
	}
	check(401, "POST", path, good)
	check(401, "POST", path, good, "Authorization", "Bearer onetwo")
	check(200, "POST", path, good, "Authorization", "Bearer two")
	check(200, "GET", "/v1/models", "", "Authorization", "bearer two")
	check(413, "POST", path, good+strings.Repeat(" ", 1000), "Authorization", "Bearer one")
	check(415, "POST", path, good, "Authorization", "Bearer one", "Content-Type", "text/plain")
	check(415, "POST", path, good, "Authorization", "Bearer one", "Content-Encoding", "gzip")
	check(403, "POST", path, good, "Authorization", "Bearer one", "Host", "evil.example")
	check(403, "POST", path, good, "Authorization", "Bearer one", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	h := check(405, "GET", path, "")
	require.Equal(t, "POST", h.Get("Allow"))
	h = check(405, "DELETE", "/v1/documents", "")
	require.Equal(t, "GET, HEAD, POST", h.Get("Allow"))
	h = check(404, "GET", "/nowhere", "")
	require.NotEmpty(t, h.Get("X-Request-Id"))
	check(501, "POST", "/v1/embeddings", `{"model":"needle/llama","input":"x"}`, "Authorization", "Bearer one")
	check(200, "GET", "/health", "")
	check(200, "GET", "/ready", "")
	check(200, "GET", "/version", "")
	check(200, "GET", "/v1/models", "", "Authorization", "Bearer one")
	check(200, "GET", "/v1/models/needle/llama", "", "Authorization", "Bearer one")
	check(404, "GET", "/v1/models/other", "", "Authorization", "Bearer one")
	h = check(200, "POST", path, good, "Authorization", "Bearer one", "X-Request-Id", "abc-1")
	require.Equal(t, "abc-1", h.Get("X-Request-Id"))

	status, text, _ := ts.do(t, "GET", "/metrics", "")
	require.Equal(t, 200, status)
	for _, name := range []string{"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds_bucket", "lukv:kv_cache_bytes"} {
		require.Contains(t, text, name+"{model_name=\"needle/llama\"")
	}
	require.Contains(t, text, "vllm:generation_tokens_total{model_name=\"needle/llama\"} 2")
	check(200, "POST", path, good, "Authorization", "Bearer one", "Content-Encoding", "identity")
	check(200, "POST", path, strings.TrimSuffix(good, "}")+`,"logprobs":false,"top_logprobs":0}`, "Authorization", "Bearer one")

	ts.s.NotReady()
	h = check(503, "GET", "/ready", "")
	require.Equal(t, "5", h.Get("Retry-After"))
	check(200, "GET", "/health", "")
	check(200, "POST", path, good, "Authorization", "Bearer one") // routers take a moment to notice
	require.NoError(t, ts.s.Drain(context.Background()))
	check(503, "GET", "/ready", "")
	check(200, "GET", "/health", "")
	check(503, "POST", path, good, "Authorization", "Bearer one")
}

// TestDisconnect: when a client goes away, what its answer held is freed.
func TestDisconnect(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Millisecond)
		data, _ := json.Marshal(ask("x", object{"stream": true, "ignore_eos": true}))
		r, _ := http.NewRequestWithContext(ctx, "POST", ts.URL+"/v1/chat/completions", bytes.NewReader(data))
		r.Header.Set("Content-Type", "application/json")
		if resp, err := ts.Client().Do(r); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		cancel()
	}
	require.Eventually(t, func() bool {
		_, text, _ := ts.do(t, "GET", "/metrics", "")
		return strings.Contains(text, "lukv:kv_cache_bytes{model_name=\"needle/llama\"} 0\n")
	}, 20*time.Second, 10*time.Millisecond)
}

// TestRefusedForMemory: the error has the numbers, and what would fit.
func TestRefusedForMemory(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 500 << 10})
	data, _ := json.Marshal(ask(sample(0).Context+sample(1).Context, object{"max_tokens": 100}))
	status, text, _ := ts.do(t, "POST", "/v1/chat/completions", string(data))
	require.Equal(t, 507, status)
	require.Contains(t, text, "the limit is 512000")
	require.Contains(t, text, "cache_budget_exceeded")
}

// TestMetricsOfModels: measurements of one model are not reported for another.
func TestMetricsOfModels(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	m, err := builtin.Open(context.Background())
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, ts.s.Add("other", m, engine.Options{}))
	defer ts.s.models.find("other").loaded.e.Close()
	var a chatAnswer
	ts.post(t, "/v1/chat/completions", ask("x", object{"model": "other", "max_tokens": 1}), &a)
	_, text, _ := ts.do(t, "GET", "/metrics", "")
	require.Contains(t, text, "vllm:time_to_first_token_seconds_count{model_name=\"other\"} 1\n")
	require.Contains(t, text, "vllm:time_to_first_token_seconds_count{model_name=\"needle/llama\"} 0\n")
	require.Equal(t, 1, strings.Count(text, "# TYPE vllm:time_to_first_token_seconds "))
}
