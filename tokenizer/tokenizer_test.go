package tokenizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testgz"
)

func TestOpenFolder(t *testing.T) {
	tok, err := Open("testdata/models/needle-llama")
	require.NoError(t, err)
	require.Equal(t, 2176, tok.VocabSize())
	require.Equal(t, int32(1), tok.BOS())
	require.Equal(t, int32(5), tok.EOS())
	require.True(t, tok.IsSpecial(3))
	require.False(t, tok.IsSpecial(300))
	require.False(t, tok.IsSpecial(-1))
	require.False(t, tok.IsSpecial(1<<30))
	id, ok := tok.ID("<|user|>")
	require.True(t, ok)
	require.Equal(t, int32(3), id)
	_, ok = tok.ID("no such token")
	require.False(t, ok)
	require.Equal(t, "", tok.Piece(9999))
	require.Equal(t, "", tok.Piece(-5))
	require.Equal(t, "<|end|>", tok.Piece(5))

	prompt := "<s><|user|>One of the magic numbers for amber falcon is 481523."
	ids := tok.Encode(prompt, EncodeOptions{})
	require.Equal(t, []int32{1, 3}, ids[:2])
	require.Equal(t, append([]int32{1}, ids...), tok.Encode(prompt, EncodeOptions{AddSpecial: true}))
	require.Equal(t, prompt, tok.Decode(ids, false))
	require.Equal(t, strings.TrimPrefix(prompt, "<s><|user|>"), tok.Decode(ids, true))

	// Special tokens as text, as in text from users.
	ids = tok.Encode(prompt, EncodeOptions{SpecialAsText: true})
	for _, id := range ids {
		require.False(t, tok.IsSpecial(id), "id %d", id)
	}
	require.Equal(t, prompt, tok.Decode(ids, true))
}

// TestNeedlePrompts checks how the embedded model puts a prompt together: the
// parts give the same ids encoded separately and together.
func TestNeedlePrompts(t *testing.T) {
	tok := loadModel(t, "needle-llama/tokenizer.json")
	context := "<s><|user|>VAR KAZO = 4815. VAR MIRU = VAR KAZO."
	question := "\n\nWhich variables have the value 4815?<|assistant|>KAZO"
	parts := append(tok.Encode(context, EncodeOptions{}), tok.Encode(question, EncodeOptions{})...)
	require.Equal(t, parts, tok.Encode(context+question, EncodeOptions{}))
	// Numbers are cut into groups of two digits.
	var pieces []string
	for _, id := range tok.Encode("481523", EncodeOptions{}) {
		pieces = append(pieces, tok.Piece(id))
	}
	require.Equal(t, []string{"48", "15", "23"}, pieces)
}

func TestOpenErrors(t *testing.T) {
	_, err := Open(t.TempDir())
	require.ErrorIs(t, err, errNoVocabulary)
	_, err = Open(filepath.Join(t.TempDir(), "missing"))
	require.Error(t, err)
	_, err = OpenFile("testdata/models/needle-llama/tokenizer_config.json")
	require.ErrorContains(t, err, "unknown kind of file")
	tok, err := OpenFile("testdata/models/mini/spm-noprefix/tokenizer.model")
	require.NoError(t, err)
	require.Equal(t, "tokenizer.model", tok.format)
	_, err = OpenFile("testdata/models/optional/spm-unigram/tokenizer.model")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "unigram")
}

// TestFolderOrder checks which of several vocabularies is used.
func TestFolderOrder(t *testing.T) {
	read := func(name string) *fstest.MapFile {
		data, err := testgz.ReadFile("testdata/models/" + name)
		require.NoError(t, err)
		return &fstest.MapFile{Data: data}
	}
	fsys := fstest.MapFS{"tekken.json": read("mini/tekken-v7/tekken.json")}
	for _, f := range []struct{ add, from, want string }{
		{"tekken.json", "mini/tekken-v7/tekken.json", "tekken.json"},
		{"tokenizer.model", "mini/spm-noprefix/tokenizer.model", "tokenizer.model"},
		{"tokenizer.json", "mini/llama2-style/tokenizer.json", "tokenizer.json"},
	} {
		fsys[f.add] = read(f.from)
		tok, err := Load(fsys)
		require.NoError(t, err)
		require.Equal(t, f.want, tok.format)
	}
}

// minimal returns a small tokenizer.json with the given parts added.
func minimal(parts string) []byte {
	return fmt.Appendf(nil, `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"<s>":3,"</s>":4},"merges":["a b"]}%s}`, parts)
}

// decoders is minimal with a sequence of decoders.
func decoders(types ...string) string {
	var steps []string
	for _, name := range types {
		steps = append(steps, fmt.Sprintf(`{"type":%q,"replacement":"_","pattern":{"String":"a"},"content":"b"}`, name))
	}
	return string(minimal(`,"decoder":{"type":"Sequence","decoders":[` + strings.Join(steps, ",") + `]}`))
}

func TestRefusals(t *testing.T) {
	tests := []struct{ name, file, want string }{
		{"not json", `{`, "found the end of the text"},
		{"no model", `{}`, "vocab"},
		{"unigram", `{"model":{"type":"Unigram","vocab":[["a",0]]}}`, `"Unigram"`},
		{"dropout", `{"model":{"dropout":0.1,"vocab":{"a":0}}}`, "dropout 0.1"},
		{"subword prefix", `{"model":{"continuing_subword_prefix":"##","vocab":{"a":0}}}`, "##"},
		{"word suffix", `{"model":{"end_of_word_suffix":"</w>","vocab":{"a":0}}}`, "</w>"},
		{"negative id", `{"model":{"vocab":{"a":-1}}}`, "found -1, expected a whole number from 0 to 1048576"},
		{"huge id", `{"model":{"vocab":{"a":99999999}}}`, "found 99999999, expected a whole number"},
		{"id twice", `{"model":{"vocab":{"a":0,"b":0}}}`, "twice"},
		{"token twice", `{"model":{"vocab":{"a":0,"a":1}}}`, "twice"},
		{"id is text", `{"model":{"vocab":{"a":"0"}}}`, "expected a number"},
		{"unknown merge", `{"model":{"vocab":{"a":0},"merges":["a b"]}}`, `"b" is not in the vocabulary`},
		{"unknown result", `{"model":{"vocab":{"a":0,"b":1},"merges":[["a","b"]]}}`, `"ab" is not in the vocabulary`},
		{"merge of three", `{"model":{"vocab":{"a":0},"merges":["a a a"]}}`, "merge 0"},
		{"merge with two blanks", `{"model":{"vocab":{"a":0," a":1,"a a":2},"merges":["a  a"]}}`, "a blank between them"},
		{"short merge", `{"model":{"vocab":{"a":0},"merges":[["a"]]}}`, "merge 0"},
		{"merges no array", `{"model":{"vocab":{"a":0},"merges":{}}}`, "expected an array"},
		// The first of two defects is the one that is reported.
		{"token, then id twice", `{"model":{"vocab":{"a":0,"a":1,"b":0}}}`, `token "a" occurs twice`},
		{"id, then token twice", `{"model":{"vocab":{"a":0,"b":0,"a":1}}}`, `id 0 of token "b" occurs twice`},
		{"unknown merge, then no merge", `{"model":{"vocab":{"a":0,"aa":1},"merges":["a a","a b",7]}}`, `merge 1: "a" "b"`},
		{"unknown merge of many", `{"model":{"vocab":{"a":0,"aa":1},"merges":[` + strings.Repeat(`"a a",`, 2*loadBatch) + `"a b","a a"]}}`, "merge 128: "},
		{"no merge behind many", `{"model":{"vocab":{"a":0,"aa":1},"merges":[` + strings.Repeat(`"a a",`, 2*loadBatch) + `7]}}`, "merge 128: JSON at byte 769: found '7', expected two tokens"},
		{"model cut off", `{"model":{"vocab":{"a":0,`, "vocab: JSON at byte 25: found the end of the text"},
		{"type of a field", `{"model":{"vocab":{"a":0},"dropout":"x"}}`, "model: json: cannot unmarshal string"},
		{"unk", `{"model":{"unk_token":"<unk>","vocab":{"a":0}}}`, "<unk>"},
		{"normalizer", string(minimal(`,"normalizer":{"type":"Precompiled"}`)), "Precompiled"},
		{"pre-tokenizer", string(minimal(`,"pre_tokenizer":{"type":"UnicodeScripts"}`)), "UnicodeScripts"},
		{"behind bytes", string(minimal(`,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Punctuation"}]}`)), "Punctuation after ByteLevel"},
		{"class behind bytes", string(minimal(`,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Split","pattern":{"Regex":"[0-9]+ "},"behavior":"Isolated"}]}`)), "other than visible ASCII"},
		{"edge behind bytes", string(minimal(`,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Split","pattern":{"Regex":"a\\b"},"behavior":"Isolated"}]}`)), "other than visible ASCII"},
		{"behavior", string(minimal(`,"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Other"}`)), "Other"},
		{"no pattern", string(minimal(`,"pre_tokenizer":{"type":"Split","behavior":"Removed"}`)), "no pattern"},
		{"bad pattern", string(minimal(`,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Removed"}`)), "(a"},
		{"mark", string(minimal(`,"pre_tokenizer":{"type":"Metaspace","replacement":"__"}`)), "one character"},
		{"scheme", string(minimal(`,"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"x"}`)), "prepend_scheme"},
		{"decoder", string(minimal(`,"decoder":{"type":"WordPiece"}`)), "WordPiece"},
		{"bytes after fallback", decoders("ByteFallback", "ByteLevel"), "ByteLevel after"},
		{"bytes after fuse", decoders("Fuse", "ByteLevel"), "ByteLevel after"},
		{"bytes after marks", decoders("Metaspace", "ByteLevel"), "ByteLevel after"},
		{"fallback twice", decoders("ByteFallback", "ByteFallback"), "ByteFallback after"},
		{"fallback after fuse", decoders("Fuse", "ByteFallback"), "ByteFallback after"},
		{"marks after fallback", decoders("ByteFallback", "Metaspace"), "Metaspace after"},
		{"marks after fuse", decoders("Fuse", "Metaspace"), "Metaspace after"},
		{"replace after fallback", decoders("ByteFallback", "Replace"), "Replace after"},
		{"replace after fuse", decoders("Fuse", "Replace"), "Replace after"},
		{"strip after bytes", decoders("ByteLevel", "Strip"), "Strip after ByteLevel"},
		{"post-processor", string(minimal(`,"post_processor":{"type":"Other"}`)), "Other"},
		{"template without text", string(minimal(`,"post_processor":{"type":"TemplateProcessing","single":[]}`)), "0 times"},
		{"template with B", string(minimal(`,"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}]}`)), `"B"`},
		{"template token", string(minimal(`,"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<x>"}}]}`)), "<x>"},
		{"added token id", string(minimal(`,"added_tokens":[{"content":"x","id":-4}]`)), "out of range"},
		{"added token without id", string(minimal(`,"added_tokens":[{"content":"x"}]`)), "no id"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readHF([]byte(tt.file), &config{})
			require.ErrorContains(t, err, tt.want)
		})
	}
	for _, data := range []string{"", "\x0a", "\x0a\xff\xff\xff\xff\x0f", "\x0a\x03\x0a\x01a", "\xff\xff", "\x0f", "\x0d\x01"} {
		_, err := readSPM([]byte(data), &config{})
		require.Error(t, err, "%q", data)
	}
	for data, want := range map[string]string{
		"\x0a\x03ab": "extends beyond the end", "\x0a\x7f": "extends beyond the end", "\x0d\x01ab": "extends beyond the end", "\x0b": "wire type 3",
		"\x4a\x64" + strings.Repeat("x", 100) + "\x4a\x96\x01x": "field at byte 103 of 106 extends beyond the end",
	} {
		_, err := readSPM([]byte(data), &config{})
		require.ErrorContains(t, err, want, "%q", data)
	}
	for _, data := range []string{
		"", "{}", `{"config":{"default_vocab_size":300,"default_num_special_tokens":2},"vocab":[]}`,
		`{"config":{"default_vocab_size":99999999999}}`, `{"config":{"default_vocab_size":300,"default_num_special_tokens":-2}}`,
	} {
		_, err := readTekken([]byte(data), &config{})
		require.Error(t, err, "%q", data)
	}
}

// TestConfigFiles checks what the special-token files change.
func TestConfigFiles(t *testing.T) {
	vocab := string(minimal(`,"added_tokens":[{"id":3,"content":"<s>","special":true},{"id":4,"content":"</s>","special":true}]`))
	tests := []struct {
		name  string
		files map[string]string
		bos   int32
		eos   int32
		text  string
		ids   []int32 // with AddSpecial
	}{
		{"no files", nil, -1, -1, "ab", []int32{2}},
		{"names", map[string]string{"tokenizer_config.json": `{"bos_token":"<s>","eos_token":{"content":"</s>"}}`}, 3, 4, "ab", []int32{2}},
		{"null names", map[string]string{"tokenizer_config.json": `{"bos_token":null}`}, -1, -1, "ab", []int32{2}},
		{"map only", map[string]string{"special_tokens_map.json": `{"bos_token":{"content":"<s>"},"eos_token":"</s>"}`}, 3, 4, "ab", []int32{2}},
		{"config over map", map[string]string{
			"special_tokens_map.json": `{"bos_token":"</s>"}`, "tokenizer_config.json": `{"bos_token":"<s>"}`,
		}, 3, -1, "ab", []int32{2}},
		{"add both", map[string]string{"tokenizer_config.json": `{"bos_token":"<s>","eos_token":"</s>","add_bos_token":true,"add_eos_token":true}`}, 3, 4, "ab", []int32{3, 2, 4}},
		{"tokens beyond the vocabulary", map[string]string{
			"tokenizer_config.json": `{"eos_token":"<|end|>","added_tokens_decoder":{"9":{"content":"<|end|>","special":true},"0":{"content":"x"}}}`,
		}, -1, 9, "ab<|end|>a", []int32{2, 9, 0}},
		{"how tokens are found", map[string]string{
			"tokenizer_config.json": `{"eos_token":"</s>","added_tokens_decoder":{"4":{"content":"</s>","lstrip":true,"rstrip":true,"normalized":false,"special":false}}}`,
		}, -1, 4, "ab</s>a", []int32{2, 4, 0}},
		{"added_tokens.json", map[string]string{
			"added_tokens.json": `{"<|end|>":7}`, "tokenizer_config.json": `{"eos_token":"<|end|>"}`,
		}, -1, 7, "a<|end|>", []int32{0, 7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := fstest.MapFS{"tokenizer.json": {Data: []byte(vocab)}}
			for name, data := range tt.files {
				fsys[name] = &fstest.MapFile{Data: []byte(data)}
			}
			tok, err := Load(fsys)
			require.NoError(t, err)
			require.Equal(t, tt.bos, tok.BOS())
			require.Equal(t, tt.eos, tok.EOS())
			require.Equal(t, tt.ids, tok.Encode(tt.text, EncodeOptions{AddSpecial: true}))
			require.Equal(t, tt.text, strings.ReplaceAll(tok.Decode(tok.Encode(tt.text, EncodeOptions{}), false), " ", ""))
			if tt.eos > 4 {
				require.True(t, tok.IsSpecial(tt.eos))
				require.Equal(t, int(tt.eos)+1, tok.VocabSize())
			}
		})
	}
	for flags, want := range map[string][]int32{
		`"lstrip":true,"rstrip":true`: {2, 4, 0}, `"single_word":false`: {2, 4, 0}, `"single_word":true`: {2},
	} {
		text := `{"added_tokens_decoder":{"4":{"content":"</s>",` + flags + `},"3":{"content":"another","lstrip":true}}}`
		tok, err := Load(fstest.MapFS{"tokenizer.json": {Data: []byte(vocab)}, "tokenizer_config.json": {Data: []byte(text)}})
		require.NoError(t, err)
		got := tok.Encode("ab</s>a", EncodeOptions{})
		require.Equal(t, want[0], got[0])
		require.Equal(t, len(want) > 1, slices.Contains(got, 4), flags)
		require.True(t, tok.IsSpecial(4), "as in the vocabulary")
		if strings.Contains(flags, "lstrip") {
			require.Equal(t, want, tok.Encode("ab  </s> a", EncodeOptions{}), flags)
		}
	}
	for name, data := range map[string]string{
		"tokenizer_config.json":   `{"bos_token":5}`,
		"special_tokens_map.json": `[`,
		"added_tokens.json":       `{"x":99999999}`,
	} {
		_, err := Load(fstest.MapFS{"tokenizer.json": {Data: []byte(vocab)}, name: {Data: []byte(data)}})
		require.ErrorContains(t, err, name)
	}
	_, err := Load(fstest.MapFS{"tokenizer.json": {Data: []byte(vocab)}, "tokenizer_config.json": {Data: []byte(`{"added_tokens_decoder":{"x":{"content":"y"}}}`)}})
	require.ErrorContains(t, err, "added_tokens_decoder")
}

// TestSentencePieceSpecials checks special tokens in the text of a .model file, and
// where the prefix goes.
func TestSentencePieceSpecials(t *testing.T) {
	data, err := testgz.ReadFile("testdata/models/optional/spm-nmt-nfkc/tokenizer.model")
	require.NoError(t, err)
	load := func(config string) *Tokenizer {
		tok, err := Load(fstest.MapFS{"tokenizer.model": {Data: data}, "tokenizer_config.json": {Data: []byte(config)}})
		require.NoError(t, err)
		return tok
	}
	pieces := func(tok *Tokenizer, text string, o EncodeOptions) string {
		var out []string
		for _, id := range tok.Encode(text, o) {
			out = append(out, tok.Piece(id))
		}
		return strings.Join(out, " ")
	}
	tok := load(`{}`)
	require.Equal(t, "<s> ▁the </s> ▁the", pieces(tok, "the</s>the", EncodeOptions{AddSpecial: true}))
	require.NotContains(t, tok.Encode("the</s>the", EncodeOptions{SpecialAsText: true}), tok.EOS())
	tok = load(`{"legacy":false,"add_bos_token":false,"add_eos_token":true,"added_tokens_decoder":{"9000":{"content":"[X]"}}}`)
	require.Equal(t, "▁the </s> the </s>", pieces(tok, "the</s>the", EncodeOptions{AddSpecial: true}))
	require.Equal(t, "▁the [X] the", pieces(tok, "the[X]the", EncodeOptions{}))
	require.Equal(t, "the[X]the", tok.Decode(tok.Encode("the[X]the", EncodeOptions{}), true))
	require.Equal(t, 9001, tok.VocabSize())
}

func TestOffsets(t *testing.T) {
	type token struct {
		piece string
		text  string // what its span holds
	}
	tests := []struct {
		model, text string
		want        []token
	}{
		{"mini/llama3-style/tokenizer.json", "the 你<|eot_id|>", []token{{"the", "the"}, {"Ġ", " "}, {"ä½ł", "你"}, {"<|eot_id|>", "<|eot_id|>"}}},
		{"mini/llama2-style/tokenizer.json", "the 1", []token{{"▁the", "the"}, {"▁1", " 1"}}},
		// A decomposed letter is one token that spans all its characters.
		{"mini/added-tokens/tokenizer.json", "<mask>e\u0301", []token{{"<mask>", "<mask>"}, {"ĠÃ©", "e\u0301"}}},
		{"mini/added-tokens/tokenizer.json", "a  <both> b", []token{{"Ġa", "a"}, {"<both>", "  <both> "}, {"Ġb", "b"}}},
	}
	for _, tt := range tests {
		t.Run(tt.model+" "+tt.text, func(t *testing.T) {
			tok := loadModel(t, tt.model)
			ids, spans := encodeOffsets(t, tok, tt.text, EncodeOptions{})
			var got []token
			for i, id := range ids {
				got = append(got, token{tok.Piece(id), tt.text[spans[i].Start:spans[i].End]})
			}
			require.Equal(t, tt.want, got)
		})
	}
	tok := loadModel(t, "mini/llama2-style/tokenizer.json")
	s := &scratch{want: true}
	for range 2 {
		_, spans, err := tok.encode(t.Context(), s, "<s>a</s>aa", math.MaxInt, EncodeOptions{})
		require.NoError(t, err)
		require.Equal(t, Span{8, 10}, spans[len(spans)-1])
		// Reusing the memory of that text.
		_, spans, err = tok.encode(t.Context(), s, "a", math.MaxInt, EncodeOptions{AddSpecial: true})
		require.NoError(t, err)
		require.Equal(t, Span{0, 0}, spans[0], "BOS stands for nothing")
	}
}

// TestConcurrentUse is for the race detector; it also checks that calls do not
// affect one another's results.
func TestConcurrentUse(t *testing.T) {
	for _, name := range []string{"mini/llama3-style/tokenizer.json", "mini/llama2-style/tokenizer.json", "mini/multi-split/tokenizer.json", "optional/spm-nmt-nfkc/tokenizer.model"} {
		tok := loadModel(t, name)
		data, err := testgz.ReadFile("testdata/cases/mini-llama3-style.hf.json")
		require.NoError(t, err)
		var f caseFile
		require.NoError(t, json.Unmarshal(data, &f))
		want := make([][]int32, len(f.Encode))
		for i, c := range f.Encode {
			want[i] = tok.Encode(c.Text, EncodeOptions{})
		}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for k := range f.Encode {
					i := (k*7 + g*31) % len(f.Encode)
					ids, _ := encodeOffsets(t, tok, f.Encode[i].Text, EncodeOptions{})
					if fmt.Sprint(ids) != fmt.Sprint(want[i]) || fmt.Sprint(tok.Encode(f.Encode[i].Text, EncodeOptions{})) != fmt.Sprint(want[i]) {
						t.Errorf("%s: %q: ids differ between goroutines", name, f.Encode[i].Text)
					}
					tok.Decode(want[i], true)
				}
			})
		}
		wg.Wait()
	}
}

// TestSteadyStateAllocations checks that neither encoding nor streaming
// allocates per token.
func TestSteadyStateAllocations(t *testing.T) {
	if testing.Short() {
		t.Skip("race runs are short, and under the race detector sync.Pool drops scratch at random")
	}
	text := strings.Repeat("The quick brown fox, 12345 times; naïve 你好. <|eot_id|>\n", 50)
	for _, name := range []string{"mini/llama3-style/tokenizer.json", "mini/llama2-style/tokenizer.json", "needle-llama/tokenizer.json", "mini/tekken-v7/tekken.json", "mini/spm-noprefix/tokenizer.model"} {
		t.Run(name, func(t *testing.T) {
			tok := loadModel(t, name)
			ids := tok.Encode(text, EncodeOptions{})
			require.Greater(t, len(ids), 500)
			// The collector may empty the pool of scratch memory in between.
			require.Less(t, testing.AllocsPerRun(20, func() { tok.Encode(text, EncodeOptions{}) }), 20.0)
			words := tok.Encode("the the the the", EncodeOptions{})
			d := tok.NewDecoder(true)
			require.LessOrEqual(t, testing.AllocsPerRun(20, func() {
				for _, id := range words {
					d.Write(id)
				}
			}), 0.5)
		})
	}
}

func TestEncodeContext(t *testing.T) {
	for _, name := range []string{"mini/llama3-style/tokenizer.json", "mini/added-tokens/tokenizer.json", "mini/multi-split/tokenizer.json", "mini/spm-noprefix/tokenizer.model"} {
		tok := loadModel(t, name)
		text := strings.Repeat("one two, 333 <s>", 1<<12) + strings.Repeat("a", 1<<16)
		o := EncodeOptions{AddSpecial: true}
		want := tok.Encode(text, o)
		ids, err := tok.EncodeContext(t.Context(), text, len(want), o)
		require.NoError(t, err, name)
		require.Equal(t, want, ids, name)
		for _, limit := range []int{len(want) - 1, 10, 0} {
			ids, err = tok.EncodeContext(t.Context(), text, limit, o)
			var long *TooLongError
			require.ErrorAs(t, err, &long, name)
			require.Equal(t, TooLongError{Limit: limit, Bytes: len(text)}, *long, name)
			require.Nil(t, ids, name)
		}
		gone := errors.New("nobody waits")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		_, err = tok.EncodeContext(ctx, text, len(want), o)
		require.ErrorIs(t, err, gone, name)
		_, _, err = tok.EncodeOffsets(ctx, text, o)
		require.ErrorIs(t, err, gone, name)
		require.Equal(t, want, tok.Encode(text, o), "%s: a call that ended early leaves no trace", name)
	}
	_, err := loadModel(t, "mini/llama3-style/tokenizer.json").EncodeContext(t.Context(), "", 0, EncodeOptions{})
	require.NoError(t, err, "no tokens are within a limit of 0")
}

// TestLimitEndsTheWork checks that a text far beyond the limit is not encoded to its
// end: the call allocates only what a small part of the text takes.
func TestLimitEndsTheWork(t *testing.T) {
	for _, name := range []string{"mini/llama3-style/tokenizer.json", "mini/tekken-v7/tekken.json"} {
		tok := loadModel(t, name)
		text := strings.Repeat("one two, 333 ", 1<<18)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := tok.EncodeContext(t.Context(), text, 1000, EncodeOptions{})
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(len(text)/2), name)
	}
}

// TestData checks that special tokens that overlap data stay text, that all
// others are found, and that nothing else changes.
func TestData(t *testing.T) {
	tok := loadModel(t, "mini/llama3-style/tokenizer.json")
	pieces := func(text string, data ...Span) string {
		var out []string
		for _, id := range tok.Encode(text, EncodeOptions{Data: data}) {
			out = append(out, tok.Piece(id))
		}
		return strings.Join(out, "|")
	}
	const eot = "<|eot_id|>"
	text := eot + "a" + eot + eot
	n := len(eot)
	hidden := pieces(eot, Span{0, n})
	require.NotContains(t, hidden, eot)
	require.Equal(t, eot+"|a|"+eot+"|"+eot, pieces(text))
	require.Equal(t, eot+"|a|"+eot+"|"+eot, pieces(text, Span{n, n + 1}), "data that only touches a token")
	require.Equal(t, eot+"|a|"+eot+"|"+eot, pieces(text, Span{n + 5, n + 5}), "no data at all")
	for _, d := range []Span{{n + 1, 2*n + 1}, {2 * n, 2*n + 1}, {n + 1, n + 2}, {n, n + 2}} {
		got := pieces(text, d)
		require.True(t, strings.HasPrefix(got, eot+"|a") && strings.HasSuffix(got, "|"+eot), "%v: %s", d, got)
		require.Equal(t, 2, strings.Count("|"+got+"|", "|"+eot+"|"), "%v: %s", d, got)
	}
	require.Equal(t, 1, strings.Count(pieces(text, Span{0, 1}, Span{n + 3, n + 4}), eot), "two parts")
	// A special token formed by the end of data and the text after it is not
	// found; one that starts right after data is.
	require.NotContains(t, pieces("<|eot_"+"id|>", Span{0, 6}), eot)
	require.Contains(t, pieces("<|eot_"+eot, Span{0, 6}), eot)
	// The text is not cut at the boundaries of data.
	for _, plain := range []string{"hello there", "12345678", "  x\n\n y"} {
		for cut := range len(plain) + 1 {
			require.Equal(t, pieces(plain), pieces(plain, Span{0, cut}), "%q %d", plain, cut)
			require.Equal(t, pieces(plain), pieces(plain, Span{cut, len(plain)}), "%q %d", plain, cut)
		}
	}
	for _, data := range [][]Span{{{-1, 2}}, {{0, 99}}, {{3, 2}}, {{4, 6}, {1, 2}}, {{1, 4}, {3, 6}}} {
		_, err := tok.EncodeContext(t.Context(), "0123456789", 100, EncodeOptions{Data: data})
		require.ErrorContains(t, err, "Data", "%v", data)
	}
}

// TestDataThatIsAPiece checks that with ignore_merges a special token that is a whole
// piece of the vocabulary stays text in data, with pieces of bytes and of characters.
func TestDataThatIsAPiece(t *testing.T) {
	for _, pre := range []string{
		`null`, `{"type":"Metaspace","replacement":"_","prepend_scheme":"never"}`, `{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`,
	} {
		tok, err := readHF([]byte(`{"pre_tokenizer":`+pre+`,"model":{"type":"BPE","ignore_merges":true,"vocab":{"<":0,"s":1,">":2,"<s>":3,"<s":4,"s>":5},
			"merges":["< s","<s >"]},"added_tokens":[{"id":3,"content":"<s>","special":true,"normalized":false}]}`), &config{})
		require.NoError(t, err)
		require.Equal(t, []int32{3, 3}, tok.Encode("<s><s>", EncodeOptions{}), pre)
		require.Equal(t, []int32{3, 4, 2}, tok.Encode("<s><s>", EncodeOptions{Data: []Span{{3, 6}}}), pre)
		require.Equal(t, []int32{4, 2}, tok.Encode("<s>", EncodeOptions{SpecialAsText: true}), pre)
		require.Equal(t, []int32{5}, tok.Encode("s>", EncodeOptions{}), "%s: a piece that is not special", pre)
	}
}

// TestDataThatIsAUserPiece checks that a user-defined piece of a .model file that the
// config makes a special token stays text in data. One that it does not make special
// stays a piece.
func TestDataThatIsAUserPiece(t *testing.T) {
	load := func(config string) *Tokenizer {
		tok, err := Load(fstest.MapFS{"tokenizer.model": {Data: spmWith(t)}, "tokenizer_config.json": {Data: []byte(config)}})
		require.NoError(t, err)
		return tok
	}
	const text = "a<|im_end|>b"
	plain, tok := load(`{}`), load(`{"added_tokens_decoder":{"4":{"content":"<|im_end|>","special":true}}}`)
	require.Contains(t, plain.Encode(text, EncodeOptions{SpecialAsText: true}), int32(4))
	require.Equal(t, plain.Encode(text, EncodeOptions{}), tok.Encode(text, EncodeOptions{}))
	for _, o := range []EncodeOptions{{SpecialAsText: true}, {Data: []Span{{0, len(text)}}}, {Data: []Span{{5, 6}}}} {
		ids := tok.Encode(text, o)
		require.NotContains(t, ids, int32(4))
		require.Equal(t, text, tok.Decode(ids, false))
	}
}

// TestAddedTokensInData checks that added tokens that are not special are found
// anywhere.
func TestAddedTokensInData(t *testing.T) {
	tok, err := readHF(minimal(`,"added_tokens":[{"id":5,"content":"XX"},{"id":6,"content":"YY","special":true}]`), &config{})
	require.NoError(t, err)
	require.Equal(t, []int32{5, 6}, tok.Encode("XXYY", EncodeOptions{}))
	require.Equal(t, []int32{5}, tok.Encode("XXYY", EncodeOptions{SpecialAsText: true}))
	require.Equal(t, []int32{5}, tok.Encode("XXYY", EncodeOptions{Data: []Span{{0, 4}}}))
}

// TestNormalizedTokensComeSecond checks that tokens matched in normalised text are
// looked for in what the others leave, even without a normalizer.
func TestNormalizedTokensComeSecond(t *testing.T) {
	tok, err := readHF(minimal(`,"added_tokens":[{"id":5,"content":"  ","normalized":true},{"id":6,"content":"<t>","lstrip":true,"normalized":false},{"id":1,"content":"b","normalized":true,"single_word":true},{"id":8,"content":"<tb","normalized":true}]`), &config{})
	require.NoError(t, err)
	require.Equal(t, []int32{5, 0, 6}, tok.Encode("  a  <t>", EncodeOptions{}))
	require.Equal(t, []int32{0, 6, 1, 6}, tok.Encode("a<t>b<t>", EncodeOptions{}))
	require.Equal(t, []int32{8, 6}, tok.Encode("<tb<t>", EncodeOptions{}))
}

// TestDataInNormalizedText checks data where special tokens are matched in
// normalised text, at other positions than in the text itself.
func TestDataInNormalizedText(t *testing.T) {
	tok, err := readHF(minimal(`,"normalizer":{"type":"Replace","pattern":{"String":"b"},"content":"bbb"},"added_tokens":[{"id":3,"content":"<s>","special":true,"normalized":true}]`), &config{})
	require.NoError(t, err)
	require.Equal(t, []int32{1, 1, 1, 3, 0}, tok.Encode("b<s>a", EncodeOptions{}))
	require.Equal(t, []int32{1, 1, 1, 0}, tok.Encode("b<s>a", EncodeOptions{Data: []Span{{1, 2}}}))
	require.Equal(t, []int32{1, 1, 1, 3, 0}, tok.Encode("b<s>a", EncodeOptions{Data: []Span{{0, 1}, {4, 5}}}))
	require.Equal(t, []int32{1, 1, 1, 3, 1, 1, 1}, tok.Encode("b<s>b<s>", EncodeOptions{Data: []Span{{5, 8}}}))
}

func TestTokenBytes(t *testing.T) {
	for _, tt := range []struct{ model, piece, want string }{
		{"mini/llama3-style/tokenizer.json", "Ġthe", " the"},
		{"mini/llama3-style/tokenizer.json", "ä", "\xe4"},
		{"mini/llama3-style/tokenizer.json", "<|eot_id|>", "<|eot_id|>"},
		{"mini/llama2-style/tokenizer.json", "▁the", " the"},
		{"mini/llama2-style/tokenizer.json", "<0xF0>", "\xf0"},
		{"mini/spm-noprefix/tokenizer.model", "▁the", " the"},
		{"mini/spm-noprefix/tokenizer.model", "</s>", ""},
	} {
		tok := loadModel(t, tt.model)
		id, ok := tok.ID(tt.piece)
		require.True(t, ok, "%s %q", tt.model, tt.piece)
		require.Equal(t, tt.want, string(tok.TokenBytes(id)), "%s %q", tt.model, tt.piece)
		require.Nil(t, tok.TokenBytes(-1))
		require.Nil(t, tok.TokenBytes(1<<30))
	}
	// A decoder that strips tokens leaves bytes alone.
	tok, err := readHF([]byte(`{"model":{"byte_fallback":true,"vocab":{"<0x20>":0," a":1}},"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Strip","content":" ","start":1,"stop":0}]}}`), &config{})
	require.NoError(t, err)
	require.Equal(t, " ", string(tok.TokenBytes(0)))
	require.Equal(t, "a", string(tok.TokenBytes(1)))
	// The bytes of all tokens of a text are the text, wherever characters are cut.
	text := "naïve 你好 🙂🙃 the end"
	for _, name := range []string{"mini/llama3-style/tokenizer.json", "mini/llama2-style/tokenizer.json", "mini/tekken-v7/tekken.json"} {
		tok := loadModel(t, name)
		var got []byte
		for _, id := range tok.Encode(text, EncodeOptions{}) {
			got = append(got, tok.TokenBytes(id)...)
		}
		require.Equal(t, text, strings.TrimPrefix(string(got), " "), name)
	}
}

// TestAddBOSToken: the settings replace the post-processor for the classes that build
// their own, and for no others.
func TestAddBOSToken(t *testing.T) {
	file := minimal(`,"post_processor":{"type":"ByteLevel"},"added_tokens":[{"id":3,"content":"<s>","special":true},{"id":4,"content":"</s>","special":true}]`)
	for _, c := range []struct {
		config string
		want   []int32
	}{
		{`{"tokenizer_class":"LlamaTokenizerFast","add_bos_token":true}`, []int32{3, 0}},
		{`{"tokenizer_class":"LlamaTokenizer","add_bos_token":true,"add_eos_token":true}`, []int32{3, 0, 4}},
		{`{"tokenizer_class":"GemmaTokenizerFast","add_eos_token":true}`, []int32{3, 0, 4}},
		{`{"tokenizer_class":"LlamaTokenizerFast","add_bos_token":false}`, []int32{0}},
		{`{"tokenizer_class":"LlamaTokenizerFast"}`, []int32{0}},
		{`{"tokenizer_class":"PreTrainedTokenizerFast","add_bos_token":true,"add_eos_token":true}`, []int32{0}},
		{`{"tokenizer_class":"Qwen2Tokenizer","add_bos_token":true}`, []int32{0}},
	} {
		cfg := &config{BOS: "<s>", EOS: "</s>"}
		require.NoError(t, json.Unmarshal([]byte(c.config), cfg))
		tok, err := readHF(file, cfg)
		require.NoError(t, err)
		require.Equal(t, c.want, tok.Encode("a", EncodeOptions{AddSpecial: true}), c.config)
	}
}
