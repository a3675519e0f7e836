package lukv

import "context"

// curKV scores an entry by the squared lengths of its key and value, each
// relative to the sum over its neighbours: a cheap approximation of the
// leverage scores by which a CUR decomposition chooses rows (Sengupta et al.,
// "CurDKV", 2025).
type curKV struct {
	Of    string `json:"of"`    // "product" of both lengths, "mean", "key" or "value"
	Local int    `json:"local"` // entries compared with each other; 0: all
	Sinks int    `json:"sinks"` // first entries, always kept
}

func (m curKV) Validate() error {
	return firstOf(oneOf("of", m.Of, "product", "mean", "key", "value"), within("local", m.Local, 0, maxSlots), within("sinks", m.Sinks, 0, maxSlots))
}

func (m curKV) Needs(T, n int) Needs { return Needs{Keys: m.Of != "value", Values: m.Of != "key"} }

func (m curKV) Protection(T, n int) Protection { return Protection{Sinks: min(m.Sinks, T)} }

func (m curKV) Score(ctx context.Context, l *Layer) (Scores, error) {
	s := make(Scores, l.KVHeads)
	err := l.EachHead(ctx, func(h int) error {
		ws := l.takeWorkspace()
		defer l.giveWorkspace(ws)
		var keys, values []float64
		var err error
		if m.Of != "value" {
			if keys, err = m.lengths(ctx, l, ws, l.Keys, h); err != nil {
				return err
			}
		}
		if m.Of != "key" {
			if values, err = m.lengths(ctx, l, ws, l.Values, h); err != nil {
				return err
			}
		}
		s[h] = l.newScores(l.Len(h))
		m.combine(s[h], ws.float64s(l.Len(h)), keys, values)
		return nil
	})
	return s, err
}

// lengths returns the squared length of every row of head h, divided by the sum
// over its neighbourhood if Local is set; 0 where that sum is 0.
func (m curKV) lengths(ctx context.Context, l *Layer, ws *workspace, rows rowReader, h int) ([]float64, error) {
	D, T := l.HeadDim, l.Len(h)
	x := ws.float64s(T)
	err := l.eachTile(ctx, rows, h, T, &ws.attend.tile, func(lo, hi int, tile []float32) {
		for t := lo; t < hi; t++ {
			x[t] = sumSquares(tile[(t-lo)*D : (t-lo+1)*D])
		}
	})
	for from, size := 0, m.Local; m.Local > 0 && from < T; from += size {
		toShares(x[from:min(from+size, T)])
	}
	return x, err
}

// combine combines keys and values in x, scales x to sum to 1 over the head
// and writes it to out.
func (m curKV) combine(out []float32, x, keys, values []float64) {
	for t := range x {
		switch m.Of {
		case "key":
			x[t] = keys[t]
		case "value":
			x[t] = values[t]
		case "mean":
			x[t] = (keys[t] + values[t]) / 2
		default:
			x[t] = float64(keys[t] * values[t])
		}
	}
	toShares(x)
	for t, v := range x {
		out[t] = float32(v)
	}
}

// toShares divides x by its sum, if that is positive.
func toShares(x []float64) {
	var sum float64
	for _, v := range x {
		sum += v
	}
	if sum > 0 {
		for i := range x {
			x[i] /= sum
		}
	}
}
