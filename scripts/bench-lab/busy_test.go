package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/builtin"
)

// The test program serves as its own busy process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "spin" {
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
	for _, threads := range []int{1, 2} {
		s := quick()
		s.threads, s.depth, s.tokens, s.busy, s.batch = threads, 150, 5, 2, 2
		_, err := s.contend(t.Context(), builtin.Name)
		require.ErrorContains(t, err, "found no command")
		s.command = []string{program, "spin"}
		x, err := s.contend(t.Context(), builtin.Name)
		require.NoError(t, err)
		c := x.(Contention)
		assert.Equal(t, threads, c.Threads)
		assert.Equal(t, 2, c.Busy)
		for _, v := range []float64{c.Quiet, c.QuietOne, c.Speed, c.VersusQuiet, c.VersusQuietOne} {
			assert.Positive(t, v)
		}
	}
}

func TestRivals(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	b, err := startRivals(t.Context(), []string{program, "spin"}, 2)
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
	_, err = startRivals(ctx, []string{program, "spin"}, 1)
	require.ErrorIs(t, err, context.Canceled)
}
