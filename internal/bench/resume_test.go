package bench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// A run that was cut off resumes where it was: its results stay, to the last figure.
func TestResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	none, err := ReadReport(path)
	require.NoError(t, err)
	require.Nil(t, none)

	ctx, cancel := context.WithCancel(t.Context())
	o := quick()
	o.Reps, o.Prefill, o.Decode, o.Depth = 1, []int{20}, []int{2}, []int{0, 70}
	o.Version, o.Revision = "v1", "abc"
	saved := 0
	o.Save = func(r *Report) error {
		saved++
		if saved == 2 {
			cancel()
		}
		return r.WriteFile(path)
	}
	source := func() []*Source { return []*Source{Random("tiny", tiny(0), tensor.BF16)} }
	_, err = Run(ctx, source(), o)
	require.ErrorIs(t, err, context.Canceled)
	first, err := ReadReport(path)
	require.NoError(t, err)
	require.Len(t, first.Points, 2)
	assert.True(t, first.Interrupted)

	o.Previous, saved = first, 10
	first.Points[1].Error = "no room" // what failed is measured again
	r, err := Run(t.Context(), source(), o)
	require.NoError(t, err)
	assert.Equal(t, 14, saved, "every point, and the whole")
	require.Len(t, r.Points, 4)
	assert.Equal(t, first.Points[0], r.Points[0])
	assert.Equal(t, first.Points[1].Key, r.Points[1].Key)
	assert.Empty(t, r.Points[1].Error)
	assert.False(t, r.Interrupted)

	broken := errors.New("the disk is full")
	o.Save = func(*Report) error { return broken }
	_, err = Run(t.Context(), source(), o)
	require.ErrorIs(t, err, broken)

	o.Revision = "abd"
	_, err = Run(t.Context(), source(), o)
	require.ErrorContains(t, err, "resume earlier measurements: program: found v1 abc, expected v1 abd")
	o.Revision, first.Machine.Processors = "abc", 1000
	_, err = Run(t.Context(), source(), o)
	require.ErrorContains(t, err, "resume earlier measurements: number of processors")

	require.NoError(t, os.WriteFile(path, []byte(`{"format":"lukv bench 0"}`), 0o600))
	_, err = ReadReport(path)
	require.ErrorContains(t, err, `found the format "lukv bench 0"`)
	require.NoError(t, os.WriteFile(path, []byte(`{`), 0o600))
	_, err = ReadReport(path)
	require.ErrorContains(t, err, "read measurements")
}

// The file holds what the run returns, including comparisons of points.
func TestResumeWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	o := quick()
	o.Reps, o.Decode, o.Depth = 1, []int{2}, []int{70}
	o.Compression = []Compression{{}, compression("keydiff", "uniform", 0.5)}
	o.Save = func(r *Report) error { return r.WriteFile(path) }
	r, err := Run(t.Context(), []*Source{Random("tiny", tiny(0), tensor.BF16)}, o)
	require.NoError(t, err)
	require.Len(t, r.Points, 2)
	require.Positive(t, r.Points[1].VersusFull)
	saved, err := ReadReport(path)
	require.NoError(t, err)
	assert.Equal(t, r.Points, saved.Points)
}

// Measurements with mapped weights, or with another profile, are not taken over.
func TestResumeOtherSource(t *testing.T) {
	o := quick()
	o.Reps, o.Decode, o.Depth = 1, []int{2}, []int{70}
	o.Compression = []Compression{compression("keydiff", "lukv", 0.5)}
	run := func(s *Source) *Report {
		r, err := Run(t.Context(), []*Source{s}, o)
		require.NoError(t, err)
		o.Previous = r
		return r
	}
	inMemory := func() *Source { return Random("tiny", tiny(0), tensor.BF16) }
	require.Len(t, run(inMemory()).Points, 1)
	require.Len(t, run(inMemory()).Points, 1)
	require.Len(t, run(Folder("tiny", mappedModel)).Points, 2)

	s := inMemory()
	m, err := s.open(t.Context())
	require.NoError(t, err)
	p, err := randomProfile(m, o.Compression[0].Metric)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	o.Compression[0].Profile = p
	r := run(inMemory())
	require.Len(t, r.Points, 3)
	digest, err := p.Digest()
	require.NoError(t, err)
	assert.Equal(t, digest, r.Points[2].Profile)
	var table bytes.Buffer
	require.NoError(t, r.WriteTable(&table))
	assert.Contains(t, table.String(), digest[:19])
}

func TestShapeLayers(t *testing.T) {
	cfg, err := ShapeConfig("llama-3.1-8b:8")
	require.NoError(t, err)
	assert.Equal(t, 8, cfg.Layers)
	assert.Len(t, cfg.Windows, 8)
	for _, name := range []string{"llama-3.1-8b:0", "llama-3.1-8b:33", "llama-3.1-8b:", "llama-3.1-8b:x", "llama-9:1"} {
		_, err := ShapeConfig(name)
		assert.Error(t, err, name)
	}
}
