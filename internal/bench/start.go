package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// start measures the time from opening a checkpoint to its first token.
func (r *runner) start(ctx context.Context, s *Source) error {
	st := Start{Model: s.name, Weights: s.weights, Device: r.o.Device, Layers: r.o.DeviceLayers}
	same := func(x Start) bool {
		return x.Model == st.Model && x.Weights == st.Weights && x.Device == st.Device && x.Layers == st.Layers
	}
	if slices.ContainsFunc(r.report.Starts, func(x Start) bool { return same(x) && (x.Cold > 0 || !r.o.Start) }) {
		return nil // an earlier run has measured it
	}
	// The first run depends on what happens to be in memory and does not count;
	// it writes the checkpoint if there is none yet.
	if _, err := r.firstToken(ctx, s); err != nil {
		return err
	}
	dir, err := s.folder(ctx)
	if err != nil {
		return err
	}
	if st.Bytes, err = folderBytes(dir); err != nil {
		return err
	}
	for range r.o.Reps {
		took, err := r.firstToken(ctx, s)
		if err != nil {
			return err
		}
		st.WarmSamples = append(st.WarmSamples, took)
	}
	for range r.o.Reps {
		if !r.o.Start || !dropPages(dir) {
			break
		}
		took, err := r.firstToken(ctx, s)
		if err != nil {
			return err
		}
		st.ColdSamples = append(st.ColdSamples, took)
	}
	st.Warm, st.Cold = median(st.WarmSamples), median(st.ColdSamples)
	// An earlier run may have measured it warm only.
	r.report.Starts = append(slices.DeleteFunc(r.report.Starts, same), st)
	return nil
}

// firstToken returns the seconds from opening the model to the first token, including
// reading its tokenizer.
func (r *runner) firstToken(ctx context.Context, s *Source) (float64, error) {
	r.progress("%s: time to the first token", s.name)
	fail := func(err error) (float64, error) {
		return 0, fmt.Errorf("time %s to the first token: %w", s.name, err)
	}
	if s.folder != nil {
		if _, err := s.folder(ctx); err != nil {
			return fail(err)
		}
	}
	debug.FreeOSMemory()
	begin := time.Now()
	m, err := s.open(ctx, r.options()...)
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
	return time.Since(begin).Seconds(), nil
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

// Written is like Shape, but the weights are written to a checkpoint when they are
// first needed, and then mapped like those of any other. The checkpoint has a made-up
// tokenizer. It lies in a new folder under dir, os.TempDir if empty, that is removed
// when the source is released.
func Written(name string, t tensor.Type, dir string) (*Source, error) {
	cfg, err := shapeConfig(name)
	if err != nil {
		return nil, err
	}
	return written(name, cfg, t, dir), nil
}

func written(name string, cfg *model.Config, t tensor.Type, dir string) *Source {
	inMemory := Random(name, cfg, t)
	s := &Source{name: name, bytes: inMemory.bytes, weights: inMemory.weights}
	var temp string
	s.folder = func(ctx context.Context) (string, error) {
		if temp != "" {
			return temp, nil
		}
		folder, err := os.MkdirTemp(dir, "lukv-bench-")
		if err != nil {
			return "", err
		}
		if err := writeCheckpoint(ctx, folder, cfg, t); err != nil {
			os.RemoveAll(folder)
			return "", fmt.Errorf("write a checkpoint of random weights: %w", err)
		}
		temp = folder
		return temp, nil
	}
	s.open = func(ctx context.Context, opts ...model.Option) (*model.Model, error) {
		folder, err := s.folder(ctx)
		if err != nil {
			return nil, err
		}
		return model.Open(ctx, folder, opts...)
	}
	s.release = func() {
		if temp != "" {
			os.RemoveAll(temp)
			temp = ""
		}
	}
	return s
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
	w, err := model.RandomWeights(ctx, &c, t, 1)
	if err != nil {
		return err
	}
	defer debug.FreeOSMemory() // the weights
	defer w.Close()
	var list []safetensors.Named
	w.Each(func(name string, x tensor.Tensor) { list = append(list, safetensors.Named{Name: name, Tensor: x}) })
	return safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), list, nil)
}

// configJSON returns a config.json equivalent to the configuration of a shape.
func configJSON(cfg *model.Config) ([]byte, error) {
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
