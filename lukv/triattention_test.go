package lukv

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
)

// triAttentionOf computes the published definition: for every frequency f the
// amplitude ‖E q_f‖·‖k_f‖ times cos(ω_f(Δ+δ) + φ_f), φ_f the angle between the
// unrotated centre and key, averaged over δ = 1, 2, 4 …; plus (E‖q_f‖-‖E q_f‖)·‖k_f‖;
// each query head's scores scaled to mean 0 and deviation 1, the largest over the
// group.
func triAttentionOf(l *Layer, h, first, future int, centers []QueryCenter) []float64 {
	D, G, T := l.HeadDim, l.Group(), l.Len(h)
	keys := unrotatedKeys(l, h, 0, T)
	out := make([]float64, T)
	for q := h * G; q < (h+1)*G; q++ {
		row := make([]float64, 0, T)
		for t := first; t < T; t++ {
			sum := 0.0
			for f, w := range l.InvFreq {
				qa, qb := float64(centers[q].Mean[f]), float64(centers[q].Mean[D/2+f])
				ka, kb := keys[t][f], keys[t][D/2+f]
				length, center := math.Hypot(ka, kb), math.Hypot(qa, qb)
				phase := math.Atan2(qb, qa) - math.Atan2(kb, ka)
				for i := range future {
					distance := float64(l.NextPosition - 1 - t + 1<<i)
					sum += center * length * math.Cos(w*distance+phase) / float64(future)
				}
				sum += (float64(centers[q].ChannelNorms[f]) - center) * length
			}
			row = append(row, sum)
		}
		for i, v := range zScores([][]float64{row})[0] {
			if q == h*G || v > out[first+i] {
				out[first+i] = v
			}
		}
	}
	return out
}

// centersOf returns the centres of rows of queries, [rows][H*D], in float64: the
// means of the channels and of the lengths of pairs.
func centersOf(rows [][]float32, H, D int) []QueryCenter {
	out := make([]QueryCenter, H)
	for q := range out {
		mean, lengths := make([]float64, D), make([]float64, D/2)
		for _, row := range rows {
			for a, v := range row[q*D : (q+1)*D] {
				mean[a] += float64(v) / float64(len(rows))
			}
			for f := range lengths {
				lengths[f] += math.Hypot(float64(row[q*D+f]), float64(row[q*D+D/2+f])) / float64(len(rows))
			}
		}
		for _, v := range mean {
			out[q].Mean = append(out[q].Mean, float32(v))
		}
		for _, v := range lengths {
			out[q].ChannelNorms = append(out[q].ChannelNorms, float32(v))
		}
	}
	return out
}

// randomQueries returns rows of n queries whose heads have centres far from 0.
func randomQueries(n, H, D int, seed uint64) [][]float32 {
	rng := rand.New(rand.NewPCG(seed, 5))
	rows := make([][]float32, n)
	for i := range rows {
		for c := range H * D {
			rows[i] = append(rows[i], float32(rng.NormFloat64()+3*math.Sin(float64(c))))
		}
	}
	return rows
}

// statsOf returns the statistics of rows, leaving out the first skip.
func statsOf(rows [][]float32, H, D, skip int) *QueryStats {
	s := NewQueryStats(H, D, skip, false, kernels.Detect()).KeepChannelNorms()
	for q := range H {
		for t, row := range rows {
			s.Add(q, t, row[q*D:], 1, 0)
		}
	}
	return s
}

func TestTriAttentionMatchesDefinition(t *testing.T) {
	const T, D, H, sinks, future = 40, 6, 4, 3, 5
	l := randomAttention(T, H, 2, D)
	l.NextPosition = 55
	rows := randomQueries(T, H, D, 1)
	l.Stats = statsOf(rows, H, D, sinks)
	centers := centersOf(rows[sinks:], H, D)
	check := func(m Metric, centers []QueryCenter) {
		got, err := Score(context.Background(), m, l)
		require.NoError(t, err)
		for h := range 2 {
			want := triAttentionOf(l, h, sinks, future, centers)
			for i := range T {
				if i < sinks {
					require.True(t, math.IsInf(float64(got[h][i]), 1))
					continue
				}
				require.InDelta(t, want[i], got[h][i], 1e-4, "head %d slot %d", h, i)
			}
		}
	}
	plain := mustMetric(t, configured("triattention", "future", future, "sinks", sinks))
	check(plain, centers)

	// From calibration: the queries are not read.
	centers = centersOf(randomQueries(9, H, D, 2), H, D)
	layers := [][]QueryCenter{centers}
	m := mustMetric(t, configured("triattention", "future", future, "sinks", sinks, "centers", layers))
	require.Equal(t, Needs{Keys: true}, m.Needs(T, 0))
	l.Stats = nil
	check(m, centers)
	data, err := json.Marshal(MetricConfigOf(m))
	require.NoError(t, err)
	again, err := ParseMetricConfig(string(data))
	require.NoError(t, err)
	require.Equal(t, m, mustMetric(t, again))

	// From a profile: the same, but not a parameter.
	require.True(t, NeedsCenters(plain))
	require.False(t, NeedsCenters(m))
	profiled := WithCalibration(plain, &CalibrationData{QueryCenters: layers})
	check(profiled, centers)
	require.Equal(t, MetricConfigOf(plain), MetricConfigOf(profiled))

	l.Index = 1
	_, err = Score(context.Background(), m, l)
	require.ErrorContains(t, err, "score layer 1 with triattention: found centers of 1 layers of 4 query heads × 6, expected more layers of 4 × 6")
}

// TestCentersAreMeansOverAllTexts: every token of several texts of different lengths
// counts once, in whichever layers have it.
func TestCentersAreMeansOverAllTexts(t *testing.T) {
	const H, D, skip = 3, 4, 2
	var b CenterBuilder
	var all [][]float32
	for i, n := range []int{7, 30, 12} {
		rows := randomQueries(n, H, D, uint64(i))
		b.Add(1, statsOf(rows, H, D, skip))
		all = append(all, rows[skip:]...)
	}
	got := b.Centers(2, H, D)
	require.Len(t, got, 2)
	for q, want := range centersOf(all, H, D) {
		require.InDeltaSlice(t, want.Mean, got[1][q].Mean, 1e-6)
		require.InDeltaSlice(t, want.ChannelNorms, got[1][q].ChannelNorms, 1e-6)
		require.Equal(t, QueryCenter{make([]float32, D), make([]float32, D/2)}, got[0][q], "a layer without queries")
	}

	// Equal queries have a centre as long as themselves, opposite ones have none.
	one := QueryCenter{Mean: []float32{3, 4}, ChannelNorms: []float32{5}}
	require.InDelta(t, 1, Concentration([][]QueryCenter{{one}}), 1e-12)
	require.InDelta(t, 0.5, Concentration([][]QueryCenter{{one}, {{Mean: []float32{0, 0}, ChannelNorms: []float32{5}}}}), 1e-12)
	require.Zero(t, Concentration(nil))
	// Channels 0 and 2, and 1 and 3, are pairs: lengths 5 and 6 of means, 10 and 12 of queries.
	require.InDelta(t, 0.5, Concentration([][]QueryCenter{{{Mean: []float32{3, 6, 4, 0}, ChannelNorms: []float32{10, 12}}}}), 1e-12)
}

// centersProfile returns a profile of triattention for 2 layers of 1 KV head.
func centersProfile(t *testing.T, centers [][]QueryCenter) *Profile {
	t.Helper()
	id := DefaultProfileIdentity()
	id.Model, id.Metric, id.Protection = "m", MetricConfigOf(mustMetric(t, configured("triattention"))), Protection{Sinks: 4, Window: 1}
	ratios := make([]float64, 99*2)
	for i := range ratios {
		ratios[i] = float64(i/2+1) / 100
	}
	p, err := NewProfile(id, 2, 1, ratios, nil)
	require.NoError(t, err)
	p.QueryCenters = centers
	return p
}

func TestProfilesKeepCenters(t *testing.T) {
	centers := [][]QueryCenter{centersOf(randomQueries(5, 2, 4, 1), 2, 4), centersOf(randomQueries(5, 2, 4, 2), 2, 4)}
	p := centersProfile(t, centers)
	var b bytes.Buffer
	require.NoError(t, p.Write(&b))
	again, err := ReadProfile(&b)
	require.NoError(t, err)
	require.Equal(t, p, again)
	with, err := p.Digest()
	require.NoError(t, err)
	without, err := centersProfile(t, nil).Digest()
	require.NoError(t, err)
	require.NotEqual(t, with, without)

	for want, bad := range map[string][][]QueryCenter{
		"query centers of 1 layers, expected 2":                                       centers[:1],
		"query centers: layer 1: found 1 query heads, expected 2":                     {centers[0], centers[1][:1]},
		"query centers: layer 0, query head 0: found a mean of 3 channels":            {{{Mean: []float32{1, 2, 3}, ChannelNorms: []float32{1}}}, {{}}},
		"found a number that is not finite or a length below 0":                       {{{Mean: []float32{1, 2}, ChannelNorms: []float32{-1}}}, {{Mean: []float32{1, 2}, ChannelNorms: []float32{1}}}},
		"query centers: layer 0: found 0 query heads, expected 0, at least one":       {{}, {}},
		"query centers: layer 1, query head 1: found a mean of 2 channels and 1 leng": {centers[0], {centers[1][0], {Mean: []float32{1, 2}, ChannelNorms: []float32{1}}}},
	} {
		var b bytes.Buffer
		require.NoError(t, centersProfile(t, bad).Write(&b))
		_, err := ReadProfile(&b)
		require.ErrorContains(t, err, want)
	}
}

// TestPoliciesReadCenters: under any allocator, for the prompt and while
// decoding, but only from a profile of this model.
func TestPoliciesReadCenters(t *testing.T) {
	centers := [][]QueryCenter{centersOf(randomQueries(5, 2, 4, 1), 2, 4), centersOf(randomQueries(5, 2, 4, 2), 2, 4)}
	shape := CacheShape{Layers: 2, KVHeads: 1, BytesPerEntry: 16}
	tri := MetricConfig{Name: "triattention"}
	of := func(m Metric) [][]QueryCenter { return m.(triAttention).centers() }
	for name, p := range map[string]Policy{
		"prompt":    {Metric: tri, Ratio: 0.5},
		"allocator": {Metric: tri, Allocator: AllocatorConfig{Name: "lukv"}, Ratio: 0.5},
		"decoding":  {Decode: DecodeConfig{Mode: "periodic", Metric: &tri}},
		"both":      {Metric: tri, Ratio: 0.5, Decode: DecodeConfig{Mode: "periodic"}},
	} {
		require.True(t, p.UsesProfile(), name)
		p.Profile = centersProfile(t, centers)
		c, err := p.Compile("m", shape)
		require.NoError(t, err, name)
		if p.Ratio > 0 {
			require.Equal(t, centers, of(c.Metric()), name)
		}
		if c.Decoding() != nil {
			require.Equal(t, centers, of(c.Decoding().Metric()), name)
			require.False(t, c.Decoding().Needs().PreRoPE, name)
		}
		digest, err := p.Profile.Digest()
		require.NoError(t, err)
		effective := c.Policy()
		require.Equal(t, digest, effective.ProfileDigest, name)
		again, err := effective.Compile("m", shape)
		require.NoError(t, err, name)
		require.Equal(t, c, again, name)

		_, err = p.Compile("other", shape)
		require.ErrorIs(t, err, ErrProfileMismatch, name)
		effective.Profile = nil
		_, err = effective.Compile("m", shape)
		require.Error(t, err, "%s: without the profile it was made with", name)

		p.Profile = centersProfile(t, nil)
		c, err = p.Compile("m", shape)
		if p.Allocator.NeedsProfile() {
			require.NoError(t, err)
			require.Nil(t, of(c.Metric()))
		} else {
			require.ErrorContains(t, err, "found a profile of the metric triattention without centres of queries")
		}
		p.Profile = centersProfile(t, centers)
		_, err = p.Compile("m", CacheShape{Layers: 3, KVHeads: 1, BytesPerEntry: 16})
		require.ErrorIs(t, err, ErrProfileMismatch, name)
	}
	for _, p := range []Policy{{}, {Metric: configured("triattention", "centers", centers), Ratio: 0.5}, {Decode: DecodeConfig{Mode: "tova"}}} {
		require.False(t, p.UsesProfile())
	}
}

// TestTriAttentionWithEmptyCenters: an empty list is the same as none.
func TestTriAttentionWithEmptyCenters(t *testing.T) {
	m := mustMetric(t, MetricConfig{Name: "triattention", Params: `{"centers":[]}`})
	require.True(t, NeedsCenters(m))
	require.True(t, m.Needs(10, 0).Stats)
	_, err := Score(context.Background(), m, randomAttention(10, 4, 2, 6))
	require.NoError(t, err)
}
