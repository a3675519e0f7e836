package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// repr is Python's repr(v): how v prints inside lists and objects.
func (r *run) repr(v any) text {
	b := r.builder()
	r.writeRepr(b, v)
	return b.text()
}

func (r *run) writeRepr(b *builder, v any) {
	r.step(1)
	r.enter()
	defer r.leave()
	put := func(s string) { b.put(s, false) }
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
	case text:
		if v.safe {
			put("Markup(")
			r.quote(b, v)
			put(")")
		} else {
			r.quote(b, v)
		}
	case []any:
		list("[", "]", v)
	case tuple:
		if len(v.elems) == 1 {
			list("(", ",)", v.elems)
		} else {
			list("(", ")", v.elems)
		}
	case *dict:
		put("{")
		for i := range v.keys {
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
	case *view:
		put("dict_" + v.kind)
		list("([", "])", v.elems)
	case *macro, *loopContext, *method, *generator:
		unsupportedf("printing of '%s'", typeName(v))
	default:
		put(scalar(v, "None", "True", "False"))
	}
}

// scalar formats nil, a bool or a number, using the given names for nil, true and
// false.
func scalar(v any, none, yes, no string) string {
	switch v := v.(type) {
	case bool:
		if v {
			return yes
		}
		return no
	case int64:
		return strconv.FormatInt(v, 10)
	case wide:
		return string(v)
	case float64:
		return formatFloat(v)
	}
	return none
}

// quote writes Python's repr of a string.
func (r *run) quote(b *builder, t text) {
	q := '\''
	if strings.IndexByte(t.s, '\'') >= 0 && strings.IndexByte(t.s, '"') < 0 {
		q = '"'
	}
	b.put(string(q), false)
	b.add(r.mapRunes(t, func(c rune) string {
		switch {
		case c == q || c == '\\':
			return `\` + string(c)
		case c == '\n':
			return `\n`
		case c == '\r':
			return `\r`
		case c == '\t':
			return `\t`
		case unicode.IsPrint(c):
			return ""
		}
		return escapeRune(c)
	}))
	b.put(string(q), false)
}

// escapeRune returns the shortest of Python's \x, \u and \U escapes.
func escapeRune(c rune) string {
	switch {
	case c < 0x100:
		return fmt.Sprintf(`\x%02x`, c)
	case c < 0x10000:
		return fmt.Sprintf(`\u%04x`, c)
	}
	return fmt.Sprintf(`\U%08x`, c)
}

// isSpace is Python's notion of white space.
func isSpace(c rune) bool {
	return unicode.IsSpace(c) || 0x1c <= c && c <= 0x1f
}

// isDigit is Python's notion of a digit: decimal digits, and those that are raised,
// lowered, circled and the like.
func isDigit(c rune) bool {
	return unicode.In(c, unicode.Nd, otherDigits)
}

var otherDigits = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0xb2, Hi: 0xb3, Stride: 1}, {Lo: 0xb9, Hi: 0xb9, Stride: 1}, {Lo: 0x1369, Hi: 0x1371, Stride: 1},
		{Lo: 0x19da, Hi: 0x19da, Stride: 1}, {Lo: 0x2070, Hi: 0x2070, Stride: 1}, {Lo: 0x2074, Hi: 0x2079, Stride: 1},
		{Lo: 0x2080, Hi: 0x2089, Stride: 1}, {Lo: 0x2460, Hi: 0x2468, Stride: 1}, {Lo: 0x2474, Hi: 0x247c, Stride: 1},
		{Lo: 0x2488, Hi: 0x2490, Stride: 1}, {Lo: 0x24ea, Hi: 0x24ea, Stride: 1}, {Lo: 0x24f5, Hi: 0x24fd, Stride: 1},
		{Lo: 0x24ff, Hi: 0x24ff, Stride: 1}, {Lo: 0x2776, Hi: 0x277e, Stride: 1}, {Lo: 0x2780, Hi: 0x2788, Stride: 1},
		{Lo: 0x278a, Hi: 0x2792, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x10a40, Hi: 0x10a43, Stride: 1}, {Lo: 0x10e60, Hi: 0x10e68, Stride: 1}, {Lo: 0x11052, Hi: 0x1105a, Stride: 1},
		{Lo: 0x1f100, Hi: 0x1f10a, Stride: 1},
	},
	LatinOffset: 2,
}

// isLineEnd is Python's notion of the end of a line.
func isLineEnd(c rune) bool {
	return '\n' <= c && c <= '\r' || 0x1c <= c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}

// mapped returns the letter that c becomes, or "" if it stays.
func mapped(c, to rune) string {
	if c == to {
		return ""
	}
	return string(to)
}

// upper follows Unicode's single-character mappings, except that ß becomes SS.
func (r *run) upper(t text) text {
	if isASCII(t.s) {
		return r.mapASCII(t, strings.ToUpper)
	}
	return r.mapRunes(t, toUpper)
}

func toUpper(c rune) string {
	if c == 'ß' {
		return "SS"
	}
	return mapped(c, unicode.ToUpper(c))
}

// toTitle returns the capital of a letter that is followed by lower-case ones.
func toTitle(c rune) string {
	if c == 'ß' {
		return "Ss"
	}
	return mapped(c, unicode.ToTitle(c))
}

// lower follows Unicode's single-character mappings, except that İ keeps its dot.
func (r *run) lower(t text) text {
	if isASCII(t.s) {
		return r.mapASCII(t, strings.ToLower)
	}
	return r.recase(t, toTitle, func(rune, bool) bool { return false })
}

// mapASCII maps ASCII to ASCII, byte for byte.
func (r *run) mapASCII(t text, to func(string) string) text {
	r.work(len(t.s))
	r.alloc(len(t.s))
	t.s = to(t.s)
	return t
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c >= utf8.RuneSelf }) < 0
}

// recase makes letters lower-case except those for which start holds, which are
// mapped by capital. start is told whether the preceding character is a cased
// letter.
func (r *run) recase(t text, capital func(rune) string, start func(c rune, inWord bool) bool) text {
	inWord := false
	return r.mapRunes(t, func(c rune) string {
		begins := start(c, inWord)
		inWord = isCased(c)
		if begins {
			return capital(c)
		}
		if c == 'İ' {
			return "i\u0307"
		}
		return mapped(c, unicode.ToLower(c))
	})
}

func (r *run) capitalize(t text) text {
	first := true
	return r.recase(t, toTitle, func(rune, bool) bool {
		was := first
		first = false
		return was
	})
}

// titleWords is str.title: every run of letters with a case starts with a capital.
func (r *run) titleWords(t text) text {
	return r.recase(t, toTitle, func(c rune, inWord bool) bool { return isCased(c) && !inWord })
}

// titleFilter is the filter title: only blanks, hyphens and opening brackets
// start a new word, and the result is no longer safe.
func (r *run) titleFilter(t text) text {
	t.safe = false
	begin := true
	return r.recase(t, toUpper, func(c rune, _ bool) bool {
		was := begin
		begin = isSpace(c) || strings.ContainsRune("-({[<", c)
		return was && !begin
	})
}

func isCased(c rune) bool { return lowerCase(c) || upperCase(c) || unicode.IsTitle(c) }

// lowerCase and upperCase also hold for what is no letter but has a case: ª, ⅷ, Ⓐ.
func lowerCase(c rune) bool { return unicode.In(c, unicode.Ll, unicode.Other_Lowercase) }

func upperCase(c rune) bool { return unicode.In(c, unicode.Lu, unicode.Other_Uppercase) }

func isLower(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return upperCase(c) || unicode.IsTitle(c) }) < 0 &&
		strings.IndexFunc(s, lowerCase) >= 0
}

func isUpper(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return lowerCase(c) || unicode.IsTitle(c) }) < 0 &&
		strings.IndexFunc(s, upperCase) >= 0
}
