package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lukv/lukv/model/arch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/probe"
	"github.com/lukv/lukv/internal/sysmem"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// tiny is a shape whose points take milliseconds.
func tiny(window int) *model.Config {
	c := &model.Config{
		Arch: "llama", Layers: 3, Hidden: 64, Intermediate: 96, Heads: 4, KVHeads: 2, HeadDim: 16, Vocab: 300,
		MaxPositions: 4096, NormEps: 1e-5, Rope: arch.RopeConfig{Theta: 10000}, Windows: make([]int, 3), Type: tensor.BF16,
	}
	c.Windows[1] = window
	return c
}

func quick() Options {
	return Options{Threads: []int{1}, Reps: 2, Probe: time.Millisecond, ProbeBytes: 4 << 20}
}

func compression(metric, allocator string, ratio float64) Compression {
	return Compression{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: ratio}
}

func find(t *testing.T, r *Report, match func(p *Point) bool) *Point {
	t.Helper()
	i := slices.IndexFunc(r.Points, func(p Point) bool { return match(&p) })
	require.GreaterOrEqual(t, i, 0)
	return &r.Points[i]
}

func TestRun(t *testing.T) {
	o := quick()
	o.Reps = 1
	o.CPU = []kernels.CPU{kernels.Detect(), {}}
	o.Precision = []model.Precision{model.PrecisionBF16, model.PrecisionF32}
	o.Depth = []int{0, 300}
	o.Batch = []int{1, 3}
	o.Prefill, o.Decode = []int{70}, []int{4}
	o.Compression = []Compression{compression("snapkv", "lukv", 0.8), {}, compression("keydiff", "adakv", 0.5)}
	calls, last := 0, 0
	o.Progress = func(done, total int, next string) {
		calls++
		assert.GreaterOrEqual(t, done, last)
		assert.LessOrEqual(t, done, total)
		assert.NotEmpty(t, next)
		last = done
	}
	cfg := tiny(0)
	r, err := Run(t.Context(), []*Source{Random("tiny", cfg, tensor.BF16)}, o)
	require.NoError(t, err)
	require.Positive(t, calls)

	// Per opened model: prefill 2 depths x 3 compressions, decode at depth 0 once
	// per batch and at depth 300 for 3 compressions.
	models := 4
	if kernels.Detect() == (kernels.CPU{}) {
		models = 2
	}
	require.Len(t, r.Points, models*(2*3+2*(1+3)))
	seen := map[Key]bool{}
	for i := range r.Points {
		p := &r.Points[i]
		require.False(t, seen[p.Key], p.Key)
		seen[p.Key] = true
		assert.Empty(t, p.Error)
		assert.Positive(t, p.Speed)
		assert.LessOrEqual(t, p.Low, p.Speed)
		assert.GreaterOrEqual(t, p.High, p.Speed)
		assert.Positive(t, p.Compute)
		assert.Positive(t, p.CacheBytes)
		assert.GreaterOrEqual(t, len(p.Samples), 1)
		assert.LessOrEqual(t, len(p.Samples), 2)
		assert.Equal(t, p.Test == TestDecode, p.Read > 0)
		assert.Equal(t, p.Ratio > 0, p.VersusFull > 0)
		if p.Ratio == 0 {
			assert.Equal(t, 1.0, p.Kept, p.Key)
		} else if p.Test == TestDecode {
			assert.InDelta(t, 1-p.Ratio, p.Kept, 0.1, p.Key)
		}
		if p.Test == TestDecode {
			assert.Less(t, p.Allocations, 3.0, p.Key) // page tables still grow in so few steps
		}
		if p.Test == TestPrefill && p.Depth == 0 && p.Ratio > 0 {
			assert.Positive(t, p.Ranking, p.Key)
			for _, s := range p.Samples {
				assert.Positive(t, s.Full, "measured beside one without compression")
			}
		}
	}

	// Work computed by hand for the tiny shape. Layer matrices: 64·(2·64+2·32+3·96) each.
	const params = 3 * 64 * (2*64 + 2*32 + 3*96)
	pp := find(t, r, func(p *Point) bool { return p.Test == TestPrefill && p.Depth == 0 && p.Ratio == 0 })
	assert.EqualValues(t, 2*params*70, pp.Flop)
	assert.EqualValues(t, 3*4*(4*16)*(70*71/2), pp.AttentionFlop) // layers · query heads · 4·HeadDim · pairs
	tg := find(t, r, func(p *Point) bool {
		return p.Test == TestDecode && p.Depth == 300 && p.Ratio == 0 && p.Batch == 3 && p.Precision == "bf16"
	})
	// 301 entries before, 303.5 on average over 4 steps.
	assert.EqualValues(t, 3*3*4*(4*16)*303.5, tg.AttentionFlop)
	assert.EqualValues(t, 3*3*2*(2*16*2)*303.5, tg.CacheRead)
	assert.EqualValues(t, 3*2*(params+300*64), tg.Flop)
	assert.EqualValues(t, 2*(params+300*64+3*64*2+64)+tg.CacheRead, tg.BytesPerStep) // norms; untied embedding left out
	if runtime.GOOS == "linux" {
		assert.Positive(t, tg.PrivateBytes)
		assert.Positive(t, r.Machine.Memory)
	}
	assert.NotEmpty(t, r.Machine.Limits)
	checkOutputs(t, r)
}

// checkOutputs checks what all formats must contain.
func checkOutputs(t *testing.T, r *Report) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.WriteTable(&b))
	table := b.String()
	assert.Contains(t, table, "snapkv/lukv/0.8")
	assert.Contains(t, table, "model tiny") // the same in all rows: named once, not in a column
	assert.Equal(t, len(r.Points), strings.Count(table, "pp70")+strings.Count(table, "tg4"))

	b.Reset()
	require.NoError(t, r.WriteMarkdown(&b))
	var lines []string
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, "|") {
			lines = append(lines, line)
		}
	}
	require.Len(t, lines, len(r.Points)+2)
	for _, line := range lines {
		assert.Equal(t, strings.Count(lines[0], "|"), strings.Count(line, "|"), line)
	}

	b.Reset()
	require.NoError(t, r.WriteCSV(&b))
	rows, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, len(r.Points)+1)
	assert.Contains(t, rows[0], "tokens_per_second")
	assert.Equal(t, "tiny", rows[1][slices.Index(rows[0], "model")])

	data, err := json.Marshal(r)
	require.NoError(t, err)
	var again Report
	require.NoError(t, json.Unmarshal(data, &again))
	assert.Equal(t, r.Points, again.Points)

	path := filepath.Join(t.TempDir(), "report.json")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	s, err := ReadSeries([]string{path})
	require.NoError(t, err)
	assert.Len(t, s.names, 2*len(r.Points))
	list, err := Compare(s, s)
	require.NoError(t, err)
	require.Len(t, list, 2*len(r.Points))
	for _, d := range list {
		assert.Zero(t, d.Change, d.Name)
		assert.Equal(t, 1.0, d.P)
		assert.False(t, d.Significant)
	}
}

// With a sliding window, the bytes that a step reads of a layer stop growing.
func TestWindow(t *testing.T) {
	o := quick()
	o.Depth = []int{1000}
	o.Prefill, o.Decode = []int{20}, []int{4}
	o.Compression = []Compression{{}, compression("keydiff", "lukv", 0.5)}
	r, err := Run(t.Context(), []*Source{Random("tiny", tiny(100), tensor.BF16)}, o)
	require.NoError(t, err)
	tg := find(t, r, func(p *Point) bool { return p.Test == TestDecode && p.Ratio == 0 })
	assert.EqualValues(t, 2*(2*16*2)*(2*1003.5+100), tg.CacheRead)
	assert.Less(t, tg.CacheBytes, int64(2*2*1100*(4*16+4)+2*300*(4*16+4)))
	pp := find(t, r, func(p *Point) bool { return p.Test == TestPrefill && p.Ratio == 0 })
	assert.EqualValues(t, 4*4*16*(2*(20*1000+20*21/2)+20*100), pp.AttentionFlop)
}

func TestTooLittleMemory(t *testing.T) {
	if sysmem.Available() == 0 {
		t.Skip("free memory is not known on this system")
	}
	o := quick()
	o.Depth = []int{1 << 24, 0}
	o.Batch = []int{4096}
	o.Decode = []int{1}
	cfg := tiny(0)
	cfg.Vocab = 10
	r, err := Run(t.Context(), []*Source{Random("tiny", cfg, tensor.BF16)}, o)
	require.ErrorIs(t, err, ErrMemory)
	require.Regexp(t, `it needs [0-9.]+ GiB and 128.0 MiB for buffers, [0-9.]+ [MG]iB are free`, err.Error())
	require.Len(t, r.Points, 2)
	assert.NotEmpty(t, r.Points[0].Error)
	assert.Empty(t, r.Points[1].Error, "the others are measured")
	var b bytes.Buffer
	require.NoError(t, r.WriteTable(&b))
	assert.Contains(t, b.String(), "not measured: tiny")

	big := tiny(0)
	big.Vocab = 1 << min(36, strconv.IntSize-2)
	r, err = Run(t.Context(), []*Source{Random("big", big, tensor.BF16)}, o)
	require.ErrorIs(t, err, ErrMemory)
	assert.Empty(t, r.Points)
}

func TestCancel(t *testing.T) {
	o := quick()
	o.Prefill, o.Decode = []int{16, 17}, nil
	ctx, cancel := context.WithCancel(t.Context())
	o.Progress = func(_, _ int, next string) {
		if strings.Contains(next, "pp17") {
			cancel()
		}
	}
	r, err := Run(ctx, []*Source{Random("tiny", tiny(0), tensor.BF16)}, o)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, r.Interrupted)
	require.Len(t, r.Points, 1, "what is done stays")
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Threads: []int{-1}}, "threads: found -1"},
		{Options{Depth: []int{-5}}, "depth: found -5"},
		{Options{Batch: []int{0}}, "batch: found 0"},
		{Options{Prefill: []int{0}}, "prefill tokens: found 0"},
		{Options{Decode: []int{1 << 30}}, "decode tokens: found"},
		{Options{Reps: -1}, "repetitions: found -1"},
		{Options{MaxMemory: -1}, "memory limit: found -1"},
		{Options{Compression: []Compression{compression("snapkv", "uniform", 1)}}, "ratio: found 1"},
	} {
		_, err := Run(t.Context(), nil, c.o)
		require.ErrorContains(t, err, c.want)
	}
	_, err := Shape("llama-9", tensor.BF16)
	require.ErrorContains(t, err, "llama-9")
	s, err := Shape("llama-3.2-1b", tensor.BF16)
	require.NoError(t, err)
	assert.InDelta(t, 2.4715e9, float64(s.bytes), 1e6)
}

// The compute peak is that of the forced instruction set, and of what the arithmetic
// allows.
func TestUnit(t *testing.T) {
	for _, cpu := range kernels.Variants() {
		for _, c := range []struct {
			weights   tensor.Type
			precision model.Precision
		}{{tensor.BF16, model.PrecisionBF16}, {tensor.BF16, model.PrecisionF32}, {tensor.F16, model.PrecisionAuto}} {
			o := quick()
			o.Reps = 1
			o.Decode = []int{1}
			o.CPU, o.Precision = []kernels.CPU{cpu}, []model.Precision{c.precision}
			r, err := Run(t.Context(), []*Source{Random("tiny", tiny(0), c.weights)}, o)
			require.NoError(t, err)
			want := cpu.String()
			if cpu.AVX512 && (!cpu.AVX512BF16 || cpu.SlowDot || c.precision != model.PrecisionBF16) {
				want = "avx512"
			}
			assert.Equal(t, probe.UnitOf(want).Name, r.Points[0].Unit, "%s %v %s", cpu, c.weights, c.precision)
			assert.Equal(t, want, probe.UnitOf(want).Set)
		}
	}
}

// A point that fails is reported by name with its own kind of error.
func TestPointFails(t *testing.T) {
	o := quick()
	o.Decode = []int{1}
	o.Depth = []int{10}
	o.Compression = []Compression{compression("snapkv", "lukv", 0.5), {}}
	cfg := tiny(0)
	for i := range cfg.Windows {
		cfg.Windows[i] = 64
	}
	r, err := Run(t.Context(), []*Source{Random("tiny", cfg, tensor.BF16)}, o)
	require.ErrorContains(t, err, "compression snapkv/lukv/0.5: make up a profile: found only layers with a sliding window")
	require.False(t, errors.Is(err, ErrMemory))
	require.Len(t, r.Points, 2)
}

func TestSummarize(t *testing.T) {
	p := Point{Samples: []Sample{
		{Speed: 10, Read: 0.5}, {Speed: 1, Read: 0.1, Disturbed: true}, {Speed: 14, Read: 0.7}, {Speed: 11, Read: 0.6},
	}}
	p.summarize()
	assert.Equal(t, []float64{11, 10, 14, 0.6}, []float64{p.Speed, p.Low, p.High, p.Read})
	assert.InDelta(t, 4.0/11, p.Spread(), 1e-12)
	assert.Equal(t, 1, p.DisturbedSamples)
	assert.Equal(t, "1 disturbed left out", p.note())

	p = Point{Samples: []Sample{{Speed: 3, Disturbed: true}, {Speed: 5, Disturbed: true}}}
	p.summarize()
	assert.Equal(t, 4.0, p.Speed)
	assert.True(t, p.Disturbed)
	assert.Equal(t, "disturbed", p.note())

	assert.False(t, apart(100, 90.1))
	assert.True(t, apart(89.9, 100))
}

// After the first repetition nothing is allocated per token.
func TestSteadyStateAllocations(t *testing.T) {
	o := quick()
	o.Reps = 3
	o.Depth = []int{0, 200}
	o.Batch = []int{1, 2}
	o.Decode = []int{130}
	o.Compression = []Compression{{}, compression("snapkv", "lukv", 0.5)}
	r, err := Run(t.Context(), []*Source{Random("tiny", tiny(0), tensor.BF16)}, o)
	require.NoError(t, err)
	require.Len(t, r.Points, 6)
	for _, p := range r.Points {
		// An allocation per token would give at least 1. The Go runtime's own, for
		// whatever else the process does meanwhile, count too; package model tests
		// for exactly zero.
		assert.Less(t, p.Allocations, 0.5, p.Key)
	}
}

// The memory beyond weights and caches is known for mapped weights.
func TestPrivateMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system does not tell")
	}
	o := quick()
	o.Prefill, o.Decode = []int{300}, []int{3}
	r, err := Run(t.Context(), []*Source{Folder("disk", mappedModel)}, o)
	require.NoError(t, err)
	require.Len(t, r.Points, 2)
	for _, p := range r.Points {
		assert.True(t, p.Mapped)
		assert.Positive(t, p.PrivateBytes, p.Key)
		assert.Positive(t, p.PrivatePeakBytes, p.Key)
	}

	_, err = Run(t.Context(), []*Source{Folder("none", filepath.Join(t.TempDir(), "none"))}, o)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "open none")
}

// mappedModel is a checkpoint folder.
const mappedModel = "../../model/testdata/models/llama32-tied-bf16"

// Keys, and with them tables, name the device and how much of the model it runs.
func TestKeyNamesDevice(t *testing.T) {
	k := Key{Model: "m", Test: TestDecode, Tokens: 4}
	assert.NotContains(t, k.String(), " on ")
	k.Device = "Card"
	assert.Contains(t, k.String(), " on Card")
	k.Layers = 3
	assert.Contains(t, k.String(), " on Card (3 layers)")
}

// A device is named with its driver.
func TestWriteDevice(t *testing.T) {
	r := &Report{Device: &DeviceReport{
		Name: "vulkan", Info: kernels.DeviceInfo{Name: "Card", Driver: "driver 1.2", API: "Vulkan 1.3", Matrices: "bf16 16×16×16"},
	}}
	for _, write := range []func(*bytes.Buffer) error{
		func(b *bytes.Buffer) error { return r.WriteTable(b) }, func(b *bytes.Buffer) error { return r.WriteMarkdown(b) },
	} {
		var b bytes.Buffer
		require.NoError(t, write(&b))
		for _, want := range []string{"Card", "driver 1.2", "matrices: bf16 16×16×16"} {
			assert.Contains(t, b.String(), want)
		}
	}
}
