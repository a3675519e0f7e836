package atomicfile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/filelock"
)

func text(s string, err error) func(io.Writer) error {
	return func(w io.Writer) error {
		io.WriteString(w, s)
		return err
	}
}

func contents(t *testing.T, path string) string {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(got)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	require.NoError(t, Write(path, 0o600, text("old", nil)))
	broken := errors.New("broken")
	require.ErrorIs(t, Write(path, 0o600, text("half", broken)), broken)
	require.Equal(t, "old", contents(t, path))
	require.NoError(t, Write(path, 0o600, text("new", nil)))
	require.Equal(t, "new", contents(t, path))
	require.Equal(t, []string{"x"}, names(t, dir), "nothing left behind")
	missing := filepath.Join(dir, "no", "x")
	require.ErrorContains(t, Write(missing, 0o600, text("", nil)), missing)
	require.ErrorContains(t, Write(dir, 0o600, text("", nil)), "found a directory")
}

// TestCheck: what Write would refuse, without a trace.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	require.NoError(t, Check(path))
	require.Empty(t, names(t, dir))
	require.NoError(t, Write(path, 0o600, text("old", nil)))
	require.NoError(t, Check(path))
	require.Equal(t, "old", contents(t, path))
	require.Equal(t, []string{"x"}, names(t, dir))
	require.ErrorContains(t, Check(dir), "found a directory")
	require.ErrorIs(t, Check(filepath.Join(dir, "no", "x")), fs.ErrNotExist)
	require.ErrorContains(t, Check(filepath.Join(path, "x")), "not a directory")
	require.NoError(t, Check(os.DevNull))
}

// TestNamed: not every system has files without a name.
func TestNamed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	f, finish, err := named(path, 0o600)
	require.NoError(t, err)
	require.Len(t, names(t, dir), 1)
	f.WriteString("text")
	require.NoError(t, finish(path))
	require.Equal(t, "text", contents(t, path))
	_, finish, err = named(path, 0o600)
	require.NoError(t, err)
	require.NoError(t, finish(""))
	require.Equal(t, []string{"x"}, names(t, dir))
}

// TestPermissions: a file that others may not read stays unreadable to them.
func TestPermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	perm := func() fs.FileMode {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	require.NoError(t, Write(path, 0o644, text("", nil)))
	assert.Equal(t, fs.FileMode(0o600), perm()&0o700, "its owner reads and writes it")
	require.NoError(t, Write(path, 0o600, text("", nil)))
	assert.Equal(t, fs.FileMode(0o600), perm())
	require.NoError(t, Write(path, 0o644, text("", nil)))
	assert.Equal(t, fs.FileMode(0o600), perm())
}

// TestLinks: the target of a link is replaced, or created if it does not exist;
// the link stays.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("second", link))
	require.NoError(t, os.Symlink(filepath.Join("sub", "file"), filepath.Join(dir, "second")))
	for _, want := range []string{"first", "again"} {
		require.NoError(t, Write(link, 0o600, text(want, nil)))
		require.Equal(t, want, contents(t, filepath.Join(dir, "sub", "file")))
	}
	to, err := os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, "second", to)
	require.Equal(t, []string{"file"}, names(t, filepath.Join(dir, "sub")))

	require.NoError(t, os.Symlink("circle", filepath.Join(dir, "circle")))
	require.Error(t, Write(filepath.Join(dir, "circle"), 0o600, text("", nil)))
}

// TestStale: files left by killed programs are removed, those of live ones are not.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	old := time.Now().Add(-2 * staleAge)
	put := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	age := func(name string) { require.NoError(t, os.Chtimes(filepath.Join(dir, name), old, old)) }
	put(".x.123.tmp").Close()
	age(".x.123.tmp")
	live := put(".x.456.tmp")
	_, err := filelock.Try(live)
	require.NoError(t, err)
	age(".x.456.tmp")
	put(".x.789.tmp") // new: perhaps about to be locked
	for _, name := range []string{".y.123.tmp", ".x.notes.tmp"} {
		put(name)
		age(name)
	}
	require.NoError(t, Write(path, 0o600, text("", nil)))
	assert.ElementsMatch(t, []string{"x", ".x.456.tmp", ".x.789.tmp", ".y.123.tmp", ".x.notes.tmp"}, names(t, dir))
}

// What is written in parts of any size comes whole, and an error of the file is reported by the write
// that meets it or at the end.
func TestPieces(t *testing.T) {
	want := make([]byte, 2*pieceBytes+12345)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	for _, part := range []int{1000, pieceBytes, pieceBytes + 1, len(want)} {
		path := filepath.Join(t.TempDir(), "large")
		require.NoError(t, Write(path, 0o600, func(w io.Writer) error {
			for p := range slices.Chunk(want, part) {
				n, err := w.Write(p)
				require.NoError(t, err)
				require.Equal(t, len(p), n)
			}
			return nil
		}))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), part)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "closed"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	w := pieces{f: f}
	_, err = w.Write(want[:10])
	require.NoError(t, err)
	require.ErrorIs(t, w.flush(), os.ErrClosed)
	_, err = w.Write(want)
	require.ErrorIs(t, err, os.ErrClosed)
}
