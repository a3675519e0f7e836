package model

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lukv/lukv/internal/detmath"
)

// Sampling says how tokens are chosen and when generation ends. The zero value
// is greedy decoding until the model's end-of-sequence token or the end of the
// context. It can be written to and read from JSON.
//
// The steps are applied in this order: repetition penalty, temperature, TopK,
// TopP, MinP, draw.
type Sampling struct {
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

	// Seed starts the random generator. Equal seeds, logits and options give equal tokens.
	Seed uint64 `json:"seed,omitempty"`

	// MaxTokens bounds the number of generated tokens; 0: until the context is full.
	MaxTokens int `json:"max_tokens,omitempty"`

	// Stop lists further tokens that end the generation. IgnoreEOS takes the
	// model's own end-of-sequence tokens as ordinary ones.
	Stop      []int32 `json:"stop,omitempty"`
	IgnoreEOS bool    `json:"ignore_eos,omitempty"`

	// TopLogProbs is the number of most likely alternatives to report with each token.
	TopLogProbs int `json:"top_logprobs,omitempty"`
}

// Validate returns an error that names the first parameter out of range.
func (o *Sampling) Validate() error {
	bad := func(name string, v any, want string) error {
		return fmt.Errorf("sampling: %s is %v, want %s", name, v, want)
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
	case o.TopLogProbs < 0:
		return bad("top_logprobs", o.TopLogProbs, "0 or more")
	}
	return nil
}

// TokenProb is a token with its natural log-probability.
type TokenProb struct {
	ID      int32
	LogProb float64
}

// candidate is a token in the running for a draw.
type candidate struct {
	id     int32
	logit  float64
	weight float64
}

// sampler is the state of one generation. Its buffers are reused.
type sampler struct {
	o     Sampling
	rng   rand.PCG
	cands []candidate
	logit []float32 // penalised copy
	top   []TokenProb
}

func (s *sampler) start(o Sampling) {
	s.o = o
	s.rng.Seed(o.Seed, 0x9e3779b97f4a7c15)
}

// next chooses a token from logits. history are the tokens so far, oldest first.
func (s *sampler) next(logits []float32, history []int32, argmax func([]float32) int) int32 {
	if p := s.o.RepetitionPenalty; p != 0 && p != 1 {
		logits = s.penalise(logits, history, p)
	}
	if s.o.Temperature == 0 {
		return int32(argmax(logits))
	}
	s.cands = s.cands[:0]
	for i, v := range logits {
		if v == v { // not NaN
			s.cands = append(s.cands, candidate{id: int32(i), logit: float64(v) / s.o.Temperature})
		}
	}
	if len(s.cands) == 0 {
		return 0
	}
	c := s.cands
	if s.o.TopK > 0 && s.o.TopK < len(c) {
		slices.SortFunc(c, likelier)
		c = c[:s.o.TopK]
	}
	best := c[0].logit
	for i := range c {
		best = max(best, c[i].logit)
	}
	total := 0.0
	for i := range c {
		c[i].weight = detmath.Exp(c[i].logit - best)
		total += c[i].weight
	}
	if p := s.o.TopP; p > 0 && p < 1 {
		slices.SortFunc(c, likelier)
		sum, n := 0.0, 0
		for n < len(c) && (n == 0 || sum < p*total) {
			sum += c[n].weight
			n++
		}
		c, total = c[:n], sum
	}
	if s.o.MinP > 0 {
		kept, sum := c[:0], 0.0
		for _, x := range c { // the largest weight is 1
			if x.weight >= s.o.MinP {
				kept = append(kept, x)
				sum += x.weight
			}
		}
		c, total = kept, sum
	}
	// 53 random bits give a uniform number in [0, 1).
	u := float64(s.rng.Uint64()>>11) * 0x1p-53 * total
	for i := range c {
		if u -= c[i].weight; u < 0 {
			return c[i].id
		}
	}
	return c[len(c)-1].id
}

// likelier orders candidates by logit, largest first, then by token.
func likelier(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.logit, a.logit), cmp.Compare(a.id, b.id))
}

// penalise returns logits with the repetition penalty p applied, once per token.
func (s *sampler) penalise(logits []float32, history []int32, p float64) []float32 {
	if w := s.o.RepetitionWindow; w > 0 && w < len(history) {
		history = history[len(history)-w:]
	}
	s.logit = append(s.logit[:0], logits...)
	for _, t := range history {
		v := float64(logits[t]) // from the original: a token counts once
		if v > 0 {
			v /= p
		} else {
			v *= p
		}
		s.logit[t] = float32(v)
	}
	return s.logit
}

// LogSumExp returns ln Σ e^x.
func LogSumExp(x []float32) float64 {
	m := math.Inf(-1)
	for _, v := range x {
		m = max(m, float64(v))
	}
	if math.IsInf(m, 0) {
		return m
	}
	sum := 0.0
	for _, v := range x {
		sum += detmath.Exp(float64(v) - m)
	}
	return m + detmath.Log(sum)
}

// LogProb returns the natural log-probability of token under logits.
func LogProb(logits []float32, token int32) float64 {
	return float64(logits[token]) - LogSumExp(logits)
}

// TopLogProbs appends the n most likely tokens of logits to dst, most likely
// first, the lower token first among equals.
func TopLogProbs(dst []TokenProb, logits []float32, n int) []TokenProb {
	if n <= 0 {
		return dst
	}
	n = min(n, len(logits))
	lse := LogSumExp(logits)
	from := len(dst)
	for i, v := range logits {
		p := TokenProb{int32(i), float64(v) - lse}
		if len(dst)-from == n && p.LogProb <= dst[len(dst)-1].LogProb {
			continue
		}
		at := len(dst)
		for at > from && p.LogProb > dst[at-1].LogProb {
			at--
		}
		if len(dst)-from == n {
			dst = dst[:len(dst)-1]
		}
		dst = slices.Insert(dst, at, p)
	}
	return dst
}
