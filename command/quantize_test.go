package command

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/model/builtin"
)

// The bytes that are written are tested next to their code.
func TestQuantizeFolder(t *testing.T) {
	dir := t.TempDir()
	source, out := filepath.Join(dir, "source"), filepath.Join(dir, "out")
	require.NoError(t, os.CopyFS(source, builtin.Files()))
	r := decode[struct {
		Format string
		Path   string
		Types  map[string]int
	}](t, ok(t, "quantize", source, out, "--json"))
	require.Equal(t, quantizeFormat, r.Format)
	require.Equal(t, out, r.Path)
	require.Equal(t, map[string]int{"INT4": 42, "BF16": 14}, r.Types)
	ok(t, "run", out, "--max-tokens", "2", "x")
	require.Contains(t, ok(t, "quantize", source, filepath.Join(dir, "int8"), "--type", "int8"), "42 INT8")

	words := filepath.Join(dir, "words")
	require.NoError(t, os.WriteFile(words, []byte("The harbour opens at dawn."), 0o600))
	calibrated := filepath.Join(dir, "calibrated")
	ok(t, "quantize", source, calibrated, "--calibrate", words)
	plain, err := os.ReadFile(filepath.Join(out, "model.safetensors"))
	require.NoError(t, err)
	weighed, err := os.ReadFile(filepath.Join(calibrated, "model.safetensors"))
	require.NoError(t, err)
	require.NotEqual(t, plain, weighed)
	require.NoError(t, os.WriteFile(words, nil, 0o600))
	fails(t, exitFailed, "no tokens", "quantize", source, filepath.Join(dir, "x"), "--calibrate", words)

	fails(t, exitFailed, "exists already", "quantize", source, out)
	fails(t, exitUsage, "builtin is inside the program", "quantize", "builtin", filepath.Join(dir, "x"))
	fails(t, exitFailed, "already stored as compressed-tensors", "quantize", out, filepath.Join(dir, "again"))
	fails(t, exitUsage, "makes a folder", "quantize", source, filepath.Join(dir, "x.gguf"), "--type", "int4")
	fails(t, exitUsage, "--again", "quantize", source, filepath.Join(dir, "x"), "--again")
	file := filepath.Join(dir, "model.gguf")
	require.NoError(t, gguf.WriteFile(file, []gguf.Pair{{Key: "general.architecture", Value: "llama"}}, nil))
	fails(t, exitUsage, "lukv convert", "quantize", file, filepath.Join(dir, "x"), "--type", "int4")
	fails(t, exitUsage, "lukv convert", "quantize", file, filepath.Join(dir, "x"), "--type", "bf16")
	ok(t, "quantize", file, filepath.Join(dir, "mixed.gguf"), "--type", "q4_k_m")
	fails(t, exitUsage, "no effect on q8_0", "quantize", file, filepath.Join(dir, "x"), "--type", "q8_0", "--calibrate", words)
	holds(t, dir, "calibrated", "int8", "mixed.gguf", "model.gguf", "out", "source", "words")
}

// A folder becomes a GGUF file by its type, or by the name of the file.
func TestQuantizeFolderGGUF(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "Tiny-Model")
	require.NoError(t, os.CopyFS(source, builtin.Files()))
	fails(t, exitRefused, "tokenizer.ggml.pre", "quantize", source, filepath.Join(dir, "x.gguf"))
	path := filepath.Join(source, "tokenizer.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text = bytes.Replace(text, []byte(`{"type": "Split", "pattern": {"Regex": "\\p{N}{1,2}"}, "behavior": "Isolated", "invert": false}`),
		[]byte(`{"type": "Digits", "individual_digits": true}`), 1)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	out := filepath.Join(dir, "tiny.gguf")
	r := decode[struct {
		Format string
		Types  map[string]int
	}](t, ok(t, "quantize", source, out, "--json"))
	require.Equal(t, quantizeFormat, r.Format)
	require.Equal(t, map[string]int{"Q4_K": 42, "Q6_K": 1, "F32": 13}, r.Types)
	f, err := gguf.Open(out)
	require.NoError(t, err)
	defer f.Close()
	name, err := f.Text("general.name")
	require.NoError(t, err)
	require.Equal(t, "Tiny-Model", name)
	plain := filepath.Join(dir, "plain")
	require.Contains(t, ok(t, "quantize", source, plain, "--type", "bf16"), "43 BF16")
	require.Equal(t, ok(t, "run", source, "--max-tokens", "8", "Hello"), ok(t, "run", plain, "--max-tokens", "8", "Hello"))

	words := filepath.Join(dir, "words")
	require.NoError(t, os.WriteFile(words, []byte("The harbour opens at dawn."), 0o600))
	ok(t, "quantize", source, filepath.Join(dir, "mixed.gguf"), "--type", "q4_k_m", "--calibrate", words)
	fails(t, exitUsage, "no effect on f16", "quantize", source, filepath.Join(dir, "x"), "--type", "f16", "--calibrate", words)
	fails(t, exitUsage, "--again", "quantize", source, filepath.Join(dir, "x"), "--type", "q4_0", "--again")
	fails(t, exitFailed, "exists already", "quantize", source, out)
	holds(t, dir, "Tiny-Model", "mixed.gguf", "plain", "tiny.gguf", "words")
}
