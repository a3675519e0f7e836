package arch

import (
	"math"
	"slices"

	"github.com/lukv/lukv/internal/lowbit"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Config describes the network of a checkpoint. What a config.json leaves out
// is filled in with the default of its model class.
type Config struct {
	Arch string // the model_type: "llama", "qwen3" …

	Layers       int
	Hidden       int
	Intermediate int
	Heads        int // query heads; query head h uses KV head h/(Heads/KVHeads)
	KVHeads      int // divides Heads
	HeadDim      int // even
	Vocab        int
	MaxPositions int // tokens the model was made for; with YaRN, those it is stretched to

	NormEps float64
	Rope    RopeConfig

	QKVBias        bool // biases on the query, key and value projections
	OutBias        bool // bias on the attention's output projection
	MLPBias        bool // biases on the gate, up and down projections
	QKNorm         bool // RMS norm of each query and key head before rotation
	TiedEmbeddings bool // the output matrix is the embedding

	// Windows holds each layer's attention window W in tokens: position i sees
	// the W positions up to and including itself. 0 is full attention.
	Windows []int

	BOS []int // tokens that begin a text, possibly none
	EOS []int // tokens that end one, possibly none

	// Type is the element type that the config declares, 0 if none. What counts
	// is each stored tensor's own type.
	Type tensor.Type

	Generation GenerationDefaults

	Scalars Scalars
	Lowbit  *lowbit.Scheme // of matrices that are stored in few bits, nil for none

	plan       []LayerPlan        // of every layer, see Plans
	activation kernels.Activation // of feed-forward units, the family's
	moreRopes  []RopeConfig
}

// RopeConfig describes how queries and keys are rotated. The zero value of each
// field but Theta means that it is not given.
type RopeConfig struct {
	Type  string  // "" or "default", "linear", "dynamic", "llama3", "yarn", "longrope"
	Theta float64 // base of the frequencies, above 1

	// Partial is the fraction of a head's elements that turn, its first ones; 1 if 0.
	Partial float64

	Factor      float64 // by which the context is stretched, at least 1
	OriginalMax int     // positions before stretching: llama3, and yarn and longrope (MaxPositions if 0)

	LowFreq, HighFreq float64 // llama3: bounds of the blend, in waves per OriginalMax

	BetaFast, BetaSlow float64 // yarn: bounds of the ramp in turns per OriginalMax (32 and 1 if 0)
	NoTruncate         bool    // yarn: keep the ramp's ends fractional
	AttentionFactor    float64 // yarn: factor of cosine and sine, by formula if 0
	MScale             float64 // yarn: with MScaleAllDim, another formula for the factor
	MScaleAllDim       float64

	// Longrope: divisors of the frequencies in sequences of up to OriginalMax tokens, and
	// in longer ones; one for each pair that turns.
	ShortFactors, LongFactors []float64

	// QueryBeta is the β of queries that grow with their position p, after rotation:
	// by 1 + β·ln(1 + ⌊p/OriginalMax⌋).
	QueryBeta float64
}

// GenerationDefaults are the sampling settings that come with a checkpoint, in
// generation_config.json. Settings that are absent have the value that has no
// effect, given in parentheses.
type GenerationDefaults struct {
	DoSample          bool    // (false) sample instead of taking the best token
	Temperature       float64 // (1)
	TopK              int     // (0) keep the K most likely tokens
	TopP              float64 // (1) keep the most likely tokens that make up P
	MinP              float64 // (0) drop tokens below P times the most likely one
	RepetitionPenalty float64 // (1)
	MaxNewTokens      int     // (0) no limit
}

func neutralGeneration() GenerationDefaults {
	return GenerationDefaults{Temperature: 1, TopP: 1, RepetitionPenalty: 1}
}

// Ragged reports whether a layer keeps its past in a ragged cache: every entry, until
// eviction takes one away. Only such layers are compressed, observed and traced. The other
// kind, layers with a window, lose what leaves it and nothing else.
func (c *Config) Ragged(layer int) bool { return c.Windows[layer] == 0 }

// Plans returns the plan of every layer: what the config's family made or, in configs
// made by hand, layers of the Llama kind with the biases, norms and windows of c.
func (c *Config) Plans() []LayerPlan {
	if c.plan != nil {
		return c.plan[:min(len(c.plan), max(c.Layers, 0))]
	}
	plan := make([]LayerPlan, c.Layers)
	for i := range plan {
		plan[i] = LayerPlan{
			ScoreScale: 1 / math.Sqrt(float64(c.HeadDim)),
			qkvBias:    c.QKVBias, outBias: c.OutBias,
			preNorm: true, ResidualScale: 1,
			FFN: FFNPlan{Activation: c.activation, Width: c.Intermediate, bias: c.MLPBias},
		}
		if i < len(c.Windows) {
			plan[i].Window = c.Windows[i]
		}
		if c.QKNorm {
			plan[i].QKNorm = HeadNorm
		}
	}
	return plan
}

// amend sets c.plan to layers of the Llama kind as changed by f.
func (c *Config) amend(f func(at int, p *LayerPlan)) {
	plan := slices.Clone(c.Plans())
	for at := range plan {
		f(at, &plan[at])
	}
	c.plan = plan
}

// ropeConfigs returns the settings of the rotations that plans name.
func (c *Config) ropeConfigs() []RopeConfig { return append([]RopeConfig{c.Rope}, c.moreRopes...) }
