package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestARM64 runs this package's tests, the operation table with its recorded
// results among them, as an arm64 program under qemu-user. It skips without
// qemu-aarch64 and Go, unless LUKV_MUST_QEMU is set.
func TestARM64(t *testing.T) {
	if runtime.GOARCH == "arm64" {
		t.Skip("this is arm64")
	}
	if testing.Short() {
		t.Skip("an emulated processor is slow")
	}
	qemu, err := exec.LookPath("qemu-aarch64")
	if err == nil {
		_, err = exec.LookPath("go")
	}
	if err != nil {
		if os.Getenv("LUKV_MUST_QEMU") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir, err := os.Getwd()
	require.NoError(t, err)
	for _, pkg := range []string{".", "../internal/detmath"} {
		binary := filepath.Join(t.TempDir(), "arm64.test")
		build := exec.Command("go", "test", "-c", "-o", binary, pkg)
		build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
		run := exec.Command(qemu, binary, "-test.short")
		run.Dir = filepath.Join(dir, pkg)
		run.Env = append(os.Environ(), "LUKV_CPU=")
		out, err = run.CombinedOutput()
		require.NoError(t, err, "%s: %s", pkg, out)
		t.Logf("%s: %s", pkg, out)
	}
}
