package engine

import (
	"cmp"
	"math"
	"time"
)

// pace decides how many prompt tokens a step takes, from how long earlier steps
// took.
type pace struct {
	target time.Duration // between two tokens of an answer; 0: none was asked for
	most   int           // prompt tokens in a step

	perToken float64 // seconds per prompt token, through all layers
	decode   float64 // seconds per pass without prompts
	owed     float64 // seconds of passes without prompts that come before the next with some
}

const (
	// leastTokens of prompts go into every step that takes any, so that they never starve.
	leastTokens = 16

	// efficientTokens of prompts in a step cost little more, each, than those of longer
	// pieces.
	efficientTokens = 128

	// defaultTarget is the time between two tokens of an answer if none was asked for,
	// unless the least piece takes longer.
	defaultTarget = 100 * time.Millisecond

	// longestStep bounds steps without answers: what arrives meanwhile waits for them.
	longestStep = time.Second

	// longestPiece is how many passes without prompts the least piece may take by default: the
	// weights, which a piece reads as such a pass does, are then a small part of its time.
	// After a long context, where each token takes longer, pieces are shorter for it.
	longestPiece = 8

	// answersShare of the time of pieces of long prompts follows them as passes without
	// prompts, so that answers take more than one step for each. Short prompts soon give
	// answers themselves, and passes with more answers are worth more.
	answersShare = 1. / 8

	// othersShare is that for prompts of any length while answers of other clients than theirs
	// decode: however many clients send prompts, answers have half of the time.
	othersShare = 1

	// longPrompt is the length in tokens from which a prompt is long.
	longPrompt = 1024
)

// newPace returns a pace of at most most prompt tokens in a step; target 0 stands for the
// default.
func newPace(target time.Duration, most int) pace { return pace{target: target, most: most} }

// tokens returns the number of prompt tokens for the next step, in which answers,
// if there are any, take one token each: 0 if this step is for answers alone.
func (p *pace) tokens(answers int) int {
	switch {
	case answers == 0:
		p.owed = 0
		if p.perToken == 0 {
			return p.most
		}
		return min(p.most, max(efficientTokens, int(longestStep.Seconds()/p.perToken)))
	case p.owed > 0 && p.owed >= p.decode:
		if p.owed -= p.decode; p.decode == 0 {
			p.owed = 0
		}
		return 0
	case p.perToken == 0:
		return p.least()
	}
	target := cmp.Or(p.target, defaultTarget).Seconds()
	return max(p.least(), min(p.most, int((target-p.decode)/p.perToken)))
}

// least returns the fewest prompt tokens of a step that takes any.
func (p *pace) least() int {
	if p.target > 0 {
		return leastTokens
	}
	n := efficientTokens
	if p.perToken > 0 && p.decode > 0 {
		n = int(min(efficientTokens, math.Ceil(longestPiece*p.decode/p.perToken)))
	}
	return min(p.most, max(leastTokens, n))
}

// weight is that of the newest measurement in the means, so that a few steps
// decide.
const weight = 0.25

// measured records how long a step with the given numbers of prompt tokens and
// answers took, and the share of it that passes without prompts have after it.
func (p *pace) measured(took time.Duration, tokens, answers int, share float64) {
	s := took.Seconds()
	if tokens == 0 {
		p.decode = mean(p.decode, s)
		return
	}
	p.owed += share * s
	if answers > 0 {
		s = max(s-p.decode, s/4) // what it would have taken without them
	}
	p.perToken = mean(p.perToken, s/float64(tokens))
}

func mean(old, x float64) float64 {
	if old == 0 {
		return x
	}
	return old + weight*(x-old)
}
