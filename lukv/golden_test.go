package lukv

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testgz"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv/solve"
)

// The golden vectors of testdata/eviction (see the README there) come from the
// published implementations. LUKV_GOLDEN_EVICTION names another folder of the
// same layout.

func goldenFolder() string {
	if dir := os.Getenv("LUKV_GOLDEN_EVICTION"); dir != "" {
		return dir
	}
	return filepath.Join("testdata", "eviction")
}

// goldenArray is one tensor of a golden file, widened to float64.
type goldenArray struct {
	shape []int
	data  []float64
}

// row returns the data at the leading indices i.
func (g goldenArray) row(i ...int) []float64 {
	data := g.data
	for n, at := range i {
		size := len(data) / g.shape[n]
		data = data[at*size : (at+1)*size]
	}
	return data
}

func (g goldenArray) float32s(i ...int) []float32 {
	row := g.row(i...)
	out := make([]float32, len(row))
	for j, v := range row {
		out[j] = float32(v)
	}
	return out
}

func readGolden(t testing.TB, path string) map[string]goldenArray {
	t.Helper()
	raw, err := testgz.ReadFile(path)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(raw)
	var header map[string]struct {
		DType  string `json:"dtype"`
		Shape  []int  `json:"shape"`
		Offset [2]int `json:"data_offsets"`
	}
	require.NoError(t, json.Unmarshal(raw[8:8+n], &header))
	out := map[string]goldenArray{}
	for name, h := range header {
		if name == "__metadata__" {
			continue
		}
		data := raw[8+n:][h.Offset[0]:h.Offset[1]]
		g := goldenArray{shape: h.Shape}
		switch h.DType {
		case "F32":
			for ; len(data) > 0; data = data[4:] {
				g.data = append(g.data, float64(math.Float32frombits(binary.LittleEndian.Uint32(data))))
			}
		case "F64":
			for ; len(data) > 0; data = data[8:] {
				g.data = append(g.data, math.Float64frombits(binary.LittleEndian.Uint64(data)))
			}
		case "I32":
			for ; len(data) > 0; data = data[4:] {
				g.data = append(g.data, float64(int32(binary.LittleEndian.Uint32(data))))
			}
		case "U8":
			for _, b := range data {
				g.data = append(g.data, float64(b))
			}
		default:
			t.Fatalf("%s: tensor %s has type %s", path, name, h.DType)
		}
		out[name] = g
	}
	return out
}

type goldenIndex struct {
	Setups map[string]goldenSetup `json:"setups"`
	Cases  []goldenCase           `json:"cases"`
}

type goldenSetup struct {
	Kind    string `json:"kind"`
	Layers  int    `json:"layers"`
	T       int    `json:"T"`
	Heads   int    `json:"query_heads"`
	KVHeads int    `json:"kv_heads"`
	HeadDim int    `json:"head_dim"`
	Hidden  int    `json:"hidden"`
	Suffix  int    `json:"suffix"`
	Steps   int    `json:"steps"`
	Inputs  string `json:"inputs"`
	Outputs string `json:"outputs"`
}

type goldenCase struct {
	ID             string       `json:"id"`
	Kind           string       `json:"kind"`
	Metric         string       `json:"metric"`
	Allocator      string       `json:"allocator"`
	Setup          string       `json:"setup"`
	Params         goldenParams `json:"params"`
	Ratios         []float64    `json:"ratios"`
	Scores         string       `json:"scores"`
	Keep           string       `json:"keep"`
	Keys           string       `json:"keys"`
	Output         string       `json:"output"`
	Importance     string       `json:"importance"`
	ValueNorms     string       `json:"value_norms"`
	KeepCounts     string       `json:"keep_counts"`
	FinalScores    string       `json:"final_scores"`
	ScoresPerRatio bool         `json:"scores_per_ratio"`
	Ambiguous      []float64    `json:"ambiguous"`
	FirstStageTied []float64    `json:"first_stage_tied"`
	KeptPerHead    [][]int      `json:"kept_per_head"`
	KeptPerLayer   [][]int      `json:"kept_per_layer"`
	KeepFractions  []float64    `json:"keep_fractions"`
	KeepThreshold  string       `json:"keep_threshold"`
	KeepUniform    string       `json:"keep_uniform"`
	HeadLens       [][]int      `json:"head_lens"`
	TiesPossible   bool         `json:"ties_possible"`
	Curve          string       `json:"curve"`
	CurveLayer     int          `json:"curve_layer"`
	Events         []int        `json:"events_after_position"`
	CacheLens      []int        `json:"cache_len_after_each_step"`

	LayerBudgets json.RawMessage `json:"layer_budgets"`
	Preferences  json.RawMessage `json:"preferences"`
	Runs         []struct {
		BaseCapacity int  `json:"base_capacity"`
		Normalize    bool `json:"normalize"`

		Layerwise bool    `json:"layerwise"`
		Ratio     float64 `json:"ratio"`
	} `json:"runs"`
	Tol struct {
		ScoresRel    float64 `json:"scores_rel"`
		PrefRel      float64 `json:"pref_rel"`
		ScoresAbs    float64 `json:"scores_abs"`
		Rel          float64 `json:"rel"`
		Abs          float64 `json:"abs"`
		PerHeadCount float64 `json:"per_head_count"`
		Total        float64 `json:"total"`
	} `json:"tol"`
}

type goldenParams struct {
	Window         int     `json:"window"`
	Kernel         int     `json:"kernel"`
	Pool           string  `json:"pool"`
	Group          string  `json:"group"`
	GroupOrder     string  `json:"group_order"`
	Pad            string  `json:"pad"`
	Future         int     `json:"n_future"`
	Sinks          int     `json:"n_sink"`
	Covariance     bool    `json:"covariance"`
	VNorm          bool    `json:"vnorm"`
	Epsilon        float64 `json:"epsilon"`
	FirstStage     float64 `json:"first_stage"`
	Mass           float64 `json:"mass"`
	Plus           bool    `json:"plus"`
	Prefix         int     `json:"prefix"`
	Start          int     `json:"start"`
	Chunks         []int   `json:"chunks"`
	Gamma          float64 `json:"gamma"`
	Tau1           float64 `json:"tau1"`
	Tau2           float64 `json:"tau2"`
	Cascading      bool    `json:"cascading"`
	Inner          string  `json:"inner"`
	Alpha          float64 `json:"alpha"`
	FloorAlpha     float64 `json:"floor_alpha"`
	Sink           int     `json:"sink"`
	Block          int     `json:"block"`
	Ratio          float64 `json:"ratio"`
	Selection      string  `json:"selection"`
	Metric         string  `json:"metric"`
	Interval       int     `json:"interval"`
	TargetSize     int     `json:"target_size"`
	CacheSize      int     `json:"cache_size"`
	Heavy          int     `json:"heavy"`
	Recent         int     `json:"recent"`
	Beta           float64 `json:"beta"`
	Suffix         int     `json:"suffix"`
	Steps          int     `json:"steps"`
	MaxCompression float64 `json:"max_compression"`
	Scope          string  `json:"scope"`
}

// goldenAttention is one attention layer of a setup with queries computed from
// its input in float64.
type goldenAttention struct {
	goldenSetup
	cpu          kernels.CPU
	rows         int         // rows of hidden
	keys, values [][]float32 // [K][rows*D]
	pre, post    []float32   // [rows][H*D] queries before and after RoPE
	output       goldenArray // o_weight [M, H*D]
	invFreq      []float64
	// next_hidden's own query, key and value, where the file has one.
	nextQuery []float32 // [H*D]
	nextKey   []float32 // [K*D]
	nextValue []float32 // [K*D]
}

// project returns x Wᵀ + bias for each row of x, [rows][out].
func project(x, w, bias goldenArray) []float64 {
	M := w.shape[1]
	rows := len(x.data) / M
	out := make([]float64, 0, rows*w.shape[0])
	for r := range rows {
		for o := range w.shape[0] {
			var s float64
			if bias.data != nil {
				s = bias.data[o]
			}
			for i, v := range w.row(o) {
				s += v * x.data[r*M+i]
			}
			out = append(out, s)
		}
	}
	return out
}

// rotate returns rows of heads, [rows][heads*D], after RoPE, row i at first+i.
func rotate(x []float64, heads, D, first int, invFreq []float64) []float64 {
	out := slices.Clone(x)
	width := heads * D
	for r := range len(x) / width {
		for h := range heads {
			v := out[r*width+h*D:]
			for i, f := range invFreq {
				s, c := math.Sincos(float64(first+r) * f)
				a, b := v[i], v[i+D/2]
				v[i], v[i+D/2] = a*c-b*s, b*c+a*s
			}
		}
	}
	return out
}

func narrow(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}

// byHead turns [rows][K*D] into [K][rows*D].
func byHead(x []float64, K, D int) [][]float32 {
	out := make([][]float32, K)
	for r := range len(x) / (K * D) {
		for h := range K {
			out[h] = append(out[h], narrow(x[(r*K+h)*D:(r*K+h+1)*D])...)
		}
	}
	return out
}

func newGoldenAttention(t testing.TB, s goldenSetup, in map[string]goldenArray, prefix string) *goldenAttention {
	t.Helper()
	get := func(name string) goldenArray {
		g, ok := in[prefix+name]
		require.True(t, ok, "tensor %s%s", prefix, name)
		return g
	}
	a := &goldenAttention{goldenSetup: s, output: get("o_weight"), invFreq: in["inv_freq"].data}
	hidden := get("hidden")
	a.rows = hidden.shape[0]
	q := project(hidden, get("q_weight"), in[prefix+"q_bias"])
	a.pre = narrow(q)
	a.post = narrow(rotate(q, s.Heads, s.HeadDim, 0, a.invFreq))
	k := rotate(project(hidden, get("k_weight"), in[prefix+"k_bias"]), s.KVHeads, s.HeadDim, 0, a.invFreq)
	v := project(hidden, get("v_weight"), in[prefix+"v_bias"])
	a.keys, a.values = byHead(k, s.KVHeads, s.HeadDim), byHead(v, s.KVHeads, s.HeadDim)
	// The file's own keys, in the reference's float32, settle near ties.
	for h := range s.KVHeads {
		for i, want := range get("keys").row(h) {
			require.InDelta(t, want, a.keys[h][i], 1e-4, "%skeys of head %d at %d", prefix, h, i)
			a.keys[h][i] = float32(want)
		}
		for i, want := range get("values").row(h) {
			require.InDelta(t, want, a.values[h][i], 1e-4, "%svalues of head %d at %d", prefix, h, i)
			a.values[h][i] = float32(want)
		}
	}
	if next, ok := in[prefix+"next_hidden"]; ok {
		a.nextQuery = narrow(rotate(project(next, get("q_weight"), in[prefix+"q_bias"]), s.Heads, s.HeadDim, s.T, a.invFreq))
		a.nextKey = narrow(rotate(project(next, get("k_weight"), in[prefix+"k_bias"]), s.KVHeads, s.HeadDim, s.T, a.invFreq))
		a.nextValue = narrow(project(next, get("v_weight"), in[prefix+"v_bias"]))
	}
	return a
}

// layer returns the first T positions as a metric sees them after prefill.
func (a *goldenAttention) layer(t testing.TB, m Metric, T, share int) *Layer {
	t.Helper()
	D, width := a.HeadDim, a.Heads*a.HeadDim
	view := func(x [][]float32) func(h, lo, hi int, _ []float32) []float32 {
		return func(h, lo, hi int, _ []float32) []float32 { return x[h][lo*D : hi*D] }
	}
	l := &Layer{
		T: T, Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: D,
		Keys: view(a.keys), Values: view(a.values),
		NextPosition: T, InvFreq: a.invFreq, Share: share, CPU: a.cpu,
	}
	l.OutputDim = a.output.shape[0]
	l.Output = func(q, lo, hi int, dst []float32) []float32 {
		dst = dst[:0]
		for m := lo; m < hi; m++ {
			dst = append(dst, narrow(a.output.row(m)[q*D:(q+1)*D])...)
		}
		return dst
	}
	n := m.Needs(T, share)
	if n.Window > 0 {
		l.Queries = NewQueryWindow(a.Heads, D, n.Window)
		for p := range T {
			l.Queries.Append(p, a.post[p*width:])
		}
	}
	if n.Stats {
		l.Stats = NewQueryStats(a.Heads, D, n.StatsSkip, n.Covariance, a.cpu).KeepChannelNorms()
		for q := range a.Heads {
			l.Stats.Add(q, 0, a.pre[q*D:], T, width)
		}
	}
	if n.ColumnSums {
		l.Sums = NewColumnSums(a.Heads, a.KVHeads, 1)
		for h := range a.KVHeads {
			require.NoError(t, l.Sums.Attend(context.Background(), l, h, 0, a.post, T, width))
		}
	}
	return l
}

// golden runs cases and counts its comparisons.
type golden struct {
	cpu    kernels.CPU
	index  goldenIndex
	files  map[string]map[string]goldenArray
	layers map[string]*goldenAttention
	params map[string]goldenParams // of each metric name
	checks int
}

func (g *golden) file(t testing.TB, name string) map[string]goldenArray {
	if g.files[name] == nil {
		g.files[name] = readGolden(t, filepath.Join(goldenFolder(), name))
	}
	return g.files[name]
}

func (g *golden) out(t testing.TB, c goldenCase, name string) goldenArray {
	t.Helper()
	x, ok := g.file(t, g.index.Setups[c.Setup].Outputs)[name]
	require.True(t, ok, "tensor %q", name)
	return x
}

func (g *golden) attention(t testing.TB, setup, prefix string) *goldenAttention {
	t.Helper()
	key := setup + "/" + prefix
	if g.layers[key] == nil {
		s := g.index.Setups[setup]
		g.layers[key] = newGoldenAttention(t, s, g.file(t, s.Inputs), prefix)
		g.layers[key].cpu = g.cpu
	}
	return g.layers[key]
}

// metric builds the metric that the vectors call name, with its parameters
// as listed by the case or else read off the name.
func (g *golden) metric(t testing.TB, name string) Metric {
	t.Helper()
	p, known := g.params[name]
	kind, rest, _ := strings.Cut(name, ".")
	c := MetricConfig{Name: name}
	switch kind {
	case "snapkv", "snapkv_max":
		if !known {
			_, err := fmt.Sscanf(rest, "w%d.k%d", &p.Window, &p.Kernel)
			require.NoError(t, err, "metric %s", name)
			p.Pool = map[string]string{"snapkv": "avg", "snapkv_max": "max"}[kind]
		}
		c = configured("snapkv", "window", p.Window, "kernel", p.Kernel, "pool", p.Pool)
	case "ea":
		if !known {
			p = goldenParams{Future: 512, Sinks: 4, Covariance: true, VNorm: true}
			switch rest {
			case "":
			case "eps":
				p.Epsilon = 0.02
			case "nocov":
				p.Covariance = false
			case "novnorm":
				p.VNorm = false
			case "meanonly":
				p.Covariance, p.VNorm = false, false
			default:
				t.Fatalf("metric %s: no case lists its parameters", name)
			}
		}
		c = configured("expected_attention", "future", p.Future, "sinks", p.Sinks,
			"covariance", p.Covariance, "value_norm", p.VNorm, "epsilon", p.Epsilon)
	case "streaming":
		if !known {
			p.Sinks = 4
		}
		c = configured("streaming_llm", "sinks", p.Sinks)
	}
	return mustMetric(t, c)
}

// pad returns what the reference adds to the largest score to secure an entry.
func (g *golden) pad(name string) float32 {
	if g.params[name].Pad == "max" || strings.HasPrefix(name, "snapkv_max") {
		return 0
	}
	return 1
}

// scores computes a metric as the vectors have it: protection written as the
// reference's number instead of the flag.
func (g *golden) scores(t testing.TB, a *goldenAttention, name string, share int) Scores {
	t.Helper()
	m := g.metric(t, name)
	s, err := Score(context.Background(), m, a.layer(t, m, a.T, share))
	require.NoError(t, err)
	s.ReplaceInf(g.pad(name))
	return s
}

func (g *golden) compareScores(t testing.TB, c goldenCase, got []float32, want []float64, where string) {
	t.Helper()
	require.Len(t, got, len(want), where)
	g.checks++
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= c.Tol.ScoresAbs+c.Tol.ScoresRel*math.Abs(w)) {
			t.Fatalf("%s, entry %d: got %g, want %g, off by %g", where, i, got[i], w, d)
		}
	}
}

// compareMask compares a kept set with a 0/1 row. Where the reference cut
// through equal scores, only the number of entries and the absence of
// inversions can be checked.
func (g *golden) compareMask(t testing.TB, kept []int32, want []float64, scores []float32, ambiguous bool, where string) {
	t.Helper()
	g.checks++
	var ids []int32
	for i, v := range want {
		if v != 0 {
			ids = append(ids, int32(i))
		}
	}
	if !ambiguous {
		require.Equal(t, ids, append([]int32(nil), kept...), where)
		return
	}
	require.Len(t, kept, len(ids), where)
	mask := make([]bool, len(scores))
	lowest := float32(math.Inf(1))
	for _, i := range kept {
		mask[i] = true
		lowest = min(lowest, scores[i])
	}
	for i, s := range scores {
		require.False(t, !mask[i] && s > lowest, "%s: dropped entry %d with %g, kept one with %g", where, i, s, lowest)
	}
}

// truncated is older kvpress' uniform budget: no floor at one entry.
func truncated(T int, ratio float64) int { return int(float64(T) * (1 - ratio)) }

var goldenKinds = map[string]func(g *golden, t *testing.T, c goldenCase){
	"wrapper":        (*golden).wrapper,
	"evicted_step":   (*golden).evictedStep,
	"pyramid":        (*golden).pyramid,
	"adakv_paper":    (*golden).adaPaper,
	"oracle":         (*golden).oracle,
	"lu_profile":     (*golden).profile,
	"scorer":         (*golden).scorer,
	"block":          (*golden).block,
	"rerotate":       (*golden).rerotate,
	"decoding":       (*golden).decoding,
	"decoding_ratio": (*golden).decoding,
	"tova_official":  (*golden).streamingForm,
	"h2o_official":   (*golden).streamingForm,

	"defensive":       (*golden).defensive,
	"layer_defensive": (*golden).defensive,
	"cake":            (*golden).cake,
	"cake_official":   (*golden).cake,
	"kvzip":           (*golden).kvzip,
	"kvzip_official":  (*golden).kvzip,
}

// TestGolden runs every case on every instruction set.
func TestGolden(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(goldenFolder(), "cases.json"))
	require.NoError(t, err)
	for _, cpu := range kernels.Variants() {
		g := &golden{
			cpu: cpu, files: map[string]map[string]goldenArray{}, layers: map[string]*goldenAttention{},
			params: map[string]goldenParams{},
		}
		require.NoError(t, json.Unmarshal(raw, &g.index))
		t.Run(cpu.String(), g.all)
	}
}

func (g *golden) all(t *testing.T) {
	for _, c := range g.index.Cases {
		if c.Kind == "scorer" {
			g.params[c.Metric] = c.Params
		}
	}
	for _, c := range g.index.Cases {
		name := c.ID
		if c.Kind == "lu_profile" {
			name = c.Setup + "/" + c.ID
		}
		t.Run(name, func(t *testing.T) {
			// Not in parallel: the cases share the files they have read and a count.
			run, ok := goldenKinds[c.Kind]
			require.True(t, ok, "no runner for cases of kind %q", c.Kind)
			before := g.checks
			run(g, t, c)
			require.Greater(t, g.checks, before, "the case checked nothing")
		})
	}
	line := fmt.Sprintf("golden eviction on %v: %d cases, %d checks, none skipped", g.cpu, len(g.index.Cases), g.checks)
	t.Log(line)
	fmt.Println(line)
	require.Positive(t, g.checks)
}

// critical returns the refined scores of a layer, protected entries weighted
// like any other, as the reference does; the inner scores decide first(h)
// entries of head h. Secured entries hold 3e38, the vectors' stand-in for the
// largest float.
func (g *golden) critical(t testing.TB, a *goldenAttention, c goldenCase, inner Scores, first func(h int) int) Scores {
	t.Helper()
	l := a.layer(t, kNorm{}, a.T, 0)
	out := make(Scores, len(inner))
	norms, err := l.OutputNorms(context.Background())
	require.NoError(t, err)
	for h, row := range inner {
		out[h] = make([]float32, len(row))
		weighByNorms(out[h], row, norms[h], first(h), c.Params.Epsilon)
		for i, v := range out[h] {
			if math.IsInf(float64(v), 1) {
				out[h][i] = 3e38
			}
		}
	}
	return out
}

func (g *golden) scorer(t *testing.T, c goldenCase) {
	a := g.attention(t, c.Setup, "")
	keep := g.out(t, c, c.Keep)
	for i, ratio := range c.Ratios {
		n := truncated(a.T, ratio)
		s := g.scores(t, a, strings.TrimPrefix(c.Metric, "critical."), n)
		if strings.HasPrefix(c.Metric, "critical.") {
			s = g.critical(t, a, c, s, func(int) int { return int(float64(a.T) * (1 - ratio) * c.Params.FirstStage) })
		}
		for h := range a.KVHeads {
			kept := Keep(nil, s[h], n, Protection{})
			where := fmt.Sprintf("ratio %g, head %d", ratio, h)
			tied := slices.Contains(c.Ambiguous, ratio)
			switch {
			case strings.HasPrefix(c.Metric, "critical."):
				if !slices.Contains(c.FirstStageTied, ratio) {
					g.compareScores(t, c, s[h], g.out(t, c, c.Scores).row(i, h), where)
				}
				g.compareMask(t, kept, keep.row(i, h), s[h], tied, where)
			case c.Metric != "streaming":
				if i == 0 {
					g.compareScores(t, c, s[h], g.out(t, c, c.Scores).row(h), where)
				}
				g.compareMask(t, kept, keep.row(i, h), s[h], tied, where)
			case tied:
				// The reference is left with ties among its sinks; the rule
				// here is the newest entry and the first ones.
				g.compareMask(t, kept, keep.row(i, h), s[h], true, where)
			default:
				g.compareMask(t, kept, keep.row(i, h), s[h], false, where)
				table := make([]float32, a.T)
				for _, at := range kept {
					table[at] = 1
				}
				g.compareScores(t, c, table, g.out(t, c, c.Scores).row(i, h), where)
			}
		}
	}
}

// selection returns the kept sets of a head-wise selection, [K], and the scores
// they were made from.
func (g *golden) selection(t *testing.T, c goldenCase, ratio float64) ([][]int32, Scores) {
	t.Helper()
	a := g.attention(t, c.Setup, "")
	s := g.scores(t, a, c.Params.Inner, truncated(a.T, ratio))
	var budgets []int
	var prot Protection
	switch c.Allocator {
	case "adakv":
		ada := mustAllocator(t, "adakv", "alpha", c.Params.Alpha)
		all, err := Allocate(ada, Demand{T: a.T, Layers: 1, KVHeads: a.KVHeads, Ratio: ratio, Rounding: kvpressRounding()}, []Scores{s})
		require.NoError(t, err)
		budgets = all[0]
	case "criticalada":
		ada := mustAllocator(t, "adakv", "alpha", c.Params.Alpha)
		d := Demand{T: a.T, Layers: 1, KVHeads: a.KVHeads, Ratio: ratio, Rounding: kvpressRounding()}
		all, err := Allocate(ada, d, []Scores{s})
		require.NoError(t, err)
		budgets = all[0]
		s = g.critical(t, a, c, s, func(h int) int {
			return max(int(float64(budgets[h])*c.Params.FirstStage), min(ada.(budgetGuarantor).GuaranteedBudget(d), budgets[h]))
		})
	case "lukv":
		// One layer of a profile, read at the nearest of its 99 levels.
		budgets = RoundLocal(g.out(t, c, c.Curve).row(ProfileIndex(ratio), c.CurveLayer), a.T, kvpressRounding().Heads, false)
		prot = Protection{Sinks: c.Params.Sink, Window: c.Params.Window}
	default:
		t.Fatalf("no runner for allocator %q", c.Allocator)
	}
	kept := make([][]int32, a.KVHeads)
	for h := range kept {
		kept[h] = Keep(nil, s[h], budgets[h], prot)
	}
	return kept, s
}

func (g *golden) wrapper(t *testing.T, c goldenCase) {
	keep := g.out(t, c, c.Keep)
	for i, ratio := range c.Ratios {
		kept, s := g.selection(t, c, ratio)
		tied := slices.Contains(c.Ambiguous, ratio)
		total := 0
		for h := range kept {
			where := fmt.Sprintf("ratio %g, head %d", ratio, h)
			total += len(kept[h]) - c.KeptPerHead[i][h]
			if tied {
				// Heads that tie with each other may share differently.
				continue
			}
			require.Len(t, kept[h], c.KeptPerHead[i][h], where)
			g.compareMask(t, kept[h], keep.row(i, h), s[h], false, where)
		}
		require.Zero(t, total, "entries of the layer at ratio %g", ratio)
		g.checks++
		if tied && c.Allocator == "adakv" {
			// No dropped entry of the layer may beat one that was kept for
			// its score and not by the safeguard.
			safe := int(c.Params.Alpha * float64(truncated(len(s[0]), ratio)))
			lowest, best := float32(math.Inf(1)), float32(math.Inf(-1))
			for h := range kept {
				secured := Keep(nil, s[h], safe, Protection{})
				for at, v := range s[h] {
					switch {
					case !slices.Contains(kept[h], int32(at)):
						best = max(best, v)
					case !slices.Contains(secured, int32(at)):
						lowest = min(lowest, v)
					}
				}
			}
			require.LessOrEqual(t, best, lowest, "ratio %g", ratio)
			g.checks++
		}
	}
}

// evictedStep feeds next_hidden to the ragged cache that a selection left.
func (g *golden) evictedStep(t *testing.T, c goldenCase) {
	a := g.attention(t, c.Setup, "")
	var kept [][]int32
	for _, w := range g.index.Cases {
		if w.Kind == "wrapper" && w.ID == c.Setup+"/"+c.Params.Selection {
			kept, _ = g.selection(t, w, c.Params.Ratio)
		}
	}
	if kept == nil { // a metric on its own: the uniform share
		n := truncated(a.T, c.Params.Ratio)
		for _, row := range g.scores(t, a, c.Params.Selection, n) {
			kept = append(kept, Keep(nil, row, n, Protection{}))
		}
	}
	want := g.out(t, c, c.Output)
	D, G := a.HeadDim, a.Heads/a.KVHeads
	for h := range a.KVHeads {
		var keys, values []float32
		for _, p := range kept[h] {
			keys = append(keys, a.keys[h][int(p)*D:int(p+1)*D]...)
			values = append(values, a.values[h][int(p)*D:int(p+1)*D]...)
		}
		keys = append(keys, a.nextKey[h*D:(h+1)*D]...)
		values = append(values, a.nextValue[h*D:(h+1)*D]...)
		l := &Layer{
			T: len(kept[h]) + 1, HeadDim: D,
			Keys: func(_, lo, hi int, _ []float32) []float32 { return keys[lo*D : hi*D] },
		}
		for q := h * G; q < (h+1)*G; q++ {
			p := attentionOf(l, 0, a.nextQuery[q*D:(q+1)*D], a.T)
			g.checks++
			for d := range D {
				var y float64
				for i, w := range p {
					y += w * float64(values[i*D+d])
				}
				require.InDelta(t, want.row(q)[d], y, c.Tol.Abs, "query head %d", q)
			}
		}
	}
}

func (g *golden) pyramid(t *testing.T, c goldenCase) {
	setup := g.index.Setups[c.Setup]
	pyramid := mustAllocator(t, "pyramidkv", "window", c.Params.Window, "beta", c.Params.Beta)
	inner := fmt.Sprintf("%s.w%d.k%d", c.Params.Inner, c.Params.Window, c.Params.Kernel)
	keep := g.out(t, c, c.Keep)
	var want [][]int
	require.NoError(t, json.Unmarshal(c.LayerBudgets, &want))
	for i, ratio := range c.Ratios {
		budgets, err := Allocate(pyramid, Demand{T: setup.T, Layers: setup.Layers, KVHeads: setup.KVHeads, Ratio: ratio, Rounding: kvpressRounding()}, nil)
		require.NoError(t, err)
		for l := range setup.Layers {
			s := g.scores(t, g.attention(t, c.Setup, fmt.Sprintf("l%d.", l)), inner, 0)
			for h := range setup.KVHeads {
				where := fmt.Sprintf("ratio %g, layer %d, head %d", ratio, l, h)
				require.Equal(t, want[i][l], budgets[l][h], where)
				g.compareMask(t, Keep(nil, s[h], budgets[l][h], Protection{}), keep.row(i, l, h), s[h],
					slices.Contains(c.Ambiguous, ratio), where)
			}
		}
	}
}

// adaPaper is the method's own repository: capacities, window on top.
func (g *golden) adaPaper(t *testing.T, c goldenCase) {
	a := g.attention(t, c.Setup, "")
	w := c.Params.Window
	order := map[string]string{"reduce-then-pool": "reduce-then-pool", "pool-then-mean": "pool-then-reduce"}[c.Params.GroupOrder]
	m := mustMetric(t, configured("snapkv", "window", w, "kernel", c.Params.Kernel,
		"pool", strings.TrimSuffix(c.Params.Pool, "pool"), "group", c.Params.Group, "order", order))
	s, err := Score(context.Background(), m, a.layer(t, m, a.T, 0))
	require.NoError(t, err)
	open := make(Scores, len(s))
	for h := range s {
		open[h] = s[h][:a.T-w]
		g.compareScores(t, c, open[h], g.out(t, c, c.Scores).row(h), fmt.Sprintf("head %d", h))
	}
	keep := g.out(t, c, c.Keep)
	for i, run := range c.Runs {
		// Through the allocator, whose capacity counts the window too.
		ada := mustAllocator(t, "adakv", "form", "interpolate", "alpha", c.Params.FloorAlpha, "normalize", run.Normalize)
		d := Demand{T: a.T, Layers: 1, KVHeads: a.KVHeads, Protection: m.Protection(a.T, 0), Rounding: kvpressRounding()}
		all, err := Allocate(ada, d.DemandTokens(run.BaseCapacity), []Scores{s})
		require.NoError(t, err)
		budgets := all[0]
		for h := range s {
			where := fmt.Sprintf("run %d, head %d", i, h)
			require.Equal(t, c.HeadLens[i][h], budgets[h], where)
			g.compareMask(t, Keep(nil, s[h], budgets[h], d.Protection), keep.row(i, h), s[h], c.TiesPossible, where)
		}
	}
}

func (g *golden) oracle(t *testing.T, c goldenCase) {
	setup := g.index.Setups[c.Setup]
	T, D, G := setup.T, setup.HeadDim, setup.Heads/setup.KVHeads
	o, err := NewOracle(setup.Layers, setup.Heads, setup.KVHeads, T)
	require.NoError(t, err)
	for l := range setup.Layers {
		a := g.attention(t, c.Setup, fmt.Sprintf("l%d.", l))
		require.NoError(t, o.Include(l))
		all := &Layer{
			T: a.rows, HeadDim: D,
			Keys: func(h, lo, hi int, _ []float32) []float32 { return a.keys[h][lo*D : hi*D] },
		}
		for q := range setup.Heads {
			gram := NewOutputGram(D)
			for m := range a.output.shape[0] {
				gram.Add(narrow(a.output.row(m)[q*D : (q+1)*D]))
			}
			require.NoError(t, o.SetNorms(l, q, gram.Norms(nil, a.values[q/G][:T*D])))
			for p := T + c.Params.Suffix; p < T+c.Params.Suffix+c.Params.Steps; p++ {
				probs := attentionOf(all, q/G, a.post[(p*setup.Heads+q)*D:][:D], p)
				require.NoError(t, o.Observe(l, q, narrow(probs[:T])))
			}
		}
	}
	close := func(want, got float64, where string) {
		require.LessOrEqual(t, math.Abs(got-want), c.Tol.Abs+c.Tol.Rel*math.Abs(want), "%s: got %g, want %g", where, got, want)
	}
	importance, err := o.Importance(NormLayer)
	require.NoError(t, err)
	for l := range setup.Layers {
		div, err := o.Divisor(NormLayer, l)
		require.NoError(t, err)
		for q := range setup.Heads {
			g.checks++
			for j, want := range g.out(t, c, c.ValueNorms).row(l, q) {
				close(want, float64(o.norms[l][q*T+j])/div, fmt.Sprintf("value norm of layer %d, query head %d, position %d", l, q, j))
			}
		}
		for h := range setup.KVHeads {
			g.checks++
			for j, want := range g.out(t, c, c.Importance).row(l, h) {
				close(want, float64(importance[l][h][j]), fmt.Sprintf("importance of layer %d, head %d, position %d", l, h, j))
			}
		}
	}
}

func (g *golden) profile(t *testing.T, c goldenCase) {
	importance, scores := g.out(t, c, c.Importance), g.out(t, c, c.Scores)
	table := func(x goldenArray) [][][]float32 {
		out := make([][][]float32, x.shape[0])
		for l := range out {
			for h := range x.shape[1] {
				out[l] = append(out[l], x.float32s(l, h))
			}
		}
		return out
	}
	if c.Params.Metric != "" { // the metric itself on the stack's layers
		for l := range scores.shape[0] {
			a := g.attention(t, c.Setup, fmt.Sprintf("l%d.", l))
			for h, got := range g.scores(t, a, c.Params.Metric, 0) {
				want := scores.row(l, h)
				g.checks++
				for i, w := range want {
					require.InEpsilon(t, 2+w, 2+float64(got[i]), 2e-5, "score of layer %d, head %d, slot %d", l, h, i)
				}
			}
		}
	}
	scope := map[string]string{"global": solve.ScopeGlobal, "per-layer": solve.ScopePerLayer}[c.Params.Scope]
	prot := Protection{Sinks: c.Params.Sink, Window: c.Params.Window}
	set, err := solveLevels(context.Background(), table(importance), table(scores), prot, solve.SweepOptions{Scope: scope}, nil)
	require.NoError(t, err)
	counts := g.out(t, c, c.KeepCounts)
	for i, level := range set.Keep {
		drift := 0
		for l := range level {
			for h, got := range level[l] {
				want := int(counts.row(i, l)[h])
				drift += got - want
				require.LessOrEqual(t, math.Abs(float64(got-want)), c.Tol.PerHeadCount,
					"level %d, layer %d, head %d: got %d, want %d", i+1, l, h, got, want)
			}
		}
		require.LessOrEqual(t, math.Abs(float64(drift)), c.Tol.Total, "total of level %d", i+1)
		g.checks++
	}
}

func (g *golden) block(t *testing.T, c goldenCase) {
	a := g.attention(t, c.Setup, "")
	keep := g.out(t, c, c.Keep)
	m := mustMetric(t, configured(c.Params.Inner, "block", c.Params.Block))
	for i, ratio := range c.Ratios {
		n := truncated(a.T, ratio)
		s, err := Score(context.Background(), m, a.layer(t, m, a.T, max(n, 1)))
		require.NoError(t, err)
		for h := range a.KVHeads {
			g.compareMask(t, Keep(nil, s[h], n, Protection{}), keep.row(i, h), s[h],
				slices.Contains(c.Ambiguous, ratio), fmt.Sprintf("ratio %g, head %d", ratio, h))
		}
	}
}

func (g *golden) rerotate(t *testing.T, c goldenCase) {
	a := g.attention(t, c.Setup, "")
	n := truncated(a.T, c.Params.Ratio)
	s := g.scores(t, a, c.Params.Inner, n)
	want := g.out(t, c, c.Keys)
	for h := range a.KVHeads {
		kept := Keep(nil, s[h], n, Protection{})
		var keys []float32
		for _, p := range kept {
			keys = append(keys, a.keys[h][int(p)*a.HeadDim:][:a.HeadDim]...)
		}
		require.NoError(t, Rerotate(keys, kept, a.invFreq))
		g.checks++
		for i, w := range want.row(h) {
			require.InDelta(t, w, keys[i], c.Tol.Abs, "head %d, row %d", h, i/a.HeadDim)
		}
	}
}

// goldenCache is a ragged cache in its simplest form: the kept positions.
type goldenCache struct {
	a   *goldenAttention
	pos [][]int32 // [K]
}

func newGoldenCache(a *goldenAttention, T int) *goldenCache {
	c := &goldenCache{a: a, pos: make([][]int32, a.KVHeads)}
	for p := range T {
		c.append(p)
	}
	return c
}

func (c *goldenCache) append(p int) {
	for h := range c.pos {
		c.pos[h] = append(c.pos[h], int32(p))
	}
}

func (c *goldenCache) cut(kept [][]int32) {
	for h := range kept {
		for i, slot := range kept[h] {
			c.pos[h][i] = c.pos[h][slot]
		}
		c.pos[h] = c.pos[h][:len(kept[h])]
	}
}

func (c *goldenCache) layer(next int) *Layer {
	D := c.a.HeadDim
	rows := func(x [][]float32) func(h, lo, hi int, dst []float32) []float32 {
		return func(h, lo, hi int, dst []float32) []float32 {
			dst = dst[:0]
			for _, p := range c.pos[h][lo:hi] {
				dst = append(dst, x[h][int(p)*D:int(p+1)*D]...)
			}
			return dst
		}
	}
	lens := make([]int, len(c.pos))
	for h := range lens {
		lens[h] = len(c.pos[h])
	}
	return &Layer{
		Lens: lens, Heads: c.a.Heads, KVHeads: c.a.KVHeads, HeadDim: D,
		Keys: rows(c.a.keys), Values: rows(c.a.values),
		Positions:    func(h int) []int32 { return c.pos[h] },
		NextPosition: next, InvFreq: c.a.invFreq, CPU: c.a.cpu,
	}
}

// ids returns the positions that head h holds.
func (c *goldenCache) ids(h int) []int32 { return slices.Clone(c.pos[h]) }

func (g *golden) decoding(t *testing.T, c goldenCase) {
	a := g.attention(t, c.Setup, "")
	m := g.metric(t, c.Params.Metric)
	d, err := NewDecoding(DecodeConfig{
		Mode: "periodic", Interval: c.Params.Interval, TargetSize: c.Params.TargetSize, Ratio: c.Params.Ratio,
	}, m)
	require.NoError(t, err)
	cache, state := newGoldenCache(a, a.T), d.NewLayer(a.Heads, a.KVHeads, a.HeadDim)
	width := a.Heads * a.HeadDim
	keep, event := g.out(t, c, c.Keep), 0
	for step := range a.Steps {
		p := a.T + step
		cache.append(p)
		state.Record(p, a.post[p*width:], a.pre[p*width:], 1, width)
		kept, err := state.After(context.Background(), cache.layer(p+1), 1, false, nil)
		require.NoError(t, err)
		if kept != nil {
			require.Less(t, event, len(c.Events), "an event too many after position %d", p)
			require.Equal(t, c.Events[event], p, "position of event %d", event)
			cache.cut(kept)
			for h := range a.KVHeads {
				g.compareMask(t, cache.ids(h), keep.row(event, h), nil, false, fmt.Sprintf("event %d, head %d", event, h))
			}
			event++
		}
		for h := range a.KVHeads {
			require.Len(t, cache.pos[h], c.CacheLens[step], "step %d, head %d", step, h)
		}
		g.checks++
	}
	require.Equal(t, len(c.Events), event)
}

// streamingForm runs H2O and TOVA, which cut after every pass.
func (g *golden) streamingForm(t *testing.T, c goldenCase) {
	a := g.attention(t, c.Setup, "")
	cfg := DecodeConfig{Mode: "tova", TargetSize: c.Params.CacheSize}
	if c.Kind == "h2o_official" {
		cfg = DecodeConfig{Mode: "h2o", TargetSize: c.Params.Heavy + c.Params.Recent, Metric: &MetricConfig{"h2o", fmt.Sprintf(`{"window":%d}`, c.Params.Recent)}}
	}
	d, err := NewDecoding(cfg, nil)
	require.NoError(t, err)
	cache, state := newGoldenCache(a, 0), d.NewLayer(a.Heads, a.KVHeads, a.HeadDim)
	width := a.Heads * a.HeadDim
	keep := g.out(t, c, c.Keep)
	first, n := 0, a.T
	for step := range a.Steps + 1 {
		for p := first; p < first+n; p++ {
			cache.append(p)
		}
		l := cache.layer(first + n)
		state.Record(first, a.post[first*width:], nil, n, width)
		if sums := state.Sums(); sums != nil {
			for h := range a.KVHeads {
				require.NoError(t, sums.Attend(context.Background(), l, h, first, a.post[first*width:], n, width))
			}
		}
		kept, err := state.After(context.Background(), l, n, step == 0, nil)
		require.NoError(t, err)
		cache.cut(kept)
		for h := range a.KVHeads {
			g.compareMask(t, cache.ids(h), keep.row(step, h), nil, false, fmt.Sprintf("step %d, head %d", step, h))
		}
		first, n = first+n, 1
	}
	if c.FinalScores != "" {
		for h := range a.KVHeads {
			got := make([]float32, len(cache.pos[h]))
			for i := range got {
				got[i] = float32(state.Sums().Mean(h, i))
			}
			g.compareScores(t, c, got, g.out(t, c, c.FinalScores).row(h), fmt.Sprintf("final scores, head %d", h))
		}
	}
}

// layered cuts a stack's layers by the scores of one metric and an allocator,
// protection written as the reference's number.
func (g *golden) layered(t *testing.T, c goldenCase, m Metric, a Allocator, ratio float64) ([]Scores, [][]int) {
	t.Helper()
	setup := g.index.Setups[c.Setup]
	layers := max(1, setup.Layers)
	scores := make([]Scores, layers)
	d := Demand{T: setup.T, Layers: layers, KVHeads: setup.KVHeads, Ratio: ratio, Rounding: kvpressRounding()}
	for l := range scores {
		prefix := ""
		if setup.Kind == "stack" {
			prefix = fmt.Sprintf("l%d.", l)
		}
		layer := g.attention(t, c.Setup, prefix).layer(t, m, setup.T, truncated(setup.T, ratio))
		layer.Ratio = ratio
		s, err := Score(context.Background(), m, layer)
		require.NoError(t, err)
		s.ReplaceInf(0)
		scores[l] = s
	}
	budgets, err := Allocate(a, d, scores)
	require.NoError(t, err)
	return scores, budgets
}

// defensive is DefensiveKV, layer by layer or over the stack.
func (g *golden) defensive(t *testing.T, c goldenCase) {
	m := mustMetric(t, configured("defensivekv", "window", c.Params.Window, "kernel", c.Params.Kernel, "mass", c.Params.Mass, "compat", true))
	pool := map[string]string{"defensive": "layer", "layer_defensive": "model"}[c.Kind]
	keep := g.out(t, c, c.Keep)
	for i, ratio := range c.Ratios {
		scores, budgets := g.layered(t, c, m, mustAllocator(t, "global", "pool", pool), ratio)
		for l := range scores {
			for h, row := range scores[l] {
				where := fmt.Sprintf("ratio %g, layer %d, head %d", ratio, l, h)
				at := []int{i, h}
				if c.Kind == "layer_defensive" {
					at = []int{i, l, h}
				}
				g.compareScores(t, c, row, g.out(t, c, c.Scores).row(at...), where)
				g.compareMask(t, Keep(nil, row, budgets[l][h], Protection{}), keep.row(at...), row, slices.Contains(c.Ambiguous, ratio), where)
			}
		}
	}
}

// cake is CAKE: indicator, preferences and budgets, at once or cascading.
func (g *golden) cake(t *testing.T, c goldenCase) {
	setup, p := g.index.Setups[c.Setup], c.Params
	gamma := p.Gamma
	m := mustMetric(t, configured("cake", "window", p.Window, "kernel", p.Kernel, "gamma", gamma))
	a := mustAllocator(t, "cake", "window", p.Window, "tau1", p.Tau1, "tau2", p.Tau2, "cascade", p.Cascading || c.Kind == "cake")
	d := Demand{T: setup.T, Layers: setup.Layers, KVHeads: setup.KVHeads, Protection: Protection{Window: p.Window},
		Rounding: kvpressRounding(), Weights: make([]float64, setup.Layers)}
	scores := make([]Scores, setup.Layers)
	var want []float64
	if c.Kind == "cake" {
		var name string
		require.NoError(t, json.Unmarshal(c.Preferences, &name))
		want = g.out(t, c, name).data
	} else {
		require.NoError(t, json.Unmarshal(c.Preferences, &want))
	}
	for l := range scores {
		layer := g.attention(t, c.Setup, fmt.Sprintf("l%d.", l)).layer(t, m, setup.T, 0)
		var err error
		scores[l], err = Score(context.Background(), m, layer)
		require.NoError(t, err)
		d.Weights[l], err = Weigh(context.Background(), a, layer)
		require.NoError(t, err)
		require.InEpsilon(t, want[l], d.Weights[l], c.Tol.PrefRel, "preference of layer %d", l)
		if c.Scores != "" {
			for h, row := range scores[l] {
				g.compareScores(t, c, row[:setup.T-p.Window], g.out(t, c, c.Scores).row(l, h), fmt.Sprintf("layer %d, head %d", l, h))
			}
		}
	}
	check := func(d Demand, counts func(l int) int, mask func(l, h int) []float64, where string) {
		budgets, err := Allocate(a, d, scores)
		require.NoError(t, err)
		for l := range scores {
			require.Equal(t, counts(l), budgets[l][0], "%s: budget of layer %d", where, l)
			// What a cascade leaves: no layer keeps more than at any earlier stage.
			least := budgets[l][0]
			for last := l; p.Cascading && last < setup.Layers; last++ {
				seen := make([]Scores, setup.Layers)
				copy(seen, scores[:last+1])
				some, err := Allocate(a, d, seen)
				require.NoError(t, err)
				least = min(least, some[l][0])
			}
			for h, row := range scores[l] {
				g.compareMask(t, Keep(nil, row, least, d.Protection), mask(l, h), row, false, fmt.Sprintf("%s, layer %d, head %d", where, l, h))
			}
		}
	}
	keep := g.out(t, c, c.Keep)
	if c.Kind == "cake" {
		for i, ratio := range c.Ratios {
			d.Ratio = ratio
			check(d, func(l int) int { return c.KeptPerLayer[i][l] }, func(l, h int) []float64 { return keep.row(i, l, h) }, fmt.Sprint("ratio ", ratio))
		}
		return
	}
	var final []int
	require.NoError(t, json.Unmarshal(c.LayerBudgets, &final))
	check(d.DemandTokens(p.CacheSize), func(l int) int { return min(final[l]+p.Window, setup.T) }, func(l, h int) []float64 { return keep.row(l, h) }, "cache size")
}

// kvzip repeats the context of a stack chunk by chunk and scores every layer.
func (g *golden) kvzip(t *testing.T, c goldenCase) {
	setup, p := g.index.Setups[c.Setup], c.Params
	in := g.file(t, setup.Inputs)
	start, sinks := p.Prefix, p.Sinks
	if c.Kind == "kvzip_official" {
		start, sinks = p.Start, p.Sink
	}
	width := setup.Heads * setup.HeadDim
	scores := make([]Scores, setup.Layers)
	for l := range scores {
		prefix := fmt.Sprintf("l%d.", l)
		a := g.attention(t, c.Setup, prefix)
		layer := a.layer(t, kNorm{}, setup.T, 0)
		best := NewRepeatScores(slices.Repeat([]int{setup.T}, setup.KVHeads))
		from := start
		for i, n := range p.Chunks {
			x := in[fmt.Sprintf("%srepeat%d", prefix, i)]
			q := narrow(rotate(project(x, in[prefix+"q_weight"], in[prefix+"q_bias"]), setup.Heads, setup.HeadDim, setup.T, a.invFreq))
			keys := byHead(rotate(project(x, in[prefix+"k_weight"], in[prefix+"k_bias"]), setup.KVHeads, setup.HeadDim, setup.T, a.invFreq), setup.KVHeads, setup.HeadDim)
			r := Repetition{From: from, To: from + n, Sinks: sinks, Queries: q, Keys: func(h int) []float32 { return keys[h] }}
			for row := 0; p.Plus && row < len(q)/width; row++ {
				r.Inputs = append(r.Inputs, float32(math.Sqrt(sumSquares(narrow(x.row(row))))))
			}
			for h := range setup.KVHeads {
				require.NoError(t, best.Add(context.Background(), layer, h, r))
			}
			from += n
		}
		for h := range best.best { // the reference's scores of what is not repeated
			for i := range min(start, 4) {
				best.best[h][i] = 1
			}
		}
		scores[l] = best.best
		for h, row := range scores[l] {
			want := g.out(t, c, c.Scores).row(l, h)
			g.compareScores(t, c, row[setup.T-len(want):], want, fmt.Sprintf("layer %d, head %d", l, h))
		}
	}
	if c.Kind == "kvzip_official" {
		g.kvzipThreshold(t, c, scores, start)
		return
	}
	keep := g.out(t, c, c.Keep)
	for i, run := range c.Runs {
		a := mustAllocator(t, "global", "pool", map[bool]string{true: "layer", false: "model"}[run.Layerwise], "count", "removed")
		d := Demand{T: setup.T, Layers: setup.Layers, KVHeads: setup.KVHeads, Ratio: run.Ratio, Rounding: kvpressRounding()}
		budgets, err := Allocate(a, d, scores)
		require.NoError(t, err)
		for l := range scores {
			for h, row := range scores[l] {
				g.compareMask(t, Keep(nil, row, budgets[l][h], Protection{}), keep.row(i, l, h), row, false, fmt.Sprintf("run %d, layer %d, head %d", i, l, h))
			}
		}
	}
}

// kvzipThreshold is the method's own selection: strictly above the score at a
// given rank among all positions after the prefix.
func (g *golden) kvzipThreshold(t *testing.T, c goldenCase, scores []Scores, start int) {
	var all []float64
	for l := range scores {
		for h := range scores[l] {
			all = append(all, g.out(t, c, c.Scores).row(l, h)...)
		}
	}
	slices.Sort(all)
	slices.Reverse(all)
	keep, uniform := g.out(t, c, c.KeepThreshold), g.out(t, c, c.KeepUniform)
	for i, fraction := range c.KeepFractions {
		cut := float32(all[max(int(fraction*float64(len(all)))-1, 0)])
		for l := range scores {
			for h, row := range scores[l] {
				kept := 0
				for _, v := range row[start:] {
					if float64(v) > float64(cut)*(1+1e-6) {
						kept++
					}
				}
				where := fmt.Sprintf("fraction %g, layer %d, head %d", fraction, l, h)
				g.compareMask(t, Keep(nil, row[start:], kept, Protection{}), keep.row(i, l, h), row[start:], false, where)
				n := int(fraction * float64(len(row)-start))
				g.compareMask(t, Keep(nil, row[start:], n, Protection{}), uniform.row(i, l, h), row[start:], false, where+", uniform")
			}
		}
	}
}
