package arch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/lowbit"
	"github.com/lukv/lukv/internal/strictjson"
	"github.com/lukv/lukv/tensor"
)

// Names of the files that describe a checkpoint.
const (
	configName     = "config.json"
	generationName = "generation_config.json"
)

// Load reads config.json and, if there is one, generation_config.json from
// the model folder dir. Errors name the file and the key; they wrap
// ErrUnsupported where the file is well-formed but describes a network that is
// not supported.
func Load(dir string) (*Config, error) {
	return load(func(name string) (string, io.ReadCloser, error) {
		path := filepath.Join(dir, name)
		f, err := inputfile.Open(path)
		return path, f, err
	})
}

// LoadFS is Load for a file system rooted at the model folder.
func LoadFS(fsys fs.FS) (*Config, error) {
	return load(func(name string) (string, io.ReadCloser, error) {
		f, err := fsys.Open(name)
		return name, f, err
	})
}

func load(open func(name string) (path string, r io.ReadCloser, err error)) (*Config, error) {
	read := func(name string) (path string, text []byte, err error) {
		path, r, err := open(name)
		if err != nil {
			return path, nil, err // names the path
		}
		defer r.Close()
		text, err = io.ReadAll(io.LimitReader(r, maxConfigBytes+1))
		if err != nil {
			return path, nil, fmt.Errorf("%q: %w", path, err)
		}
		if len(text) > maxConfigBytes {
			return path, nil, fmt.Errorf("%q: found more than %d bytes", path, maxConfigBytes)
		}
		return path, text, nil
	}
	path, text, err := read(configName)
	if err != nil {
		return nil, fmt.Errorf("read model config: %w", err)
	}
	cfg, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("model config %q: %w", path, err)
	}
	path, text, err = read(generationName)
	if errors.Is(err, fs.ErrNotExist) {
		return cfg, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read generation config: %w", err)
	}
	if err := cfg.parseGeneration(text); err != nil {
		return nil, fmt.Errorf("generation config %q: %w", path, err)
	}
	return cfg, nil
}

// Parse parses the text of a config.json of either generation: rope
// settings under rope_theta and rope_scaling or under rope_parameters, the
// element type under torch_dtype or dtype.
func Parse(text []byte) (*Config, error) {
	o, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	o, outer, err := o.unwrap()
	if err != nil {
		return nil, err
	}
	f, err := findFamily(o)
	if err != nil {
		return nil, err
	}
	scheme, err := parseLowbit(text, outer.Raw("text_config"))
	if err != nil {
		return nil, err
	}
	def := &f.defaults
	outer.network()
	o.network()
	o.activation(def)
	c := &Config{
		Arch:           f.arch,
		Layers:         o.Int("num_hidden_layers", strictjson.Required, 1, maxLayers),
		Hidden:         o.Int("hidden_size", strictjson.Required, 1, maxWidth),
		Intermediate:   o.Int("intermediate_size", strictjson.Required, 1, maxWidth),
		Heads:          o.Int("num_attention_heads", def.orRequired(def.heads), 1, maxHeads),
		Vocab:          o.Int("vocab_size", def.orRequired(def.vocab), 1, maxVocab),
		MaxPositions:   o.Int("max_position_embeddings", def.maxPositions, 1, PositionLimit),
		NormEps:        o.Float("rms_norm_eps", def.normEps()),
		TiedEmbeddings: o.Bool("tie_word_embeddings", def.tied),
		BOS:            o.ids("bos_token_id"),
		EOS:            o.ids("eos_token_id"),
		Generation:     neutralGeneration(),
		Lowbit:         scheme,
		activation:     def.activation,
	}
	if o.Err() != nil {
		return nil, o.Err()
	}
	if !(c.NormEps >= 0 && c.NormEps < 1) {
		return nil, fmt.Errorf("\"rms_norm_eps\": found %g, expected a number from 0 to below 1", c.NormEps)
	}

	// An absent key and a null differ here: null always means one KV head per
	// query head.
	c.KVHeads = c.Heads
	if !o.Has("num_key_value_heads") && !o.Null("num_key_value_heads") && def.kvHeads != 0 {
		c.KVHeads = def.kvHeads
	}
	c.KVHeads = o.Int("num_key_value_heads", c.KVHeads, 1, maxHeads)
	if o.Err() == nil && c.Heads%c.KVHeads != 0 {
		return nil, fmt.Errorf("\"num_key_value_heads\": found %d, expected a divisor of the %d heads", c.KVHeads, c.Heads)
	}
	if c.HeadDim = def.headDim; !o.Has("head_dim") && c.HeadDim == 0 {
		if c.Hidden%c.Heads != 0 {
			return nil, fmt.Errorf("\"hidden_size\": found %d, expected a multiple of the %d heads as \"head_dim\" is absent", c.Hidden, c.Heads)
		}
		c.HeadDim = c.Hidden / c.Heads
	}
	c.HeadDim = o.Int("head_dim", c.HeadDim, 1, maxHeadDim)

	c.Type = o.elementType()
	if !def.ropeByKind {
		c.Rope = o.rope(c, def)
	}
	f.read(o, c)
	if o.Err() != nil {
		return nil, o.Err()
	}
	for at, p := range c.plan {
		c.Windows[at] = p.Window
	}
	if c.Rope.Type == "yarn" {
		c.stretchYarn()
	}
	// The rotation's own checks, including that HeadDim is even.
	if _, err := NewRopes(c); err != nil {
		return nil, err
	}
	return c, nil
}

// textKeys are the keys that the config of a multimodal checkpoint may hold beside that of
// its text model.
var textKeys = []string{"bos_token_id", "eos_token_id", "tie_word_embeddings", "dtype", "torch_dtype"}

// wrappers are the architectures of multimodal checkpoints whose text model, under
// text_config, is supported, with the architecture of text models that do not name theirs.
var wrappers = map[string]string{"gemma3": "gemma3_text", "mistral3": "mistral"}

// unwrap returns the config of the text model if o is that of a multimodal checkpoint, and
// the one around it; otherwise o and an empty one.
func (o object) unwrap() (text, outer object, err error) {
	inner, ok := wrappers[o.String("model_type", "")]
	if !ok || !o.Has("text_config") {
		return o, object{}, o.Err()
	}
	text = object{o.Object("text_config")}
	if o.Err() != nil {
		return object{}, object{}, o.Err()
	}
	for _, key := range textKeys {
		if raw := o.Raw(key); raw != nil && !text.Has(key) {
			text.Set(key, raw)
		}
	}
	if !text.Has("model_type") {
		text.Set("model_type", []byte(strconv.Quote(inner)))
	}
	return text, o, nil
}

// stretchYarn sets MaxPositions to what a YaRN config allows. Checkpoints of the
// Qwen family leave max_position_embeddings at the length before stretching; others
// give the stretched one.
func (c *Config) stretchYarn() {
	r := &c.Rope
	if r.OriginalMax == 0 {
		r.OriginalMax = c.MaxPositions
	}
	if n := r.Factor * float64(r.OriginalMax); n > float64(c.MaxPositions) {
		c.MaxPositions = int(min(n, PositionLimit))
	}
}

// elementType returns the declared type, 0 if there is none or tensors cannot have
// it ("auto"). It is only informational.
func (o object) elementType() tensor.Type {
	name := o.String("dtype", o.String("torch_dtype", ""))
	switch strings.TrimPrefix(name, "torch.") {
	case "bfloat16":
		return tensor.BF16
	case "float16":
		return tensor.F16
	case "float32":
		return tensor.F32
	case "float64":
		return tensor.F64
	}
	return 0
}

// parseLowbit returns how the texts of configs say matrices are stored, nil if as plain
// numbers. Texts may be empty.
func parseLowbit(texts ...[]byte) (*lowbit.Scheme, error) {
	for _, text := range texts {
		if len(text) == 0 {
			continue
		}
		s, err := lowbit.Parse(text)
		if errors.Is(err, lowbit.ErrUnsupported) {
			return nil, Unsupported(err)
		}
		if s != nil || err != nil {
			return s, err
		}
	}
	return nil, nil
}
