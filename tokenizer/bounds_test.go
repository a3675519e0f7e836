package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// tekkenOf returns a tekken.json with a token for each byte.
func tekkenOf(size, special int) string {
	var ranks []string
	for i := range 256 {
		ranks = append(ranks, fmt.Sprintf(`{"rank":%d,"token_bytes":%q}`, i, base64.StdEncoding.EncodeToString([]byte{byte(i)})))
	}
	return fmt.Sprintf(`{"config":{"pattern":"a","default_vocab_size":%d,"default_num_special_tokens":%d},"vocab":[%s]}`, size, special, strings.Join(ranks, ","))
}

// TestBounds reads files that claim or ask for more than any tokenizer needs: they
// are refused by name, before memory is allocated for what they claim.
func TestBounds(t *testing.T) {
	added := func(n int, content func(i int) string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"id":%d,"content":%q}`, i+5, content(i)))
		}
		return `,"added_tokens":[` + strings.Join(list, ",") + `]`
	}
	steps := func(n int, step string) string {
		return strings.TrimSuffix(strings.Repeat(step+",", n), ",")
	}
	double := `{"type":"Replace","pattern":{"String":"a"},"content":"aa"}`
	for _, tt := range []struct{ name, parts, want string }{
		{"long added token", added(1, func(int) string { return strings.Repeat("x", 257) }), "257 bytes"},
		{"long added tokens", added(5000, func(i int) string { return fmt.Sprintf("%0250d", i) }), "more than 1048576 bytes"},
		{"added tokens", added(maxAdded+1, func(i int) string { return fmt.Sprint("x", i) }), "added tokens"},
		{"doubling text", `,"normalizer":{"type":"Sequence","normalizers":[` + steps(8, double) + `]}`, "256 times as long"},
		{"doubling tokens", `,"decoder":{"type":"Sequence","decoders":[` + steps(7, double) + `]}`, "128 times as long"},
		{"long replacement", `,"normalizer":{"type":"Replace","pattern":{"Regex":"b"},"content":"` + strings.Repeat("x", 129) + `"}`, "129 times as long"},
		{"replacement of nothing", `,"normalizer":{"type":"Replace","pattern":{"Regex":"b?"},"content":"` + strings.Repeat("x", 128) + `"}`, "129 times as long"},
		{"long prefix", `,"normalizer":{"type":"Prepend","prepend":"` + strings.Repeat("x", 65) + `"}`, "65 bytes"},
		{"many steps", `,"normalizer":{"type":"Sequence","normalizers":[` + steps(17, `{"type":"NFC"}`) + `]}`, "17 steps"},
		{"many splits", `,"pre_tokenizer":{"type":"Sequence","pretokenizers":[` + steps(17, `{"type":"Digits"}`) + `]}`, "17 steps"},
		{"many decoders", `,"decoder":{"type":"Sequence","decoders":[` + steps(17, `{"type":"Fuse"}`) + `]}`, "17 steps"},
		{"parts", `,"normalizer":{"type":"Sequence","normalizers":[` + steps(5000, `{}`) + `]}`, "objects and arrays"},
		{"deep parts", `,"normalizer":` + strings.Repeat(`{"type":"Sequence","normalizers":[`, 3000), "nested more than 64 deep"},
		{"strip", `,"decoder":{"type":"Strip","content":"a","start":0,"stop":1000000000}`, "counts up to 64"},
		{"nested pattern", `,"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"` + strings.Repeat("(", 1000) + strings.Repeat(")", 1000) + `"}}`, "nested"},
		{"deeply nested pattern", `,"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"` + strings.Repeat("(", 1000000) + `"}}`, "bytes"},
		{"alternatives", `,"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"` + strings.Repeat("(?:a|b|c|d)", 180) + `"}}`, "choices"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := minimal(tt.parts)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readHF(file, &config{})
			runtime.ReadMemStats(&after)
			require.ErrorContains(t, err, tt.want)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20+16*len(file)))
		})
	}
	for _, tt := range []struct {
		size, special int
		want          string
	}{
		{1 << 20, 1<<20 - 256, "default_num_special_tokens 1048320, expected 1 to"},
		{256, 0, "expected 1 to"},
		{1 << 20, 10, "ranks, expected at least 1048566"},
		{1 << 30, 10, "at most"},
		{300, 50, "expected at least 256"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := readTekken([]byte(tekkenOf(tt.size, tt.special)), &config{})
		runtime.ReadMemStats(&after)
		require.ErrorContains(t, err, tt.want)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), tt.want)
	}
	_, err := readTekken([]byte(tekkenOf(256+maxTekkenSpecial, maxTekkenSpecial)), &config{})
	require.NoError(t, err, "the largest number of special tokens")
}

// TestCharsMapBounds gives a SentencePiece model a replacement that would make text
// much longer, and a table with a cycle.
func TestCharsMapBounds(t *testing.T) {
	table := func(units []uint32, texts string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
		for _, u := range units {
			b = binary.LittleEndian.AppendUint32(b, u)
		}
		return append(b, texts...)
	}
	_, err := newCharsMap(table([]uint32{0}, "ok\x00"+strings.Repeat("x", 65)+"\x00"))
	require.ErrorContains(t, err, "65 bytes")
	// Unit 0 leads to unit 'a', which leads to itself.
	units := make([]uint32, 'a'+1)
	units['a'] = 'a'
	units[0] = 0
	for offset := range uint32(256) {
		units['a'] = 'a' | 1<<8 | offset<<10 // with a value on it
		c, err := newCharsMap(table(units, "x\x00"))
		require.NoError(t, err)
		_, n := c.longest(strings.Repeat("a", 1<<20))
		require.LessOrEqual(t, n, maxAddedLen)
	}
}

// TestNoRegularFile puts something other than a regular file in the place of each
// file.
func TestNoRegularFile(t *testing.T) {
	files := map[string]string{
		"tokenizer.json": string(minimal("")), "tokenizer_config.json": "{}", "special_tokens_map.json": "{}", "added_tokens.json": "{}",
	}
	for bad := range files {
		for kind, put := range map[string]func(name string) error{
			"a directory":  func(name string) error { return os.Mkdir(name, 0o700) },
			"a named pipe": makePipe,
		} {
			dir := t.TempDir()
			for name, data := range files {
				if name != bad {
					require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
				}
			}
			if put(filepath.Join(dir, bad)) != nil {
				continue // a system without it
			}
			_, err := Open(dir)
			require.ErrorContains(t, err, kind, bad)
			require.ErrorContains(t, err, bad)
		}
	}
	_, err := Load(fstest.MapFS{"tokenizer.json": {Data: minimal("")}, "tokenizer_config.json": {Data: make([]byte, maxConfig+1)}})
	require.ErrorContains(t, err, "longer than")
}

// TestWhiteSpaceTokens strips white space around white-space tokens in a long run
// of them. A token that only takes white space to its right is found again inside what
// the previous one took; of one that also takes it to its left nothing is left there.
// Expected values: Hugging Face tokenizers 0.23.3.
func TestWhiteSpaceTokens(t *testing.T) {
	n := 1 << 16
	for strip, found := range map[string]int{`"lstrip":true`: n, `"rstrip":true`: n, `"lstrip":true,"rstrip":true`: 1} {
		tok, err := readHF(minimal(`,"added_tokens":[{"id":5,"content":" ",`+strip+`}]`), &config{})
		require.NoError(t, err)
		s := new(scratch)
		s.want = true
		ids, spans, err := tok.encode(t.Context(), s, strings.Repeat(" ", n)+"a", 1<<30, EncodeOptions{})
		require.NoError(t, err)
		require.Len(t, ids, found+1)
		require.Equal(t, int32(5), ids[found-1])
		require.Equal(t, Span{n, n + 1}, spans[found])
	}
}
