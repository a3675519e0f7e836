//go:build unix

package chat

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/inputfile"
)

// TestLoadOtherKinds: something other than a regular file in its place is an error
// that names it.
func TestLoadOtherKinds(t *testing.T) {
	put := map[string]func(string) error{
		"a named pipe": func(name string) error { return syscall.Mkfifo(name, 0o600) },
		"a device":     func(name string) error { return os.Symlink("/dev/zero", name) },
		"a directory":  func(name string) error { return os.Mkdir(name, 0o700) },
	}
	for _, file := range []string{templateFile, configFile, tokensFile} {
		for kind, make := range put {
			t.Run(file+" "+kind, func(t *testing.T) {
				folder := t.TempDir()
				require.NoError(t, make(filepath.Join(folder, file)))
				for _, fsys := range []string{"Dir", "DirFS"} {
					files := os.DirFS(folder)
					if fsys == "Dir" {
						files = inputfile.Dir(folder)
					}
					_, err := SpecialTokens(files)
					if file == templateFile {
						_, err = Load(files)
					}
					require.ErrorContains(t, err, file+": found "+kind+", expected a file")
				}
			})
		}
	}
}
