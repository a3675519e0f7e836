//go:build unix

package atomicfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDevice: a device is written to, not replaced, even by a privileged user.
func TestDevice(t *testing.T) {
	before, err := os.Stat(os.DevNull)
	require.NoError(t, err)
	require.NoError(t, Write(os.DevNull, 0o644, text("text", nil)))
	after, err := os.Stat(os.DevNull)
	require.NoError(t, err)
	require.Equal(t, before.Mode(), after.Mode())
	require.NotZero(t, after.Mode()&fs.ModeDevice)
}

// TestPipe: a pipe gets the text; one that nobody reads is an error.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip("no named pipes here: ", err)
	}
	require.Error(t, Write(path, 0o644, text("text", nil)))

	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer reader.Close()
	long := strings.Repeat("more than a pipe holds ", 10000)
	done := make(chan error)
	go func() { done <- Write(path, 0o644, text(long, nil)) }()
	got, err := io.ReadAll(&patient{reader, len(long)})
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Equal(t, long, string(got))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&fs.ModeNamedPipe)
}

// patient reads n bytes of a pipe that may have no writer yet.
type patient struct {
	r io.Reader
	n int
}

func (p *patient) Read(b []byte) (int, error) {
	if p.n == 0 {
		return 0, io.EOF
	}
	for {
		n, err := p.r.Read(b)
		if p.n -= n; n > 0 || err != io.EOF {
			return n, err
		}
		runtime.Gosched()
	}
}

// TestDescriptor: a file that the process has open is written in place.
func TestDescriptor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(file)
	require.NoError(t, err)
	defer f.Close()
	io.WriteString(f, "before ")
	name := fmt.Sprintf("/dev/fd/%d", f.Fd())
	if _, err := os.Stat(name); err != nil {
		t.Skip("no names of open files here")
	}
	require.NoError(t, Write(name, 0o644, text("after", nil)))
	require.Equal(t, "before after", contents(t, file))
}
