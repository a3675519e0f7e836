package chat

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The tables of the language's functions. init fills them, because what they
// hold refers back to the evaluator that reads them.
var (
	filters      map[string]*builtin
	tests        map[string]*builtin
	globals      map[string]*builtin
	textMethods  map[string]*builtin
	dictMethods  map[string]*builtin
	listMethods  map[string]*builtin
	intMethods   map[string]*builtin
	floatMethods map[string]*builtin
	loopMethods  map[string]*builtin
	cycMethods   map[string]*builtin
)

func init() {
	filters = defineFilters()
	tests = defineTests()
	globals = defineGlobals()
	textMethods = defineTextMethods()
	dictMethods = defineDictMethods()
	listMethods = defineListMethods()
	intMethods = table(define("bit_length", "self", func(r *run, a []any) any {
		return int64(toBig(a[0]).BitLen())
	}))
	floatMethods = table(define("is_integer", "self", func(r *run, a []any) any {
		f := a[0].(float64)
		return f == math.Trunc(f) && !math.IsInf(f, 0)
	}))
	loopMethods = defineLoopMethods()
	cycMethods = defineCyclerMethods()
}

func table(list ...*builtin) map[string]*builtin {
	t := make(map[string]*builtin, len(list))
	for _, f := range list {
		t[f.name] = f
	}
	return t
}

// attribute is Python's getattr for what the sandbox lets a template see:
// methods that change nothing and a few plain attributes.
func (r *run) attribute(of any, name string) (any, bool) {
	var methods map[string]*builtin
	switch v := of.(type) {
	case string, markup:
		methods = textMethods
	case *Object:
		methods = dictMethods
	case []any:
		methods = listMethods
	case tuple:
		if i := slices.Index(v.fields, name); i >= 0 {
			return v.elems[i], true
		}
		if name != "copy" {
			methods = listMethods
		}
	case bool, int64, *big.Int, float64:
		if a, ok := numberAttribute(of, name); ok {
			return a, true
		}
		methods = intMethods
		if _, ok := of.(float64); ok {
			methods = floatMethods
		}
	case *rangeValue:
		switch name {
		case "start":
			return v.start, true
		case "stop":
			return v.stop, true
		case "step":
			return v.step, true
		}
		if name != "copy" {
			methods = listMethods
		}
	case *namespace:
		return v.attrs.Get(name)
	case *loopContext:
		return v.attribute(name)
	case *macro:
		return v.attribute(name)
	case *cycler:
		if name == "current" {
			return v.items[v.pos], true
		}
		methods = cycMethods
	}
	if f, ok := methods[name]; ok {
		return &function{def: f, self: of, bound: true}, true
	}
	return nil, false
}

func (m *macro) attribute(name string) (any, bool) {
	switch name {
	case "name":
		return m.name, true
	case "arguments":
		return tuple{elems: toList(m.params)}, true
	case "caller":
		return m.usesCaller, true
	case "catch_kwargs":
		return m.usesKeywords, true
	case "catch_varargs":
		return m.usesArgs, true
	}
	return nil, false
}

func numberAttribute(v any, name string) (any, bool) {
	f, isFloat := v.(float64)
	switch {
	case name == "imag" && isFloat:
		return 0.0, true
	case name == "real" && isFloat:
		return f, true
	case isFloat:
		return nil, false
	case name == "real", name == "numerator":
		return normInt(new(big.Int).Set(toBig(v))), true
	case name == "imag":
		return int64(0), true
	case name == "denominator":
		return int64(1), true
	}
	return nil, false
}

func defineLoopMethods() map[string]*builtin {
	return table(
		define("cycle", "self *args", func(r *run, a []any) any {
			items := a[1].(tuple).elems
			if len(items) == 0 {
				failf("loop.cycle() needs at least one value")
			}
			return items[a[0].(*loopContext).index0%len(items)]
		}),
		define("changed", "self *args", func(r *run, a []any) any {
			l := a[0].(*loopContext)
			if l.changedTo != nil && r.equal(l.changedTo, a[1]) {
				return false
			}
			l.changedTo = a[1]
			return true
		}),
	)
}

func defineCyclerMethods() map[string]*builtin {
	return table(
		define("next", "self", func(r *run, a []any) any {
			c := a[0].(*cycler)
			v := c.items[c.pos]
			c.pos = (c.pos + 1) % len(c.items)
			return v
		}),
		define("reset", "self", func(r *run, a []any) any {
			a[0].(*cycler).pos = 0
			return nil
		}),
	)
}

func defineDictMethods() map[string]*builtin {
	view := func(kind string) *builtin {
		return define(kind, "self", func(r *run, a []any) any {
			return &dictView{kind: kind, of: a[0].(*Object)}
		})
	}
	return table(
		view("keys"), view("values"), view("items"),
		define("get", "self key default=None", func(r *run, a []any) any {
			if v, ok := a[0].(*Object).get(r.hash(a[1])); ok {
				return v
			}
			return a[2]
		}),
		define("copy", "self", func(r *run, a []any) any { return a[0] }),
	)
}

func defineListMethods() map[string]*builtin {
	return table(
		define("count", "self value", func(r *run, a []any) any {
			n := int64(0)
			for _, e := range r.list(a[0]) {
				if same(e, a[1]) || r.equal(e, a[1]) {
					n++
				}
			}
			return n
		}),
		define("index", "self value start=0 stop=None", func(r *run, a []any) any {
			list := r.list(a[0])
			first, _, n := sliceBounds(len(list), a[2], a[3], nil)
			for i := first; i < first+n; i++ {
				if same(list[i], a[1]) || r.equal(list[i], a[1]) {
					return int64(i)
				}
			}
			failf("index: the value is not in the list")
			return nil
		}),
		define("copy", "self", func(r *run, a []any) any { return a[0] }),
	)
}

func defineTextMethods() map[string]*builtin {
	// mapping defines a method that turns text into text.
	mapping := func(name string, f func(string) string) *builtin {
		return define(name, "self", func(r *run, a []any) any {
			return r.text(f(textArg(a[0], name)))
		})
	}
	// strip and find are families of methods.
	strip := func(name string, left, right bool) *builtin {
		return define(name, "self chars=None", func(r *run, a []any) any {
			s := textArg(a[0], name)
			r.work(len(s))
			return likeText(a[0], stripSide(s, a[1], left, right))
		})
	}
	find := func(name string, index func(s, sub string) int, must bool) *builtin {
		return define(name, "self sub start=None end=None", func(r *run, a []any) any {
			s, sub := textArg(a[0], name), textArg(a[1], name)
			r.work(2 * len(s))
			n := utf8.RuneCountInString(s)
			first, _, count := sliceBounds(n, a[2], a[3], nil)
			from := runeOffset(s, first)
			part := s[from : from+runeOffset(s[from:], count)]
			i := index(part, sub)
			if i >= 0 && startsInside(n, a[2]) {
				return int64(first + utf8.RuneCountInString(part[:i]))
			}
			if must {
				failf("%s: the text was not found", name)
			}
			return int64(-1)
		})
	}
	affix := func(name string, has func(s, fix string) bool) *builtin {
		return define(name, "self affix start=None end=None", func(r *run, a []any) any {
			if !startsInside(utf8.RuneCountInString(textArg(a[0], name)), a[2]) {
				return false
			}
			s := r.sliceText(textArg(a[0], name), a[2], a[3], nil)
			if t, ok := a[1].(tuple); ok {
				for _, e := range t.elems {
					if has(s, textArg(e, name)) {
						return true
					}
				}
				return false
			}
			return has(s, textArg(a[1], name))
		})
	}
	pad := func(name string, side int) *builtin {
		return define(name, "self width fill=", func(r *run, a []any) any {
			fill := " "
			if f, ok := asString(a[2]); ok && f != "" {
				fill = f
			}
			if utf8.RuneCountInString(fill) != 1 {
				failf("%s: the fill must be one character", name)
			}
			return r.pad(textArg(a[0], name), intArg(a[1], name+" width"), fill, side)
		})
	}
	split := func(name string, fromRight bool) *builtin {
		return define(name, "self sep=None maxsplit=-1", func(r *run, a []any) any {
			return likeTexts(a[0], r.splitText(textArg(a[0], name), a[1], intArg(a[2], name+" maxsplit"), fromRight))
		})
	}
	partition := func(name string, index func(s, sep string) int, fromRight bool) *builtin {
		return define(name, "self sep", func(r *run, a []any) any {
			s, sep := textArg(a[0], name), textArg(a[1], name)
			if sep == "" {
				failf("%s: empty separator", name)
			}
			r.work(len(s))
			parts := []any{s, "", ""}
			if i := index(s, sep); i >= 0 {
				parts = []any{s[:i], sep, s[i+len(sep):]}
			} else if fromRight {
				parts = []any{"", "", s}
			}
			return tuple{elems: likeTexts(a[0], parts)}
		})
	}
	// all defines a test that holds for every character of text that has some.
	all := func(name string, ok func(rune) bool) *builtin {
		return define(name, "self", func(r *run, a []any) any {
			s := textArg(a[0], name)
			r.work(len(s))
			return s != "" && strings.IndexFunc(s, func(c rune) bool { return !ok(c) }) < 0
		})
	}
	question := func(name string, f func(string) bool) *builtin {
		return define(name, "self", func(r *run, a []any) any {
			s := textArg(a[0], name)
			r.work(len(s))
			return f(s)
		})
	}
	unsupported := func(name string) *builtin {
		return define(name, "self *args **kwargs", func(*run, []any) any {
			unsupportedf("method str.%s", name)
			return nil
		})
	}
	alpha := unicode.IsLetter
	return table(
		mapping("upper", upper),
		mapping("lower", lower),
		mapping("casefold", fold),
		mapping("title", titleCase),
		mapping("capitalize", capitalize),
		mapping("swapcase", swapCase),
		strip("strip", true, true), strip("lstrip", true, false), strip("rstrip", false, true),
		find("find", strings.Index, false), find("rfind", strings.LastIndex, false),
		find("index", strings.Index, true), find("rindex", strings.LastIndex, true),
		affix("startswith", strings.HasPrefix), affix("endswith", strings.HasSuffix),
		pad("center", 0), pad("ljust", 1), pad("rjust", -1),
		split("split", false), split("rsplit", true),
		partition("partition", strings.Index, false), partition("rpartition", strings.LastIndex, true),
		all("isalpha", alpha),
		all("isdigit", isDigit),
		all("isdecimal", unicode.IsDigit),
		all("isnumeric", unicode.IsNumber),
		all("isalnum", func(c rune) bool { return alpha(c) || unicode.IsNumber(c) }),
		all("isspace", isSpace),
		question("isascii", isASCII),
		question("islower", isLower),
		question("isupper", isUpper),
		question("istitle", isTitle),
		question("isidentifier", isIdentifier),
		question("isprintable", func(s string) bool {
			return strings.IndexFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) < 0
		}),
		define("count", "self sub start=None end=None", func(r *run, a []any) any {
			s, sub := textArg(a[0], "count"), textArg(a[1], "count")
			if !startsInside(utf8.RuneCountInString(s), a[2]) {
				return int64(0)
			}
			part := r.sliceText(s, a[2], a[3], nil)
			return int64(strings.Count(part, sub))
		}),
		define("replace", "self old new count=-1", func(r *run, a []any) any {
			return r.replaceText(textArg(a[0], "replace"), textArg(a[1], "replace"), textArg(a[2], "replace"), intArg(a[3], "replace count"))
		}),
		define("removeprefix", "self prefix", func(r *run, a []any) any {
			return strings.TrimPrefix(textArg(a[0], "removeprefix"), textArg(a[1], "removeprefix"))
		}),
		define("removesuffix", "self suffix", func(r *run, a []any) any {
			return strings.TrimSuffix(textArg(a[0], "removesuffix"), textArg(a[1], "removesuffix"))
		}),
		define("join", "self parts", func(r *run, a []any) any {
			sep := textArg(a[0], "join")
			it := r.iter(a[1])
			var b strings.Builder
			for n := 0; ; n++ {
				e, ok := it()
				if !ok {
					return b.String()
				}
				s := textArg(e, "join")
				r.alloc(len(s) + len(sep))
				if n > 0 {
					b.WriteString(sep)
				}
				b.WriteString(s)
			}
		}),
		define("splitlines", "self keepends=False", func(r *run, a []any) any {
			return likeTexts(a[0], toList(r.splitLines(textArg(a[0], "splitlines"), truthy(a[1]))))
		}),
		define("zfill", "self width", func(r *run, a []any) any {
			s := textArg(a[0], "zfill")
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign, s = s[:1], s[1:]
			}
			return sign + r.pad(s, intArg(a[1], "zfill width")-len(sign), "0", -1)
		}),
		define("expandtabs", "self tabsize=8", func(r *run, a []any) any {
			return r.expandTabs(textArg(a[0], "expandtabs"), intArg(a[1], "expandtabs size"))
		}),
		define("format", "self *args **kwargs", func(r *run, a []any) any {
			return r.format(textArg(a[0], "format"), a[1].(tuple).elems, a[2].(*Object))
		}),
		define("format_map", "self mapping", func(r *run, a []any) any {
			return r.format(textArg(a[0], "format_map"), nil, dictArg(a[1], "format_map"))
		}),
		unsupported("encode"), unsupported("translate"), unsupported("maketrans"),
	)
}

// startsInside is false where a search would start beyond the text's end: there
// not even the empty text is found.
func startsInside(n int, start any) bool {
	i, ok := toInt64(start)
	return !ok || i <= int64(n)
}

func isDigit(c rune) bool {
	// superscripts and circled digits count as digits, though not as decimals
	return unicode.IsDigit(c) || c == '²' || c == '³' || c == '¹' || 0x2070 <= c && c <= 0x2089 && unicode.IsNumber(c) || 0x2460 <= c && c <= 0x2468
}

func isLower(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return unicode.IsUpper(c) || unicode.IsTitle(c) }) < 0 &&
		strings.IndexFunc(s, unicode.IsLower) >= 0
}

func isUpper(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return unicode.IsLower(c) || unicode.IsTitle(c) }) < 0 &&
		strings.IndexFunc(s, unicode.IsUpper) >= 0
}

func isTitle(s string) bool {
	word, any := false, false
	for _, c := range s {
		switch {
		case unicode.IsUpper(c) || unicode.IsTitle(c):
			if word {
				return false
			}
			word, any = true, true
		case unicode.IsLower(c):
			if !word {
				return false
			}
		default:
			word = false
		}
	}
	return any
}

func swapCase(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case unicode.IsUpper(c):
			b.WriteString(lower(string(c)))
		case unicode.IsLower(c):
			b.WriteString(upper(string(c)))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

func (r *run) expandTabs(s string, size int) string {
	var b strings.Builder
	column := 0
	for _, c := range s {
		switch c {
		case '\t':
			if size > 0 {
				n := size - column%size
				b.WriteString(r.repeatText(" ", n))
				column += n
			}
			continue
		case '\n', '\r':
			column = -1
		}
		b.WriteRune(c)
		column++
	}
	return r.text(b.String())
}
