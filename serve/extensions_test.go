package serve

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// TestStopsAndLengths: min_tokens keeps an answer from ending, and a stop text stays in
// the answer if that is requested.
func TestStopsAndLengths(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	answer := func(more object) chatChoice {
		r := ask("hello", object{"temperature": 0, "max_tokens": 200})
		for k, v := range more {
			r[k] = v
		}
		var a chatAnswer
		ts.post(t, "/v1/chat/completions", r, &a)
		return a.Choices[0]
	}
	free := answer(object{"return_token_ids": true})
	require.Equal(t, "stop", free.Finish, "the embedded model ends its answers")
	n := len(free.IDs)
	require.Positive(t, n)
	longer := answer(object{"return_token_ids": true, "min_tokens": n + 3})
	require.GreaterOrEqual(t, len(longer.IDs), n+3)
	require.Equal(t, free.IDs, longer.IDs[:n])
	format := answer(object{"guided_choice": []string{"ab"}, "min_tokens": 50})
	require.Equal(t, "ab", *format.Message.Content, "a format that can only end ends")

	words := strings.Fields(*free.Message.Content)
	require.Greater(t, len(words), 2)
	without, with := answer(object{"stop": words[1]}), answer(object{"stop": words[1], "include_stop_str_in_output": true})
	require.Equal(t, *without.Message.Content+words[1], *with.Message.Content)
	require.True(t, strings.HasPrefix(*free.Message.Content, *with.Message.Content))
}

// TestTokenIDs: the tokens of prompt and answer are those that were read and drawn, also
// in a stream.
func TestTokenIDs(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	r := object{"model": "needle/llama", "prompt": "The road to", "max_tokens": 6, "temperature": 0, "ignore_eos": true, "return_token_ids": true}
	var whole textAnswer
	ts.post(t, "/v1/completions", r, &whole)
	require.Len(t, whole.Choices[0].IDs, 6)
	require.Equal(t, ts.prompt(t, "The road to"), whole.Choices[0].PromptIDs)
	var text struct{ Prompt string }
	ts.post(t, "/detokenize", object{"tokens": whole.Choices[0].IDs}, &text)
	require.Equal(t, text.Prompt, whole.Choices[0].Text)

	// The token that ends an answer is not one of them, nor does asking for
	// log-probabilities change which answers are the best.
	ended := object{"model": "needle/llama", "prompt": "<s><|user|>Hello<|assistant|>", "add_special_tokens": false, "max_tokens": 100, "temperature": 0, "return_token_ids": true}
	var without, with textAnswer
	ts.post(t, "/v1/completions", ended, &without)
	ended["logprobs"] = 0
	ts.post(t, "/v1/completions", ended, &with)
	require.Equal(t, "stop", with.Choices[0].Finish)
	require.Equal(t, without.Choices[0].IDs, with.Choices[0].IDs)
	require.Len(t, with.Choices[0].LogProbs.Tokens, len(with.Choices[0].IDs)+1)
	ended["temperature"], ended["best_of"], ended["max_tokens"] = 1, 6, 60
	for seed := range 6 {
		ended["seed"] = seed
		with, without = textAnswer{}, textAnswer{}
		ended["logprobs"] = 0
		ts.post(t, "/v1/completions", ended, &with)
		delete(ended, "logprobs")
		ts.post(t, "/v1/completions", ended, &without)
		require.Equal(t, without.Choices[0].Text, with.Choices[0].Text)
		require.Equal(t, without.Choices[0].IDs, with.Choices[0].IDs)
	}

	chat := ask("hello", object{"temperature": 0, "max_tokens": 5, "return_token_ids": true})
	var once chatAnswer
	ts.post(t, "/v1/chat/completions", chat, &once)
	require.NotEmpty(t, once.PromptIDs)
	var ids []int32
	chunks := ts.chunks(t, "/v1/chat/completions", chat)
	for _, c := range chunks {
		for _, choice := range c.Choices {
			ids = append(ids, choice.IDs...)
		}
	}
	require.Equal(t, once.Choices[0].IDs, ids)
	require.Equal(t, once.PromptIDs, chunks[0].PromptIDs)
	require.Nil(t, chunks[1].PromptIDs, "the first chunk alone has them")
}

// prompt returns the tokens of a text.
func (ts *testServer) prompt(t *testing.T, text string) []int32 {
	var out struct{ Tokens []int32 }
	ts.post(t, "/tokenize", object{"prompt": text}, &out)
	return out.Tokens
}

// TestPromptLogProbs: they equal those of an echo, with ranks.
func TestPromptLogProbs(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	r := object{"model": "needle/llama", "prompt": "The road to the", "max_tokens": 2, "temperature": 0, "logprobs": 1}
	var plain, asked, echo textAnswer
	ts.post(t, "/v1/completions", r, &plain)
	r["prompt_logprobs"] = 3
	ts.post(t, "/v1/completions", r, &asked)
	require.Equal(t, plain.Choices[0].Text, asked.Choices[0].Text)
	require.Equal(t, plain.Choices[0].LogProbs, asked.Choices[0].LogProbs, "as many alternatives of the answer as before")
	r["echo"] = true
	ts.post(t, "/v1/completions", r, &echo)
	tokens, list := ts.prompt(t, "The road to the"), asked.Choices[0].Prompt
	require.Equal(t, list, echo.Choices[0].Prompt)
	require.Len(t, list, len(tokens))
	require.Nil(t, list[0])
	for i, id := range tokens[1:] {
		at := list[i+1]
		require.Equal(t, *echo.Choices[0].LogProbs.Values[i+1], at[id].LogProb)
		require.GreaterOrEqual(t, len(at), 3)
		ranks := map[int]float64{}
		for _, x := range at {
			if x.Rank != nil {
				ranks[*x.Rank] = x.LogProb
			}
		}
		require.Len(t, ranks, 3)
		require.GreaterOrEqual(t, ranks[1], ranks[2])
		require.GreaterOrEqual(t, ranks[2], ranks[3])
	}
}

// TestDocumentsOfTexts: a document before a raw prompt is the same as its text.
func TestDocumentsOfTexts(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	var doc document
	ts.post(t, "/v1/documents", object{"text": sample(0).Context, "kv_compression": object{"ratio": 0.5}}, &doc)
	require.Equal(t, "key_distance", doc.Policy.Metric.Name, "the default is written out")
	require.Equal(t, "adakv", doc.Policy.Allocator.Name)
	r := object{"model": "needle/llama", "prompt": "\nWhat is it?", "max_tokens": 8, "temperature": 0}
	ask := func(more object) (a textAnswer) {
		for k, v := range r {
			more[k] = v
		}
		ts.post(t, "/v1/completions", more, &a)
		return a
	}
	with, same := ask(object{"document": doc.ID}), ask(object{"context": sample(0).Context, "kv_compression": object{"ratio": 0.5}})
	require.Equal(t, same.Choices, with.Choices)
	require.Equal(t, same.Usage.Prompt, with.Usage.Prompt)
	require.Equal(t, doc.ID, with.Cache.Document)
	status, text, _ := ts.do(t, "POST", "/v1/completions", `{"model":"needle/llama","prompt":"x","document":"`+doc.ID+`","kv_compression":{"ratio":0.8}}`)
	require.Equal(t, 400, status)
	require.Contains(t, text, `it was compressed with {\"metric\":{\"name\":\"key_distance\"`)

	// What the tokenizer puts before texts comes once, at the beginning.
	tokens := func(text string, special bool) []int32 {
		var out struct{ Tokens []int32 }
		ts.post(t, "/tokenize", object{"prompt": text, "add_special_tokens": special}, &out)
		return out.Tokens
	}
	for _, special := range []bool{true, false} {
		var rendered []struct {
			IDs []int32 `json:"token_ids"`
		}
		ts.post(t, "/v1/completions/render", object{"model": "needle/llama", "prompt": []string{"What?", ""}, "context": "It is.", "add_special_tokens": special}, &rendered)
		require.Equal(t, append(tokens("It is.", special), tokens("What?", false)...), rendered[0].IDs)
		require.Equal(t, tokens("It is.", special), rendered[1].IDs)
	}
	var bare textAnswer
	ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": "", "document": doc.ID, "max_tokens": 3, "ignore_eos": true, "echo": true, "logprobs": 0}, &bare)
	require.Equal(t, doc.Tokens-1, bare.Usage.Prompt, "the text without the mark of its turn")
	require.Len(t, bare.Choices[0].LogProbs.Tokens, 3)

	var plain document
	ts.post(t, "/v1/documents", object{"text": sample(0).Context}, &plain)
	require.Nil(t, plain.Policy, "nothing is compressed")
	require.Equal(t, ask(object{"context": sample(0).Context}).Choices, ask(object{"document": plain.ID}).Choices)
}

// TestOrigins: pages of the configured origins may use the server, others may not.
func TestOrigins(t *testing.T) {
	ts := start(t, Options{Origins: []string{"https://chat.example"}, Keys: []string{"k"}}, engine.Options{})
	path, body := "/v1/chat/completions", `{"model":"needle/llama","messages":[{"role":"user","content":"x"}],"max_tokens":1}`
	from := func(origin, method, body string, more ...string) (int, http.Header) {
		headers := append([]string{"Origin", origin, "Sec-Fetch-Site", "cross-site"}, more...)
		status, _, h := ts.do(t, method, path, body, headers...)
		return status, h
	}
	status, h := from("https://chat.example", "OPTIONS", "", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,x-stainless-os")
	require.Equal(t, 204, status)
	require.Equal(t, "https://chat.example", h.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "authorization,x-stainless-os", h.Get("Access-Control-Allow-Headers"))
	require.Empty(t, h.Get("Access-Control-Allow-Credentials"))
	status, h = from("https://chat.example", "POST", body, "Authorization", "Bearer k")
	require.Equal(t, 200, status)
	require.Equal(t, "https://chat.example", h.Get("Access-Control-Allow-Origin"))
	status, h = from("https://chat.example", "POST", body)
	require.Equal(t, 401, status, "an origin is no key")
	require.NotEmpty(t, h.Get("Access-Control-Allow-Origin"), "or the page could not read why")
	for _, other := range []string{"https://evil.example", "null", "http://chat.example"} {
		status, h = from(other, "OPTIONS", "", "Access-Control-Request-Method", "POST")
		require.Equal(t, 405, status)
		require.Empty(t, h.Get("Access-Control-Allow-Origin"))
		status, h = from(other, "POST", body, "Authorization", "Bearer k")
		require.Equal(t, 403, status)
		require.Empty(t, h.Get("Access-Control-Allow-Origin"))
	}
}

// TestPromptProgress: clients that ask for it see how much of a prompt has been read, and
// then the same answer.
func TestPromptProgress(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	r := ask(sample(0).Context, object{"temperature": 0, "max_tokens": 3, "stream": true})
	plain := ts.chunks(t, "/v1/chat/completions", r)
	r["return_progress"] = true
	text := func(chunks []chatAnswer) (s string) {
		for _, c := range chunks {
			for _, choice := range c.Choices {
				if choice.Delta.Content != nil {
					s += *choice.Delta.Content
				}
			}
		}
		return s
	}
	shown := ts.chunks(t, "/v1/chat/completions", r)
	require.Equal(t, text(plain), text(shown))
	require.False(t, slices.ContainsFunc(plain, func(c chatAnswer) bool { return c.Progress != nil }))
	for _, c := range shown { // as many as there was time for
		if p := c.Progress; p != nil {
			require.Positive(t, p.Total)
			require.True(t, 0 <= p.Cache && p.Cache <= p.Processed && p.Processed <= p.Total, "%+v", p)
			require.Len(t, c.Choices, 1, "clients want one")
		}
	}
}

// TestTooManyPrompts: what no retry helps is not answered as if one did.
func TestTooManyPrompts(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxQueue: 2, MaxRunning: 4})
	send := func(path string, prompts, best int) (int, string, string) {
		status, text, h := ts.do(t, "POST", path, mustJSON(t, object{
			"model": "needle/llama", "prompt": slices.Repeat([]string{"One"}, prompts), "max_tokens": 1, "n": best}))
		return status, text, h.Get("Retry-After")
	}
	for best, most := range map[int]int{1: 2 + 4, 2: 2 + 2, 3: 2 + 1, 9: 2 + 1} { // a request with too many choices runs alone
		status, text, retry := send("/v1/completions", most+1, best)
		require.Equal(t, 400, status, text)
		require.Empty(t, retry)
		require.Contains(t, text, fmt.Sprintf("found %d prompts, expected at most %d", most+1, most))
		require.Contains(t, text, `"param":"prompt"`)
		status, text, _ = send("/v1/completions", most, best)
		require.Contains(t, []int{200, 429}, status, text) // it depends on how soon they run
	}
	status, text, _ := send("/v1/completions/render", 7, 1) // waits for nothing
	require.Equal(t, 200, status, text)
}

// TestCacheOfPrompts: kv_cache of several prompts is the sum of what each has alone.
func TestCacheOfPrompts(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	send := func(prompt any) textAnswer {
		q := object{"model": "needle/llama", "prompt": prompt, "context": sample(0).Context, "kv_compression": object{"ratio": 0.5}, "max_tokens": 2, "n": 2}
		var a textAnswer
		ts.post(t, "/v1/completions", q, &a)
		q["stream_options"] = object{"include_usage": true}
		lines := ts.lines(t, "/v1/completions", q)
		var last textAnswer
		decode(t, lines[len(lines)-1], &last)
		require.Equal(t, a.Cache, last.Cache)
		return a
	}
	prompts := []string{"One", sample(1).Context, "One of the best"}
	var want cacheUse
	tokens := 0
	for _, p := range prompts {
		a := send(p)
		want.Entries, want.FullEntries = want.Entries+a.Cache.Entries, want.FullEntries+a.Cache.FullEntries
		want.Bytes, want.FullBytes = want.Bytes+a.Cache.Bytes, want.FullBytes+a.Cache.FullBytes
		tokens += a.Usage.Prompt
	}
	want.Ratio = float64(want.FullEntries-want.Entries) / float64(want.FullEntries)
	got := send(prompts)
	require.Equal(t, tokens, got.Usage.Prompt)
	require.InDelta(t, want.Ratio, got.Cache.Ratio, 1e-12)
	want.Ratio, want.Evidence = got.Cache.Ratio, got.Cache.Evidence
	require.Equal(t, want, *got.Cache)
	c := ts.m.Config()
	require.EqualValues(t, tokens*c.Layers*c.KVHeads, want.FullEntries)
}
