package bench

import (
	"bytes"
	"context"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// The test program serves as its own busy process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "busy" {
		if err := Busy(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestBusy(t *testing.T) {
	in, end := io.Pipe()
	var out bytes.Buffer
	done := make(chan error)
	go func() { done <- Busy(in, &out) }()
	select {
	case err := <-done:
		t.Fatal("it ended before its input did:", err)
	case <-time.After(20 * time.Millisecond):
	}
	require.NoError(t, end.Close())
	require.NoError(t, <-done)
	assert.Equal(t, "busy\n", out.String())
}

func TestContention(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	for _, window := range []int{0, 100} {
		o := quick()
		o.Threads = []int{1, 2}
		o.Depth = []int{150}
		o.Decode = []int{20}
		o.Busy = []int{0, 2}
		o.BusyCommand = []string{program, "busy"}
		r, err := Run(t.Context(), []*Source{Random("tiny", tiny(window), tensor.BF16)}, o)
		require.NoError(t, err)
		require.Len(t, r.Points, 4)
		for _, p := range r.Points {
			if p.Busy == 0 {
				assert.Zero(t, p.VersusQuiet, p.Key)
				continue
			}
			assert.Positive(t, p.VersusQuiet, p.Key)
			assert.Positive(t, p.VersusQuietOne, p.Key)
			if p.Threads == 1 {
				assert.Equal(t, p.VersusQuiet, p.VersusQuietOne)
			}
			for _, s := range p.Samples {
				assert.Positive(t, s.Quiet)
				assert.Positive(t, s.QuietOne)
			}
		}
		checkBusyTable(t, r)
	}
}

func checkBusyTable(t *testing.T, r *Report) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.WriteTable(&b))
	assert.Contains(t, b.String(), "vs 1 quiet thread")
	assert.Contains(t, r.Points[1].Key.String(), "against 2 busy")
}

func TestRivals(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	b, err := startRivals(t.Context(), []string{program, "busy"}, 2)
	require.NoError(t, err)
	list := b.list
	require.Len(t, list, 2)
	b.stop()
	for _, r := range list {
		assert.NotNil(t, r.cmd.ProcessState, "waited for")
	}
	b.stop()

	_, err = startRivals(t.Context(), []string{program + ".none"}, 1)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = startRivals(t.Context(), []string{program, "-test.run=^$"}, 2)
	require.ErrorContains(t, err, `expected "busy"`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = startRivals(ctx, []string{program, "busy"}, 1)
	require.ErrorIs(t, err, context.Canceled)
}
