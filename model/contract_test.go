package model

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
	"github.com/lukv/lukv/tensor"
)

// Split heads between threads from two blocks on, as happens to long ones in use.
func init() { forward.SplitBlocks = 1 }

// The values over which promise P1 is tested. The first of each, with portable Go,
// give the reference.
var (
	contractThreads    = []int{1, 2, 3, 8}
	contractChunks     = []int{1, 5, 64, 512}
	contractBatches    = []int{1, 3, 16}
	contractPrecisions = []Precision{PrecisionF32, PrecisionBF16}
)

// contractShape is a model and a prompt for it. Blocks of attention end at
// multiples of 256 slots, those of a product at multiples of 2048 columns;
// assembly wants multiples of 16 and 32.
type contractShape struct {
	testShape
	tokens int
}

// contractFull is the shape that runs in all combinations; its prompt ends one
// token before the end of a block.
var contractFull = contractShape{testShape{name: "full", layers: 2, hidden: 32, ffn: 32, heads: 2, kv: 1, dim: 16, weights: tensor.BF16}, 511}

// contractOdd are the shapes for which any two values of different kinds meet.
var contractOdd = []contractShape{
	{testShape{name: "dim 40, 3 heads a group, all odd, biases, f16", layers: 1, hidden: 33, ffn: 35, heads: 3, kv: 1, dim: 40, biases: true, weights: tensor.F16}, 257},
	{testShape{name: "dim 80, 5 heads a group, window, bf16", layers: 2, hidden: 24, ffn: 20, heads: 5, kv: 1, dim: 80, window: 70, weights: tensor.BF16}, 130},
	{testShape{name: "dim 96, 7 heads a group, f32", layers: 1, hidden: 24, ffn: 72, heads: 7, kv: 1, dim: 96, weights: tensor.F32}, 90},
	{testShape{name: "dim 128, no groups, biases, bf16", layers: 1, hidden: 32, ffn: 160, heads: 2, kv: 2, dim: 128, biases: true, weights: tensor.BF16}, 255},
	{testShape{name: "dim 256, head norms, odd inside, bf16", layers: 1, hidden: 64, ffn: 33, heads: 3, kv: 1, dim: 256, qkNorm: true, weights: tensor.BF16}, 70},
	{testShape{name: "two blocks of columns, bf16", layers: 1, hidden: 32, ffn: 2112, heads: 2, kv: 1, dim: 32, weights: tensor.BF16}, 68},
	{testShape{name: "two blocks of columns, the second odd, f16", layers: 1, hidden: 20, ffn: 2053, heads: 2, kv: 2, dim: 8, biases: true, weights: tensor.F16}, 66},
	{testShape{name: "dim 2, window of 3, long, bf16", layers: 2, hidden: 17, ffn: 9, heads: 3, kv: 3, dim: 2, window: 3, weights: tensor.BF16}, 515},
}

// combination is how a model is run.
type combination struct {
	cpu       kernels.CPU
	precision Precision
	threads   int
	chunk     int
}

func (c combination) String() string {
	return fmt.Sprintf("%v, precision %s, %d threads, chunks of %d", c.cpu, c.precision, c.threads, c.chunk)
}

// contractRun is a model with contexts: the whole prompt, prefixes of it, and one
// that is compressed to a different number of entries in each head.
type contractRun struct {
	contexts []*Session
	names    []string
	logits   [][]float32 // of each context: after every token, or after the last
}

const contractVocab = 97

// contractSessions is the number of sessions stepped in batches, contractSteps the
// number of steps.
const contractSessions, contractSteps = 16, 2

func (s contractShape) run(t testing.TB, c combination) *contractRun {
	t.Helper()
	m := s.open(t, WithCPU(c.cpu), WithPrecision(c.precision), WithThreads(c.threads))
	prompt := randomTokens(s.tokens, contractVocab, 1)
	r := &contractRun{}
	whole := newTestSession(t, m, SessionOptions{ChunkTokens: c.chunk})
	r.contexts, r.names = append(r.contexts, whole), append(r.names, "whole prompt")
	r.logits = append(r.logits, prefillLogits(t, whole, prompt))
	compressed := &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.3}
	for _, b := range []struct {
		n      int
		policy *lukv.Policy
	}{{1, nil}, {4, nil}, {s.tokens / 8, nil}, {s.tokens / 4, compressed}} {
		o := newTestSession(t, m, SessionOptions{ChunkTokens: c.chunk, Compression: b.policy})
		require.NoError(t, o.Prefill(context.Background(), prompt[:b.n]))
		name := fmt.Sprintf("prompt of %d tokens", b.n)
		if b.policy != nil {
			name += ", compressed"
		}
		r.contexts, r.names = append(r.contexts, o), append(r.names, name)
		r.logits = append(r.logits, append([]float32(nil), o.Logits()...))
	}
	return r
}

// step continues forks of the contexts in batches of the given size, each with
// tokens of its own, and returns each session's logits.
func (r *contractRun) step(t testing.TB, batch int) [][]float32 {
	t.Helper()
	sessions := make([]*Session, contractSessions)
	for i := range sessions {
		f, err := r.contexts[i%len(r.contexts)].Fork()
		require.NoError(t, err)
		defer f.Close()
		sessions[i] = f
	}
	out := make([][]float32, len(sessions))
	for k := range contractSteps {
		for from := 0; from < len(sessions); from += batch {
			part := sessions[from:min(from+batch, len(sessions))]
			tokens := make([]int32, len(part))
			for i := range tokens {
				tokens[i] = int32((7*(from+i) + 31*k) % contractVocab)
			}
			require.NoError(t, part[0].Model().Step(context.Background(), part, tokens))
			for i, s := range part {
				out[from+i] = append(out[from+i], s.Logits()...)
			}
		}
	}
	return out
}

// close releases the model early, since a test makes hundreds.
func (r *contractRun) close(t testing.TB) {
	m := r.contexts[0].Model()
	for _, s := range r.contexts {
		require.NoError(t, s.Close())
	}
	require.NoError(t, m.Close())
}

// contractCheck compares runs with the reference of a shape and precision, and
// counts what it compares.
type contractCheck struct {
	contexts *contractRun
	stepped  [][]float32
	logits   *int
}

func (s contractShape) reference(t testing.TB, p Precision, logits *int) *contractCheck {
	t.Helper()
	c := &contractCheck{logits: logits}
	c.contexts = s.run(t, combination{precision: p, threads: contractThreads[0], chunk: contractChunks[0]})
	c.stepped = c.contexts.step(t, contractBatches[0])
	for _, x := range c.contexts.logits {
		for _, v := range x {
			require.False(t, math.IsNaN(float64(v)) || math.IsInf(float64(v), 0), "the reference has the logit %v", v)
		}
	}
	c.contexts.close(t)
	return c
}

func (c *contractCheck) run(t testing.TB, s contractShape, how combination, batches ...int) {
	t.Helper()
	got := s.run(t, how)
	for i, want := range c.contexts.logits {
		c.same(t, func() string { return fmt.Sprintf("%s: %v: %s", s.name, how, got.names[i]) }, want, got.logits[i])
	}
	for _, batch := range batches {
		for i, x := range got.step(t, batch) {
			c.same(t, func() string {
				return fmt.Sprintf("%s: %v, batches of %d: steps of session %d (%s)", s.name, how, batch, i, got.names[i%len(got.names)])
			}, c.stepped[i], x)
		}
	}
	got.close(t)
}

func (c *contractCheck) same(t testing.TB, what func() string, want, got []float32) {
	t.Helper()
	require.Equal(t, len(want), len(got))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("%s: logit %d of row %d of %d: portable Go on one thread, token by token, has %v (%08x), this run %v (%08x)",
				what(), i%contractVocab, i/contractVocab, len(want)/contractVocab,
				want[i], math.Float32bits(want[i]), got[i], math.Float32bits(got[i]))
		}
	}
	*c.logits += len(want)
}

// TestContract is promise P1 as a whole: the same bits of logits for any threads,
// prefill chunks, batches and instruction sets, in each precision. Every
// combination runs on one shape; on odd shapes any two values of different kinds
// meet.
func TestContract(t *testing.T) {
	// Sets that differ only in products of 8-bit integers count once here: see
	// TestGoldenGGUFInt8.
	sets := slices.DeleteFunc(kernels.Variants(), func(c kernels.CPU) bool { return c.AVX512VNNI && !c.AVX512BF16 || c.DotProd })
	require.LessOrEqual(t, len(sets), 4, "pairs holds for four instruction sets")
	runs, logits := 0, 0
	t.Run(contractFull.name, func(t *testing.T) {
		for _, p := range contractPrecisions {
			ref := contractFull.reference(t, p, &logits)
			for _, cpu := range sets {
				for _, threads := range contractThreads {
					if testing.Short() && threads != 3 {
						continue
					}
					for _, chunk := range contractChunks {
						ref.run(t, contractFull, combination{cpu, p, threads, chunk}, contractBatches...)
						runs += len(contractBatches)
					}
				}
			}
		}
	})
	shapes := contractOdd
	if testing.Short() {
		shapes = shapes[:2]
	}
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			refs := make([]*contractCheck, len(contractPrecisions))
			for i, p := range contractPrecisions {
				refs[i] = s.reference(t, p, &logits)
			}
			for _, row := range pairs() {
				at := row[4] % len(contractPrecisions)
				how := combination{sets[row[0]%len(sets)], contractPrecisions[at], contractThreads[row[1]], contractChunks[row[2]]}
				refs[at].run(t, s, how, contractBatches[row[3]%len(contractBatches)])
				runs++
			}
		})
	}
	line := fmt.Sprintf("arithmetic contract: %d checks (logits) in %d combinations on %v", logits, runs, sets)
	t.Log(line)
	fmt.Println(line)
	require.NotZero(t, logits)
}

// pairs returns 16 rows of five values below 4 in which any two columns show
// all 16 pairs: a, b, a+b, a+2b and a+3b over the field of four elements.
func pairs() [][5]int {
	times := [4][4]int{{}, {0, 1, 2, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}}
	var rows [][5]int
	for a := range 4 {
		for b := range 4 {
			rows = append(rows, [5]int{a, b, a ^ b, a ^ times[2][b], a ^ times[3][b]})
		}
	}
	return rows
}

func TestPairs(t *testing.T) {
	for i := range 5 {
		for j := range i {
			seen := map[[2]int]bool{}
			for _, row := range pairs() {
				seen[[2]int{row[i], row[j]}] = true
			}
			require.Len(t, seen, 16, "columns %d and %d", i, j)
		}
	}
}
