package sampling

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/lukv/lukv/kernels"
)

// Sampler draws the tokens of one generation from logits. What it draws is a
// function of options, choice, history and logits alone, on every processor. It
// belongs to one goroutine at a time and keeps its memory, at most 16 bytes per
// token of the vocabulary.
type Sampler struct {
	o     Options
	cpu   kernels.CPU
	vocab int
	rng   rand.PCG

	occurs    []int32 // [vocab] how often in the repetition penalty's window; nil without it
	recent    []int32 // a ring of the window's tokens, if it is bounded
	oldest    int     // in recent
	generated []int32 // [vocab] how often accepted; nil without presence or frequency penalty

	changed []float32 // [vocab] logits with bias, penalties and mask
	weights []float32 // [vocab], or of the chosen tokens
	few     []float32 // of the most likely tokens
	top     topTokens
	probs   []TokenProb
}

// ErrNoToken says that a sampler had nothing to draw from: no unmasked logit is a
// number above minus infinity.
var ErrNoToken = errors.New("no token can be drawn")

// New returns a sampler for a vocabulary of the given size and answer number choice
// to a request; each choice has a random stream of its own. [Sampler.Start] takes the tokens
// so far, which the repetition penalty looks at.
func New(cpu kernels.CPU, vocab int, o Options, choice int) (*Sampler, error) {
	s := &Sampler{cpu: cpu, vocab: vocab}
	if err := s.Reset(o, choice); err != nil {
		return nil, err
	}
	return s, nil
}

// Reset starts a new generation, reusing memory.
func (s *Sampler) Reset(o Options, choice int) error {
	if err := o.Validate(); err != nil {
		return err
	}
	for id := range o.LogitBias {
		if int(id) >= s.vocab {
			return fmt.Errorf("sampling: logit_bias names token %d, expected 0 to %d", id, s.vocab-1)
		}
	}
	s.o = o
	s.rng.Seed(o.Seed, 0x9e3779b97f4a7c15*(2*uint64(choice)+1))
	s.recent, s.oldest = s.recent[:0], 0
	s.occurs = counts(s.occurs, s.vocab, o.RepetitionPenalty != 0 && o.RepetitionPenalty != 1)
	s.generated = counts(s.generated, s.vocab, o.PresencePenalty != 0 || o.FrequencyPenalty != 0)
	return nil
}

// Options returns the options, which must not be changed.
func (s *Sampler) Options() *Options { return &s.o }

// Stream returns the state of the random stream, and rewind goes back to one.
func (s *Sampler) Stream() rand.PCG   { return s.rng }
func (s *Sampler) Rewind(to rand.PCG) { s.rng = to }

// counts returns n zeros in the memory of c, nil if they are not wanted.
func counts(c []int32, n int, wanted bool) []int32 {
	if !wanted {
		return nil
	}
	if cap(c) < n {
		return make([]int32, n)
	}
	clear(c[:n])
	return c[:n]
}

// Start tells the sampler the tokens so far: those of the prompt.
func (s *Sampler) Start(history []int32) {
	if s.occurs == nil {
		return
	}
	if w := s.o.RepetitionWindow; w > 0 && w < len(history) {
		history = history[len(history)-w:]
	}
	for _, t := range history {
		s.remember(t)
	}
}

// Accept tells the sampler which token was taken, usually the one that Next returned.
func (s *Sampler) Accept(token int32) {
	if s.generated != nil {
		s.generated[token]++
	}
	if s.occurs != nil {
		s.remember(token)
	}
}

// remember adds a token to the window of the repetition penalty.
func (s *Sampler) remember(token int32) {
	s.occurs[token]++
	if w := s.o.RepetitionWindow; w == 0 {
		return
	} else if len(s.recent) < w {
		s.recent = append(s.recent, token)
		return
	}
	s.occurs[s.recent[s.oldest]]--
	s.recent[s.oldest] = token
	s.oldest = (s.oldest + 1) % len(s.recent)
}

// Next draws the next token from logits, [Vocab], which it does not change.
// mask, if not nil, has a bit for every token, 64 per word, lowest first: tokens
// whose bit is 0 are not drawn, nor are those beyond its end. A draw takes one
// number from the random stream, a greedy choice none.
func (s *Sampler) Next(logits []float32, mask []uint64) (int32, error) {
	if len(logits) != s.vocab {
		return 0, fmt.Errorf("sample: %d logits for a vocabulary of %d", len(logits), s.vocab)
	}
	logits = s.change(logits, mask)
	best := s.cpu.Argmax(logits)
	peak := float64(logits[best])
	if !(peak > math.Inf(-1)) {
		return 0, fmt.Errorf("sample: %w", ErrNoToken)
	}
	inv := 1 / s.o.Temperature
	if math.IsInf(inv, 0) || math.IsInf(peak, 1) {
		return int32(best), nil
	}
	// 53 random bits give a uniform number in [0, 1).
	u := float64(s.rng.Uint64()>>11) * 0x1p-53
	if k := s.o.TopK; k > 0 && k < s.vocab {
		chosen := s.top.choose(logits, k)
		weights := s.weigh(logits, chosen, peak, inv)
		return s.drawFrom(chosen, weights, sum(weights), u), nil
	}
	weights := s.weighAll(logits, peak, inv)
	total := sum(weights)
	if p := s.o.TopP; p > 0 && p < 1 {
		return s.nucleus(logits, weights, total, u), nil
	}
	return s.drawAll(weights, total, u, int32(best)), nil
}

// Describe returns a token with what the options ask for: log-probabilities under
// the logits as given, without bias, penalties, mask and temperature. Top is valid
// until the next call.
func (s *Sampler) Describe(logits []float32, token int32) Token {
	t := Token{ID: token}
	if s.o.LogProbs || s.o.TopLogProbs > 0 {
		lse := LogSumExp(logits)
		t.LogProb = float64(logits[token]) - lse
		s.probs = topLogProbs(s.probs[:0], logits, s.o.TopLogProbs, lse, &s.top)
		t.Top = s.probs
	}
	return t
}

// change returns the logits with bias, penalties and mask applied.
func (s *Sampler) change(logits []float32, mask []uint64) []float32 {
	if s.occurs == nil && s.generated == nil && len(s.o.LogitBias) == 0 && mask == nil {
		return logits
	}
	s.changed = append(s.changed[:0], logits...)
	x := s.changed
	for id, b := range s.o.LogitBias {
		x[id] += float32(b)
	}
	if s.occurs != nil {
		p := s.o.RepetitionPenalty
		for t, n := range s.occurs {
			if v := float64(x[t]); n > 0 && v > 0 {
				x[t] = float32(v / p)
			} else if n > 0 {
				x[t] = float32(v * p)
			}
		}
	}
	for t, n := range s.generated {
		if n > 0 {
			x[t] = float32(float64(x[t]) - s.o.PresencePenalty - float64(float64(n)*s.o.FrequencyPenalty))
		}
	}
	if mask != nil {
		applyMask(x, mask)
	}
	return x
}

func applyMask(x []float32, mask []uint64) {
	out := float32(math.Inf(-1))
	for at := 0; at < len(x); at += 64 {
		word := uint64(0)
		if at>>6 < len(mask) {
			word = mask[at>>6]
		}
		if word == math.MaxUint64 {
			continue
		}
		for i := at; i < min(at+64, len(x)); i++ {
			if word>>(i&63)&1 == 0 {
				x[i] = out
			}
		}
	}
}

// weighAll returns e^((x-peak)·inv) for every logit x, 0 for one that is NaN.
func (s *Sampler) weighAll(logits []float32, peak, inv float64) []float32 {
	w := s.room(len(logits))
	for i, v := range logits {
		w[i] = scaled(v, peak, inv)
	}
	s.cpu.Exp(w, w)
	return w
}

// weigh returns the weights of the chosen tokens.
func (s *Sampler) weigh(logits []float32, chosen []int32, peak, inv float64) []float32 {
	w := s.room(len(chosen))
	for i, id := range chosen {
		w[i] = scaled(logits[id], peak, inv)
	}
	s.cpu.Exp(w, w)
	return w
}

func (s *Sampler) room(n int) []float32 {
	if cap(s.weights) < n {
		s.weights = make([]float32, n)
	}
	return s.weights[:n]
}

func scaled(v float32, peak, inv float64) float32 {
	if d := float64(v) - peak; d <= 0 {
		return float32(d * inv)
	}
	return float32(math.Inf(-1)) // not a number
}

// sum adds weights in four interleaved sums, which are then added in order.
func sum(w []float32) float64 {
	var a, b, c, d float64
	for ; len(w) >= 4; w = w[4:] {
		a += float64(w[0])
		b += float64(w[1])
		c += float64(w[2])
		d += float64(w[3])
	}
	for _, v := range w {
		a += float64(v)
	}
	return a + b + c + d
}

// nucleus draws from the smallest set of most likely tokens that holds the share
// TopP of the total. Usually that is only a few: more are sought as needed.
func (s *Sampler) nucleus(logits, weights []float32, total, u float64) int32 {
	for n := 64; ; n *= 8 {
		chosen := s.top.choose(logits, n)
		s.few = s.few[:0]
		held := 0.0
		for _, id := range chosen {
			s.few = append(s.few, weights[id])
			held += float64(weights[id])
		}
		if held >= s.o.TopP*total || n >= len(logits) {
			return s.drawFrom(chosen, s.few, total, u)
		}
	}
}

// drawFrom draws from tokens, the most likely first, with their weights; total is
// what TopP is a share of.
func (s *Sampler) drawFrom(tokens []int32, weights []float32, total, u float64) int32 {
	n := len(tokens)
	if p := s.o.TopP; p > 0 && p < 1 {
		n = 0
		for held := 0.0; n < len(tokens) && (n == 0 || held < p*total); n++ {
			held += float64(weights[n])
		}
	}
	for n > 1 && float64(weights[n-1]) < s.o.MinP { // the largest weight is 1
		n--
	}
	u *= sum(weights[:n])
	for i := range n - 1 {
		if u -= float64(weights[i]); u < 0 {
			return tokens[i]
		}
	}
	return tokens[n-1]
}

// drawAll draws from the whole vocabulary; best is a token of weight 1.
func (s *Sampler) drawAll(weights []float32, total, u float64, best int32) int32 {
	if least := float32(s.o.MinP); least > 0 {
		for i, w := range weights {
			if w < least {
				weights[i] = 0
			}
		}
		total = sum(weights)
	}
	u *= total
	for i, w := range weights {
		if w > 0 {
			if u -= float64(w); u < 0 {
				return int32(i)
			}
		}
	}
	return best // u was within rounding of the total
}
