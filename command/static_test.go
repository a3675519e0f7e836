package command

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStatic checks that the command links statically without cgo when it is
// built without Vulkan, and needs nothing but the C library with it.
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
	interpreter, libraries := linked(t, "-tags=novulkan")
	assert.False(t, interpreter, "the program asks for a dynamic linker")
	assert.Empty(t, libraries)

	_, libraries = linked(t)
	for _, name := range libraries {
		stem, _, _ := strings.Cut(name, ".so")
		assert.Contains(t, []string{"libc", "libdl", "libpthread"}, stem)
	}
}

// linked builds the command and says what it needs to start.
func linked(t *testing.T, flags ...string) (interpreter bool, libraries []string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "lukv")
	build := exec.Command("go", append(append([]string{"build", "-o", name}, flags...), "../cmd/lukv")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	f, err := elf.Open(name)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		interpreter = interpreter || p.Type == elf.PT_INTERP
	}
	libraries, err = f.ImportedLibraries()
	require.NoError(t, err)
	return interpreter, libraries
}
