package command

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExact: with --exact the answer and its log-probabilities are those of the whole cache,
// greedy and sampled, in run and in chat.
func TestExact(t *testing.T) {
	item, context := sample(t, "niah_multikey_3", 512)
	run := func(args ...string) runResult {
		return decode[runResult](t, ok(t, append([]string{"run", "builtin", "-c", context, "--json", "--logprobs=2", "--max-tokens=12"}, append(args, item.Question)...)...))
	}
	for _, sampling := range [][]string{{"--temperature=0"}, {"--temperature=0.9", "--seed=4"}} {
		whole := run(sampling...)
		exact := run(append(sampling, "--ratio=0.6", "--exact", "--draft-tokens=3", "--system=Be brief.")...)
		system := run(append(sampling, "--system=Be brief.")...)
		assert.Equal(t, system.Tokens, exact.Tokens)
		exact = run(append(sampling, "--ratio=0.6", "--exact", "--draft-tokens=3")...)
		require.NotEmpty(t, whole.Tokens)
		assert.Equal(t, whole.Tokens, exact.Tokens)
		assert.Equal(t, whole.Answer, exact.Answer)
		x := exact.Stats
		assert.Equal(t, []int64{whole.Stats.CompressedBytes, whole.Stats.Entries}, []int64{x.CompressedBytes, x.Entries}, "it is whole")
		assert.Less(t, x.DraftBytes, x.FinalBytes)
		assert.Positive(t, x.DraftBytes)
		assert.Positive(t, x.Verified)
		assert.GreaterOrEqual(t, x.Drafted, x.Accepted)
		assert.Equal(t, 0.6, exact.Policy.Ratio)
		assert.Zero(t, whole.Stats.Verified+whole.Stats.Drafted)
	}
	o := command(t, "run", "builtin", "-c", context, "--ratio=0.6", "--exact", "--draft-tokens=3", "--stats", item.Question)
	assert.Contains(t, o.err, "drafts    ")
	assert.Contains(t, o.err, "in the compressed cache")
	ok(t, "run", "builtin", "-c", context, "--ratio=0.6", "--exact", "--trace", t.TempDir()+"/trace", item.Question)

	chat := func(args ...string) string {
		code, out, msg := invoke(t, item.Question, append([]string{"chat", "builtin", "--load", context, "--max-tokens=12"}, args...)...)
		require.Equal(t, exitOK, code, msg)
		return out
	}
	assert.Equal(t, chat(), chat("--ratio=0.9", "--exact", "--draft-tokens=2"))

	fails(t, exitUsage, "expected 1 to 8", "run", "builtin", "-c", context, "--ratio=0.5", "--exact", "--draft-tokens=9", "x")
	fails(t, exitUsage, "compresses while decoding", "run", "builtin", "-c", context, "--ratio=0.5", "--exact", `--decode={"mode":"h2o"}`, "x")
	fails(t, exitUsage, "compresses nothing", "run", "builtin", "-c", context, "--ratio=0", "--exact", "x")
}
