package lukv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kvcache"
)

// Policy says how a cache is compressed: which entries matter (metric), how
// many each head keeps (allocator), how much is kept overall, what is always
// kept, and what happens while decoding. It is plain data: everything but the
// profile itself round-trips through JSON. The zero value compresses nothing.
type Policy struct {
	// Metric ranks entries; an empty name means [DefaultMetric].
	Metric MetricConfig `json:"metric"`

	// Allocator divides the budget; an empty name means adakv for [DefaultMetric], and uniform
	// for all other metrics and with compression while decoding.
	Allocator AllocatorConfig `json:"allocator"`

	// At most one of the three is set. Ratio is the fraction of entries
	// removed, 0 <= Ratio < 1. BudgetTokens is the number of entries kept per
	// head on average. BudgetBytes is the size of the keys and values kept,
	// page slack and sliding-window layers not counted.
	Ratio        float64 `json:"ratio,omitempty"`
	BudgetTokens int     `json:"budget_tokens,omitempty"`
	BudgetBytes  int64   `json:"budget_bytes,omitempty"`

	// CacheType is the type of cached keys and values, as kvcache.ParseType reads it; empty:
	// that of the session.
	CacheType string `json:"cache_type,omitempty"`

	Rounding Rounding `json:"rounding,omitzero"`

	// Protection replaces what metric and allocator protect by default: under
	// lukv that is [ProfiledProtection], otherwise the metric's own protected set.
	Protection *Protection `json:"protection,omitempty"`

	// Decode compresses while decoding; the zero value does not.
	Decode DecodeConfig `json:"decode,omitzero"`

	// KVPressRounding reproduces older kvpress number for number: in its rounding of budgets (Rounding must
	// then be empty or the same) and, for lukv without parameters, the nearest level
	// of a profile.
	KVPressRounding bool `json:"compat,omitempty"`

	// ProfileDigest is the [Profile.Digest] of the profile that was used.
	// Compile fills it in; if it is already set, Compile rejects any other
	// profile.
	ProfileDigest string `json:"profile,omitempty"`

	// Profile is needed by the allocator lukv and by the metric learned; if it is
	// given, the metric triattention reads its centres. Not part of the JSON.
	Profile *Profile `json:"-"`
}

// DefaultMetric is the metric of a policy that names none: of the cheap ones that need no
// profile, it loses about as little as any where the question is not known when the context
// is compressed (docs/results.md), and it reads nothing but keys.
const DefaultMetric = "key_distance"

// ParsePolicy reads a policy from JSON and validates it. Unknown fields are
// errors.
func ParsePolicy(data []byte) (*Policy, error) {
	var p Policy
	if err := decodeStrict(data, &p); err != nil {
		return nil, fmt.Errorf("read compression policy: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("read compression policy: %w", err)
	}
	return &p, nil
}

// String returns the policy as compact JSON.
func (p *Policy) String() string {
	data, err := json.Marshal(p)
	if err != nil { // a number that is not finite, which Validate rejects
		return err.Error()
	}
	return string(data)
}

// Enabled reports whether the policy may change a cache at all.
func (p *Policy) Enabled() bool { return p != nil && (p.prefills() || p.Decode.Enabled()) }

// prefills reports whether the prompt is compressed.
func (p *Policy) prefills() bool {
	return p.Ratio > 0 || p.BudgetTokens > 0 || p.BudgetBytes > 0
}

// UsesProfile reports whether a profile matters: the allocator needs one, or a
// metric, for the prompt or while decoding, reads the centres or the rankings that
// one can hold.
func (p *Policy) UsesProfile() bool {
	_, a := p.Methods()
	return a.NeedsProfile() || p.anyMetric(NeedsCenters) || p.anyMetric(NeedsRankings)
}

// Learned returns the configuration of the metric learned that ranks the prompt or
// while decoding, by itself or within another metric; ok is false if none does. A
// profile that holds its rankings is then required.
func (p *Policy) Learned() (c MetricConfig, ok bool) {
	p.anyMetric(func(m Metric) bool {
		l, found := learnedWithin(m)
		if found {
			c, ok = MetricConfigOf(l), true
		}
		return found
	})
	return c, ok
}

// anyMetric reports whether the metric of the prompt or that of decoding satisfies is.
func (p *Policy) anyMetric(is func(Metric) bool) bool {
	m, _ := p.Methods()
	configs := []MetricConfig{m}
	if p.Decode.Metric != nil {
		configs = append(configs, *p.Decode.Metric)
	}
	return slices.ContainsFunc(configs, func(c MetricConfig) bool {
		metric, err := NewMetric(c)
		return err == nil && is(metric)
	})
}

// Methods returns the configurations of metric and allocator as [Policy.Compile] reads them, with
// the names of the defaults where the policy has none; other parameters are not filled in.
func (p *Policy) Methods() (MetricConfig, AllocatorConfig) {
	m, a := p.Metric, p.Allocator
	if m.Name == "" {
		m.Name = DefaultMetric
	}
	if a.Name == "" {
		a.Name = "uniform"
		// Its scores of different heads can be compared, and on a real model uniform budgets
		// lose 1.4 to 3.3 times as much (docs/experiments.md).
		if m.Name == DefaultMetric && !p.KVPressRounding && !p.Decode.Enabled() {
			a.Name = "adakv"
		}
	}
	if p.KVPressRounding && a == (AllocatorConfig{Name: "lukv"}) {
		a.Params = `{"lookup":"nearest"}`
	}
	return m, a
}

// Validate reports the first thing in the policy that makes no sense. It does
// not need the profile.
func (p *Policy) Validate() error {
	set := 0
	for _, on := range []bool{p.Ratio != 0, p.BudgetTokens != 0, p.BudgetBytes != 0} {
		if on {
			set++
		}
	}
	switch {
	case !(p.Ratio >= 0 && p.Ratio < 1):
		return fmt.Errorf("policy: ratio %v, expected at least 0 and below 1", p.Ratio)
	case p.BudgetTokens < 0 || p.BudgetTokens > maxSlots:
		return fmt.Errorf("policy: budget_tokens %d, expected 0 to %d", p.BudgetTokens, maxSlots)
	case p.BudgetBytes < 0:
		return fmt.Errorf("policy: budget_bytes %d, expected at least 0", p.BudgetBytes)
	case set > 1:
		return fmt.Errorf("policy: found %d of ratio, budget_tokens and budget_bytes, expected at most one", set)
	case p.KVPressRounding && p.Rounding != Rounding{} && p.Rounding != kvpressRounding():
		return fmt.Errorf("policy: rounding is given beside compat, expected one of them")
	case p.Protection != nil && (p.Protection.Sinks < 0 || p.Protection.Sinks > maxSlots || p.Protection.Window < 0 || p.Protection.Window > maxSlots):
		return fmt.Errorf("policy: protection of %d sinks and a window of %d, expected 0 to %d", p.Protection.Sinks, p.Protection.Window, maxSlots)
	}
	if p.CacheType != "" {
		if _, _, err := kvcache.ParseType(p.CacheType); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
	}
	m, a := p.Methods()
	if _, err := NewMetric(m); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if err := a.Validate(); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if err := p.Rounding.Validate(); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if _, err := p.Decode.WithDefaults(); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	return nil
}

// ProfiledProtection returns the protection that profiles are made with and that
// LU-KV uses at run time (spec 5.4): four sinks and the last position, or more
// if the metric protects more, such as its observation window.
func ProfiledProtection(m Metric) Protection {
	p := Protection{Sinks: 4, Window: 1}.Union(m.Protection(maxSlots, 0))
	if m, ok := m.(ProfileProtecter); ok {
		p = p.Union(m.ProfileProtection())
	}
	return p
}

// CacheShape describes a model's cache to a policy.
type CacheShape struct {
	Layers        int
	KVHeads       int
	Excluded      []bool // [L] layers with a sliding window; nil: none
	BytesPerEntry int    // key and value of one entry of one head
}

// Compiled is a policy bound to a model's cache: everything is resolved and
// checked, nothing can fail later because of the configuration. Immutable and
// safe for concurrent use.
type Compiled struct {
	policy    Policy
	shape     CacheShape
	metric    Metric
	allocator Allocator
	decoding  *Decoding

	usesProfile bool // the allocator reads a profile
}

// Compile resolves the policy for a model's cache. The identity of a profile is
// checked against model, the model's fingerprint. Errors caused by a profile
// made for something else wrap [ErrProfileMismatch].
func (p *Policy) Compile(model string, shape CacheShape) (*Compiled, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if shape.Layers < 1 || shape.KVHeads < 1 || shape.Excluded != nil && len(shape.Excluded) != shape.Layers {
		return nil, fmt.Errorf("policy: cache of %d layers of %d KV heads with %d exclusions", shape.Layers, shape.KVHeads, len(shape.Excluded))
	}
	if p.BudgetBytes > 0 && shape.BytesPerEntry < 1 {
		return nil, fmt.Errorf("policy: budget_bytes for a cache of %d bytes per entry", shape.BytesPerEntry)
	}
	c := &Compiled{policy: *p, shape: shape}
	if p.KVPressRounding {
		c.policy.Rounding = kvpressRounding()
	}
	c.policy.Rounding = c.policy.Rounding.withDefaults()
	m, a := p.Methods()
	var err error
	if c.metric, err = NewMetric(m); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if c.allocator, err = NewAllocator(a, p.Profile); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if _, refines := c.metric.(Refiner); refines && c.allocator.BudgetsKnown() == KnownSoFar {
		return nil, fmt.Errorf("policy: allocator %s: found budgets that shrink as layers arrive beside metric %s, which ranks anew for every budget; expected cascade to be off", a.Name, m.Name)
	}
	c.policy.Metric, c.policy.Allocator = MetricConfigOf(c.metric), AllocatorConfigOf(c.allocator)
	if c.usesProfile = a.NeedsProfile(); c.usesProfile {
		if err := c.checkProfile(model); err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
	}
	if m, ok := c.metric.(perHead); ok {
		if c.metric, err = c.bindHeads(m); err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
	}
	if c.metric, err = c.calibrated(model, c.metric); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if c.decoding, err = NewDecoding(p.Decode, c.metric); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if c.decoding != nil {
		if c.decoding.metric, err = c.calibrated(model, c.decoding.metric); err != nil {
			return nil, fmt.Errorf("policy: decode %w", err)
		}
		c.policy.Decode = c.decoding.Config()
		if used := MetricConfigOf(c.decoding.Metric()); c.usesProfile && !c.policy.Decode.Prefill && used.String() != c.policy.Metric.String() {
			return nil, fmt.Errorf("policy: decode metric: %w: the profile was made for %v, decoding ranks with %v", ErrProfileMismatch, c.policy.Metric, used)
		}
	}
	if prot, fixed := c.fixedProtection(); fixed {
		c.policy.Protection = &prot
		if c.decoding != nil && !c.policy.Decode.Prefill {
			c.decoding = c.decoding.Protect(prot)
		}
	}
	return c, nil
}

// calibrated returns a metric with the measurements of the profile.
func (c *Compiled) calibrated(model string, m Metric) (Metric, error) {
	p := c.policy.Profile
	if l, ok := learnedWithin(m); ok {
		if err := p.checkRankings(l); err != nil {
			return nil, fmt.Errorf("metric %s: %w", metrics.nameOf(m), err)
		}
		return c.withProfile(model, m)
	}
	switch {
	case !NeedsCenters(m):
		return m, nil
	case p == nil && c.policy.ProfileDigest == "":
		return m, nil
	case p == nil:
		return nil, fmt.Errorf("metric %s: %w: the policy was made with the profile %s, this run has none", metrics.nameOf(m), ErrProfileMismatch, c.policy.ProfileDigest)
	case p.QueryCenters == nil && c.usesProfile:
		return m, nil // as when the profile was measured
	case p.QueryCenters == nil:
		return nil, fmt.Errorf("metric %s: %w: found a profile of the metric %s without centres of queries, expected one of this metric", metrics.nameOf(m), ErrProfileMismatch, p.Identity.Metric.Name)
	}
	return c.withProfile(model, m)
}

// withProfile returns a metric with the data of the profile, which is checked first
// unless the allocator reads it too.
func (c *Compiled) withProfile(model string, m Metric) (Metric, error) {
	p := c.policy.Profile
	if !c.usesProfile {
		if p.Identity.Model != model {
			return nil, fmt.Errorf("metric %s: %w: model: the profile was made for %s, this run has %s", metrics.nameOf(m), ErrProfileMismatch, p.Identity.Model, model)
		}
		if err := c.takeProfile(); err != nil {
			return nil, err
		}
	}
	return WithCalibration(m, &p.CalibrationData), nil
}

// bindHeads gives each head the metric that the profile names for the ratio.
func (c *Compiled) bindHeads(m perHead) (Metric, error) {
	d, err := c.policy.Decode.WithDefaults()
	switch {
	case err != nil:
		return nil, err
	case !c.usesProfile:
		return nil, fmt.Errorf("metric per_head: found allocator %s, expected lukv with a profile that names the metric of each head", c.policy.Allocator.Name)
	case c.policy.BudgetTokens > 0 || c.policy.BudgetBytes > 0 || d.Enabled() && !d.Prefill:
		return nil, errors.New("metric per_head: found a budget in entries or bytes, or periodic decoding, expected a ratio alone: the metric of a head depends on it")
	}
	return m.bind(c.policy.Profile, c.policy.Ratio)
}

func (c *Compiled) checkProfile(model string) error {
	p := c.policy.Profile
	prot, _ := c.fixedProtection()
	if err := p.Check(model, c.policy.Metric, prot); err != nil {
		return err
	}
	return c.takeProfile()
}

// takeProfile checks the profile against the cache's shape and the digest that the
// policy names, and records its digest.
func (c *Compiled) takeProfile() error {
	p := c.policy.Profile
	if err := p.CheckShape(c.shape.Layers, c.shape.KVHeads); err != nil {
		return err
	}
	for l := range c.shape.Layers {
		here := c.shape.Excluded != nil && c.shape.Excluded[l]
		if there := slices.Contains(p.Excluded, l); there && !here || here && !there && p.Pairs > 0 {
			return fmt.Errorf("%w: layer %d: sliding window in the profile %t, in this model %t", ErrProfileMismatch, l, there, here)
		}
	}
	digest, err := p.Digest()
	if err != nil {
		return err
	}
	if want := c.policy.ProfileDigest; want != "" && want != digest {
		return fmt.Errorf("%w: digest: the policy was made with %s, this run has %s", ErrProfileMismatch, want, digest)
	}
	c.policy.ProfileDigest = digest
	return nil
}

// fixedProtection returns the protected set if it does not depend on the
// metric's view of the length.
func (c *Compiled) fixedProtection() (Protection, bool) {
	switch {
	case c.policy.Protection != nil:
		return *c.policy.Protection, true
	case c.usesProfile:
		return ProfiledProtection(c.metric), true
	}
	return Protection{}, false
}

// Policy returns the effective policy: metric, allocator, rounding, protection
// and decoding with every default written out, and the digest of the profile.
// Only a protection that is left to the metric, and so depends on the length,
// stays open. Compiling it again with the same profile gives the same policy.
func (c *Compiled) Policy() Policy { return c.policy }

// Metric returns the metric that ranks the prompt's entries.
func (c *Compiled) Metric() Metric { return c.metric }

// Allocator returns the allocator.
func (c *Compiled) Allocator() Allocator { return c.allocator }

// Rerotates reports whether the owner of the cache must renumber the kept
// entries of the prompt (see [Rerotate]).
func (c *Compiled) Rerotates() bool {
	m, ok := c.metric.(interface{ Rerotates() bool })
	return ok && m.Rerotates()
}

// LayerBudgets returns the budgets of layer l, [K], from its scores alone, for
// an allocator that needs nothing else.
func (c *Compiled) LayerBudgets(d Demand, l int, s Scores) ([]int, error) {
	seen := make([]Scores, d.Layers)
	seen[l] = s
	b, err := Allocate(c.allocator, d, seen)
	if err != nil {
		return nil, err
	}
	return b[l], nil
}

// Refine returns the scores that the entries of a layer are selected by, once
// its budgets are known (see [Refiner]).
func (c *Compiled) Refine(ctx context.Context, d Demand, l *Layer, s Scores, budgets []int) (Scores, error) {
	if a, ok := c.allocator.(budgetGuarantor); ok {
		l.GuaranteedBudget = a.GuaranteedBudget(d)
	}
	return Refine(ctx, c.metric, l, s, budgets)
}

// Decoding returns the decode-time compression, nil if there is none.
func (c *Compiled) Decoding() *Decoding { return c.decoding }

// Demand returns the demand of the policy on a cache of T entries per head. If it
// is [Demand.NoOp], the cache stays as it is and nothing need be scored.
// A policy that compresses only while decoding gives an untouched demand.
func (c *Compiled) Demand(T int) Demand {
	d := Demand{
		T: T, Layers: c.shape.Layers, KVHeads: c.shape.KVHeads, Excluded: c.shape.Excluded,
		Ratio: c.policy.Ratio, Rounding: c.policy.Rounding,
	}
	switch {
	case c.policy.BudgetTokens > 0:
		d = d.DemandTokens(c.policy.BudgetTokens)
	case c.policy.BudgetBytes > 0:
		d = d.DemandBytes(c.policy.BudgetBytes, c.shape.BytesPerEntry)
	}
	d.Protection = c.protection(T, d.Share())
	return d
}

func (c *Compiled) protection(T, n int) Protection {
	if p, fixed := c.fixedProtection(); fixed {
		return p
	}
	p := c.metric.Protection(T, n)
	if m, ok := c.metric.(ProfileProtecter); ok && T <= m.ProfileProtection().Sinks { // everything stays (spec 8)
		p.Sinks = T
	}
	return p
}

// Notes returns remarks for users about the outcome of d: budgets that are
// nearly nothing, protected entries that do not fit, a pyramid without slope.
func (c *Compiled) Notes(d Demand, budgets [][]int) []string {
	if d.NoOp() {
		return nil
	}
	var notes []string
	if n := d.Share(); n < 32 {
		notes = append(notes, fmt.Sprintf("a head keeps only %d of %d entries on average: a context this short rarely survives it", n, d.T))
	}
	if a := d.Achieved(budgets); a.Short > 0 {
		notes = append(notes, fmt.Sprintf("%d heads have budgets below their %d protected entries", a.Short, d.Protection.Count(d.T)))
	}
	if a, ok := c.allocator.(interface{ Notes(Demand) []string }); ok {
		notes = append(notes, a.Notes(d)...)
	}
	return notes
}

// DecodeBudgets returns a function that divides a layer's budget while decoding
// (spec 7.1), for [DecodeLayer.After]: target entries per head on average.
// Allocators that know budgets beforehand are asked as if the layer held every
// position seen so far, of which target may stay; heads that hold less than
// their budget keep all entries. The others are asked for this layer alone,
// as if it were the whole model. With the uniform allocator the function is
// nil, which gives every head target.
func (c *Compiled) DecodeBudgets() DecodeBudgets {
	if c.allocator == (uniform{}) {
		return nil
	}
	return func(l *Layer, lens []int, target int, s Scores, p Protection) ([]int, error) {
		d := c.Demand(max(l.NextPosition, 1))
		d.Protection = p
		seen := make([]Scores, d.Layers)
		switch {
		case c.usesProfile: // looks up a ratio
			d.Absolute, d.Ratio = false, max(0, 1-float64(target)/float64(d.T))
		case c.allocator.BudgetsKnown() == KnownBefore:
			d = d.DemandTokens(target)
		default:
			d.Excluded = make([]bool, d.Layers)
			for i := range d.Excluded {
				d.Excluded[i] = i != l.Index
			}
			d = d.DemandTokens(target)
			d.Weights = make([]float64, d.Layers)
			d.Weights[l.Index] = 1 // the only layer, so it gets all
			seen[l.Index] = s
		}
		all, err := Allocate(c.allocator, d, seen)
		if err != nil {
			return nil, fmt.Errorf("decode budgets: %w", err)
		}
		if a, ok := c.allocator.(budgetGuarantor); ok {
			l.GuaranteedBudget = a.GuaranteedBudget(d)
		}
		out := all[l.Index]
		for h := range out {
			out[h] = min(out[h], lens[h])
		}
		return out, nil
	}
}
