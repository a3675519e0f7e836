package builtin

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testqemu"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

const recordedFile = "testdata/recorded.json"

var updateRecorded = flag.Bool("update-recorded", false, "rewrite "+recordedFile+" from the portable functions")

// record is the outcome of a short prompt, as hashes.
type record struct {
	Logits string            `json:"logits"` // after the prompt and after each of Greedy but the last
	Greedy []int32           `json:"greedy"`
	Kept   map[string]string `json:"kept"` // positions by metric and allocator
}

func hashOf[T any](x []T) string {
	h := sha256.New()
	if err := binary.Write(h, binary.LittleEndian, x); err != nil {
		panic(err)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func recordOf(t testing.TB, cpu kernels.CPU, precision model.Precision) record {
	ctx := context.Background()
	m, err := Open(ctx, model.WithCPU(cpu), model.WithPrecision(precision), model.WithThreads(2))
	require.NoError(t, err)
	defer m.Close()
	_, tensors := readGolden(t)
	prompt := tensors.ids(t, "prompt1.input_ids")[:20]

	r := record{Kept: map[string]string{}}
	var metrics []lukv.Metric
	for _, name := range lukv.Metrics() {
		metric, err := lukv.NewMetric(lukv.MetricConfig{Name: name, Params: windowOf(name)})
		require.NoError(t, err)
		metrics = append(metrics, metric)
	}
	// Metrics that read every query are observed separately: the allocator cake
	// looks at as many queries as there are.
	wide := func(metric lukv.Metric) bool { return metric.Needs(len(prompt), 0).Window >= len(prompt) }
	alone, err := m.Observe(ctx, prompt, model.SessionOptions{ChunkTokens: 13}, metrics[slices.IndexFunc(metrics, wide)])
	require.NoError(t, err)
	defer alone.Close()
	ob, err := m.Observe(ctx, prompt, model.SessionOptions{ChunkTokens: 13}, slices.DeleteFunc(slices.Clone(metrics), wide)...)
	require.NoError(t, err)
	defer ob.Close()
	s, err := ob.Session().Fork()
	require.NoError(t, err)
	defer s.Close()
	var logits []uint32
	for range 4 {
		for _, v := range s.Logits() {
			logits = append(logits, math.Float32bits(v))
		}
		r.Greedy = append(r.Greedy, int32(cpu.Argmax(s.Logits())))
		require.NoError(t, s.Append(ctx, r.Greedy[len(r.Greedy)-1]))
	}
	r.Logits = hashOf(logits)
	for _, metric := range metrics {
		for _, name := range lukv.Allocators() {
			p := &lukv.Policy{Metric: lukv.MetricConfigOf(metric), Allocator: lukv.AllocatorConfig{Name: name}, Ratio: 0.5}
			if lukv.MetricConfigOf(metric).Name == "criticalkv" && name == "cake" {
				p.Allocator.Params = `{"cascade":false}`
			}
			if p.Allocator.NeedsProfile() || p.Allocator.Validate() != nil || !recorded(p) {
				continue // its profiles are for the default windows, or it has parameters without a default
			}
			from := ob
			if wide(metric) {
				from = alone
			}
			c, err := from.Compress(ctx, p)
			require.NoError(t, err)
			var positions []int32
			for at := range m.Config().Layers {
				for h := range m.Config().KVHeads {
					positions = append(positions, c.Cache().Positions(at, h, nil)...)
					positions = append(positions, -1)
				}
			}
			r.Kept[lukv.MetricConfigOf(metric).Name+" "+name] = hashOf(positions)
			require.NoError(t, c.Close())
		}
	}
	return r
}

// recorded leaves out pairs whose halves other pairs cover: a metric is recorded
// for its scores, an allocator for its budgets.
func recorded(p *lukv.Policy) bool {
	switch p.Metric.Name {
	case "lagkv", "leverage", "compactor", "cur", "chunkkv", "triattention":
		return p.Allocator.Name == "uniform"
	}
	return p.Allocator.Name != "threshold" || p.Metric.Name == "keydiff"
}

// windowOf sets a window shorter than the prompt, or nothing for metrics that have none.
func windowOf(metric string) string {
	switch metric {
	case "snapkv", "cake", "defensivekv":
		return `{"window":8}`
	case "criticalkv", "chunkkv":
		return `{"metric":{"name":"snapkv","window":8}}`
	case "lagkv":
		return `{"lag":5}`
	}
	return ""
}

// TestRecorded requires the bits that portable Go gave when they were recorded,
// whatever processor this is.
func TestRecorded(t *testing.T) {
	precisions := []model.Precision{model.PrecisionF32, model.PrecisionBF16}
	if *updateRecorded {
		all := map[model.Precision]record{}
		for _, p := range precisions {
			all[p] = recordOf(t, kernels.CPU{}, p)
		}
		text, err := json.MarshalIndent(all, "", " ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(recordedFile, append(text, '\n'), 0o644))
	}
	text, err := os.ReadFile(recordedFile)
	require.NoError(t, err)
	var want map[model.Precision]record
	require.NoError(t, json.Unmarshal(text, &want))
	// Dot products of bytes are those of no precision here.
	sets := slices.DeleteFunc(kernels.Variants(), func(c kernels.CPU) bool { return c.DotProd })
	checks := 0
	for _, cpu := range sets {
		for _, p := range precisions {
			got := recordOf(t, cpu, p)
			require.Equal(t, want[p], got, "%v, precision %s", cpu, p)
			checks += 1 + len(got.Greedy) + len(got.Kept)
		}
	}
	line := fmt.Sprintf("recorded bits: %d checks on %s, %v", checks, runtime.GOARCH, sets)
	t.Log(line)
	fmt.Println(line)
	require.NotZero(t, checks)
}

// TestARM64 runs TestRecorded as an arm64 program.
func TestARM64(t *testing.T) {
	out := testqemu.ARM64(t, ".", "-test.run", "^TestRecorded$", "-test.v")
	require.Contains(t, out, "recorded bits:")
}
