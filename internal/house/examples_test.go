package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExamples runs the tests of the modules under examples, which use this one
// as third-party modules would.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("builds other modules and the command")
	}
	modules, err := filepath.Glob(root + "/examples/*/go.mod")
	require.NoError(t, err)
	require.NotEmpty(t, modules)
	for _, file := range modules {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			run := exec.Command("go", "test", "./...")
			run.Dir, run.Env = dir, append(os.Environ(), "GOPROXY=off", "GOFLAGS=")
			out, err := run.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
