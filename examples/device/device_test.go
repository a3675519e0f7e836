package device_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/examples/device"
	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kernels/conformance"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// TestConformance runs the suite on the best instruction set of the processor. That all of
// them give the same bits is shown in package kernels.
func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Options{
		Open:  func(testing.TB) kernels.Device { return device.New(kernels.Detect()) },
		Exact: true, Allocates: true,
	})
}

// TestModels runs models on the driver, opened by its name: their logits have the bits of the
// processor, which are compared with those of reference implementations in package model.
func TestModels(t *testing.T) {
	dirs, err := filepath.Glob("../../model/testdata/models/*/config.json")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	if testing.Short() {
		dirs = dirs[:2]
	}
	for _, config := range dirs {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var logits [2][]float32
			for i, name := range []string{"cpu", "example"} {
				m, err := model.Open(t.Context(), dir, model.WithDevice(name), model.WithThreads(2))
				require.NoError(t, err)
				defer m.Close()
				require.Equal(t, i == 1, m.Device() != nil)
				s, err := m.NewSession(model.SessionOptions{ChunkTokens: 16, Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Ratio: 0.5}})
				require.NoError(t, err)
				defer s.Close()
				prompt := make([]int32, 48)
				for j := range prompt {
					prompt[j] = int32(3 + j*j%50)
				}
				require.NoError(t, s.Prefill(t.Context(), prompt))
				for range 3 {
					logits[i] = append(logits[i], s.Logits()...)
					require.NoError(t, s.Append(t.Context(), 7))
				}
			}
			testnum.SameBits(t, "logits", logits[0], logits[1])
		})
	}
}
