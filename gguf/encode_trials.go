package gguf

import "math"

const (
	maxScaled = 32 // elements that share a scale
	maxTrials = 20 // a multiple of 4, of which assembly computes as many side by side
)

// trials are steps and offsets that are tried for elements x of weights w, which become
// q·step − offset with integers q from lo to hi. Every sum is in the order of the elements,
// also in assembly (if the variable of that name is set), which has a lane for each trial.
type trials struct {
	size   int // elements, at least 1
	lo, hi float64

	// A product of two numbers of 24 bits is exact, and so is one of it and an integer of
	// 5 bits: their factors may be taken in any order.
	x, w, xw [maxScaled]float64

	n            int // trials
	step, offset [maxTrials]float64

	sq, sqq, sqx [maxTrials]float64 // Σ w·q, Σ w·q², Σ w·q·x
	e            [maxTrials]float64 // Σ w·(x − (q·step − offset))²
}

func (t *trials) set(x, w []float32, lo, hi int) {
	t.size, t.lo, t.hi = len(x), float64(lo), float64(hi)
	w = w[:len(x)]
	for j, v := range x {
		t.x[j], t.w[j], t.xw[j] = float64(v), float64(w[j]), float64(w[j])*float64(v)
	}
}

// best returns the first trial of the least error, false if no error is a number.
func (t *trials) best() (step, offset float64, ok bool) {
	t.measure()
	least := math.Inf(1)
	for i, e := range t.e[:t.n] {
		if e < least {
			step, offset, least, ok = t.step[i], t.offset[i], e, true
		}
	}
	return step, offset, ok
}

// fill makes steps of those that assembly computes beside the last trial.
func (t *trials) fill() {
	for i := t.n; i%4 != 0; i++ {
		t.step[i] = 1
	}
}

// sum computes sq, sqq and sqx.
func (t *trials) sum() {
	if assembly {
		t.fill()
		sumTrials(t)
		return
	}
	for i := range t.n {
		g, offset := newGrid(t.step[i], t.lo, t.hi), t.offset[i]
		sq, sqq, sqx := 0.0, 0.0, 0.0
		for j, x := range t.x[:t.size] {
			q := g.nearest(x + offset)
			wq := float64(t.w[j] * q)
			sq += wq
			sqq += float64(wq * q)
			sqx += float64(t.xw[j] * q)
		}
		t.sq[i], t.sqq[i], t.sqx[i] = sq, sqq, sqx
	}
}

// measure computes e.
func (t *trials) measure() {
	if assembly {
		t.fill()
		measureTrials(t)
		return
	}
	for i := range t.n {
		g, offset := newGrid(t.step[i], t.lo, t.hi), t.offset[i]
		e := 0.0
		for j, x := range t.x[:t.size] {
			r := x - (float64(g.step*g.nearest(x+offset)) - offset)
			e += float64(t.w[j] * float64(r*r))
		}
		t.e[i] = e
	}
}
