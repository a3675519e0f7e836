package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStatic checks that the command links statically without cgo.
func TestStatic(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks into an ELF file")
	}
	if testing.Short() {
		t.Skip("builds the command")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	name := filepath.Join(t.TempDir(), "lukv")
	build := exec.Command("go", "build", "-o", name, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	f, err := elf.Open(name)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "the program asks for a dynamic linker")
	}
	libraries, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
}
