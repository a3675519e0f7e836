package serve

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/builtin"
)

// TestPage: the page is served without a key, and may load nothing but itself.
func TestPage(t *testing.T) {
	ts := start(t, Options{Keys: []string{"secret"}}, engine.Options{})
	status, text, h := ts.do(t, "GET", "/", "")
	require.Equal(t, 200, status)
	require.Equal(t, "text/html; charset=utf-8", h.Get("Content-Type"))
	policy := h.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'; script-src 'sha256-")
	require.NotContains(t, policy, "unsafe")
	// The page has nothing that the policy refuses, and nothing comes from elsewhere.
	require.NotRegexp(t, regexp.MustCompile(`(?i)\sstyle=|\son[a-z]+=["']|https?://|@import|\ssrc=`), text)
	require.Equal(t, 1, strings.Count(text, "<script"))
	require.Equal(t, 1, strings.Count(text, "<style"))
	status, _, _ = ts.do(t, "GET", "/v1/kv_compression", "")
	require.Equal(t, 401, status, "what it asks for needs the key")
	status, _, _ = ts.do(t, "GET", "/index.html", "")
	require.Equal(t, 404, status)
}

// TestContentPolicy: the digest equals that of the standard's own example.
func TestContentPolicy(t *testing.T) {
	// https://www.w3.org/TR/CSP3/#external-hash has this one.
	p := contentPolicy(`<style></style><script>alert('Hello, world.');</script>`)
	require.Contains(t, p, "script-src 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='")
	require.Contains(t, p, "style-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='", "of nothing")
	lines := "<style>\np { }\n</style><script>\nalert()\n</script>"
	require.Equal(t, contentPolicy(lines), contentPolicy(strings.ReplaceAll(lines, "\n", "\r\n")))
}

// TestDocumentTokens: the texts of the tokens together are what the model read, and
// there are as many as /kept counts.
func TestDocumentTokens(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	var doc struct {
		ID     string
		Tokens int
	}
	text := "Die Größe: 😀 " + sample(0).Context
	ts.post(t, "/v1/documents", object{"text": text, "kv_compression": object{"ratio": 0.5}}, &doc)
	var got struct{ Tokens []string }
	_, answer, _ := ts.do(t, "GET", "/v1/documents/"+doc.ID+"/tokens", "")
	decode(t, answer, &got)
	require.Len(t, got.Tokens, doc.Tokens)
	require.True(t, strings.HasSuffix(strings.Join(got.Tokens, ""), text))
	status, _, _ := ts.do(t, "GET", "/v1/documents/doc_0/tokens", "")
	require.Equal(t, 404, status)
}

// TestFittingProfile: the allocator lukv needs no named profile if the server has the
// one for model and metric, and documents with different profiles are different.
func TestFittingProfile(t *testing.T) {
	keydiff, err := builtin.Profile(lukv.MetricConfig{Name: "keydiff"})
	require.NoError(t, err)
	byName, err := builtin.Profile(lukv.MetricConfig{Name: lukv.DefaultMetric})
	require.NoError(t, err)
	fitted, err := builtin.Profile(lukv.MetricConfig{Name: "learned"})
	require.NoError(t, err)
	ts := start(t, Options{Profiles: map[string]*lukv.Profile{"k": keydiff, "s": byName, "l": fitted}}, engine.Options{MaxBytes: 64 << 20})
	put := func(policy object) (int, document) {
		data, err := json.Marshal(object{"text": sample(0).Context, "kv_compression": policy})
		require.NoError(t, err)
		status, text, _ := ts.do(t, "POST", "/v1/documents", string(data))
		var doc document
		if status < 300 {
			decode(t, text, &doc)
		}
		return status, doc
	}
	status, chosen := put(object{"ratio": 0.5, "metric": "keydiff", "allocator": "lukv"})
	require.Equal(t, 201, status)
	digest, err := keydiff.Digest()
	require.NoError(t, err)
	require.Equal(t, digest, chosen.Policy.ProfileDigest)
	status, given := put(object{"ratio": 0.5, "metric": "keydiff", "allocator": "lukv", "profile": "k"})
	require.Equal(t, 200, status, "the same document")
	require.Equal(t, chosen.ID, given.ID)
	status, byDefault := put(object{"ratio": 0.5, "allocator": "lukv"})
	require.Equal(t, 201, status)
	require.NotEqual(t, chosen.Policy.ProfileDigest, byDefault.Policy.ProfileDigest)
	status, learned := put(object{"ratio": 0.5, "metric": "learned"})
	require.Equal(t, 201, status, "under any allocator")
	require.NotEmpty(t, learned.Policy.ProfileDigest)
	status, _ = put(object{"ratio": 0.5, "metric": "knorm", "allocator": "lukv"})
	require.Equal(t, 400, status, "there is none for this metric")
	status, _ = put(object{"ratio": 0.5, "metric": "knorm", "profile": "k"})
	require.Equal(t, 400, status, "nobody reads it")

	var known compressions
	_, text, _ := ts.do(t, "GET", "/v1/kv_compression", "")
	decode(t, text, &known)
	require.Equal(t, append(lukv.Metrics(), "learned"), known.Metrics)
	require.Equal(t, lukv.Allocators(), known.Allocators)
	require.Equal(t, []string{"k", "l", "s"}, known.Profiles)
	require.Nil(t, known.Default)
	require.Equal(t, map[string]string{"lukv": "profile", "duo": "profile", "headkv": "parameters"}, known.Needs)
	require.Equal(t, []string{"key_distance", "keydiff", "learned"}, known.ProfiledMetrics)
	for _, name := range append(known.ProfiledMetrics, known.Metrics...) {
		require.NotEmpty(t, known.Summaries.Metrics[name], name)
		require.NotEmpty(t, known.DefaultAllocators[name], name)
	}
	require.Equal(t, lukv.DefaultMetric, known.DefaultMetric)
	require.Equal(t, "adakv", known.DefaultAllocators[known.DefaultMetric])
	require.Equal(t, "uniform", known.DefaultAllocators["knorm"])
	for _, name := range known.Allocators {
		require.NotEmpty(t, known.Summaries.Allocators[name], name)
	}
}
