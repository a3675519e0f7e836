package drafting

import "time"

// MostDrafts is the most tokens that a draft cache drafts for a pass.
const MostDrafts = 8

// Gain decides how many drafts are worth their passes: from the share of drafts that
// were right, and from the time of passes, which is at first expected from the bytes that
// they read and then measured.
type Gain struct {
	reads [1 + MostDrafts]float64 // bytes of weights that a pass of one more row reads
	share float64                 // of drafts that are right, estimated

	plain      float64 // seconds of a pass without drafts, 0: not known yet
	draft, row float64 // time of a draft, and of further rows of a pass, relative to what was expected
	passes     int     // since the last without drafts
}

// Reads says what passes read for one session.
type Reads struct {
	Weights      float64 // its part of the weights, which sessions share
	Whole, Small float64 // bytes of its cache, and of the one that drafts
}

const (
	// What a row of a pass takes beside the first, relative to reading the weights once.
	rowOfWeights = 0.06

	leastGain   = 1.05 // from which on drafts pay
	shareStart  = 0.95 // until it is known better
	shareWeight = 0.05 // of a new observation
	timeWeight  = 0.2  // likewise
	forgetting  = 0.01 // what every pass without drafts brings estimates back to their start
	plainEvery  = 32   // passes, one of which has no drafts, so that its time is known
)

// NewGain returns the gain of a model of which a pass over n rows reads stepBytes(n)
// bytes of weights.
func NewGain(stepBytes func(n int) int64) Gain {
	g := Gain{share: shareStart, draft: 1, row: 1}
	for k := range g.reads {
		g.reads[k] = float64(stepBytes(1 + k))
	}
	return g
}

// rowsOfCache returns what k rows of a pass take beside the first, relative to reading the
// cache once, as measured with AVX-512 (BenchmarkExact): many rows share what is loaded.
func rowsOfCache(k int) float64 { return min(0.5*float64(k), 1+0.13*float64(k)) }

// relative returns the expected time of drafting a token, and of k more rows of a pass,
// relative to a pass without drafts.
func (g *Gain) relative(k int, r Reads) (draft, rows float64) {
	plain := r.Weights*g.reads[0] + r.Whole
	more := r.Weights*(g.reads[k]*(1+rowOfWeights*float64(k))-g.reads[0]) + r.Whole*rowsOfCache(k)
	return (r.Weights*g.reads[0] + r.Small) / plain, more / plain
}

// Best returns the number of drafts, at most n, with which the session is fastest.
func (g *Gain) Best(n int, r Reads) int {
	if g.plain == 0 || g.passes >= plainEvery {
		return 0
	}
	best, fastest := 0, leastGain
	tokens, chance := 1.0, 1.0
	for k := 1; k <= n; k++ {
		chance *= g.share
		tokens += chance
		draft, rows := g.relative(k, r)
		if speed := tokens / (1 + float64(k)*g.draft*draft + g.row*rows); speed > fastest {
			best, fastest = k, speed
		}
	}
	return best
}

// Seen takes note of a draft that was right (1) or not (0).
func (g *Gain) Seen(right float64) { g.share += shareWeight * (right - g.share) }

// Drafted takes note of the time of a pass that computed a draft.
func (g *Gain) Drafted(took time.Duration, r Reads) {
	if g.plain > 0 {
		draft, _ := g.relative(0, r)
		mix(&g.draft, took.Seconds()/g.plain/draft)
	}
}

// Passed takes note of the time of a pass that verified k drafts.
func (g *Gain) Passed(k int, took time.Duration, r Reads) {
	switch t := took.Seconds(); {
	case k > 0 && g.plain > 0:
		_, rows := g.relative(k, r)
		mix(&g.row, (t/g.plain-1)/rows)
		g.passes++
	case k > 0:
	case g.plain == 0:
		g.plain = t
	default:
		mix(&g.plain, t)
		g.passes = 0
		g.share += forgetting * (shareStart - g.share)
		g.draft += forgetting * (1 - g.draft)
		g.row += forgetting * (1 - g.row)
	}
}

// mix moves an estimate towards an observation, which may be disturbed.
func mix(estimate *float64, x float64) {
	*estimate += timeWeight * (min(max(x, *estimate/2), *estimate*2) - *estimate)
}
