package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testgz"
)

// goldenDirs returns the folders with models/ and cases/: the package's own, and
// a complete one if the environment names it or it is next to the checkout.
func goldenDirs() []string {
	dirs := []string{"testdata"}
	if d := os.Getenv("LUKV_GOLDEN_TOKENIZERS"); d != "" {
		return append(dirs, d)
	}
	if d := "../../shared/tokenizers"; isDir(d) {
		dirs = append(dirs, d)
	}
	return dirs
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// caseFile is one file of cases.
type caseFile struct {
	Tokenizer string
	Encode    []struct {
		Name        string
		Text        string
		Base64      string  `json:"text_base64"`
		IDs         []int32 `json:"ids"`
		IDsSpecial  []int32 `json:"ids_special"`
		Decoded     string
		DecodedSkip *string `json:"decoded_skip_special"`
	}
	Decode []struct {
		IDs         []int32 `json:"ids"`
		Decoded     string
		DecodedSkip *string `json:"decoded_skip_special"`
	}
}

func TestConformance(t *testing.T) {
	checks, files := 0, 0
	seen := make(map[string]bool)
	for _, dir := range goldenDirs() {
		names, err := filepath.Glob(filepath.Join(dir, "cases", "*.json*"))
		require.NoError(t, err)
		for _, name := range names {
			name = strings.TrimSuffix(name, ".gz")
			base := filepath.Base(name)
			if seen[base] && dir != os.Getenv("LUKV_GOLDEN_TOKENIZERS") {
				continue
			}
			seen[base] = true
			files++
			t.Run(strings.TrimSuffix(base, ".json"), func(t *testing.T) { checks += checkCases(t, dir, name) })
		}
	}
	require.NotZero(t, checks, "no checks were run")
	t.Logf("golden tokenizers: %d checks in %d files", checks, files)
	fmt.Printf("golden tokenizers: %d checks in %d files\n", checks, files)
}

// large are the case files whose tokenizers are too large to be copied here.
var large = []string{"mistral-v1", "mistral-v3", "mistral-nemo", "qwen2.5"}

// TestConformanceComplete skips with a message if the large tokenizers were not
// checked.
func TestConformanceComplete(t *testing.T) {
	for _, dir := range goldenDirs() {
		if slices.ContainsFunc(large, func(m string) bool { return isDir(filepath.Join(dir, "models", m)) }) {
			return
		}
	}
	t.Skip("cases of mistral-v1, mistral-v3, mistral-nemo and qwen2.5: set LUKV_GOLDEN_TOKENIZERS to a folder that has them")
}

// cachedLoad reads each vocabulary once for all tests.
func cachedLoad(dir, name string) (*Tokenizer, error) {
	key := dir + " " + name
	if tok, ok := loaded.Load(key); ok {
		return tok.(*Tokenizer), nil
	}
	tok, err := loadFile(testgz.FS{FS: os.DirFS(dir)}, name)
	if err == nil {
		loaded.Store(key, tok)
	}
	return tok, err
}

var loaded sync.Map

// checkCases runs one file of cases and returns the number of checks.
func checkCases(t *testing.T, dir, name string) (checks int) {
	data, err := testgz.ReadFile(name)
	require.NoError(t, err)
	var f caseFile
	require.NoError(t, json.Unmarshal(data, &f))
	tok, err := cachedLoad(dir, f.Tokenizer)
	if err != nil && strings.HasPrefix(f.Tokenizer, "models/optional/") {
		require.ErrorIs(t, err, errors.ErrUnsupported, "a refusal must say that it is one")
		t.Logf("refused: %v", err)
		return 1
	}
	require.NoError(t, err)
	// In the case files of the other two formats, special tokens in the text are
	// ordinary text.
	return f.check(t, tok, path.Base(f.Tokenizer) == "tokenizer.json")
}

// check runs all cases and returns the number of checks.
func (f *caseFile) check(t *testing.T, tok *Tokenizer, hf bool) (checks int) {
	failed := 0
	fail := func(what, text string, want, got any) {
		if failed++; failed <= 5 {
			t.Errorf("%s %.400q\nwant %+.400q\n got %+.400q", what, text, fmt.Sprint(want), fmt.Sprint(got))
		}
	}
	checkIDs := func(what, text string, want, got []int32) {
		if checks++; !slices.Equal(want, got) {
			fail(what, text, want, got)
		}
	}
	checkText := func(what, name, want, got string) {
		if checks++; want != got {
			fail(what, name, want, got)
		}
	}
	for _, c := range f.Encode {
		text := c.Text
		if c.Base64 != "" {
			b, err := base64.StdEncoding.DecodeString(c.Base64)
			require.NoError(t, err)
			text = string(b)
		}
		o := EncodeOptions{SpecialAsText: !hf}
		ids := tok.Encode(text, o)
		checkIDs("encode "+c.Name, text, c.IDs, ids)
		offIDs, spans := encodeOffsets(t, tok, text, o)
		checkIDs("encode with offsets "+c.Name, text, c.IDs, offIDs)
		checkSpans(t, c.Name, text, offIDs, spans)
		checkText("decode", c.Name, c.Decoded, tok.Decode(c.IDs, false))
		checkStream(t, tok, c.IDs, false)
		if hf {
			special := c.IDsSpecial
			if special == nil {
				special = c.IDs
			}
			skipped := c.Decoded
			if c.DecodedSkip != nil {
				skipped = *c.DecodedSkip
			}
			checkIDs("encode with special tokens "+c.Name, text, special, tok.Encode(text, EncodeOptions{AddSpecial: true}))
			checkText("decode without special tokens", c.Name, skipped, tok.Decode(special, true))
			checkStream(t, tok, special, true)
		}
	}
	for i, c := range f.Decode {
		what := fmt.Sprintf("list %d %v", i, c.IDs)
		checkText("decode", what, c.Decoded, tok.Decode(c.IDs, false))
		checkStream(t, tok, c.IDs, false)
		if hf {
			skipped := c.Decoded
			if c.DecodedSkip != nil {
				skipped = *c.DecodedSkip
			}
			checkText("decode without special tokens", what, skipped, tok.Decode(c.IDs, true))
			checkStream(t, tok, c.IDs, true)
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d checks failed", failed, checks)
	}
	return checks
}

// TestVariants changes parts of three small tokenizers: patterns and behaviours of
// Split, normalizers, decoders, post-processors, flags of the model.
func TestVariants(t *testing.T) {
	text, err := testgz.ReadFile("testdata/variants.json")
	require.NoError(t, err)
	var all struct {
		Variants []struct {
			caseFile
			Name, Base   string
			Parts, Model map[string]json.RawMessage
		}
	}
	require.NoError(t, json.Unmarshal(text, &all))
	checks := 0
	for _, v := range all.Variants {
		t.Run(v.Name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata/models", v.Base, "tokenizer.json"))
			require.NoError(t, err)
			var whole, model map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(data, &whole))
			require.NoError(t, json.Unmarshal(whole["model"], &model))
			maps.Copy(whole, v.Parts)
			maps.Copy(model, v.Model)
			whole["model"], err = json.Marshal(model)
			require.NoError(t, err)
			data, err = json.Marshal(whole)
			require.NoError(t, err)
			tok, err := readHF(data, &config{})
			require.NoError(t, err)
			checks += v.check(t, tok, true)
		})
	}
	require.NotZero(t, checks, "no checks were run")
	t.Logf("tokenizer variants: %d checks of %d variants", checks, len(all.Variants))
	fmt.Printf("tokenizer variants: %d checks of %d variants\n", checks, len(all.Variants))
}
