package mapfile

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// No more pages enter the page table than were asked for.
func TestWillNeedLimit(t *testing.T) {
	const size, limit, other = 32 << 20, 8 << 20, 2 << 20 // other: pages of the program itself
	path := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	grew := func(n int64) int64 {
		f, err := Open(path)
		require.NoError(t, err)
		defer f.Close()
		before := residentFiles(t)
		f.WillNeed(n)
		if n <= 0 {
			assert.Nil(t, f.ended)
			return 0
		}
		<-f.ended
		return residentFiles(t) - before
	}
	if grew(2*size) < size-other {
		t.Skip("the system does not enter pages ahead (before Linux 5.14)")
	}
	for _, n := range []int64{-1, 0, 1, limit} {
		got := grew(n)
		assert.LessOrEqual(t, got, n+other, "%d bytes asked for", n)
		assert.GreaterOrEqual(t, got, n-other, "%d bytes asked for", n)
	}
}

// residentFiles returns the bytes of mapped files in the page table.
func residentFiles(t *testing.T) int64 {
	data, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(line); words[0] == "RssFile:" {
			n, err := strconv.ParseInt(words[1], 10, 64)
			require.NoError(t, err)
			return n << 10
		}
	}
	t.Skip("/proc/self/status does not say")
	return 0
}
