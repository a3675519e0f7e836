package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// matches judges a pattern by Go's regular expressions, where both languages agree.
func matches(pattern any, v string) bool {
	p, ok := pattern.(string)
	if !ok || strings.ContainsAny(p, `\\.`) || strings.Contains(p, "[]") || strings.Contains(p, "[^]") || strings.Contains(p, "[:") || strings.Contains(p, "(?") {
		return true
	}
	re, err := regexp.Compile(p)
	return err != nil || re.MatchString(v)
}

// formatted judges formats by the standard library.
func formatted(format any, v string) bool {
	var err error
	ok := true
	switch format {
	case "date":
		_, err = time.Parse(time.DateOnly, v)
	case "time":
		_, err = time.Parse(time.RFC3339, "2024-01-01T"+v)
	case "date-time":
		_, err = time.Parse(time.RFC3339, v)
	case "uuid":
		ok = regexp.MustCompile(`^(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`).MatchString(v)
	case "email":
		var a *mail.Address
		a, err = mail.ParseAddress(v)
		ok = err != nil || a.Address == v && strings.Index(v, "@") <= 64 && len(v) <= 254
	case "ipv4":
		var a netip.Addr
		a, err = netip.ParseAddr(v)
		ok = a.Is4()
	case "ipv6":
		var a netip.Addr
		a, err = netip.ParseAddr(v)
		ok = a.Is6() && a.Zone() == ""
	case "uri":
		var u *url.URL
		u, err = url.Parse(v)
		ok = err == nil && u.IsAbs() && u.Host != ""
	case "uuid4":
		ok = len(v) == 36 && v[14] == '4' && strings.ContainsRune("89abAB", rune(v[19]))
	case "hostname":
		ok = len(v) <= 253 && !strings.ContainsAny(v, " _") && v == strings.Trim(v, ".-")
	case "duration":
		ok = v[0] == 'P' && strings.ContainsAny(v, "0123456789") && !strings.HasSuffix(v, "T")
	}
	return err == nil && ok
}

// quoted returns a text as the grammar writes it.
func quoted(text string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text)
	return strings.NewReplacer(`\u2028`, "\u2028", `\u2029`, "\u2029").Replace(strings.TrimSpace(b.String()))
}

// TestPattern: what is written matches according to Go's regular expressions, and what
// matches may be written.
func TestPattern(t *testing.T) {
	texts := []string{"", "a", "ab", "b", "xay", "aa", "aaaa", "12-34", "x12-345y", "\n", "a\nb", "\t", "\r", "\u2028", "\u00a0", "\\", `"`, `a"b`, "é", "É", "日本", "🙂", "\x01", "\x1f", "\x7f", "_", "Z9", "{", "]", "a{,2}", "ε", "Ω", "-", "^", "a-b"}
	for ecma, perl := range map[string]string{
		``: ``, `a`: ``, `^a`: ``, `a$`: ``, `^a$|b`: ``, `^(a|ab)(c|bcd)?$`: ``, `^\d{2}-\d{2,3}$`: ``, `\d+-`: ``, `^a{2,}$`: ``, `^a{0,3}?$`: ``, `(?:a|^b)+$`: ``,
		`^[^a-y]$`: ``, `^[\w-]+$`: ``, `\W`: ``, `^[\]\\"^-]$`: ``, `^\\$`: ``, `\/`: `/`, `^\u00e9$`: `^é$`, `^\u{1F642}$`: `^🙂$`, `^\ud83d\ude42$`: `^🙂$`, `^\x41|\cI$`: `^A|\t$`,
		`.`: `[^\n\r\x{2028}\x{2029}]`, `^\s$`: `^[\s\v\x{a0}\x{feff}\x{2028}\x{2029}\p{Zs}]$`, `^\S+$`: `^[^\s\v\x{a0}\x{feff}\x{2028}\x{2029}\p{Zs}]+$`,
		`^[^]$`: `^(?s:.)$`, `[\b]`: `\x08`, `^\p{Lu}`: ``, `\p{Script=Greek}`: `\p{Greek}`, `^\P{L}$`: ``, `^\p{Letter}+$`: `^\p{L}+$`, `^{$`: `^\{$`, `^]$`: `^\]$`, `a{,2}`: `a\{,2\}`, `^(?<year>\d\d)-`: `^\d\d-`,
		`\0`: `\x00`, `[a-]`: ``, `^\p{L}{1,50}$`: ``, `^(\ufffd|\p{Cs})$`: `^\x{fffd}$`, `^.{0,400}é$`: `^[^\n\r\x{2028}\x{2029}]{0,400}é$`, `^(a*)*b?$`: ``, `^\.\*\-$`: ``,
	} {
		if perl == "" {
			perl = ecma
		}
		judge := regexp.MustCompile(perl)
		for _, bounds := range []struct {
			text        string
			least, most int
		}{{``, 0, 1 << 30}, {`,"maxLength":3`, 0, 3}, {`,"minLength":2`, 2, 1 << 30}, {`,"minLength":1,"maxLength":2`, 1, 2}} {
			ok := func(text string) bool {
				n := utf8.RuneCountInString(text)
				return n >= bounds.least && n <= bounds.most && judge.MatchString(text)
			}
			schema := fmt.Sprintf(`{"type":"string","pattern":%s%s}`, quoted(ecma), bounds.text)
			g, err := Compile(bg, letters(), Schema([]byte(schema), true))
			if err != nil {
				require.ErrorContains(t, err, "nothing satisfies", schema)
			}
			for _, text := range texts {
				require.Equal(t, ok(text), err == nil && accepts(t, g, quoted(text)), "%s: %q", schema, text)
			}
			if err != nil {
				continue
			}
			rng := rand.New(rand.NewPCG(1, 6))
			for range 5 {
				if text, done := write(t, g, rng); done {
					require.True(t, ok(decode(t, text).(string)), "%s wrote %s", schema, text)
				}
			}
		}
	}
}

// TestRandomPatterns: expressions of a few letters, with anchors anywhere, accept exactly
// the short texts that Go's do.
func TestRandomPatterns(t *testing.T) {
	var texts []string
	for level := []string{""}; len(texts) < 62; {
		var next []string
		for _, s := range level {
			texts = append(texts, s)
			next = append(next, s+"a", s+"b")
		}
		level = next
	}
	rng := rand.New(rand.NewPCG(1, 7))
	var expr func(depth int) string
	expr = func(depth int) string {
		if depth == 0 {
			return []string{"a", "b", "[ab]", "[^a]", "^", "$", ""}[rng.IntN(7)]
		}
		a, b := expr(depth-1), expr(depth-1)
		switch rng.IntN(5) {
		case 0:
			return "(" + a + "|" + b + ")"
		case 1:
			return "(?:" + a + ")" + []string{"*", "+", "?", "{2}", "{1,2}", "{2,}", "*?"}[rng.IntN(7)]
		}
		return a + b
	}
	for range 150 {
		p := expr(3)
		judge := regexp.MustCompile(p)
		g, err := Compile(bg, letters(), Schema([]byte(`{"type":"string","pattern":`+quoted(p)+`}`), true))
		if err != nil {
			require.ErrorContains(t, err, "nothing satisfies", p)
		}
		for _, text := range texts {
			require.Equal(t, judge.MatchString(text), err == nil && accepts(t, g, quoted(text)), "%s: %q", p, text)
		}
	}
}

// TestPatternRefused: errors name what is not regular, or not understood.
func TestPatternRefused(t *testing.T) {
	for pattern, want := range map[string]string{
		`(?=a)`: "lookahead", `(?!a)`: "lookahead", `(?<=a)b`: "lookbehind", `(?<!a)b`: "lookbehind", `(a)\1`: "backreferences", `(?<n>a)\k<n>`: "backreferences",
		`\bword`: "word borders", `\B`: "word borders", `(?i)a`: "the group (?i", `(a`: "nothing closes", `a)`: "nothing opens", `[a`: "nothing closes", `*a`: "nothing to repeat", `a**`: "nothing to repeat",
		`^*`: "anchor that is repeated", `a{2,1}`: "wrong way round", `a{1001}`: "more than 1000 repetitions", `a{99999999999999999999}`: "more than 1000 repetitions", `[b-a]`: "a range", `[\d-x]`: "a range",
		`\q`: `the escape \q`, `\cé`: `the escape \c`, `\`: "too early", `\x4`: "2 hexadecimal digits", `\u12`: "4 hexadecimal digits", `\u{110000}`: "an unpaired surrogate", `\ud800`: "an unpaired surrogate", `\ud800\u0041`: "an unpaired surrogate",
		`\p{Nothing}`: `\p{Nothing}`, `\pL`: `\p without`, strings.Repeat(`\p{L}`, 60): "more than 32768 ranges", `(a{1000}){1000}`: "more than 32768 states",
		strings.Repeat("(", 200) + strings.Repeat(")", 200): "nested deeper than 100",
	} {
		_, err := Compile(bg, letters(), Schema([]byte(`{"type":"string","pattern":`+quoted(pattern)+`}`), true))
		require.ErrorContains(t, err, want, pattern)
	}
	// Patterns that nothing is left of count, too.
	dead := `{"type":"string","pattern":"(a{1000}){16}$b"}`
	_, err := Compile(bg, letters(), Schema([]byte(`{"anyOf":[true`+strings.Repeat(","+dead, 5000)+`]}`), true))
	require.ErrorContains(t, err, "all patterns together")
}

// TestFormats: values are those of the standards, as Go's standard library reads them.
func TestFormats(t *testing.T) {
	good := map[string][]string{
		"date": {"2024-02-29", "2000-02-29", "1999-12-31"}, "time": {"23:59:59Z", "00:00:00.123456789+05:30"}, "date-time": {"2024-02-29T12:00:00Z"},
		"uuid": {"123e4567-e89b-12d3-a456-426614174000"}, "email": {"a@b.de", "first.last+tag@mail.example.com"}, "ipv4": {"0.0.0.0", "255.1.20.199"},
		"ipv6":     {"::", "::1", "1::", "fe80::1:2", "2001:db8:0:1:2:3:4:5", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::3:4:5:6:7:8", "1:2:3:4:5::8", "1:2::5:6:7:8"},
		"uri":      {"http://a", "https://example.com:8080/a/b?x=1&y=?", "ftp://files.example/", "urn://x"},
		"hostname": {"localhost", "a.example", "x1.y-2.zz"},
		"duration": {"P1D", "P3W", "PT1H30M", "PT5S", "P1Y2M3DT4H5M6S", "P2MT1M"},
	}
	for _, version := range []string{"1", "3", "4", "5", "6", "7", "8"} {
		good["uuid"+version] = []string{"123e4567-e89b-" + version + "2d3-a456-426614174000"}
	}
	bad := map[string][]string{
		"date": {"2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "2024-1-1", "2024-01-00"}, "time": {"24:00:00Z", "12:60:00Z", "12:00:00", "12:00:60Z"}, "date-time": {"2024-02-29 12:00:00Z", "2024-02-29"},
		"uuid": {"123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"}, "email": {"a@b", "a b@c.de", "@b.de", "a@-b.de", "a..b@c.de", ".a@b.de"}, "ipv4": {"256.0.0.1", "1.2.3", "1.2.3.4.", "01.2.3.4", "1.2.3.4.5"},
		"ipv6":     {"", ":", "1", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", ":1", "1:", "g::", "1:2:3:4:5:6:7::9:9"},
		"uri":      {"", "example.com", "http:", "http://", "http://-a", "http://a b", "1http://a"},
		"hostname": {"", "-a", "a-", "a..b", "a.", "a_b", "1.2.3.4"},
		"duration": {"", "P", "PT", "P1", "1D", "P1DT", "P1W2D", "P1H"},
		"uuid4":    {"123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-42d3-c456-426614174000"},
	}
	for format := range formats {
		g := compileSchema(t, `{"type":"string","format":"`+format+`"}`, true)
		require.NotEmpty(t, good[format])
		for _, text := range good[format] {
			require.True(t, accepts(t, g, quoted(text)), "%s %s", format, text)
		}
		for _, text := range bad[format] {
			require.False(t, accepts(t, g, quoted(text)), "%s %s", format, text)
		}
		rng := rand.New(rand.NewPCG(1, 8))
		for range 60 {
			if text, ok := write(t, g, rng); ok {
				require.True(t, formatted(format, decode(t, text).(string)), "%s %s", format, text)
			}
		}
	}
}
