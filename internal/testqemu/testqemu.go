// Package testqemu runs tests of a package as an arm64 program under qemu-user.
package testqemu

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// ARM64 builds the tests of the package in folder pkg, relative to the test's own,
// for arm64, runs them under qemu-user with the given arguments, fails if they do,
// and returns what they printed. On arm64, in short mode, and without qemu-aarch64
// and Go it skips; with LUKV_MUST_QEMU set, not having them is a failure.
func ARM64(t *testing.T, pkg string, args ...string) string {
	t.Helper()
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
	binary := filepath.Join(t.TempDir(), "arm64.test")
	build := exec.Command("go", "test", "-c", "-o", binary, pkg)
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	run := exec.Command(qemu, append([]string{binary}, args...)...)
	run.Dir = pkg
	run.Env = append(os.Environ(), "LUKV_CPU=")
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("run %s: %v\n%s", pkg, err, out)
	}
	t.Logf("%s: %s", pkg, out)
	return string(out)
}
