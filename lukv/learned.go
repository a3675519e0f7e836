package lukv

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// learned scores an entry by a linear function of its key, with the rotation undone, its
// value and their squared lengths, which calibration fits to the scores of another
// metric, head by head. It is this project's own; spec 3.18.
type learned struct {
	Target InnerMetric `json:"target"` // whose scores are fitted
	Ridge  float64     `json:"ridge"`  // λ, added to the variance of every feature
	Floor  float64     `json:"floor"`  // smallest target whose logarithm is taken

	data *CalibrationData // of a profile
}

// Validate reports parameters out of range and targets that cannot be fitted.
func (m learned) Validate() error {
	switch m.Target.Metric.(type) {
	case nil:
		return errors.New("target: found none")
	case Refiner, learned, perHead, signed:
		return fmt.Errorf("target: found %s, expected a metric that ranks once, by itself and with scores of at least 0", MetricConfigOf(m.Target.Metric).Name)
	}
	return firstOf(within("ridge", m.Ridge, 0, math.MaxFloat64), within("floor", m.Floor, math.SmallestNonzeroFloat32, 1))
}

// Signed says that scores may be negative.
func (learned) Signed() bool { return true }

func (learned) Needs(T, n int) Needs { return Needs{Keys: true, Values: true} }

func (learned) Protection(T, n int) Protection {
	return Protection{Sinks: min(4, T), Window: min(1, T)}
}

func (m learned) Score(ctx context.Context, l *Layer) (Scores, error) {
	if err := m.check(l); err != nil {
		return nil, fmt.Errorf("score layer %d with learned: %w", l.Index, err)
	}
	rankings := m.data.Rankings[l.Index]
	if l.Accelerator != nil {
		if s, err := scoreByForms(ctx, l, rankings); !errors.Is(err, errors.ErrUnsupported) {
			return s, err
		}
	}
	s := l.NewScores()
	return s, l.EachHead(ctx, func(h int, ws *Workspace) error {
		return rankings[h].score(ctx, l, h, ws, s[h])
	})
}

// scoreByForms ranks the entries of a layer, by its rankings, [K], on its accelerator.
func scoreByForms(ctx context.Context, l *Layer, rankings []Ranking) (Scores, error) {
	var keys, values []float32
	scale := l.keyScale()
	for _, r := range rankings {
		for _, a := range r.Key {
			keys = append(keys, float32(float64(a)/scale))
		}
		values = append(values, r.Value...)
	}
	forms, err := l.fromDevice(l.Accelerator.LinearForms(ctx, keys, values, l.InvFreq))
	if err != nil {
		return nil, err
	}
	keySquares, err := l.SquaredKeyNorms(ctx) // a rotation leaves them as they are
	if err != nil {
		return nil, err
	}
	valueSquares, err := l.SquaredValueNorms(ctx)
	if err != nil {
		return nil, err
	}
	s := l.NewScores()
	for h, row := range s {
		r := &rankings[h]
		for t := range row {
			x := forms[h][t] + float64(float64(r.KeySquares)*(keySquares[h][t]/(scale*scale)))
			x += float64(float64(r.ValueSquares) * valueSquares[h][t])
			row[t] = float32(x + float64(r.Constant))
		}
	}
	return s, nil
}

// check reports rankings that do not fit the layer.
func (m learned) check(l *Layer) error {
	if m.data == nil || len(m.data.Rankings) == 0 {
		return errors.New("found no ranking, expected the one in a profile of this metric")
	}
	if 2*len(l.InvFreq) != l.HeadDim {
		return fmt.Errorf("found %d rope frequencies, expected half of head dimension %d", len(l.InvFreq), l.HeadDim)
	}
	r := m.data.Rankings
	if l.Index >= len(r) || len(r[l.Index]) != l.KVHeads || len(r[l.Index][0].Key) != l.HeadDim {
		return fmt.Errorf("found rankings of %d layers of %d KV heads × %d, expected more layers of %d × %d",
			len(r), len(r[0]), len(r[0][0].Key), l.KVHeads, l.HeadDim)
	}
	return nil
}

// Ranking is the function that the metric learned ranks the entries of a KV head by:
// a·k + b·v + α‖k‖² + β‖v‖² + c for the key k with its rotation undone and the value v.
// Larger means keep.
type Ranking struct {
	Key          []float32 `json:"key"`           // a, [D]
	Value        []float32 `json:"value"`         // b, [D]
	KeySquares   float32   `json:"key_squares"`   // α
	ValueSquares float32   `json:"value_squares"` // β
	Constant     float32   `json:"constant"`      // c
}

// score ranks the entries of head h. Sums are float64 in ascending order; the terms
// are added from left to right.
func (r *Ranking) score(ctx context.Context, l *Layer, h int, ws *Workspace, out []float32) error {
	D, pos := l.HeadDim, l.positions(h)
	key, products, squares := ws.Float64s(D), ws.Float64s(len(out)), ws.Float64s(len(out))
	err := l.EachKeys(ctx, h, func(lo, hi int, keys []float32) {
		for t := lo; t < hi; t++ {
			l.Unrotate(key, keys[(t-lo)*D:(t-lo+1)*D], positionOf(pos, t))
			products[t], squares[t] = dotWide(r.Key, key), 0
			for _, v := range key {
				squares[t] += float64(v * v)
			}
		}
	})
	if err != nil {
		return err
	}
	return l.EachValues(ctx, h, func(lo, hi int, values []float32) {
		for t := lo; t < hi; t++ {
			v := values[(t-lo)*D : (t-lo+1)*D]
			s := products[t] + dotNarrow(r.Value, v)
			s += float64(float64(r.KeySquares) * squares[t])
			s += float64(float64(r.ValueSquares) * sumSquares(v))
			out[t] = float32(s + float64(r.Constant))
		}
	})
}

// checkRankings reports rankings that do not have the same number of heads, of the same
// dimension, in every layer, or numbers that are not finite.
func checkRankings(rankings [][]Ranking) error {
	finite := func(x ...float32) bool {
		for _, v := range x {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return false
			}
		}
		return true
	}
	for at, layer := range rankings {
		if len(layer) == 0 || len(layer) != len(rankings[0]) {
			return fmt.Errorf("layer %d: found %d KV heads, expected %d, at least one", at, len(layer), len(rankings[0]))
		}
		for h, r := range layer {
			if d := len(rankings[0][0].Key); d == 0 || len(r.Key) != d || len(r.Value) != d {
				return fmt.Errorf("layer %d, KV head %d: found %d weights of keys and %d of values, expected equally many, the same for all", at, h, len(r.Key), len(r.Value))
			}
			if !finite(r.Key...) || !finite(r.Value...) || !finite(r.KeySquares, r.ValueSquares, r.Constant) {
				return fmt.Errorf("layer %d, KV head %d: found a number that is not finite", at, h)
			}
		}
	}
	return nil
}
