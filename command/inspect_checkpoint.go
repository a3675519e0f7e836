package command

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// checkpointInfo is printed by inspect --json for a checkpoint.
type checkpointInfo struct {
	Format     string         `json:"format"`
	Kind       string         `json:"kind"` // "checkpoint"
	Path       string         `json:"path"`
	ID         string         `json:"id"`
	Config     configInfo     `json:"config"`
	Parameters int64          `json:"parameters"`
	Bytes      int64          `json:"bytes"`
	Digest     string         `json:"digest,omitempty"` // of all weights, with --verify
	StepBytes  int64          `json:"step_bytes"`       // of weights that a decoded token reads
	Types      []tensorTypes  `json:"types"`
	Unused     []string       `json:"unused_tensors"`
	Tensors    []tensorInfo   `json:"tensors,omitempty"`
	CacheBytes map[string]int `json:"cache_bytes_per_token"` // by element type
	Tokenizer  string         `json:"tokenizer"`             // "" if it can be read, else why not
	Vocabulary int            `json:"tokenizer_vocabulary,omitempty"`
}

// configInfo is a model's configuration as parsed.
type configInfo struct {
	Architecture   string   `json:"architecture"`
	Layers         int      `json:"layers"`
	Hidden         int      `json:"hidden"`
	Intermediate   int      `json:"intermediate"`
	Heads          int      `json:"heads"`
	KVHeads        int      `json:"kv_heads"`
	HeadDim        int      `json:"head_dim"`
	Vocabulary     int      `json:"vocabulary"`
	MaxPositions   int      `json:"max_positions"`
	NormEps        float64  `json:"norm_eps"`
	Rope           ropeInfo `json:"rope"`
	QKVBias        bool     `json:"qkv_bias"`
	OutBias        bool     `json:"out_bias"`
	MLPBias        bool     `json:"mlp_bias"`
	QKNorm         bool     `json:"qk_norm"`
	TiedEmbeddings bool     `json:"tied_embeddings"`
	Windows        []int    `json:"windows"` // by layer; 0: full attention
	BOS            []int    `json:"bos"`
	EOS            []int    `json:"eos"`
}

type ropeInfo struct {
	Type        string  `json:"type"` // "": no scaling
	Theta       float64 `json:"theta"`
	Factor      float64 `json:"factor,omitempty"`
	OriginalMax int     `json:"original_max_positions,omitempty"`
}

func configOf(c *model.Config) configInfo {
	ids := func(x []int) []int { return append([]int{}, x...) } // [], not null
	return configInfo{
		Architecture: c.Arch, Layers: c.Layers, Hidden: c.Hidden, Intermediate: c.Intermediate,
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Vocabulary: c.Vocab, MaxPositions: c.MaxPositions,
		NormEps: c.NormEps, Rope: ropeInfo{c.Rope.Type, c.Rope.Theta, c.Rope.Factor, c.Rope.OriginalMax},
		QKVBias: c.QKVBias, OutBias: c.OutBias, MLPBias: c.MLPBias, QKNorm: c.QKNorm, TiedEmbeddings: c.TiedEmbeddings,
		Windows: ids(c.Windows), BOS: ids(c.BOS), EOS: ids(c.EOS),
	}
}

type tensorTypes struct {
	Type       string `json:"type"`
	Tensors    int    `json:"tensors"`
	Parameters int64  `json:"parameters"`
	Bytes      int64  `json:"bytes"`
}

type tensorInfo struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Shape []int  `json:"shape"`
	Bytes int    `json:"bytes"`
}

func (c *inspectCmd) checkpoint(e *env) error {
	if err := e.given.unused(profileFlags, c.Path+" is a checkpoint, no profile"); err != nil {
		return err
	}
	if err := e.given.unused("positions", c.Path+" is a checkpoint, no saved session or trace"); err != nil {
		return err
	}
	info, cfg, err := c.readCheckpoint(e)
	if err != nil {
		return err
	}
	if c.JSON {
		return report.WriteJSON(e.out, info)
	}
	t := newTable(e.out)
	t.line("checkpoint", "%s", info.Path)
	t.line("identity", "%s", info.ID)
	if info.Digest != "" {
		t.line("digest", "%s", info.Digest)
	}
	t.line("architecture", "%s, %d layers, hidden %d, intermediate %d", cfg.Arch, cfg.Layers, cfg.Hidden, cfg.Intermediate)
	t.line("attention", "%d query heads on %d KV heads of %d%s", cfg.Heads, cfg.KVHeads, cfg.HeadDim, extras(cfg))
	t.line("windows", "%s", windows(cfg.Windows))
	t.line("vocabulary", "%d (tokenizer %s)", cfg.Vocab, tokenizerText(info))
	t.line("context", "%d tokens", cfg.MaxPositions)
	t.line("rope", "%s", ropeText(cfg))
	t.line("parameters", "%s (%s)", count(info.Parameters), report.Bytes(info.Bytes))
	for _, x := range info.Types {
		t.line("", "%s: %d tensors, %s parameters, %s", x.Type, x.Tensors, count(x.Parameters), report.Bytes(x.Bytes))
	}
	t.line("reads", "%s of weights per token", report.Bytes(info.StepBytes))
	t.line("cache", "%s per token as f32, %s as bf16 or f16", report.Bytes(int64(info.CacheBytes["f32"])), report.Bytes(int64(info.CacheBytes["bf16"])))
	if n := len(info.Unused); n > 0 {
		t.line("unused", "%d tensors: %s", n, clip(strings.Join(info.Unused, ", "), 200))
	}
	for _, x := range info.Tensors {
		t.line(x.Name, "%s %v %s", x.Type, x.Shape, report.Bytes(int64(x.Bytes)))
	}
	return t.w.Flush()
}

func (c *inspectCmd) readCheckpoint(e *env) (*checkpointInfo, *model.Config, error) {
	flags := runtimeFlags{Threads: 1, Precision: "auto", CPU: "auto"}
	m, err := flags.open(e, c.Path)
	if err != nil {
		return nil, nil, err
	}
	defer m.Close()
	cfg := m.Config()
	info := &checkpointInfo{Format: inspectFormat, Kind: "checkpoint", Path: c.Path, ID: m.ID(), Config: configOf(cfg), Unused: []string{}}
	info.Unused = append(info.Unused, m.Weights().Unused()...)
	for name, t := range m.Weights().Stored() {
		n := int64(t.Len())
		info.Parameters += n
		info.Bytes += int64(len(t.Data))
		i := slices.IndexFunc(info.Types, func(x tensorTypes) bool { return x.Type == t.Type.String() })
		if i < 0 {
			i = len(info.Types)
			info.Types = append(info.Types, tensorTypes{Type: t.Type.String()})
		}
		x := &info.Types[i]
		x.Tensors++
		x.Parameters += n
		x.Bytes += int64(len(t.Data))
		if c.Tensors {
			info.Tensors = append(info.Tensors, tensorInfo{name, t.Type.String(), t.Shape, len(t.Data)})
		}
	}
	if c.Verify {
		flag := verifyFlag{Verify: true}
		if err := flag.verify(e, m); err != nil {
			return nil, nil, err
		}
		if info.Digest, err = m.Digest(e.ctx); err != nil {
			return nil, nil, err
		}
	}
	info.StepBytes = m.StepBytes(1)
	info.CacheBytes = map[string]int{}
	for name, t := range map[string]tensor.Type{"f32": tensor.F32, "f16": tensor.F16, "bf16": tensor.BF16} {
		info.CacheBytes[name] = 2 * cfg.Layers * cfg.KVHeads * t.Bytes(cfg.HeadDim)
	}
	if tok, err := m.Tokenizer(); err != nil {
		info.Tokenizer = err.Error()
	} else {
		info.Vocabulary = tok.VocabSize()
	}
	return info, cfg, nil
}

func extras(c *model.Config) string {
	var out []string
	for _, x := range []struct {
		on   bool
		name string
	}{
		{c.QKVBias, "q/k/v biases"}, {c.OutBias, "output bias"}, {c.MLPBias, "MLP biases"},
		{c.QKNorm, "q/k norms"}, {c.TiedEmbeddings, "tied embeddings"},
	} {
		if x.on {
			out = append(out, x.name)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "; " + strings.Join(out, ", ")
}

func windows(w []int) string {
	n, size := 0, 0
	for _, x := range w {
		if x > 0 {
			n, size = n+1, x
		}
	}
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %d layers see %d tokens", n, len(w), size)
}

func tokenizerText(info *checkpointInfo) string {
	if info.Tokenizer != "" {
		return "cannot be used: " + info.Tokenizer
	}
	return "has " + strconv.Itoa(info.Vocabulary)
}

func ropeText(c *model.Config) string {
	r := c.Rope
	if r.Type == "" {
		return fmt.Sprintf("theta %g", r.Theta)
	}
	s := fmt.Sprintf("theta %g, %s scaling", r.Theta, r.Type)
	if r.Factor > 0 {
		s += fmt.Sprintf(" by %g", r.Factor)
	}
	if r.OriginalMax > 0 {
		s += fmt.Sprintf(" from %d tokens", r.OriginalMax)
	}
	return s
}

// count formats a number of parameters.
func count(n int64) string {
	switch x := float64(n); {
	case n >= 1e9:
		return fmt.Sprintf("%.2f billion", x/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.2f million", x/1e6)
	}
	return strconv.FormatInt(n, 10)
}
