package model

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
)

// TestDeviceFamilies runs the golden models of further families on a device with the host's
// arithmetic: whole and with its first layer only, in chunks and token by token, compressed
// and not, they have the host's bits, which TestGoldenFamilies compares with the references.
func TestDeviceFamilies(t *testing.T) {
	ran := 0
	for _, c := range goldenFamilies(t) {
		path := filepath.Join(familiesDir(), c.Name)
		for _, p := range []Precision{PrecisionF32, PrecisionBF16} {
			t.Run(c.Name+"/"+string(p), func(t *testing.T) {
				open := func(opts ...Option) *Model {
					m, err := Open(t.Context(), path, append(opts, WithPrecision(p), WithThreads(2))...)
					require.NoError(t, err)
					t.Cleanup(func() { m.Close() })
					return m
				}
				host, d := open(), newFakeDevice()
				t.Cleanup(func() { d.WantEmpty(t) })
				prompt, steps := randomTokens(90, host.cfg.Vocab, 3), randomTokens(4, host.cfg.Vocab, 4)
				want := traceOf(t, newTestSession(t, host, SessionOptions{}), prompt, steps)
				whole, first := open(WithOpenDevice(d)), open(WithOpenDevice(d), WithDeviceLayers(1))
				for _, chunk := range []int{1, 7, 1000} {
					testnum.SameBits(t, fmt.Sprintf("chunks of %d", chunk), want, traceOf(t, newTestSession(t, whole, SessionOptions{ChunkTokens: chunk}), prompt, steps))
				}
				testnum.SameBits(t, "one layer on the device", want, traceOf(t, newTestSession(t, first, SessionOptions{}), prompt, steps))
				for _, metric := range []string{"snapkv", "knorm", "expected_attention", "tova"} {
					o := SessionOptions{ChunkTokens: 32, Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Ratio: 0.6}}
					if host.net.Dynamic() {
						o.ChunkTokens = 0
					}
					evicted := traceOf(t, newTestSession(t, host, o), prompt, steps)
					testnum.SameBits(t, metric, evicted, traceOf(t, newTestSession(t, whole, o), prompt, steps))
				}
				ran++
			})
		}
	}
	require.NotZero(t, ran)
}

// TestDeviceMixtures: a pass of more rows than a mixture takes at a time has the host's bits on
// a device; memory for experts is counted; what a stack cannot hold is refused by name.
func TestDeviceMixtures(t *testing.T) {
	path := filepath.Join(familiesDir(), "qwen2moe-shared-bf16")
	open := func(opts ...Option) (*Model, error) {
		return Open(t.Context(), path, append(opts, WithThreads(2))...)
	}
	host, err := open()
	require.NoError(t, err)
	defer host.Close()
	d := newFakeDevice()
	t.Cleanup(func() { d.WantEmpty(t) })
	whole, err := open(WithOpenDevice(d))
	require.NoError(t, err)
	prompt, o := randomTokens(forward.MixtureRows+70, host.cfg.Vocab, 3), SessionOptions{ChunkTokens: 1000}
	want := traceOf(t, newTestSession(t, host, o), prompt, nil)
	testnum.SameBits(t, "many rows", want, traceOf(t, newTestSession(t, whole, o), prompt, nil))
	pass := whole.net.PassBytes()
	require.NoError(t, whole.Close())

	var need int64
	for i := range host.weights.Layers {
		n := forward.DeviceBytes(&host.weights.Layers[i])
		if experts := len(host.weights.Layers[i].Experts); experts > 0 {
			p := host.net.Plan[i].FFN
			require.Greater(t, n, int64(3*experts*p.Width*host.cfg.Hidden*2))
		}
		if need += n; i == 0 {
			d.Limit(uint64(pass + need))
		}
	}
	_, err = open(WithOpenDevice(d))
	require.ErrorIs(t, err, kernels.ErrDeviceMemory)
	require.ErrorContains(t, err, fmt.Sprintf("use 1 of %d layers", host.cfg.Layers))
	part, err := open(WithOpenDevice(d), WithDeviceLayers(1))
	require.NoError(t, err)
	testnum.SameBits(t, "one layer", want, traceOf(t, newTestSession(t, part, o), prompt, nil))
	require.NoError(t, part.Close())

	mixed := *host.weights
	mixed.Layers = slices.Clone(mixed.Layers)
	l := &mixed.Layers[len(mixed.Layers)-1]
	l.Experts = slices.Clone(l.Experts)
	up := &l.Experts[1].Up
	wide := kernels.F32Matrix(up.Float32s(nil), up.Shape[0], up.Shape[1])
	up.Data, up.Type = wide.Data, wide.Type
	_, err = New(host.cfg, &mixed, WithOpenDevice(d))
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "experts with weights of different types in a layer")
}
