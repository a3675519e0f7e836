package sampling

import (
	"fmt"
	"math"
)

// Options says how tokens are chosen and when generation ends. The zero value
// is greedy decoding until the model's end-of-sequence token or the end of the
// context. It can be written to and read from JSON.
//
// The steps are applied in this order: logit bias, repetition penalty, presence
// and frequency penalty, mask (see [Sampler.Next]), temperature, TopK, TopP,
// MinP, draw.
type Options struct {
	// Temperature divides the logits; 0 is greedy: the largest logit wins, the
	// lowest token among equals, and TopK, TopP and MinP do not matter.
	Temperature float64 `json:"temperature,omitempty"`

	// TopK keeps the K most likely tokens; 0 keeps all.
	TopK int `json:"top_k,omitempty"`

	// TopP keeps the smallest set of most likely tokens whose probabilities add
	// up to at least TopP; 0 and 1 keep all.
	TopP float64 `json:"top_p,omitempty"`

	// MinP drops tokens less likely than MinP times the most likely one.
	MinP float64 `json:"min_p,omitempty"`

	// RepetitionPenalty divides positive and multiplies negative logits of
	// tokens that occur among the last RepetitionWindow tokens (0: all) of
	// prompt and output; 0 and 1 do nothing (Keskar et al., 2019).
	RepetitionPenalty float64 `json:"repetition_penalty,omitempty"`
	RepetitionWindow  int     `json:"repetition_window,omitempty"`

	// PresencePenalty is subtracted from the logits of tokens that were generated
	// before, FrequencyPenalty once for each time they were; tokens of the prompt
	// do not count. Negative values encourage repetition. 0 does nothing.
	PresencePenalty  float64 `json:"presence_penalty,omitempty"`
	FrequencyPenalty float64 `json:"frequency_penalty,omitempty"`

	// LogitBias is added to the logits of the tokens that it names.
	LogitBias map[int32]float64 `json:"logit_bias,omitempty"`

	// Seed starts the random generator. Equal seeds, logits and options give equal tokens.
	Seed uint64 `json:"seed,omitempty"`

	// MaxTokens bounds the number of generated tokens; 0: until the context is full.
	MaxTokens int `json:"max_tokens,omitempty"`

	// Stop lists further tokens that end the generation. IgnoreEOS treats the
	// model's own end-of-sequence tokens as ordinary ones.
	Stop      []int32 `json:"stop,omitempty"`
	IgnoreEOS bool    `json:"ignore_eos,omitempty"`

	// LogProbs reports each token's log-probability, TopLogProbs (at most
	// MaxTopLogProbs) that many of the most likely alternatives as well. Both
	// cost a pass over the vocabulary.
	LogProbs    bool `json:"logprobs,omitempty"`
	TopLogProbs int  `json:"top_logprobs,omitempty"`

	// YieldEnd also hands out the token that ends the sequence, before the
	// generation ends. It does not become part of the session.
	YieldEnd bool `json:"yield_end,omitempty"`
}

// MaxTopLogProbs bounds Options.TopLogProbs.
const MaxTopLogProbs = 1000

// maxLogit bounds penalties and biases; logits of real models are a thousand times smaller.
const maxLogit = 1e6

// Validate returns an error that names the first parameter out of range.
func (o *Options) Validate() error {
	bad := func(name string, v any, want string) error {
		return fmt.Errorf("sampling: %s is %v, expected %s", name, v, want)
	}
	switch {
	case !(o.Temperature >= 0) || math.IsInf(o.Temperature, 0):
		return bad("temperature", o.Temperature, "0 or more")
	case o.TopK < 0:
		return bad("top_k", o.TopK, "0 or more")
	case !(o.TopP >= 0 && o.TopP <= 1):
		return bad("top_p", o.TopP, "0 to 1")
	case !(o.MinP >= 0 && o.MinP <= 1):
		return bad("min_p", o.MinP, "0 to 1")
	case !(o.RepetitionPenalty >= 0) || math.IsInf(o.RepetitionPenalty, 0):
		return bad("repetition_penalty", o.RepetitionPenalty, "0 or more")
	case o.RepetitionWindow < 0:
		return bad("repetition_window", o.RepetitionWindow, "0 or more")
	case o.MaxTokens < 0:
		return bad("max_tokens", o.MaxTokens, "0 or more")
	case o.TopLogProbs < 0 || o.TopLogProbs > MaxTopLogProbs:
		return bad("top_logprobs", o.TopLogProbs, fmt.Sprintf("0 to %d", MaxTopLogProbs))
	case !(math.Abs(o.PresencePenalty) <= maxLogit):
		return bad("presence_penalty", o.PresencePenalty, fmt.Sprintf("-%g to %[1]g", float64(maxLogit)))
	case !(math.Abs(o.FrequencyPenalty) <= maxLogit):
		return bad("frequency_penalty", o.FrequencyPenalty, fmt.Sprintf("-%g to %[1]g", float64(maxLogit)))
	}
	for id, b := range o.LogitBias {
		if id < 0 || !(math.Abs(b) <= maxLogit) {
			return bad(fmt.Sprintf("logit_bias of token %d", id), b, fmt.Sprintf("a token of the vocabulary and -%g to %[1]g", float64(maxLogit)))
		}
	}
	return nil
}
