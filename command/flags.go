package command

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/strictjson"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tensor"
)

// modelFlags choose a model and how it runs.
type modelFlags struct {
	Model string `arg:"" help:"Checkpoint folder, GGUF file, name of a model fetched by lukv pull, or builtin."`

	runtimeFlags
}

// runtimeFlags say how a model runs.
type runtimeFlags struct {
	Threads    int      `group:"model" placeholder:"N" help:"Use N threads (default: all processors)."`
	Precision  string   `group:"model" enum:"auto,bf16,int8,f32" default:"auto" help:"Set the precision of activations in products: ${enum}. With int8, those with quantised weights round them to 8-bit integers."`
	CPU        string   `group:"model" name:"cpu" default:"auto" help:"Set the instruction set: auto, portable, avx2, avx512, avx512vnni, avx512bf16, neon, dotprod. Results do not depend on it."`
	CacheType  string   `group:"model" enum:"auto,${cachetypes}" default:"auto" help:"Set the type of cached keys and values: ${enum}. int8 halves the cache, int4 halves it again; k8v4 has keys of 8 bits and values of 4. Layers on a device take f32, f16, bf16 and int8."`
	MaxContext int      `group:"model" placeholder:"N" help:"Limit the context to N tokens, answer included (default: the model's limit)."`
	MaxCache   byteSize `group:"model" placeholder:"SIZE" help:"Limit the cache to SIZE, such as 512MiB (default: no limit; for lukv serve, half of the memory that is free after the weights)."`
	deviceFlags
}

// maxThreads bounds --threads: each thread has memory of its own.
const maxThreads = 1024

// open opens a model. The caller closes it.
func (f *runtimeFlags) open(e *env, name string) (*model.Model, error) {
	cpu, err := kernels.ParseCPU(f.CPU)
	if err != nil {
		return nil, usage("--cpu: %w", err)
	}
	if f.CPU == "auto" {
		cpu = kernels.Detect() // heeds LUKV_CPU
	}
	switch {
	case f.Threads < 0 || f.Threads > maxThreads:
		return nil, usage("--threads: found %d, expected 0 to %d", f.Threads, maxThreads)
	case f.MaxContext < 0:
		return nil, usage("--max-context: found %d, expected 0 or more", f.MaxContext)
	}
	opts := []model.Option{
		model.WithThreads(f.Threads), model.WithPrecision(model.Precision(f.Precision)),
		model.WithCPU(cpu), model.WithLogger(e.log),
	}
	if dir, err := os.UserCacheDir(); err == nil {
		opts = append(opts, model.WithDigestCache(filepath.Join(dir, "lukv", "digests")))
	}
	device, layers, err := f.device()
	if err != nil {
		return nil, err
	}
	if device != "" {
		opts = append(opts, model.WithDevice(device))
		if layers > 0 {
			opts = append(opts, model.WithDeviceLayers(layers))
		}
	}
	if name == builtin.Name {
		return builtin.Open(e.ctx, opts...)
	}
	dir, err := resolveModel(name)
	if err != nil {
		return nil, err
	}
	defer collectRarely()()
	m, err := model.Open(e.ctx, dir, opts...)
	if err != nil {
		if e.ctx.Err() == nil {
			err = explain(dir, err)
		}
		return nil, err
	}
	_, _ = m.Tokenizer() // every command needs it, and reports its error there
	return m, nil
}

// collectRarely lets the heap grow further between garbage collections until the function
// that it returns is called. The tables of a vocabulary grow a small heap to 30 MB and more,
// nearly all of which stays: four collections on the way take time and find nothing.
func collectRarely() (restore func()) {
	const percent = 400
	was := debug.SetGCPercent(percent)
	if was < 0 || was > percent { // as GOGC asks
		debug.SetGCPercent(was)
	}
	return func() { debug.SetGCPercent(was) }
}

// session returns the session options that the flags ask for.
func (f *runtimeFlags) session() model.SessionOptions {
	o := model.SessionOptions{MaxTokens: f.MaxContext, MaxCacheBytes: int64(f.MaxCache)}
	o.CacheType, o.CacheValues = cacheTypes(f.CacheType)
	return o
}

// cacheTypes returns the types of a cache by the name that a flag allows; 0 for auto.
func cacheTypes(name string) (keys, values tensor.Type) {
	keys, values, _ = kvcache.ParseType(name)
	return keys, values
}

// verifyFlag is for commands that read or write saved caches.
type verifyFlag struct {
	Verify bool `group:"model" help:"Read all weights and save their digest with caches; refuse caches of other weights. Without it, a sample identifies the model."`
}

// verify computes the digest of a model's weights, if --verify is given.
func (f *verifyFlag) verify(e *env, m *model.Model) error {
	if !f.Verify {
		return nil
	}
	line := e.progress()
	defer line.clear()
	line.show("reading all weights")
	_, err := m.Digest(e.ctx)
	return err
}

// loaded prints a note if a saved cache has no weights' digest to compare.
func (f *verifyFlag) loaded(e *env, path string) {
	if !f.Verify {
		return
	}
	file, size, err := inputfile.OpenSized(path)
	if err != nil {
		return // it was read a moment ago
	}
	defer file.Close()
	if info, err := model.ReadSessionInfo(path, file, size); err == nil && info.Digest == "" {
		e.note("note: %s was saved without --verify and does not say which weights it was made with: only a sample was compared", path)
	}
}

func (f *modelFlags) open(e *env) (*model.Model, error) { return f.runtimeFlags.open(e, f.Model) }

// byteSize is a number of bytes, written with or without a unit.
type byteSize int64

func (b *byteSize) UnmarshalText(text []byte) error {
	s := strings.ToLower(strings.TrimSpace(string(text)))
	units := []struct {
		name string
		size float64
	}{
		{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
		{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
		{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"b", 1},
	}
	unit := 1.0
	for _, u := range units {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			s, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x >= 0) || x*unit > math.MaxInt64/2 {
		return fmt.Errorf("found %q, expected a size such as 100000, 64MiB or 2GB", text)
	}
	*b = byteSize(x * unit)
	return nil
}

// protectFlags override the protection of metric and allocator.
type protectFlags struct {
	Sinks  *int `group:"policy" placeholder:"N" help:"Always keep the first N entries (default: set by metric and allocator)."`
	Window *int `group:"policy" placeholder:"N" help:"Always keep the last N entries (default: set by metric and allocator)."`
}

// protection returns the flags' protection, nil if neither was given. If only one
// was, the other has the metric's default under lukv.
func (f *protectFlags) protection(m lukv.MetricConfig) (*lukv.Protection, error) {
	if f.Sinks == nil && f.Window == nil {
		return nil, nil
	}
	metric, err := lukv.NewMetric(m)
	if err != nil {
		return nil, err
	}
	p := lukv.ProfiledProtection(metric)
	if f.Sinks != nil {
		p.Sinks = *f.Sinks
	}
	if f.Window != nil {
		p.Window = *f.Window
	}
	if p.Sinks < 0 || p.Window < 0 {
		return nil, usage("--sinks and --window: found %d and %d, expected 0 or more", p.Sinks, p.Window)
	}
	return &p, nil
}

// exactFlags are for commands that answer.
type exactFlags struct {
	Exact       bool `group:"policy" help:"Answer as without compression, to the bit: the compressed cache drafts, and the whole one, which stays in memory beside it, verifies several tokens in one pass. Pays with small models after long contexts."`
	DraftTokens *int `group:"policy" placeholder:"N" help:"With --exact: draft N tokens, 1 to 8, for each pass (default: as many as pay, which may be none)."`
}

// check returns an error if --exact does not go with a policy.
func (f *exactFlags) check(p *lukv.Policy) error {
	switch n := f.DraftTokens; {
	case n != nil && (*n < 1 || *n > 8):
		return usage("--draft-tokens: found %d, expected 1 to 8", *n)
	case !f.Exact:
		return nil
	case p != nil && p.Decode.Enabled():
		return usage("--exact: found a policy that compresses while decoding, expected one that compresses the context only")
	case p == nil || !budgeted(p):
		return usage("--exact would have no effect: the policy compresses nothing")
	}
	return nil
}

// drafts returns the number of tokens to draft for each pass, 0 for as many as pay.
func (f *exactFlags) drafts() int {
	if f.DraftTokens == nil {
		return 0
	}
	return *f.DraftTokens
}

// unused refuses what has no effect with or without --exact.
func (f *exactFlags) unused(g given) error {
	if !f.Exact {
		return g.unused("draft-tokens", "it is for --exact")
	}
	if !g.any(budgetFlags + " policy") {
		return g.unused("exact", "nothing would be compressed without --ratio, --budget-tokens, --budget-bytes or --policy")
	}
	return g.unused("max-loss measure-loss", "with --exact nothing is lost")
}

// policyFlags describe one compression policy.
type policyFlags struct {
	Ratio        float64  `group:"policy" placeholder:"R" help:"Remove this fraction of the context's cache, at least 0 and below 1 (default 0). Without a profile, expect little loss up to 0.5, and lost facts at 0.8 and more; see README."`
	BudgetTokens int      `group:"policy" placeholder:"N" help:"Keep N entries per head on average, instead of --ratio."`
	BudgetBytes  byteSize `group:"policy" placeholder:"SIZE" help:"Keep SIZE bytes of keys and values, instead of --ratio."`
	MaxLoss      *float64 `group:"policy" placeholder:"B" help:"Choose the ratio, instead of --ratio: the largest of 0.1 to 0.9 and 0.95 that loses at most this share, 0 to 1, of the facts that the full cache can repeat from the context. This is measured on the context and no guarantee for an answer."`
	MeasureLoss  bool     `group:"policy" help:"Measure how many of the facts that the full cache can repeat from the context are lost."`
	Preset       string   `group:"policy" placeholder:"NAME" help:"Start from a published preset; other flags override parts of it: ${presets}."`
	Metric       string   `group:"policy" placeholder:"NAME|JSON" help:"Rank entries by this metric (default key_distance, or the one of --profile): ${metrics}; or JSON with parameters. Without --metric and --allocator, the model's own profile is used if the user's cache or the program has one of learned or key_distance."`
	Allocator    string   `group:"policy" placeholder:"NAME|JSON" help:"Divide the budget among heads by this allocator (default adakv with the metric key_distance and without --decode, otherwise uniform): ${allocators}; or JSON with parameters."`
	Profile      string   `group:"policy" placeholder:"FILE" help:"Read the profile for the allocators lukv and duo or the metrics learned and triattention from FILE, made by lukv profile; builtin:output-error selects that of the embedded model."`
	Policy       string   `group:"policy" placeholder:"FILE" help:"Set the whole policy as JSON, as printed by --json, instead of the flags above."`
	Decode       string   `group:"policy" placeholder:"JSON" help:"Also compress while decoding, such as '{\"mode\":\"periodic\",\"target_size\":512}'."`
	Compat       bool     `group:"policy" help:"Round budgets like older versions of kvpress."`

	protectFlags
}

// policy returns the policy that the flags describe, nil if none.
func (f *policyFlags) policy(m *model.Model, name string) (*lukv.Policy, error) {
	var p *lukv.Policy
	if f.Policy != "" {
		if f.Ratio != 0 || f.BudgetTokens != 0 || f.BudgetBytes != 0 || f.Preset != "" || f.Metric != "" || f.Allocator != "" ||
			f.Decode != "" || f.Compat || f.MaxLoss != nil || f.Sinks != nil || f.Window != nil {
			return nil, usage("--policy: the file holds the whole policy, other compression flags cannot be given beside it")
		}
		data, err := inputfile.Read(f.Policy, maxInput)
		if err != nil {
			return nil, fmt.Errorf("read policy: %w", err)
		}
		if p, err = lukv.ParsePolicy(data); err != nil {
			return nil, usage("--policy %s: %w", f.Policy, err)
		}
	} else {
		var err error
		if p, err = f.fromFlags(); err != nil {
			return nil, err
		}
	}
	if !p.Enabled() && p.CacheType == "" {
		return nil, nil
	}
	if f.Profile != "" && !p.UsesProfile() {
		return nil, usage("--profile would have no effect: the policy's allocator is %s, which uses none", p.Allocator.Name)
	}
	var paths []string
	if f.Profile != "" {
		paths = []string{f.Profile}
	}
	set, err := loadProfiles(paths)
	if err != nil {
		return nil, err
	}
	if err := f.adopt(m, name, p, set); err != nil {
		return nil, err
	}
	if p.Profile != nil {
		return p, nil
	}
	if p.Profile, err = set.of(m, name, p); err != nil {
		return nil, err
	}
	return p, set.unused()
}

// adopt lets profiles decide what the flags leave open: the metric, if one is given for
// the allocator and no metric is; metric, allocator and profile, if nothing is said but
// how much is removed and the model has a profile of its own.
func (f *policyFlags) adopt(m *model.Model, name string, p *lukv.Policy, set *profileSet) (err error) {
	if f.Policy != "" || f.Preset != "" || f.Metric != "" {
		return nil
	}
	if f.Profile != "" {
		if x := set.profiles[0]; x != nil && p.Allocator.NeedsProfile() {
			p.Metric = x.Identity.Metric
			p.Protection, err = f.protection(p.Metric)
		}
		return err
	}
	if f.Allocator != "" || f.Compat || f.Sinks != nil || f.Window != nil || p.Decode.Enabled() {
		return nil
	}
	x, err := defaultProfile(m, name)
	if x != nil {
		p.Metric, p.Allocator, p.Profile = x.Identity.Metric, lukv.AllocatorConfig{Name: "lukv"}, x
		p.Protection = &x.Identity.Protection
	}
	return err
}

func (f *policyFlags) fromFlags() (*lukv.Policy, error) {
	p, err := f.shape()
	if err != nil {
		return nil, err
	}
	p.Ratio, p.BudgetTokens, p.BudgetBytes = f.Ratio, f.BudgetTokens, int64(f.BudgetBytes)
	if f.MaxLoss != nil {
		if err := f.checkMaxLoss(p); err != nil {
			return nil, err
		}
		p.Ratio = unchosenRatio
	}
	if p.Protection, err = f.protection(p.Metric); err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, usageError{err}
	}
	return p, nil
}

// unchosenRatio stands for the ratio that --max-loss has still to choose.
const unchosenRatio = 0.5

// checkMaxLoss returns an error if --max-loss is not a bound or does not go with a policy.
func (f *policyFlags) checkMaxLoss(p *lukv.Policy) error {
	switch {
	case !(*f.MaxLoss >= 0 && *f.MaxLoss <= 1):
		return usage("--max-loss: found %g, expected 0 to 1", *f.MaxLoss)
	case f.Ratio != 0 || f.BudgetTokens != 0 || f.BudgetBytes != 0:
		return usage("--max-loss chooses the ratio: expected no --ratio and no budget beside it")
	case p.Decode.Enabled():
		return usage("--max-loss: found a policy that compresses while decoding, expected one that compresses the context only")
	}
	return nil
}

// shape returns the policy without budget and protection: the preset, if one is
// named, with the parts that other flags replace.
func (f *policyFlags) shape() (*lukv.Policy, error) {
	p := new(lukv.Policy)
	var err error
	if f.Preset != "" {
		if *p, err = presetPolicy(f.Preset, f.Metric); err != nil {
			return nil, err
		}
	} else if p.Metric, err = parseMetric(cmp.Or(f.Metric, lukv.DefaultMetric)); err != nil {
		return nil, err
	}
	if f.Allocator != "" {
		if p.Allocator, err = parseAllocator(f.Allocator); err != nil {
			return nil, err
		}
	}
	if f.Preset == "" || f.Decode != "" {
		if p.Decode, err = parseDecode(f.Decode); err != nil {
			return nil, err
		}
	}
	p.KVPressRounding = p.KVPressRounding || f.Compat
	return p, nil
}

// presetPolicy returns a preset with another metric, if one is given.
func presetPolicy(name, metric string) (lukv.Policy, error) {
	var c lukv.MetricConfig
	if metric != "" {
		var err error
		if c, err = parseMetric(metric); err != nil {
			return lukv.Policy{}, err
		}
	}
	p, err := lukv.PresetPolicy(name, c)
	if err != nil {
		return p, usage("--preset: %w", err)
	}
	return p, nil
}

func parseMetric(text string) (lukv.MetricConfig, error) {
	if text == "" {
		text = "snapkv"
	}
	c, err := lukv.ParseMetricConfig(text)
	if err == nil {
		_, err = lukv.NewMetric(c)
	}
	if err != nil {
		return c, usage("--metric: %w", err)
	}
	return c, nil
}

func parseAllocator(text string) (lukv.AllocatorConfig, error) {
	if text == "" {
		text = "uniform"
	}
	c, err := lukv.ParseAllocatorConfig(text)
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return c, usage("--allocator: %w", err)
	}
	return c, nil
}

func parseDecode(text string) (lukv.DecodeConfig, error) {
	var c lukv.DecodeConfig
	if text == "" {
		return c, nil
	}
	if err := c.UnmarshalJSON([]byte(text)); err != nil {
		return c, usage("--decode: %w", err)
	}
	if _, err := c.WithDefaults(); err != nil {
		return c, usage("--decode: %w", err)
	}
	return c, nil
}

// builtinOutputErrors selects the embedded profiles of output errors.
const builtinOutputErrors = builtin.Name + ":output-error"

// profileSet holds the profiles given on the command line.
type profileSet struct {
	paths    []string
	profiles []*lukv.Profile // of the paths; nil: the embedded ones of output errors
	used     []bool          // which of them something asked for
}

func loadProfiles(paths []string) (*profileSet, error) {
	set := &profileSet{paths: paths, profiles: make([]*lukv.Profile, len(paths)), used: make([]bool, len(paths))}
	for i, path := range paths {
		if path == builtinOutputErrors {
			continue
		}
		var err error
		if set.profiles[i], err = lukv.LoadProfile(path); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// match returns the profile that was made for a metric of the model called name: one
// of those given or, if none are, the embedded model's own and those in the user's cache, and
// of these the one with the digest that a policy names, if any; nil if there is none.
// If m is nil, only the metric has to match.
func (s *profileSet) match(m *model.Model, name string, metric lukv.MetricConfig, digest string) (*lukv.Profile, error) {
	if full, err := lukv.NewMetric(metric); err == nil {
		metric = lukv.MetricConfigOf(full)
	}
	for i, p := range s.profiles {
		if p == nil {
			var err error
			if p, err = builtin.OutputErrorProfile(metric); err != nil {
				return nil, err
			}
		}
		if p != nil && (m == nil || p.Identity.Model == m.ID()) && p.Identity.Metric.String() == metric.String() {
			s.used[i] = true
			return p, nil
		}
	}
	if len(s.paths) > 0 {
		return nil, nil
	}
	own, err := ownProfiles(m, name, metric)
	for _, p := range own {
		if d, err := p.Digest(); err == nil && d == digest {
			return p, nil
		}
	}
	if len(own) == 0 || err != nil {
		return nil, err
	}
	return own[0], nil
}

// ownProfiles returns the profiles for a metric that a model has without being given any, the one
// to take first. m may be nil.
func ownProfiles(m *model.Model, name string, metric lukv.MetricConfig) (own []*lukv.Profile, err error) {
	switch {
	case name == builtin.Name:
		for _, find := range []func(lukv.MetricConfig) (*lukv.Profile, error){builtin.Profile, builtin.OutputErrorProfile} {
			p, err := find(metric)
			if err != nil {
				return nil, err
			}
			if p != nil {
				own = append(own, p)
			}
		}
	case m != nil:
		own = slices.DeleteFunc(cachedProfiles(m), func(p *lukv.Profile) bool { return p.Identity.Metric.String() != metric.String() })
	}
	return own, nil
}

// find is like match where a profile is required. A single profile that does not match
// is still returned, so that the policy's own check reports it.
func (s *profileSet) find(m *model.Model, name string, metric lukv.MetricConfig, digest string) (*lukv.Profile, error) {
	p, err := s.match(m, name, metric, digest)
	if p == nil && err == nil {
		p = s.only()
	}
	switch {
	case p != nil || err != nil:
		return p, err
	case len(s.paths) > 0:
		return nil, fmt.Errorf("%w: none of %s was made for this model and the metric %v", lukv.ErrProfileMismatch, strings.Join(s.paths, ", "), metricName(metric))
	}
	objective, kept := "", ", which keeps it where commands find it"
	if metric.Name == "learned" {
		objective = " --objective output-error"
	}
	if name == builtin.Name {
		objective, kept = objective+" -o FILE", " and give it with --profile FILE"
	}
	return nil, usage("this policy needs a profile, as the allocators lukv and duo and the metric learned do: make one with: lukv profile %s --metric %s%s%s",
		name, quoteArg(metricName(metric)), objective, kept)
}

// of returns the profile that a policy uses, nil if there is none. If the allocator
// needs one, it is that of the metric, and if the metric learned ranks, that of learned;
// otherwise it is one of the model that has the query centres that a metric reads, or the
// only one given, so that the policy's own check reports missing parts.
func (s *profileSet) of(m *model.Model, name string, p *lukv.Policy) (*lukv.Profile, error) {
	if p.Allocator.NeedsProfile() {
		return s.find(m, name, p.Metric, p.ProfileDigest)
	}
	if !p.UsesProfile() {
		return nil, nil
	}
	if learned, ok := p.Learned(); ok {
		return s.find(m, name, learned, p.ProfileDigest)
	}
	for i, x := range s.profiles {
		if x == nil {
			var err error
			if x, err = builtin.OutputErrorProfile(lukv.MetricConfig{Name: "triattention"}); err != nil {
				return nil, err
			}
		}
		if x != nil && (len(s.profiles) == 1 || x.Identity.Model == m.ID() && x.QueryCenters != nil) {
			s.used[i] = true
			return x, nil
		}
	}
	return nil, nil
}

// only returns the profile if exactly one was given, whatever it was made for.
func (s *profileSet) only() *lukv.Profile {
	if len(s.profiles) != 1 || s.profiles[0] == nil {
		return nil
	}
	s.used[0] = true
	return s.profiles[0]
}

// unused refuses a profile that nothing asked for.
func (s *profileSet) unused() error {
	for i, used := range s.used {
		if used {
			continue
		}
		whose := "metrics that they were made for"
		if p := s.profiles[i]; p != nil {
			whose = "metric " + metricName(p.Identity.Metric)
		}
		return usage("--profile %s: nothing uses it: it is for the allocator lukv and the %s", s.paths[i], whose)
	}
	return nil
}

// metricName returns a metric as written on the command line: its name alone
// if all its parameters have their defaults.
func metricName(c lukv.MetricConfig) string {
	full, err := lukv.NewMetric(c)
	plain, err2 := lukv.NewMetric(lukv.MetricConfig{Name: c.Name})
	if err == nil && err2 == nil && lukv.MetricConfigOf(full) == lukv.MetricConfigOf(plain) {
		return lukv.MetricConfigOf(full).Name
	}
	return compact(c)
}

// quoteArg quotes an argument for a shell if need be.
func quoteArg(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./=:,@+", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// commandLine returns the program's invocation, for the record.
func (e *env) commandLine() string {
	parts := []string{program}
	for _, a := range e.args {
		parts = append(parts, quoteArg(a))
	}
	return strings.Join(parts, " ")
}

// samplingFlags choose how tokens are drawn. Values that are not given come from the
// checkpoint's generation_config.json.
type samplingFlags struct {
	MaxTokens         *int     `group:"sampling" placeholder:"N" help:"Limit the answer to N tokens (default: the checkpoint's limit, or 1024; 0: until the context is full)."`
	Stop              []string `group:"sampling" sep:"none" placeholder:"TEXT" help:"End the answer before this text. May be repeated."`
	Temperature       *float64 `group:"sampling" placeholder:"T" help:"Set the sampling temperature; 0 is greedy (default: the checkpoint's, else 1 with --top-k, --top-p or --min-p, else 0)."`
	TopK              *int     `group:"sampling" placeholder:"K" help:"Sample from the K most likely tokens; 0: all (default: the checkpoint's)."`
	TopP              *float64 `group:"sampling" placeholder:"P" help:"Sample from the smallest set of tokens with probability P (default: the checkpoint's)."`
	MinP              *float64 `group:"sampling" placeholder:"P" help:"Drop tokens less likely than P times the most likely one (default: the checkpoint's)."`
	RepetitionPenalty *float64 `group:"sampling" placeholder:"F" help:"Penalise tokens that already occurred by this factor; 1: no penalty (default: the checkpoint's)."`
	Seed              uint64   `group:"sampling" placeholder:"N" help:"Set the random seed (default 0). Equal seeds give equal answers."`
}

// sampling merges the flags with the checkpoint's own settings.
func (f *samplingFlags) sampling(m *model.Model) (model.Sampling, error) {
	g := m.Config().Generation
	s := model.Sampling{MaxTokens: cmp.Or(g.MaxNewTokens, 1024), Seed: f.Seed, RepetitionPenalty: g.RepetitionPenalty}
	set(&s.MaxTokens, f.MaxTokens)
	if g.DoSample {
		s.Temperature, s.TopK, s.TopP, s.MinP = g.Temperature, g.TopK, g.TopP, g.MinP
	}
	set(&s.Temperature, f.Temperature)
	set(&s.TopK, f.TopK)
	set(&s.TopP, f.TopP)
	set(&s.MinP, f.MinP)
	set(&s.RepetitionPenalty, f.RepetitionPenalty)
	if f.TopP != nil && *f.TopP == 0 { // elsewhere it means the most likely token, or all tokens
		return s, usage("--top-p: found 0, expected more than 0 and at most 1; --temperature 0 takes the most likely token")
	}
	if f.RepetitionPenalty != nil && *f.RepetitionPenalty == 0 { // in the library it means none
		return s, usage("--repetition-penalty: found 0, expected more than 0; 1 is no penalty")
	}
	restricted := f.TopK != nil && *f.TopK > 0 || f.TopP != nil && *f.TopP < 1 || f.MinP != nil && *f.MinP > 0
	if f.Temperature == nil && s.Temperature == 0 && restricted {
		s.Temperature = 1 // restricting the draw implies drawing
	}
	if _, err := dialog.NewStops(f.Stop); err != nil {
		return s, usage("--stop: %w", err)
	}
	if err := s.Validate(); err != nil {
		return s, usageError{err}
	}
	return s, nil
}

// checkText returns an error if a document is a binary file, such as a PDF, and prints a note
// if it is text in another encoding, whose bytes the model would read all the same.
func (e *env) checkText(path string, data []byte) error {
	if bytes.HasPrefix(data, []byte("%PDF-")) || bytes.IndexByte(data, 0) >= 0 {
		return fmt.Errorf("%s: found a binary file (%s), expected text", path, http.DetectContentType(data))
	}
	if !utf8.Valid(data) {
		e.note("note: %s is not text in UTF-8: bytes that are not are read as U+FFFD", path)
	}
	return nil
}

// noteSeed prints a note if --seed has no effect.
func (e *env) noteSeed(s model.Sampling) {
	if e.given["seed"] && s.Temperature == 0 {
		e.note("note: --seed has no effect: the most likely token is always taken (--temperature draws)")
	}
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// splitList splits items at commas outside JSON, so that a list can hold names
// and JSON objects alike.
func splitList(items []string) []string {
	var out []string
	for _, item := range items {
		var at strictjson.Nesting
		from := 0
		for i := range len(item) {
			if at.Next(item[i]) && item[i] == ',' && at.Depth == 0 {
				out = append(out, strings.TrimSpace(item[from:i]))
				from = i + 1
			}
		}
		out = append(out, strings.TrimSpace(item[from:]))
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// maxInput bounds inputs of texts, questions and settings, in bytes.
const maxInput = 1 << 30

// unmarked returns a text without a byte order mark, which is not part of it.
func unmarked(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\ufeff")) }

// readText reads a regular file, or standard input for "-", without a byte order mark.
func (e *env) readText(path string) ([]byte, error) {
	data, err := e.readFile(path)
	return unmarked(data), err
}

// readFile reads a regular file, or standard input for "-".
func (e *env) readFile(path string) ([]byte, error) {
	if path != "-" {
		return inputfile.Read(path, maxInput)
	}
	type input struct {
		data []byte
		err  error
	}
	// A read from a terminal or a pipe cannot be cancelled, so an interrupted
	// command does not wait for it.
	done := make(chan input, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(e.in, maxInput+1))
		done <- input{data, err}
	}()
	var in input
	select {
	case <-e.ctx.Done():
		in.err = context.Cause(e.ctx)
	case in = <-done:
	}
	if in.err != nil {
		return nil, fmt.Errorf("read standard input: %w", in.err)
	}
	if len(in.data) > maxInput {
		return nil, fmt.Errorf("read standard input: longer than %d bytes", maxInput)
	}
	return in.data, nil
}
