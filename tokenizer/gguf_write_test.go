package tokenizer

import (
	"encoding/json"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testgz"
)

// unsaid are the golden tokenizers that GGUF cannot describe, and what the refusal names.
var unsaid = map[string]string{
	"mini/added-tokens": "tokenizer.ggml.pre", "mini/split-contiguous": "tokenizer.ggml.pre", "mini/split-invert": "tokenizer.ggml.pre",
	"mini/split-isolated": "tokenizer.ggml.pre", "mini/split-merged-with-next": "tokenizer.ggml.pre",
	"mini/split-merged-with-previous": "tokenizer.ggml.pre", "mini/split-removed": "tokenizer.ggml.pre", "mini/split-string": "tokenizer.ggml.pre",
	"mini/metaspace-always-unk": "more than to mark blanks", "mini/metaspace-never-nofuse": "more than to mark blanks",
	"optional/spm-nmt-nfkc": "more than to mark blanks",
}

// otherBlanks are texts in which a vocabulary of pieces has blanks that GGUF has not: it puts
// one before each stretch between special tokens even if there is one, and among merges to the
// same piece it knows no order.
func otherBlanks(file, text string) bool {
	switch strings.TrimSuffix(file, ".json") {
	case "mistral-v1.hf":
		return strings.Contains(text, strings.Repeat(" ", 16))
	case "mistral-v3.hf", "mistral-v3.chat.hf":
		return strings.HasPrefix(text, " ") || strings.HasPrefix(text, spaceMark) || strings.ContainsAny(text, "<[")
	}
	return false
}

// TestToGGUF: a tokenizer that is written as metadata and read back gives the golden ids.
func TestToGGUF(t *testing.T) {
	written, checks := 0, 0
	for _, dir := range goldenDirs() {
		names, err := filepath.Glob(filepath.Join(dir, "cases", "*.json*"))
		require.NoError(t, err)
		for _, name := range names {
			name = strings.TrimSuffix(name, ".gz")
			t.Run(filepath.Base(name), func(t *testing.T) {
				data, err := testgz.ReadFile(name)
				require.NoError(t, err)
				var f caseFile
				require.NoError(t, json.Unmarshal(data, &f))
				tok, err := cachedLoad(dir, f.Tokenizer)
				if errors.Is(err, errors.ErrUnsupported) { // before it could be written
					return
				}
				require.NoError(t, err)
				const padded = 3
				m, err := tok.GGUF("llama", tok.VocabSize()+padded)
				if what, ok := unsaid[strings.TrimPrefix(path.Dir(f.Tokenizer), "models/")]; ok {
					require.ErrorIs(t, err, errors.ErrUnsupported)
					require.ErrorContains(t, err, what)
					return
				}
				require.NoError(t, err)
				kinds := m["tokenizer.ggml.token_type"].([]int32)
				require.Equal(t, []int32{typeUnused, typeUnused, typeUnused}, kinds[len(kinds)-padded:])
				load, err := FromGGUF(madeGGUF(m))
				require.NoError(t, err)
				like, err := load()
				require.NoError(t, err)
				require.Len(t, m["tokenizer.ggml.tokens"], tok.VocabSize()+padded)
				written++
				special := path.Base(f.Tokenizer) == "tokenizer.json"
				for _, c := range f.Encode {
					if c.Base64 != "" || otherBlanks(filepath.Base(name), c.Text) {
						continue
					}
					require.Equal(t, c.IDs, like.Encode(c.Text, EncodeOptions{SpecialAsText: !special}), "%s: %q", c.Name, c.Text)
					if special && c.IDsSpecial != nil {
						require.Equal(t, c.IDsSpecial, like.Encode(c.Text, EncodeOptions{AddSpecial: true}), "%s: %q", c.Name, c.Text)
					}
					checks++
				}
			})
		}
	}
	require.Greater(t, written, 5)
	require.Greater(t, checks, 1000)
}

// TestGGUFAgain: the metadata of a published file, read and written again, have the same
// tokens, types and merges, and the same order of scores.
func TestGGUFAgain(t *testing.T) {
	for name, g := range ggufGoldens(t) {
		t.Run(name, func(t *testing.T) {
			load, err := FromGGUF(g.Metadata)
			require.NoError(t, err)
			tok, err := load()
			require.NoError(t, err)
			tokens, err := g.Metadata.Texts("tokenizer.ggml.tokens")
			require.NoError(t, err)
			arch, err := g.Metadata.Text("general.architecture")
			require.NoError(t, err)
			m, err := tok.GGUF(arch, len(tokens))
			require.NoError(t, err)
			kinds, err := g.Metadata.Ints("tokenizer.ggml.token_type")
			require.NoError(t, err)
			require.Equal(t, len(kinds), len(m["tokenizer.ggml.token_type"].([]int32)))
			for id, kind := range kinds {
				require.EqualValues(t, kind, m["tokenizer.ggml.token_type"].([]int32)[id], "%d %q", id, tokens[id])
				if kind != typeUnused {
					require.Equal(t, tokens[id], m["tokenizer.ggml.tokens"].([]string)[id])
				}
			}
			if g.Metadata["tokenizer.ggml.model"] == "gpt2" {
				merges, err := g.Metadata.Texts("tokenizer.ggml.merges")
				require.NoError(t, err)
				require.Equal(t, merges, m["tokenizer.ggml.merges"])
				return
			}
			scores, err := g.Metadata.Floats("tokenizer.ggml.scores")
			require.NoError(t, err)
			made := m["tokenizer.ggml.scores"].([]float32)
			products := map[int32]bool{}
			for _, x := range tok.merges() {
				products[x.to] = true
			}
			var order []int32
			for id := range products {
				order = append(order, id)
			}
			slices.Sort(order)
			slices.SortStableFunc(order, func(a, b int32) int { return int(made[b] - made[a]) })
			for i := 1; i < len(order); i++ {
				require.GreaterOrEqual(t, scores[order[i-1]], scores[order[i]])
			}
		})
	}
}

// TestToGGUFRefuses: what metadata cannot say is an error that names it.
func TestToGGUFRefuses(t *testing.T) {
	const vocab = `"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}`
	const bytes = `"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, ` + vocab
	const marks = `"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, `
	added := func(flag string) string {
		return `{"added_tokens": [{"id": 3, "content": "<x>", "special": true, "` + flag + `": true}], ` + bytes + `}`
	}
	for text, want := range map[string]string{
		`{"post_processor": {"type": "BertProcessing", "cls": ["a", 0], "sep": ["b", 1]}, ` + bytes + `}`: "texts end with",
		`{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}],
			"special_tokens": {"a": {"ids": [0, 1]}}}, ` + bytes + `}`: "texts begin with",
		added("lstrip"): "lstrip", added("rstrip"): "rstrip", added("single_word"): "single_word",
		`{` + marks + vocab + `}`: "without an unknown token",
		`{` + vocab + `}`:         "more than to mark blanks",
	} {
		tok, err := readHF([]byte(text), &config{})
		require.NoError(t, err)
		_, err = tok.GGUF("llama", 10)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
	tok, err := readHF([]byte(`{`+bytes+`}`), &config{})
	require.NoError(t, err)
	_, err = tok.GGUF("llama", 2)
	require.ErrorContains(t, err, "found 3 tokens, but the model has 2")
	m, err := tok.GGUF("llama", 3)
	require.NoError(t, err)
	require.NotContains(t, m, "general.architecture")
}
