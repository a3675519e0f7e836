package command

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRunSystem: a system prompt stands in front of the context and is not compressed with
// it, unless the policy must see everything.
func TestRunSystem(t *testing.T) {
	s, path := sample(t, "niah_single_2", 256)
	system := strings.Repeat("Answer truthfully. ", 5)
	trace := filepath.Join(t.TempDir(), "t")
	args := []string{"run", "builtin", "--system", system, "-c", path, "--ratio", "0.8", "--trace", trace, "--answer-prefix", s.AnswerPrefix, s.Question}
	ok(t, args...)
	info := decode[traceInfo](t, ok(t, "inspect", trace, "--json"))
	require.Greater(t, info.From, 15)
	assert.InDelta(t, 0.8, info.Ratio, 0.01)
	o := command(t, append(args, "--metric", "compactor")...)
	require.Equal(t, exitOK, o.code, o.err)
	assert.Contains(t, o.err, "compresses the system prompt with the context")
	assert.Zero(t, decode[traceInfo](t, ok(t, "inspect", trace, "--json")).From)

	whole := ok(t, "run", "builtin", "--system", system, "-c", path, "--answer-prefix", s.AnswerPrefix, s.Question)
	assert.Equal(t, whole, ok(t, "run", "builtin", "--raw", "<|user|>"+system+"\n\n"+s.Context+"\n\n"+s.Question+"<|assistant|>"+s.AnswerPrefix))
	assert.Equal(t, ok(t, "run", "builtin", "--system", system, "--max-tokens=5", "Who?"),
		ok(t, "run", "builtin", "--raw", "--max-tokens=5", "<|user|>"+system+"\n\nWho?<|assistant|>"))
	fails(t, exitUsage, "--system would have no effect", "run", "builtin", "--load", path, "--system", "x", "y")
}

func TestKeepTurnsRefused(t *testing.T) {
	fails(t, exitUsage, "--keep-turns: found -1", "chat", "builtin", "--ratio=0.5", "--keep-turns=-1")
	fails(t, exitUsage, "later part of a context", "chat", "builtin", "--ratio=0.5", "--keep-turns=1", "--metric=compactor")
	fails(t, exitUsage, "--keep-turns would have no effect", "chat", "builtin", "--keep-turns=1")
}
