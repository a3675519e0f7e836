package lukv

import (
	"context"
	"math"
	"slices"
	"sync"
)

// tova keeps what the newest query attends to, one set for all heads of a
// layer (Oren et al., "Transformers are Multi-State RNNs", 2024; spec §3.7).
type tova struct {
	Window int `json:"window"` // newest entries protected: 1, or 0 as in the original
}

func (m tova) Validate() error { return within("window", m.Window, 0, 1) }

func (tova) Needs(T, n int) Needs { return Needs{Keys: true, Window: 1} }

func (m tova) Protection(T, n int) Protection { return Protection{Window: m.Window} }

func (m tova) Score(ctx context.Context, l *Layer) (Scores, error) {
	p := tovaPasses.Get().(*tovaPass)
	defer tovaPasses.Put(p)
	p.m = m
	shared, err := p.score(ctx, l)
	if err != nil {
		return nil, err
	}
	s := make(Scores, len(shared))
	for h, row := range shared {
		s[h] = l.newScores(len(row))
		copy(s[h], row)
	}
	return s, nil
}

// tovaPasses serves single scorings.
var tovaPasses = sync.Pool{New: func() any { return newTOVAPass(tova{}) }}

// tovaPass is one scoring, with memory that the next one can reuse:
// decoding with TOVA scores after every token.
type tovaPass struct {
	m   tova
	ctx context.Context // of the scoring in progress
	l   *Layer          // likewise

	heads  []tovaHead // [K]
	pos    [][]int32  // [K] positions of the entries, nil: slots
	sums   [][]float64
	total  []float64
	scores Scores
	run    func(h int)
}

type tovaHead struct {
	probs  []float32 // [G][T]
	attend attendScratch
	err    error
}

func newTOVAPass(m tova) *tovaPass {
	p := &tovaPass{m: m}
	p.run = p.head
	return p
}

// score returns scores that are valid until the next call.
func (p *tovaPass) score(ctx context.Context, l *Layer) (Scores, error) {
	p.ctx, p.l = ctx, l
	defer func() {
		p.ctx, p.l = nil, nil
		clear(p.pos)
	}()
	if len(p.heads) != l.KVHeads {
		p.heads = make([]tovaHead, l.KVHeads)
		p.pos, p.sums, p.scores = make([][]int32, l.KVHeads), make([][]float64, l.KVHeads), make(Scores, l.KVHeads)
	}
	if l.Parallel != nil {
		l.Parallel(l.KVHeads, p.run)
	} else {
		for h := range l.KVHeads {
			p.head(h)
		}
	}
	for h := range p.heads {
		if err := p.heads[h].err; err != nil {
			return nil, err
		}
	}
	p.shareAcrossHeads()
	for _, row := range p.scores {
		if n := len(row); p.m.Window > 0 && n > 0 {
			row[n-1] = float32(math.Inf(1))
		}
	}
	return p.scores, nil
}

// head sums the newest query's attention over the group of KV head h.
func (p *tovaPass) head(h int) {
	l, sc := p.l, &p.heads[h]
	if sc.err = p.ctx.Err(); sc.err != nil {
		return
	}
	G, T, last := l.Group(), l.Len(h), l.Queries.Len()-1
	if cap(sc.probs) < G*T {
		sc.probs = make([]float32, G*(T+T/4))
	}
	probs := sc.probs[:G*T]
	row := func(g int) []float32 { return l.Queries.Row(last, h*G+g) }
	pos := func(int) int { return l.Queries.Position(last) }
	if sc.err = l.attend(p.ctx, h, G, T, row, pos, probs, &sc.attend); sc.err != nil {
		return
	}
	p.sums[h] = resize(p.sums[h], T)
	p.scores[h] = resize(p.scores[h], T)
	clear(p.sums[h])
	for g := range G {
		for t, v := range probs[g*T : (g+1)*T] {
			p.sums[h][t] += float64(v)
		}
	}
}

// resize returns x with length n; its contents are arbitrary.
func resize[E any](x []E, n int) []E {
	if cap(x) < n {
		x = make([]E, n+n/4)
	}
	return x[:n]
}

// shareAcrossHeads averages per-position sums over all query heads whose cache
// holds the position. If the heads hold the same positions, that is the mean
// over all H heads, and every row comes out the same.
func (p *tovaPass) shareAcrossHeads() {
	l, sums, s := p.l, p.sums, p.scores
	G := l.Group()
	same := true
	for h := range sums {
		p.pos[h] = l.positions(h)
		same = same && len(sums[h]) == len(sums[0]) && slices.Equal(p.pos[h], p.pos[0])
	}
	if same {
		p.total = resize(p.total, len(sums[0]))
		clear(p.total)
		for _, row := range sums {
			for t, v := range row {
				p.total[t] += v
			}
		}
		for h := range s {
			for t, v := range p.total {
				s[h][t] = float32(v / float64(l.Heads))
			}
		}
		return
	}
	// Ragged: walk all heads through the positions in ascending order.
	at := make([]int, len(sums))
	pos := func(h, t int) int32 { return int32(positionOf(p.pos[h], t)) }
	for {
		next := int32(math.MaxInt32)
		for h := range sums {
			if at[h] < len(sums[h]) {
				next = min(next, pos(h, at[h]))
			}
		}
		if next == math.MaxInt32 {
			return
		}
		var total float64
		holders := 0
		for h := range sums {
			if at[h] < len(sums[h]) && pos(h, at[h]) == next {
				total += sums[h][at[h]]
				holders++
			}
		}
		for h := range sums {
			if at[h] < len(sums[h]) && pos(h, at[h]) == next {
				s[h][at[h]] = float32(total / float64(holders*G))
				at[h]++
			}
		}
	}
}
