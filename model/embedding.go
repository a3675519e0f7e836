package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/lukv/lukv/internal/inputfile"
)

// ErrNoEmbedding says that a checkpoint does not say how its hidden states become an
// embedding: it is a language model alone.
var ErrNoEmbedding = errors.New("not a model of embeddings")

// Pooling says which hidden states of a text become its embedding.
type Pooling string

const (
	PoolLast Pooling = "last" // that of the last token
	PoolMean Pooling = "mean" // the mean over all tokens
)

// Embedding says how the hidden states of a text, after the last norm, become one vector.
type Embedding struct {
	Pooling   Pooling
	Normalize bool // to a Euclidean length of 1
}

// maxEmbeddingConfig bounds the files that Embedding reads.
const maxEmbeddingConfig = 1 << 20

// Embedding returns what the checkpoint's modules.json and the pooling module's config.json
// say, in the form of sentence-transformers, or what a GGUF file says of its pooling. Without that the error wraps [ErrNoEmbedding];
// with modules that are not supported, [ErrUnsupported].
func (m *Model) Embedding() (Embedding, error) {
	e, err := ReadEmbedding(m.source)
	if err != nil {
		return Embedding{}, fmt.Errorf("embedding: %w", err)
	}
	return e, nil
}

// ReadEmbedding is [Model.Embedding] for a checkpoint folder that is not open as a model.
func ReadEmbedding(source fs.FS) (Embedding, error) {
	if source == nil {
		return Embedding{}, ErrNoEmbedding
	}
	var modules []struct {
		Path string `json:"path"`
		Type string `json:"type"`
	}
	switch err := readSmallJSON(source, "modules.json", &modules); {
	case errors.Is(err, fs.ErrNotExist):
		return Embedding{}, ErrNoEmbedding
	case err != nil:
		return Embedding{}, err
	}
	var e Embedding
	for _, x := range modules {
		switch kind := path.Ext(x.Type); kind {
		case ".Transformer":
		case ".Pooling":
			var err error
			if e.Pooling, err = readPooling(source, path.Join(x.Path, "config.json")); err != nil {
				return e, err
			}
		case ".Normalize":
			e.Normalize = true
		default:
			return e, fmt.Errorf("modules.json: the module %.60q is %w, expected Transformer, Pooling and Normalize", x.Type, ErrUnsupported)
		}
	}
	if e.Pooling == "" {
		return e, fmt.Errorf("modules.json: found no pooling, which is %w", ErrUnsupported)
	}
	return e, nil
}

// readPooling reads the config of a pooling module, exactly one of whose modes is on.
func readPooling(source fs.FS, name string) (Pooling, error) {
	var c map[string]any
	if err := readSmallJSON(source, name, &c); err != nil {
		return "", err
	}
	var found []Pooling
	for key, mode := range map[string]Pooling{
		"pooling_mode_lasttoken": PoolLast, "pooling_mode_mean_tokens": PoolMean,
		"pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max",
		"pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len", "pooling_mode_weightedmean_tokens": "weightedmean",
	} {
		if on, _ := c[key].(bool); on {
			found = append(found, mode)
		}
	}
	if len(found) != 1 || found[0] != PoolLast && found[0] != PoolMean {
		return "", fmt.Errorf("%s: the pooling %q is %w, expected last or mean", name, found, ErrUnsupported)
	}
	return found[0], nil
}

func readSmallJSON(source fs.FS, name string, v any) error {
	if !fs.ValidPath(name) {
		return fmt.Errorf("modules.json: found the path %.60q, expected one inside the checkpoint", name)
	}
	data, err := inputfile.ReadFS(source, name, maxEmbeddingConfig)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// StartPrefillHidden is [Session.StartPrefill] for the hidden states after the last norm,
// [Hidden], instead of logits: each is called with that of every token i of tokens, in order,
// valid during the call. The session has no logits afterwards. It must be empty, and have no
// policy.
func (s *Session) StartPrefillHidden(tokens []int32, each func(i int, state []float32) error) (*PartialPrefill, error) {
	if err := s.enter(); err != nil {
		return nil, fmt.Errorf("prefill: %w", err)
	}
	defer s.leave()
	if s.comp != nil || s.pos > 0 || len(s.pending) > 0 {
		return nil, errors.New("prefill: hidden states need an empty session without a policy")
	}
	p, err := s.startPrefill(tokens, each, nil)
	if err == nil {
		p.f.hidden = true
	}
	return p, err
}

// emitHidden hands the hidden states of a part, whose first row in the pass is row, to its
// callback.
func (r *run) emitHidden(ctx context.Context, p *part, row int) error {
	n := r.m.cfg.Hidden
	stream, err := r.Residual(ctx)
	if err != nil {
		return err
	}
	state := make([]float32, n)
	for i := range p.n {
		r.m.net.FinalNorm(state, stream[(row+i)*n:(row+i+1)*n])
		if !finite(state) {
			return p.s.notFinite(1)
		}
		if err := p.f.hand(p.f.fed+i, state); err != nil {
			return err
		}
	}
	return nil
}
