package lowbit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/lukv/lukv/tensor"
)

// ErrUnsupported says that a checkpoint's weights are stored in a way that this package
// does not read.
var ErrUnsupported = errors.New("not supported")

// Source finds tensors by name and the file that holds each.
type Source interface {
	Tensor(name string) (t tensor.Tensor, file string, ok bool)
}

// Scheme is how the matrices of a checkpoint are stored.
type Scheme struct {
	// Name is the method, such as "gptq 4 bit", for people.
	Name string

	read func(m *module) (*Matrix, error)
	// stored reports whether a module is stored so; others hold plain numbers.
	stored func(s Source, module string) bool
}

// Parse finds the scheme in the text of a config.json. A checkpoint of plain numbers has
// none: the result is nil. Errors name the key; they wrap ErrUnsupported where the file
// is well-formed.
func Parse(config []byte) (*Scheme, error) {
	var c struct {
		Quantization *settings       `json:"quantization"` // MLX, and Mistral's params.json
		Config       *settings       `json:"quantization_config"`
		Compression  json.RawMessage `json:"compression_config"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("read the quantization of the weights: %w", err)
	}
	if len(c.Compression) > 0 && string(c.Compression) != "null" {
		return nil, fmt.Errorf("\"compression_config\", of versions before \"quantization_config\", is %w", ErrUnsupported)
	}
	switch {
	case c.Config == nil && c.Quantization == nil:
		return nil, nil
	case c.Quantization != nil && c.Quantization.MistralFormat != "":
		return parseMistral(c.Quantization)
	case c.Config != nil && c.Config.Method != "":
		s, err := c.Config.parse()
		if err != nil {
			return nil, fmt.Errorf("\"quantization_config\": %w", err)
		}
		return s, nil
	}
	s := c.Quantization
	if s == nil {
		s = c.Config
	}
	if s.Group == nil || s.Bits == 0 {
		return nil, fmt.Errorf("\"quantization_config\": \"quant_method\" is missing, so the format is %w", ErrUnsupported)
	}
	mlx, err := parseMLX(s)
	if err != nil {
		return nil, fmt.Errorf("\"quantization\": %w", err)
	}
	return mlx, nil
}

// settings are the keys that the methods use, of all methods together.
type settings struct {
	Method string `json:"quant_method"`

	Bits    int    `json:"bits"`
	Group   *int   `json:"group_size"`
	Mode    string `json:"mode"` // MLX
	Version string `json:"version"`

	CheckpointFormat string                     `json:"checkpoint_format"` // GPTQ
	Dynamic          map[string]json.RawMessage `json:"dynamic"`
	Sorted           bool                       `json:"desc_act"` // columns by importance

	ZeroPoint *bool `json:"zero_point"` // AWQ

	Load4, Load8  bool
	BlockSize     []int  `json:"weight_block_size"`
	Fmt           string `json:"fmt"`
	Algorithm     string `json:"quant_algo"` // modelopt
	MistralFormat string `json:"qformat_weight"`

	// compressed-tensors
	Format    string           `json:"format"` // also of GPTQ and AWQ
	Groups    map[string]group `json:"config_groups"`
	Ignore    []string         `json:"ignore"`
	Sparsity  json.RawMessage  `json:"sparsity_config"`
	Transform json.RawMessage  `json:"transform_config"`

	overrides map[string]json.RawMessage // MLX: settings of a module of its own, or false
}

// UnmarshalJSON reads the keys and notes MLX's overrides, which are keyed by module.
func (s *settings) UnmarshalJSON(text []byte) error {
	type plain settings
	if err := json.Unmarshal(text, (*plain)(s)); err != nil {
		return err
	}
	var bits struct {
		Load4 bool `json:"load_in_4bit"`
		Load8 bool `json:"load_in_8bit"`
	}
	if err := json.Unmarshal(text, &bits); err != nil {
		return err
	}
	s.Load4, s.Load8 = bits.Load4, bits.Load8
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	maps.DeleteFunc(all, func(key string, _ json.RawMessage) bool {
		return !strings.Contains(key, "model.") && !strings.HasPrefix(key, "lm_head")
	})
	s.overrides = all
	return nil
}

// methods lists the methods by the names they have under quant_method.
var methods = map[string]func(s *settings) (*Scheme, error){
	"compressed-tensors": parseCompressed,
	"gptq":               parseGPTQ,
	"awq":                parseAWQ,
	"bitsandbytes":       parseBitsAndBytes,
	"fp8":                parseFP8,
	"fbgemm_fp8":         parseFbgemm,
	"modelopt":           parseModelopt,
}

func (s *settings) parse() (*Scheme, error) {
	parse := methods[s.Method]
	if parse == nil {
		var known []string
		for name := range methods {
			known = append(known, name)
		}
		slices.Sort(known)
		return nil, fmt.Errorf("\"quant_method\": %q is %w, expected one of %s", s.Method, ErrUnsupported, strings.Join(known, ", "))
	}
	return parse(s)
}

// refused returns an error for the value of a key.
func refused(key string, found any, expected string) error {
	return fmt.Errorf("%q: %v is %w, expected %s", key, found, ErrUnsupported, expected)
}

// has reports whether the source has a tensor.
func has(s Source, name string) bool {
	_, _, ok := s.Tensor(name)
	return ok
}

// named returns a test for the presence of a tensor of the module, for methods whose config
// does not say reliably which modules they left alone: what an entry of a list matches, a
// name, its beginning or a part of it, differs between readers and their versions.
func named(suffix string) func(Source, string) bool {
	return func(s Source, module string) bool { return has(s, module+suffix) }
}

// Stored reports whether the weight of a module is stored in the scheme; if not, its
// tensor holds plain numbers.
func (s *Scheme) Stored(src Source, module string) bool { return s.stored(src, module) }

// Matrix returns the weight, [rows, cols], of a module such as
// "model.layers.0.self_attn.q_proj". Errors name the file, the tensor, and both shapes.
func (s *Scheme) Matrix(src Source, name string, rows, cols int) (*Matrix, error) {
	m := &module{src: src, name: name, rows: rows, cols: cols}
	x, err := s.read(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	x.Tensors = m.used
	return x, nil
}

// pattern is a target of compressed-tensors: a class, a module's name, or an expression
// after "re:" that must match from the beginning of the name, as Python's re.match.
type pattern struct {
	text string
	re   *regexp.Regexp
}

func parsePattern(text string) (pattern, error) {
	expr, ok := strings.CutPrefix(text, "re:")
	if !ok {
		return pattern{text: text}, nil
	}
	re, err := regexp.Compile(`^(?:` + expr + `)`)
	if err != nil {
		return pattern{}, fmt.Errorf("pattern %q is %w: %v", text, ErrUnsupported, err)
	}
	return pattern{text: text, re: re}, nil
}

// matches reports whether the pattern names a module or its class.
func (p pattern) matches(module string) bool {
	if p.re != nil {
		return p.re.MatchString(module)
	}
	return p.text == module || p.text == classOf(module)
}

// The classes of modules.
const linear, embedding = "Linear", "Embedding"

func classOf(module string) string {
	if strings.HasSuffix(module, "embed_tokens") {
		return embedding
	}
	return linear
}

// before orders patterns as the format's own reader does: names come first, then
// expressions, then classes, and each by their text.
func (p pattern) before(q pattern) int {
	return cmp.Or(cmp.Compare(p.rank(), q.rank()), cmp.Compare(p.text, q.text))
}

func (p pattern) rank() int {
	switch {
	case p.re != nil:
		return 1
	case p.text == linear || p.text == embedding:
		return 2
	}
	return 0
}

func parsePatterns(texts []string) ([]pattern, error) {
	out := make([]pattern, len(texts))
	for i, text := range texts {
		var err error
		if out[i], err = parsePattern(text); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func anyMatches(patterns []pattern, module string) bool {
	return slices.ContainsFunc(patterns, func(p pattern) bool { return p.matches(module) })
}
