package serve

import (
	"bytes"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/lukv/lukv/engine"
)

// Names and buckets are those of vLLM, which routers and dashboards know. The long
// buckets are needed: processors read long prompts for minutes.
var buckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}

// histogram counts durations without a lock.
type histogram struct {
	counts [24]atomic.Int64 // by bucket, not cumulative; the last is above all
	sum    atomic.Int64     // nanoseconds
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(buckets) && d.Seconds() > buckets[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) write(b *bytes.Buffer, name, model string) {
	total := int64(0)
	for i, le := range buckets {
		total += h.counts[i].Load()
		fmt.Fprintf(b, "%s_bucket{model_name=%q,le=\"%g\"} %d\n", name, model, le, total)
	}
	total += h.counts[len(buckets)].Load()
	fmt.Fprintf(b, "%s_bucket{model_name=%q,le=\"+Inf\"} %d\n%s_sum{model_name=%q} %g\n%s_count{model_name=%q} %d\n",
		name, model, total, name, model, time.Duration(h.sum.Load()).Seconds(), name, model, total)
}

// metrics are what is measured of a model's requests.
type metrics struct {
	first, between, whole, queued, prefill, decode histogram
}

// timing follows one request.
type timing struct {
	m             *metrics
	start, latest time.Time
}

func (m *metrics) begin(start time.Time) *timing { return &timing{m: m, start: start} }

// event notes that a piece of the answer came.
func (t *timing) event() {
	now := time.Now()
	if t.latest.IsZero() {
		t.m.first.observe(now.Sub(t.start))
	} else {
		t.m.between.observe(now.Sub(t.latest))
	}
	t.latest = now
}

// end notes that the answer is over.
func (t *timing) end(s *engine.Stream) {
	s.Close()
	u := s.Usage()
	t.m.whole.observe(time.Since(t.start))
	t.m.queued.observe(u.Queued)
	t.m.prefill.observe(u.Reading)
	t.m.decode.observe(u.Answering)
}

// writeMetrics answers a scrape. It takes no lock that a step of an engine holds.
func (s *Server) writeMetrics(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	order := s.models.list()
	stats := make([]engine.Stats, len(order))
	loaded := make([]int, len(order))
	for i, sl := range order {
		var on bool
		if stats[i], on = s.models.stats(sl); on {
			loaded[i] = 1
		}
	}
	gauge := func(name, kind string, value func(st engine.Stats) float64) {
		fmt.Fprintf(&b, "# TYPE %s %s\n", name, kind)
		for i, sl := range order {
			fmt.Fprintf(&b, "%s{model_name=%q} %g\n", name, sl.id, value(stats[i]))
		}
	}
	gauge("vllm:num_requests_running", "gauge", func(st engine.Stats) float64 { return float64(st.Running) })
	gauge("vllm:num_requests_waiting", "gauge", func(st engine.Stats) float64 { return float64(st.Waiting) })
	gauge("vllm:kv_cache_usage_perc", "gauge", func(st engine.Stats) float64 {
		if st.MaxBytes == 0 {
			return 0
		}
		return float64(st.ReservedBytes) / float64(st.MaxBytes)
	})
	gauge("vllm:prompt_tokens_total", "counter", func(st engine.Stats) float64 { return float64(st.PromptTokens) })
	gauge("vllm:generation_tokens_total", "counter", func(st engine.Stats) float64 { return float64(st.GeneratedTokens) })
	gauge("vllm:prefix_cache_queries_total", "counter", func(st engine.Stats) float64 { return float64(st.PromptTokens) })
	gauge("vllm:prefix_cache_hits_total", "counter", func(st engine.Stats) float64 { return float64(st.CachedTokens) })
	gauge("vllm:num_preemptions_total", "counter", func(st engine.Stats) float64 { return float64(st.Preempted) })
	fmt.Fprintf(&b, "# TYPE vllm:request_success_total counter\n")
	for i, sl := range order {
		fmt.Fprintf(&b, "vllm:request_success_total{model_name=%[1]q,finished_reason=\"stop\"} %[2]d\nvllm:request_success_total{model_name=%[1]q,finished_reason=\"abort\"} %[3]d\n",
			sl.id, stats[i].Completed, stats[i].Cancelled)
	}
	histograms := func(name string, of func(m *metrics) *histogram) {
		fmt.Fprintf(&b, "# TYPE %s histogram\n", name)
		for _, sl := range order {
			of(&sl.metrics).write(&b, name, sl.id)
		}
	}
	histograms("vllm:time_to_first_token_seconds", func(m *metrics) *histogram { return &m.first })
	histograms("vllm:inter_token_latency_seconds", func(m *metrics) *histogram { return &m.between })
	histograms("vllm:e2e_request_latency_seconds", func(m *metrics) *histogram { return &m.whole })
	histograms("vllm:request_queue_time_seconds", func(m *metrics) *histogram { return &m.queued })
	histograms("vllm:request_prefill_time_seconds", func(m *metrics) *histogram { return &m.prefill })
	histograms("vllm:request_decode_time_seconds", func(m *metrics) *histogram { return &m.decode })
	gauge("lukv:kv_cache_bytes", "gauge", func(st engine.Stats) float64 { return float64(st.ReservedBytes) })
	gauge("lukv:prefix_store_bytes", "gauge", func(st engine.Stats) float64 { return float64(st.KeptBytes) })
	fmt.Fprintf(&b, "# TYPE lukv:model_loaded gauge\n")
	for i, sl := range order {
		fmt.Fprintf(&b, "lukv:model_loaded{model_name=%q} %d\n", sl.id, loaded[i])
	}
	s.docs.mu.Lock()
	n := len(s.docs.order)
	s.docs.mu.Unlock()
	fmt.Fprintf(&b, "# TYPE lukv:documents gauge\nlukv:documents %d\n", n)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(b.Bytes())
}
