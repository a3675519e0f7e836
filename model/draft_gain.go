package model

import "time"

// draftGain decides how many drafts are worth their passes: from the share of drafts that
// were right, and from the time of passes, which is at first expected from the bytes that
// they read and then measured.
type draftGain struct {
	reads [1 + mostDrafts]float64 // bytes of weights that a pass of one more row reads
	share float64                 // of drafts that are right, estimated

	plain      float64 // seconds of a pass without drafts, 0: not known yet
	draft, row float64 // time of a draft, and of further rows of a pass, relative to what was expected
	passes     int     // since the last without drafts
}

// draftReads says what passes read for one session.
type draftReads struct {
	weights      float64 // its part of the weights, which sessions share
	whole, small float64 // bytes of its cache, and of the one that drafts
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

func newDraftGain(m *Model) draftGain {
	g := draftGain{share: shareStart, draft: 1, row: 1}
	for k := range g.reads {
		g.reads[k] = float64(m.StepBytes(1 + k))
	}
	return g
}

// rowsOfCache returns what k rows of a pass take beside the first, relative to reading the
// cache once, as measured with AVX-512 (BenchmarkExact): many rows share what is loaded.
func rowsOfCache(k int) float64 { return min(0.5*float64(k), 1+0.13*float64(k)) }

// relative returns the expected time of drafting a token, and of k more rows of a pass,
// relative to a pass without drafts.
func (g *draftGain) relative(k int, r draftReads) (draft, rows float64) {
	plain := r.weights*g.reads[0] + r.whole
	more := r.weights*(g.reads[k]*(1+rowOfWeights*float64(k))-g.reads[0]) + r.whole*rowsOfCache(k)
	return (r.weights*g.reads[0] + r.small) / plain, more / plain
}

// best returns the number of drafts, at most n, with which the session is fastest.
func (g *draftGain) best(n int, r draftReads) int {
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

// seen takes note of a draft that was right (1) or not (0).
func (g *draftGain) seen(right float64) { g.share += shareWeight * (right - g.share) }

// drafted takes note of the time of a pass that computed a draft.
func (g *draftGain) drafted(took time.Duration, r draftReads) {
	if g.plain > 0 {
		draft, _ := g.relative(0, r)
		mix(&g.draft, took.Seconds()/g.plain/draft)
	}
}

// passed takes note of the time of a pass that verified k drafts.
func (g *draftGain) passed(k int, took time.Duration, r draftReads) {
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
