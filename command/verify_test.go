package command

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// otherWeights writes the embedded model with one byte changed outside the sample that
// its identity covers.
func otherWeights(t *testing.T) string {
	return checkpoint(t, func(all map[string]tensor.Tensor) {
		const name = "model.embed_tokens.weight"
		x := all[name]
		x.Data = bytes.Clone(x.Data)
		x.Data[len(x.Data)/2+100] ^= 1
		all[name] = x
	})
}

// TestVerify: one changed byte anywhere gives another digest.
func TestVerify(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	digest := func(dir string) string {
		info := decode[checkpointInfo](t, ok(t, "inspect", dir, "--verify", "--json"))
		assert.Contains(t, info.Digest, "sha256:")
		return info.Digest
	}
	want := digest("builtin")
	assert.Equal(t, want, digest(checkpoint(t, nil)), "the same weights in a folder")
	assert.NotEqual(t, want, digest(otherWeights(t)))
}

// TestVerifySaved: with --verify, saved caches carry the digest, and run and chat refuse one
// of other weights; without it, only the sample is compared.
func TestVerifySaved(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	_, context := sample(t, "niah_single_2", 256)
	dir := t.TempDir()
	signed, plain := filepath.Join(dir, "signed"), filepath.Join(dir, "plain")
	model, other := checkpoint(t, nil), otherWeights(t)
	for _, folder := range []string{model, other} { // as if they had lain there for a while
		file := filepath.Join(folder, "model.safetensors")
		require.NoError(t, os.Chtimes(file, time.Time{}, time.Now().Add(-time.Hour)))
	}
	ok(t, "run", model, "-c", context, "--save", signed, "--verify")
	ok(t, "run", model, "-c", context, "--save", plain)
	want := decode[checkpointInfo](t, ok(t, "inspect", model, "--verify", "--json")).Digest
	assert.Equal(t, want, decode[cacheInfo](t, ok(t, "inspect", signed, "--json")).Digest)
	assert.Empty(t, decode[cacheInfo](t, ok(t, "inspect", plain, "--json")).Digest)
	kept, err := filepath.Glob(filepath.Join(cache, "lukv", "digests", "*.digest"))
	require.NoError(t, err)
	assert.Len(t, kept, 1)

	ok(t, "run", model, "--load", signed, "--verify", "--max-tokens", "1", "x")
	ok(t, "run", other, "--load", signed, "--max-tokens", "1", "x")
	fails(t, exitRefused, "made with weights "+want, "run", other, "--load", signed, "--verify", "--max-tokens", "1", "x")
	code, _, msg := invoke(t, "x\n", "chat", other, "--load", signed, "--verify")
	assert.Equal(t, exitRefused, code, msg)
	assert.Contains(t, msg, "made with weights "+want)
	o := command(t, "run", other, "--load", plain, "--verify", "--max-tokens", "1", "x")
	assert.Equal(t, exitOK, o.code)
	assert.Contains(t, o.err, "only a sample was compared")
}
