package command

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tensor"
)

type benchCmd struct {
	Models []string `arg:"" optional:"" name:"model" help:"Checkpoints to measure; with --compare, the two results."`

	Shape   []string `group:"model" sep:"," placeholder:"NAME,…" help:"Measure random weights in the dimensions of published models (default 150m without MODEL): ${shapes}; NAME:LAYERS takes the first layers only."`
	Weights string   `group:"model" enum:"bf16,f16,f32,${blocktypes}" default:"bf16" help:"Set the type of the random weights: ${enum}."`

	Threads   []int    `group:"model" sep:"," placeholder:"N,…" help:"Set the numbers of threads (default: all processors)."`
	Precision []string `group:"model" sep:"," enum:"auto,bf16,int8,f32" default:"auto" help:"Set the precision of activations in products: ${enum}."`
	CPU       []string `group:"model" name:"cpu" sep:"," default:"auto" help:"Set the instruction sets: auto, all, portable, avx2, avx512, avx512vnni, avx512bf16, neon, dotprod."`
	CacheType []string `group:"model" sep:"," enum:"auto,${cachetypes}" default:"auto" help:"Set the types of cached keys and values: ${enum}."`
	deviceFlags

	PP    []int `name:"pp" sep:"," placeholder:"N,…" help:"Prefill N tokens (default 512 without --tg)."`
	TG    []int `name:"tg" sep:"," placeholder:"N,…" help:"Decode N tokens (default 64 without --pp)."`
	Depth []int `sep:"," default:"0" placeholder:"N,…" help:"Start with N entries in the cache (default ${default})."`
	Batch []int `sep:"," default:"1" placeholder:"N,…" help:"Decode N sessions together (default ${default})."`
	Reps  int   `default:"5" placeholder:"N" help:"Repeat each point N times (default ${default}), plus at most N times in place of disturbed repetitions."`

	Resume    string   `placeholder:"FILE" help:"Write the report to this file after every point, and skip points that the file already holds."`
	MaxMemory byteSize `placeholder:"SIZE" help:"Limit weights and caches together; larger points are listed as not measured (default: 80 % of available memory)."`

	budgetLists `set:"ratios=0"`
	Metric      []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Compress with these metrics (default snapkv): ${metrics}; or JSON objects."`
	Allocator   []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Compress with these allocators (default uniform): ${allocators}; or JSON objects."`
	Profile     []string `group:"policy" sep:"none" placeholder:"FILE" help:"Read profiles for the allocator lukv, one per metric (default: random profiles). May be repeated."`

	Compare  bool `help:"Measure nothing; test whether the results in two files, or comma-separated lists of files, differ."`
	CSV      bool `name:"csv" xor:"format" help:"Print CSV, one line per point."`
	JSON     bool `name:"json" xor:"format" help:"Print one JSON object with every repetition."`
	Markdown bool `xor:"format" help:"Print Markdown."`
}

func (benchCmd) Help() string {
	return `Measure the machine (memory bandwidth, multiply-add peaks, core to core), then prefill (pp) and decoding (tg) for the cross product of the lists. The machine is probed again before and after each repetition: read and compute are the fractions reached of memory bandwidth and of the multiply-add peak, vs full is the speed relative to no compression. Repetitions between probes that differ by more than 10 % do not count. A cache of some depth is filled with random entries. Points that do not fit into memory are listed, and the exit status is then 4. Memory beyond weights and cache is measured precisely only for checkpoint folders, whose weights are mapped. With --device there are no fractions.

--compare reads JSON of this command or output of go test -bench, and prints the p-value of a Mann-Whitney U test. In a list of JSON files, each file is one observation. scripts/bench-compare builds, measures and compares two revisions.

Examples:

  lukv bench --shape llama-3.2-1b --pp 512,4096 --tg 64 --depth 0,8192 --threads 1,2

  lukv bench --shape 150m --tg 32 --depth 32768 --ratio 0,0.5,0.8,0.9 --allocator uniform,lukv --batch 1,16 --markdown

  lukv bench --shape 150m --tg 32 --depth 8192,32768,131072 --batch 1,16 --ratio 0,0.5,0.8,0.9 --markdown

  lukv bench --shape 150m --pp 8192 --ratio 0,0.8 --metric snapkv,keydiff,expected_attention

  lukv bench --shape 150m,llama-3.2-1b,llama-3.1-8b:8 --tg 32 --depth 0,8192,32768 --threads 1,2 --reps 3 --resume decode.json

  lukv bench --shape llama-3.1-8b --pp 512,4096 --tg 64 --depth 0,32768 --batch 1,16 --device vulkan --json

  lukv bench DIR --cpu all --json > result.json

  lukv bench --compare old-1.json,old-2.json,old-3.json,old-4.json new-1.json,new-2.json,new-3.json,new-4.json`
}

func (c *benchCmd) Run(e *env) error {
	if c.Compare {
		return c.compare(e)
	}
	o, err := c.options()
	if err != nil {
		return err
	}
	sources, err := c.sources(e)
	if err != nil {
		return err
	}
	line := e.progress()
	o.Progress = func(done, total int, next string) {
		e.log.Info("bench", "done", done, "of", total, "next", next)
		line.show("bench: %d of %d points%s: %s", done, total, line.left(0, done, total), next)
	}
	v := readVersion()
	o.Version, o.Revision = v.Version, v.Revision
	if c.Resume != "" {
		if o.Previous, err = bench.ReadReport(c.Resume); err != nil {
			return fmt.Errorf("--resume: %w", err)
		}
		o.Save = func(r *bench.Report) error {
			r.Command = e.args
			return r.WriteFile(c.Resume)
		}
	}
	report, err := bench.Run(e.ctx, sources, *o)
	line.clear()
	if report == nil {
		return err
	}
	report.Command = e.args
	if e.ctx.Err() != nil && len(report.Points) == 0 {
		return err
	}
	return errors.Join(c.print(e, report), firstOf(err))
}

// probeTime and probeBytes are the duration and size of a probe of the machine; 0
// leaves the choice to package bench. Tests, which check no figures, make them small.
var (
	probeTime  time.Duration
	probeBytes int
)

// firstOf reduces joined errors to the first one and the number of others.
func firstOf(err error) error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		if all := list.Unwrap(); len(all) > 1 {
			return fmt.Errorf("%w (and %d more)", all[0], len(all)-1)
		}
	}
	return err
}

func (c *benchCmd) print(e *env, r *bench.Report) error {
	switch {
	case c.JSON:
		return report.WriteJSON(e.out, r)
	case c.CSV:
		return r.WriteCSV(e.out)
	case c.Markdown:
		return r.WriteMarkdown(e.out)
	}
	return r.WriteTable(e.out)
}

func (c *benchCmd) compare(e *env) error {
	if len(c.Models) != 2 {
		return usage("--compare: found %d results, expected two: OLD.json NEW.json, or a comma-separated list for each", len(c.Models))
	}
	if c.CSV || c.Markdown {
		return usage("--compare: found --csv or --markdown, expected --json or no format")
	}
	old, err := bench.ReadSeries(strings.Split(c.Models[0], ","))
	if err != nil {
		return err
	}
	fresh, err := bench.ReadSeries(strings.Split(c.Models[1], ","))
	if err != nil {
		return err
	}
	list, err := bench.Compare(old, fresh)
	if err != nil {
		return err
	}
	if c.JSON {
		return e.writeJSON("lukv bench compare 1", map[string]any{"differences": list})
	}
	return bench.WriteDifferences(e.out, list)
}

// options reads the lists.
func (c *benchCmd) options() (*bench.Options, error) {
	o := &bench.Options{
		Threads: c.Threads, Depth: c.Depth, Batch: c.Batch, Prefill: c.PP, Decode: c.TG, Reps: c.Reps,
		MaxMemory: int64(c.MaxMemory), Probe: probeTime, ProbeBytes: probeBytes,
	}
	var err error
	if o.Device, o.DeviceLayers, err = c.device(); err != nil {
		return nil, err
	}
	if c.Reps < 1 {
		return nil, usage("--reps: found %d, expected 1 or more", c.Reps)
	}
	for _, p := range c.Precision {
		o.Precision = append(o.Precision, model.Precision(p))
	}
	for _, name := range c.CacheType {
		keys, values := cacheTypes(name)
		o.CacheType = append(o.CacheType, bench.CacheType{Keys: keys, Values: values})
	}
	for _, name := range c.CPU {
		switch name {
		case "all":
			o.CPU = append(o.CPU, kernels.Variants()...)
		case "auto":
			o.CPU = append(o.CPU, kernels.Detect()) // heeds LUKV_CPU
		default:
			cpu, err := kernels.ParseCPU(name)
			if err != nil {
				return nil, usage("--cpu: %w", err)
			}
			o.CPU = append(o.CPU, cpu)
		}
	}
	if o.Compression, err = c.compressions(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, usageError{err}
	}
	return o, nil
}

// compressions returns the cross product of metrics, allocators and budgets.
func (c *benchCmd) compressions() ([]bench.Compression, error) {
	budgets, err := c.budgets(0)
	if err != nil {
		return nil, err
	}
	profiles, err := loadProfiles(c.Profile)
	if err != nil {
		return nil, err
	}
	metrics, allocators := splitList(c.Metric), splitList(c.Allocator)
	if len(metrics) == 0 {
		metrics = []string{""}
	}
	if len(allocators) == 0 {
		allocators = []string{""}
	}
	var out []bench.Compression
	for _, metricText := range metrics {
		metric, err := parseMetric(metricText)
		if err != nil {
			return nil, err
		}
		for _, allocatorText := range allocators {
			allocator, err := parseAllocator(allocatorText)
			if err != nil {
				return nil, err
			}
			for _, b := range budgets {
				x := bench.Compression{Metric: metric, Allocator: allocator, Ratio: b.ratio, BudgetTokens: b.tokens, BudgetBytes: b.bytes}
				if p := (&lukv.Policy{Metric: metric, Allocator: allocator}); p.UsesProfile() {
					if x.Profile, err = profiles.match(nil, "", metric, ""); err != nil {
						return nil, err
					}
					if x.Profile == nil { // so that its mismatch is reported
						x.Profile = profiles.only()
					}
					if learned, ok := p.Learned(); ok && x.Profile == nil {
						return nil, usage("--metric %s: random profiles, by which budgets are divided here, rank nothing: give a profile of %s with --profile", learned.Name, learned.Name)
					}
				}
				out = append(out, x)
			}
		}
	}
	return out, profiles.unused()
}

// sources returns the models to measure.
func (c *benchCmd) sources(e *env) ([]*bench.Source, error) {
	shapes := c.Shape
	if len(shapes)+len(c.Models) == 0 {
		shapes = []string{"150m"}
	}
	types := map[string]tensor.Type{"f32": tensor.F32, "f16": tensor.F16, "bf16": tensor.BF16}
	blocks, _ := blockTypes()
	for name, t := range blocks {
		types[name] = t.Stored()
	}
	var out []*bench.Source
	for _, name := range shapes {
		s, err := bench.Shape(name, types[c.Weights])
		if err != nil {
			return nil, usage("--shape: %w", err)
		}
		out = append(out, s)
	}
	for _, name := range c.Models {
		if name == builtin.Name {
			out = append(out, bench.Checkpoint(name, builtin.Open))
			continue
		}
		dir, err := resolveModel(name)
		if err != nil {
			return nil, err
		}
		out = append(out, bench.Folder(name, dir, model.WithLogger(e.log)))
	}
	return out, nil
}
