package lukv

import (
	"bytes"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv/solve"
)

// TestOutputErrorsWorkedExample is head A of effect.md §6.
func TestOutputErrorsWorkedExample(t *testing.T) {
	gram := NewOutputGram(1)
	gram.Add([]float32{1})
	a := HeadAttention{
		Context: 4, HeadDim: 1, Gram: gram,
		Values: []float32{2, 4, -2, 0, 1},
		Probs:  [][]float32{{.30, .25, .15, .10, .20}},
	}
	got, err := a.OutputErrors([]int32{1, 0, 3, 2}, []int{1, 2, 3, 4})
	require.NoError(t, err)
	for i, want := range []float64{1.3611, .8100, .3815, 0} {
		require.InDelta(t, want, got[i], 5e-5, "%d kept", i+1)
	}
	require.Zero(t, got[3])
	for want, bad := range map[string]func() (order []int32, counts []int){
		"expected ascending to 4": func() ([]int32, []int) { return []int32{1, 0, 3, 2}, []int{2, 1, 4} },
		"ascending to 4":          func() ([]int32, []int) { return []int32{1, 0, 3, 2}, []int{2, 3} },
		"counts [-1 4]":           func() ([]int32, []int) { return []int32{1, 0, 3, 2}, []int{-1, 4} },
		"counts []":               func() ([]int32, []int) { return []int32{1, 0, 3, 2}, nil },
		"an order of 3":           func() ([]int32, []int) { return []int32{1, 0, 3}, []int{4} },
		"entry 4 in the order":    func() ([]int32, []int) { return []int32{1, 0, 3, 4}, []int{4} },
	} {
		_, err := a.OutputErrors(bad())
		require.ErrorContains(t, err, want)
	}
}

// randomHead draws the attention of G query heads of dimension D over a context and
// a tail, for some steps, and the output projection that reads them, [M][G·D].
func randomHead(rng *rand.Rand, context, tail, steps, G, D, M int) (*HeadAttention, [][]float64) {
	a := &HeadAttention{Context: context, HeadDim: D, Gram: NewOutputGram(G * D)}
	var output [][]float64
	for range M {
		var row []float32
		var wide []float64
		for range G * D {
			row = append(row, float32(rng.NormFloat64()))
			wide = append(wide, float64(row[len(row)-1]))
		}
		a.Gram.Add(row)
		output = append(output, wide)
	}
	n := context + tail
	for range n * D {
		a.Values = append(a.Values, float32(rng.NormFloat64()))
	}
	for range G {
		var probs []float32
		for s := range steps {
			row, sum := make([]float32, n), 0.0
			for j := range n - steps + s + 1 {
				row[j] = float32(math.Exp(2 * rng.NormFloat64()))
				sum += float64(row[j])
			}
			for j := range row {
				row[j] = float32(float64(row[j]) / sum)
			}
			probs = append(probs, row...)
		}
		a.Probs = append(a.Probs, probs)
	}
	return a, output
}

// plainError computes the error by its formula, with the output projection written
// out.
func plainError(a *HeadAttention, output [][]float64, kept []int32) float64 {
	D, n := a.HeadDim, len(a.Values)/a.HeadDim
	sum := 0.0
	for s := range len(a.Probs[0]) / n {
		moved := make([]float64, len(a.Probs)*D)
		for g, probs := range a.Probs {
			full, cut, mass := make([]float64, D), make([]float64, D), 0.0
			read := func(j int, dst []float64) {
				for i := range D {
					dst[i] += float64(probs[s*n+j]) * float64(a.Values[j*D+i])
				}
			}
			for j := range n {
				read(j, full)
			}
			for _, j := range kept {
				read(int(j), cut)
				mass += float64(probs[s*n+int(j)])
			}
			for j := a.Context; j < n; j++ {
				read(j, cut)
				mass += float64(probs[s*n+j])
			}
			for i := range D {
				moved[g*D+i] = cut[i]/mass - full[i]
			}
		}
		for _, row := range output {
			y := 0.0
			for i, w := range row {
				y += w * moved[i]
			}
			sum += y * y
		}
	}
	return sum
}

func TestOutputErrorsMatchTheirFormula(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, shape := range [][4]int{{1, 1, 8, 3}, {2, 3, 16, 4}, {4, 2, 30, 2}} {
		a, output := randomHead(rng, shape[2], 5, shape[3], shape[0], shape[1], 7)
		scores := make([]float32, a.Context)
		for i := range scores {
			scores[i] = float32(rng.NormFloat64())
		}
		order := Order(scores, Protection{Sinks: 2, Window: 1})
		counts := []int{3, 5, 7, a.Context}
		got, err := a.OutputErrors(order, counts)
		require.NoError(t, err)
		for i, n := range counts {
			want := plainError(a, output, order[:n])
			require.InDelta(t, want, got[i], 1e-5*(1+want), "%v with %d kept", shape, n)
			kept := Keep(nil, scores, n, Protection{Sinks: 2, Window: 1})
			require.ElementsMatch(t, kept, order[:n])
		}
		require.Zero(t, got[len(got)-1])
		// The order of what is dropped makes no difference.
		swapped := append([]int32(nil), order...)
		swapped[5], swapped[6] = swapped[6], swapped[5]
		other, err := a.OutputErrors(swapped, []int{3, 5, a.Context})
		require.NoError(t, err)
		require.InDeltaSlice(t, got[:2], other[:2], 1e-9*got[0])
	}
}

func TestOutputErrorsOfWhatNobodyReads(t *testing.T) {
	a, _ := randomHead(rand.New(rand.NewPCG(1, 2)), 12, 4, 3, 2, 3, 5)
	n := len(a.Values) / a.HeadDim
	var order []int32
	for j := range 12 {
		order = append(order, int32(j))
	}
	for _, probs := range a.Probs {
		for s := range 3 {
			for j := 6; j < 12; j++ {
				probs[s*n+j] = 0
			}
		}
	}
	got, err := a.OutputErrors(order, []int{4, 6, 9, 12})
	require.NoError(t, err)
	require.Positive(t, got[0])
	require.Equal(t, []float64{0, 0, 0}, got[1:])
}

// TestLayerWeightsWorkedExample is the other half of effect.md §6.
func TestLayerWeightsWorkedExample(t *testing.T) {
	w := DefaultWeights(WeightsCut)
	got := w.layers([][]float64{{.02}, {.32}}, []float64{1.3611, .8})
	require.InDelta(t, .19166, got[0], 5e-5)
	require.Equal(t, 1.0, got[1])
	w.Power = 1
	require.InDelta(t, .03673, w.layers([][]float64{{.02}, {.32}}, []float64{1.3611, .8})[0], 5e-6)

	cut := DefaultWeights(WeightsCut)
	none := []float64{1, 1, 1}
	require.Equal(t, none, cut.layers([][]float64{{0}, {-1}, {0}}, []float64{1, 1, 1}), "nothing measured")
	off := DefaultWeights(WeightsNone)
	require.Equal(t, none, off.layers(nil, []float64{1, 2, 3}))
	// A layer without effect, and one without output, get the floor: 0.01^½.
	require.InDeltaSlice(t, []float64{1, .1, .1}, cut.layers([][]float64{{.5}, {-.1}, {0}}, []float64{1, 1, 0}), 1e-12)
	// For a span, the geometric mean, with each ratio normalised and floored.
	span := DefaultWeights(WeightsSpan)
	got = span.layers([][]float64{{1, 1, 1}, {.5, .001, .125}, {-1, 4, 0}}, []float64{1, 1, 1})
	require.InDelta(t, math.Cbrt(1*.25*1), got[0], 1e-12)
	require.InDelta(t, math.Cbrt(.5*.01*.125), got[1], 1e-12)
	require.InDelta(t, math.Cbrt(.01*1*.01), got[2], 1e-12)
}

func TestWeightsValidate(t *testing.T) {
	for _, kind := range []string{WeightsNone, WeightsCut, WeightsSpan} {
		w := DefaultWeights(kind)
		require.NoError(t, w.validate())
	}
	for want, w := range map[string]Weights{
		"kind":                     {Kind: "odd"},
		"beside kind none":         {Kind: WeightsNone, Power: 1},
		"power":                    {Kind: WeightsCut, Power: math.NaN(), Floor: .1},
		"floor":                    {Kind: WeightsCut, Power: 1},
		"ratios: found 1":          {Kind: WeightsCut, Power: 1, Floor: .1, Ratios: []float64{.5}},
		"ratios: found 0":          {Kind: WeightsSpan, Power: 1, Floor: .1},
		"expected ascending betwe": {Kind: WeightsSpan, Power: 1, Floor: .1, Ratios: []float64{.5, .5}},
	} {
		require.ErrorContains(t, w.validate(), want)
	}
	for _, ratio := range []float64{0, 1, math.NaN()} {
		w := Weights{Kind: WeightsSpan, Power: 1, Floor: 1, Ratios: []float64{ratio}}
		require.ErrorContains(t, w.validate(), "expected ascending between 0 and 1", ratio)
	}
	high := Weights{Kind: WeightsCut, Power: 1, Floor: 1.5}
	require.ErrorContains(t, high.validate(), "floor: found 1.5, expected above 0 and at most 1")
	border := Weights{Kind: WeightsSpan, Power: 100, Floor: 1, Ratios: []float64{.01, .99}}
	require.NoError(t, border.validate())
}

func TestStates(t *testing.T) {
	cut := DefaultWeights(WeightsCut)
	require.Equal(t, [][]int{{2, 100, 100}, {100, 100, 2}}, cut.states(100, 2, []int{0, 2}, 3))
	span := DefaultWeights(WeightsSpan)
	span.Ratios = []float64{.5, .99}
	require.Equal(t, [][]int{
		{2, 100, 50}, {100, 100, 50}, {50, 100, 2}, {50, 100, 100},
		{2, 100, 2}, {100, 100, 2}, {2, 100, 2}, {2, 100, 100},
	}, span.states(100, 2, []int{0, 2}, 3))
	require.Equal(t, [][]float64{{1, 1}, {0, 0}, {3, 30}}, span.effects([]float64{2, 1, 4, 1, 11, 10, 40, 10}, []int{0, 2}, 3))
	require.Empty(t, new(Weights).states(100, 2, []int{0}, 1))
}

func errorIdentity(kind string) ProfileIdentity {
	id := testIdentity()
	w := DefaultWeights(kind)
	id.Objective, id.Weights = ObjectiveOutputError, &w
	return id
}

func errorBuilder(t *testing.T, id ProfileIdentity, excluded ...int) *OutputErrorBuilder {
	t.Helper()
	b, err := NewOutputErrorBuilder(id, 3, 2, excluded)
	require.NoError(t, err)
	return b
}

// syntheticAnswer is the measurement of a context of T tokens: falling errors.
func syntheticAnswer(b *OutputErrorBuilder, T int, seed uint64) *AnswerErrors {
	rng := rand.New(rand.NewPCG(seed, 7))
	a := &AnswerErrors{Tokens: T, Steps: 1 + rng.IntN(9)}
	counts := b.Counts(T)
	for range b.Metrics() {
		errors := make([][]float64, 6)
		for u := range errors {
			if u/2 == 1 && len(b.excluded) > 0 {
				continue
			}
			scale := rng.ExpFloat64()
			for _, n := range counts {
				errors[u] = append(errors[u], scale*math.Pow(1-float64(n)/float64(T), 1+rng.Float64()))
			}
		}
		a.Errors = append(a.Errors, errors)
	}
	for range b.States(T) {
		a.Divergence = append(a.Divergence, rng.Float64())
	}
	return a
}

func TestOutputErrorProfile(t *testing.T) {
	for _, kind := range []string{WeightsNone, WeightsCut, WeightsSpan} {
		for _, excluded := range [][]int{nil, {1}} {
			b := errorBuilder(t, errorIdentity(kind), excluded...)
			_, err := b.Profile()
			require.ErrorContains(t, err, "no pair has an answer")
			state := filepath.Join(t.TempDir(), "state")
			for i, T := range []int{400, 90, 1000, 90} {
				require.Equal(t, i, b.Pairs())
				require.NoError(t, b.Add(i, syntheticAnswer(b, T, uint64(i))))
				if i == 1 {
					require.NoError(t, b.SaveState(state))
				}
			}
			require.NoError(t, b.Add(4, &AnswerErrors{Tokens: 12}), "an answer that has no token is left out")
			p, err := b.Profile()
			require.NoError(t, err)
			require.Equal(t, []int{4, 90, 1000}, []int{p.Pairs, p.MinContext, p.MaxContext})
			e := p.OutputErrors
			require.InDelta(t, 5.0/90, e.Grid[0], 1e-12, "the largest of all leasts")
			require.Equal(t, .075, e.Grid[1])
			for i := range solve.Levels {
				want := min(float64(i+1)/100, 1-e.Grid[0])
				require.InDelta(t, want, p.mean(i), 1e-8)
			}

			// Through a file and back it is the same, and the same again when
			// re-solved.
			data := profileBytes(t, p)
			back, err := ReadProfile(bytes.NewReader(data))
			require.NoError(t, err)
			require.Equal(t, p, back)
			again, err := back.Reweighted(*p.Identity.Weights)
			require.NoError(t, err)
			require.Equal(t, p, again)
			plain, err := back.Reweighted(DefaultWeights(WeightsNone))
			require.NoError(t, err)
			require.Equal(t, []float64{1, 1, 1}, plain.OutputErrors.LayerWeights)
			require.NoError(t, plain.checkOutputErrors())
			for _, other := range []string{WeightsCut, WeightsSpan} {
				if other != kind {
					_, err := back.Reweighted(DefaultWeights(other))
					require.ErrorContains(t, err, "found effects of kind "+kind)
				}
			}

			// Interrupted and resumed: the same bytes.
			c := errorBuilder(t, errorIdentity(kind), excluded...)
			require.NoError(t, c.LoadState(state))
			require.Equal(t, 2, c.Pairs())
			for i, T := range []int{400, 90, 1000, 90} {
				if i >= 2 {
					require.NoError(t, c.Add(i, syntheticAnswer(c, T, uint64(i))))
				}
			}
			require.NoError(t, c.Add(4, &AnswerErrors{Tokens: 12}))
			resumed, err := c.Profile()
			require.NoError(t, err)
			require.Equal(t, data, profileBytes(t, resumed))

			// Weights of one are the same as none.
			if kind == WeightsCut {
				id := errorIdentity(kind)
				id.Weights.Power = 0
				flat, none := errorBuilder(t, id, excluded...), errorBuilder(t, errorIdentity(WeightsNone), excluded...)
				for i, T := range []int{400, 90} {
					a := syntheticAnswer(flat, T, uint64(i))
					require.NoError(t, flat.Add(i, a))
					a.Divergence = nil
					require.NoError(t, none.Add(i, a))
				}
				x, err := flat.Profile()
				require.NoError(t, err)
				y, err := none.Profile()
				require.NoError(t, err)
				require.Equal(t, x.ratios, y.ratios)
			}
		}
	}
}

// TestOutputErrorsArePerStep: errors and effects are means over the steps of all answers, so
// that a long answer counts as much as its steps, not as one pair.
func TestOutputErrorsArePerStep(t *testing.T) {
	id := errorIdentity(WeightsCut)
	b := errorBuilder(t, id)
	short, long := syntheticAnswer(b, 400, 1), syntheticAnswer(b, 400, 2)
	short.Steps, long.Steps = 1, 7
	require.NoError(t, b.Add(0, short))
	require.NoError(t, b.Add(1, long))
	p, err := b.Profile()
	require.NoError(t, err)
	require.Equal(t, 8, p.OutputErrors.AnswerSteps)
	require.Equal(t, 2, p.Pairs)
	for u, row := range p.OutputErrors.Error {
		for i, v := range row {
			require.InDelta(t, (short.Errors[0][u][i]+long.Errors[0][u][i])/8, v, 1e-12)
		}
	}
	sum := 0.0
	for i := range short.Divergence {
		sum += short.Divergence[i] + long.Divergence[i]
	}
	got := 0.0
	for _, row := range p.OutputErrors.Effects {
		for _, v := range row {
			got += v
		}
	}
	require.InDelta(t, sum/8, got, 1e-9)
}

// TestOutputErrorGrid: contexts of different lengths are added as curves, on the grid
// from the largest of their leasts up. If errors fall in proportion to what is kept,
// so does their mean.
func TestOutputErrorGrid(t *testing.T) {
	for _, lengths := range [][]int{{1000, 400}, {400, 1000}, {400, 300, 1000}, {1000}} {
		b := errorBuilder(t, errorIdentity(WeightsNone))
		least := 0.0
		for i, T := range lengths {
			least = max(least, float64(max((T+99)/100, 5))/float64(T))
			a := &AnswerErrors{Tokens: T, Steps: 1}
			var errors [][]float64
			for range 6 {
				var curve []float64
				for _, x := range b.gridOf(T) {
					curve = append(curve, 1-x)
				}
				errors = append(errors, curve)
			}
			a.Errors = append(a.Errors, errors)
			require.NoError(t, b.Add(i, a))
		}
		p, err := b.Profile()
		require.NoError(t, err)
		require.InDelta(t, least, p.OutputErrors.Grid[0], 1e-12, "%v", lengths)
		require.Equal(t, .02, p.OutputErrors.Grid[1])
		for i, x := range p.OutputErrors.Grid {
			require.InDelta(t, 1-x, p.OutputErrors.Error[0][i], 1e-12, "%v at %v", lengths, x)
		}
	}
}

// TestAtTheEndsOfTheGrid: fractions that rounding pushed beyond the ends can still be
// read.
func TestAtTheEndsOfTheGrid(t *testing.T) {
	xs := []float64{math.Nextafter(0.25, 0), 0.25, 0.625, 1, math.Nextafter(1, 2)}
	require.InDeltaSlice(t, []float64{8, 8, 5, 2, 2}, at(xs, []float64{0.25, 0.5, 0.75, 1}, []float64{8, 6, 4, 2}), 1e-12)
}

// TestOutputErrorSubsets: the sums of two sets add up to those of their union.
func TestOutputErrorSubsets(t *testing.T) {
	lengths := []int{400, 90, 1000, 250}
	whole := errorBuilder(t, errorIdentity(WeightsCut))
	var answers []*AnswerErrors
	for i, T := range lengths {
		answers = append(answers, syntheticAnswer(whole, T, uint64(i)))
		require.NoError(t, whole.Add(i, answers[i]))
	}
	a, b := errorBuilder(t, errorIdentity(WeightsCut)), errorBuilder(t, errorIdentity(WeightsCut))
	for i := range 2 {
		require.NoError(t, a.Add(i, answers[i]))
		require.NoError(t, b.Add(i, answers[2+i]))
	}
	require.Equal(t, whole.grid, a.grid, "that of the shortest text")
	for u := range whole.errors[0] {
		for i, v := range at(whole.grid, b.grid, b.errors[0][u]) {
			require.InEpsilon(t, 1+whole.errors[0][u][i], 1+v+a.errors[0][u][i], 1e-12)
		}
	}
	require.Equal(t, whole.steps, a.steps+b.steps)
	for i, v := range whole.divergence {
		require.InDelta(t, v, a.divergence[i]+b.divergence[i], 1e-12)
	}
}

func TestOutputErrorBuilderRefuses(t *testing.T) {
	b := errorBuilder(t, errorIdentity(WeightsCut))
	good := func() *AnswerErrors { return syntheticAnswer(b, 200, 1) }
	for want, change := range map[string]func(*AnswerErrors){
		"0 tokens":            func(a *AnswerErrors) { a.Tokens = 0 },
		"errors of 0 metrics": func(a *AnswerErrors) { a.Errors = nil },
		"2 effects":           func(a *AnswerErrors) { a.Divergence = a.Divergence[:2] },
		"errors of 5 heads":   func(a *AnswerErrors) { a.Errors[0] = a.Errors[0][:5] },
		"0 errors of layer 1": func(a *AnswerErrors) { a.Errors[0][3] = nil },
		"error 2 is -1":       func(a *AnswerErrors) { a.Errors[0][3][2] = -1 },
		"error 1 is NaN":      func(a *AnswerErrors) { a.Divergence[1] = math.NaN() },
	} {
		a := good()
		change(a)
		require.ErrorContains(t, b.Add(0, a), want)
	}
	require.ErrorContains(t, b.Add(1, good()), "expected pair 0")
	require.Zero(t, b.Pairs())

	// A state of another kind of profile, and of other weights.
	importance, err := NewProfileBuilder(testIdentity(), 3, 2, nil)
	require.NoError(t, err)
	var state bytes.Buffer
	require.NoError(t, importance.WriteState(&state))
	require.ErrorIs(t, b.readState(bytes.NewReader(state.Bytes())), ErrProfileMismatch)
	state.Reset()
	require.NoError(t, b.writeState(&state))
	require.ErrorIs(t, importance.ReadState(bytes.NewReader(state.Bytes())), ErrProfileMismatch)
	require.ErrorIs(t, errorBuilder(t, errorIdentity(WeightsSpan)).readState(bytes.NewReader(state.Bytes())), ErrProfileMismatch)
	require.NoError(t, b.readState(bytes.NewReader(state.Bytes())), "a state of no pair")
	damaged := bytes.Replace(state.Bytes(), []byte(`"answer_steps":0`), []byte(`"answer_steps":1`), 1)
	require.ErrorContains(t, b.readState(bytes.NewReader(damaged)), "damaged")
	_, err = NewOutputErrorBuilder(testIdentity(), 3, 2, nil)
	require.ErrorContains(t, err, "objective")

	// Counts that contradict each other.
	for _, n := range []struct{ pairs, left, steps, effects int }{
		{-1, 0, 5, 3}, {0, -1, 5, 3}, {1, 2, 5, 3}, {3, 1, 1, 3}, {2, 1, 5, 2}, {1, 2, 0, 3},
	} {
		bad := errorBuilder(t, errorIdentity(WeightsCut))
		bad.pairs, bad.left, bad.steps, bad.divergence = n.pairs, n.left, n.steps, bad.divergence[:n.effects]
		state.Reset()
		require.NoError(t, bad.writeState(&state))
		require.ErrorContains(t, b.readState(bytes.NewReader(state.Bytes())), "left out", "%+v", n)
	}
}

// TestReadProfileOfErrorsRefuses: measurements that do not fit the profile are
// rejected.
func TestReadProfileOfErrorsRefuses(t *testing.T) {
	b := errorBuilder(t, errorIdentity(WeightsCut))
	require.NoError(t, b.Add(0, syntheticAnswer(b, 200, 1)))
	for want, change := range map[string]func(*OutputErrors){
		"0 answer steps":           func(e *OutputErrors) { e.AnswerSteps = 0 },
		"weights of 2":             func(e *OutputErrors) { e.LayerWeights = e.LayerWeights[:2] },
		"effects of 0 layers":      func(e *OutputErrors) { e.Effects = nil },
		"2 effects of layer 1":     func(e *OutputErrors) { e.Effects[1] = []float64{1, 2} },
		"grid point 1":             func(e *OutputErrors) { e.Grid[1] = e.Grid[0] },
		"grid point 0":             func(e *OutputErrors) { e.Grid[0] = 0 },
		"a grid of 0 points":       func(e *OutputErrors) { e.Grid = nil },
		"expected one up to 1":     func(e *OutputErrors) { e.Grid[len(e.Grid)-1] = .95 },
		"errors of layer 0 head 1": func(e *OutputErrors) { e.Error[1] = e.Error[1][1:] },
		"error 0 is -1":            func(e *OutputErrors) { e.Error[1][0] = -1 },
		"a metric of each head":    func(e *OutputErrors) { e.MetricOf = make([][]int, 99) },
		"errors of 5 heads":        func(e *OutputErrors) { e.Error = e.Error[1:] },
		"layer weights: error 0 ":  func(e *OutputErrors) { e.LayerWeights[0] = -1 },
	} {
		p, err := b.Profile()
		require.NoError(t, err)
		change(p.OutputErrors)
		_, err = ReadProfile(bytes.NewReader(profileBytes(t, p)))
		require.ErrorContains(t, err, want)
	}
	id := testIdentity()
	w := DefaultWeights(WeightsCut)
	id.Weights = &w
	require.ErrorContains(t, id.Validate(), "weights")
	id.Objective, id.Solver = ObjectiveOutputError, SolverRepair
	require.ErrorContains(t, id.Validate(), "solver")
	id.Solver, id.Weights = SolverGreedy, nil
	require.ErrorContains(t, id.Validate(), "weights")
}

// TestEmbeddedProfilesFollowFromTheirMeasurements re-solves the embedded
// model's profiles.
func TestEmbeddedProfilesFollowFromTheirMeasurements(t *testing.T) {
	files, err := filepath.Glob("../model/builtin/profiles/output-error/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		p, err := LoadProfile(file)
		require.NoError(t, err)
		again, err := p.Reweighted(*p.Identity.Weights)
		require.NoError(t, err)
		require.Equal(t, p, again, file)
	}
}
