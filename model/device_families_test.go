package model

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
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
					if host.dynamicRope() {
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
