//go:build (linux || darwin || windows) && (amd64 || arm64)

package devicetest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// promptLen is more than a block of the attention sums.
const promptLen = 300

// TestOneOrderOfArithmetic checks promise P1 within one device and driver: chunks,
// decode versus prefill, and whatever else is in the pass do not change a bit. From
// those of the CPU the logits differ by at most a bound that depends on the cache type.
func TestOneOrderOfArithmetic(t *testing.T) {
	d := device(t)
	prompt, steps := randomTokens(promptLen, 1), randomTokens(4, 2)
	for _, shape := range shapes {
		for _, c := range []struct {
			precision model.Precision
			cache     tensor.Type
		}{{model.PrecisionF32, shape.weights}, {model.PrecisionBF16, shape.weights}, {model.PrecisionF32, tensor.I8}} {
			if shape.weights != tensor.BF16 && c.precision == model.PrecisionBF16 || shape.name != shapes[0].name && c.cache == tensor.I8 {
				continue // the same as PrecisionF32 for these weights and caches; as in the first shape
			}
			precision := c.precision
			t.Run(fmt.Sprint(shape.name, "/", precision, "/", c.cache), func(t *testing.T) {
				o := model.SessionOptions{CacheType: c.cache}
				host := shape.open(t, model.WithPrecision(precision))
				ref := trace(t, session(t, host, o), prompt, steps)
				m := shape.open(t, model.WithPrecision(precision), model.WithOpenDevice(d))
				o.ChunkTokens = 1000
				want := trace(t, session(t, m, o), prompt, steps)
				dev := testnum.Deviation(want, ref)
				t.Logf("deviation from the processor: %.2g", dev)
				// Keys, values and activations may be rounded differently to 16 or 8 bits.
				bound := map[tensor.Type]float64{tensor.F32: 2e-5, tensor.F16: 1e-3, tensor.BF16: 2e-2, tensor.I8: integerBound}[o.CacheType]
				require.Less(t, dev, bound)
				for _, chunk := range []int{1, 7, 64} {
					o.ChunkTokens = chunk
					n := min(promptLen, 25*chunk) // small chunks take long
					testnum.SameBits(t, fmt.Sprintf("chunks of %d", chunk), want[:n*vocab], trace(t, session(t, m, o), prompt[:n], nil))
				}
				s := session(t, m, o)
				testnum.SameBits(t, "decoded", want, trace(t, s, prompt[:280], append(prompt[280:len(prompt):len(prompt)], steps...)))

				// The same session in a batch with others of different lengths.
				among := session(t, m, o)
				require.NoError(t, among.Prefill(context.Background(), prompt))
				batch := []*model.Session{among}
				for i := range 4 {
					other := session(t, m, o)
					require.NoError(t, other.Prefill(context.Background(), prompt[:5+70*i]))
					batch = append(batch, other)
				}
				for i, id := range steps {
					require.NoError(t, m.Step(context.Background(), batch, slices.Repeat([]int32{id}, len(batch))))
					at := (promptLen + i) * vocab
					testnum.SameBits(t, "in a batch", want[at:at+vocab], among.Logits())
				}
			})
		}
	}
}

// metrics are those whose kept sets are compared with the CPU's.
var metrics = []string{"snapkv", "keydiff", "expected_attention", "knorm", "tova", "observed", "key_distance"}

// TestKeptSets compresses on the device and on the CPU: the same number of entries is
// kept, and the same entries except where scores tie within rounding.
func TestKeptSets(t *testing.T) {
	d := device(t)
	ctx := context.Background()
	prompt := randomTokens(promptLen, 1)
	shape := shapes[0]
	host := shape.open(t, model.WithPrecision(model.PrecisionF32))
	for _, layers := range []int{shape.layers, 2} {
		m := shape.open(t, model.WithPrecision(model.PrecisionF32), model.WithOpenDevice(d), model.WithDeviceLayers(layers))
		require.Equal(t, layers, m.DeviceLayers())
		var all []lukv.Metric
		for _, name := range metrics {
			metric, err := lukv.NewMetric(lukv.MetricConfig{Name: name})
			require.NoError(t, err)
			all = append(all, metric)
		}
		observed, err := m.Observe(ctx, prompt, model.SessionOptions{ChunkTokens: 128}, all...)
		require.NoError(t, err)
		defer observed.Close()
		for _, metric := range metrics {
			p := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.8}
			a, b := session(t, host, model.SessionOptions{Compression: p}), session(t, m, model.SessionOptions{Compression: p, ChunkTokens: 100})
			require.NoError(t, a.Prefill(ctx, prompt))
			require.NoError(t, b.Prefill(ctx, prompt))
			kept, differ := 0, 0
			for at := range shape.layers {
				for h := range shape.kv {
					x, y := a.Cache().Positions(at, h, nil), b.Cache().Positions(at, h, nil)
					kept += len(x)
					for _, pos := range x {
						if !slices.Contains(y, pos) {
							differ++
						}
					}
				}
			}
			// P1: other chunks, and a session derived from an observation.
			chunks := session(t, m, model.SessionOptions{Compression: p, ChunkTokens: 64})
			require.NoError(t, chunks.Prefill(ctx, prompt))
			testnum.SameBits(t, metric+" in other chunks", b.Logits(), chunks.Logits())
			derived, err := observed.Compress(ctx, p)
			require.NoError(t, err)
			require.NoError(t, derived.Append(ctx, 1))
			require.NoError(t, chunks.Append(ctx, 1))
			testnum.SameBits(t, metric+" derived from an observation", chunks.Logits(), derived.Logits())
			require.NoError(t, derived.Close())
			sa, sb := a.Stats(), b.Stats()
			t.Logf("%d layers, %s: %d of %d kept entries differ, logits deviate by %.2g", layers, metric, differ, kept, testnum.Deviation(b.Logits(), a.Logits()))
			require.Equal(t, sa.Entries, sb.Entries)
			require.LessOrEqual(t, differ, kept/100)
			require.Equal(t, layers == shape.layers, sb.DeviceBytes == sb.CacheBytes)
		}
	}
}

// TestNoCompressionMeansNoChange checks promise P2.
func TestNoCompressionMeansNoChange(t *testing.T) {
	m := shapes[0].open(t, model.WithOpenDevice(device(t)))
	prompt, steps := randomTokens(100, 1), randomTokens(3, 2)
	want := trace(t, session(t, m, model.SessionOptions{}), prompt, steps)
	for _, p := range []*lukv.Policy{
		{Metric: lukv.MetricConfig{Name: "snapkv"}},
		{Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "global"}, BudgetTokens: 100},
	} {
		testnum.SameBits(t, p.Metric.Name, want, trace(t, session(t, m, model.SessionOptions{Compression: p}), prompt, steps))
	}
}

// TestCacheBytesAreDeviceMemory checks promise P3: the bytes that the cache reports are
// those by which device memory has grown, and eviction frees them.
func TestCacheBytesAreDeviceMemory(t *testing.T) {
	d := device(t)
	for _, cache := range []tensor.Type{tensor.F32, tensor.I8} {
		t.Run(cache.String(), func(t *testing.T) { cacheBytesAreDeviceMemory(t, d, cache) })
	}
}

func cacheBytesAreDeviceMemory(t *testing.T, d kernels.Device, cacheType tensor.Type) {
	ctx := context.Background()
	shape := shape{layers: 2, hidden: 32, ffn: 32, heads: 4, kv: 4, dim: 64, weights: tensor.F32}
	m := shape.open(t, model.WithOpenDevice(d))
	tokens := randomTokens(1200, 3)
	run := func(policy *lukv.Policy) (cache, grown int64) {
		o := model.SessionOptions{Compression: policy, CacheType: cacheType}
		warm := session(t, m, o) // allocates the memory of the passes
		require.NoError(t, warm.Prefill(ctx, tokens[:600]))
		require.NoError(t, warm.Close())
		before := int64(d.Memory().Used)
		s := session(t, m, o)
		require.NoError(t, s.Prefill(ctx, tokens))
		st := s.Stats()
		require.Equal(t, st.CacheBytes, st.DeviceBytes)
		grown = int64(d.Memory().Used) - before
		require.NoError(t, s.Close())
		require.Equal(t, before, int64(d.Memory().Used), "after closing")
		return st.CacheBytes, grown
	}
	full, grown := run(nil)
	t.Logf("full: cache %d bytes, the device's memory grew by %d", full, grown)
	// Pages are allocated in chunks, and there are page tables.
	require.InDelta(t, full, grown, 0.1*float64(full)+2<<20)
	cut, grown := run(&lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.8})
	t.Logf("80 %% evicted: cache %d bytes, the device's memory grew by %d", cut, grown)
	require.Less(t, cut, full/4)
	require.InDelta(t, cut, grown, 0.1*float64(cut)+2<<20)
}

// TestAcrossDevices saves sessions on the host and on the device, and loads each
// everywhere.
func TestAcrossDevices(t *testing.T) {
	d := device(t)
	ctx := context.Background()
	shape := shapes[2]
	open := func(o ...model.Option) *model.Model {
		return shape.open(t, append(o, model.WithPrecision(model.PrecisionF32))...)
	}
	models := []*model.Model{open(), open(model.WithOpenDevice(d)), open(model.WithOpenDevice(d), model.WithDeviceLayers(1))}
	prompt, steps := randomTokens(150, 1), randomTokens(6, 2)
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Ratio: 0.5}
	dir := t.TempDir()
	var want []float32
	for i, m := range models {
		s := session(t, m, model.SessionOptions{Compression: policy})
		require.NoError(t, s.Prefill(ctx, prompt))
		path := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, s.Save(t.Context(), path))
		f, err := s.Fork()
		require.NoError(t, err)
		require.NoError(t, f.Prefill(ctx, steps))
		require.NoError(t, f.Truncate(len(prompt)+2))
		require.NoError(t, f.Prefill(ctx, steps[2:]))
		if want == nil {
			want = slices.Clone(f.Logits())
		}
		require.Less(t, testnum.Deviation(f.Logits(), want), 2e-5)
		for _, other := range models {
			l, err := other.LoadSession(t.Context(), path, model.SessionOptions{})
			require.NoError(t, err)
			require.NoError(t, l.Cache().Check())
			require.NoError(t, l.Prefill(ctx, steps))
			require.Less(t, testnum.Deviation(l.Logits(), want), 2e-5)
			if other == m {
				testnum.SameBits(t, "loaded where it was saved", f.Logits(), l.Logits())
			}
			require.NoError(t, l.Close())
		}
		require.NoError(t, f.Close())
	}
}

// TestDecodeAllocatesNothing checks promise P8.
func TestDecodeAllocatesNothing(t *testing.T) {
	m := shapes[0].open(t, model.WithOpenDevice(device(t)))
	s := session(t, m, model.SessionOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	require.NoError(t, s.Prefill(ctx, randomTokens(70, 1)))
	for range 20 { // let everything grow that does
		require.NoError(t, s.Append(ctx, 5))
	}
	// The list of tokens doubles now and then, and there is a new page every 64 tokens.
	allocs := testing.AllocsPerRun(20, func() {
		if err := s.Append(ctx, 7); err != nil {
			t.Fatal(err)
		}
	})
	require.Zero(t, allocs)
}

// TestConcurrentSessions runs several sessions concurrently.
func TestConcurrentSessions(t *testing.T) {
	m := shapes[2].open(t, model.WithOpenDevice(device(t)))
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Ratio: 0.5}
	work := func(i int) []float32 {
		o := model.SessionOptions{ChunkTokens: 32}
		if i%2 == 1 {
			o.Compression = policy
		}
		return trace(t, session(t, m, o), randomTokens(70+10*i, uint64(i)), randomTokens(5, 9))
	}
	const n = 4
	var want, got [n][]float32
	for i := range n {
		want[i] = work(i)
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { got[i] = work(i) })
	}
	wg.Wait()
	for i := range n {
		testnum.SameBits(t, fmt.Sprintf("session %d", i), want[i], got[i])
	}
}

// TestManySessions opens, compresses, forks, saves and closes 1,000 sessions.
func TestManySessions(t *testing.T) {
	d := device(t)
	shape := shape{layers: 1, hidden: 32, ffn: 32, heads: 2, kv: 1, dim: 32, weights: tensor.F32}
	m := shape.open(t, model.WithOpenDevice(d))
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "session")
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5}
	use := func() {
		s, err := m.NewSession(model.SessionOptions{Compression: policy})
		require.NoError(t, err)
		require.NoError(t, s.Prefill(ctx, randomTokens(12, 1)))
		f, err := s.Fork()
		require.NoError(t, err)
		require.NoError(t, f.Append(ctx, 3))
		require.NoError(t, f.Save(t.Context(), path))
		require.NoError(t, f.Close())
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
	}
	for range 20 {
		use()
	}
	before, goroutines := d.Memory(), runtime.NumGoroutine()
	n := 1000
	if testing.Short() {
		n = 50
	}
	for range n {
		use()
	}
	after := d.Memory()
	require.Equal(t, before.Buffers, after.Buffers)
	require.Equal(t, before.Used, after.Used)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
}

// TestOpenByName opens and closes a model that opens its device itself.
func TestOpenByName(t *testing.T) {
	device(t) // or skip
	m := shapes[0].open(t, model.WithDevice("vulkan:"+deviceName()))
	require.NotNil(t, m.Device())
	s := session(t, m, model.SessionOptions{})
	require.NoError(t, s.Prefill(context.Background(), randomTokens(10, 1)))
	require.NoError(t, m.Close())
	require.ErrorIs(t, s.Append(context.Background(), 1), model.ErrClosed)
	require.NoError(t, s.Close(), "a session may be closed after its model")

	_, err := kernels.OpenDevice("vulkan:no such device")
	require.ErrorIs(t, err, kernels.ErrNoDevice)
}
