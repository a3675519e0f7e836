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

// unsaid are the golden tokenizers that GGUF has no words for, and what the refusal names.
var unsaid = map[string]string{
	"added-tokens": "x", "digits-bytelevel": "x",
}

// TestToGGUF: a tokenizer that is written as metadata and read back gives the golden ids.
func TestToGGUF(t *testing.T) {
	written := 0
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
				if errors.Is(err, errors.ErrUnsupported) {
					t.Skip(err)
				}
				require.NoError(t, err)
				const padded = 3
				m, err := tok.GGUF("llama", tok.VocabSize()+padded)
				t.Log(path.Dir(f.Tokenizer), err)
				if err != nil {
					return
				}
				t.Log(m["tokenizer.ggml.model"], m["tokenizer.ggml.pre"])
				written++
				load, err := FromGGUF(madeGGUF(m))
				require.NoError(t, err)
				like, err := load()
				require.NoError(t, err)
				bad := 0
				for _, c := range f.Encode {
					o := EncodeOptions{SpecialAsText: path.Base(f.Tokenizer) != "tokenizer.json"}
					if got := like.Encode(c.Text, o); c.Base64 == "" && !slices.Equal(c.IDs, got) {
						bad++
						if bad < 4 {
							t.Logf("%.200q\n%v\n%v", c.Text, c.IDs, got)
						}
					}
				}
				t.Log(bad, len(f.Encode))
			})
		}
	}
	require.NotZero(t, written)
}
