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

// manyFacts returns a text of which the embedded model can repeat many facts.
func manyFacts(t *testing.T) builtin.Sample {
	for _, s := range builtin.Samples() {
		if s.Task == "niah_multikey_3" && s.Length == 512 {
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
	q := `{"text":"x y z","kv_compression":{"max_loss":0.1}}`
	status, body, _ := ts.do(t, "POST", "/v1/documents?wait=false", q)
	require.Equal(t, 400, status)
	require.Contains(t, body, "wait=true")
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
