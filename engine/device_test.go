package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/examples/device"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// TestMixtureOnDevice: a model with experts answers requests that share its passes, some of them
// with four fifths of their contexts evicted, on a device with the host's arithmetic: one by one
// on the host they get the same tokens, with the same probabilities.
func TestMixtureOnDevice(t *testing.T) {
	open := func(opts ...model.Option) *Engine {
		cfg, err := arch.Parse([]byte(`{"model_type": "qwen2_moe", "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
			"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
			"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 40}`))
		require.NoError(t, err)
		w, err := weights.Random(t.Context(), cfg, tensor.BF16, 7)
		require.NoError(t, err)
		m, err := model.New(cfg, w, append(opts, model.WithThreads(2))...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return newEngine(t, m, Options{})
	}
	host, onDevice := open(), open(model.WithOpenDevice(device.New(kernels.Detect())))
	var requests []Request
	for i := range 6 {
		r := Request{Sampling: model.Sampling{MaxTokens: 5 + i, IgnoreEOS: true, LogProbs: true}}
		for j := range 30 + 17*i {
			r.Prompt = append(r.Prompt, int32(3+(i+j*j)%50))
		}
		if i%2 == 1 {
			r.Policy, r.Context = &lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "snapkv"}}, len(r.Prompt)-3
		}
		requests = append(requests, r)
	}
	_, release := occupy(t, onDevice)
	var together []*Stream
	for _, r := range requests {
		s, err := onDevice.Submit(within(t), r)
		require.NoError(t, err)
		together = append(together, s)
	}
	release()
	for i, r := range requests {
		s, err := host.Submit(within(t), r)
		require.NoError(t, err)
		require.Equal(t, collect(t, s, 1), collect(t, together[i], 1), fmt.Sprint("request ", i))
	}
}
