package model

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
)

// exactImportance is the oracle importance (specification 5.1) by its formula:
// I[l,h,j] = max over the counted tokens s and the query heads g of KV head h of
// A[l,g,s,j]·‖v_j·W_O^(g)‖, where A is the plain softmax over everything cached.
type exactImportance struct {
	e      *exactModel
	t      int         // tokens of the context
	counts bool        // whether the token in progress counts
	best   [][]float64 // [layer*KVHeads+head][t]
}

func newExactImportance(e *exactModel, t int) *exactImportance {
	x := &exactImportance{e: e, t: t}
	for range e.cfg.Layers * e.cfg.KVHeads {
		x.best = append(x.best, make([]float64, t))
	}
	e.saw = x.saw
	return x
}

func (x *exactImportance) saw(layer int, q []float64) {
	if !x.counts {
		return
	}
	c := x.e.cfg
	d, group := c.HeadDim, c.Heads/c.KVHeads
	for g := range c.Heads {
		kv := g / group
		keys := x.e.keys[layer]
		weights, total := make([]float64, len(keys)), 0.0
		for p, k := range keys {
			for i := range d {
				weights[p] += q[g*d+i] * k[kv*d+i]
			}
			weights[p] = math.Exp(weights[p] / math.Sqrt(float64(d)))
			total += weights[p]
		}
		for j := range x.t {
			v := weights[j] / total * x.norm(layer, g, j)
			x.best[layer*c.KVHeads+kv][j] = max(x.best[layer*c.KVHeads+kv][j], v)
		}
	}
}

// norm returns ‖v_j·W_O^(g)‖: what position j would add to the residual stream
// through query head g if it alone were read.
func (x *exactImportance) norm(layer, g, j int) float64 {
	c := x.e.cfg
	d, kv := c.HeadDim, g/(c.Heads/c.KVHeads)
	o := x.e.widened(x.e.w.Layers[layer].Tensors[arch.RoleO]) // [Hidden, Heads*HeadDim]
	sum := 0.0
	for row := range c.Hidden {
		y := 0.0
		for i := range d {
			y += o[row*c.Heads*d+g*d+i] * x.e.vals[layer][j][kv*d+i]
		}
		sum += y * y
	}
	return math.Sqrt(sum)
}

// divisor returns what normalisation divides a layer by.
func (x *exactImportance) divisor(norm string, layer int) float64 {
	c := x.e.cfg
	of := func(layer int) (sum float64) {
		for g := range c.Heads {
			for j := range x.t {
				sum += x.norm(layer, g, j)
			}
		}
		return sum
	}
	switch norm {
	case lukv.NormLayer:
		return of(layer)
	case lukv.NormGlobal:
		sum := 0.0
		for l := range c.Layers {
			if c.Windows[l] == 0 {
				sum += of(l)
			}
		}
		return sum
	}
	return 1
}

// TestOracle compares the measured importance with that of a plain float64
// forward pass, with several query heads per KV head and with one.
func TestOracle(t *testing.T) {
	ctx := context.Background()
	for _, shape := range testShapes {
		for _, includeQuestion := range []bool{false, true} {
			t.Run(fmt.Sprint(shape.name, "/", includeQuestion), func(t *testing.T) {
				const contextTokens, answerTokens = 40, 5
				m := shape.open(t, WithPrecision(PrecisionF32), WithThreads(2))
				text, question := randomTokens(contextTokens, 97, 1), randomTokens(4, 97, 2)
				ob, err := m.Observe(ctx, text, SessionOptions{})
				require.NoError(t, err)
				defer ob.Close()
				me, err := ob.Measure(ctx)
				require.NoError(t, err)
				o := MeasureOptions{MaxTokens: answerTokens, Sampling: Sampling{IgnoreEOS: true}, IncludeQuestion: includeQuestion}

				e := &exactModel{cfg: m.cfg, rope: m.net.Ropes[0], w: m.weights, mats: map[*byte][]float64{}}
				e.reset()
				want := newExactImportance(e, contextTokens)
				var logits []float64
				feed := func(token int32) { logits = e.next(token, 0) }
				for _, token := range text {
					feed(token)
				}
				steps := 0
				for i, token := range question {
					if want.counts = includeQuestion && i == len(question)-1; want.counts {
						steps++
					}
					feed(token)
				}
				want.counts = true
				for range answerTokens - 1 {
					best := 0
					for i, v := range logits {
						if v > logits[best] {
							best = i
						}
					}
					feed(int32(best))
					steps++
				}

				_, _, err = me.Question(ctx, randomTokens(6, 97, 9), o, lukv.NormLayer)
				require.NoError(t, err, "another question, which leaves no trace")
				for _, norm := range lukv.Normalizations() {
					got, n, err := me.Question(ctx, question, o, norm)
					require.NoError(t, err)
					require.Equal(t, steps, n, "counted steps")
					again, err := me.Importance(norm)
					require.NoError(t, err)
					require.Equal(t, got, again)
					for l := range m.cfg.Layers {
						if m.cfg.Windows[l] > 0 {
							require.Nil(t, got[l], "a layer with a window is never compressed")
							continue
						}
						div := want.divisor(norm, l)
						for h := range m.cfg.KVHeads {
							for j, v := range want.best[l*m.cfg.KVHeads+h] {
								require.InEpsilon(t, v/div, float64(got[l][h][j]), 1e-3, "layer %d head %d position %d, normalisation %s", l, h, j, norm)
							}
						}
					}
				}
			})
		}
	}
}
