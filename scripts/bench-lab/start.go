package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// Start is the median time in seconds from opening a checkpoint to its first token,
// including reading its tokenizer and encoding a word.
type Start struct {
	Model   string  `json:"model"`
	Device  string  `json:"device,omitempty"` // as it was opened
	Threads int     `json:"threads"`
	Bytes   int64   `json:"bytes"`        // of its files
	Warm    float64 `json:"warm_seconds"` // with the files in memory

	// Cold is the time with the files out of memory; 0 if the system does not drop them.
	Cold float64 `json:"cold_seconds,omitempty"`

	WarmSamples []float64 `json:"warm_samples"`
	ColdSamples []float64 `json:"cold_samples,omitempty"`
}

// start measures the time to the first token of a checkpoint folder, or of a shape whose
// random weights it writes to a temporary folder.
func (s *settings) start(ctx context.Context, name string) (any, error) {
	dir := name
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		temp, err := os.MkdirTemp("", "lukv-bench-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(temp)
		if _, err := s.write(ctx, name, temp); err != nil {
			return nil, err
		}
		dir = temp
	}
	st := Start{Model: name, Device: s.device}
	var err error
	if st.Bytes, err = folderBytes(dir); err != nil {
		return nil, err
	}
	// The first run depends on the contents of memory and does not count.
	if _, st.Threads, err = s.firstToken(ctx, dir); err != nil {
		return nil, err
	}
	for range s.reps {
		took, _, err := s.firstToken(ctx, dir)
		if err != nil {
			return nil, err
		}
		st.WarmSamples = append(st.WarmSamples, took)
	}
	for range s.reps {
		if !dropPages(dir) {
			break
		}
		took, _, err := s.firstToken(ctx, dir)
		if err != nil {
			return nil, err
		}
		st.ColdSamples = append(st.ColdSamples, took)
	}
	st.Warm, st.Cold = bench.Median(st.WarmSamples), bench.Median(st.ColdSamples)
	return st, nil
}

// write writes a checkpoint of random weights in the dimensions of a shape.
func (s *settings) write(ctx context.Context, shape, dir string) (any, error) {
	cfg, err := bench.ShapeConfig(shape)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	if err := writeCheckpoint(ctx, dir, cfg, s.weights); err != nil {
		return nil, fmt.Errorf("write a checkpoint of random weights: %w", err)
	}
	return map[string]string{"shape": shape, "weights": s.weights.String(), "dir": dir}, nil
}

// firstToken returns the seconds from opening the model to the first token, and the
// number of threads.
func (s *settings) firstToken(ctx context.Context, dir string) (float64, int, error) {
	fail := func(err error) (float64, int, error) {
		return 0, 0, fmt.Errorf("time %s to the first token: %w", dir, err)
	}
	s.progress("time to the first token")
	debug.FreeOSMemory()
	begin := time.Now()
	m, err := model.Open(ctx, dir, s.options()...)
	if err != nil {
		return fail(err)
	}
	defer m.Close()
	tokens := []int32{0}
	// A model folder without a tokenizer can still be measured.
	if tok, err := m.Tokenizer(); err == nil {
		if ids := tok.Encode("Hello", tokenizer.EncodeOptions{AddSpecial: true}); len(ids) > 0 && int(ids[0]) < m.Config().Vocab {
			tokens = ids[:1]
		}
	}
	session, err := m.NewSession(model.SessionOptions{MaxTokens: 16})
	if err != nil {
		return fail(err)
	}
	defer session.Close()
	if err := session.Prefill(ctx, tokens); err != nil {
		return fail(err)
	}
	for _, err := range session.Generate(ctx, model.Sampling{MaxTokens: 1}) {
		if err != nil {
			return fail(err)
		}
	}
	return time.Since(begin).Seconds(), m.Threads(), nil
}

// files returns the regular files of a folder.
func files(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		// Hub caches hold links.
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			out = append(out, path)
		}
	}
	return out, nil
}

func folderBytes(dir string) (int64, error) {
	list, err := files(dir)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, path := range list {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		n += info.Size()
	}
	return n, nil
}

// writeCheckpoint writes a checkpoint of random weights of type t for cfg, with config
// and tokenizer.
func writeCheckpoint(ctx context.Context, dir string, cfg *model.Config, t tensor.Type) error {
	c := *cfg
	c.Type = t
	config, err := configJSON(&c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666); err != nil {
		return err
	}
	text, err := tokenizerJSON(c.Vocab)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o666); err != nil {
		return err
	}
	w, err := weights.Random(ctx, &c, t, 1)
	if err != nil {
		return err
	}
	defer debug.FreeOSMemory() // the weights
	defer w.Close()
	var list []safetensors.Named
	w.Each(func(name string, x tensor.Tensor) { list = append(list, safetensors.Named{Name: name, Tensor: x}) })
	return safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), list, nil)
}

// plain are the architectures whose configurations these few keys describe.
var plain = []string{"llama", "mistral", "qwen2", "qwen3"}

// configJSON returns a config.json equivalent to the configuration of a shape of a plain
// architecture.
func configJSON(cfg *model.Config) ([]byte, error) {
	if !slices.Contains(plain, cfg.Arch) {
		return nil, fmt.Errorf("a checkpoint of the architecture %s is not written, expected one of %v", cfg.Arch, plain)
	}
	types := map[tensor.Type]string{tensor.F32: "float32", tensor.F16: "float16", tensor.BF16: "bfloat16"}
	return json.MarshalIndent(map[string]any{
		"model_type": cfg.Arch, "hidden_act": "silu", "torch_dtype": types[cfg.Type],
		"num_hidden_layers": cfg.Layers, "hidden_size": cfg.Hidden, "intermediate_size": cfg.Intermediate,
		"num_attention_heads": cfg.Heads, "num_key_value_heads": cfg.KVHeads, "head_dim": cfg.HeadDim,
		"vocab_size": cfg.Vocab, "max_position_embeddings": cfg.MaxPositions, "rms_norm_eps": cfg.NormEps,
		"rope_theta": cfg.Rope.Theta, "tie_word_embeddings": cfg.TiedEmbeddings, "sliding_window": nil,
		"bos_token_id": cfg.BOS, "eos_token_id": cfg.EOS,
	}, "", "  ")
}
