package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// TestMatMulValue compares with sums in binary64. Nothing else checks the
// definition: the operation table only compares it with itself.
func TestMatMulValue(t *testing.T) {
	const n, rows = 3, 5
	for _, cols := range []int{1, 31, 64, 2048, 2080, 5000} {
		for _, c := range Variants() {
			for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
				for _, dot := range []bool{false, true} {
					if dot && typ != tensor.BF16 {
						continue
					}
					t.Run(fmt.Sprintf("%v/%v/dot=%t/cols=%d", c, typ, dot, cols), func(t *testing.T) {
						r := rand.New(rand.NewPCG(7, uint64(cols)))
						w := Matrix{Type: typ, Rows: rows, Cols: cols, Data: newMem(rows * cols * typ.Bytes(1))}
						fillRandom(r, w.Data, operand{elem: typ, n: rows * cols}, plain)
						wide := make([]float32, rows*cols)
						typ.Widen(wide, w.Data)
						xm, xb := newMem(4*n*cols), make([]uint16, n*cols)
						fillRandom(r, xm, operand{elem: tensor.F32, n: n * cols}, plain)
						x, dst := mem(xm).f32(), make([]float32, n*rows)
						if dot {
							c.RoundBF16(xb, x)
							for i, b := range xb {
								x[i] = bf16(b)
							}
							c.MatMulBF16(dst, rows, xb, cols, n, &w, 0, rows)
						} else {
							c.MatMul(dst, rows, x, cols, n, &w, 0, rows)
						}
						for i := range n {
							for o := range rows {
								var sum, size float64
								for k := range cols {
									p := float64(x[i*cols+k]) * float64(wide[o*cols+k])
									sum += p
									size += math.Abs(p)
								}
								// Per lane and block at most 128 roundings, then the tree and the blocks.
								bound := size * 140 * 0x1p-24
								require.InDelta(t, sum, float64(dst[i*rows+o]), bound, "row %d of x, row %d of w", i, o)
							}
						}
					})
				}
			}
		}
	}
}

func TestMatMulDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector sync.Pool drops memory at random")
	}
	const cols, rows = 256, 40
	for _, c := range Variants() {
		for _, n := range []int{1, 4, 9, 25} {
			w := Matrix{Type: tensor.BF16, Rows: rows, Cols: cols, Data: make([]byte, 2*rows*cols)}
			x, xb, dst := make([]float32, n*cols), make([]uint16, n*cols), make([]float32, n*rows)
			require.Zero(t, testing.AllocsPerRun(5, func() {
				c.MatMul(dst, rows, x, cols, n, &w, 0, rows)
				c.MatMulBF16(dst, rows, xb, cols, n, &w, 0, rows)
			}), "%v, %d rows", c, n)
		}
	}
}

// TestMatMulBounds checks that lengths which do not fit panic before any memory
// beyond them is touched.
func TestMatMulBounds(t *testing.T) {
	const cols, rows, n = 64, 8, 2
	good := Matrix{Type: tensor.BF16, Rows: rows, Cols: cols, Data: make([]byte, 2*rows*cols)}
	short := good
	short.Data = good.Data[:len(good.Data)-2]
	sized := func(n int) []float32 { return make([]float32, n, n+100) } // capacity does not count
	for _, c := range Variants() {
		for _, b := range []struct {
			name   string
			dst, x []float32
			w      *Matrix
			lo, hi int
		}{
			{"dst too short", sized(n*rows - 1), sized(n * cols), &good, 0, rows},
			{"x too short", sized(n * rows), sized(n*cols - 1), &good, 0, rows},
			{"weights too short", sized(n * rows), sized(n * cols), &short, 0, rows},
			{"rows before the first", sized(n * rows), sized(n * cols), &good, -1, rows},
			{"rows after the last", sized(n * (rows + 1)), sized(n * cols), &good, 0, rows + 1},
		} {
			require.Panics(t, func() { c.MatMul(b.dst, rows, b.x, cols, n, b.w, b.lo, b.hi) }, "%v: %s", c, b.name)
			xb := make([]uint16, len(b.x), len(b.x)+100)
			require.Panics(t, func() { c.MatMulBF16(b.dst, rows, xb, cols, n, b.w, b.lo, b.hi) }, "%v: %s", c, b.name)
		}
		dst := sized(n * rows)
		c.MatMul(dst, rows, sized(n*cols), cols, n, &good, 0, rows)
		require.Equal(t, sized(n*rows), dst)
	}
}

// Tiles of all sizes, some of which overlap, give the same bits as one row at a time,
// however weights are fetched, and leave rows beyond the result untouched.
func TestMatMulTiles(t *testing.T) {
	const rows = 143
	for _, cols := range []int{32, 768, 2016, 2048, 2080} {
		w := randomMatrix(tensor.BF16, rows, cols)
		for _, n := range []int{2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 17, 19, 32} {
			r := rand.New(rand.NewPCG(uint64(n), uint64(cols)))
			x, xb := make([]float32, n*cols), make([]uint16, n*cols)
			for i := range x {
				x[i] = r.Float32() - 0.5
			}
			CPU{}.RoundBF16(xb, x)
			for _, c := range Variants()[1:] {
				want, wantF32 := make([]float32, (n+1)*rows), make([]float32, (n+1)*rows)
				for i := range rows {
					want[n*rows+i], wantF32[n*rows+i] = 7, 7
				}
				for i := range n {
					c.MatMulBF16(want[i*rows:], rows, xb[i*cols:], cols, 1, &w, 0, rows)
					c.MatMul(wantF32[i*rows:], rows, x[i*cols:], cols, 1, &w, 0, rows)
				}
				streamings := []Streaming{streamNear, streamFar, streamRuns}
				if !c.AVX2 {
					streamings = streamings[:1] // others know no difference
				}
				for _, c.Streaming = range streamings {
					got := slices.Repeat([]float32{7}, (n+1)*rows)
					c.MatMulBF16(got, rows, xb, cols, n, &w, 0, rows)
					require.Equal(t, want, got, "%v, %v, %d rows of %d", c, c.Streaming, n, cols)
					c.MatMul(got, rows, x, cols, n, &w, 0, rows)
					require.Equal(t, wantF32, got, "%v, %v, f32, %d rows of %d", c, c.Streaming, n, cols)
				}
			}
		}
	}
}
