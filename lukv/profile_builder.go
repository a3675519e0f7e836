package lukv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/lukv/solve"

	"github.com/lukv/lukv/internal/inputfile"
)

// ProfileBuilder solves one (context, question) pair after another and
// averages the resulting local ratios. Pairs are added in a fixed order, so
// the same measurements give the same bytes; the state can be saved after any
// pair and the work resumed from there with the same result. Not safe for
// concurrent use.
type ProfileBuilder struct {
	// Parallel builds loss curves in parallel; nil: one by one. The result
	// does not depend on it.
	Parallel func(n int, fn func(i int))

	id              ProfileIdentity
	layers, kvHeads int
	excluded        []int

	pairs int
	minT  int
	maxT  int
	sums  []float64 // [99][L][K] sum of ratios over pairs
}

// NewProfileBuilder starts a profile. excluded lists the layers that take
// no part, ascending.
func NewProfileBuilder(id ProfileIdentity, layers, kvHeads int, excluded []int) (*ProfileBuilder, error) {
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	if layers < 1 || kvHeads < 1 || layers > math.MaxInt32/kvHeads/solve.Levels {
		return nil, fmt.Errorf("build profile: %d layers of %d KV heads", layers, kvHeads)
	}
	for k, l := range excluded {
		if l < 0 || l >= layers || k > 0 && l <= excluded[k-1] || len(excluded) >= layers {
			return nil, fmt.Errorf("build profile: excluded layers %v of %d, expected ascending and not all", excluded, layers)
		}
	}
	metric, err := NewMetric(id.Metric)
	if err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	id.Metric = MetricConfigOf(metric)
	return &ProfileBuilder{
		id: id, layers: layers, kvHeads: kvHeads, excluded: slices.Clone(excluded),
		sums: make([]float64, solve.Levels*layers*kvHeads),
	}, nil
}

// Identity returns the identity of the profile being built.
func (b *ProfileBuilder) Identity() ProfileIdentity { return b.id }

// Pairs returns the number of pairs added, which is the index of the next one.
func (b *ProfileBuilder) Pairs() int { return b.pairs }

// Add solves pair number index, counted from 0, and adds it to the mean.
// importance [L][K][T] comes from [Oracle.Importance] with the identity's
// normalisation (excluded layers nil), scores [L][K][T] from the identity's
// metric on the same context. The returned solution carries the losses and
// certificates. On error nothing is added.
func (b *ProfileBuilder) Add(ctx context.Context, index int, importance, scores [][][]float32) (*solve.LevelSet, error) {
	if index != b.pairs {
		return nil, fmt.Errorf("build profile: pair %d, expected pair %d next", index, b.pairs)
	}
	T, err := b.shape(importance)
	if err != nil {
		return nil, fmt.Errorf("build profile: pair %d: %w", index, err)
	}
	if b.id.Objective == ObjectiveCapacity {
		scores = importance
	}
	opt := solve.SweepOptions{
		Scope: b.id.Scope, MinRetention: b.id.MinRetention,
		Repair: b.id.Solver == SolverRepair,
	}
	if opt.MinRetention == 0 {
		opt.MinRetention = -1
	}
	set, err := solveLevels(ctx, importance, scores, b.id.Protection, opt, b.Parallel)
	if err != nil {
		return nil, fmt.Errorf("build profile: pair %d: %w", index, err)
	}
	at := 0
	for i := range set.Keep {
		for l, row := range set.Keep[i] {
			for _, keep := range row {
				if importance[l] != nil {
					b.sums[at] += 1 - float64(keep)/float64(T)
				}
				at++
			}
		}
	}
	if b.pairs == 0 || T < b.minT {
		b.minT = T
	}
	b.maxT = max(b.maxT, T)
	b.pairs++
	return set, nil
}

// shape checks importance and returns T.
func (b *ProfileBuilder) shape(importance [][][]float32) (T int, err error) {
	if len(importance) != b.layers {
		return 0, fmt.Errorf("importance of %d layers, expected %d", len(importance), b.layers)
	}
	for l, layer := range importance {
		if slices.Contains(b.excluded, l) {
			if layer != nil {
				return 0, fmt.Errorf("importance of layer %d, which is excluded", l)
			}
			continue
		}
		if len(layer) != b.kvHeads {
			return 0, fmt.Errorf("layer %d: importance of %d heads, expected %d", l, len(layer), b.kvHeads)
		}
		for h, row := range layer {
			if T == 0 {
				T = len(row)
			}
			if len(row) != T || T == 0 {
				return 0, fmt.Errorf("layer %d head %d: importance of %d positions, expected %d and not 0", l, h, len(row), T)
			}
		}
	}
	return T, nil
}

// Profile returns the mean over the pairs added so far. More pairs can be
// added afterwards.
func (b *ProfileBuilder) Profile() (*Profile, error) {
	if b.pairs == 0 {
		return nil, fmt.Errorf("build profile: no pair was added")
	}
	ratios := make([]float64, len(b.sums))
	for i, s := range b.sums {
		ratios[i] = s / float64(b.pairs)
	}
	p, err := NewProfile(b.id, b.layers, b.kvHeads, ratios, slices.Clone(b.excluded))
	if err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	p.Pairs, p.MinContext, p.MaxContext = b.pairs, b.minT, b.maxT
	return p, nil
}

// WriteState writes everything needed to resume later.
func (b *ProfileBuilder) WriteState(w io.Writer) error {
	f := &profileFile{
		fileHead: fileHead{
			Format: stateFormat, Version: fileVersion, Identity: b.id,
			Layers: b.layers, KVHeads: b.kvHeads, Excluded: b.excluded, Pairs: b.pairs,
		},
		MinContext: b.minT, MaxContext: b.maxT,
	}
	f.split(b.sums)
	if err := f.write(w); err != nil {
		return fmt.Errorf("write profile state: %w", err)
	}
	return nil
}

// SaveState writes the state to path: completely or not at all.
func (b *ProfileBuilder) SaveState(path string) error {
	if err := atomicfile.Write(path, 0o644, b.WriteState); err != nil {
		return fmt.Errorf("save profile state: %w", err)
	}
	return nil
}

// ReadState continues from a state written by a builder of the same identity
// and shape; any other is an error that wraps [ErrProfileMismatch]. On error
// the builder is unchanged.
func (b *ProfileBuilder) ReadState(r io.Reader) error {
	data, err := readState(r, b.id)
	if err != nil {
		return fmt.Errorf("read profile state: %w", err)
	}
	f, flat, err := parseProfileFile(data)
	if err != nil {
		return fmt.Errorf("read profile state: %w", err)
	}
	if err := f.matches(b.layers, b.kvHeads, b.excluded); err != nil {
		return fmt.Errorf("read profile state: %w", err)
	}
	for i, v := range flat {
		if !(v >= 0 && v <= float64(f.Pairs)) {
			return fmt.Errorf("read profile state: value %d is %v, expected 0 to %d", i, v, f.Pairs)
		}
	}
	b.pairs, b.minT, b.maxT, b.sums = f.Pairs, f.MinContext, f.MaxContext, flat
	return nil
}

// LoadState is ReadState on a file.
func (b *ProfileBuilder) LoadState(path string) error {
	in, err := inputfile.Open(path)
	if err != nil {
		return fmt.Errorf("load profile state: %w", err)
	}
	defer in.Close()
	if err := b.ReadState(in); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// CalibrationHash identifies calibration texts and questions for
// [ProfileIdentity].Calibration: SHA-256 over the parts, each preceded by its
// length in bytes, in the given order.
func CalibrationHash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n%s\n", len(p), p)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
