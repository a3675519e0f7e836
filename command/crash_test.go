package command

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCrashHasAStatusOfItsOwn: a panic in another goroutine, which run cannot recover,
// must not look like wrong usage.
func TestCrashHasAStatusOfItsOwn(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	crash := exec.CommandContext(t.Context(), program, "run", "builtin", "--device", "broken:crash", "x")
	crash.Env = append(os.Environ(), commandEnv+"=broken")
	text, err := crash.CombinedOutput()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), string(text))
	assert.Contains(t, string(text), "a fault in a driver")
	assert.Contains(t, string(text), "goroutine", "a trace to report")
	assert.Equal(t, exitCrashed, exit.ExitCode())
	for _, status := range []int{exitOK, exitFailed, exitRefused, exitFull, exitDevice, exitUsage, exitInterrupted} {
		assert.NotEqual(t, exitCrashed, status)
	}
}
