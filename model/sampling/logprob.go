package sampling

import (
	"math"

	"github.com/lukv/lukv/internal/detmath"
)

// TokenProb is a token with its natural log-probability.
type TokenProb struct {
	ID      int32
	LogProb float64
}

// Token is one generated token.
type Token struct {
	ID int32

	// LogProb is the natural log-probability under the model's own distribution,
	// before penalties and temperature, if Options.LogProbs or TopLogProbs asks
	// for it.
	LogProb float64

	// Top holds the most likely tokens, if Options.TopLogProbs asks for them.
	// It is valid until the next token.
	Top []TokenProb
}

// LogSumExp returns ln Σ e^x, NaN if any x is NaN.
func LogSumExp(x []float32) float64 {
	m := math.Inf(-1)
	for _, v := range x {
		m = max(m, float64(v))
	}
	if math.IsInf(m, 0) || math.IsNaN(m) {
		return m
	}
	return m + detmath.Log(detmath.SumExp(x, m))
}

// LogProb returns the natural log-probability of token under logits.
func LogProb(logits []float32, token int32) float64 {
	return float64(logits[token]) - LogSumExp(logits)
}

// Divergence returns the Kullback-Leibler divergence of the distribution with logits q
// from that with logits p, in nats and in float64; both have the same length. It is
// exactly 0 for equal logits, and NaN if a logit is.
func Divergence(p, q []float32) float64 { return DivergenceGiven(p, q, LogSumExp(p)) }

// DivergenceGiven returns the Kullback-Leibler divergence of the distribution with
// logits q from that with logits p, in nats: Σ p·(ln p − ln q), both softmaxes in
// float64. sum is LogSumExp(p). It is exactly 0 for equal logits, and NaN if a logit
// is.
func DivergenceGiven(p, q []float32, sum float64) float64 {
	other := LogSumExp(q)
	kl := 0.0
	for i, x := range p {
		if a := float64(x) - sum; !math.IsInf(a, -1) {
			kl += float64(detmath.Exp(a) * (a - (float64(q[i]) - other)))
		}
	}
	return max(0, kl)
}

// topLogProbs appends the n most likely tokens under logits to dst, most likely
// first, the lower token first among equals; tokens whose logit is NaN or minus
// infinity are left out. lse is LogSumExp(logits).
func topLogProbs(dst []TokenProb, logits []float32, n int, lse float64, scratch *topTokens) []TokenProb {
	for _, id := range scratch.choose(logits, n) {
		dst = append(dst, TokenProb{id, float64(logits[id]) - lse})
	}
	return dst
}

// topTokens finds the tokens with the largest logits. It reuses its memory.
type topTokens struct{ heap []int32 }

// choose returns the n tokens with the largest logits, largest first, the lower
// token first among equals; fewer if not as many logits are numbers above minus
// infinity. The slice is valid until the next call.
//
// The heap holds the best tokens so far, the worst of them first, so a token that
// is not among the best costs one comparison.
func (t *topTokens) choose(logits []float32, n int) []int32 {
	h := t.heap[:0]
	n = min(n, len(logits))
	if n <= 0 {
		return h
	}
	worst := float32(math.Inf(-1))
	for i, v := range logits {
		if !(v > worst) {
			continue
		}
		if len(h) < n {
			h = append(h, int32(i))
			up(h, logits)
			if len(h) == n {
				worst = logits[h[0]]
			}
			continue
		}
		h[0] = int32(i)
		down(h, logits)
		worst = logits[h[0]]
	}
	t.heap = h
	// Take the worst out until none is left, filling the slice from behind.
	for end := len(h) - 1; end > 0; end-- {
		h[0], h[end] = h[end], h[0]
		down(h[:end], logits)
	}
	return h
}

// worse reports whether token a ranks below token b.
func worse(logits []float32, a, b int32) bool {
	x, y := logits[a], logits[b]
	return x < y || x == y && a > b
}

// up moves the last token of a heap to its place.
func up(h []int32, logits []float32) {
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !worse(logits, h[i], h[parent]) {
			return
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

// down moves the first token of a heap to its place.
func down(h []int32, logits []float32) {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && worse(logits, h[child+1], h[child]) {
			child++
		}
		if !worse(logits, h[child], h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
