package lukv

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// randomRankings returns rankings of layers of K heads of dimension D.
func randomRankings(layers, K, D int) *CalibrationData {
	rng := rand.New(rand.NewPCG(7, uint64(D)))
	row := func() []float32 {
		x := make([]float32, D)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	d := &CalibrationData{Rankings: make([][]Ranking, layers)}
	for at := range d.Rankings {
		for range K {
			r := Ranking{Key: row(), Value: row()}
			r.KeySquares, r.ValueSquares, r.Constant = float32(rng.NormFloat64()), float32(rng.NormFloat64()), float32(rng.NormFloat64())
			d.Rankings[at] = append(d.Rankings[at], r)
		}
	}
	return d
}

func learnedMetric(t testing.TB, params ...any) Metric {
	return mustMetric(t, configured("learned", params...))
}

// features returns the features of every entry of a head.
func features(l *Layer, h int) [][]float64 {
	D := l.HeadDim
	out := make([][]float64, l.Len(h))
	for t := range out {
		f := make([]float64, 2*D+2)
		l.Unrotate(f[:D], l.Keys(h, t, t+1, make([]float32, D)), positionOf(l.positions(h), t))
		for i, v := range l.Values(h, t, t+1, make([]float32, D)) {
			f[D+i] = float64(v)
			f[2*D] += f[i] * f[i]
			f[2*D+1] += float64(v) * float64(v)
		}
		out[t] = f
	}
	return out
}

// fit fits rankings to the targets of a layer, [K][T], given as scores whose logarithm
// is taken.
func fit(t testing.TB, m Metric, l *Layer, targets Scores) ([][]Ranking, error) {
	b := rankingBuilder(t, m, l)
	l.Repeats = &RepeatScores{best: targets}
	_, err := b.Observer().Score(context.Background(), l)
	require.NoError(t, err)
	b.EndText()
	return b.Rankings()
}

// rankingBuilder returns a builder for a model that ends with layer l.
func rankingBuilder(t testing.TB, m Metric, l *Layer) *RankingBuilder {
	id := DefaultProfileIdentity()
	id.Model, id.Metric = "model", MetricConfigOf(m)
	b, err := NewRankingBuilder(id, l.Index+1, l.KVHeads, l.HeadDim)
	require.NoError(t, err)
	return b
}

// linearTargets returns e^(w·f) for weights that keep it between the floor and 1.
func linearTargets(l *Layer, scale, shift float64) Scores {
	rng := rand.New(rand.NewPCG(2, 5))
	out := make(Scores, l.KVHeads)
	for h := range out {
		w := make([]float64, 2*l.HeadDim+2)
		for i := range w {
			w[i] = 0.1 * rng.NormFloat64()
		}
		for _, f := range features(l, h) {
			y := shift
			for i, v := range f {
				y += scale * w[i] * v
			}
			out[h] = append(out[h], float32(math.Exp(y)))
		}
	}
	return out
}

func scoresOf(t testing.TB, m Metric, rankings [][]Ranking, l *Layer) Scores {
	s, err := Score(context.Background(), WithCalibration(m, &CalibrationData{Rankings: rankings}), l)
	require.NoError(t, err)
	return s
}

func orderOf(row []float32) []int32 { return Order(row, Protection{}) }

func TestLearnedIsTheLinearFunction(t *testing.T) {
	l := randomAttention(300, 4, 2, 6)
	l.RopeScale = 1.2
	d := randomRankings(l.Index+1, 2, 6)
	s := scoresOf(t, learnedMetric(t), d.Rankings, l)
	for h := range s {
		r := d.Rankings[l.Index][h]
		for i, f := range features(l, h) {
			want := float64(r.Constant) + float64(r.KeySquares)*f[12] + float64(r.ValueSquares)*f[13]
			for j := range 6 {
				want += float64(r.Key[j])*f[j] + float64(r.Value[j])*f[6+j]
			}
			require.InDelta(t, want, s[h][i], 1e-5*(1+math.Abs(want)))
		}
	}
}

// TestLearnedDependsOnNothingElse: an entry has the same score at any position, among
// any others and in any tile.
func TestLearnedDependsOnNothingElse(t *testing.T) {
	const T, D = 700, 6
	l := randomAttention(T, 4, 2, D)
	d := randomRankings(l.Index+1, 2, D)
	want := scoresOf(t, learnedMetric(t), d.Rankings, l)

	few := *l // entries 300 to 349, elsewhere in the text
	pos := make([]int32, 50)
	keys := make([][]float32, 2)
	for i := range pos {
		pos[i] = int32(3*i + 11)
	}
	for h := range keys {
		for i, f := range features(l, h)[300:350] {
			for _, v := range rotate(f[:D], 1, D, int(pos[i]), l.InvFreq) {
				keys[h] = append(keys[h], float32(v))
			}
		}
	}
	few.T, few.Positions, few.NextPosition = len(pos), func(int) []int32 { return pos }, 1000
	few.Keys = func(h, lo, hi int, _ []float32) []float32 { return keys[h][lo*D : hi*D] }
	few.Values = func(h, lo, hi int, dst []float32) []float32 { return l.Values(h, 300+lo, 300+hi, dst) }
	got := scoresOf(t, learnedMetric(t), d.Rankings, &few)
	for h := range got {
		for i, v := range got[h] {
			require.InDelta(t, want[h][300+i], v, 1e-4*(1+math.Abs(float64(v))))
		}
	}
}

func TestLearnedReproducesLinearScores(t *testing.T) {
	l := randomAttention(400, 4, 2, 6)
	targets := linearTargets(l, 1, -2)
	m := learnedMetric(t, "ridge", 0)
	rankings, err := fit(t, m, l, targets)
	require.NoError(t, err)
	s := scoresOf(t, m, rankings, l)
	for h := range s {
		for i, v := range s[h] {
			require.InDelta(t, math.Log(float64(targets[h][i])), v, 1e-5)
		}
	}
}

// TestLearnedFitKeepsOrder: targets with other logarithms, scaled or shifted, give the
// same order.
func TestLearnedFitKeepsOrder(t *testing.T) {
	l := randomAttention(400, 4, 2, 6)
	m := learnedMetric(t)
	var orders [][]int32
	for _, c := range [][2]float64{{1, -2}, {0.5, -2}, {1, -4}} {
		targets := linearTargets(l, c[0], c[1])
		for h := range targets { // with a part that is not linear
			for i := range targets[h] {
				targets[h][i] *= float32(math.Exp(c[0] * math.Sin(float64(i))))
			}
		}
		rankings, err := fit(t, m, l, targets)
		require.NoError(t, err)
		orders = append(orders, orderOf(scoresOf(t, m, rankings, l)[1]))
	}
	// Targets and weights are rounded to float32, so neighbours may change places.
	for _, o := range orders[1:] {
		place := make([]int, len(o))
		for i, slot := range o {
			place[slot] = i
		}
		for i, slot := range orders[0] {
			require.InDelta(t, i, place[slot], 2)
		}
	}
}

func TestLearnedWithAnInfiniteRidgeIsConstant(t *testing.T) {
	l := randomAttention(400, 4, 2, 6)
	m := learnedMetric(t, "ridge", 1e300)
	rankings, err := fit(t, m, l, linearTargets(l, 1, -2))
	require.NoError(t, err)
	for _, row := range scoresOf(t, m, rankings, l) {
		require.Equal(t, slices.Repeat(row[:1], len(row)), row)
		require.Equal(t, []int32{0, 1, 2}, Keep(nil, row, 3, Protection{}))
	}
}

// TestLearnedOfPermutedChannels: the order of channels means nothing, to the fit and to
// the scores.
func TestLearnedOfPermutedChannels(t *testing.T) {
	const D = 6
	l := randomAttention(400, 4, 2, D)
	l.InvFreq = make([]float64, D/2) // no rotation, which pairs channels
	m := learnedMetric(t)
	targets := linearTargets(l, 1, -2)
	rankings, err := fit(t, m, l, targets)
	require.NoError(t, err)
	want := scoresOf(t, m, rankings, l)

	permuted := *l
	order := []int{3, 0, 5, 1, 4, 2}
	permuted.Keys = func(h, lo, hi int, _ []float32) []float32 {
		var out []float32
		in := l.Keys(h, lo, hi, make([]float32, (hi-lo)*D))
		for t := range hi - lo {
			for _, c := range order {
				out = append(out, in[t*D+c])
			}
		}
		return out
	}
	again, err := fit(t, m, &permuted, targets)
	require.NoError(t, err)
	got := scoresOf(t, m, again, &permuted)
	for h := range got {
		for i, c := range order {
			require.InDelta(t, rankings[l.Index][h].Key[c], again[l.Index][h].Key[i], 1e-5)
		}
		for i, v := range got[h] {
			require.InDelta(t, want[h][i], v, 1e-5)
		}
	}
}

func TestLearnedLeavesOutConstantFeatures(t *testing.T) {
	const D = 6
	l := randomAttention(400, 4, 2, D)
	plain := l.Values
	l.Values = func(h, lo, hi int, dst []float32) []float32 {
		out := slices.Clone(plain(h, lo, hi, dst))
		for t := range hi - lo {
			out[t*D+2] = 3
		}
		return out
	}
	rankings, err := fit(t, learnedMetric(t, "ridge", 0), l, linearTargets(l, 1, -2))
	require.NoError(t, err)
	require.Zero(t, rankings[l.Index][0].Value[2])
	require.NotZero(t, rankings[l.Index][0].Value[1])
}

func TestLearnedFitErrors(t *testing.T) {
	const D = 6
	l := randomAttention(4*(2*D+2)-1, 4, 2, D)
	_, err := fit(t, learnedMetric(t), l, linearTargets(l, 1, -2))
	require.EqualError(t, err, "fit the ranking of layer 0, KV head 0: found 55 entries, expected at least 56: give longer texts")

	l = randomAttention(400, 4, 2, D)
	plain := l.Values
	l.Values = func(h, lo, hi int, dst []float32) []float32 {
		out := slices.Clone(plain(h, lo, hi, dst))
		for t := range hi - lo {
			out[t*D+2] = 2 * out[t*D+1]
		}
		return out
	}
	_, err = fit(t, learnedMetric(t, "ridge", 0), l, linearTargets(l, 1, -2))
	require.ErrorContains(t, err, "linearly dependent, expected a larger ridge")
	_, err = fit(t, learnedMetric(t), l, linearTargets(l, 1, -2))
	require.NoError(t, err, "the ridge decides")

	_, err = NewRankingBuilder(ProfileIdentity{Metric: MetricConfig{Name: "keydiff"}}, 1, 1, 1)
	require.EqualError(t, err, "fit a ranking: found metric keydiff, expected learned")
	for _, target := range []string{"keydiff", "criticalkv", "learned", "per_head"} {
		_, err = NewMetric(configured("learned", "target", target))
		require.ErrorContains(t, err, "metric learned: target: found "+target)
	}
	_, err = NewMetric(configured("learned", "floor", 0))
	require.ErrorContains(t, err, "floor")
	_, err = NewMetric(MetricConfig{Name: "per_head", Params: `{"metrics":["learned",{"name":"learned","ridge":1}]}`})
	require.ErrorContains(t, err, "found learned twice")
}

// rankingState returns a builder with the sums of a text over one layer, and its state.
func rankingState(t testing.TB) (*RankingBuilder, *Layer, []byte) {
	l := randomAttention(100, 4, 2, 6)
	l.Index = 1
	l.Repeats = &RepeatScores{best: linearTargets(l, 1, -2)}
	b := rankingBuilder(t, learnedMetric(t), l)
	_, err := b.Observer().Score(context.Background(), l)
	require.NoError(t, err)
	b.EndText()
	var out bytes.Buffer
	require.NoError(t, b.writeState(&out))
	return b, l, out.Bytes()
}

// A fit goes on from its state with the same sums, bit for bit, and refuses the states of
// others.
func TestRankingState(t *testing.T) {
	b, l, state := rankingState(t)
	c := rankingBuilder(t, learnedMetric(t), l)
	require.NoError(t, c.readState(bytes.NewReader(state)))
	require.Equal(t, 1, c.Texts())
	for _, x := range []*RankingBuilder{b, c} { // the second text
		_, err := x.Observer().Score(context.Background(), l)
		require.NoError(t, err)
		x.EndText()
	}
	want, err := b.Rankings()
	require.NoError(t, err)
	got, err := c.Rankings()
	require.NoError(t, err)
	require.Equal(t, want, got)

	path := filepath.Join(t.TempDir(), "fit")
	require.NoError(t, b.SaveState(path))
	require.NoError(t, c.LoadState(path))
	require.Equal(t, b.sums, c.sums)

	long := rankingBuilder(t, learnedMetric(t), l)
	long.id.Model = strings.Repeat("long ", 1<<15)
	var out bytes.Buffer
	require.NoError(t, long.writeState(&out))
	require.NoError(t, long.readState(&out), "a first line longer than the reader's buffer")

	other := rankingBuilder(t, learnedMetric(t, "ridge", 1), l)
	require.ErrorIs(t, other.readState(bytes.NewReader(state)), ErrProfileMismatch)
	wider := *l
	wider.KVHeads++
	require.ErrorIs(t, rankingBuilder(t, learnedMetric(t), &wider).readState(bytes.NewReader(state)), ErrProfileMismatch)
	for at := range state {
		damaged := slices.Clone(state)
		damaged[at] ^= 1
		before := *c
		require.Error(t, c.readState(bytes.NewReader(damaged)), "byte %d", at)
		require.Error(t, c.readState(bytes.NewReader(state[:at])), "%d bytes", at)
		require.Equal(t, before, *c)
	}
}

func FuzzRankingState(f *testing.F) {
	_, l, state := rankingState(f)
	f.Add(state)
	f.Add(state[:200])
	f.Fuzz(func(t *testing.T, data []byte) {
		b := rankingBuilder(t, learnedMetric(t), l)
		if b.readState(bytes.NewReader(data)) == nil {
			var out bytes.Buffer
			require.NoError(t, b.writeState(&out))
			require.NoError(t, rankingBuilder(t, learnedMetric(t), l).readState(&out))
		}
	})
}

// learnedProfile returns a profile of a metric of 2 layers of 2 heads with rankings.
func learnedProfile(t testing.TB, metric MetricConfig) *Profile {
	m := mustMetric(t, metric)
	p := linearProfile(t, 2, 2)
	p.Identity.Model, p.Identity.Metric, p.Identity.Protection = "model", MetricConfigOf(m), ProfiledProtection(m)
	p.CalibrationData = *randomRankings(2, 2, 6)
	return p
}

// linearProfile returns a profile that removes the same part of every head.
func linearProfile(t testing.TB, layers, heads int) *Profile {
	ratios := make([]float64, 0, 99*layers*heads)
	for i := range 99 {
		ratios = append(ratios, slices.Repeat([]float64{float64(i+1) / 100}, layers*heads)...)
	}
	p, err := NewProfile(DefaultProfileIdentity(), layers, heads, ratios, nil)
	require.NoError(t, err)
	return p
}

func TestRankingsInProfiles(t *testing.T) {
	p := learnedProfile(t, MetricConfig{Name: "learned"})
	var file bytes.Buffer
	require.NoError(t, p.Write(&file))
	again, err := ReadProfile(bytes.NewReader(file.Bytes()))
	require.NoError(t, err)
	require.Equal(t, p.Rankings, again.Rankings)

	for want, spoil := range map[string]func(){
		"rankings of 1 layers":                                      func() { p.Rankings = p.Rankings[:1] },
		"rankings: layer 1, KV head 0: found 5 weights":             func() { p.Rankings[1][0].Key = make([]float32, 5) },
		"rankings of 3 KV heads, expected 2":                        func() { p.Rankings = randomRankings(2, 3, 6).Rankings },
		"rankings: layer 1: found 1 KV heads, expected 2, at least": func() { p.Rankings[1] = p.Rankings[1][:1] },
	} {
		p.CalibrationData = *randomRankings(2, 2, 6)
		spoil()
		file.Reset()
		require.NoError(t, p.Write(&file))
		_, err = ReadProfile(&file)
		require.ErrorContains(t, err, want)
	}
	p.Rankings = nil
	file.Reset()
	require.NoError(t, p.Write(&file))
	require.NotContains(t, file.String(), "rankings", "as in older files")
	again, err = ReadProfile(&file)
	require.NoError(t, err)
	require.Nil(t, again.Rankings)
}

// TestLearnedInPolicies: with any allocator and within other metrics, while decoding,
// and refused without rankings that were fitted for it.
func TestLearnedInPolicies(t *testing.T) {
	shape := CacheShape{Layers: 2, KVHeads: 2}
	layer := randomAttention(60, 4, 2, 6)
	layer.Index = 1
	compile := func(p *Profile, metric MetricConfig, allocator string, decode DecodeConfig) (*Compiled, error) {
		policy := &Policy{Metric: metric, Allocator: AllocatorConfig{Name: allocator}, Ratio: 0.5, Profile: p, Decode: decode}
		require.True(t, policy.UsesProfile())
		c, ok := policy.Learned()
		require.True(t, ok)
		require.Equal(t, "learned", c.Name)
		return policy.Compile("model", shape)
	}
	plain := MetricConfig{Name: "learned"}
	p := learnedProfile(t, plain)
	want := scoresOf(t, learnedMetric(t), p.Rankings, layer)
	for _, allocator := range Allocators() {
		if allocator == "headkv" || allocator == "duo" { // they need parameters
			continue
		}
		c, err := compile(p, plain, allocator, DecodeConfig{})
		require.NoError(t, err, allocator)
		got, err := Score(context.Background(), c.Metric(), layer)
		require.NoError(t, err)
		require.Equal(t, want, got, allocator)
	}
	for _, outer := range []MetricConfig{
		{Name: "chunkkv", Params: `{"metric":"learned"}`},
		{Name: "criticalkv", Params: `{"metric":"learned","shift":true}`},
	} {
		c, err := compile(p, outer, "uniform", DecodeConfig{})
		require.NoError(t, err, outer)
		_, err = Score(context.Background(), c.Metric(), layer)
		require.NoError(t, err, outer)
	}
	c, err := compile(p, MetricConfig{Name: "snapkv"}, "uniform", DecodeConfig{Mode: "periodic", Interval: 8, TargetSize: 16, Metric: &plain})
	require.NoError(t, err)
	got, err := Score(context.Background(), c.Decoding().Metric(), layer)
	require.NoError(t, err)
	require.Equal(t, want, got)

	heads := MetricConfig{Name: "per_head", Params: `{"metrics":["keydiff","learned"]}`}
	each := learnedProfile(t, MetricConfig{Name: "keydiff"})
	each.Identity.Metric = MetricConfigOf(mustMetric(t, heads))
	each.OutputErrors = &OutputErrors{}
	for range 99 {
		each.OutputErrors.MetricOf = append(each.OutputErrors.MetricOf, []int{0, 1, 0, 1})
	}
	policy := &Policy{Metric: heads, Allocator: AllocatorConfig{Name: "lukv"}, Ratio: 0.5, Profile: each}
	c, err = policy.Compile("model", shape)
	require.NoError(t, err)
	got, err = Score(context.Background(), c.Metric(), layer)
	require.NoError(t, err)
	require.Equal(t, want[1][4:59], got[1][4:59])

	for text, spoil := range map[string]func(p **Profile){
		"metric learned: found no profile, expected one of this metric":     func(p **Profile) { *p = nil },
		"found a profile of the metric keydiff without rankings":            func(p **Profile) { (*p).Identity.Metric = MetricConfig{Name: "keydiff"} },
		"found a profile of the metric learned without rankings":            func(p **Profile) { (*p).Rankings = nil },
		"model: the profile was made for other, this run has model":         func(p **Profile) { (*p).Identity.Model = "other" },
		`"ridge":2,"floor":1e-7}, this run has {"name":"learned","target":`: func(p **Profile) { (*p).Identity.Metric = MetricConfigOf(learnedMetric(t, "ridge", 2)) },
	} {
		p := learnedProfile(t, plain)
		spoil(&p)
		_, err := compile(p, plain, "uniform", DecodeConfig{})
		require.ErrorContains(t, err, text)
		require.Equal(t, p != nil, errors.Is(err, ErrProfileMismatch))
	}
	_, err = Score(context.Background(), learnedMetric(t), layer)
	require.EqualError(t, err, "score layer 1 with learned: found no ranking, expected the one in a profile of this metric")
	layer.Index = 2
	_, err = Score(context.Background(), WithCalibration(learnedMetric(t), &p.CalibrationData), layer)
	require.ErrorContains(t, err, "found rankings of 2 layers of 2 KV heads × 6, expected more layers of 2 × 6")
}
