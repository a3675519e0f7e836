package serve

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// metric reads one figure from a scrape.
func (ts *testServer) metric(t testing.TB, name string) float64 {
	_, text, _ := ts.do(t, "GET", "/metrics", "")
	m := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*\})? (\S+)$`).FindStringSubmatch(text)
	require.NotNil(t, m, "%s is missing in\n%s", name, text)
	v, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return v
}

// TestMetricsHelp: every metric in a scrape is described once, and nothing else is.
func TestMetricsHelp(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 1 << 20})
	resp, err := ts.Client().Get(ts.URL + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# HELP (\S+) \S.*\.\n# TYPE (\S+) (?:gauge|counter|histogram)$`).FindAllStringSubmatch(string(text), -1) {
		require.Equal(t, m[1], m[2])
		require.False(t, seen[m[1]], m[1])
		seen[m[1]] = true
	}
	require.Equal(t, strings.Count(string(text), "# TYPE "), len(seen))
	require.Len(t, metricHelp, len(seen))
}

// TestMetricsOfCompression: evicted entries are counted once, however often the
// document is asked about, and tokens are those that answers report.
func TestMetricsOfCompression(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	var doc struct {
		ID    string
		Cache cacheUse `json:"kv_cache"`
	}
	ts.post(t, "/v1/documents", object{"text": sample(0).Context, "kv_compression": object{"ratio": 0.5}}, &doc)
	evicted := doc.Cache.FullEntries - doc.Cache.Entries
	require.Positive(t, evicted)
	require.EqualValues(t, evicted, ts.metric(t, "lukv:kv_evicted_entries_total"))
	before, generated := ts.metric(t, "vllm:prompt_tokens_total"), 0.0
	for range 2 {
		var a chatAnswer
		ts.post(t, "/v1/chat/completions", ask(sample(0).Question, object{"document": doc.ID, "max_tokens": 4}), &a)
		before += float64(a.Usage.Prompt)
		generated += float64(a.Usage.Completion)
	}
	require.Equal(t, before, ts.metric(t, "vllm:prompt_tokens_total"))
	require.Equal(t, generated, ts.metric(t, "vllm:generation_tokens_total"))
	require.EqualValues(t, evicted, ts.metric(t, "lukv:kv_evicted_entries_total"))
	require.Positive(t, ts.metric(t, "lukv:kv_cache_peak_bytes"))
	require.Zero(t, ts.metric(t, "lukv:kv_cache_bytes"))
	require.Zero(t, ts.metric(t, "lukv:kv_cache_full_bytes"))

	// Here a page of every head has 64 entries of 32 keys and values each;
	// num_gpu_blocks is how many the limit has room for.
	_, text, _ := ts.do(t, "GET", "/metrics", "")
	c := ts.m.Config()
	page := int64(c.Layers*c.KVHeads*64) * int64(2*4*c.HeadDim+4) // f32, and a position
	m := regexp.MustCompile(`vllm:cache_config_info\{model_name="needle/llama",block_size="64",num_gpu_blocks="(\d+)"\} 1`).FindStringSubmatch(text)
	require.NotNil(t, m, text)
	count, err := strconv.ParseInt(m[1], 10, 64)
	require.NoError(t, err)
	require.InDelta(t, 64<<20/page, count, float64(64<<20/page))
}

// TestMetricsOfEchoes: tokens of a prompt that is repeated are not generated, so that they
// are no times between tokens.
func TestMetricsOfEchoes(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for i, stream := range []bool{false, true} {
		status, text, _ := ts.do(t, "POST", "/v1/completions", mustJSON(t, object{
			"model": "needle/llama", "prompt": sample(0).Question, "echo": true, "max_tokens": 3, "ignore_eos": true, "stream": stream}))
		require.Equal(t, 200, status, text)
		require.EqualValues(t, i+1, ts.metric(t, "vllm:time_to_first_token_seconds_count"))
		require.EqualValues(t, 2*(i+1), ts.metric(t, "vllm:inter_token_latency_seconds_count"))
	}
}

// TestMetricsOfReasons: requests are counted under the reason that their answers name, and
// a document, which has no answer, under stop.
func TestMetricsOfReasons(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	counted := func(reason string) float64 {
		_, text, _ := ts.do(t, "GET", "/metrics", "")
		m := regexp.MustCompile(`vllm:request_success_total\{model_name="needle/llama",finished_reason="` + reason + `"\} (\d+)`).FindStringSubmatch(text)
		require.NotNil(t, m, text)
		n, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		return n
	}
	for i, n := range []int{0, 3} {
		var a textAnswer
		ts.post(t, "/v1/completions", object{"model": "needle/llama", "prompt": "One", "echo": true, "max_tokens": n, "ignore_eos": true}, &a)
		require.Equal(t, "length", a.Choices[0].Finish)
		require.EqualValues(t, i+1, counted("length"))
		require.Zero(t, counted("stop"))
	}
	var doc document
	ts.post(t, "/v1/documents", object{"text": "Some text.", "kv_compression": object{"ratio": 0.5}}, &doc)
	require.EqualValues(t, 2, counted("length"))
	require.EqualValues(t, 1, counted("stop"))
}

// TestMetricsOfCancelled: the durations of whole requests are those of requests that are
// answered, of every form and streamed or not.
func TestMetricsOfCancelled(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxRunning: 1})
	v := ts.s.models.find("needle/llama").loaded
	sampling := v.m.DefaultSampling()
	sampling.IgnoreEOS, sampling.MaxTokens = true, 1000
	first, err := v.e.Submit(t.Context(), engine.Request{Prompt: []int32{1, 2, 3}, Sampling: sampling}) // pauses, as nobody reads it: the others wait
	require.NoError(t, err)
	defer first.Close()
	waiting := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return ts.metric(t, "vllm:num_requests_waiting") == float64(n) }, 10*time.Second, time.Millisecond)
	}
	histograms := []string{"e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"}
	counts := func(want int) {
		t.Helper()
		for _, name := range histograms {
			require.EqualValues(t, want, ts.metric(t, "vllm:"+name+"_seconds_count"), name)
		}
	}
	prompts := map[string]int{"/v1/chat/completions": 1, "/v1/completions": 2, "/v1/responses": 1, "/v1/messages": 1}
	ask := func(path string) object {
		q := ask("One", object{"input": "One", "max_tokens": 2, "max_output_tokens": 2, "ignore_eos": true})
		if prompts[path] == 2 {
			q["prompt"] = []string{"One", "Two"}
		}
		return q
	}
	for path, n := range prompts {
		for _, stream := range []bool{false, true} {
			q := ask(path)
			q["stream"] = stream
			ctx, cancel := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, "POST", ts.URL+path, strings.NewReader(mustJSON(t, q)))
			require.NoError(t, err)
			r.Header.Set("Content-Type", "application/json")
			over := make(chan struct{})
			go func() {
				defer close(over)
				if resp, err := ts.Client().Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			waiting(n)
			cancel()
			<-over
			waiting(0)
			counts(0)
		}
	}
	first.Close()
	answered := 0
	for path, n := range prompts {
		var a object
		ts.post(t, path, ask(path), &a)
		answered += n
		counts(answered)
	}
}

// BenchmarkScrape measures what a router pays twenty times a second while answers
// are computed.
func BenchmarkScrape(b *testing.B) {
	ts := start(b, Options{}, engine.Options{})
	v := ts.s.models.find("needle/llama").loaded
	streams := make([]*engine.Stream, 8)
	for i := range streams {
		sampling := v.m.DefaultSampling()
		sampling.IgnoreEOS, sampling.Seed = true, uint64(i)
		var err error
		streams[i], err = v.e.Submit(b.Context(), engine.Request{Prompt: []int32{1, 2, 3}, Sampling: sampling})
		require.NoError(b, err)
		go func() {
			for range streams[i].Events() {
			}
		}()
	}
	r := httptest.NewRequest("GET", "/metrics", nil)
	b.ReportAllocs()
	for b.Loop() {
		ts.s.writeMetrics(httptest.NewRecorder(), r)
	}
	for _, s := range streams {
		s.Close()
	}
}
