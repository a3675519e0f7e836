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
	"github.com/lukv/lukv/model/arch"
)

// TestConformance runs the suite on the best instruction set of the processor. That all of
// them give the same bits is shown in package kernels.
func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Options{
		Open:  func(testing.TB) kernels.Device { return device.New(kernels.Detect()) },
		Exact: true, Allocates: true,
	})
}

// TestCore runs the suite on the driver without what is optional.
func TestCore(t *testing.T) {
	conformance.Run(t, conformance.Options{
		Open:  func(testing.TB) kernels.Device { return core{device.New(kernels.Detect())} },
		Exact: true, Allocates: true,
	})
}

// core is a device with what a driver must have.
type core struct{ kernels.Device }

type (
	coreEncoder   struct{ kernels.Encoder }
	coreAttention struct{ kernels.Attention }
)

func (d core) Encoder() (kernels.Encoder, error) {
	e, err := d.Device.Encoder()
	return coreEncoder{e}, err
}

func (d core) Attention(s kernels.AttentionShape) (kernels.Attention, error) {
	a, err := d.Device.Attention(s)
	if err != nil {
		return nil, err
	}
	return coreAttention{a}, nil
}

// of returns the attention itself, nil if it is none of the device.
func (coreEncoder) of(a kernels.Attention) kernels.Attention {
	c, _ := a.(coreAttention)
	return c.Attention
}

func (e coreEncoder) RopeAppend(a kernels.Attention, layer int, q, k, v, turns kernels.Rows) {
	e.Encoder.RopeAppend(e.of(a), layer, q, k, v, turns)
}

func (e coreEncoder) Attend(a kernels.Attention, layer int, dst, q kernels.Rows, stats bool) {
	e.Encoder.Attend(e.of(a), layer, dst, q, stats)
}

// TestExpertsNeedTheirOperations: a device without them is refused when a model is opened.
func TestExpertsNeedTheirOperations(t *testing.T) {
	for _, name := range []string{"qwen3moe-stacked-f16", "qwen2-window"} {
		dirs, err := filepath.Glob("../../model/testdata/*/" + name + "*")
		require.NoError(t, err)
		require.NotEmpty(t, dirs)
		m, err := model.Open(t.Context(), dirs[0], model.WithOpenDevice(core{device.New(kernels.Detect())}))
		if name != "qwen3moe-stacked-f16" {
			require.NoError(t, err)
			require.NoError(t, m.Close())
			continue
		}
		require.ErrorIs(t, err, arch.ErrUnsupported)
		require.ErrorContains(t, err, "experts on example")
	}
}

// TestModels runs models on the driver, without and with what is optional, in the latter case opened by its name: their logits have the bits of the
// processor, which are compared with those of reference implementations in package model.
func TestModels(t *testing.T) {
	dirs, err := filepath.Glob("../../model/testdata/models/*/config.json")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	if testing.Short() {
		dirs = dirs[:2]
	}
	metrics := []string{"snapkv", "expected_attention", "keydiff", "cur"}
	for i, config := range dirs {
		dir, metric := filepath.Dir(config), metrics[i%len(metrics)]
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var logits [3][]float32
			for i, on := range []model.Option{
				model.WithDevice("cpu"), model.WithOpenDevice(core{device.New(kernels.Detect())}), model.WithDevice("example"),
			} {
				m, err := model.Open(t.Context(), dir, on, model.WithThreads(2))
				require.NoError(t, err)
				defer m.Close()
				require.Equal(t, i > 0, m.Device() != nil)
				s, err := m.NewSession(model.SessionOptions{ChunkTokens: 16, Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Ratio: 0.5}})
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
			testnum.SameBits(t, "logits without what is optional", logits[0], logits[1])
			testnum.SameBits(t, "logits", logits[0], logits[2])
		})
	}
}
