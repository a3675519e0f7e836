package tokenizer

import (
	"encoding/json"
	"go/build"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testgz"
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

// benchTexts returns texts of about a megabyte: source code with comments, which
// repeats few words, and the golden texts in many languages, repeated.
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
	data, err := testgz.ReadFile("testdata/cases/mini-llama3-style.hf.json")
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

// BenchmarkLoad reads vocabularies from memory, unpacked.
func BenchmarkLoad(b *testing.B) {
	for _, name := range benchModels {
		b.Run(strings.ReplaceAll(name, "/", "-"), func(b *testing.B) {
			files := make(fstest.MapFS)
			for _, dir := range goldenDirs() {
				packed := testgz.FS{FS: os.DirFS(filepath.Join(dir, "models"))}
				for _, file := range []string{name, path.Join(path.Dir(name), "tokenizer_config.json")} {
					if data, err := fs.ReadFile(packed, file); err == nil {
						files[file] = &fstest.MapFile{Data: data}
					}
				}
			}
			if files[name] == nil {
				b.Skipf("%s is not there: set LUKV_GOLDEN_TOKENIZERS to a folder that has it", name)
			}
			b.SetBytes(int64(len(files[name].Data)))
			b.ReportAllocs()
			for b.Loop() {
				_, err := loadFile(files, name)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkHostile measures how much longer a byte of hostile or repetitive text
// takes than a byte of ordinary text: a megabyte of each, the best of several
// runs, since a busy machine only ever adds time. The word cache starts empty each
// time: nobody sends the same text again.
func BenchmarkHostile(b *testing.B) {
	const size = 1 << 20
	ordinary := benchTexts(b)
	hostile := make(map[string]string)
	for kind, unit := range hostileTexts {
		hostile[kind] = strings.Repeat(unit, size/len(unit))
	}
	r := rand.New(rand.NewPCG(1, 2))
	letters, bytes := make([]byte, size), make([]byte, size)
	for i := range size {
		letters[i], bytes[i] = byte('a'+r.IntN(26)), byte(r.IntN(256))
	}
	hostile["random letters"], hostile["random bytes"] = string(letters), string(bytes)
	for _, name := range benchModels {
		b.Run(strings.ReplaceAll(name, "/", "-"), func(b *testing.B) {
			tok := loadModel(b, name)
			best := func(text string, runs int) float64 {
				least := math.Inf(1)
				for range runs {
					tok.scratching = sync.Pool{New: func() any { return new(scratch) }}
					start := time.Now()
					tok.Encode(text, EncodeOptions{})
					least = min(least, float64(time.Since(start).Nanoseconds())/float64(len(text)))
				}
				return least
			}
			for b.Loop() {
				base := 0.0
				for _, text := range ordinary {
					base = max(base, best(text, 5))
				}
				worst, which := 0.0, ""
				for kind, text := range hostile {
					t := best(text, 2)
					if t > 1.5*base {
						t = min(t, best(text, 8))
					}
					b.Logf("%-14s %6.1f ns/B, %.2f of ordinary", kind, t, t/base)
					if t > worst {
						worst, which = t, kind
					}
				}
				b.Logf("worst: %s", which)
				b.ReportMetric(base, "ordinary-ns/B")
				b.ReportMetric(worst/base, "worst/ordinary")
			}
		})
	}
}
