package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// lacking lists attributes that values have in Python but not here, by the name
// of the value's type. Dicts are left out: there the name means a key.
var lacking = map[string]string{
	"str": "casefold center encode expandtabs format format_map index isascii isdecimal isidentifier islower isnumeric isprintable " +
		"istitle isupper ljust maketrans partition rindex rjust rpartition swapcase translate zfill",
	"list":  "copy count index",
	"tuple": "count index",
	"int":   "bit_length denominator imag numerator real",
	"float": "imag is_integer real",
	"Macro": "arguments caller catch_kwargs catch_varargs name",
	"range": "count index start step stop",
}

// attribute is Python's getattr for the attributes that a template may see: methods that do not
// modify anything and a few plain attributes.
func (r *run) attribute(of any, name string) (any, bool) {
	var methods map[string]*builtin
	switch v := of.(type) {
	case text:
		methods = textMethods
	case *dict:
		methods = dictMethods
	case *namespace:
		return v.attrs.get(textKey(name))
	case *loopContext:
		return v.attribute(name)
	}
	if f, ok := methods[name]; ok {
		return &method{def: f, self: of, bound: true}, true
	}
	if kind := typeName(of); slices.Contains(strings.Fields(lacking[kind]), name) {
		unsupportedf("attribute '%s' of '%s'", name, kind)
	}
	return nil, false
}

func defineDictMethods() []*builtin {
	kept := func(kind string, elems func(*run, *dict) []any) *builtin {
		return define(kind, "self", func(r *run, a []any) any {
			return &view{kind, elems(r, a[0].(*dict))}
		})
	}
	return []*builtin{
		kept("keys", func(_ *run, d *dict) []any { return d.keys }),
		kept("values", func(_ *run, d *dict) []any { return d.vals }),
		kept("items", (*run).items),
		define("get", "self key default=None", func(r *run, a []any) any {
			if v, ok := a[0].(*dict).get(r.hash(a[1])); ok {
				return v
			}
			return a[2]
		}),
		define("copy", "self", func(r *run, a []any) any { return a[0] }),
	}
}

// selfText returns the text that a method is called on, charging for one scan of
// it.
func (r *run) selfText(v any) text {
	t := v.(text)
	r.work(len(t.s))
	return t
}

func defineTextMethods() []*builtin {
	mapping := func(name string, f func(*run, text) text) *builtin {
		return define(name, "self", func(r *run, a []any) any { return f(r, a[0].(text)) })
	}
	strip := func(name string, left, right bool) *builtin {
		return define(name, "self chars=None", func(r *run, a []any) any {
			return r.strip(a[0].(text), a[1], left, right)
		})
	}
	find := func(name string, index func(s, sub string) int) *builtin {
		return define(name, "self sub", func(r *run, a []any) any {
			t := r.selfText(a[0])
			i := index(t.s, textArg(a[1], name).s)
			if i > 0 {
				i = utf8.RuneCountInString(t.s[:i])
			}
			return int64(i)
		})
	}
	affix := func(name string, has func(s, fix string) bool) *builtin {
		return define(name, "self affix", func(r *run, a []any) any {
			list := []any{a[1]}
			if t, ok := a[1].(tuple); ok {
				list = t.elems
			}
			return slices.ContainsFunc(list, func(e any) bool {
				fix := textArg(e, name)
				r.step(1 + len(fix.s)/scannedPerStep)
				return has(a[0].(text).s, fix.s)
			})
		})
	}
	split := func(name string, fromRight bool) *builtin {
		return define(name, "self sep=None maxsplit=-1", func(r *run, a []any) any {
			return r.split(a[0].(text), a[1], intArg(a[2], name+" maxsplit"), fromRight)
		})
	}
	// all defines a test that a text is not empty and ok holds for each of its
	// characters.
	all := func(name string, ok func(rune) bool) *builtin {
		return define(name, "self", func(r *run, a []any) any {
			t := r.selfText(a[0])
			return t.s != "" && strings.IndexFunc(t.s, func(c rune) bool { return !ok(c) }) < 0
		})
	}
	return []*builtin{
		mapping("upper", (*run).upper), mapping("lower", (*run).lower),
		mapping("title", (*run).titleWords), mapping("capitalize", (*run).capitalize),
		strip("strip", true, true), strip("lstrip", true, false), strip("rstrip", false, true),
		find("find", strings.Index), find("rfind", strings.LastIndex),
		affix("startswith", strings.HasPrefix), affix("endswith", strings.HasSuffix),
		split("split", false), split("rsplit", true),
		all("isalpha", unicode.IsLetter), all("isdigit", isDigit), all("isspace", isSpace),
		all("isalnum", func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
		define("count", "self sub", func(r *run, a []any) any {
			return int64(strings.Count(r.selfText(a[0]).s, textArg(a[1], "count").s))
		}),
		define("replace", "self old new count=-1", func(r *run, a []any) any {
			return r.replace(a[0].(text), textArg(a[1], "replace"), textArg(a[2], "replace"), intArg(a[3], "replace count"))
		}),
		define("removeprefix", "self prefix", func(r *run, a []any) any {
			t, fix := r.selfText(a[0]), textArg(a[1], "removeprefix")
			return r.cut(t, len(t.s)-len(strings.TrimPrefix(t.s, fix.s)), len(t.s))
		}),
		define("removesuffix", "self suffix", func(r *run, a []any) any {
			t, fix := r.selfText(a[0]), textArg(a[1], "removesuffix")
			return r.cut(t, 0, len(strings.TrimSuffix(t.s, fix.s)))
		}),
		define("join", "self parts", func(r *run, a []any) any {
			sep := a[0].(text)
			out := r.join(sep, a[1], func(e any) text {
				if !sep.safe {
					return textArg(e, "join")
				}
				part := r.show(e)
				if !part.safe {
					part = r.escape(part)
				}
				return part
			})
			out.safe = sep.safe
			return out
		}),
		define("splitlines", "self keepends=False", func(r *run, a []any) any {
			return r.splitLines(a[0].(text), truthy(a[1]))
		}),
	}
}

// strip strips the characters of set, or blanks if set is nil.
func (r *run) strip(t text, set any, left, right bool) text {
	if set == nil {
		return r.trim(t, isSpace, left, right)
	}
	chars := textArg(set, "strip").s
	return r.trim(t, func(c rune) bool {
		r.step(len(chars) / scannedPerStep)
		return strings.ContainsRune(chars, c)
	}, left, right)
}

// splitLines is str.splitlines.
func (r *run) splitLines(t text, keepEnds bool) []any {
	r.work(len(t.s))
	out := []any{}
	for start := 0; start < len(t.s); {
		end, next := len(t.s), len(t.s)
		if i := strings.IndexFunc(t.s[start:], isLineEnd); i >= 0 {
			end = start + i
			c, n := utf8.DecodeRuneInString(t.s[end:])
			next = end + n
			if c == '\r' && strings.HasPrefix(t.s[next:], "\n") {
				next++
			}
		}
		if keepEnds {
			end = next
		}
		r.step(1)
		r.alloc(valueBytes)
		out = append(out, r.cut(t, start, end))
		start = next
	}
	return out
}

// split is str.split and str.rsplit; most < 0 means no limit.
func (r *run) split(t text, sep any, most int, fromRight bool) []any {
	r.work(len(t.s))
	out := []any{}
	put := func(from, to int) {
		r.step(1)
		r.alloc(valueBytes)
		out = append(out, r.cut(t, from, to))
	}
	if sep == nil {
		return r.splitAtBlanks(t, most, fromRight)
	}
	d := textArg(sep, "split separator").s
	if d == "" {
		failf("split: empty separator")
	}
	from, to := 0, len(t.s)
	for n := 0; n != most; n++ {
		if fromRight {
			i := strings.LastIndex(t.s[:to], d)
			if i < 0 {
				break
			}
			put(i+len(d), to)
			to = i
		} else {
			i := strings.Index(t.s[from:], d)
			if i < 0 {
				break
			}
			put(from, from+i)
			from += i + len(d)
		}
	}
	put(from, to)
	if fromRight {
		slices.Reverse(out)
	}
	return out
}

// splitAtBlanks splits at runs of white space. With most parts split off, the rest stays
// whole, with the white space at its other end.
func (r *run) splitAtBlanks(t text, most int, fromRight bool) []any {
	out := []any{}
	put := func(from, to int) {
		r.step(1)
		r.alloc(valueBytes)
		out = append(out, r.cut(t, from, to))
	}
	from, to := 0, len(t.s)
	for {
		var cut int // the next blank from that side
		if fromRight {
			to = from + len(strings.TrimRightFunc(t.s[from:to], isSpace))
			cut = strings.LastIndexFunc(t.s[from:to], isSpace)
		} else {
			from = to - len(strings.TrimLeftFunc(t.s[from:to], isSpace))
			cut = strings.IndexFunc(t.s[from:to], isSpace)
		}
		if from == to {
			break
		}
		switch {
		case len(out) == most || cut < 0:
			put(from, to)
			from = to
		case fromRight:
			_, n := utf8.DecodeRuneInString(t.s[from+cut:])
			put(from+cut+n, to)
			to = from + cut
		default:
			put(from, from+cut)
			from += cut
		}
	}
	if fromRight {
		slices.Reverse(out)
	}
	return out
}
