package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/lukv/lukv/internal/sysmem"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// ErrMemory says that a point or a model was not measured because it needs more
// memory than is free or allowed. The error names both amounts.
var ErrMemory = errors.New("not enough free memory")

// CacheType is the type of cached keys, and of values if that is another one.
type CacheType struct{ Keys, Values tensor.Type }

// Options configure a run. Every combination of the lists is a point; an empty list
// means its default.
type Options struct {
	Threads     []int             // 0: all processors (default)
	Precision   []model.Precision // default PrecisionAuto
	CPU         []kernels.CPU     // default kernels.Detect
	CacheType   []CacheType       // zero: the precision's (default)
	Depth       []int             // entries in the cache before, default 0
	Batch       []int             // sessions that decode together, default 1; prefill has no batches
	Compression []Compression     // default none

	// Prefill and Decode are numbers of tokens, 512 and 64 if both are empty.
	Prefill []int
	Decode  []int

	// Device is the accelerator to run models on, as
	// kernels.OpenDevice takes it; "" for none. DeviceLayers is the number of
	// layers on it, 0 for all.
	Device       string
	DeviceLayers int

	// MaxMemory bounds the bytes of weights and caches together; points and
	// models that need more are not measured. Default 80 % of the memory available
	// when the run begins.
	MaxMemory int64

	// Reps is the number of repetitions of each point, default 5. As many again
	// may replace disturbed ones.
	Reps int

	// Probe is the duration of each probe of the machine, default 40 ms;
	// ProbeBytes is the memory that it reads, default 4 times the last-level
	// cache and at least 256 MiB.
	Probe      time.Duration
	ProbeBytes int

	// Version and Revision are those of the program, for the report.
	Version, Revision string

	// Previous is the report of an earlier run, or nil. Its measurements are taken
	// over rather than repeated. A report of another machine or program is an error.
	Previous *Report

	// Save, if not nil, is called with the report whenever something has been added
	// to it; its error ends the run.
	Save func(*Report) error

	// Progress, if not nil, is called before each repetition with the points
	// done, their number, and a description of the next one.
	Progress func(done, total int, next string)
}

func (o *Options) setDefaults() {
	list(&o.Threads, 0)
	list(&o.Precision, model.PrecisionAuto)
	list(&o.CPU, kernels.Detect())
	list(&o.CacheType, CacheType{})
	list(&o.Depth, 0)
	list(&o.Batch, 1)
	list(&o.Compression, Compression{})
	if len(o.Prefill)+len(o.Decode) == 0 {
		o.Prefill, o.Decode = []int{512}, []int{64}
	}
	o.Reps = cmp.Or(o.Reps, 5)
	o.Probe = cmp.Or(o.Probe, 40*time.Millisecond)
	o.MaxMemory = cmp.Or(o.MaxMemory, sysmem.Available()*4/5)
}

// Validate returns an error for the first invalid value.
func (o *Options) Validate() error {
	const limit = 1 << 24 // positions, far beyond any model
	for _, c := range []struct {
		what   string
		x      []int
		lo, hi int
	}{
		{"threads", o.Threads, 0, 1024}, {"depth", o.Depth, 0, limit}, {"batch", o.Batch, 1, 4096},
		{"prefill tokens", o.Prefill, 1, limit}, {"decode tokens", o.Decode, 1, limit},
		{"repetitions", []int{cmp.Or(o.Reps, 1)}, 1, 10000},
	} {
		for _, x := range c.x {
			if x < c.lo || x > c.hi {
				return fmt.Errorf("bench: %s: found %d, expected %d to %d", c.what, x, c.lo, c.hi)
			}
		}
	}
	if o.MaxMemory < 0 {
		return fmt.Errorf("bench: memory limit: found %d bytes, expected 0 or more", o.MaxMemory)
	}
	for _, c := range o.Compression {
		if !(c.Ratio >= 0 && c.Ratio < 1) {
			return fmt.Errorf("bench: compression ratio: found %v, expected at least 0 and below 1", c.Ratio)
		}
		if c.BudgetTokens < 0 || c.BudgetBytes < 0 {
			return fmt.Errorf("bench: compression budget: found %d entries and %d bytes, expected at least 0", c.BudgetTokens, c.BudgetBytes)
		}
	}
	return nil
}

func list[T any](x *[]T, def T) {
	if len(*x) == 0 {
		*x = []T{def}
	}
}

// Test kinds.
const (
	TestPrefill = "prefill"
	TestDecode  = "decode"
)

// Key identifies a point: points of different reports with equal keys can be
// compared.
type Key struct {
	Model     string  `json:"model"`
	Weights   string  `json:"weights"`          // type of most weights
	Mapped    bool    `json:"mapped,omitempty"` // the weights are a file's pages
	Test      string  `json:"test"`             // TestPrefill or TestDecode
	Tokens    int     `json:"tokens"`           // in one repetition, of each session
	Depth     int     `json:"depth"`
	Batch     int     `json:"batch"`
	Threads   int     `json:"threads"`
	Precision string  `json:"precision"`
	CPU       string  `json:"cpu"`
	Cache     string  `json:"cache"`               // type of most weights
	Metric    string  `json:"metric,omitempty"`    // "" without compression
	Allocator string  `json:"allocator,omitempty"` // likewise
	Profile   string  `json:"profile,omitempty"`   // its digest; "" for a made-up one
	Ratio     float64 `json:"ratio"`

	// Instead of a ratio: entries kept per head on average, or bytes of keys and
	// values.
	BudgetTokens int   `json:"budget_tokens,omitempty"`
	BudgetBytes  int64 `json:"budget_bytes,omitempty"`

	Device string `json:"device,omitempty"`        // name of the accelerator
	Layers int    `json:"device_layers,omitempty"` // on it, 0 for all
}

// Name returns the name of the test in tables, such as pp512 or tg64.
func (k Key) Name() string {
	if k.Test == TestPrefill {
		return fmt.Sprintf("pp%d", k.Tokens)
	}
	return fmt.Sprintf("tg%d", k.Tokens)
}

// Compression returns the name of the compression in tables, "none" without any.
func (k Key) Compression() string {
	switch {
	case k.BudgetTokens > 0:
		return fmt.Sprintf("%s/%s/%d entries", k.Metric, k.Allocator, k.BudgetTokens)
	case k.BudgetBytes > 0:
		return fmt.Sprintf("%s/%s/%s", k.Metric, k.Allocator, Size(k.BudgetBytes))
	case k.compressed():
		return fmt.Sprintf("%s/%s/%g", k.Metric, k.Allocator, k.Ratio)
	}
	return "none"
}

// compressed reports whether the point has a compression.
func (k Key) compressed() bool { return k.Ratio > 0 || k.BudgetTokens > 0 || k.BudgetBytes > 0 }

func (k Key) String() string {
	s := fmt.Sprintf("%s %s %s depth %d batch %d threads %d %s %s cache %s compression %s", k.Model, k.Weights, k.Name(),
		k.Depth, k.Batch, k.Threads, k.Precision, k.CPU, k.Cache, k.Compression())
	if k.Device != "" {
		s += " on " + k.on()
	}
	return s
}

// on returns the name of the device in tables.
func (k Key) on() string {
	if k.Layers > 0 {
		return fmt.Sprintf("%s (%d layers)", k.Device, k.Layers)
	}
	return k.Device
}

// full returns the key of the same point without compression.
func (k Key) full() Key {
	k.Metric, k.Allocator, k.Profile, k.Ratio, k.BudgetTokens, k.BudgetBytes = "", "", "", 0, 0, 0
	return k
}

// Run measures the sources. A point that cannot be measured is in the report with
// its error, and the run continues; Run then returns the report and an error that
// joins those of the points. When ctx is done, it soon returns with the points
// measured so far and the context's error.
func Run(ctx context.Context, sources []*Source, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	p, err := newProber(o.ProbeBytes, o.Probe)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer p.buf.Close()
	r := &runner{o: &o, p: p, seen: map[Key]bool{}}
	r.report = &Report{
		Format: Format, Started: time.Now().UTC().Truncate(time.Second), Version: o.Version, Revision: o.Revision,
		Machine: r.p.machine(),
	}
	if err := r.resume(o.Previous); err != nil {
		return nil, err
	}
	if o.Device != "" {
		if err := r.device(); err != nil {
			return nil, err
		}
		defer r.dev.Close()
	}
	models := len(o.Precision) * len(o.CPU) * len(o.Threads)
	r.total = len(sources) * models * r.perModel()
	var errs []error
	for i, s := range sources {
		err := r.source(ctx, s)
		s.release()
		if err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			r.report.Interrupted = true
			break
		}
		r.done = (i + 1) * models * r.perModel()
	}
	for i := range r.report.Points {
		p := &r.report.Points[i]
		if p.Error != "" {
			errs = append(errs, r.failures[p.Key])
		}
		p.compareWithFull(r.report.Points)
	}
	// Save the comparisons just added.
	if err := r.save(); err != nil {
		errs = append(errs, err)
	}
	return r.report, errors.Join(errs...)
}

// runner is a Run in progress.
type runner struct {
	o        *Options
	p        *prober
	dev      kernels.Device // nil without a device
	report   *Report
	seen     map[Key]bool
	failures map[Key]error
	done     int // of total, for progress
	total    int
}

func (r *runner) perModel() int {
	o := r.o
	return len(o.CacheType) * len(o.Depth) * len(o.Compression) * (len(o.Prefill) + len(o.Batch)*len(o.Decode))
}

func (r *runner) progress(format string, args ...any) {
	if r.o.Progress != nil {
		r.o.Progress(min(r.done, r.total), r.total, fmt.Sprintf(format, args...))
	}
}

// margin is the memory left free for buffers and everything else.
const margin = 128 << 20

// room returns ErrMemory if need bytes are not free, or exceed the run's limit
// together with the bytes of the weights.
func (r *runner) room(what string, need, weights int64) error {
	if need == 0 {
		return nil
	}
	runtime.GC()
	if free := sysmem.Available(); free > 0 && need+margin > free {
		return fmt.Errorf("%s: %w: it needs %s and %s for buffers, %s are free", what, ErrMemory, Size(need), Size(margin), Size(free))
	}
	if limit := r.o.MaxMemory; limit > 0 && need+weights+margin > limit {
		return fmt.Errorf("%s: %w: it needs %s and %s for buffers beside %s of weights, the limit is %s",
			what, ErrMemory, Size(need), Size(margin), Size(weights), Size(limit))
	}
	return nil
}

// device opens the accelerator.
func (r *runner) device() error {
	dev, err := kernels.OpenDevice(r.o.Device)
	if err != nil {
		return err
	}
	r.dev, r.report.Device = dev, &DeviceReport{Name: r.o.Device, Info: dev.Info()}
	return nil
}

// options adds the options that all models of the run share to opts.
func (r *runner) options(opts ...model.Option) []model.Option {
	if r.dev != nil {
		opts = append(opts, model.WithOpenDevice(r.dev))
		if r.o.DeviceLayers > 0 {
			opts = append(opts, model.WithDeviceLayers(r.o.DeviceLayers))
		}
	}
	return opts
}

func (r *runner) source(ctx context.Context, s *Source) error {
	if s.random() {
		r.progress("%s: making %s of random weights", s.name, Size(s.bytes))
		if err := r.room(s.name, s.bytes, 0); err != nil {
			return err
		}
	}
	for _, precision := range r.o.Precision {
		for _, cpu := range r.o.CPU {
			for _, threads := range r.o.Threads {
				if err := r.model(ctx, s, precision, cpu, threads); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// model opens one model and measures all its points.
func (r *runner) model(ctx context.Context, s *Source, precision model.Precision, cpu kernels.CPU, threads int) error {
	m, err := s.open(ctx, r.options(model.WithPrecision(precision), model.WithCPU(cpu), model.WithThreads(threads))...)
	if err != nil {
		return fmt.Errorf("open %s: %w", s.name, err)
	}
	defer m.Close()
	points, err := r.points(s, m)
	if err != nil {
		return err
	}
	for _, c := range points {
		r.done++
		if r.seen[c.key] {
			continue
		}
		r.seen[c.key] = true
		p, err := c.measure(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%v: %w", c.key, context.Cause(ctx))
		}
		if err != nil {
			err = fmt.Errorf("%v: %w", c.key, err)
			p = &Point{Key: c.key, Error: err.Error()}
			if r.failures == nil {
				r.failures = map[Key]error{}
			}
			r.failures[c.key] = err
		}
		r.report.Points = append(r.report.Points, *p)
		if err := r.save(); err != nil {
			return err
		}
	}
	return nil
}

// keyOf returns the part common to the keys of all points of an open model.
func keyOf(s *Source, m *model.Model) Key {
	k := Key{
		Model: s.name, Weights: m.WeightType().String(), Mapped: !s.private, Batch: 1,
		Threads: m.Threads(), Precision: string(m.Precision()), CPU: m.CPU().String(),
	}
	if dev := m.Device(); dev != nil {
		k.Device = dev.Info().Name
		if n := m.DeviceLayers(); n < m.Config().Layers {
			k.Layers = n
		}
	}
	return k
}

// points returns the points of an open model, those without compression first. It
// leaves out combinations without effect: compression when decoding from an empty
// cache, and batches in prefill.
func (r *runner) points(s *Source, m *model.Model) ([]*course, error) {
	o, base := r.o, keyOf(s, m)
	comps := slices.Clone(o.Compression)
	slices.SortStableFunc(comps, func(a, b Compression) int {
		switch {
		case !a.on() && b.on():
			return -1
		case a.on() && !b.on():
			return 1
		}
		return 0
	})
	var out []*course
	for _, cache := range o.CacheType {
		if cache.Keys == 0 {
			cache.Keys = tensor.F32
			if m.Precision() != model.PrecisionF32 {
				cache.Keys = tensor.BF16
			}
		}
		for _, depth := range o.Depth {
			for _, comp := range comps {
				k := base
				k.Cache, k.Depth = cache.String(), depth
				if comp.on() {
					k.Metric, k.Allocator = comp.names()
					k.Ratio, k.BudgetTokens, k.BudgetBytes = comp.Ratio, comp.BudgetTokens, comp.BudgetBytes
					if comp.Profile != nil {
						var err error
						if k.Profile, err = comp.Profile.Digest(); err != nil {
							return nil, err
						}
					}
				}
				add := func(k Key) {
					out = append(out, &course{r: r, s: s, m: m, key: k, comp: comp, cache: cache})
				}
				for _, n := range o.Prefill {
					k.Test, k.Tokens = TestPrefill, n
					add(k)
				}
				if depth == 0 {
					k = k.full()
				}
				for _, n := range o.Decode {
					for _, b := range o.Batch {
						k.Test, k.Tokens, k.Batch = TestDecode, n, b
						add(k)
					}
				}
			}
		}
	}
	return out, nil
}

// String returns the name of a type of caches: that of the element, or of kvcache.ParseType for
// integers.
func (c CacheType) String() string {
	if (kernels.PageLayout{Type: c.Keys}).IntKeys() {
		return kvcache.TypeName(c.Keys, c.Values)
	}
	return c.Keys.String()
}
