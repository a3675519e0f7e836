package lukv

import (
	"fmt"
	"slices"
)

// LossMap says how many answers a model lost in calibration where a cache had lost a share
// of its document's facts (spec 10): one point for a range of shares, joined by straight
// lines. It is a rate over questions, and no statement about a single one.
type LossMap struct {
	Facts   []float64 `json:"facts_lost"`   // shares of facts lost, ascending, 0 to 1
	Answers []float64 `json:"answers_lost"` // shares of answers lost there, not descending, 0 to 1
	N       []int     `json:"n"`            // answers that each point is a mean over
}

// LossPoint is what a cut of a calibration text lost.
type LossPoint struct {
	Facts   float64 // share of the text's facts
	Answers int     // that the full cache gives right
	Lost    int     // of these
}

const (
	lossMapFewest = 32 // answers of a map
	lossMapPoint  = 16 // answers of a point
	lossMapPoints = 8  // about so many
)

// NewLossMap makes the map of some cuts. Cuts are sorted by the facts lost and gathered
// into about eight points of as many answers; those whose share of answers would descend
// are merged (isotonic regression by pooling adjacent violators). Fewer than 32 answers in
// all are an error.
func NewLossMap(cuts []LossPoint) (*LossMap, error) {
	cuts = slices.Clone(cuts)
	slices.SortStableFunc(cuts, func(a, b LossPoint) int {
		switch {
		case a.Facts < b.Facts:
			return -1
		case a.Facts > b.Facts:
			return 1
		}
		return 0
	})
	total := 0
	for _, c := range cuts {
		total += c.Answers
	}
	if total < lossMapFewest {
		return nil, fmt.Errorf("loss map: found %d answers that the full cache gives right over all cuts, expected at least %d", total, lossMapFewest)
	}
	var points []lossSum
	var p lossSum
	for i, c := range cuts {
		p.add(c)
		last := i+1 == len(cuts)
		if !last && (p.n < max(lossMapPoint, total/lossMapPoints) || cuts[i+1].Facts == c.Facts) {
			continue
		}
		if last && p.n < lossMapPoint && len(points) > 0 {
			points[len(points)-1].join(p)
		} else {
			points = append(points, p)
		}
		for n := len(points); n > 1 && points[n-1].answers() < points[n-2].answers(); n-- {
			points[n-2].join(points[n-1])
			points = points[:n-1]
		}
		p = lossSum{}
	}
	m := &LossMap{}
	for _, p := range points {
		m.Facts, m.Answers, m.N = append(m.Facts, p.facts/float64(p.n)), append(m.Answers, p.answers()), append(m.N, p.n)
	}
	return m, m.check()
}

// lossSum adds up cuts, weighted by their answers.
type lossSum struct {
	facts   float64
	n, lost int
}

func (s *lossSum) add(c LossPoint) {
	s.join(lossSum{float64(c.Facts * float64(c.Answers)), c.Answers, c.Lost})
}

func (s *lossSum) join(o lossSum) {
	s.facts, s.n, s.lost = s.facts+o.facts, s.n+o.n, s.lost+o.lost
}

func (s *lossSum) answers() float64 { return float64(s.lost) / float64(s.n) }

// At returns the share of answers lost where a share of facts was; beyond the ends it is
// that of the end.
func (m *LossMap) At(facts float64) float64 {
	i, found := slices.BinarySearch(m.Facts, facts)
	switch {
	case found:
		return m.Answers[i]
	case i == 0:
		return m.Answers[0]
	case i == len(m.Facts):
		return m.Answers[i-1]
	}
	t := (facts - m.Facts[i-1]) / (m.Facts[i] - m.Facts[i-1])
	return m.Answers[i-1] + float64(t*(m.Answers[i]-m.Answers[i-1]))
}

// check reports numbers that no calibration gives.
func (m *LossMap) check() error {
	if len(m.Facts) == 0 || len(m.Answers) != len(m.Facts) || len(m.N) != len(m.Facts) {
		return fmt.Errorf("loss map: found %d, %d and %d numbers, expected as many of each and at least one", len(m.Facts), len(m.Answers), len(m.N))
	}
	for i := range m.Facts {
		share := func(x float64) bool { return x >= 0 && x <= 1 }
		if !share(m.Facts[i]) || !share(m.Answers[i]) || m.N[i] < 1 || i > 0 && (m.Facts[i] <= m.Facts[i-1] || m.Answers[i] < m.Answers[i-1]) {
			return fmt.Errorf("loss map: point %d is %v of the facts and %v of %d answers, expected shares that ascend", i+1, m.Facts[i], m.Answers[i], m.N[i])
		}
	}
	return nil
}
