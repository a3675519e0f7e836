package engine

import "time"

// pace decides how many prompt tokens a step takes, from how long earlier steps
// took.
type pace struct {
	target time.Duration // between two tokens of an answer
	least  int           // prompt tokens in a step
	most   int           // likewise

	perToken float64 // seconds per prompt token, through all layers
	decode   float64 // seconds per pass without prompts
}

// leastTokens of prompts go into every step, so that they never starve.
const leastTokens = 16

// efficientTokens of prompts in a step cost little more, each, than those of longer pieces.
const efficientTokens = 128

// defaultTarget is the time between two tokens of an answer, unless efficientTokens take
// longer.
const defaultTarget = 100 * time.Millisecond

// newPace returns a pace of at most most prompt tokens in a step; target 0 stands for the
// default.
func newPace(target time.Duration, most int) pace {
	p := pace{target: target, least: leastTokens, most: most}
	if target == 0 {
		p.target, p.least = defaultTarget, min(most, efficientTokens)
	}
	return p
}

// tokens returns the number of prompt tokens for the next step, in which answers,
// if there are any, take one token each.
func (p *pace) tokens(answers int) int {
	switch {
	case answers == 0:
		return p.most
	case p.perToken == 0:
		return p.least
	}
	return max(p.least, min(p.most, int((p.target.Seconds()-p.decode)/p.perToken)))
}

// weight is that of the newest measurement in the means, so that a few steps
// decide.
const weight = 0.25

// measured records how long a step with the given numbers of prompt tokens and
// answers took.
func (p *pace) measured(took time.Duration, tokens, answers int) {
	s := took.Seconds()
	if tokens == 0 {
		p.decode = mean(p.decode, s)
		return
	}
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
