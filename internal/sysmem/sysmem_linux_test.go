package sysmem

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAvailable(t *testing.T) {
	total, free := Total(), Available()
	if total == 0 {
		t.Skip("/proc/meminfo does not say")
	}
	assert.Positive(t, free)
	assert.Less(t, free, total)
}

// The least of what the group and those above it have left counts, with pages of files
// counted as free.
func TestAvailableInControlGroups(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		name, groups string
		files        map[string]string
		want         int64
	}{
		{"no limit", "0::/user\n", map[string]string{"user/memory.max": "max\n", "user/memory.current": "5\n"}, 9 * gib},
		{"no such group", "0::/user\n", nil, 9 * gib},
		{"version 2", "0::/user\n", map[string]string{
			"user/memory.max": "4294967296\n", "user/memory.current": "3221225472\n",
			"user/memory.stat": "anon 7\ninactive_file 1073741824\nactive_file 536870912\n",
		}, 2*gib + gib/2},
		{"the group above", "0::/user/me\n", map[string]string{
			"user/memory.max": "1073741824\n", "user/memory.current": "0\n",
			"user/me/memory.max": "4294967296\n", "user/me/memory.current": "0\n",
		}, gib},
		{"a container that is its own root", "0::/outside/it\n", map[string]string{
			"memory.max": "2147483648\n", "memory.current": "1073741824\n",
		}, gib},
		{"full", "0::/user\n", map[string]string{"user/memory.max": "100\n", "user/memory.current": "120\n"}, 1},
		{"more than the machine has", "0::/\n", map[string]string{"memory.max": "1099511627776\n", "memory.current": "0\n"}, 9 * gib},
		{"version 1", "7:cpu:/user\n4:memory,hugetlb:/user\n0::/\n", map[string]string{
			"memory/user/memory.limit_in_bytes": "4294967296\n", "memory/user/memory.usage_in_bytes": "3221225472\n",
			"memory/user/memory.stat": "inactive_file 7\ntotal_inactive_file 536870912\ntotal_active_file 0\n",
			"memory.max":              "no number",
		}, gib + gib/2},
		{"nonsense", "memory\n\n::\n", nil, 9 * gib},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range test.files {
				path := filepath.Join(dir, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			assert.Equal(t, test.want, availableIn(dir, test.groups, 9*gib))
		})
	}
}
