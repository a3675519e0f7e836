package lukv

import (
	"context"
	"fmt"
	"math"

	"github.com/lukv/lukv/kernels"
)

// compactor adds the leverage of an entry's key to the attention that all queries in
// its chunk of the text, even earlier ones, pay to it. It reads every query of the
// prefill.
//
// Chari and Van Durme, "Compactor", 2025, https://arxiv.org/abs/2507.08143; spec 3.14.
type compactor struct {
	Chunk int `json:"chunk"` // tokens that attend to each other

	// Blending is the weight of the leverage relative to the attention, both
	// standardized to mean 0 and deviation 1 over the layer.
	Blending float64 `json:"blending"`

	Ridge  float64 `json:"ridge"`  // as in leverage
	Sinks  int     `json:"sinks"`  // first and last entries, always kept
	Window int     `json:"window"` // and left out of both scores
}

func (m compactor) Validate() error {
	return firstOf(within("chunk", m.Chunk, 1, 1<<16), within("blending", m.Blending, 0, 1e6), leverage{m.Ridge}.Validate(),
		within("sinks", m.Sinks, 0, maxSlots), within("window", m.Window, 0, maxSlots))
}

func (compactor) Needs(T, n int) Needs { return Needs{Keys: true, Values: true, Window: T} }

func (m compactor) Protection(T, n int) Protection {
	return Protection{Sinks: min(m.Sinks, T), Window: min(m.Window, T)}
}

// Signed says that scores may be negative.
func (compactor) Signed() bool { return true }

func (m compactor) Score(ctx context.Context, l *Layer) (Scores, error) {
	prot := m.Protection(l.longest(), 0)
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	geometry, err := leverage{m.Ridge}.layer(ctx, l, ws, prot)
	if err != nil {
		return nil, err
	}
	squares, err := l.SquaredValueNorms(ctx)
	if err != nil {
		return nil, err
	}
	attention := unprotected(l, ws, prot)
	err = l.EachHead(ctx, func(h int, ws *Workspace) error {
		lo, hi := prot.Split(l.Len(h))
		return m.attention(ctx, l, h, lo, hi, squares[h], ws, attention[h])
	})
	if err != nil {
		return nil, err
	}
	standardize(geometry)
	standardize(attention)
	for h, row := range attention {
		for t := range row {
			row[t] += float64(m.Blending * geometry[h][t])
		}
	}
	return toScores(attention, l, prot), nil
}

// compactorRows queries of a chunk are computed together, so that memory does not
// grow with the square of the chunk.
const compactorRows = 64

// attention writes to smooth, for slots [lo,hi) of KV head h, the summed
// attention that the queries of the same chunk pay to each, averaged over the
// group, times the length of its value, smoothed over three entries. Logits are
// not scaled, as published.
func (m compactor) attention(ctx context.Context, l *Layer, h, lo, hi int, squares []float64, ws *Workspace, smooth []float64) error {
	D, G := l.HeadDim, l.Group()
	if hi == lo {
		return nil
	}
	if pos, T := l.positions(h), l.Len(h); l.Queries.Len() != T || pos != nil && int(pos[T-1]) != T-1 {
		return fmt.Errorf("score layer %d with compactor: found %d queries of %d entries, expected those of a whole prefill", l.Index, l.Queries.Len(), T)
	}
	size := min(m.Chunk, hi-lo)
	raw := ws.zeros(hi - lo)
	rows := min(compactorRows, size)
	queries, keys, probs := ws.Float32s(rows*D), ws.Float32s(size*D), ws.Float32s(rows*size)
	for from := lo; from < hi; from += m.Chunk {
		n := min(m.Chunk, hi-from)
		w := kernels.F32Matrix(l.Keys(h, from, from+n, keys)[:n*D], n, D)
		for q := h * G; q < (h+1)*G; q++ {
			for first := 0; first < n; first += rows {
				if err := ctx.Err(); err != nil {
					return err
				}
				k := min(rows, n-first)
				for i := range k {
					copy(queries[i*D:(i+1)*D], l.Queries.Row(from+first+i, q))
				}
				l.CPU.MatMul(probs, n, queries, D, k, &w, 0, n)
				for i := range k {
					row := probs[i*n : (i+1)*n]
					softmax(l.CPU, row, 1)
					for t, v := range row {
						raw[from-lo+t] += float64(v) / float64(G)
					}
				}
			}
		}
	}
	for t := range raw {
		raw[t] *= math.Sqrt(squares[lo+t])
	}
	averagePool(smooth, raw, 3)
	return nil
}
