package model

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// prefillMemory is the effect of a prefill on the memory of its process, in bytes.
type prefillMemory struct {
	Peak   int64 // largest growth
	Growth int64 // at its end, including garbage not yet collected
	Cache  int64 // as the session reports
}

// TestPrefillPeaks looks at whole processes: with any metric except kvzip, one that compresses
// during prefill takes less memory at its peak than one that does not, and holds little but
// its cache afterwards, even without a garbage collection.
func TestPrefillPeaks(t *testing.T) {
	if flag.NArg() == 2 && flag.Arg(0) == "prefill-memory" {
		json.NewEncoder(os.Stdout).Encode(memoryOfPrefill(t, flag.Arg(1)))
		return
	}
	measure := func(metric string) (m prefillMemory) {
		out, err := exec.Command(os.Args[0], "-test.run=^TestPrefillPeaks$", "prefill-memory", metric).Output()
		require.NoError(t, err, "%s", out)
		require.NoError(t, json.Unmarshal([]byte(strings.SplitN(string(out), "\n", 2)[0]), &m), "%s", out)
		return m
	}
	full := measure("")
	require.Greater(t, full.Peak, full.Cache*9/10, "the test measures something")
	for _, metric := range metricNames() { // kvzip reads the prompt twice at the same time
		m := measure(metric)
		t.Logf("%s: %+v, without %+v", metric, m, full)
		require.Less(t, m.Cache, full.Cache/3, metric)
		require.Less(t, m.Peak, full.Peak, metric)
		require.LessOrEqual(t, m.Growth, m.Cache+m.Cache/10+4<<20, metric)
	}
}

// memoryOfPrefill reads a prompt whose full cache takes 12 MiB.
func memoryOfPrefill(t *testing.T, metric string) prefillMemory {
	os.Setenv("LUKV_CHECK", "")
	ctx := context.Background()
	cfg := (testShape{layers: 12, hidden: 64, ffn: 64, heads: 8, kv: 8, dim: 32}).config()
	m, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithThreads(2))
	require.NoError(t, err)
	defer m.Close()
	o := SessionOptions{}
	if metric != "" {
		o.Compression = &lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: metric}}
	}
	// Allocate beforehand what is kept for later prompts.
	warm := newTestSession(t, m, o)
	require.NoError(t, warm.Prefill(ctx, randomTokens(600, 97, 1)))
	require.NoError(t, warm.Close())
	debugFreeOSMemory()
	s := newTestSession(t, m, o)
	before := statusBytes(t, "RssAnon")
	require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
	base := statusBytes(t, "VmRSS")
	require.NoError(t, s.Prefill(ctx, randomTokens(1024, 97, 2)))
	return prefillMemory{
		Peak: statusBytes(t, "VmHWM") - base, Growth: statusBytes(t, "RssAnon") - before, Cache: s.Stats().CacheBytes,
	}
}

// statusBytes reads a field of the process's status.
func statusBytes(t *testing.T, name string) int64 {
	f, err := os.Open("/proc/self/status")
	require.NoError(t, err)
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		var kb int64
		if _, err := fmt.Sscanf(in.Text(), name+": %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	t.Fatalf("the system does not say %s", name)
	return 0
}

// TestQueriesLieOutsideTheHeap: what metrics hold of a layer's queries, or of those
// that repeat the prompt, does not become garbage but is freed with the prefill.
func TestQueriesLieOutsideTheHeap(t *testing.T) {
	const T = 1500
	cfg := (testShape{layers: 3, hidden: 64, ffn: 64, heads: 8, kv: 2, dim: 32}).config()
	cfg.Vocab = 2176 // of the embedded model's tokenizer
	m, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithThreads(1))
	require.NoError(t, err)
	defer m.Close()
	m.tokOnce.Do(func() { m.tok, m.tokErr = tokenizer.Load(os.DirFS("builtin")) }) // kvzip encodes instructions
	garbage := func(metric lukv.MetricConfig) int64 {
		o := SessionOptions{Compression: &lukv.Policy{Ratio: 0.8, Metric: metric}}
		var before, after runtime.MemStats
		for range 2 { // the first one warms up
			s := newTestSession(t, m, o)
			runtime.ReadMemStats(&before)
			require.NoError(t, s.Prefill(t.Context(), randomTokens(T, 97, 1)))
			runtime.ReadMemStats(&after)
			require.NoError(t, s.Close())
		}
		return int64(after.TotalAlloc - before.TotalAlloc)
	}
	plain := garbage(lukv.MetricConfig{Name: "knorm"})
	queries := int64(4 * T * cfg.Heads * cfg.HeadDim)
	for _, metric := range []string{`{"name":"compactor"}`, `{"name":"kvzip","chunk":600}`} {
		c, err := lukv.ParseMetricConfig(metric)
		require.NoError(t, err)
		require.Less(t, garbage(c)-plain, queries*3/4, metric)
	}
}
