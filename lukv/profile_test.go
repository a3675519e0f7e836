package lukv

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/lukv/solve"
)

func testIdentity() ProfileIdentity {
	id := DefaultProfileIdentity()
	id.Model = "test"
	id.Metric = MetricConfig{Name: "keydiff"}
	id.Protection = Protection{Sinks: 4, Window: 1}
	id.Calibration = "sha256:00"
	return id
}

// buildProfile adds pairs of different lengths to a builder, from its next
// pair on until it has n.
func buildProfile(t *testing.T, b *ProfileBuilder, n int) {
	t.Helper()
	for i := b.Pairs(); i < n; i++ {
		importance, scores := syntheticModel(3, 2, 200+10*i, uint64(i))
		set, err := b.Add(t.Context(), i, importance, scores)
		require.NoError(t, err)
		require.GreaterOrEqual(t, set.Loss[79], set.Bound[79])
	}
}

func profileBytes(t *testing.T, p *Profile) []byte {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, p.Write(&buf))
	return buf.Bytes()
}

// TestProfileIsReproducible: the bytes are the same twice, in parallel too,
// and again after the work was interrupted and resumed.
func TestProfileIsReproducible(t *testing.T) {
	build := func(parallel func(int, func(int))) *ProfileBuilder {
		b, err := NewProfileBuilder(testIdentity(), 3, 2, nil)
		require.NoError(t, err)
		b.Parallel = parallel
		return b
	}
	whole := build(nil)
	buildProfile(t, whole, 4)
	p, err := whole.Profile()
	require.NoError(t, err)
	want := profileBytes(t, p)

	concurrent := build(func(n int, fn func(int)) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { fn(i) })
		}
		wg.Wait()
	})
	buildProfile(t, concurrent, 4)
	p, err = concurrent.Profile()
	require.NoError(t, err)
	require.Equal(t, want, profileBytes(t, p))

	path := filepath.Join(t.TempDir(), "state")
	half := build(nil)
	buildProfile(t, half, 2)
	require.NoError(t, half.SaveState(path))
	resumed := build(nil)
	require.NoError(t, resumed.LoadState(path))
	require.Equal(t, 2, resumed.Pairs())
	buildProfile(t, resumed, 4)
	p, err = resumed.Profile()
	require.NoError(t, err)
	require.Equal(t, want, profileBytes(t, p))
	require.Equal(t, []int{4, 200, 230}, []int{p.Pairs, p.MinContext, p.MaxContext})

	// Another run's state is rejected, and the builder stays as it was.
	id := testIdentity()
	id.Model = "other"
	other, err := NewProfileBuilder(id, 3, 2, nil)
	require.NoError(t, err)
	err = other.LoadState(path)
	require.ErrorIs(t, err, ErrProfileMismatch)
	require.ErrorContains(t, err, `"model":"test"`)
	require.ErrorContains(t, err, `"model":"other"`)
	require.Zero(t, other.Pairs())
	smaller, err := NewProfileBuilder(testIdentity(), 3, 1, nil)
	require.NoError(t, err)
	require.ErrorIs(t, smaller.LoadState(path), ErrProfileMismatch)

	_, err = whole.Add(t.Context(), 3, nil, nil)
	require.ErrorContains(t, err, "pair 3, expected pair 4 next")
}

func TestProfileFile(t *testing.T) {
	id := testIdentity()
	id.Metric = MetricConfig{Name: "snapkv", Params: `{"window":32,"kernel":7,"pool":"max"}`}
	id.Calibration = "a <b> & \u2028 text"
	b, err := NewProfileBuilder(id, 3, 2, []int{1})
	require.NoError(t, err)
	importance, scores := syntheticModel(3, 2, 333, 4)
	importance[1] = nil
	_, err = b.Add(t.Context(), 0, importance, scores)
	require.NoError(t, err)
	p, err := b.Profile()
	require.NoError(t, err)

	path := filepath.Join(t.TempDir(), "p.json")
	require.NoError(t, p.Save(path))
	got, err := LoadProfile(path)
	require.NoError(t, err)
	require.Equal(t, p, got)
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "temporary files left behind")
	if runtime.GOOS != "windows" { // a folder that does not exist
		require.Error(t, p.Save(filepath.Join(path, "x")))
	}

	// Every change of a single byte is noticed, wherever it falls; only
	// white space is free.
	data := profileBytes(t, p)
	for i := 0; i < len(data); i += 37 {
		bad := slices.Clone(data)
		bad[i] ^= 1
		if q, err := ReadProfile(bytes.NewReader(bad)); err == nil {
			require.Equal(t, p, q, "byte %d changed unnoticed", i)
		}
	}
	for text, want := range map[string]string{
		"":   "unexpected end",
		"{}": `format "", expected "lukv profile"`,
		`{"format":"lukv profile","version":2,"new":1}`: "version 2, expected 1",
		`{"format":"lukv profile","version":1,"new":1}`: "unknown field",
		`{"format":"lukv profile","version":1}`:         "checksum",
		`{"format":"lukv profile state","version":1}`:   `format "lukv profile state", expected "lukv profile"`,
		string(data) + "{}":                             "after top-level value",
	} {
		_, err := ReadProfile(strings.NewReader(text))
		require.ErrorContains(t, err, want)
	}
	_, err = LoadProfile(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestNewProfileShape(t *testing.T) {
	for _, shape := range [][2]int{{0, 2}, {2, 0}, {-1, 1}, {0, 0}, {math.MaxInt32, 1}} {
		_, err := NewProfile(testIdentity(), shape[0], shape[1], nil, nil)
		require.ErrorContains(t, err, fmt.Sprintf("profile: 0 ratios for 99 levels of %d layers of %d KV heads", shape[0], shape[1]))
		_, err = NewProfileBuilder(testIdentity(), shape[0], shape[1], nil)
		require.ErrorContains(t, err, fmt.Sprintf("build profile: %d layers of %d KV heads", shape[0], shape[1]))
	}
}

// TestExcludedLayers: they must be ascending, exist, and not be all.
func TestExcludedLayers(t *testing.T) {
	ratios := make([]float64, solve.Levels*2)
	for _, excluded := range [][]int{{-1}, {2}, {0, 0}, {1, 0}, {0, 1}} {
		_, err := NewProfile(testIdentity(), 2, 1, ratios, excluded)
		require.ErrorContains(t, err, fmt.Sprintf("profile: excluded layers %v of 2, expected ascending and not all", excluded))
		_, err = NewProfileBuilder(testIdentity(), 2, 1, excluded)
		require.ErrorContains(t, err, fmt.Sprintf("build profile: excluded layers %v of 2, expected ascending and not all", excluded))
	}
	id := testIdentity()
	id.Protection = Protection{}
	for l := range 2 {
		_, err := NewProfileBuilder(id, 2, 1, []int{l})
		require.NoError(t, err, "nothing needs to be protected")
	}
}

// TestMeansAscend: repaired profiles may take from one head what they give to
// another, but no level removes less than the one below.
func TestMeansAscend(t *testing.T) {
	ratios := make([]float64, solve.Levels*2)
	for i := range ratios {
		ratios[i] = float64(i/2+1) / 100
	}
	id := testIdentity()
	id.Solver = SolverRepair
	ratios[80], ratios[81] = 0.31, 0.51
	_, err := NewProfile(id, 1, 2, ratios, nil)
	require.NoError(t, err)
	ratios[80], ratios[81] = 0.385, 0.395
	_, err = NewProfile(id, 1, 2, ratios, nil)
	require.ErrorContains(t, err, "profile: level 41: mean ratio 0.39, expected at least the 0.4 of the level below")
}

// TestStateSums: the sum of the ratios of some pairs is at most their number.
func TestStateSums(t *testing.T) {
	b, err := NewProfileBuilder(testIdentity(), 1, 1, nil)
	require.NoError(t, err)
	importance, scores := syntheticModel(1, 1, 50, 1)
	_, err = b.Add(t.Context(), 0, importance, scores)
	require.NoError(t, err)
	for sum, want := range map[float64]string{0.5: "", 1.0000001: "value 98 is 1.0000001, expected 0 to 1", -0.1: "value 98 is -0.1"} {
		b.sums[98] = sum
		var state bytes.Buffer
		require.NoError(t, b.WriteState(&state))
		fresh, err := NewProfileBuilder(testIdentity(), 1, 1, nil)
		require.NoError(t, err)
		if err = fresh.ReadState(&state); want == "" {
			require.NoError(t, err)
			require.Equal(t, 1, fresh.Pairs())
		} else {
			require.ErrorContains(t, err, want)
			require.Zero(t, fresh.Pairs())
		}
	}
}

func TestProfileCheck(t *testing.T) {
	id := testIdentity()
	id.Metric = MetricConfig{Name: "expected_attention", Params: `{"epsilon":0.02}`}
	p := &Profile{Identity: id, layers: 2, kvHeads: 3}
	require.NoError(t, p.Check("test", id.Metric, Protection{4, 1, true}))
	for want, err := range map[string]error{
		"model: the profile was made for test, this run has other": p.Check("other", id.Metric, id.Protection),
		`"epsilon":0.02},`: p.Check("test", MetricConfig{Name: "expected_attention", Params: `{"epsilon":0}`}, id.Protection),
		"sinks: the profile was made for 4, this run has 0":          p.Check("test", id.Metric, Protection{0, 1, false}),
		"protected window: the profile was made for 1, this run has": p.Check("test", id.Metric, Protection{4, 32, false}),
		"the profile has 2 layers of 3 KV heads, the model 4 of 3":   p.CheckShape(4, 3),
	} {
		require.ErrorIs(t, err, ErrProfileMismatch)
		require.ErrorContains(t, err, want)
	}
}

func TestProfileSanity(t *testing.T) {
	good := func() []float64 {
		r := make([]float64, solve.Levels*2)
		for i := range r {
			r[i] = float64(i/2+1) / 100
		}
		return r
	}
	id := testIdentity()
	_, err := NewProfile(id, 1, 2, good(), nil)
	require.NoError(t, err)

	saturated := good()
	for i := range saturated {
		saturated[i] = min(saturated[i], 0.9)
	}
	_, err = NewProfile(id, 1, 2, saturated, nil)
	require.NoError(t, err)

	for want, change := range map[string]func([]float64){
		"ratio NaN":          func(r []float64) { r[50] = math.NaN() },
		"ratio 1.1":          func(r []float64) { r[50] = 1.1 },
		"level 26":           func(r []float64) { r[50], r[51] = 0.1, 0.42 },
		"mean ratio 0.5":     func(r []float64) { r[40], r[41] = 0.5, 0.5 },
		"within 0.02":        func(r []float64) { copy(r[40:60], slices.Repeat([]float64{0.2}, 20)) },
		"198 ratios":         nil,
		"excluded layers [":  nil,
		"in an excluded lay": nil,
	} {
		r := good()
		layers, excluded := 1, []int(nil)
		switch {
		case change != nil:
			change(r)
		case want == "198 ratios":
			layers = 2
		case want == "excluded layers [":
			excluded = []int{0}
		default:
			layers, excluded = 2, []int{1}
			_, err := NewProfile(id, layers, 1, r, excluded)
			require.ErrorContains(t, err, want)
			continue
		}
		_, err := NewProfile(id, layers, 2, r, excluded)
		require.ErrorContains(t, err, want)
	}
}

// TestProfileRow: levels at multiples of one per cent, straight lines between
// them, starting from nothing removed at 0, constant above 99 %.
func TestProfileRow(t *testing.T) {
	p := testProfile(t, 2, 2, 300)
	flat := func(ratio float64, nearest bool) []float64 { return slices.Concat(p.Row(ratio, nearest)...) }
	for i := range solve.Levels {
		ratio := float64(i+1) / 100
		require.Equal(t, p.at(i), flat(ratio, false), ratio)
		require.Equal(t, p.at(i), flat(ratio, true), ratio)
	}
	require.Equal(t, make([]float64, 4), flat(0, false))
	require.Equal(t, p.at(0), flat(0, true))
	require.Equal(t, p.at(98), flat(0.9999, false))
	half := flat(0.505, false)
	for u := range half {
		require.InDelta(t, (p.at(49)[u]+p.at(50)[u])/2, half[u], 1e-12)
	}
	low := flat(0.0025, false)
	for u := range low {
		require.InDelta(t, p.at(0)[u]/4, low[u], 1e-12)
	}
	m := p.HeatMap(0.5, false)
	require.InDelta(t, 0.5, m.Mean, 0.002)
	require.Less(t, m.Min, m.Max)
	require.Equal(t, p.Level(49), m.Ratios)
}

// TestProfileIsPinned: the same bits on every CPU and for good. The
// input is exact in float32 and comes from integers alone.
func TestProfileIsPinned(t *testing.T) {
	state := uint32(1)
	next := func() float32 {
		state = state*1664525 + 1013904223
		return float32(state >> 20)
	}
	importance, scores := make([][][]float32, 3), make([][][]float32, 3)
	for l := range importance {
		for range 2 {
			imp, sc := make([]float32, 251), make([]float32, 251)
			for i := range imp {
				imp[i] = next()
				sc[i] = imp[i] + next()
			}
			importance[l], scores[l] = append(importance[l], imp), append(scores[l], sc)
		}
	}
	id := testIdentity()
	id.Solver = SolverRepair
	b, err := NewProfileBuilder(id, 3, 2, nil)
	require.NoError(t, err)
	for i := range 3 {
		_, err = b.Add(t.Context(), i, importance, scores)
		require.NoError(t, err)
		importance[0], importance[2] = importance[2], importance[0]
	}
	p, err := b.Profile()
	require.NoError(t, err)
	var npy bytes.Buffer
	require.NoError(t, p.WriteNPY(&npy))
	require.Equal(t, "555c90f093bc1c6394fc8a9aa169a62ebfb50f41751fccd3899efbd405633482", fmt.Sprintf("%x", sha256.Sum256(npy.Bytes())))
}

func TestCalibrationHash(t *testing.T) {
	require.Equal(t, CalibrationHash("a", "b"), CalibrationHash("a", "b"))
	for _, other := range [][]string{{"b", "a"}, {"ab"}, {"a\n1\nb"}, {"a", "b", ""}, {}} {
		require.NotEqual(t, CalibrationHash("a", "b"), CalibrationHash(other...))
	}
}

func TestProfileBuilderErrors(t *testing.T) {
	for want, change := range map[string]func(*ProfileIdentity){
		`normalization: found "head"`: func(id *ProfileIdentity) { id.Normalization = "head" },
		`objective: found ""`:         func(id *ProfileIdentity) { id.Objective = "" },
		`scope: found "page"`:         func(id *ProfileIdentity) { id.Scope = "page" },
		`solver: found "luck"`:        func(id *ProfileIdentity) { id.Solver = "luck" },
		"min_retention 1":             func(id *ProfileIdentity) { id.MinRetention = 1 },
		"protection of -1 sinks":      func(id *ProfileIdentity) { id.Protection.Sinks = -1 },
		"max_steps -1":                func(id *ProfileIdentity) { id.MaxSteps = -1 },
		`metric "magic" is unknown`:   func(id *ProfileIdentity) { id.Metric.Name = "magic" },
	} {
		id := testIdentity()
		change(&id)
		_, err := NewProfileBuilder(id, 2, 2, nil)
		require.ErrorContains(t, err, want)
	}
	_, err := NewProfileBuilder(testIdentity(), 2, 2, []int{1, 0})
	require.ErrorContains(t, err, "excluded layers [1 0] of 2")
	_, err = NewProfileBuilder(testIdentity(), 0, 2, nil)
	require.ErrorContains(t, err, "0 layers")

	b, err := NewProfileBuilder(testIdentity(), 2, 2, []int{1})
	require.NoError(t, err)
	_, err = b.Profile()
	require.ErrorContains(t, err, "no pair was added")
	importance, scores := syntheticModel(2, 2, 40, 1)
	_, err = b.Add(t.Context(), 0, importance, scores)
	require.ErrorContains(t, err, "layer 1, which is excluded")
	importance[1] = nil
	_, err = b.Add(t.Context(), 0, importance[:1], scores)
	require.ErrorContains(t, err, "importance of 1 layers, expected 2")
	importance[0][1] = importance[0][1][:39]
	_, err = b.Add(t.Context(), 0, importance, scores)
	require.ErrorContains(t, err, "importance of 39 positions, expected 40")
	_, err = b.Add(t.Context(), 0, [][][]float32{importance[0][:1], nil}, scores)
	require.ErrorContains(t, err, "importance of 1 heads, expected 2")
	require.Zero(t, b.Pairs())
}

// TestAblationCapacity: the profile without the optimality gap does not depend
// on the metric, and differs from the normal one.
func TestAblationCapacity(t *testing.T) {
	importance, scores := syntheticModel(2, 2, 200, 3)
	_, others := syntheticModel(2, 2, 200, 4)
	profile := func(objective string, scores [][][]float32) *Profile {
		id := testIdentity()
		id.Objective = objective
		b, err := NewProfileBuilder(id, 2, 2, nil)
		require.NoError(t, err)
		_, err = b.Add(t.Context(), 0, importance, scores)
		require.NoError(t, err)
		p, err := b.Profile()
		require.NoError(t, err)
		return p
	}
	require.Equal(t, profile(ObjectiveCapacity, scores), profile(ObjectiveCapacity, others))
	require.NotEqual(t, profile(ObjectiveUtility, scores).ratios, profile(ObjectiveUtility, others).ratios)
	require.NotEqual(t, profile(ObjectiveUtility, scores).ratios, profile(ObjectiveCapacity, scores).ratios)
}

func TestNPY(t *testing.T) {
	// Byte for byte what the format's specification gives for these two
	// values.
	var buf bytes.Buffer
	require.NoError(t, WriteNPY(&buf, []int{2}, []float64{1, -2}))
	want := "\x93NUMPY\x01\x00\x76\x00{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }"
	want += strings.Repeat(" ", 127-len(want)) + "\n" + "\x00\x00\x00\x00\x00\x00\xf0\x3f" + "\x00\x00\x00\x00\x00\x00\x00\xc0"
	require.Equal(t, want, buf.String())

	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(0, 4), 0, 4).Draw(t, "shape")
		n := 1
		for _, d := range shape {
			n *= d
		}
		data := rapid.SliceOfN(rapid.Float64(), n, n).Draw(t, "data")
		var buf bytes.Buffer
		if err := WriteNPY(&buf, shape, data); err != nil {
			t.Fatal(err)
		}
		gotShape, got, err := ReadNPY(bytes.NewReader(buf.Bytes()))
		if err != nil || !slices.Equal(gotShape, shape) || !slices.Equal(got, data) {
			t.Fatalf("got %v %v %v, want %v %v", gotShape, got, err, shape, data)
		}
		for _, cut := range []int{0, 5, 9, buf.Len() / 2, buf.Len() - 1} {
			if _, _, err := ReadNPY(bytes.NewReader(buf.Bytes()[:cut])); err == nil {
				t.Fatalf("a file cut to %d bytes was read", cut)
			}
		}
	})

	header := func(dict string) string {
		return "\x93NUMPY\x01\x00" + string(rune(len(dict))) + "\x00" + dict
	}
	shape, data, err := ReadNPY(strings.NewReader(header(`{"shape":(1,2),"fortran_order":False,"descr":">f4"}`) + "\x3f\x80\x00\x00\xc0\x00\x00\x00"))
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, shape)
	require.Equal(t, []float64{1, -2}, data)
	for dict, want := range map[string]string{
		`{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }`:         `type "<i8"`,
		`{'descr': '<f8', 'fortran_order': True, 'shape': (1,), }`:          "Fortran order",
		`{'descr': '<f8', 'shape': (1,), }`:                                 "found 2 keys",
		`{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'x': 1}`:   `unknown key "x"`,
		`{'descr': '<f8', 'descr': '<f8', 'shape': (1,)}`:                   `key "descr" twice`,
		`{'descr': '<f8', 'fortran_order': False, 'shape': (99999,99999)}`:  "at most",
		`{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,)}`: "at most 31 bits",
		`{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}`:          "dimension",
		`{'descr': '<f8', 'fortran_order': False, 'shape': (1,)} x`:         "after the dictionary",
		`{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}`:           "0 bytes of data for shape [2] of <f8, expected 16",
		`{'descr': '<f8`: "without end",
		``:               "expected \"{\"",
	} {
		_, _, err := ReadNPY(strings.NewReader(header(dict)))
		require.ErrorContains(t, err, want, dict)
	}
	short := header(`{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}`)
	for n, want := range map[int]string{15: "15 bytes of data for shape", 17: "17 bytes of data or more for shape", 40: "17 bytes of data or more"} {
		_, _, err := ReadNPY(strings.NewReader(short + strings.Repeat("x", n)))
		require.ErrorContains(t, err, want)
	}
	for n, want := range map[int]string{1 << 16: "", 1<<16 + 1: "header of 65537 bytes, expected at most 65536", 1 << 17: "header of 131072 bytes"} {
		for _, version := range []byte{1, 2, 3, 4, 0} {
			text := binary.LittleEndian.AppendUint32([]byte("\x93NUMPY"+string(version)+"\x00"), uint32(n))
			dict := `{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}`
			text = append(text, dict+strings.Repeat(" ", n-len(dict))...)
			_, _, err := ReadNPY(bytes.NewReader(append(text, make([]byte, 8)...)))
			switch {
			case version == 2 || version == 3:
				if want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, want)
				}
			case version != 1:
				require.ErrorContains(t, err, fmt.Sprintf("version %d.0, expected 1 to 3", version))
			}
		}
	}
}

func TestProfileNPY(t *testing.T) {
	p := testProfile(t, 3, 2, 200)
	var buf bytes.Buffer
	require.NoError(t, p.WriteNPY(&buf))
	got, err := ReadProfileNPY(&buf, p.Identity)
	require.NoError(t, err)
	require.Equal(t, p.ratios, got.ratios)
	require.NoError(t, got.CheckShape(3, 2))
	one := testProfile(t, 1, 1, 200)
	require.NoError(t, one.WriteNPY(&buf))
	got, err = ReadProfileNPY(&buf, one.Identity)
	require.NoError(t, err)
	require.Equal(t, one.ratios, got.ratios)
	require.NoError(t, WriteNPY(&buf, []int{99, 1, 0}, nil))
	_, err = ReadProfileNPY(&buf, p.Identity)
	require.ErrorContains(t, err, "shape [99 1 0], expected [99, layers, KV heads]")
	require.NoError(t, WriteNPY(&buf, []int{98, 1, 1}, make([]float64, 98)))
	_, err = ReadProfileNPY(&buf, p.Identity)
	require.ErrorContains(t, err, "shape [98 1 1], expected [99, layers, KV heads]")
}

func FuzzReadNPY(f *testing.F) {
	var buf bytes.Buffer
	if err := WriteNPY(&buf, []int{2, 1}, []float64{0.5, 1}); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte("\x93NUMPY\x02\x00\x10\x00\x00\x00{'descr': '<f4'}"))
	f.Add([]byte("\x93NUMPY\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		defer testfuzz.Bound(t, len(raw))()
		shape, data, err := ReadNPY(bytes.NewReader(raw))
		if err != nil {
			return
		}
		var buf bytes.Buffer
		if err := WriteNPY(&buf, shape, data); err != nil {
			t.Fatal(err)
		}
		again, same, err := ReadNPY(&buf)
		if err != nil || !slices.Equal(again, shape) || len(same) != len(data) {
			t.Fatalf("read %v of %d values, wrote and read %v of %d: %v", shape, len(data), again, len(same), err)
		}
		for i := range data {
			if math.Float64bits(data[i]) != math.Float64bits(same[i]) {
				t.Fatalf("value %d: %v became %v", i, data[i], same[i])
			}
		}
		_, _ = ReadProfileNPY(bytes.NewReader(raw), ProfileIdentity{})
	})
}

func FuzzReadProfile(f *testing.F) {
	b, err := NewProfileBuilder(testIdentity(), 1, 1, nil)
	if err != nil {
		f.Fatal(err)
	}
	importance, scores := syntheticModel(1, 1, 50, 1)
	if _, err := b.Add(f.Context(), 0, importance, scores); err != nil {
		f.Fatal(err)
	}
	p, err := b.Profile()
	if err != nil {
		f.Fatal(err)
	}
	var profile, state bytes.Buffer
	if err := p.Write(&profile); err != nil {
		f.Fatal(err)
	}
	if err := b.WriteState(&state); err != nil {
		f.Fatal(err)
	}
	f.Add(profile.Bytes())
	f.Add(state.Bytes())
	f.Add([]byte(`{"format":"lukv profile","version":1,"values":[[]]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		defer testfuzz.Bound(t, len(raw))()
		// Fix the checksum, or nothing after it would ever be reached.
		var file profileFile
		if json.Unmarshal(raw, &file) == nil {
			var mended bytes.Buffer
			if file.write(&mended) == nil {
				raw = mended.Bytes()
			}
		}
		if q, err := ReadProfile(bytes.NewReader(raw)); err == nil {
			var again bytes.Buffer
			if err := q.Write(&again); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadProfile(&again); err != nil {
				t.Fatalf("a profile that was read does not read back: %v", err)
			}
		}
		fresh, err := NewProfileBuilder(testIdentity(), 1, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if fresh.ReadState(bytes.NewReader(raw)) == nil {
			_, _ = fresh.Profile()
		}
	})
}
