package serve

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// manyFacts returns a short text of which the embedded model can repeat many facts.
func manyFacts(t *testing.T) builtin.Sample {
	for _, s := range builtin.Samples() {
		if s.Task == "niah_multikey_3" && s.Length == 512 {
			s.Context = s.Context[:len(s.Context)/2]
			return s
		}
	}
	t.Fatal("no such sample")
	return builtin.Sample{}
}

// TestEstimatedLoss: an upload may ask what its compression loses, or have its ratio chosen
// by that; the document then is the one that this ratio gives, and says so in lists, in
// answers and after a restart.
func TestEstimatedLoss(t *testing.T) {
	dir := t.TempDir()
	var ts *testServer
	begin := func() {
		m, err := builtin.Open(context.Background())
		require.NoError(t, err)
		s := New(Options{})
		require.NoError(t, s.OpenStore(filepath.Join(dir, "documents")))
		require.NoError(t, s.Add("needle/llama", m, engine.Options{MaxBytes: 64 << 20, Store: filepath.Join(dir, "prefixes")}))
		ts = serveTest(t, s, m)
	}
	begin()
	text := manyFacts(t)
	put := func(policy object) (doc document) {
		ts.post(t, "/v1/documents", object{"text": text.Context, "system": "", "kv_compression": policy}, &doc)
		return doc
	}
	chosen := put(object{"metric": "key_distance", "max_loss": 0.6})
	require.NotNil(t, chosen.Cache.Loss)
	require.True(t, chosen.Cache.Loss.Measured, "%+v", chosen.Cache.Loss)
	require.LessOrEqual(t, *chosen.Cache.Loss.Share, 0.6)
	require.Positive(t, chosen.Policy.Ratio)
	given := put(object{"metric": "key_distance", "ratio": chosen.Policy.Ratio})
	require.Equal(t, chosen.ID, given.ID, "the same policy, so the same document")
	require.Equal(t, chosen.Cache, given.Cache)
	plain := put(object{"metric": "key_distance", "ratio": 0.9})
	require.Nil(t, plain.Cache.Loss)
	measured := put(object{"metric": "key_distance", "ratio": 0.9, "measure_loss": true})
	require.Equal(t, plain.ID, measured.ID)
	require.Equal(t, plain.Cache.Entries, measured.Cache.Entries)
	require.NotNil(t, measured.Cache.Loss)
	require.GreaterOrEqual(t, *measured.Cache.Loss.Share, *chosen.Cache.Loss.Share)
	require.InDelta(t, 1.0, put(object{"metric": "key_distance", "max_loss": 1}).Policy.Ratio+0.05, 1e-9)

	shortText := object{"text": "Rupert works in a mill.", "kv_compression": object{"max_loss": 0.1}}
	var short document
	ts.post(t, "/v1/documents", shortText, &short)
	require.False(t, short.Cache.Loss.Measured)
	require.Nil(t, short.Policy, "what cannot be measured stays whole")

	var got chatAnswer
	ts.post(t, "/v1/chat/completions", ask(text.Question, object{"document": measured.ID, "max_tokens": 2}), &got)
	require.Equal(t, measured.Cache.Loss, got.Cache.Loss)
	_, scraped, _ := ts.do(t, "GET", "/metrics", "")
	require.Contains(t, scraped, `lukv:kv_estimated_loss_count{model_name="needle/llama"} 3`)
	require.Contains(t, scraped, `lukv:kv_loss_unmeasured_total{model_name="needle/llama"} 1`)

	ts.end()
	begin()
	_, body, _ := ts.do(t, "GET", "/v1/documents/"+measured.ID, "")
	var again document
	require.NoError(t, json.Unmarshal([]byte(body), &again))
	require.Equal(t, measured.Cache, again.Cache)

	for want, policy := range map[string]object{
		"max_loss":     {"max_loss": 0.1, "ratio": 0.5},
		"0 to 1":       {"max_loss": 2},
		"measure_loss": {"measure_loss": true},
		"while dec":    {"max_loss": 0.1, "metric": "knorm", "decode": object{"mode": "h2o"}},
	} {
		q, err := json.Marshal(object{"text": text.Context, "kv_compression": policy})
		require.NoError(t, err)
		status, body, _ := ts.do(t, "POST", "/v1/documents", string(q))
		require.Equal(t, 400, status, body)
		if want != "while dec" {
			require.Contains(t, body, want)
		}
		status, body, _ = ts.do(t, "POST", "/v1/documents?wait=false", string(q))
		require.Equal(t, 400, status, body)
	}
}

// TestEstimatedLossLater: an upload that does not wait has its loss measured in the
// background; it becomes the document that one which waits becomes, and keeps its id.
func TestEstimatedLossLater(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 256 << 20})
	text := manyFacts(t)
	upload := func(wait string, policy object) (doc document) {
		status, body, _ := ts.do(t, "POST", "/v1/documents?wait="+wait, mustJSON(t, object{"text": text.Context, "system": "", "kv_compression": policy}))
		require.Contains(t, []int{200, 201, 202}, status, body)
		require.NoError(t, json.Unmarshal([]byte(body), &doc))
		return doc
	}
	later := func(policy object) document {
		doc := upload("false", policy)
		last := 0.0
		for doc.Status == "processing" {
			require.NotNil(t, doc.Progress)
			require.GreaterOrEqual(t, *doc.Progress, last)
			last = *doc.Progress
			id := doc.ID
			_, body, _ := ts.do(t, "GET", "/v1/documents/"+id, "")
			doc = document{}
			require.NoError(t, json.Unmarshal([]byte(body), &doc))
			require.Equal(t, id, doc.ID)
		}
		require.Equal(t, "ready", doc.Status, doc.Error)
		return doc
	}
	bound := object{"metric": "key_distance", "max_loss": 0.6}
	require.Nil(t, upload("false", bound).Policy, "it is not known yet")
	chosen := later(bound)
	require.NotNil(t, chosen.Cache.Loss)
	want := upload("true", bound)
	require.NotEqual(t, want.ID, chosen.ID)
	require.Equal(t, want.Policy, chosen.Policy)
	want.Cache.Document = chosen.ID
	require.Equal(t, want.Cache, chosen.Cache)
	require.Equal(t, chosen.ID, later(bound).ID)
	var answer chatAnswer
	ts.post(t, "/v1/chat/completions", ask(text.Question, object{"document": chosen.ID, "max_tokens": 2}), &answer)
	require.Equal(t, chosen.Cache.Loss, answer.Cache.Loss)

	plain := later(object{"metric": "key_distance", "ratio": 0.9})
	require.Nil(t, plain.Cache.Loss)
	measured := later(object{"metric": "key_distance", "ratio": 0.9, "measure_loss": true})
	require.Equal(t, plain.ID, measured.ID)
	require.NotNil(t, measured.Cache.Loss)
	require.Equal(t, plain.Cache.Entries, measured.Cache.Entries)

	pending := upload("false", object{"metric": "knorm", "max_loss": 0.2})
	status, _, _ := ts.do(t, "DELETE", "/v1/documents/"+pending.ID, "")
	require.Equal(t, 200, status)
	status, _, _ = ts.do(t, "GET", "/v1/documents/"+pending.ID, "")
	require.Equal(t, 404, status)
}

// TestEstimatedLossNamesAnswers: what a loss meant for answers is there if the profile says
// it, and kept with the document.
func TestEstimatedLossNamesAnswers(t *testing.T) {
	answers := 0.25
	l := model.Loss{Facts: 10, Lost: 2, Answers: &answers}
	text, err := json.Marshal(newEstimatedLoss(l))
	require.NoError(t, err)
	require.JSONEq(t, `{"measured":true,"facts":10,"lost":2,"share":0.2,"upper":0,"answers_lost":0.25}`, string(text))
	l.Answers = nil
	text, err = json.Marshal(newEstimatedLoss(l))
	require.NoError(t, err)
	require.NotContains(t, string(text), "answers_lost")
}

// TestLossOfContext: a question that brings its context may ask the same, and gets the answer
// that the ratio gives which is chosen; a second one measures nothing again.
func TestLossOfContext(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 256 << 20})
	text := manyFacts(t)
	chat := func(policy object) (string, *cacheUse) {
		var got chatAnswer
		ts.post(t, "/v1/chat/completions", ask(text.Question, object{"context": text.Context, "kv_compression": policy, "max_tokens": 8, "temperature": 0, "logprobs": true}), &got)
		return mustJSON(t, got.Choices), got.Cache
	}
	answer, cache := chat(object{"metric": "key_distance", "max_loss": 0.6})
	require.NotNil(t, cache.Loss)
	require.True(t, cache.Loss.Measured)
	require.LessOrEqual(t, *cache.Loss.Share, 0.6)
	require.Contains(t, cache.Evidence, "key_distance with adakv budgets lost ")
	var doc document
	ts.post(t, "/v1/documents", object{"text": text.Context, "system": "", "kv_compression": object{"metric": "key_distance", "max_loss": 0.6}}, &doc)
	require.Equal(t, doc.Cache.Loss, cache.Loss)
	given, plain := chat(object{"metric": "key_distance", "ratio": doc.Policy.Ratio})
	require.Equal(t, given, answer)
	require.Equal(t, plain.Ratio, cache.Ratio)
	require.Nil(t, plain.Loss)
	count := ts.metric(t, "lukv:kv_estimated_loss_count")
	again, second := chat(object{"metric": "key_distance", "max_loss": 0.6})
	require.Equal(t, answer, again)
	require.Equal(t, cache, second)
	measured, report := chat(object{"metric": "key_distance", "ratio": 0.9, "measure_loss": true})
	require.Positive(t, *report.Loss.Share)
	given, _ = chat(object{"metric": "key_distance", "ratio": 0.9})
	require.Equal(t, given, measured)
	require.Equal(t, count+1, ts.metric(t, "lukv:kv_estimated_loss_count"), "the same question was not measured again, another one was")

	var texts textAnswer
	ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": []string{"One", "Two"}, "context": text.Context, "max_tokens": 2,
		"kv_compression": object{"metric": "key_distance", "max_loss": 1}}, &texts)
	require.Len(t, texts.Choices, 2)
	require.InDelta(t, 0.95, texts.Cache.Ratio, 0.02)
	require.True(t, texts.Cache.Loss.Measured)

	for want, more := range map[string]object{
		"the upload of a document": {"document": doc.ID, "kv_compression": object{"max_loss": 0.1}},
		"nothing to compress":      {"kv_compression": object{"max_loss": 0.1}},
		"nothing is lost":          {"context": "a text", "kv_compression": object{"ratio": 0.5, "exact": true, "measure_loss": true}},
		"nothing to measure":       {"context": "a text", "kv_compression": object{"measure_loss": true}},
	} {
		status, body, _ := ts.do(t, "POST", "/v1/chat/completions", mustJSON(t, ask("?", more)))
		require.Equal(t, 400, status, body)
		require.Contains(t, body, want)
	}
}

// TestLossOfACacheType: where a policy names the type of the cache, facts are those of the full
// cache of that type, and the document that is measured is the one that is not.
func TestLossOfACacheType(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 256 << 20})
	text := manyFacts(t)
	put := func(policy object) (doc document) {
		ts.post(t, "/v1/documents", object{"text": text.Context, "system": "", "kv_compression": policy}, &doc)
		return doc
	}
	plain := put(object{"metric": "key_distance", "ratio": 0.9, "cache_type": "int4"})
	measured := put(object{"metric": "key_distance", "ratio": 0.9, "cache_type": "int4", "measure_loss": true})
	require.Equal(t, plain.ID, measured.ID)
	require.Equal(t, plain.Cache.Bytes, measured.Cache.Bytes)
	require.True(t, measured.Cache.Loss.Measured)
	chosen := put(object{"metric": "key_distance", "max_loss": 0.6, "cache_type": "int4"})
	require.Equal(t, "int4", chosen.Policy.CacheType)
	require.Positive(t, chosen.Policy.Ratio)
	require.Equal(t, measured.Cache.Loss.Facts, chosen.Cache.Loss.Facts)
	require.LessOrEqual(t, *chosen.Cache.Loss.Share, 0.6)
	again := put(object{"metric": "key_distance", "ratio": chosen.Policy.Ratio, "cache_type": "int4", "measure_loss": true})
	require.Equal(t, chosen.ID, again.ID)
	require.Equal(t, chosen.Cache.Loss, again.Cache.Loss)

	var got chatAnswer
	ts.post(t, "/v1/chat/completions", ask(text.Question, object{"context": text.Context, "max_tokens": 2,
		"kv_compression": object{"metric": "key_distance", "max_loss": 0.6, "cache_type": "int4"}}), &got)
	require.Equal(t, chosen.Cache.Loss, got.Cache.Loss)
}

// TestLossesAreBounded: the losses measured first are forgotten first.
func TestLossesAreBounded(t *testing.T) {
	var l losses
	for i := range mostLosses + 10 {
		for range 2 {
			l.put([32]byte{byte(i), byte(i >> 8)}, measuredLoss{})
		}
	}
	require.Len(t, l.by, mostLosses)
	require.Len(t, l.order, mostLosses)
	_, first := l.get([32]byte{})
	_, last := l.get([32]byte{9 - 1, 1})
	require.False(t, first)
	require.True(t, last)
}
