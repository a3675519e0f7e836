package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// Source is a model to measure. Make one with [Shape], [Random], [Folder] or
// [Checkpoint].
type Source struct {
	name    string
	open    func(ctx context.Context, opts ...model.Option) (*model.Model, error)
	release func()
	private bool  // the weights are memory of the process, not a mapped file
	bytes   int64 // memory that random weights take to make; 0: they are a checkpoint's
}

// Open opens the model; the caller closes it.
func (s *Source) Open(ctx context.Context, opts ...model.Option) (*model.Model, error) {
	return s.open(ctx, opts...)
}

// Release frees random weights. The source makes them again when it is opened again.
func (s *Source) Release() { s.release() }

// random reports whether the weights are random.
func (s *Source) random() bool { return s.bytes > 0 }

// Shape returns a source with the dimensions of a published checkpoint (see
// model.Shapes), or for NAME:LAYERS those of its first layers, and random weights
// of type t, see weights.Random. The weights are made when they are first needed.
func Shape(name string, t tensor.Type) (*Source, error) {
	cfg, err := ShapeConfig(name)
	if err != nil {
		return nil, err
	}
	return Random(name, cfg, t), nil
}

// ShapeConfig returns the configuration of a shape, reduced to the first layers if the
// name says how many.
func ShapeConfig(name string) (*model.Config, error) {
	shape, count, cut := strings.Cut(name, ":")
	cfg, err := arch.ShapeConfig(shape)
	if err != nil || !cut {
		return cfg, err
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > cfg.Layers {
		return nil, fmt.Errorf("shape %q: found %q layers, expected 1 to %d", name, count, cfg.Layers)
	}
	cfg.Layers, cfg.Windows = n, cfg.Windows[:n]
	return cfg, nil
}

// Random returns a source with the dimensions of cfg and random weights of type t.
func Random(name string, cfg *model.Config, t tensor.Type) *Source {
	c := *cfg
	c.Type = t
	s := &Source{name: name, private: true}
	params := c.LayerParams(0) + int64(c.Vocab)*int64(c.Hidden)
	if !c.TiedEmbeddings {
		params += int64(c.Vocab) * int64(c.Hidden)
	}
	s.bytes = params * int64(t.Bytes(256)) / 256
	var w *weights.Weights
	s.open = func(ctx context.Context, opts ...model.Option) (*model.Model, error) {
		if w == nil {
			var err error
			if w, err = weights.Random(ctx, &c, t, 1); err != nil {
				return nil, err
			}
		}
		return model.New(&c, w, opts...) // closing it does not free weights in memory
	}
	s.release = func() { w = nil }
	return s
}

// Checkpoint returns a source that opens a checkpoint whose weights are not mapped
// from files.
func Checkpoint(name string, open func(ctx context.Context, opts ...model.Option) (*model.Model, error)) *Source {
	return &Source{name: name, open: open, release: func() {}, private: true}
}

// Folder returns a source for the checkpoint in a folder; opts come before a run's
// own options.
func Folder(name, dir string, opts ...model.Option) *Source {
	return &Source{
		name: name,
		open: func(ctx context.Context, more ...model.Option) (*model.Model, error) {
			return model.Open(ctx, dir, slices.Concat(opts, more)...)
		},
		release: func() {},
	}
}

// Compression is how a point's cache is compressed; the zero value means not at all.
type Compression struct {
	Metric    lukv.MetricConfig
	Allocator lukv.AllocatorConfig

	// At most one of the three, as in [lukv.Policy]; none: no compression.
	Ratio        float64
	BudgetTokens int
	BudgetBytes  int64

	// Profile is for the allocator lukv. Nil means a random one in which
	// heads differ about as much as in measured ones.
	Profile *lukv.Profile
}

// on reports whether anything is compressed.
func (c Compression) on() bool { return c.Ratio > 0 || c.BudgetTokens > 0 || c.BudgetBytes > 0 }

// names returns the names of metric and allocator in reports.
func (c Compression) names() (metric, allocator string) {
	metric, allocator = c.Metric.String(), c.Allocator.String()
	if metric == (lukv.MetricConfig{Name: c.Metric.Name}).String() {
		metric = c.Metric.Name
	}
	if allocator == (lukv.AllocatorConfig{Name: c.Allocator.Name}).String() {
		allocator = c.Allocator.Name
	}
	return metric, allocator
}

// policy returns the session policy, nil without compression.
func (c Compression) policy(m *model.Model) (*lukv.Policy, error) {
	if !c.on() {
		return nil, nil
	}
	p := &lukv.Policy{Metric: c.Metric, Allocator: c.Allocator, Ratio: c.Ratio, BudgetTokens: c.BudgetTokens, BudgetBytes: c.BudgetBytes, Profile: c.Profile}
	if c.Allocator.NeedsProfile() && p.Profile == nil {
		var err error
		if p.Profile, err = randomProfile(m, c.Metric); err != nil {
			return nil, err
		}
	}
	return p, p.Validate()
}

// randomProfile returns a profile for a model and metric in which the heads'
// appetites follow an exponential distribution, and each level gives every head
// the same multiple of its appetite, at most all of its entries.
func randomProfile(m *model.Model, metric lukv.MetricConfig) (*lukv.Profile, error) {
	c := m.Config()
	full, err := lukv.NewMetric(metric)
	if err != nil {
		return nil, err
	}
	id := lukv.DefaultProfileIdentity()
	id.Model, id.Metric, id.Protection = m.ID(), lukv.MetricConfigOf(full), lukv.ProfiledProtection(full)
	id.Calibration = "none: made up for benchmarks"
	var excluded []int
	appetite := make([]float64, c.Layers*c.KVHeads) // 0 in excluded layers
	rng := rand.New(rand.NewPCG(1, 1))
	heads := 0
	for at := range c.Layers {
		if !c.Ragged(at) {
			excluded = append(excluded, at)
			continue
		}
		for h := range c.KVHeads {
			appetite[at*c.KVHeads+h] = min(max(-math.Log(1-rng.Float64()), 0.1), 5)
			heads++
		}
	}
	if heads == 0 {
		return nil, errors.New("make up a profile: found only layers with a sliding window, expected one without")
	}
	ratios := make([]float64, 0, solve.Levels*len(appetite))
	for i := range solve.Levels {
		keep := 1 - float64(i+1)/100
		kept := func(scale float64) float64 {
			sum := 0.0
			for _, a := range appetite {
				sum += min(1, scale*a)
			}
			return sum / float64(heads)
		}
		lo, hi := 0.0, 10.0 // 10·0.1 is everything
		for range 60 {
			if mid := (lo + hi) / 2; kept(mid) < keep {
				lo = mid
			} else {
				hi = mid
			}
		}
		for _, a := range appetite {
			r := 1 - min(1, hi*a)
			if a == 0 {
				r = 0
			}
			ratios = append(ratios, r)
		}
	}
	p, err := lukv.NewProfile(id, c.Layers, c.KVHeads, ratios, excluded)
	if err != nil {
		return nil, fmt.Errorf("make up a profile: %w", err)
	}
	return p, nil
}
