package testfuzz

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// failed records a failure.
type failed struct {
	testing.TB
	failed bool
}

func (f *failed) Helper()               {}
func (f *failed) Errorf(string, ...any) { f.failed = true }

var sink []byte

func TestBound(t *testing.T) {
	for _, c := range []struct {
		input, bytes int
		fails        bool
	}{{0, 60 << 20, false}, {0, 65 << 20, true}, {1 << 20, 65 << 20, false}, {1 << 20, 73 << 20, true}} {
		f := &failed{TB: t}
		end := Bound(f, c.input)
		sink = make([]byte, c.bytes)
		end()
		sink = nil
		require.Equal(t, c.fails, f.failed, "%d bytes for an input of %d", c.bytes, c.input)
	}
}
