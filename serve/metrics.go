package serve

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/turns"
)

// Names and buckets are those of vLLM, which routers and dashboards know. The long
// buckets are needed: processors take minutes to read long prompts.
var buckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}

// shareBuckets are those of shares, from 0 to 1.
var shareBuckets = []float64{0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}

// histogram counts seconds, or shares, without a lock.
type histogram struct {
	counts [24]atomic.Int64 // by bucket, not cumulative; then those above all buckets
	sum    atomic.Int64     // in units of 1e-9
}

func (h *histogram) observe(v float64)      { h.count(v, buckets) }
func (h *histogram) observeShare(v float64) { h.count(v, shareBuckets) }

func (h *histogram) count(v float64, buckets []float64) {
	i := 0
	for i < len(buckets) && v > buckets[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(v * 1e9))
}

// secondLabels and shareLabels are the le labels of the buckets.
var secondLabels, shareLabels = bucketLabels(buckets), bucketLabels(shareBuckets)

func bucketLabels(buckets []float64) (out []string) {
	for _, le := range buckets {
		out = append(out, strconv.FormatFloat(le, 'g', -1, 64))
	}
	return append(out, "+Inf")
}

func (h *histogram) write(b *scrape, labels []string, name, model string) {
	total := int64(0)
	for i, le := range labels {
		total += h.counts[i].Load()
		b.sample(name+"_bucket", float64(total), "model_name", model, "le", le)
	}
	b.sample(name+"_sum", float64(h.sum.Load())/1e9, "model_name", model)
	b.sample(name+"_count", float64(total), "model_name", model)
}

// scrape is the text of an answer to /metrics.
type scrape struct{ text []byte }

var scrapes = sync.Pool{New: func() any { return new(scrape) }}

// family begins a metric.
func (b *scrape) family(name, kind string) {
	if help := metricHelp[name]; help != "" {
		b.text = append(append(append(append(append(b.text, "# HELP "...), name...), ' '), help...), '\n')
	}
	b.text = append(append(append(append(append(b.text, "# TYPE "...), name...), ' '), kind...), '\n')
}

// sample writes one value of the family; labels alternate between names and
// values.
func (b *scrape) sample(name string, value float64, labels ...string) {
	b.text = append(b.text, name...)
	for i := 0; i < len(labels); i += 2 {
		b.text = append(b.text, "{,"[min(i, 1)])
		b.text = append(append(b.text, labels[i]...), '=')
		b.text = strconv.AppendQuote(b.text, labels[i+1])
	}
	if len(labels) > 0 {
		b.text = append(b.text, '}')
	}
	b.text = append(strconv.AppendFloat(append(b.text, ' '), value, 'g', -1, 64), '\n')
}

// metrics are the measurements of a model's requests.
type metrics struct {
	first, between, whole, queued, prefill, decode histogram

	lost       histogram // shares of documents' facts that were lost
	unmeasured atomic.Int64
}

// timing follows one request.
type timing struct {
	m             *metrics
	start, latest time.Time
	ended         bool
}

func (m *metrics) begin(start time.Time) *timing { return &timing{m: m, start: start} }

// event records that a piece of the answer came.
func (t *timing) event() {
	now := time.Now()
	if t.latest.IsZero() {
		t.m.first.observe(now.Sub(t.start).Seconds())
	} else {
		t.m.between.observe(now.Sub(t.latest).Seconds())
	}
	t.latest = now
}

// end closes the stream and records that the answer is over, once. Like vLLM, it leaves
// out requests that were cancelled or failed.
func (t *timing) end(s *engine.Stream) {
	if t.ended {
		return
	}
	t.ended = true
	s.Close()
	for _, err := range s.Events() { // what was not read
		if err != nil {
			return
		}
	}
	u := s.Usage()
	t.m.whole.observe(time.Since(t.start).Seconds())
	t.m.queued.observe(u.Queued.Seconds())
	t.m.prefill.observe(u.Prefill.Seconds())
	t.m.decode.observe(u.Decoding.Seconds())
}

// writeMetrics answers a scrape. It takes no lock that a step of an engine holds.
func (s *Server) writeMetrics(w http.ResponseWriter, _ *http.Request) {
	b := scrapes.Get().(*scrape)
	defer scrapes.Put(b)
	b.text = b.text[:0]
	order := s.models.list()
	stats := make([]engine.Stats, len(order))
	loaded := make([]float64, len(order))
	for i, sl := range order {
		var on bool
		if stats[i], on = s.models.stats(sl); on {
			loaded[i] = 1
		}
	}
	family := func(name, kind string, value func(st *engine.Stats) float64) {
		b.family(name, kind)
		for i, sl := range order {
			b.sample(name, value(&stats[i]), "model_name", sl.id)
		}
	}
	family("vllm:num_requests_running", "gauge", func(st *engine.Stats) float64 { return float64(st.Running) })
	family("vllm:num_requests_waiting", "gauge", func(st *engine.Stats) float64 { return float64(st.Waiting) })
	usage := func(st *engine.Stats) float64 {
		if st.MaxBytes == 0 {
			return 0
		}
		return float64(st.ReservedBytes) / float64(st.MaxBytes)
	}
	family("vllm:kv_cache_usage_perc", "gauge", usage)
	// Older names, which production-stack's router reads.
	family("vllm:gpu_cache_usage_perc", "gauge", usage)
	family("vllm:gpu_prefix_cache_queries_total", "counter", func(st *engine.Stats) float64 { return float64(st.PromptTokens) })
	family("vllm:gpu_prefix_cache_hits_total", "counter", func(st *engine.Stats) float64 { return float64(st.CachedTokens) })
	b.family("vllm:cache_config_info", "gauge")
	for _, sl := range order {
		if block := s.models.blockOf(sl); block.count > 0 {
			b.sample("vllm:cache_config_info", 1, "model_name", sl.id,
				"block_size", strconv.FormatInt(block.entries, 10), "num_gpu_blocks", strconv.FormatInt(block.count, 10))
		}
	}
	family("vllm:prompt_tokens_total", "counter", func(st *engine.Stats) float64 { return float64(st.PromptTokens) })
	family("vllm:generation_tokens_total", "counter", func(st *engine.Stats) float64 { return float64(st.GeneratedTokens) })
	family("vllm:prefix_cache_queries_total", "counter", func(st *engine.Stats) float64 { return float64(st.PromptTokens) })
	family("vllm:prefix_cache_hits_total", "counter", func(st *engine.Stats) float64 { return float64(st.CachedTokens) })
	family("vllm:num_preemptions_total", "counter", func(st *engine.Stats) float64 { return float64(st.Preempted) })
	b.family("vllm:request_success_total", "counter")
	for i, sl := range order {
		for _, ended := range []struct {
			reason string
			n      int64
		}{
			{"stop", stats[i].Completed - stats[i].ReachedLength}, {"length", stats[i].ReachedLength},
			{"abort", stats[i].Cancelled}, {"error", stats[i].Failed},
		} {
			b.sample("vllm:request_success_total", float64(ended.n), "model_name", sl.id, "finished_reason", ended.reason)
		}
	}
	histograms := func(name string, of func(m *metrics) *histogram) {
		b.family(name, "histogram")
		for _, sl := range order {
			of(&sl.metrics).write(b, secondLabels, name, sl.id)
		}
	}
	histograms("vllm:time_to_first_token_seconds", func(m *metrics) *histogram { return &m.first })
	histograms("vllm:inter_token_latency_seconds", func(m *metrics) *histogram { return &m.between })
	histograms("vllm:e2e_request_latency_seconds", func(m *metrics) *histogram { return &m.whole })
	histograms("vllm:request_queue_time_seconds", func(m *metrics) *histogram { return &m.queued })
	histograms("vllm:request_prefill_time_seconds", func(m *metrics) *histogram { return &m.prefill })
	histograms("vllm:request_decode_time_seconds", func(m *metrics) *histogram { return &m.decode })
	family("vllm:spec_decode_num_draft_tokens_total", "counter", func(st *engine.Stats) float64 { return float64(st.Drafted) })
	family("vllm:spec_decode_num_accepted_tokens_total", "counter", func(st *engine.Stats) float64 { return float64(st.Accepted) })
	family("lukv:kv_cache_bytes", "gauge", func(st *engine.Stats) float64 { return float64(st.ReservedBytes) })
	family("lukv:kv_cache_full_bytes", "gauge", func(st *engine.Stats) float64 { return float64(st.ReservedBytes + st.SavedBytes) })
	family("lukv:kv_cache_peak_bytes", "gauge", func(st *engine.Stats) float64 { return float64(st.PeakBytes) })
	family("lukv:kv_evicted_entries_total", "counter", func(st *engine.Stats) float64 { return float64(st.EvictedEntries) })
	b.family("lukv:prefix_store_bytes", "gauge")
	for i, sl := range order {
		b.sample("lukv:prefix_store_bytes", float64(stats[i].PrefixCacheBytes), "model_name", sl.id, "tier", "memory")
		b.sample("lukv:prefix_store_bytes", float64(stats[i].StoredBytes), "model_name", sl.id, "tier", "disk")
	}
	b.family("lukv:kv_estimated_loss", "histogram")
	for _, sl := range order {
		sl.metrics.lost.write(b, shareLabels, "lukv:kv_estimated_loss", sl.id)
	}
	b.family("lukv:kv_loss_unmeasured_total", "counter")
	for _, sl := range order {
		b.sample("lukv:kv_loss_unmeasured_total", float64(sl.metrics.unmeasured.Load()), "model_name", sl.id)
	}
	b.family("lukv:model_loaded", "gauge")
	for i, sl := range order {
		b.sample("lukv:model_loaded", loaded[i], "model_name", sl.id)
	}
	s.docs.mu.Lock()
	n, texts := len(s.docs.order), s.docs.bytes
	s.docs.mu.Unlock()
	b.family("lukv:request_bytes", "gauge")
	b.sample("lukv:request_bytes", float64(s.account.all.Used()))
	b.family("lukv:turns_waiting", "gauge")
	b.sample("lukv:turns_waiting", float64(turns.Waiting()))
	b.family("lukv:request_bytes_limit", "gauge")
	b.sample("lukv:request_bytes_limit", float64(s.account.all.Limit()))
	b.family("lukv:documents", "gauge")
	b.sample("lukv:documents", float64(n))
	b.family("lukv:document_bytes", "gauge")
	b.sample("lukv:document_bytes", float64(texts))
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	boundTaking(w)
	w.Write(b.text)
}
