package tokenizer

import (
	"encoding/json"
	"go/build"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// loadModel reads a vocabulary file under models/ of a golden folder, or skips.
func loadModel(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	for _, dir := range goldenDirs() {
		if isDir(filepath.Join(dir, "models", filepath.Dir(name))) {
			tok, err := cachedLoad(dir, "models/"+name)
			require.NoError(tb, err)
			return tok
		}
	}
	tb.Skipf("%s is not there: set LUKV_GOLDEN_TOKENIZERS to a folder that has it", name)
	return nil
}

// benchTexts are texts of about a megabyte: source code with comments, which has
// few words twice, and the golden texts in many languages over and over.
func benchTexts(tb testing.TB) map[string]string {
	tb.Helper()
	const size = 1 << 20
	var code, langs strings.Builder
	files, err := filepath.Glob(filepath.Join(build.Default.GOROOT, "src", "net", "http", "*.go"))
	require.NoError(tb, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(tb, err)
		if code.Len() < size {
			code.Write(data)
		}
	}
	data, err := os.ReadFile("testdata/cases/mini-llama3-style.hf.json")
	require.NoError(tb, err)
	var f caseFile
	require.NoError(tb, json.Unmarshal(data, &f))
	for langs.Len() < size {
		for _, c := range f.Encode {
			if strings.HasPrefix(c.Name, "lang/") || strings.HasPrefix(c.Name, "code/") {
				langs.WriteString(c.Text + "\n")
			}
		}
	}
	return map[string]string{"code": code.String(), "languages": langs.String()}
}

var benchModels = []string{
	"qwen2.5/tokenizer.json", "mistral-nemo/tokenizer.json", "mistral-nemo/tekken.json",
	"mistral-v3/tokenizer.json", "mistral-v1/tokenizer.json", "mistral-v3/tokenizer.model", "needle-llama/tokenizer.json",
	"mini/llama3-style/tokenizer.json",
}

func BenchmarkEncode(b *testing.B) {
	texts := benchTexts(b)
	for _, name := range benchModels {
		for kind, text := range texts {
			b.Run(strings.ReplaceAll(name, "/", "-")+"/"+kind, func(b *testing.B) {
				tok := loadModel(b, name)
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					tok.Encode(text, EncodeOptions{})
				}
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	texts := benchTexts(b)
	for _, name := range benchModels {
		b.Run(strings.ReplaceAll(name, "/", "-"), func(b *testing.B) {
			tok := loadModel(b, name)
			ids := tok.Encode(texts["languages"], EncodeOptions{})
			b.SetBytes(int64(len(texts["languages"])))
			b.ReportAllocs()
			for b.Loop() {
				tok.Decode(ids, false)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, name := range benchModels {
		b.Run(strings.ReplaceAll(name, "/", "-"), func(b *testing.B) {
			loadModel(b, name)
			b.ReportAllocs()
			for b.Loop() {
				loaded.Clear()
				loadModel(b, name)
			}
		})
	}
}
