package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
)

// TestRefused: what is ambiguous or wrong is refused, with its place.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                      "byte 0: found the end of the text, expected a value",
		`{"a":1,"a":2}`:         `byte 10: key "a" occurs twice`,
		`{"a":1,"\u0061":2}`:    `key "a" occurs twice`,
		`[{"b":{"a":1,"a":2}}]`: `key "a" occurs twice`,
		`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"a":1}`: `key "a" occurs twice`,
		`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"j":1}`: `key "j" occurs twice`,
		`"\ud800"`:            `byte 1: found \ud800, an unpaired surrogate`,
		`"\udc00\ud800"`:      `found \udc00, an unpaired surrogate`,
		`"\ud800\u0041"`:      `found \ud800, an unpaired surrogate`,
		`"\ud83d\ude0"`:       "expected a hexadecimal digit",
		`"\ud83d\`:            "an unpaired surrogate",
		"\"\xff\"":            "not valid UTF-8",
		"\"\xed\xa0\x80\"":    "not valid UTF-8",
		"{\"\xff\":1}":        "not valid UTF-8",
		"\xff":                "expected a value",
		"\"\x1f\"":            "control character 0x1f",
		`"\x"`:                `found 'x' after a backslash`,
		`"a`:                  "does not end",
		`"a\`:                 "does not end",
		`"\u00`:               "does not end",
		`1 2`:                 "byte 2: found '2' after the value",
		`{} x`:                "found 'x' after the value",
		`[1,]`:                "expected a value",
		`[1 2]`:               "expected ',' or ']'",
		`{"a":1,}`:            "expected a key",
		`{"a" 1}`:             "expected ':'",
		`{a:1}`:               "expected a key",
		`[`:                   "expected a value",
		`{"a":`:               "expected a value",
		`01`:                  "leading zero",
		`-`:                   "expected a digit",
		`+1`:                  "expected a value",
		`1.`:                  "expected a digit",
		`.5`:                  "expected a value",
		`1e`:                  "expected a digit",
		`NaN`:                 "expected a value",
		`truE`:                "expected a value",
		`nullx`:               "found 'x' after the value",
		`[[[[[[[[[1]]]]]]]]]`: "byte 8: found objects and arrays nested more than 8 deep",
		"\ufeff{}":            "expected a value",
	} {
		assert.ErrorContains(t, Check([]byte(text), 8), want, "%q", text)
	}
	for _, text := range []string{`[[[[[[[[1]]]]]]]]`, ` {"a" : [ 1 , -0 , 1.5e+3 ] } `, `"\ud83d\ude00\b\f\n\r\t\/\\\"é"`, `null`, `[]`, `{}`} {
		assert.NoError(t, Check([]byte(text), 8), text)
	}
}

func TestStrings(t *testing.T) {
	for text, want := range map[string]string{
		`""`: "", `"abc"`: "abc", `"é😀"`: "é😀", `"\u00e9\ud83d\ude00"`: "é😀", `"a\nb\"c"`: "a\nb\"c", `"\ud7ff\ue000"`: "\ud7ff\ue000",
	} {
		s := NewScanner([]byte(" "+text+" "), 0)
		got, err := s.String("a string")
		require.NoError(t, err, text)
		require.Equal(t, want, got)
		require.NoError(t, s.End())
	}
}

func TestInt(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "7": 7, "-7": -7, "9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64,
	} {
		got, err := NewScanner([]byte(text), 0).Int(math.MinInt64, math.MaxInt64)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"9223372036854775808", "-9223372036854775809", "99999999999999999999", "1.0", "1e2", `"1"`, "", "true"} {
		_, err := NewScanner([]byte(text), 0).Int(math.MinInt64, math.MaxInt64)
		require.ErrorContains(t, err, "expected", text)
	}
	for text, want := range map[string]string{
		"-0": "found -0, expected a whole number from 0 to 9", "10": "found 10, expected", "-1": "found -1", "1.5": "found 1.5",
	} {
		_, err := NewScanner([]byte(text), 0).Int(0, 9)
		require.ErrorContains(t, err, want)
	}
}

// FuzzCheck compares with encoding/json: what Check accepts is valid there and means
// the same, value by value; what only encoding/json accepts has a reason that Check
// names.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,2.5e-3,"x\u00e9\ud83d\ude00",null,true,false],"b":{"c":{}}}`, `[[]]`, `"\ud800"`, `{"a":1,"a":2}`, "\"\xff\"", `-0`, `01`, ` 1 `,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testfuzz.Bound(t, len(text))()
		const depth = 32
		err := Check(text, depth)
		if err == nil {
			require.True(t, utf8.Valid(text))
			dec := json.NewDecoder(bytes.NewReader(text))
			dec.UseNumber()
			var want any
			require.NoError(t, dec.Decode(&want))
			require.Equal(t, want, tree(t, NewScanner(text, depth)))
			raw, err := NewScanner(text, depth).Outline()
			require.NoError(t, err)
			require.Equal(t, string(bytes.Trim(text, " \t\r\n")), string(raw))
			return
		}
		if json.Valid(text) {
			ours := err.Error()
			require.True(t, strings.Contains(ours, "occurs twice") || strings.Contains(ours, "surrogate") ||
				strings.Contains(ours, "deep") || strings.Contains(ours, "UTF-8"), ours)
		}
	})
}

// tree reads a value with every reader that can read one of its kind.
func tree(t *testing.T, s *Scanner) any {
	switch c := s.Peek(); {
	case c == '{':
		m := map[string]any{}
		require.NoError(t, s.Object("an object", func(key string) error {
			m[key] = tree(t, s)
			return nil
		}))
		return m
	case c == '[':
		list := []any{}
		require.NoError(t, s.Array("an array", func(i int) error {
			require.Equal(t, len(list), i)
			list = append(list, tree(t, s))
			return nil
		}))
		return list
	case c == '"':
		v, err := s.String("a string")
		require.NoError(t, err)
		return v
	case c == 't' || c == 'f':
		v, err := s.Bool()
		require.NoError(t, err)
		return v
	case s.Null():
		return nil
	}
	v, err := s.Number()
	require.NoError(t, err)
	return json.Number(v)
}

// FuzzOutline: Outline never reads past the text, and finds the end of every valid value.
func FuzzOutline(f *testing.F) {
	f.Add([]byte(`{"a":"\\\"}"}, 5`))
	f.Add([]byte(`"abc\\" `))
	f.Add([]byte(`]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testfuzz.Bound(t, len(text))()
		a, b := NewScanner(text, 32), NewScanner(text, 32)
		raw, err := a.Raw()
		outline, err2 := b.Outline()
		if err == nil && (a.pos == len(text) || strings.IndexByte(" \t\r\n,]}", text[a.pos]) >= 0) {
			require.NoError(t, err2)
			require.Equal(t, string(raw), string(outline))
		}
	})
}

func BenchmarkScanner(b *testing.B) {
	var text bytes.Buffer
	text.WriteByte('{')
	for i := range 100_000 {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, "\n      %q: %d", fmt.Sprintf("Ġtoken%d", i*7919), i)
	}
	text.WriteByte('}')
	b.Run("members", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		for b.Loop() {
			s := NewScanner(text.Bytes(), 1)
			require.NoError(b, s.Members("an object", func(string) error {
				_, err := s.Int(0, 1<<20)
				return err
			}))
		}
	})
	b.Run("skip", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		for b.Loop() {
			require.NoError(b, Check(text.Bytes(), 1))
		}
	})
	b.Run("outline", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		for b.Loop() {
			_, err := NewScanner(text.Bytes(), 1).Outline()
			require.NoError(b, err)
		}
	})
}

// TestPause: a long text is read in pieces of about the same length, whatever is in it and
// wherever a piece ends, and an error ends the reading.
func TestPause(t *testing.T) {
	long := strings.Repeat("a", pauseEvery-5)
	for name, text := range map[string]string{
		"plain":     strconv.Quote(strings.Repeat("lorem ", pauseEvery)),
		"numbers":   "[" + strings.Repeat("1,", pauseEvery) + "1]",
		"strings":   "[" + strings.Repeat(`"a",`, pauseEvery) + "1]",
		"objects":   "[" + strings.Repeat(`{"a":{}},`, pauseEvery) + "1]",
		"character": `"` + long + strings.Repeat("語", pauseEvery) + `"`,
		"four":      `"` + long + strings.Repeat("😀", pauseEvery) + `"`,
	} {
		for _, read := range map[string]func(*Scanner) error{
			"skip":    func(s *Scanner) error { return s.Skip() },
			"outline": func(s *Scanner) error { _, err := s.Outline(); return err },
		} {
			s, pauses, last := NewScanner([]byte(text), 8), 0, 0
			s.Pause = func() error {
				pauses++
				require.LessOrEqual(t, s.pos-last, 2*pauseEvery, name)
				last = s.pos
				return nil
			}
			require.NoError(t, read(s), name)
			require.NoError(t, s.End(), name)
			require.LessOrEqual(t, pauses, len(text)/pauseEvery+1, name)
		}
		s := NewScanner([]byte(text), 8)
		gone := errors.New("gone")
		s.Pause = func() error { return gone }
		require.ErrorIs(t, s.Skip(), gone, name)
	}
	for _, bad := range []string{"\x80", "\xe8\xaa", "\xf0\x9f\x98", "\xc0\x80", "\x80\x80\x80\x80\x80"} {
		for shift := range 8 {
			text := `"` + strings.Repeat("a", pauseEvery-6+shift) + bad + strings.Repeat("b", pauseEvery) + `"`
			require.ErrorContains(t, Check([]byte(text), 1), "not valid UTF-8", "%q after %d", bad, shift)
		}
	}
	for shift := range 8 {
		want := strings.Repeat("a", pauseEvery-6+shift) + "語😀é" + long
		got, err := NewScanner([]byte(`"`+want+`"`), 1).String("a text")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
