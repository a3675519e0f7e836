package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJSON compares what commands print as JSON with docs/json.md. Others, such as
// eval, profile, demo and inspect, and pull, which needs a hub, are compared in their
// own tests.
func TestJSON(t *testing.T) {
	_, context := sample(t, "niah_single_2", 256)
	_, long := sample(t, "niah_multikey_3", 512)
	dir := t.TempDir()
	for _, c := range []struct{ format, args string }{
		{"lukv run 1", "run builtin -c CONTEXT --ratio 0.5 --allocator lukv --json --logprobs 2 --max-tokens 2 --stop x question"},
		{"lukv choose 1", "choose builtin -d LONG --metric keydiff --ratio 0.5 --json"},
		{"lukv bench 1", "bench builtin --pp 4 --tg 2 --reps 1 --ratio 0,0.5 --json"},
		{"lukv devices 1", "devices --json"},
		{"lukv tokenize 1", "tokenize builtin --json text"},
		{"lukv tokenize 1", "tokenize builtin --json --count text"},
		{"lukv tokenize 1", "tokenize builtin --json --decode 5"},
		{"lukv template 1", "template builtin --json --user text"},
		{"lukv version 1", "version --json"},
	} {
		args := strings.Fields(strings.NewReplacer("CONTEXT", context, "LONG", long).Replace(c.args))
		out := ok(t, args...)
		plainJSON(t, c.format, out)
		if args[0] == "bench" {
			file := filepath.Join(dir, "bench.json")
			require.NoError(t, os.WriteFile(file, []byte(out), 0o600))
			plainJSON(t, "lukv bench compare 1", ok(t, "bench", "--compare", file, file, "--json"))
		}
	}
}
