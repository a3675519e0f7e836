package lukv

import "context"

// curKV scores an entry by the squared lengths of its key and value, each relative to
// the sum over its neighbours. This cheaply approximates the leverage scores by which a
// CUR decomposition chooses rows.
//
// Sengupta et al., "Value-Guided KV Compression for LLMs via Approximated CUR
// Decomposition", 2025, https://arxiv.org/abs/2509.15038; spec 3.15.
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
	var keys, values [][]float64
	var err error
	if m.Of != "value" {
		if keys, err = m.shares(l.SquaredKeyNorms(ctx)); err != nil {
			return nil, err
		}
	}
	if m.Of != "key" {
		if values, err = m.shares(l.SquaredValueNorms(ctx)); err != nil {
			return nil, err
		}
	}
	s := l.NewScores()
	return s, l.EachHead(ctx, func(h int, ws *Workspace) error {
		m.combine(s[h], ws.Float64s(len(s[h])), row(keys, h), row(values, h))
		return nil
	})
}

func row(x [][]float64, h int) []float64 {
	if x == nil {
		return nil
	}
	return x[h]
}

// shares divides every squared length by the sum over its neighbourhood, if Local is
// set and that sum is positive.
func (m curKV) shares(x [][]float64, err error) ([][]float64, error) {
	for _, row := range x {
		for from := 0; m.Local > 0 && from < len(row); from += m.Local {
			toShares(row[from:min(from+m.Local, len(row))])
		}
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
