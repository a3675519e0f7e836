//go:build unix

package hub

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInputsAreFiles puts a pipe, a device that never ends and a folder in place of
// everything that is read from the cache: an error at once.
func TestInputsAreFiles(t *testing.T) {
	put := map[string]func(path string) error{
		"a named pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a device":     func(path string) error { return os.Symlink("/dev/zero", path) },
		"a directory":  func(path string) error { return os.Mkdir(path, 0o700) },
	}
	for kind, put := range put {
		t.Run(kind, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("HF_HOME", home)
			t.Setenv("HF_TOKEN", "")
			t.Setenv("HF_TOKEN_PATH", "")
			require.NoError(t, put(filepath.Join(home, "token")))
			_, err := New()
			require.ErrorContains(t, err, "found "+kind+", expected a file")

			c := &Client{CacheDir: t.TempDir()}
			ref := Ref{Owner: "a", Name: "b"}
			r := c.repo(ref)
			require.NoError(t, os.MkdirAll(filepath.Dir(r.ref("main")), 0o700))
			require.NoError(t, put(r.ref("main")))
			_, err = c.Find(ref)
			if kind == "a directory" {
				require.ErrorIs(t, err, ErrNotCached, "refs/main is the parent of refs/main/x then")
			} else {
				require.ErrorContains(t, err, "found "+kind+", expected a file")
			}

			content := filepath.Join(c.CacheDir, "content")
			require.NoError(t, put(content))
			_, err = hashes(context.Background(), content, &remoteFile{Name: "x", Size: 3, Hash: sha256Of(nil)})
			require.ErrorContains(t, err, "found "+kind+", expected a file")
			require.Error(t, copyFile(filepath.Join(c.CacheDir, "to"), content))

			if kind == "a named pipe" { // posing as what an earlier pull left
				out, err := os.OpenFile(content, os.O_RDWR, 0)
				require.NoError(t, err)
				defer out.Close()
				p := part{f: &remoteFile{Size: 3, Hash: sha256Of(nil)}, out: out}
				require.ErrorContains(t, p.resume(context.Background()), "not a regular file")
			}
		})
	}
}
