package serve

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// TestExactAnswers: with exact, answers and their log-probabilities are those of the full
// cache to the bit: greedy, sampled, several choices, of contexts, documents and older turns,
// one at a time and together. Their cache is whole, and timings say what was drafted.
func TestExactAnswers(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 256 << 20})
	text := manyFacts(t)
	var doc document
	ts.post(t, "/v1/documents", object{"text": text.Context, "system": ""}, &doc)
	exact := object{"ratio": 0.8, "metric": "key_distance", "exact": true, "draft_tokens": 3}
	turns := ask("", object{"messages": []object{
		{"role": "user", "content": text.Context}, {"role": "assistant", "content": "I see."},
		{"role": "user", "content": "Is it long?"}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": text.Question}}})
	type request struct {
		path        string
		body, exact object
	}
	var requests []request
	for _, how := range []object{{"temperature": 0}, {"temperature": 1, "seed": 3}, {"temperature": 1, "seed": 5, "n": 2, "top_p": 0.9, "repetition_penalty": 1.2}} {
		how["max_tokens"], how["ignore_eos"], how["logprobs"] = 24, true, true
		chat := ask(text.Question, how)
		requests = append(requests,
			request{"/v1/chat/completions", merged(chat, object{"context": text.Context, "kv_compression": object{"ratio": 0}}), merged(chat, object{"context": text.Context, "kv_compression": exact})},
			request{"/v1/chat/completions", merged(chat, object{"document": doc.ID}), merged(chat, object{"document": doc.ID, "kv_compression": exact})},
			request{"/v1/chat/completions", merged(turns, how), merged(merged(turns, how), object{"kv_compression": merged(exact, object{"keep_turns": 1})})},
		)
	}
	get := func(r request, body object) (chatAnswer, string) {
		var got chatAnswer
		ts.post(t, r.path, body, &got)
		return got, mustJSON(t, got.Choices)
	}
	var want []string
	for _, r := range requests {
		_, plain := get(r, r.body)
		want = append(want, plain)
	}
	drafted, accepted := 0, 0
	for i, r := range requests {
		got, choices := get(r, r.exact)
		require.Equal(t, want[i], choices)
		require.NotNil(t, got.Cache, "request %d", i)
		require.Equal(t, got.Cache.FullEntries, got.Cache.Entries, "the cache is whole")
		require.Zero(t, got.Usage.Details.Evicted)
		drafted, accepted = drafted+got.Timings.Drafted, accepted+got.Timings.Accepted
	}
	require.Positive(t, accepted)
	require.Greater(t, drafted, accepted, "sampled drafts are not all right")
	var wg sync.WaitGroup
	together := make([]string, len(requests))
	for i, r := range requests {
		wg.Go(func() { _, together[i] = get(r, r.exact) })
	}
	wg.Wait()
	require.Equal(t, want, together)

	completion := object{"model": "needle/llama", "prompt": "The end.", "context": text.Context, "max_tokens": 12, "temperature": 0, "logprobs": 2}
	var a, b textAnswer
	ts.post(t, "/v1/completions", merged(completion, object{"kv_compression": object{"ratio": 0}}), &a)
	ts.post(t, "/v1/completions", merged(completion, object{"kv_compression": exact}), &b)
	require.Equal(t, a.Choices, b.Choices)
	ts.post(t, "/v1/completions", merged(completion, object{"kv_compression": object{"ratio": 0.8, "exact": true}}), &b) // by the default metric
	require.Equal(t, a.Choices, b.Choices)
}

// merged returns the fields of both objects; those of b replace those of a.
func merged(a, b object) object {
	out := object{}
	for _, o := range []object{a, b} {
		for k, v := range o {
			out[k] = v
		}
	}
	return out
}

// TestExactRefused: what cannot be drafted for is named.
func TestExactRefused(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	text := manyFacts(t)
	var doc document
	ts.post(t, "/v1/documents", object{"text": text.Context, "kv_compression": object{"ratio": 0.5}}, &doc)
	for want, more := range map[string]object{
		"expected a ratio or budget":  {"context": "a text", "kv_compression": object{"exact": true}},
		"only exact answers":          {"context": "a text", "kv_compression": object{"ratio": 0.5, "draft_tokens": 2}},
		"draft_tokens":                {"context": "a text", "kv_compression": object{"ratio": 0.5, "exact": true, "draft_tokens": 9}},
		"nothing to compress":         {"kv_compression": object{"ratio": 0.5, "exact": true}},
		"the document is compressed":  {"document": doc.ID, "kv_compression": object{"ratio": 0.5, "exact": true}},
		"reads the prompt again":      {"context": text.Context, "kv_compression": object{"ratio": 0.5, "exact": true, "metric": "kvzip"}},
		"expected that of the engine": {"context": text.Context, "kv_compression": object{"ratio": 0.5, "exact": true, "cache_type": "int8"}},
	} {
		status, answer, _ := ts.do(t, "POST", "/v1/chat/completions", mustJSON(t, ask("?", more)))
		require.Equal(t, 400, status, answer)
		require.Contains(t, answer, want)
		require.Contains(t, answer, "kv_compression")
	}
	status, answer, _ := ts.do(t, "POST", "/v1/documents", mustJSON(t, object{"text": "a text", "kv_compression": object{"ratio": 0.5, "exact": true}}))
	require.Equal(t, 400, status, answer)
	require.Contains(t, answer, "kv_compression.exact: not a field of this endpoint")
	status, answer, _ = ts.do(t, "POST", "/v1/completions", mustJSON(t, object{"model": "needle/llama", "prompt": "x", "context": "a text", "kv_compression": object{"ratio": 0.5, "keep_turns": 1}}))
	require.Equal(t, 400, status, answer)
	require.Contains(t, answer, "kv_compression.keep_turns: not a field of this endpoint")
}
