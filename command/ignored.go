package command

import (
	"net"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lukv/lukv/internal/embedded"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/builtin"
)

// No flag is ignored silently: if one would have no effect given the others, the
// command says so and does nothing. The checks that need only the command line are
// here; those that depend on a file are with the code that reads it.

// given holds the flags of a command line, by name. Defaults and values from
// environment variables are not among them.
type given map[string]bool

func givenFlags(k *kong.Context) given {
	g := given{}
	for _, p := range k.Path {
		if p.Flag != nil {
			g[p.Flag.Name] = true
		}
	}
	return g
}

// any reports whether one of the flags was given.
func (g given) any(flags string) bool { return g.first(flags) != "" }

// first returns the first of the flags that was given, "" if none was.
func (g given) first(flags string) string {
	for name := range strings.FieldsSeq(flags) {
		if g[name] {
			return name
		}
	}
	return ""
}

// unused returns an error if one of the flags was given.
func (g given) unused(flags, why string) error {
	if name := g.first(flags); name != "" {
		return usage("--%s would have no effect: %s", name, why)
	}
	return nil
}

// A flagChecker is a command that refuses flags that would have no effect.
type flagChecker interface{ unused(given) error }

// Flags that say how much is removed and how, how tokens are drawn, and what
// applies only to answers.
const (
	budgetFlags  = "ratio budget-tokens budget-bytes max-loss"
	shapingFlags = "preset metric allocator profile compat sinks window"
	drawingFlags = "top-k top-p min-p"
	answerFlags  = "answer-prefix max-tokens stop temperature top-k top-p min-p repetition-penalty seed logprobs lookup exact"
)

func (f *policyFlags) unused(g given) error {
	if g.any("budget-tokens") && f.BudgetTokens == 0 || g.any("budget-bytes") && f.BudgetBytes == 0 {
		return usage("--%s: found 0, expected at least 1; without a budget everything is kept", g.first("budget-tokens budget-bytes"))
	}
	p, err := f.shape()
	if err != nil {
		return err
	}
	if !g.any(budgetFlags+" policy") && !p.Decode.Enabled() {
		if err := g.unused(shapingFlags, "nothing would be compressed without --ratio, --budget-tokens, --budget-bytes or --decode"); err != nil {
			return err
		}
	}
	if !g.any(budgetFlags + " policy") {
		if err := g.unused("measure-loss", "no context would be compressed without --ratio, --budget-tokens, --budget-bytes or --policy"); err != nil {
			return err
		}
	}
	if g["max-loss"] {
		if err := g.unused("measure-loss", "--max-loss measures the loss already"); err != nil {
			return err
		}
	}
	if d, err := p.Decode.WithDefaults(); err == nil && d.Metric != nil && !g.any(budgetFlags+" policy") {
		if err := g.unused("metric", "decoding ranks with a metric of its own"); err != nil {
			return err
		}
	}
	if g["profile"] && f.Policy == "" && !p.UsesProfile() {
		return g.unused("profile", unusedProfile)
	}
	return nil
}

const unusedProfile = "only the allocators lukv and duo and the metrics learned and triattention use a profile: add --allocator lukv"

// checkProfile refuses profiles that no allocator, metric or decoding asks for.
func checkProfile(g given, allocators, metrics []string, decode string) error {
	if !g["profile"] {
		return nil
	}
	d, err := parseDecode(decode)
	if err != nil {
		return err
	}
	for _, text := range append(splitList(metrics), "") {
		m, err := parseMetric(text)
		if err != nil {
			return err
		}
		if p := (&lukv.Policy{Metric: m, Decode: d}); p.UsesProfile() {
			return nil
		}
	}
	for _, text := range splitList(allocators) {
		a, err := parseAllocator(text)
		if err != nil {
			return err
		}
		if a.NeedsProfile() {
			return nil
		}
	}
	return g.unused("profile", unusedProfile)
}

func (f *samplingFlags) unused(g given) error {
	if f.Temperature != nil && *f.Temperature == 0 {
		return g.unused(drawingFlags, "a temperature of 0 always takes the most likely token")
	}
	return nil
}

func (c *runCmd) unused(g given) error {
	if c.Load != "" {
		if err := g.unused("system", "the context of --load includes its system prompt"); err != nil {
			return err
		}
		const why = "the context of --load is compressed already, or was saved as it is"
		if err := g.unused(budgetFlags+" measure-loss trace", why); err != nil {
			return err
		}
	}
	if err := c.policyFlags.unused(g); err != nil {
		return err
	}
	if err := c.exactFlags.unused(g); err != nil {
		return err
	}
	if c.Load == "" && c.Save == "" {
		if err := g.unused("verify", "no cache is read or written without --load or --save"); err != nil {
			return err
		}
	}
	if p, err := c.shape(); !g.any(budgetFlags+" policy") && (err != nil || !p.Decode.Enabled()) {
		if err := g.unused("trace", "nothing would be compressed without --ratio, --budget-tokens, --budget-bytes or --decode"); err != nil {
			return err
		}
	}
	if c.Save != "" && c.Prompt == "" {
		if err := g.unused(answerFlags, "without a prompt, --save only saves the context"); err != nil {
			return err
		}
	}
	p, err := c.shape()
	decodes := err == nil && p.Decode.Enabled()
	if decodes || g.any(budgetFlags+" policy") {
		if err := g.unused("huge-pages", "with compression, memory leaves in pieces that are smaller than large pages"); err != nil {
			return err
		}
	}
	if decodes {
		if err := g.unused("lookup", "with --decode, or a preset that compresses while decoding, every token is looked at before the next is known"); err != nil {
			return err
		}
	}
	return c.samplingFlags.unused(g)
}

func (c *chatCmd) unused(g given) error {
	if err := c.policyFlags.unused(g); err != nil {
		return err
	}
	if err := c.exactFlags.unused(g); err != nil {
		return err
	}
	if c.Exact {
		if err := g.unused("keep-turns", "with --exact, older turns stay as they are"); err != nil {
			return err
		}
	}
	if !g.any(budgetFlags + " policy") {
		if err := g.unused("keep-turns", "no turn would be compressed without --ratio, --budget-tokens or --budget-bytes"); err != nil {
			return err
		}
	}
	if g["max-loss"] {
		if err := g.unused("keep-turns", "--max-loss chooses a ratio for the document only"); err != nil {
			return err
		}
	}
	return c.samplingFlags.unused(g)
}

func (c *profileCmd) unused(g given) error {
	if c.FromNPY != "" {
		if err := g.unused("limit texts text questions data template include-question temperature top-p seed cache-type max-context max-cache loss-map", "--from-npy measures nothing"); err != nil {
			return err
		}
	}
	if c.Objective == lukv.ObjectiveOutputError {
		if err := g.unused("normalization scope solver include-question", "--objective output-error has no choice of these"); err != nil {
			return err
		}
	} else if err := g.unused("weights", "only --objective output-error weighs layers"); err != nil {
		return err
	}
	if c.Model == builtin.Name {
		if err := g.unused("template", "prompts of the embedded model are always those of its card"); err != nil {
			return err
		}
	}
	if c.Temperature == 0 {
		return g.unused("top-p seed", "without --temperature the most likely token is always taken")
	}
	return nil
}

func (c *evalCmd) unused(g given) error {
	if c.Measure != "kl" {
		if err := g.unused("reference-cache reference-model", "only --measure kl has a reference"); err != nil {
			return err
		}
	}
	if c.Measure == "kl" {
		if err := g.unused("out", "a measurement of divergences has no scores for the folder of a run; --items keeps it in a file"); err != nil {
			return err
		}
		if err := g.unused("match ruler-clean code-sim no-full parallel memory", "--measure kl compares with the full cache, not with expected answers, one context at a time"); err != nil {
			return err
		}
	}
	if !g.any("limit fraction") {
		if err := g.unused("seed", "all questions are asked unless --limit or --fraction draws some"); err != nil {
			return err
		}
	}
	if c.Parallel <= 1 {
		if err := g.unused("memory", "one context at a time is worked on without --parallel"); err != nil {
			return err
		}
	}
	if len(c.Data) == 0 {
		if err := g.unused("longbench-config longbench-e max-gen", "LongBench comes with --data"); err != nil {
			return err
		}
	}
	allocators, metrics := slices.Clone(c.Allocator), slices.Clone(c.Metric)
	for _, name := range splitList(c.Preset) {
		p, err := presetPolicy(name, "")
		if err != nil {
			return err
		}
		allocators, metrics = append(allocators, compact(p.Allocator)), append(metrics, compact(p.Metric))
	}
	return checkProfile(g, allocators, metrics, c.Decode)
}

func (c *serveCmd) unused(g given) error {
	if g["quiet"] {
		if err := g.unused("log-format", "--quiet turns the log off"); err != nil {
			return err
		}
	}
	if c.Store == "" {
		if err := g.unused("store-bytes verify", "it needs --store"); err != nil {
			return err
		}
	}
	if c.KVEvents == "" {
		if err := g.unused("kv-events-replay kv-events-name", "it needs --kv-events"); err != nil {
			return err
		}
	}
	for _, at := range []string{c.KVEvents, c.KVEventsReplay} {
		if host, _, err := net.SplitHostPort(at); err == nil && !isLocal(host) {
			return nil // allowed by --insecure
		}
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && isLocal(host) {
		return g.unused("insecure", "--listen is an address of this machine only")
	}
	if c.KeyFile != "" {
		return g.unused("insecure", "there are API keys")
	}
	return nil
}

func (c *demoCmd) unused(g given) error {
	if n := len(embedded.Texts()); c.Texts > n {
		return usage("--texts: found %d, expected at most %d", c.Texts, n)
	}
	return nil
}

func (c *benchCmd) unused(g given) error {
	if c.Compare {
		return g.unused("shape weights threads precision cpu cache-type device gpu-layers pp tg depth batch reps resume max-memory "+
			budgetFlags+" "+shapingFlags, "--compare measures nothing")
	}
	if len(c.Models) > 0 && len(c.Shape) == 0 {
		if err := g.unused("weights", "random weights need --shape"); err != nil {
			return err
		}
	}
	if !g.any(budgetFlags) {
		if err := g.unused("metric allocator profile", "nothing would be compressed without --ratio, --budget-tokens or --budget-bytes"); err != nil {
			return err
		}
	}
	if g["pp"] && !g["tg"] {
		if err := g.unused("batch", "it is about decoding: give --tg, too"); err != nil {
			return err
		}
	}
	return checkProfile(g, c.Allocator, c.Metric, "")
}
