package calibration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model"
)

// ProfileOptions say what profile to make. The zero value, with a Prompt, makes
// the default profile of SnapKV.
type ProfileOptions struct {
	Options

	Metric     lukv.MetricConfig // an empty name means snapkv
	Protection *lukv.Protection  // nil: lukv.ProfiledProtection of the metric

	// Empty strings and zero take the values of
	// lukv.DefaultProfileIdentity; a negative MinRetention means none.
	Normalization string
	Objective     string
	Scope         string
	Solver        string
	MinRetention  float64

	// Weights of the layers, for lukv.ObjectiveOutputError; an empty Kind means
	// the default weights of kind cut.
	Weights lukv.Weights

	// State, if not empty, is a file that keeps the work done so far: it is read
	// if it exists, and written from time to time and at the end, whether the
	// work was completed or interrupted. What the metric learned is fitted from is in
	// [FitState] beside it. The caller removes both once the profile is safe. A state made
	// with other options is lukv.ErrProfileMismatch.
	State string

	// Fitted, if not nil, is called before the first and after every text that the
	// ranking of the metric learned is fitted to.
	Fitted func(done, texts int)

	// Progress, if not nil, is called before the first and after every pair.
	Progress func(Progress)
}

// Progress says how far the making of a profile has got.
type Progress struct {
	Done, Total int // pairs
	Resumed     int // of these, taken from the state file

	// Of the pair just done; nil before the first.
	Pair   *Pair
	Levels *solve.LevelSet // budgets, losses and certificates; nil with lukv.ObjectiveOutputError
}

// FitState returns the name of the file that keeps the sums of the ranking that the metric
// learned is fitted to, beside the state file of its profile; "" for "".
func FitState(state string) string {
	if state == "" {
		return ""
	}
	return state + ".fit"
}

// saveEvery is how much work may be lost if the process ends unexpectedly.
var saveEvery = 5 * time.Second // changed by tests

// Identity returns the identity of the profile that the options make.
func (o *ProfileOptions) Identity(m *model.Model, texts []Text) (lukv.ProfileIdentity, error) {
	id := lukv.DefaultProfileIdentity()
	cfg := o.Metric
	if cfg.Name == "" {
		cfg.Name = "snapkv"
	}
	metric, err := lukv.NewMetric(cfg)
	if err != nil {
		return id, err
	}
	id.Model, id.Metric = m.ID(), lukv.MetricConfigOf(metric)
	id.Protection = lukv.ProfiledProtection(metric)
	if o.Protection != nil {
		id.Protection = *o.Protection
	}
	for _, f := range []struct {
		to   *string
		from string
	}{
		{&id.Normalization, o.Normalization}, {&id.Objective, o.Objective}, {&id.Scope, o.Scope}, {&id.Solver, o.Solver},
	} {
		if f.from != "" {
			*f.to = f.from
		}
	}
	if id.Objective == lukv.ObjectiveOutputError {
		w := o.Weights
		if w.Kind == "" {
			w = lukv.DefaultWeights(lukv.WeightsCut)
		}
		id.Weights = &w
	}
	if o.MinRetention != 0 {
		id.MinRetention = max(0, o.MinRetention)
	}
	if o.MaxSteps != 0 {
		id.MaxSteps = o.MaxSteps
	}
	if err := id.Validate(); err != nil {
		return id, err
	}
	if o.Prompt == nil {
		return id, errors.New("the options have no prompt")
	}
	id.Calibration, err = hash(m, texts, &o.Options)
	return id, err
}

// Profile measures a profile of m on texts.
func Profile(ctx context.Context, m *model.Model, texts []Text, o ProfileOptions) (*lukv.Profile, error) {
	p, err := profile(ctx, m, texts, &o)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return p, nil
}

func profile(ctx context.Context, m *model.Model, texts []Text, o *ProfileOptions) (*lukv.Profile, error) {
	id, err := o.Identity(m, texts)
	if err != nil {
		return nil, err
	}
	o.MaxSteps = id.MaxSteps
	c := m.Config()
	var excluded []int
	for at := range c.Layers {
		if !c.Ragged(at) {
			excluded = append(excluded, at)
		}
	}
	metric, err := lukv.NewMetric(id.Metric)
	if err != nil {
		return nil, err
	}
	d, err := measureData(ctx, m, texts, metric, id, o)
	if err != nil {
		return nil, err
	}
	if id.Objective == lukv.ObjectiveOutputError {
		p, err := profileOfErrors(ctx, m, texts, o, id, excluded, &d)
		return withData(p, d), err
	}
	metric = lukv.WithCalibration(metric, &d)
	b, err := lukv.NewProfileBuilder(id, c.Layers, c.KVHeads, excluded)
	if err != nil {
		return nil, err
	}
	b.Parallel = m.Parallel
	p, err := makeProfile(ctx, o, b, Pairs(texts), func(p *maker) error {
		return Measure(ctx, m, texts, []lukv.Metric{metric}, o.Options, b.Pairs(), func(pair *Pair) error {
			imp, err := pair.Importance(id.Normalization)
			if err != nil {
				return err
			}
			levels, err := b.Add(ctx, pair.Index, imp, pair.Scores[0])
			if err != nil {
				return err
			}
			return p.done(pair, levels)
		})
	})
	return withData(p, d), err
}

// withData gives a new profile, which may be nil, what its metric reads.
func withData(p *lukv.Profile, d lukv.CalibrationData) *lukv.Profile {
	if p != nil {
		p.CalibrationData = d
	}
	return p
}

// builder adds up pairs, keeps its state in a file, and solves.
type builder interface {
	Pairs() int
	LoadState(path string) error
	SaveState(path string) error
	Profile() (*lukv.Profile, error)
}

// maker makes one profile.
type maker struct {
	o       *ProfileOptions
	b       builder
	ctx     context.Context
	total   int
	resumed int
	kept    int // pairs in the state file
	saved   time.Time
}

// makeProfile makes a profile from b and the pairs that measure adds to it,
// starting from the state file if there is one.
func makeProfile(ctx context.Context, o *ProfileOptions, b builder, total int, measure func(*maker) error) (*lukv.Profile, error) {
	if o.State != "" {
		if err := b.LoadState(o.State); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	p := maker{o: o, b: b, ctx: ctx, total: total, resumed: b.Pairs(), saved: time.Now()}
	p.report(nil, nil)
	if err := measure(&p); err != nil {
		return nil, errors.Join(err, p.save())
	}
	if err := p.save(); err != nil {
		return nil, err
	}
	return b.Profile()
}

func (p *maker) report(pair *Pair, levels *solve.LevelSet) {
	if p.o.Progress != nil {
		p.o.Progress(Progress{Done: p.b.Pairs(), Total: p.total, Resumed: p.resumed, Pair: pair, Levels: levels})
	}
}

// done records that a pair was added.
func (p *maker) done(pair *Pair, levels *solve.LevelSet) error {
	if time.Since(p.saved) > saveEvery {
		if err := p.save(); err != nil {
			return err
		}
	}
	p.report(pair, levels)
	return p.ctx.Err()
}

// save writes the state if there is something new in it.
func (p *maker) save() error {
	if p.o.State == "" || p.b.Pairs() == max(p.kept, p.resumed) {
		return nil
	}
	if err := p.b.SaveState(p.o.State); err != nil {
		return err
	}
	p.kept, p.saved = p.b.Pairs(), time.Now()
	return nil
}
