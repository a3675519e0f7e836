package model

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testdevice"
	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
	"github.com/lukv/lukv/tensor"
)

// onDevice opens a shape with its first layers (all if layers is 0) on a fake
// device, which must be empty when the test is over.
func (s testShape) onDevice(t testing.TB, layers int, opts ...Option) (*Model, *testdevice.Device) {
	d := newFakeDevice()
	t.Cleanup(func() { d.WantEmpty(t) }) // runs after the model is closed
	if layers > 0 {
		opts = append(opts, WithDeviceLayers(layers))
	}
	return s.open(t, append(opts, WithOpenDevice(d))...), d
}

// TestDeviceGivesTheHostsBits runs the forward pass on a device with the host's
// arithmetic, both as a whole and with the last layers on the host.
func TestDeviceGivesTheHostsBits(t *testing.T) {
	prompt, steps := randomTokens(promptLen, 97, 1), randomTokens(6, 97, 2)
	for _, shape := range testShapes {
		for _, precision := range []Precision{PrecisionF32, PrecisionBF16} {
			for _, cache := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16, tensor.I8} {
				if shape.name == "odd-bf16" && cache != tensor.BF16 {
					continue // no kernel takes its sizes: all portable, and slow
				}
				t.Run(fmt.Sprint(shape, "/", precision, "/", cache), func(t *testing.T) {
					host := shape.open(t, WithPrecision(precision), WithThreads(2))
					want := traceOf(t, newTestSession(t, host, SessionOptions{CacheType: cache}), prompt, steps)
					for layers := range shape.layers {
						m, _ := shape.onDevice(t, layers, WithPrecision(precision), WithThreads(2))
						for _, chunk := range []int{7, 64, 1000} {
							if layers > 0 && chunk != 64 {
								continue
							}
							s := newTestSession(t, m, SessionOptions{CacheType: cache, ChunkTokens: chunk})
							testnum.SameBits(t, fmt.Sprintf("%d layers, chunk %d", layers, chunk), want, traceOf(t, s, prompt, steps))
						}
					}
				})
			}
		}
	}
}

// TestDeviceCompresses checks that every metric and allocator, and every form of
// compression while decoding, gives the same on a device as on the host, in sessions
// of their own and in sessions derived from an observation.
func TestDeviceCompresses(t *testing.T) {
	ctx := context.Background()
	prompt, steps := randomTokens(promptLen, 97, 1), randomTokens(20, 97, 2)
	shape := testShapes[0]
	host := shape.open(t, WithThreads(2))
	whole, d := shape.onDevice(t, 0, WithThreads(2))
	split, _ := shape.onDevice(t, 2, WithThreads(2))
	all := policies(t, host, 0.8)
	all = append(all, decodePolicies()...)
	for i, p := range all {
		name := fmt.Sprintf("%d-%s-%s", i, policyName(p), p.Decode.Mode)
		t.Run(name, func(t *testing.T) {
			want := traceOf(t, newTestSession(t, host, SessionOptions{Compression: p}), prompt, steps)
			scored := d.Counts().Reduced
			for _, m := range []*Model{whole, split} {
				s := newTestSession(t, m, SessionOptions{Compression: p, ChunkTokens: 50})
				testnum.SameBits(t, name, want, traceOf(t, s, prompt, steps))
				st := s.Stats()
				if m == whole {
					onDevice := slices.Contains([]string{"snapkv", "keydiff", "knorm", "expected_attention", "criticalkv", "chunkkv", "cur", "compactor", "defensivekv", "key_distance", "learned"}, p.Metric.Name)
					require.Equal(t, onDevice, d.Counts().Reduced > scored, "the device scores")
				}
				require.Positive(t, st.DeviceBytes)
				require.Equal(t, m == whole, st.DeviceBytes == st.CacheBytes)
				if p.Ratio > 0 && !p.Decode.Enabled() && (m == whole || i%3 == 0) {
					compressedLater(t, m, p, prompt, steps, want)
				}
			}
		})
	}

	var metrics []lukv.Metric
	for _, name := range metricNames() {
		metric, err := lukv.NewMetric(lukv.MetricConfig{Name: name})
		require.NoError(t, err)
		metrics = append(metrics, metric)
	}
	importance := func(m *Model) ([][][]float32, [][]float32) {
		ob, err := m.Observe(ctx, prompt, SessionOptions{}, metrics...)
		require.NoError(t, err)
		defer ob.Close()
		me, err := ob.Measure(ctx)
		require.NoError(t, err)
		imp, _, err := me.Question(ctx, steps, MeasureOptions{MaxTokens: 6, Sampling: Sampling{IgnoreEOS: true}}, lukv.NormLayer)
		require.NoError(t, err)
		var traces [][]float32
		for _, p := range all {
			if p.Decode.Enabled() || p.Ratio == 0 {
				continue
			}
			s, err := ob.Compress(ctx, p)
			require.NoError(t, err)
			for _, id := range steps[:3] {
				require.NoError(t, s.Append(ctx, id))
			}
			traces = append(traces, append([]float32(nil), s.Logits()...))
			require.NoError(t, s.Close())
		}
		return imp, traces
	}
	wantImp, wantTraces := importance(host)
	for _, m := range []*Model{whole, split} {
		imp, traces := importance(m)
		require.Equal(t, wantImp, imp)
		for i := range traces {
			testnum.SameBits(t, "derived session", wantTraces[i], traces[i])
		}
	}
}

// compressedLater compresses a prompt after its prefill, and a part of it during and
// after its prefill.
func compressedLater(t *testing.T, m *Model, p *lukv.Policy, prompt, steps []int32, want []float32) {
	ctx := context.Background()
	s := newTestSession(t, m, SessionOptions{ChunkTokens: 50})
	require.NoError(t, s.Prefill(ctx, prompt))
	part, err := s.Fork()
	require.NoError(t, err)
	defer part.Close()
	require.NoError(t, s.Compress(ctx, Span{0, len(prompt)}, p))
	got := slices.Clone(s.Logits())
	for _, id := range steps {
		require.NoError(t, s.Append(ctx, id))
		got = append(got, s.Logits()...)
	}
	testnum.SameBits(t, "compressed later", want[len(want)-len(got):], got)

	within := newTestSession(t, m, SessionOptions{})
	require.NoError(t, within.Prefill(ctx, prompt[:30]))
	if p.Metric.Name == "compactor" {
		require.ErrorIs(t, within.PrefillCompressed(ctx, prompt[30:], p), ErrNotObserved)
		return
	}
	require.NoError(t, within.PrefillCompressed(ctx, prompt[30:], p))
	require.NoError(t, part.Compress(ctx, Span{30, len(prompt)}, p))
	sameSession(t, "a part", within, part)
}

// decodePolicies returns policies that compress while decoding, one per form.
func decodePolicies() []*lukv.Policy {
	observed := lukv.MetricConfig{Name: "observed"}
	ea := lukv.MetricConfig{Name: "expected_attention"}
	var out []*lukv.Policy
	for _, d := range []lukv.DecodeConfig{
		{Mode: "tova", TargetSize: 40},
		{Mode: "h2o", TargetSize: 40},
		{Mode: "streaming", TargetSize: 40},
		{Mode: "periodic", TargetSize: 40, Interval: 4},
		{Mode: "periodic", Ratio: 0.7, Interval: 3, Metric: &observed},
		{Mode: "periodic", Ratio: 0.7, Interval: 3, Metric: &ea},
	} {
		out = append(out, &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5, Decode: d})
	}
	return out
}

// TestDeviceBatches decodes sessions of all kinds together, including those with other
// cache pages, and gets the bits of single steps.
func TestDeviceBatches(t *testing.T) {
	ctx := context.Background()
	shape := testShapes[2]
	for _, layers := range []int{0, 3} {
		m, d := shape.onDevice(t, layers, WithThreads(2))
		const n, steps = 7, 5
		open := func(i int) *Session {
			o := SessionOptions{}
			switch i % 4 {
			case 1:
				o.Compression = &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5}
			case 2:
				o.CacheType = tensor.BF16
			case 3:
				o.PageEntries = 16
			}
			s := newTestSession(t, m, o)
			require.NoError(t, s.Prefill(ctx, randomTokens(20+17*i, 97, uint64(i))))
			return s
		}
		want := make([][]float32, n)
		var batch []*Session
		for i := range n {
			s := open(i)
			for k := range steps {
				require.NoError(t, s.Append(ctx, int32(i+k)))
				want[i] = append(want[i], s.Logits()...)
			}
			batch = append(batch, open(i))
		}
		got := make([][]float32, n)
		recorded := 0
		for k := range steps {
			var tokens []int32
			for i := range n {
				tokens = append(tokens, int32(i+k))
			}
			if k == 1 {
				recorded = d.Counts().Recorded
			}
			require.NoError(t, m.Step(ctx, batch, tokens))
			for i := range n {
				got[i] = append(got[i], batch[i].Logits()...)
			}
		}
		require.Equal(t, recorded, d.Counts().Recorded, "decoding records once")
		for i := range n {
			testnum.SameBits(t, fmt.Sprintf("session %d", i), want[i], got[i])
		}
	}
}

// TestDeviceSessions forks, truncates, fills, saves and loads between a device
// and the host.
func TestDeviceSessions(t *testing.T) {
	ctx := context.Background()
	shape := testShapes[0]
	prompt, steps := randomTokens(150, 97, 1), randomTokens(6, 97, 2)
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Ratio: 0.5}
	host := shape.open(t, WithThreads(2))
	device, _ := shape.onDevice(t, 0, WithThreads(2))
	split, _ := shape.onDevice(t, 1, WithThreads(2))
	models := []*Model{host, device, split}

	dir := t.TempDir()
	var want []float32
	for i, m := range models {
		s := newTestSession(t, m, SessionOptions{Compression: policy})
		require.NoError(t, s.Prefill(ctx, prompt))
		require.NoError(t, s.Save(t.Context(), filepath.Join(dir, fmt.Sprint(i))))
		f, err := s.Fork()
		require.NoError(t, err)
		require.NoError(t, f.Prefill(ctx, steps))
		require.NoError(t, f.Truncate(len(prompt)+2))
		require.NoError(t, f.Prefill(ctx, steps[2:]))
		got := append([]float32(nil), f.Logits()...)
		require.NoError(t, f.Close())
		require.NoError(t, s.Prefill(ctx, steps))
		testnum.SameBits(t, "a fork that went back", s.Logits(), got)
		if i == 0 {
			want = got
		}
		testnum.SameBits(t, "model", want, got)
	}
	for i := range models {
		for _, m := range models {
			s, err := m.LoadSession(t.Context(), filepath.Join(dir, fmt.Sprint(i)), SessionOptions{})
			require.NoError(t, err)
			require.Equal(t, m.DeviceLayers() > 0, s.Stats().DeviceBytes > 0)
			require.NoError(t, s.Prefill(ctx, steps))
			testnum.SameBits(t, "loaded session", want, s.Logits())
			require.NoError(t, s.Close())
		}
	}
	var filled []float32
	for _, m := range models {
		s := newTestSession(t, m, SessionOptions{Compression: policy})
		require.NoError(t, s.FillRandom(200, 3))
		require.NoError(t, s.Append(ctx, 1))
		if filled == nil {
			filled = append(filled, s.Logits()...)
		}
		testnum.SameBits(t, "filled session", filled, s.Logits())
		require.NoError(t, s.Cache().Check())
	}
	limited := newTestSession(t, device, SessionOptions{MaxCacheBytes: 1 << 15})
	require.Error(t, limited.Prefill(ctx, randomTokens(600, 97, 1)))
	require.NoError(t, limited.Prefill(ctx, randomTokens(10, 97, 1)), "usable after a full cache")
}

// deviceLife runs a model's life on a device, with everything that sessions do. It
// returns the first error and closes everything.
func deviceLife(t testing.TB, shape testShape, d *testdevice.Device, metric, dir string) (err error) {
	ctx := context.Background()
	cfg := shape.config()
	m, err := New(cfg, randomWeights(t, cfg, shape.weights, 7), WithOpenDevice(d), WithThreads(1))
	if err != nil {
		return err
	}
	defer func() { require.NoError(t, m.Close()) }()
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Ratio: 0.5}
	s, err := m.NewSession(SessionOptions{Compression: policy})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Prefill(ctx, randomTokens(80, 97, 1)); err != nil {
		return err
	}
	f, err := s.Fork()
	if err != nil {
		return err
	}
	defer f.Close()
	for _, err := range f.Generate(ctx, Sampling{MaxTokens: 4, IgnoreEOS: true}) {
		if err != nil {
			return err
		}
	}
	path := filepath.Join(dir, "session")
	if err := f.Save(t.Context(), path); err != nil {
		return err
	}
	l, err := m.LoadSession(t.Context(), path, SessionOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	return m.Step(ctx, []*Session{s, l}, []int32{1, l.pending[0]})
}

// TestDeviceFaults makes every call to the device fail once, for want of memory
// or because it is lost: the error says so, and nothing stays behind.
func TestDeviceFaults(t *testing.T) {
	shape := testShapes[0]
	dir := t.TempDir()
	for metric, fault := range map[string]error{
		"snapkv": kernels.ErrDeviceMemory, "expected_attention": kernels.ErrDeviceLost, "observed": kernels.ErrDeviceLost,
	} {
		calls := 0
		for n := 1; ; n++ {
			d := newFakeDevice()
			d.FailAt(n, fault)
			err := deviceLife(t, shape, d, metric, dir)
			d.WantEmpty(t)
			if err == nil {
				calls = n - 1
				break
			}
			require.ErrorIs(t, err, fault, "call %d", n)
			require.NotContains(t, err.Error(), "\n")
		}
		t.Logf("%s, %v: %d calls", metric, fault, calls)
		require.Greater(t, calls, 100)
	}
}

// TestDeviceFaultsLeaveTheSession makes calls fail in the middle of a session's life:
// for want of memory the session stays at its last token and goes on with the same
// results; if the device is lost it says so.
func TestDeviceFaultsLeaveTheSession(t *testing.T) {
	ctx := context.Background()
	shape := testShapes[2]
	m, d := shape.onDevice(t, 0, WithThreads(2))
	prompt := randomTokens(100, 97, 1)
	ref := newTestSession(t, m, SessionOptions{})
	require.NoError(t, ref.Prefill(ctx, prompt))
	want := append([]float32(nil), ref.Logits()...)
	for n := 1; ; n += 7 {
		s := newTestSession(t, m, SessionOptions{})
		require.NoError(t, s.Prefill(ctx, prompt[:30]))
		d.FailAt(n, kernels.ErrDeviceMemory)
		err := s.Prefill(ctx, prompt[30:])
		d.FailAt(0, nil)
		if err == nil {
			require.Greater(t, n, 20)
			break
		}
		require.ErrorIs(t, err, kernels.ErrDeviceMemory)
		require.NoError(t, s.Cache().Check())
		require.NoError(t, s.Prefill(ctx, prompt[s.Len():]))
		testnum.SameBits(t, "after an error", want, s.Logits())
		require.NoError(t, s.Close())
	}
	d.FailAt(1, kernels.ErrDeviceLost)
	require.ErrorIs(t, ref.Append(ctx, 1), kernels.ErrDeviceLost)
	require.ErrorIs(t, ref.Prefill(ctx, prompt), kernels.ErrDeviceLost)
	_, err := m.NewSession(SessionOptions{})
	require.ErrorIs(t, err, kernels.ErrDeviceLost)
	require.NoError(t, ref.Close())
}

// TestDeviceFaultsWhileCutting makes calls fail in steps that compress, in sessions whose
// pages a fork shares, so that what stays needs memory: a step that fails has not taken its
// token; one that does not is as good as without the fault.
func TestDeviceFaultsWhileCutting(t *testing.T) {
	ctx := context.Background()
	shape := testShapes[0]
	m, d := shape.onDevice(t, 0, WithThreads(1))
	prompt, steps := randomTokens(100, 97, 1), randomTokens(60, 97, 2)
	failed, late := 0, 0
	for _, p := range decodePolicies() {
		o := SessionOptions{Compression: p, PageEntries: 16}
		ref, s := newTestSession(t, m, o), newTestSession(t, m, o)
		require.NoError(t, ref.Prefill(ctx, prompt))
		require.NoError(t, s.Prefill(ctx, prompt))
		for i, id := range steps {
			require.NoError(t, ref.Append(ctx, id))
			f, err := s.Fork()
			require.NoError(t, err)
			at := s.Len()
			d.FailAt(1+i, kernels.ErrDeviceMemory)
			err = s.Append(ctx, id)
			d.FailAt(0, nil)
			if err != nil {
				failed++
				require.ErrorIs(t, err, kernels.ErrDeviceMemory)
				require.Equal(t, at, s.Len())
				if s.Cache().Err() != nil { // a page that could not be read
					s, f = f, s
				}
				require.NoError(t, s.Append(ctx, id))
			}
			if len(s.comp.kept) > 0 {
				late++
			}
			require.NoError(t, f.Close())
			testnum.SameBits(t, fmt.Sprint(p.Decode.Mode, " step ", i), ref.Logits(), s.Logits())
		}
		sameSession(t, p.Decode.Mode, ref, s)
		require.NoError(t, ref.Close())
		require.NoError(t, s.Close())
	}
	t.Logf("%d steps failed, %d were cut later", failed, late)
	require.Greater(t, failed, 50)
	require.Positive(t, late)
}

// TestDeviceMemoryIsCounted: a model that does not fit is refused, with numbers and
// advice that works.
func TestDeviceMemoryIsCounted(t *testing.T) {
	shape := testShape{layers: 8, hidden: 256, ffn: 512, heads: 8, kv: 4, dim: 32, weights: tensor.BF16}
	cfg := shape.config()
	open := func(d kernels.Device, n int) (*Model, error) {
		return New(cfg, randomWeights(t, cfg, shape.weights, 7), WithOpenDevice(d), WithDeviceLayers(n))
	}
	d := newFakeDevice()
	m, err := open(d, 100)
	require.NoError(t, err)
	require.Equal(t, 8, m.DeviceLayers())
	layer, pass := forward.DeviceBytes(&m.weights.Layers[0]), m.net.PassBytes()
	require.NoError(t, m.Close())

	d.Limit(uint64(pass + 5*layer + layer/2))
	_, err = open(d, 100)
	require.ErrorIs(t, err, kernels.ErrDeviceMemory)
	require.ErrorContains(t, err, fmt.Sprintf("%d are free", pass+5*layer+layer/2))
	require.ErrorContains(t, err, "use 5 of 8 layers")
	d.WantEmpty(t)
	m, err = open(d, 5)
	require.NoError(t, err)
	require.NoError(t, m.Close())

	d.Limit(uint64(pass))
	_, err = open(d, 1)
	require.ErrorContains(t, err, "not even one layer fits")
	m, err = open(d, 0)
	require.NoError(t, err)
	require.Nil(t, m.Device())
	require.NoError(t, m.Close())
	_, err = open(d, -1)
	require.ErrorContains(t, err, "expected 0 or more")
	_, err = New(cfg, randomWeights(t, cfg, shape.weights, 7), WithDevice("none such:1"))
	require.ErrorIs(t, err, kernels.ErrNoDevice)

	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("changed my mind"))
	d.Limit(1 << 40)
	_, err = newModel(ctx, cfg, randomWeights(t, cfg, shape.weights, 7), []Option{WithOpenDevice(d)})
	require.ErrorContains(t, err, "changed my mind")
	d.WantEmpty(t)
}

// TestDeviceCancelled cancels prefills and a generation on a device.
func TestDeviceCancelled(t *testing.T) {
	ctx := context.Background()
	shape := testShapes[0]
	tokens := randomTokens(promptLen, 97, 4)
	for _, layers := range []int{0, 2} {
		m, d := shape.onDevice(t, layers, WithThreads(2))
		for _, p := range []*lukv.Policy{nil, {Metric: lukv.MetricConfig{Name: "observed"}, Ratio: 0.8}} {
			want := newTestSession(t, m, SessionOptions{Compression: p, ChunkTokens: 16})
			require.NoError(t, want.Prefill(ctx, tokens))
			s := newTestSession(t, m, SessionOptions{Compression: p, ChunkTokens: 16})
			stopped := 0
			for n := 1; ; n += 5 {
				c, cancel := context.WithCancel(ctx)
				before := d.Counts().Run
				s.opts.Progress = func(int, int) {
					if d.Counts().Run >= before+n {
						cancel()
					}
				}
				err := s.Prefill(c, tokens[s.Len():])
				cancel()
				if err == nil {
					break
				}
				stopped++
				require.ErrorIs(t, err, context.Canceled)
				require.NoError(t, s.Cache().Check())
				if p != nil {
					require.Zero(t, s.Len())
				}
			}
			require.Positive(t, stopped)
			testnum.SameBits(t, "after cancelled prefills", want.Logits(), s.Logits())
			c, cancel := context.WithCancel(ctx)
			cancel()
			at := s.Len()
			require.ErrorIs(t, s.Append(c, 1), context.Canceled)
			require.Equal(t, at, s.Len())
			require.NoError(t, s.Append(ctx, 1))
			require.NoError(t, want.Append(ctx, 1))
			testnum.SameBits(t, "after a cancelled step", want.Logits(), s.Logits())
		}
	}
}

// TestDeviceLeaks opens, uses and closes sessions; package devicetest does the same on
// a real device.
func TestDeviceLeaks(t *testing.T) {
	shape := testShape{layers: 2, hidden: 16, ffn: 16, heads: 2, kv: 1, dim: 8, weights: tensor.BF16}
	m, d := shape.onDevice(t, 0, WithThreads(1))
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "session")
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5}
	use := func() {
		s, err := m.NewSession(SessionOptions{Compression: policy})
		require.NoError(t, err)
		require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 1)))
		f, err := s.Fork()
		require.NoError(t, err)
		require.NoError(t, f.Append(ctx, 3))
		require.NoError(t, f.Save(t.Context(), path))
		require.NoError(t, f.Close())
		require.NoError(t, s.Close())
	}
	use()
	before, goroutines := d.Held(), runtime.NumGoroutine()
	for range 200 {
		use()
	}
	require.Equal(t, before, d.Held())
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	require.Zero(t, d.Counts().Pools+d.Counts().Tables)
}

// TestDeviceLayerBytes: a device holds matrices as they are and vectors as float32.
func TestDeviceLayerBytes(t *testing.T) {
	for _, shape := range testShapes {
		cfg := shape.config()
		q, kv, h, f := cfg.Heads*cfg.HeadDim, cfg.KVHeads*cfg.HeadDim, cfg.Hidden, cfg.Intermediate
		matrices := 2*q*h + 2*kv*h + 3*f*h
		vectors := 2 * h
		if cfg.QKVBias {
			vectors += q + 2*kv
		}
		if cfg.OutBias {
			vectors += h
		}
		if cfg.MLPBias {
			vectors += 2*f + h
		}
		if cfg.QKNorm {
			vectors += 2 * cfg.HeadDim
		}
		w := randomWeights(t, cfg, shape.weights, 7)
		require.EqualValues(t, matrices*shape.weights.Bytes(1)+4*vectors, forward.DeviceBytes(&w.Layers[1]), shape.name)
	}
}
