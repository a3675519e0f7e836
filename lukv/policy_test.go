package lukv

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/stretchr/testify/require"
)

// TestPolicyRoundTrip: every policy survives a round trip through JSON, even
// written out in full after Compile, and still means the same.
func TestPolicyRoundTrip(t *testing.T) {
	shape := CacheShape{Layers: 4, KVHeads: 3, BytesPerEntry: 256}
	policies := []Policy{
		{},
		{Ratio: 0.8},
		{Metric: MetricConfig{Name: "ea", Params: `{"epsilon":0}`}, Allocator: AllocatorConfig{Name: "ada", Params: `{"alpha":0.5}`}, BudgetTokens: 64},
		{Metric: MetricConfig{Name: "snapkv", Params: `{"preset":"kvpress"}`}, Ratio: 0.5, KVPressRounding: true},
		{BudgetBytes: 100_000, Protection: &Protection{Sinks: 2, Window: 3, Recent: true}, Rounding: Rounding{Share: ShareExact, Floor: FloorNone}},
		{Ratio: 0.9, Decode: DecodeConfig{Mode: "periodic", TargetSize: 100, Metric: &MetricConfig{Name: "tova"}}},
		{Decode: DecodeConfig{Mode: "h2o", TargetSize: 8, Metric: &MetricConfig{"h2o", `{"window":5}`}}},
	}
	for _, cfg := range allocatorTable() {
		if !cfg.NeedsProfile() {
			policies = append(policies, Policy{Ratio: 0.3, Allocator: cfg})
		}
	}
	for _, p := range policies {
		require.NoError(t, p.Validate(), p.String())
		got, err := ParsePolicy([]byte(p.String()))
		require.NoError(t, err, p.String())
		require.Equal(t, &p, got)

		c, err := p.Compile("m", shape)
		require.NoError(t, err, p.String())
		full := c.Policy()
		again, err := ParsePolicy([]byte(full.String()))
		require.NoError(t, err, full.String())
		require.Equal(t, &full, again)
		c2, err := again.Compile("m", shape)
		require.NoError(t, err)
		require.Equal(t, c, c2, full.String())
	}
}

func TestPolicyErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"ratio":1}`:                                  "ratio 1, expected at least 0 and below 1",
		`{"ratio":-0.1}`:                               "ratio -0.1",
		`{"ratio":0.5,"budget_tokens":3}`:              "found 2 of ratio, budget_tokens and budget_bytes",
		`{"budget_tokens":-1}`:                         "budget_tokens -1",
		`{"budget_bytes":-1}`:                          "budget_bytes -1",
		`{"raito":0.5}`:                                "unknown field",
		`{"metric":{"name":"snapkw"}}`:                 `metric "snapkw" is unknown`,
		`{"metric":{"name":"snapkv","krenel":7}}`:      "it has no parameter krenel",
		`{"allocator":{"name":"all"}}`:                 `allocator "all" is unknown`,
		`{"rounding":{"heads":"up"}}`:                  `heads: found "up"`,
		`{"rounding":{"heads":"floor"},"compat":true}`: "beside compat",
		`{"protection":{"sinks":-1,"window":0}}`:       "protection of -1 sinks",
		`{"decode":{"mode":"sometimes"}}`:              "mode",
		`{} {}`:                                        "after top-level value",
		`[]`:                                           "found array, expected an object",
		``:                                             "found the end of the text",
	} {
		_, err := ParsePolicy([]byte(text))
		require.Error(t, err, text)
		require.ErrorContains(t, err, "read compression policy: ", text)
		if text != `{} {}` {
			require.ErrorContains(t, err, want, text)
		}
	}
	require.ErrorContains(t, (&Policy{Ratio: math.NaN()}).Validate(), "ratio NaN")
	_, err := (&Policy{BudgetBytes: 5}).Compile("m", CacheShape{Layers: 1, KVHeads: 1})
	require.ErrorContains(t, err, "budget_bytes")
}

// TestPolicyUntouched: ratio 0, budgets of at least the length, a single
// entry and no entry after the sinks leave the cache alone.
func TestPolicyUntouched(t *testing.T) {
	shape := CacheShape{Layers: 2, KVHeads: 2, BytesPerEntry: 100}
	for _, c := range []struct {
		p         Policy
		T         int
		untouched bool
	}{
		{Policy{}, 100, true},
		{Policy{Decode: DecodeConfig{Mode: "tova"}}, 100, true},
		{Policy{Ratio: 0.5}, 100, false},
		{Policy{Ratio: 0.999}, 1, true},
		{Policy{Ratio: 0.999}, 2, false},
		{Policy{Ratio: 0.5, Metric: MetricConfig{Name: "ea"}}, 4, true},
		{Policy{Ratio: 0.5, Metric: MetricConfig{Name: "ea"}}, 5, false},
		{Policy{BudgetTokens: 100}, 100, true},
		{Policy{BudgetTokens: 100}, 101, false},
		{Policy{BudgetBytes: 40_000}, 100, true},
		{Policy{BudgetBytes: 39_999}, 100, false},
		{Policy{Ratio: 1e-12}, 100, false},
	} {
		bound, err := c.p.Compile("m", shape)
		require.NoError(t, err)
		d := bound.Demand(c.T)
		require.NoError(t, d.Validate())
		require.Equal(t, c.untouched, d.NoOp(), "%s at %d", c.p.String(), c.T)
		require.Equal(t, c.p.prefills() || c.p.Decode.Enabled(), c.p.Enabled())
	}
	var none *Policy
	require.False(t, none.Enabled())
}

func TestPolicyProtection(t *testing.T) {
	profile := testProfile(t, 2, 2, 300)
	shape := CacheShape{Layers: 2, KVHeads: 2}
	snap := MetricConfig{Name: "snapkv"}
	for _, c := range []struct {
		p    Policy
		want Protection
	}{
		{Policy{Metric: snap, Ratio: 0.5}, Protection{0, 32, false}},
		{Policy{Metric: MetricConfig{Name: "keydiff"}, Ratio: 0.5}, Protection{}},
		{Policy{Metric: MetricConfig{Name: "ea"}, Ratio: 0.5}, Protection{4, 0, false}},
		{Policy{Metric: MetricConfig{Name: "h2o"}, Ratio: 0.5}, Protection{0, 125, false}},
		{Policy{Metric: snap, Ratio: 0.5, Protection: &Protection{1, 2, true}}, Protection{1, 2, true}},
		{Policy{Metric: MetricConfig{Name: "keydiff"}, Allocator: AllocatorConfig{Name: "lukv"}, Profile: profile, Ratio: 0.5}, Protection{4, 1, false}},
	} {
		bound, err := c.p.Compile("test", shape)
		require.NoError(t, err)
		require.Equal(t, c.want, bound.Demand(500).Protection, c.p.String())
	}
	for _, name := range Metrics() {
		m, err := NewMetric(MetricConfig{Name: name})
		require.NoError(t, err)
		want := Protection{4, 1, false}
		switch name {
		case "snapkv", "cake", "defensivekv", "criticalkv", "chunkkv":
			want.Window = 32
		case "lagkv":
			want.Window, want.Recent = 128, true
		case "compactor":
			want.Sinks, want.Window = 8, 4
		}
		require.Equal(t, want, ProfiledProtection(m), name)
	}
}

func TestPolicyRerotates(t *testing.T) {
	for metric, want := range map[string]bool{
		`{"name":"streaming_llm","rerotate":true}`: true, `{"name":"streaming_llm"}`: false, `{"name":"knorm"}`: false,
	} {
		p, err := ParsePolicy([]byte(`{"ratio":0.5,"metric":` + metric + `}`))
		require.NoError(t, err)
		c, err := p.Compile("m", CacheShape{Layers: 1, KVHeads: 1})
		require.NoError(t, err)
		require.Equal(t, want, c.Rerotates(), metric)
	}
}

// TestPolicyProfile: a profile is rejected wherever it does not belong, and
// its digest travels with the policy.
func TestPolicyProfile(t *testing.T) {
	shape := CacheShape{Layers: 2, KVHeads: 2}
	policy := Policy{
		Metric: MetricConfig{Name: "keydiff"}, Allocator: AllocatorConfig{Name: "lukv"},
		Ratio: 0.8, Profile: testProfile(t, 2, 2, 300),
	}
	c, err := policy.Compile("test", shape)
	require.NoError(t, err)
	digest, err := policy.Profile.Digest()
	require.NoError(t, err)
	require.Equal(t, digest, c.Policy().ProfileDigest)
	require.Regexp(t, "^sha256:[0-9a-f]{64}$", digest)

	for want, change := range map[string]func(p *Policy, model *string, s *CacheShape){
		"model: the profile was made for test": func(p *Policy, model *string, s *CacheShape) { *model = "other" },
		"metric: the profile was made for":     func(p *Policy, model *string, s *CacheShape) { p.Metric.Name = "knorm" },
		`"block":64`:                           func(p *Policy, model *string, s *CacheShape) { p.Metric.Params = `{"block":64}` },
		"sinks: the profile was made for 4":    func(p *Policy, model *string, s *CacheShape) { p.Protection = &Protection{0, 1, false} },
		"2 layers of 2 KV heads":               func(p *Policy, model *string, s *CacheShape) { s.KVHeads = 4 },
		"layer 1: sliding window":              func(p *Policy, model *string, s *CacheShape) { s.Excluded = []bool{false, true} },
		"digest: the policy was made with":     func(p *Policy, model *string, s *CacheShape) { p.ProfileDigest = "sha256:11" },
		"decode metric": func(p *Policy, model *string, s *CacheShape) {
			p.Decode = DecodeConfig{Mode: "periodic", Metric: &MetricConfig{Name: "knorm"}}
		},
	} {
		p, model, s := policy, "test", shape
		change(&p, &model, &s)
		_, err := p.Compile(model, s)
		require.ErrorIs(t, err, ErrProfileMismatch, want)
		require.ErrorContains(t, err, want)
	}
	policy.Profile = nil
	_, err = policy.Compile("test", shape)
	require.ErrorContains(t, err, "profile: found none")
}

// TestDefaultMethods: the default metric has an allocator of its own, other metrics and the
// arithmetic of kvpress have equal budgets.
func TestDefaultMethods(t *testing.T) {
	for _, x := range []struct {
		p    Policy
		want [2]string
	}{
		{Policy{}, [2]string{DefaultMetric, "adakv"}},
		{Policy{Metric: MetricConfig{Name: DefaultMetric, Params: `{"values":true}`}}, [2]string{DefaultMetric, "adakv"}},
		{Policy{Metric: MetricConfig{Name: "snapkv"}}, [2]string{"snapkv", "uniform"}},
		{Policy{Allocator: AllocatorConfig{Name: "uniform"}}, [2]string{DefaultMetric, "uniform"}},
		{Policy{KVPressRounding: true}, [2]string{DefaultMetric, "uniform"}},
		{Policy{Ratio: 0.5, Decode: DecodeConfig{Mode: "tova", TargetSize: 40}}, [2]string{DefaultMetric, "uniform"}},
	} {
		m, a := x.p.Methods()
		require.Equal(t, x.want, [2]string{m.Name, a.Name}, x.p)
	}
}

// TestCompat: the switch selects the literal, unfloored arithmetic.
func TestCompat(t *testing.T) {
	c, err := (&Policy{Ratio: 0.9, KVPressRounding: true}).Compile("m", CacheShape{Layers: 1, KVHeads: 2})
	require.NoError(t, err)
	d := c.Demand(10)
	require.Zero(t, d.Share())
	b, err := Allocate(c.Allocator(), d, nil)
	require.NoError(t, err)
	require.Equal(t, [][]int{{0, 0}}, b)
	c, err = (&Policy{Allocator: AllocatorConfig{Name: "uniform"}, Ratio: 0.9}).Compile("m", CacheShape{Layers: 1, KVHeads: 2})
	require.NoError(t, err)
	b, err = Allocate(c.Allocator(), c.Demand(10), nil)
	require.NoError(t, err)
	require.Equal(t, [][]int{{1, 1}}, b)

	lu := Policy{Metric: MetricConfig{Name: "keydiff"}, Allocator: AllocatorConfig{Name: "lukv"}, Ratio: 0.5, KVPressRounding: true, Profile: testProfile(t, 2, 2, 300)}
	c, err = lu.Compile("test", CacheShape{Layers: 2, KVHeads: 2})
	require.NoError(t, err)
	require.Equal(t, `{"name":"lukv","lookup":"nearest"}`, c.Policy().Allocator.String())
}

func TestDecodeBudgets(t *testing.T) {
	shape := CacheShape{Layers: 2, KVHeads: 2}
	rng := rand.New(rand.NewPCG(2, 2))
	profile := testProfile(t, 2, 2, 300)
	for _, cfg := range allocatorTable() {
		if strings.Contains(cfg.Params, "importance") || strings.Contains(cfg.Params, "weights") {
			continue // its table is for another shape
		}
		p := Policy{Metric: MetricConfig{Name: "keydiff"}, Allocator: cfg, Decode: DecodeConfig{Mode: "periodic", TargetSize: 50}}
		if cfg.NeedsProfile() {
			p.Profile = profile
		}
		c, err := p.Compile("test", shape)
		require.NoError(t, err)
		require.NotNil(t, c.Decoding())
		budgets := c.DecodeBudgets()
		if cfg.Name == "uniform" {
			require.Nil(t, budgets)
			continue
		}
		for _, lens := range [][]int{{200, 200}, {120, 30}} {
			s := make(Scores, 2)
			for h := range s {
				s[h] = make([]float32, lens[h])
				for i := range s[h] {
					s[h][i] = rng.Float32()
				}
			}
			got, err := budgets(&Layer{Index: 1, KVHeads: 2, T: 200, NextPosition: 200}, lens, 50, s, Protection{4, 1, false})
			require.NoError(t, err)
			where := fmt.Sprintf("%s %v: %v", cfg, lens, got)
			for h := range got {
				require.LessOrEqual(t, got[h], lens[h], where)
				require.GreaterOrEqual(t, got[h], 1, where)
			}
			switch AllocatorConfigOf(c.Allocator()).Name {
			case "adakv", "global":
				if strings.Contains(cfg.Params, "interpolate") { // rounds on its own
					require.LessOrEqual(t, got[0]+got[1], 102, where)
				} else {
					require.Equal(t, 100, got[0]+got[1], where)
				}
			case "lukv":
				if lens[1] == 200 { // the first cut: the rule of the specification
					d := Demand{T: 200, Layers: 2, KVHeads: 2, Ratio: 0.75, Protection: Protection{4, 1, false}}
					want, err := c.LayerBudgets(d, 1, nil)
					require.NoError(t, err)
					require.Equal(t, want, got, where)
				}
			}
		}
	}
}

// TestDecodeBudgetsCountPositions: allocators see the ratio of the target to the positions
// seen so far, whatever the cache still holds of them (spec 7.1).
func TestDecodeBudgetsCountPositions(t *testing.T) {
	profile := testProfile(t, 2, 2, 300)
	p := Policy{Metric: MetricConfig{Name: "keydiff"}, Allocator: AllocatorConfig{Name: "lukv"}, Profile: profile, Decode: DecodeConfig{Mode: "periodic", TargetSize: 50}}
	c, err := p.Compile("test", CacheShape{Layers: 2, KVHeads: 2})
	require.NoError(t, err)
	prot := Protection{Sinks: 4, Window: 1}
	for _, seen := range []int{100, 137, 400} {
		lens := []int{90, 90}
		got, err := c.DecodeBudgets()(&Layer{Index: 1, KVHeads: 2, T: 90, NextPosition: seen}, lens, 50, nil, prot)
		require.NoError(t, err)
		want, err := c.LayerBudgets(Demand{T: seen, Layers: 2, KVHeads: 2, Ratio: 1 - 50/float64(seen), Protection: prot}, 1, nil)
		require.NoError(t, err)
		for h := range want {
			require.Equal(t, min(want[h], lens[h]), got[h], "%d positions, head %d", seen, h)
		}
	}
	few, err := c.LayerBudgets(Demand{T: 90, Layers: 2, KVHeads: 2, Ratio: 1 - 50./90, Protection: prot}, 1, nil)
	require.NoError(t, err)
	many, err := c.LayerBudgets(Demand{T: 400, Layers: 2, KVHeads: 2, Ratio: 1 - 50./400, Protection: prot}, 1, nil)
	require.NoError(t, err)
	require.NotEqual(t, few, many, "the two rules differ")
}

// TestFloorOfLUKV: no head falls below max(⌈0.01·T⌉, protected entries), for lengths that are
// multiples of 100 and others (spec 5.7).
func TestFloorOfLUKV(t *testing.T) {
	ratios := make([]float64, solve.Levels*2)
	for i := range solve.Levels { // one head keeps nothing where it can
		both := 2 * float64(i+1) / 100
		ratios[2*i] = min(1, both)
		ratios[2*i+1] = both - ratios[2*i]
	}
	id := DefaultProfileIdentity()
	id.Model, id.Metric = "test", MetricConfig{Name: "keydiff"}
	profile, err := NewProfile(id, 1, 2, ratios, nil)
	require.NoError(t, err)
	a, err := NewAllocator(AllocatorConfig{Name: "lukv"}, profile)
	require.NoError(t, err)
	for T, floor := range map[int]int{200: 2, 201: 3, 250: 3, 299: 3, 300: 3, 301: 4, 1050: 11, 90: 1, 101: 2} {
		got, err := Allocate(a, Demand{T: T, Layers: 1, KVHeads: 2, Ratio: 0.6}, nil)
		require.NoError(t, err)
		require.Equal(t, floor, got[0][0], "T = %d: %v", T, got)
		got, err = Allocate(a, Demand{T: T, Layers: 1, KVHeads: 2, Ratio: 0.6, Protection: Protection{Sinks: 4, Window: 1}}, nil)
		require.NoError(t, err)
		require.Equal(t, max(floor, 5), got[0][0], "T = %d with protected entries: %v", T, got)
	}
}

func TestNotes(t *testing.T) {
	shape := CacheShape{Layers: 4, KVHeads: 2}
	c, err := (&Policy{Metric: MetricConfig{Name: "snapkv"}, Ratio: 0.9, Allocator: AllocatorConfig{Name: "pyramidkv", Params: `{"window":64}`}}).Compile("m", shape)
	require.NoError(t, err)
	d := c.Demand(200)
	b, err := Allocate(c.Allocator(), d, nil)
	require.NoError(t, err)
	notes := c.Notes(d, b)
	require.Len(t, notes, 3)
	require.Contains(t, notes[0], "keeps only 19 of 200")
	require.Contains(t, notes[1], "8 heads have budgets below their 32 protected entries")
	require.Contains(t, notes[2], "too small for a pyramid")
	require.Empty(t, c.Notes(c.Demand(1), nil))
}

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(`{"metric":{"name":"snapkv","window":8},"allocator":{"name":"adakv"},"ratio":0.5}`))
	f.Add([]byte(`{"budget_bytes":1,"decode":{"mode":"h2o"},"protection":{"sinks":1,"window":2}}`))
	f.Add([]byte(`{"compat":true,"rounding":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		defer testfuzz.Bound(t, len(raw))()
		p, err := ParsePolicy(raw)
		if err != nil {
			return
		}
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParsePolicy(data); err != nil {
			t.Fatalf("%s does not come back: %v", data, err)
		}
		_, _ = p.Compile("m", CacheShape{Layers: 2, KVHeads: 2, BytesPerEntry: 8})
	})
}

func TestStrictJSON(t *testing.T) {
	for _, text := range []string{`{"ratio":0.5} x`, `{} ]`, `{}{}`, `{"ratio":0.5,"no":1}`} {
		_, err := ParsePolicy([]byte(text))
		require.Error(t, err, text)
		c, err := ParseAllocatorConfig(text)
		if err == nil {
			err = c.Validate()
		}
		require.Error(t, err, text)
	}
}
