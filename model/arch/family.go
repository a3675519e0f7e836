package arch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/strictjson"
	"github.com/lukv/lukv/kernels"
)

// family describes the checkpoints of a model family: how they are recognised, named and
// read. Each is a file; the rest of the package knows plans and tables only.
type family struct {
	arch  string // model_type of its configs
	class string // under architectures, in configs without model_type
	gguf  string // general.architecture of its GGUF files

	// interleaved says that GGUF files store the rows of every query and key head in the order
	// of interleaved rotation.
	interleaved bool
	models      string // published ones, for docs/models.md

	tensors  TensorTable
	defaults configDefaults

	// read reads the family's own keys into c, whose common fields are set.
	read func(o object, c *Config)
}

// configDefaults are the defaults of common keys that differ between the model classes of
// transformers.
type configDefaults struct {
	maxPositions int
	kvHeads      int     // 0: as many as heads
	headDim      int     // 0: hidden / heads
	heads, vocab int     // 0: the config must say
	eps          float64 // of norms; 0: 1e-6
	theta        float64 // base of rotations; 0: 10000
	tied         bool    // embeddings and head

	activation    kernels.Activation // the only one supported
	activationKey string             // of the config; "": hidden_act
	partial       bool               // a part of a head's elements may turn
	longrope      bool               // rope types su and yarn mean longrope
	original      int                // original_max_position_embeddings, also of a scaling that says another; 0: that of the scaling
	ropeByKind    bool               // read reads the rotations
}

func (d *configDefaults) orRequired(n int) int {
	if n == 0 {
		return strictjson.Required
	}
	return n
}

func (d *configDefaults) normEps() float64 {
	if d.eps == 0 {
		return 1e-6
	}
	return d.eps
}

// activation checks the activation of the feed-forward units.
func (o object) activation(d *configDefaults) {
	key, names := cmp.Or(d.activationKey, "hidden_act"), activationNames[d.activation]
	if act := o.String(key, names[0]); !slices.Contains(names, act) && o.Err() == nil {
		o.Fail(key, "activation %q is %w, expected %q", act, ErrUnsupported, names[0])
	}
}

// activationNames are the names that configs have for activations.
var activationNames = [][]string{
	kernels.SiLU:     {"silu", "swish"},
	kernels.GELUTanh: {"gelu_pytorch_tanh", "gelu_tanh"},
}

// otherHeads are endings of classes whose checkpoints hold another head than that of a
// language model, beside which tied embeddings would pass for one.
var otherHeads = []string{"ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "RewardModel"}

// network fails on settings of any family under which a checkpoint is not a language model, or
// one whose tokens see later ones.
func (o object) network() {
	var classes []string
	if json.Unmarshal(o.Raw("architectures"), &classes) == nil && len(classes) > 0 {
		for _, head := range otherHeads {
			if strings.HasSuffix(classes[0], head) {
				o.Fail("architectures", "%s is %w: a classifier, which continues no text", short(strconv.Quote(classes[0])), ErrUnsupported)
			}
		}
	}
	if !o.Bool("is_causal", true) {
		o.Fail("is_causal", "false is %w: attention to later tokens", ErrUnsupported)
	}
	switch both := string(o.Raw("use_bidirectional_attention")); both {
	case "", "false":
	default:
		o.Fail("use_bidirectional_attention", "%s is %w: attention to later tokens", short(both), ErrUnsupported)
	}
}

// Kinds of layers under layer_types.
const (
	fullKind    = "full_attention"
	slidingKind = "sliding_attention"
)

// oneWindow sets the attention window of all layers. It is for architectures whose layers are
// alike in transformers, which overlooks layer_types: one that says otherwise is refused.
func (o object) oneWindow(c *Config, width int) {
	o.windows(c, width, nil)
	for at, w := range c.Windows {
		if w != width {
			o.Fail("layer_types", "layer %d has another window than the %d of the config, which is %w for this architecture", at, width, ErrUnsupported)
		}
	}
}

// windows sets the attention window of each layer: width where slides is true, or
// everywhere if it is nil. Newer configs list each layer's kind under layer_types, which
// takes precedence.
func (o object) windows(c *Config, width int, slides func(at int) bool) {
	w := make([]int, max(c.Layers, 0))
	c.Windows = w
	if o.Err() != nil || !o.Has("layer_types") {
		for i := range w {
			if slides == nil || slides(i) {
				w[i] = width
			}
		}
		return
	}
	kinds := o.Strings("layer_types", maxLayers)
	if len(kinds) != len(w) {
		o.Wrong("layer_types", fmt.Sprintf("a list of %d strings, one for each layer", len(w)))
		return
	}
	for i, kind := range kinds {
		switch {
		case kind == slidingKind && width > 0:
			w[i] = width
		case kind == slidingKind:
			o.Fail("layer_types", "layer %d has sliding attention, but the config sets no window", i)
		case kind != fullKind:
			o.Fail("layer_types", "layer %d is of type %s, which is %w", i, short(strconv.Quote(kind)), ErrUnsupported)
		}
	}
}
