package model

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lukv/lukv/lukv"
)

// FillRandom extends the session by n positions whose cache entries are random, for
// benchmarks: the cache then has the lengths, pages and types that a prefill of n
// tokens would have left, for just the cost of writing it. What is computed from it
// is meaningless. All tokens count as token 0, and there are no logits.
//
// An empty session with a compression policy is filled as its first prefill
// would leave it, each head with its own number of entries: the allocator's
// budgets or, for allocators that look at scores, the budgets for random scores
// that differ between heads. Kept positions are spread evenly. Policies that
// compress while decoding, and metrics that renumber positions, are an error:
// their state depends on real tokens.
//
// Equal seeds give equal caches. On an error the session is left as it was.
func (s *Session) FillRandom(n int, seed uint64) error {
	if err := s.fill(n, seed); err != nil {
		return fmt.Errorf("fill %d positions: %w", n, err)
	}
	return nil
}

func (s *Session) fill(n int, seed uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.ready(); err != nil {
		return err
	}
	if n < 1 {
		return errors.New("expected at least 1")
	}
	if most := s.opts.MaxTokens - s.pos; n > most {
		return fmt.Errorf("found %d, expected 1 to %d: %w", n, most, ErrContextFull)
	}
	if len(s.pending) > 0 {
		return errors.New("the session has generated tokens that were not fed")
	}
	if s.comp != nil && (s.comp.decode != nil || s.comp.renumber) {
		return errors.New("the policy compresses while decoding or renumbers positions")
	}
	tokens := make([]int32, n)
	if err := s.accepts(tokens); err != nil {
		return err
	}
	if err := s.m.acquire(); err != nil {
		return err
	}
	defer s.m.release()
	var budgets [][]int // [L][K], nil: everything stays
	compressed := s.pos == 0 && s.comp.prefillEnabled(n)
	if compressed {
		var err error
		if budgets, err = s.randomBudgets(n, seed); err != nil {
			return err
		}
	}
	if err := s.fillLayers(n, budgets, seed); err != nil {
		return s.undo(err, s.pos, func() {})
	}
	s.commit(tokens)
	s.hasLogits = false
	if compressed {
		s.stats.ContextTokens = n
	}
	return nil
}

func (s *Session) fillLayers(n int, budgets [][]int, seed uint64) error {
	c := s.m.cfg
	table := randomTable(c.HeadDim, seed)
	fills := make([]headFill, c.Layers*c.KVHeads)
	errs := make([]error, len(fills))
	for i := range fills {
		at, h := i/c.KVHeads, i%c.KVHeads
		f := headFill{s: s, at: at, h: h, n: n, count: n, table: table, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		if budgets != nil {
			f.count = min(n, budgets[at][h])
		}
		fills[i] = f
	}
	s.m.Parallel(len(fills), func(i int) {
		if c.Ragged(fills[i].at) {
			for errs[i] == nil && fills[i].done < fills[i].count {
				errs[i] = fills[i].step()
			}
		}
	})
	if err := firstError(errs); err != nil {
		return err
	}
	// Layers with a window drop entries while being filled, or they would hold n.
	for at := range c.Layers {
		for from := 0; !c.Ragged(at) && from < n; from += fillRows {
			for h := range c.KVHeads {
				if err := fills[at*c.KVHeads+h].step(); err != nil {
					return err
				}
			}
			s.dropWindow(at, s.pos+min(from+fillRows, n))
		}
	}
	return nil
}

// fillRows is the number of entries appended at once, fillTable that of the
// random rows they are cut from.
const (
	fillRows  = 256
	fillTable = 4096
)

// randomTable returns fillTable rows of headDim numbers, uniform with variance 1.
func randomTable(headDim int, seed uint64) []float32 {
	const width = 3.4641016 // √12
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	table := make([]float32, fillTable*headDim)
	for i := range table {
		table[i] = (rng.Float32() - 0.5) * width
	}
	return table
}

// headFill appends count entries to a head, at positions spread over the n
// positions from s.pos on. Each run of entries is a random part of the table.
type headFill struct {
	s        *Session
	at, h    int
	n, count int
	done     int // of count
	table    []float32
	rng      *rand.Rand
	pos      [fillRows]int32
}

func (f *headFill) step() error {
	d := f.s.m.cfg.HeadDim
	k := min(fillRows, f.count-f.done)
	for i := range k {
		f.pos[i] = int32(f.s.pos + (f.done+i)*f.n/f.count)
	}
	keys := f.table[f.rng.IntN(fillTable-fillRows)*d:][:k*d]
	values := f.table[f.rng.IntN(fillTable-fillRows)*d:][:k*d]
	if err := f.s.cache.Append(f.at, f.h, f.pos[:k], keys, values, d); err != nil {
		return fmt.Errorf("layer %d head %d: %w", f.at, f.h, err)
	}
	f.done += k
	return nil
}

// randomBudgets returns the session's budgets for a context of n tokens, [L][K].
func (s *Session) randomBudgets(n int, seed uint64) ([][]int, error) {
	c := s.m.cfg
	plan := s.comp.plan
	demand, alloc := plan.Demand(n), plan.Allocator()
	if alloc.BudgetsKnown() == lukv.KnownBefore {
		return lukv.Allocate(alloc, demand, nil)
	}
	rng := rand.New(rand.NewPCG(seed, 2<<32))
	layer := func() lukv.Scores {
		scores := make(lukv.Scores, c.KVHeads)
		for h := range scores {
			scores[h] = make([]float32, n)
			// Powers of a uniform number: from evenly spread to a few large ones.
			power, scale := 1+rng.IntN(4), 0.5+rng.Float32()
			for i := range scores[h] {
				u, x := rng.Float32(), scale
				for range power {
					x *= u
				}
				scores[h][i] = x
			}
		}
		return scores
	}
	demand.Weights = slices.Repeat([]float64{1}, c.Layers)
	if alloc.BudgetsKnown() == lukv.KnownAtEnd || alloc.BudgetsKnown() == lukv.KnownSoFar {
		scores := make([]lukv.Scores, c.Layers)
		for at := range scores {
			scores[at] = layer()
		}
		return lukv.Allocate(alloc, demand, scores)
	}
	budgets := make([][]int, c.Layers)
	for at := range budgets {
		var err error
		if budgets[at], err = plan.LayerBudgets(demand, at, layer()); err != nil {
			return nil, err
		}
	}
	return budgets, nil
}
