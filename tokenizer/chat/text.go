package chat

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// isSpace is Python's notion of a blank in text.
func isSpace(c rune) bool {
	return unicode.IsSpace(c) || 0x1c <= c && c <= 0x1f
}

// str is Python's str(v): what printing v gives.
func (r *run) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case markup:
		return string(v)
	case *undefined:
		return ""
	case int64:
		return strconv.FormatInt(v, 10)
	}
	return r.repr(v)
}

// repr is Python's repr(v): how v prints inside lists and objects.
func (r *run) repr(v any) string {
	var b strings.Builder
	r.writeRepr(&b, v)
	return b.String()
}

func (r *run) writeRepr(b *strings.Builder, v any) {
	r.step(1)
	r.enter()
	defer r.leave()
	put := func(s string) {
		r.alloc(len(s))
		b.WriteString(s)
	}
	list := func(open, end string, elems []any) {
		put(open)
		for i, e := range elems {
			if i > 0 {
				put(", ")
			}
			r.writeRepr(b, e)
		}
		put(end)
	}
	switch v := v.(type) {
	case nil:
		put("None")
	case bool:
		if v {
			put("True")
		} else {
			put("False")
		}
	case int64, *big.Int:
		put(formatInt(v))
	case float64:
		put(formatFloat(v))
	case string:
		r.alloc(len(v))
		put(quote(v))
	case markup:
		r.alloc(len(v))
		put("Markup(" + quote(string(v)) + ")")
	case []any:
		list("[", "]", v)
	case tuple:
		if len(v.elems) == 1 {
			list("(", ",)", v.elems)
		} else {
			list("(", ")", v.elems)
		}
	case *Object:
		put("{")
		for i := range v.Len() {
			if i > 0 {
				put(", ")
			}
			r.writeRepr(b, v.keys[i])
			put(": ")
			r.writeRepr(b, v.vals[i])
		}
		put("}")
	case *undefined:
		put("Undefined")
	case *namespace:
		put("<Namespace ")
		r.writeRepr(b, v.attrs)
		put(">")
	case *rangeValue:
		s := fmt.Sprintf("range(%d, %d)", v.start, v.stop)
		if v.step != 1 {
			s = fmt.Sprintf("range(%d, %d, %d)", v.start, v.stop, v.step)
		}
		put(s)
	case *dictView:
		put("dict_" + v.kind)
		list("([", "])", r.list(v))
	case *macro:
		if v.name == "" {
			put("<Macro anonymous>")
		} else {
			put("<Macro " + quote(v.name) + ">")
		}
	case *loopContext:
		put(fmt.Sprintf("<LoopContext %d/%d>", v.index0+1, v.length()))
	case *function:
		put("<function " + v.def.name + ">")
	default:
		put("<" + typeName(v) + " object>")
	}
}

// quote is Python's repr of a string.
func quote(s string) string {
	q := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, c := range s {
		switch {
		case c == rune(q) || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(c):
			b.WriteRune(c)
		default:
			b.WriteString(escapeRune(c))
		}
	}
	b.WriteByte(q)
	return b.String()
}

// escapeRune is the shortest of Python's \x, \u and \U escapes.
func escapeRune(c rune) string {
	switch {
	case c < 0x100:
		return fmt.Sprintf(`\x%02x`, c)
	case c < 0x10000:
		return fmt.Sprintf(`\u%04x`, c)
	}
	return fmt.Sprintf(`\U%08x`, c)
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

func (r *run) escape(s string) string { return r.text(htmlEscaper.Replace(s)) }

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// upper, lower and fold use the full Unicode mappings, as Python does: ß becomes
// SS, and a capital sigma at a word's end becomes a final one.
func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func fold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Fold().String(s)
}

// lowerRest is lower for text that goes on after a letter, which tells a final
// sigma.
func lowerRest(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return lower("x" + s)[1:]
}

// titleRune is a capital at the start of a word.
func titleRune(c rune) string {
	if t := unicode.ToTitle(c); t != c || c < utf8.RuneSelf {
		return string(t)
	}
	u := upper(string(c)) // ß has no one-rune capital: Ss
	if first, n := utf8.DecodeRuneInString(u); n < len(u) {
		return string(first) + lower(u[n:])
	}
	return u
}

func capitalize(s string) string {
	if s == "" {
		return s
	}
	c, n := utf8.DecodeRuneInString(s)
	if !isCased(c) {
		return titleRune(c) + lower(s[n:])
	}
	return titleRune(c) + lowerRest(s[n:])
}

// titleCase is str.title: every run of letters starts with a capital.
func titleCase(s string) string {
	var b strings.Builder
	word := false
	start := 0
	flush := func(end int) { // s[start:end] continues a word
		b.WriteString(lowerRest(s[start:end]))
	}
	for i, c := range s {
		cased := isCased(c)
		switch {
		case cased && !word:
			b.WriteString(s[start:i])
			b.WriteString(titleRune(c))
			start = i + utf8.RuneLen(c)
		case !cased && word:
			flush(i)
			start = i
		}
		word = cased
	}
	if word {
		flush(len(s))
	} else {
		b.WriteString(s[start:])
	}
	return b.String()
}

func isCased(c rune) bool {
	return unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c)
}

// filterTitle is the title filter: only blanks, hyphens and opening brackets
// start a new word.
func filterTitle(s string) string {
	var b strings.Builder
	isBreak := func(c rune) bool { return isSpace(c) || strings.ContainsRune("-({[<", c) }
	for s != "" {
		n := strings.IndexFunc(s, isBreak)
		if n < 0 {
			n = len(s)
		}
		if n > 0 {
			_, size := utf8.DecodeRuneInString(s)
			b.WriteString(upper(s[:size]))
			b.WriteString(lower(s[size:n]))
			s = s[n:]
		}
		n = strings.IndexFunc(s, func(c rune) bool { return !isBreak(c) })
		if n < 0 {
			n = len(s)
		}
		b.WriteString(s[:n])
		s = s[n:]
	}
	return b.String()
}

// splitLines is str.splitlines.
func (r *run) splitLines(s string, keepEnds bool) []string {
	r.work(len(s))
	var out []string
	for start := 0; start < len(s); {
		end, next := len(s), len(s)
		for i, c := range s[start:] {
			if c == '\n' || c == '\r' || c == '\v' || c == '\f' || 0x1c <= c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029 {
				end = start + i
				next = end + utf8.RuneLen(c)
				if c == '\r' && next < len(s) && s[next] == '\n' {
					next++
				}
				break
			}
		}
		if keepEnds {
			end = next
		}
		r.alloc(valueBytes)
		out = append(out, s[start:end])
		start = next
	}
	return out
}

// stripSide strips the characters of set, or blanks if set is nil, from the
// left, the right or both sides.
func stripSide(s string, set any, left, right bool) string {
	drop := isSpace
	if chars, ok := asString(set); ok {
		drop = func(c rune) bool { return strings.ContainsRune(chars, c) }
	} else if set != nil {
		failf("strip: found '%s', expected a string or none", typeName(set))
	}
	if left {
		s = strings.TrimLeftFunc(s, drop)
	}
	if right {
		s = strings.TrimRightFunc(s, drop)
	}
	return s
}

// splitText is str.split and str.rsplit; max < 0 means no limit.
func (r *run) splitText(s string, sep any, maxSplit int, fromRight bool) []any {
	r.work(len(s))
	var parts []string
	if sep == nil {
		r.allocTimes(countWords(s), valueBytes)
		parts = splitBlanks(s, maxSplit, fromRight)
	} else {
		d, ok := asString(sep)
		if !ok {
			failf("split: found '%s', expected a string or none", typeName(sep))
		}
		if d == "" {
			failf("split: empty separator")
		}
		r.allocTimes(strings.Count(s, d)+1, valueBytes)
		switch {
		case maxSplit < 0:
			parts = strings.Split(s, d)
		case !fromRight:
			parts = strings.SplitN(s, d, min(maxSplit, len(s))+1)
		default:
			for len(parts) < maxSplit {
				i := strings.LastIndex(s, d)
				if i < 0 {
					break
				}
				parts = append(parts, s[i+len(d):])
				s = s[:i]
			}
			parts = append(parts, s)
			slices.Reverse(parts)
		}
	}
	return toList(parts)
}

// countWords is the number of runs of other characters than blanks.
func countWords(s string) int {
	n, inside := 0, false
	for _, c := range s {
		if !isSpace(c) && !inside {
			n++
		}
		inside = !isSpace(c)
	}
	return n
}

// likeTexts gives texts the kind of text that of has.
func likeTexts(of any, list []any) []any {
	if _, ok := of.(markup); ok {
		for i, e := range list {
			list[i] = markup(e.(string))
		}
	}
	return list
}

func toList(parts []string) []any {
	out := make([]any, len(parts))
	for i, p := range parts {
		out[i] = p
	}
	return out
}

// splitBlanks splits around runs of blanks, which are dropped at both ends.
func splitBlanks(s string, maxSplit int, fromRight bool) []string {
	if maxSplit < 0 {
		return strings.FieldsFunc(s, isSpace)
	}
	var parts []string
	if !fromRight {
		s = strings.TrimLeftFunc(s, isSpace)
		for s != "" {
			i := strings.IndexFunc(s, isSpace)
			if i < 0 || len(parts) == maxSplit {
				return append(parts, s)
			}
			parts = append(parts, s[:i])
			s = strings.TrimLeftFunc(s[i:], isSpace)
		}
		return parts
	}
	s = strings.TrimRightFunc(s, isSpace)
	for s != "" {
		i := strings.LastIndexFunc(s, isSpace)
		if i < 0 || len(parts) == maxSplit {
			parts = append(parts, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		parts = append(parts, s[i+n:])
		s = strings.TrimRightFunc(s[:i], isSpace)
	}
	slices.Reverse(parts)
	return parts
}

// pad fills s to width code points on one side (-1 left, +1 right) or both (0),
// where an odd blank goes as in Python.
func (r *run) pad(s string, width int, fill string, side int) string {
	n := width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	left := 0
	switch side {
	case -1:
		left = n
	case 0:
		left = n/2 + n&width&1
	}
	return r.text(r.repeatText(fill, left) + s + r.repeatText(fill, n-left))
}

// replaceText is str.replace; count < 0 means all.
func (r *run) replaceText(s, old, repl string, count int) string {
	n := strings.Count(s, old) // of an empty old: between and around all characters
	if count >= 0 {
		n = min(n, count)
	}
	r.work(len(s))
	if n == 0 {
		return s
	}
	r.alloc(len(s))
	r.allocTimes(n, len(repl))
	return strings.Replace(s, old, repl, n)
}
