package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/internal/testgz"
)

// fuzzText goes through every tokenizer that a fuzzer generates.
var fuzzText = "Hello  wörld's 12345, <s>e\u0301 你好\U0001F642\r\n\t <unk>\xff▁▁ \u00a0x</s> foo"

// checkTokenizer uses a tokenizer in every way; nothing may panic, and the ways
// must agree.
func checkTokenizer(t *testing.T, tok *Tokenizer, text string) {
	t.Helper()
	for _, o := range []EncodeOptions{{}, {AddSpecial: true}, {SpecialAsText: true}} {
		ids := tok.Encode(text, o)
		withSpans, spans := encodeOffsets(t, tok, text, o)
		if !slices.Equal(ids, withSpans) {
			t.Fatalf("encode %q:\n        ids %v\nwith offsets %v", text, ids, withSpans)
		}
		for i, s := range spans {
			if s.Start < 0 || s.End < s.Start || s.End > len(text) {
				t.Fatalf("encode %q: token %d has span %v", text, i, s)
			}
			if id := ids[i]; id < 0 || int(id) >= tok.VocabSize() {
				// Ids from a post-processor need not be in the vocabulary.
				if !slices.Contains(tok.prefix, id) && !slices.Contains(tok.suffix, id) {
					t.Fatalf("encode %q: id %d, vocabulary of %d", text, id, tok.VocabSize())
				}
			}
		}
		checkStream(t, tok, ids, o.AddSpecial)
	}
	for id := int32(-1); id < int32(min(tok.VocabSize(), 400)); id++ {
		if p := tok.Piece(id); p != "" {
			if _, ok := tok.ID(p); !ok {
				t.Fatalf("piece %q of id %d has no id", p, id)
			}
		}
		checkStream(t, tok, []int32{id, id + 1, id}, false)
	}
}

func addSeeds(f *testing.F, name string) {
	f.Helper()
	err := filepath.WalkDir("testdata/models", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != name {
			return err
		}
		data, err := os.ReadFile(path)
		// Mutations of long files get nowhere.
		if err == nil && len(data) < 10000 {
			f.Add(data)
		}
		return err
	})
	require.NoError(f, err)
}

func FuzzReadHF(f *testing.F) {
	addSeeds(f, "tokenizer.json")
	f.Add([]byte(`{"added_tokens":[{"id":3,"content":"<s>","special":true,"lstrip":true,"rstrip":true}],"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"Regex":"\\s+"},"content":"▁"}]},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},"post_processor":{"type":"BertProcessing","sep":["</s>",2],"cls":["<s>",3]},"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":1}]},"model":{"type":"BPE","unk_token":"a","fuse_unk":true,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`))
	f.Add([]byte(`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?=\\p{L})|\\w"},"behavior":"MergedWithNext","invert":true},"decoder":null,"model":{"vocab":{"a":0,"<0x41>":1,"▁":2},"byte_fallback":true,"ignore_merges":true,"merges":[["a","a"]]}}`))
	f.Add(minimal(`,"pre_tokenizer":{"type":"Sequence","pretokenizers":[` + falcon + `]}`))
	// Inputs that once took all memory, all time or the stack.
	for _, pattern := range []string{`a*b|a`, strings.Repeat("(", 2000), strings.Repeat("(?:a|b|c|d)", 200), `(?:a+)+b`, `x*`, `(?=(a|aa)+b)`} {
		f.Add(minimal(fmt.Sprintf(`,"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":%q}}`, pattern)))
	}
	f.Add(minimal(`,"normalizer":{"type":"Sequence","normalizers":[` + strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},"content":"aa"},`, 30) + `{"type":"NFC"}]}`))
	f.Add(minimal(`,"added_tokens":[{"id":5,"content":" ","lstrip":true,"rstrip":true},{"id":1048576,"content":"l"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		tok, err := readHF(data, &config{})
		if err == nil {
			checkTokenizer(t, tok, fuzzText)
		}
	})
}

func FuzzReadSPM(f *testing.F) {
	// A small model with every kind of piece.
	field := func(n int, data string) string { return string([]byte{byte(n<<3 | 2), byte(len(data))}) + data }
	number := func(n int, v uint64) string {
		return string(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(n)<<3), v))
	}
	for _, settings := range []string{
		field(spmTrainerSpec, number(trainerModelType, modelBPE)) + field(spmNormalizerSpec, number(normExtraSpaces, 0)),
		field(spmTrainerSpec, number(trainerModelType, modelBPE)+number(trainerByteFallback, 1)) + field(spmNormalizerSpec, number(normDummyPrefix, 0)),
		// A table with the one replacement a -> b, in the layout of Darts-clone.
		field(spmTrainerSpec, number(trainerModelType, modelBPE)) + field(spmNormalizerSpec, field(normCharsMap, "\x0c\x00\x00\x00\x00\x01\x00\x00\x61\x01\x00\x00\x00\x00\x00\x80b\x00")),
	} {
		model := settings
		for i, p := range []string{"<unk>", "<s>", "</s>", "foo", "\u2581", "H", "e", "l", "He", "\u2581He", "ll", "o", "e\u0301", "你好"} {
			kind := uint64(typeNormal)
			switch i {
			case 0:
				kind = typeUnknown
			case 1, 2:
				kind = typeControl
			case 3:
				kind = typeUser
			}
			score := string([]byte{pieceScore<<3 | 5, 0, byte(i), byte(0x80), 0xbf})
			model += field(spmPieces, field(pieceText, p)+score+number(pieceType, kind))
		}
		if strings.Contains(settings, number(trainerByteFallback, 1)) {
			for b := range 256 {
				model += field(spmPieces, field(pieceText, fmt.Sprintf("<0x%02X>", b))+number(pieceType, typeByte))
			}
		}
		if _, err := readSPM([]byte(model), &config{}); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(model))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		tok, err := readSPM(data, &config{})
		if err == nil {
			checkTokenizer(t, tok, fuzzText)
		}
	})
}

func FuzzReadTekken(f *testing.F) {
	// A small file with some words of two and more bytes.
	var ranks []string
	for i := range 256 {
		ranks = append(ranks, fmt.Sprintf(`{"rank":%d,"token_bytes":%q}`, i, base64.StdEncoding.EncodeToString([]byte{byte(i)})))
	}
	for i, w := range []string{"He", "ll", "Hell", " w", "\u00f6", "12"} {
		ranks = append(ranks, fmt.Sprintf(`{"rank":%d,"token_bytes":%q}`, 256+i, base64.StdEncoding.EncodeToString([]byte(w))))
	}
	for _, pattern := range []string{` ?\\p{L}+|\\d`, `(?=\\p{Lu})|\\s+`} {
		file := fmt.Sprintf(`{"config":{"pattern":"%s","default_vocab_size":265,"default_num_special_tokens":3},"special_tokens":[{"rank":1,"token_str":"<s>"}],"vocab":[%s]}`, pattern, strings.Join(ranks, ","))
		if _, err := readTekken([]byte(file), &config{}); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(file))
	}
	f.Add([]byte(tekkenOf(1<<20, 1<<20-256)))
	f.Add([]byte(tekkenOf(256+maxTekkenSpecial, maxTekkenSpecial)))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		tok, err := readTekken(data, &config{})
		if err == nil {
			checkTokenizer(t, tok, fuzzText)
		}
	})
}

func FuzzReadConfig(f *testing.F) {
	addSeeds(f, "tokenizer_config.json")
	base, err := os.ReadFile("testdata/models/mini/added-tokens/tokenizer.json")
	require.NoError(f, err)
	f.Add([]byte(`{"bos_token":{"content":"<s>"},"added_tokens_decoder":{"1000":{"content":"<s>","special":true}},"add_bos_token":true,"legacy":false}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		var cfg config
		if json.Unmarshal(data, &cfg) != nil {
			return
		}
		if tok, err := readHF(base, &cfg); err == nil {
			checkTokenizer(t, tok, fuzzText)
		}
	})
}

// FuzzRoundTrip encodes and decodes with tokenizers that are lossless.
func FuzzRoundTrip(f *testing.F) {
	seeds, err := testgz.ReadFile("testdata/cases/mini-llama3-style.hf.json")
	require.NoError(f, err)
	var cases caseFile
	require.NoError(f, json.Unmarshal(seeds, &cases))
	for _, c := range cases.Encode {
		if len(c.Text) < 300 {
			f.Add(c.Text)
		}
	}
	for unit := range hostileTexts {
		f.Add(strings.Repeat(unit, 300))
	}
	byteLevel := []*Tokenizer{
		loadModel(f, "needle-llama/tokenizer.json"), loadModel(f, "mini/llama3-style/tokenizer.json"),
		loadModel(f, "mini/digits-bytelevel/tokenizer.json"), loadModel(f, "mini/tekken-v7/tekken.json"),
	}
	others := []*Tokenizer{
		loadModel(f, "mini/llama2-style/tokenizer.json"), loadModel(f, "mini/added-tokens/tokenizer.json"),
		loadModel(f, "mini/multi-split/tokenizer.json"), loadModel(f, "mini/metaspace-always-unk/tokenizer.json"),
		loadModel(f, "mini/spm-noprefix/tokenizer.model"), loadModel(f, "optional/spm-nmt-nfkc/tokenizer.model"),
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testfuzz.Bound(t, len(text))()
		if len(text) > 1<<13 { // ten tokenizers in ten ways, and the time per input is bounded
			return
		}
		for i, tok := range byteLevel {
			o := EncodeOptions{SpecialAsText: true}
			ids, spans := encodeOffsets(t, tok, text, o)
			if got := tok.Encode(text, o); !slices.Equal(ids, got) {
				t.Fatalf("tokenizer %d: encode %q:\n        ids %v\nwith offsets %v", i, text, got, ids)
			}
			if got := tok.Decode(ids, false); utf8.ValidString(text) && got != text {
				t.Fatalf("tokenizer %d: %q came back as %q", i, text, got)
			}
			at := 0
			for k, s := range spans {
				if s.Start != at || text[s.Start:s.End] != tok.model.pieces[ids[k]] {
					t.Fatalf("tokenizer %d: %q: token %d %q has span %v, expected from %d", i, text, k, tok.Piece(ids[k]), s, at)
				}
				at = s.End
			}
			if at != len(text) {
				t.Fatalf("tokenizer %d: %q: spans end at %d", i, text, at)
			}
			checkStream(t, tok, ids, false)
		}
		for _, tok := range others {
			checkTokenizer(t, tok, text)
		}
		llama2 := others[0]
		if utf8.ValidString(text) && !strings.Contains(text, "\u2581") {
			if got := llama2.Decode(llama2.Encode(text, EncodeOptions{SpecialAsText: true}), false); got != text {
				t.Fatalf("byte fallback: %q came back as %q", text, got)
			}
		}
		checkNormalForms(t, text)
	})
}

// checkNormalForms compares with x/text where that follows the definition, that
// is, where it does not break up long runs of marks.
func checkNormalForms(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return unicode.In(r, younger, finals) }) {
		return
	}
	for _, form := range []norm.Form{norm.NFC, norm.NFD, norm.NFKC, norm.NFKD} {
		want := form.String(text)
		tok := &Tokenizer{normalizers: []normalizer{unicodeForm(form)}}
		got := tok.normalize(text)
		if strings.Contains(want, "\u034f") {
			// x/text breaks with the combining grapheme joiner, which text may hold
			// too.
			continue
		}
		if got != want {
			t.Fatalf("form %v of %+q:\nwant %+q\n got %+q", form, text, want, got)
		}
		if long := normalizeLong(form, text); long != want {
			t.Fatalf("form %v of %+q by definition:\nwant %+q\n got %+q", form, text, want, long)
		}
	}
}

// FuzzPattern compares the engine, with and without notes, with another one, and
// the scanners with the engine.
func FuzzPattern(f *testing.F) {
	for i, p := range publishedPatterns {
		f.Add(p, patternTexts()[i*7])
	}
	for _, p := range []string{`a*b|a`, `(?=(\d{3})+(?!\d))`, `(?>\s+)\p{L}`, `(?:a|aa)+b|a`, `\b`, `^a|b$`, `(?i)k|[^\W\d]`, `x*?y{2,3}`, `[^a[\S&&[^K]]1]+|\d{1,3}+`} {
		f.Add(p, "aaab 1234567 K\u212a\n\n yyy x")
	}
	f.Add(`\s{2\,}|\s{\x32}`, "A \n a \n{2,} {2}") // no repetitions
	type pair struct {
		name    string
		scanner matcher
		engine  *pattern
	}
	var pairs []pair
	for _, name := range publishedPatterns {
		m, err := newMatcher(name)
		require.NoError(f, err)
		p, err := compilePattern(name)
		require.NoError(f, err)
		pairs = append(pairs, pair{name, m, p})
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		defer testfuzz.Bound(t, len(pattern)+len(text))()
		p, err := compilePattern(pattern)
		if err != nil || len(text) > 1<<12 {
			return
		}
		got := findAll(p, text)
		if careful := findCarefully(p, text); !slices.Equal(got, careful) {
			t.Fatalf("%q in %q:\nwith notes %v\n   without %v", pattern, text, careful, got)
		}
		for _, k := range pairs {
			if want, got := findAll(k.engine, text), findAll(k.scanner, text); !slices.Equal(want, got) {
				t.Fatalf("%q in %q:\n engine %v\nscanner %v", k.name, text, want, got)
			}
		}
		// The two engines differ in case folding beyond single pairs of
		// letters, in lines that end at the end of the text, and in text that
		// is not UTF-8.
		if strings.ContainsAny(pattern, "^$") && strings.Contains(text, "\n") || strings.Contains(pattern, "i") ||
			!utf8.ValidString(text) || len(pattern) > 40 || len(text) > 40 {
			return
		}
		if want, ok := judge(pattern, text); ok && !slices.Equal(want, got) {
			t.Fatalf("%q in %q:\njudge  %v\nengine %v", pattern, text, want, got)
		}
	})
}
