package lukv

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// double is a binary64 that rounds after every operation, in big.Float
// arithmetic: what the processor must do if the compiler neither fuses nor
// reorders.
type double struct{ x *big.Float }

func doubleOf(v float64) double { return double{new(big.Float).SetPrec(53).SetFloat64(v)} }

func (a double) op(f func(z, x, y *big.Float) *big.Float, b double) double {
	return double{f(new(big.Float).SetPrec(53), a.x, b.x)}
}

func (a double) add(b double) double { return a.op((*big.Float).Add, b) }
func (a double) sub(b double) double { return a.op((*big.Float).Sub, b) }
func (a double) mul(b double) double { return a.op((*big.Float).Mul, b) }
func (a double) div(b double) double { return a.op((*big.Float).Quo, b) }

// round is the nearest integer, halves to even.
func (a double) round() int {
	half := new(big.Float).SetPrec(200).SetFloat64(0.5)
	sum := new(big.Float).SetPrec(200).Add(a.x, half)
	n, exact := sum.Int64()
	if exact == big.Exact && n%2 != 0 {
		n--
	}
	return int(n)
}

// TestPyramidOrderOfOperations compares the layer budgets, over a grid,
// with the specification's order of operations, each rounded on its own,
// and with the same line multiplied before it is divided, which gives other
// budgets in a few places: the order matters.
func TestPyramidOrderOfOperations(t *testing.T) {
	one, two := doubleOf(1), doubleOf(2)
	layers, other := 0, 0
	for _, L := range []int{2, 3, 16, 28, 32, 80} {
		for _, T := range []int{40, 129, 1000, 1023, 4096, 10007, 32768} {
			for _, w := range []int{0, 8, 64} {
				for _, beta := range []float64{1.5, 7, 20} {
					for _, ratio := range []float64{0.1, 0.25, 0.3, 0.5, 0.7, 0.77, 0.8, 0.9, 0.95} {
						B := float64(T) * (1 - ratio)
						got, flat := PyramidShares(L, T, B, w, beta)

						W, length := doubleOf(float64(w)), doubleOf(float64(T))
						b := W.add(length.mul(one.sub(doubleOf(ratio)))).sub(W)
						lo := b.div(doubleOf(beta))
						hi := two.mul(b).sub(lo)
						if top := length.sub(W); hi.x.Cmp(top.x) >= 0 {
							hi = top
							lo = two.mul(b).sub(hi)
						}
						uniform := !(length.x.Cmp(hi.x) >= 0 && hi.x.Cmp(lo.x) >= 0 && lo.x.Cmp(W.x) >= 0)
						require.Equal(t, uniform, flat)
						last := doubleOf(float64(L - 1))
						step := hi.sub(lo).div(last)
						for l, n := range got {
							layers++
							want := b
							if !uniform {
								at := doubleOf(float64(l))
								want = hi.sub(at.mul(step))
								if hi.sub(at.mul(hi.sub(lo)).div(last)).round() != want.round() {
									other++
								}
							}
							require.Equal(t, want.round(), n, "layer %d of %d, T=%d ratio=%v window=%d beta=%v", l, L, T, ratio, w, beta)
						}
					}
				}
			}
		}
	}
	t.Logf("%d layer budgets; multiplying first would change %d", layers, other)
	require.Positive(t, other)
}
