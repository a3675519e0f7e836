package lukv

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/kernels"
)

// kvZip scores an entry by the most attention that a repetition of the context pays to
// it: what the model needs to reproduce the context is kept. The code that runs the
// model feeds the repetition, chunk by chunk, on top of the full cache of each layer.
//
// Kim et al., "KVzip", 2025, https://arxiv.org/abs/2505.23416; spec 3.4.
type kvZip struct {
	Chunk int `json:"chunk"` // tokens repeated at a time
	Sinks int `json:"sinks"` // first entries that every repetition sees

	// Prefix is the number of tokens before the context, such as a template's
	// header: they are not repeated but always kept, as are the sinks.
	Prefix int `json:"prefix"`

	// Suffix is the text between the instruction to repeat and the repetition, of at most
	// 256 bytes, since every chunk reads it: it opens the model's turn.
	Suffix string `json:"suffix"`

	// Plus weights attention by the output norm of the entry's value, divided by
	// the norm of the attention block's input at the query ("KVzip+").
	Plus bool `json:"plus"`
}

const maxSuffix = 256 // bytes

func (m kvZip) Validate() error {
	return firstOf(within("chunk", m.Chunk, 1, maxSlots), within("sinks", m.Sinks, 0, maxSlots), within("prefix", m.Prefix, 0, maxSlots),
		within("bytes of suffix", len(m.Suffix), 0, maxSuffix))
}

func (m kvZip) Needs(T, n int) Needs {
	return Needs{Repeat: RepeatText{Chunk: m.Chunk, Sinks: m.Sinks, Prefix: m.Prefix, Suffix: m.Suffix, Inputs: m.Plus}}
}

func (m kvZip) Protection(T, n int) Protection {
	return Protection{Sinks: min(max(m.Prefix, m.Sinks), T)}
}

func (kvZip) Score(ctx context.Context, l *Layer) (Scores, error) {
	s := l.NewScores()
	for h, row := range s {
		copy(row, l.Repeats.best[h])
	}
	return s, ctx.Err()
}

// RepeatText says how a context is repeated for [RepeatScores]: in chunks of
// Chunk tokens from position Prefix on, each preceded by an instruction, the
// last tokens of the chunk before it, and Suffix. The zero value asks for
// nothing.
type RepeatText struct {
	Chunk, Sinks, Prefix int
	Suffix               string
	Inputs               bool // Repetition.Inputs are wanted
}

// RepeatScores ranks the entries of a context by a repetition of it: for
// every cached entry, the most attention that any query paid to it while repeating
// the chunk that the entry belongs to (Kim et al., "KVzip", 2025; spec 3.4). The
// repetition runs on top of the full cache; its own entries are not kept.
// Different KV heads may be added to concurrently.
type RepeatScores struct {
	best [][]float32 // [K][T]
}

// NewRepeatScores returns zero scores for heads of lens entries, [K].
func NewRepeatScores(lens []int) *RepeatScores {
	r := &RepeatScores{best: make([][]float32, len(lens))}
	for h, n := range lens {
		r.best[h] = make([]float32, n)
	}
	return r
}

// Repetition is one layer's part of the repetition of a chunk.
type Repetition struct {
	// From and To bound the chunk: slots [From,To) of the head. Its queries see
	// the first Sinks slots, the chunk and themselves, nothing else.
	From, To, Sinks int

	// Queries are the rows of the repetition after RoPE, [m][H*D]; Keys returns
	// their own keys for a KV head, [m][D].
	Queries []float32
	Keys    func(h int) []float32

	// Inputs are the L2 norms of the attention block's inputs, [m]. Unless nil,
	// scores are weighted by the value's output norm and divided by the input's
	// ("KVzip+").
	Inputs []float32
}

// repeatRows rows of a repetition are computed together.
const repeatRows = 64

// Add folds one repetition into the scores of KV head h. Logits are float32 in
// the order of kernels.MatMul, the softmax as in [Layer.Attend].
func (r *RepeatScores) Add(ctx context.Context, l *Layer, h int, x Repetition) error {
	D, G, width := l.HeadDim, l.Group(), l.Heads*l.HeadDim
	m, own := len(x.Queries)/width, x.Keys(h)
	sinks, chunk := min(x.Sinks, x.From), x.To-x.From
	switch {
	case h >= len(r.best) || x.From < 0 || x.To > len(r.best[h]) || chunk < 1:
		return fmt.Errorf("score layer %d by repetition: found a chunk of slots [%d,%d), expected some of %d", l.Index, x.From, x.To, len(r.best[h]))
	case len(x.Queries) != m*width || len(own) < m*D || x.Inputs != nil && len(x.Inputs) != m:
		return fmt.Errorf("score layer %d by repetition: found %d query values, %d key values and %d input norms, expected those of equally many rows", l.Index, len(x.Queries), len(own), len(x.Inputs))
	}
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	keys, buf := ws.Float32s((sinks + chunk + m) * D)[:0], ws.Float32s(max(sinks, chunk)*D)
	keys = append(keys, l.Keys(h, 0, sinks, buf)[:sinks*D]...)
	keys = append(keys, l.Keys(h, x.From, x.To, buf)[:chunk*D]...)
	keys = append(keys, own[:m*D]...)
	n := sinks + chunk + m
	w := kernels.F32Matrix(keys, n, D)
	p, queries := ws.Float32s(repeatRows*n), ws.Float32s(repeatRows*D)
	best := r.best[h][x.From:x.To]
	var weight []float64
	for q := h * G; q < (h+1)*G; q++ {
		if x.Inputs != nil {
			var err error
			if weight, err = l.valueNorms(ctx, h, q, x.From, x.To); err != nil {
				return err
			}
		}
		for from := 0; from < m; from += repeatRows {
			if err := ctx.Err(); err != nil {
				return err
			}
			rows := min(repeatRows, m-from)
			for i := range rows {
				copy(queries[i*D:(i+1)*D], x.Queries[(from+i)*width+q*D:])
			}
			l.CPU.MatMul(p, n, queries, D, rows, &w, 0, n)
			for i := range rows {
				row := p[i*n : i*n+sinks+chunk+from+i+1]
				l.softmax(row)
				for t, v := range row[sinks : sinks+chunk] {
					if x.Inputs != nil {
						v = float32(float64(float64(v)*weight[t]) / float64(x.Inputs[from+i]))
					}
					best[t] = max(best[t], v)
				}
			}
		}
	}
	return nil
}

// valueNorms returns ‖v_t·W_O‖₂ of query head q for slots [lo,hi) of KV head h.
func (l *Layer) valueNorms(ctx context.Context, h, q, lo, hi int) ([]float64, error) {
	D := l.HeadDim
	gram := NewOutputGram(D)
	weights := make([]float32, outputTile*D)
	for from := 0; from < l.OutputDim; from += outputTile {
		to := min(from+outputTile, l.OutputDim)
		rows := l.Output(q, from, to, weights[:(to-from)*D])
		for ; len(rows) >= D; rows = rows[D:] {
			gram.Add(rows[:D])
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	values := l.Values(h, lo, hi, make([]float32, (hi-lo)*D))
	out := make([]float64, 0, hi-lo)
	for _, v := range gram.Norms(nil, values[:(hi-lo)*D]) {
		out = append(out, float64(v))
	}
	return out, nil
}
