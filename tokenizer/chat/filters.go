package chat

import (
	"html"
	"math"
	"math/big"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unsupportedFilters are the filters of Jinja that this package does not have:
// one is random, the others lay text out for people and web pages.
var unsupportedFilters = []string{"pprint", "random", "urlize", "wordwrap"}

func defineFilters() map[string]*builtin {
	textual := func(name string, f func(string) string) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			return r.text(f(r.str(a[0])))
		})
	}
	length := func(name string) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			if s, ok := asString(a[0]); ok {
				r.work(len(s))
			}
			n, ok := lengthOf(a[0])
			if !ok {
				failf("%s: '%s' object has no length", name, typeName(a[0]))
			}
			return int64(n)
		})
	}
	fallback := func(name string) *builtin {
		return define(name, "value default_value= boolean=False", func(r *run, a []any) any {
			if _, ok := a[0].(*undefined); ok || truthy(a[2]) && !truthy(a[0]) {
				return a[1]
			}
			return a[0]
		})
	}
	escape := func(name string) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			if m, ok := a[0].(markup); ok && name != "forceescape" {
				return m
			}
			return markup(r.escape(r.str(a[0])))
		})
	}
	// extreme is min and max.
	extreme := func(name string, better func(c int) bool) *builtin {
		return define(name, "value case_sensitive=False attribute=None", func(r *run, a []any) any {
			key := r.getter(a[2], !truthy(a[1]), nil)
			it := r.iter(a[0])
			best, ok := it()
			if !ok {
				return &undefined{why: "no aggregated item, sequence was empty"}
			}
			bestKey := key(best)
			for e, ok := it(); ok; e, ok = it() {
				if k := key(e); better(r.compare(k, bestKey, "<")) {
					best, bestKey = e, k
				}
			}
			return best
		})
	}
	selection := func(name string, byAttribute, keep bool) *builtin {
		return define(name, "value *args **kwargs", func(r *run, a []any) any {
			return r.selectItems(name, a[0], a[1].(tuple).elems, a[2].(*Object), byAttribute, keep)
		})
	}
	return table(
		textual("upper", upper),
		textual("lower", lower),
		textual("capitalize", capitalize),
		textual("title", filterTitle),
		length("length"), length("count"),
		fallback("default"), fallback("d"),
		escape("escape"), escape("e"), escape("forceescape"),
		extreme("min", func(c int) bool { return c == -1 }),
		extreme("max", func(c int) bool { return c == 1 }),
		selection("select", false, true), selection("reject", false, false),
		selection("selectattr", true, true), selection("rejectattr", true, false),
		define("abs", "value", filterAbs),
		define("attr", "obj name", func(r *run, a []any) any {
			name := textArg(a[1], "attr name")
			if u, ok := a[0].(*undefined); ok {
				u.fail()
			}
			if v, ok := r.attribute(a[0], name); ok {
				return v
			}
			return &undefined{why: "'" + objectName(a[0]) + "' has no attribute '" + name + "'"}
		}),
		define("batch", "value linecount fill_with=None", filterBatch),
		define("center", "value width=80", func(r *run, a []any) any {
			return r.pad(r.str(a[0]), intArg(a[1], "center width"), " ", 0)
		}),
		define("dictsort", "value case_sensitive=False by=key reverse=False", filterDictSort),
		define("filesizeformat", "value binary=False", filterFileSize),
		define("first", "seq", func(r *run, a []any) any {
			if v, ok := r.iter(a[0])(); ok {
				return v
			}
			return &undefined{why: "no first item, sequence was empty"}
		}),
		define("float", "value default=0.0", func(r *run, a []any) any {
			if s, ok := asString(a[0]); ok {
				r.work(len(s))
				if f, ok := parsePyFloat(s); ok {
					return f
				}
				return a[1]
			}
			if isNumber(a[0]) {
				return toFloat(a[0])
			}
			if u, ok := a[0].(*undefined); ok {
				u.fail()
			}
			return a[1]
		}),
		define("format", "value *args **kwargs", func(r *run, a []any) any {
			pos, named := a[1].(tuple), a[2].(*Object)
			if len(pos.elems) > 0 && named.Len() > 0 {
				failf("format: found positional and named values, expected one kind")
			}
			if named.Len() > 0 {
				return r.percent(r.str(a[0]), named)
			}
			return r.percent(r.str(a[0]), pos)
		}),
		define("groupby", "value attribute default=None case_sensitive=False", filterGroupBy),
		define("indent", "s width=4 first=False blank=False", filterIndent),
		define("int", "value default=0 base=10", filterInt),
		define("items", "value", func(r *run, a []any) any {
			if _, ok := a[0].(*undefined); ok {
				return &generator{sliceIter(nil)}
			}
			var it iterator
			return &generator{func() (any, bool) {
				if it == nil {
					d, ok := a[0].(*Object)
					if !ok {
						failf("items: found '%s', expected an object", typeName(a[0]))
					}
					it = r.iter(&dictView{"items", d})
				}
				return it()
			}}
		}),
		define("join", "value d= attribute=None", filterJoin),
		define("last", "seq", func(r *run, a []any) any {
			if s, ok := asString(a[0]); ok && s != "" {
				_, n := utf8.DecodeLastRuneInString(s)
				return s[len(s)-n:]
			}
			it, ok := r.reversed(a[0])
			if !ok {
				failf("last: '%s' object is not reversible", typeName(a[0]))
			}
			if v, ok := it(); ok {
				return v
			}
			return &undefined{why: "no last item, sequence was empty"}
		}),
		define("list", "value", func(r *run, a []any) any { return r.list(a[0]) }),
		define("map", "value *args **kwargs", filterMap),
		define("replace", "s old new count=None", func(r *run, a []any) any {
			count := -1
			if a[3] != nil {
				count = intArg(a[3], "replace count")
			}
			return r.replaceText(r.str(a[0]), r.str(a[1]), r.str(a[2]), count)
		}),
		define("reverse", "value", func(r *run, a []any) any {
			if s, ok := asString(a[0]); ok {
				return r.sliceText(s, nil, nil, int64(-1))
			}
			if it, ok := r.reversed(a[0]); ok {
				return &generator{it}
			}
			list := r.list(a[0])
			slices.Reverse(list)
			return list
		}),
		define("round", "value precision=0 method=common", filterRound),
		define("safe", "value", func(r *run, a []any) any { return markup(r.str(a[0])) }),
		define("slice", "value slices fill_with=None", filterSlice),
		define("sort", "value reverse=False case_sensitive=False attribute=None", func(r *run, a []any) any {
			list := r.list(a[0])
			parts := attributeList(a[3])
			keys := make([]any, len(list))
			for i, e := range list {
				key := make([]any, len(parts))
				for j, p := range parts {
					key[j] = r.getter(p, !truthy(a[2]), nil)(e)
				}
				r.allocTimes(len(key), valueBytes)
				keys[i] = key
			}
			return r.sortByKeys(list, keys, truthy(a[1]))
		}),
		define("string", "value", func(r *run, a []any) any {
			if _, ok := a[0].(markup); ok {
				return a[0]
			}
			return r.str(a[0])
		}),
		define("striptags", "value", func(r *run, a []any) any { return r.text(stripTags(r.str(a[0]))) }),
		define("sum", "iterable attribute=None start=0", func(r *run, a []any) any {
			key := r.getter(a[1], false, nil)
			total := a[2]
			if _, ok := asString(total); ok {
				failf("sum: texts cannot be summed, use join")
			}
			it := r.iter(a[0])
			for e, ok := it(); ok; e, ok = it() {
				total = r.binary("+", total, key(e))
			}
			return total
		}),
		define("tojson", "value ensure_ascii=False indent=None separators=None sort_keys=False", filterToJSON),
		define("trim", "value chars=None", func(r *run, a []any) any {
			s := r.str(a[0])
			r.work(len(s))
			return likeText(a[0], stripSide(s, a[1], true, true))
		}),
		define("truncate", "s length=255 killwords=False end=... leeway=None", filterTruncate),
		define("unique", "value case_sensitive=False attribute=None", func(r *run, a []any) any {
			key := r.getter(a[2], !truthy(a[1]), nil)
			seen := make(map[hashKey]bool)
			it := r.lazyIter(a[0])
			return &generator{func() (any, bool) {
				for e, ok := it(); ok; e, ok = it() {
					h := r.hash(key(e))
					if !seen[h] {
						r.alloc(4 * valueBytes)
						seen[h] = true
						return e, true
					}
				}
				return nil, false
			}}
		}),
		define("urlencode", "value", filterURLEncode),
		define("wordcount", "s", func(r *run, a []any) any {
			s, n := r.str(a[0]), int64(0)
			r.work(len(s))
			for s != "" {
				if w := nameLen(s); w > 0 {
					n++
					s = s[w:]
					continue
				}
				_, w := utf8.DecodeRuneInString(s)
				s = s[w:]
			}
			return n
		}),
		define("xmlattr", "d autospace=True", func(r *run, a []any) any {
			d := dictArg(a[0], "xmlattr")
			var parts []string
			for key, v := range d.All() {
				if _, ok := v.(*undefined); ok || v == nil {
					continue
				}
				if strings.ContainsAny(key, " \t\n\r\f\v/>=") {
					failf("xmlattr: bad attribute name %q", key)
				}
				parts = append(parts, r.escape(key)+`="`+r.escape(r.str(v))+`"`)
			}
			s := strings.Join(parts, " ")
			if s != "" && truthy(a[1]) {
				s = " " + s
			}
			return r.text(s)
		}),
	)
}

// lazyIter is iter put off until the first element is asked for, as in a
// generator's body.
func (r *run) lazyIter(v any) iterator {
	var it iterator
	return func() (any, bool) {
		if it == nil {
			it = r.iter(v)
		}
		return it()
	}
}

// attributeParts splits "a.b.0" into keys; none is empty.
func attributeParts(v any) []any {
	if v == nil {
		return nil
	}
	s, ok := asString(v)
	if !ok {
		return []any{v}
	}
	var parts []any
	for _, p := range strings.Split(s, ".") {
		if p != "" && strings.Trim(p, "0123456789") == "" {
			if i, err := strconv.ParseInt(p, 10, 64); err == nil {
				parts = append(parts, i)
				continue
			}
		}
		parts = append(parts, p)
	}
	return parts
}

// attributeList splits "a,b.c" into one attribute each.
func attributeList(v any) []any {
	if s, ok := asString(v); ok {
		return toList(strings.Split(s, ","))
	}
	return []any{v}
}

// getter returns a function that follows an attribute path, replaces undefined
// values on the way by def unless that is nil, and folds case where asked.
func (r *run) getter(attribute any, ignoreCase bool, def any) func(any) any {
	parts := attributeParts(attribute)
	return func(v any) any {
		for _, p := range parts {
			v = r.index(v, p)
			if _, ok := v.(*undefined); ok && def != nil {
				v = def
			}
		}
		if s, ok := asString(v); ok && ignoreCase {
			return r.text(lower(s))
		}
		return v
	}
}

// sortByKeys sorts list stably by keys.
func (r *run) sortByKeys(list, keys []any, reverse bool) []any {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	r.allocTimes(len(list), 2*valueBytes)
	slices.SortStableFunc(order, func(i, j int) int {
		r.step(1)
		c := r.compare(keys[i], keys[j], "<")
		if c == unordered {
			return 0
		}
		if reverse {
			return -c
		}
		return c
	})
	out := make([]any, len(list))
	for i, j := range order {
		out[i] = list[j]
	}
	return out
}

func (r *run) selectItems(name string, v any, args []any, named *Object, byAttribute, keep bool) any {
	var test func(any) bool
	prepare := func() {
		subject := func(e any) any { return e }
		if byAttribute {
			if len(args) == 0 {
				failf("%s: missing the attribute's name", name)
			}
			subject = r.getter(args[0], false, nil)
			args = args[1:]
		}
		if len(args) == 0 {
			test = func(e any) bool { return truthy(subject(e)) }
			return
		}
		testName, ok := asString(args[0])
		if !ok {
			failf("%s: found '%s', expected the name of a test", name, typeName(args[0]))
		}
		rest := args[1:]
		test = func(e any) bool { return r.callTest(testName, subject(e), rest, named) }
	}
	it := r.lazyIter(v)
	return &generator{func() (any, bool) {
		if !truthy(v) {
			return nil, false
		}
		if test == nil {
			prepare()
		}
		for e, ok := it(); ok; e, ok = it() {
			if test(e) == keep {
				return e, true
			}
		}
		return nil, false
	}}
}

func filterMap(r *run, a []any) any {
	args, named := a[1].(tuple).elems, a[2].(*Object)
	var convert func(any) any
	prepare := func() {
		if attribute, ok := named.Get("attribute"); ok && len(args) == 0 {
			def, hasDefault := named.Get("default")
			known := 1
			if hasDefault {
				known = 2
			}
			if named.Len() > known {
				failf("map: found other named arguments than attribute and default")
			}
			convert = r.getter(attribute, false, def)
			return
		}
		if len(args) == 0 {
			failf("map: missing the name of a filter or an attribute")
		}
		filter, ok := asString(args[0])
		if !ok {
			failf("map: found '%s', expected the name of a filter", typeName(args[0]))
		}
		convert = func(e any) any { return r.callFilter(filter, e, args[1:], named) }
	}
	it := r.lazyIter(a[0])
	return &generator{func() (any, bool) {
		if !truthy(a[0]) {
			return nil, false
		}
		if convert == nil {
			prepare()
		}
		e, ok := it()
		if !ok {
			return nil, false
		}
		return convert(e), true
	}}
}

func filterAbs(r *run, a []any) any {
	if !isNumber(a[0]) {
		failf("abs: found '%s', expected a number", typeName(a[0]))
	}
	if f, ok := a[0].(float64); ok {
		return math.Abs(f)
	}
	if compareNumbers(a[0], int64(0)) < 0 {
		return arith("-", int64(0), a[0])
	}
	return arith("+", a[0], int64(0))
}

func filterBatch(r *run, a []any) any {
	n := intArg(a[1], "batch size")
	it := r.lazyIter(a[0])
	var held any // first element of the next batch
	holding := false
	return &generator{func() (any, bool) {
		row := []any{}
		if holding {
			row = append(row, held)
			holding = false
		}
		for e, ok := it(); ok; e, ok = it() {
			r.alloc(valueBytes)
			if len(row) == n {
				held, holding = e, true
				return row, true
			}
			row = append(row, e)
		}
		if len(row) == 0 {
			return nil, false
		}
		if a[2] != nil && len(row) < n {
			r.allocTimes(n-len(row), valueBytes)
			for len(row) < n {
				row = append(row, a[2])
			}
		}
		return row, true
	}}
}

func filterSlice(r *run, a []any) any {
	n := intArg(a[1], "slice count")
	var list []any
	i, offset := 0, 0
	return &generator{func() (any, bool) {
		if list == nil {
			if n == 0 {
				failf("slice: division by zero")
			}
			list = r.list(a[0])
		}
		if i >= n {
			return nil, false
		}
		r.step(1)
		size, extra := len(list)/n, len(list)%n
		start := offset + i*size
		if i < extra {
			offset++
		}
		row := slices.Clone(list[start : offset+(i+1)*size])
		r.allocTimes(len(row)+1, valueBytes)
		if a[2] != nil && i >= extra {
			row = append(row, a[2])
		}
		i++
		return row, true
	}}
}

func filterDictSort(r *run, a []any) any {
	d := dictArg(a[0], "dictsort")
	by := 0
	switch a[2] {
	case "key":
	case "value":
		by = 1
	default:
		failf(`dictsort: sorts by "key" or "value" only`)
	}
	list := r.list(&dictView{"items", d})
	keys := make([]any, len(list))
	for i, e := range list {
		keys[i] = r.getter(nil, !truthy(a[1]), nil)(e.(tuple).elems[by])
	}
	return r.sortByKeys(list, keys, truthy(a[3]))
}

func filterGroupBy(r *run, a []any) any {
	key := r.getter(a[1], !truthy(a[3]), a[2])
	shown := r.getter(a[1], false, a[2])
	list := r.list(a[0])
	keys := make([]any, len(list))
	for i, e := range list {
		keys[i] = key(e)
	}
	list = r.sortByKeys(list, keys, false)
	out := []any{}
	for i := 0; i < len(list); {
		k := key(list[i])
		j := i + 1
		for j < len(list) && r.equal(key(list[j]), k) {
			j++
		}
		r.alloc(4 * valueBytes)
		out = append(out, tuple{elems: []any{shown(list[i]), list[i:j:j]}, fields: []string{"grouper", "list"}})
		i = j
	}
	return out
}

func filterFileSize(r *run, a []any) any {
	var f float64
	if s, ok := asString(a[0]); ok {
		if f, ok = parsePyFloat(s); !ok {
			failf("filesizeformat: found %q, expected a number", s)
		}
	} else if isNumber(a[0]) {
		f = toFloat(a[0])
	} else {
		failf("filesizeformat: found '%s', expected a number", typeName(a[0]))
	}
	base, suffix := 1000.0, "B"
	if truthy(a[1]) {
		base, suffix = 1024.0, "iB"
	}
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		failf("filesizeformat: found %s, expected a finite number", formatFloat(f))
	case f == 1:
		return "1 Byte"
	case f < base:
		return formatInt(truncate(f)) + " Bytes"
	}
	prefixes := "kMGTPEZY"
	if truthy(a[1]) {
		prefixes = "KMGTPEZY"
	}
	unit := base
	for i := range len(prefixes) {
		unit *= base
		if f < unit || i == len(prefixes)-1 {
			return strconv.FormatFloat(base*f/unit, 'f', 1, 64) + " " + prefixes[i:i+1] + suffix
		}
	}
	return nil
}

func filterIndent(r *run, a []any) any {
	var pad string
	if s, ok := asString(a[1]); ok {
		pad = s
	} else {
		pad = r.repeatText(" ", intArg(a[1], "indent width"))
	}
	if u, ok := a[0].(*undefined); ok {
		u.fail()
	}
	s := textArg(a[0], "indent")
	lines := r.splitLines(s+"\n", false)
	var b strings.Builder
	for i, line := range lines {
		r.alloc(len(line) + len(pad) + 1)
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && truthy(a[2]) || i > 0 && (line != "" || truthy(a[3])) {
			b.WriteString(pad)
		}
		b.WriteString(line)
	}
	return likeText(a[0], b.String())
}

func filterInt(r *run, a []any) any {
	if s, ok := asString(a[0]); ok {
		r.work(len(s))
		if v, ok := parsePyInt(s, intArg(a[2], "int base")); ok {
			return v
		}
		f, ok := parsePyFloat(s)
		if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
			return a[1]
		}
		return truncate(f)
	}
	switch v := a[0].(type) {
	case float64:
		if math.IsNaN(v) {
			return a[1]
		}
		if math.IsInf(v, 0) {
			failf("int: infinity has no integer value")
		}
		return truncate(v)
	case bool:
		return arith("+", v, int64(0))
	case int64, *big.Int:
		return v
	case *undefined:
		v.fail()
	}
	return a[1]
}

// truncate is a finite float's integer part.
func truncate(f float64) any {
	b, _ := big.NewFloat(f).Int(nil)
	return normInt(b)
}

func filterJoin(r *run, a []any) any {
	sep := r.str(a[1])
	key := r.getter(a[2], false, nil)
	it := r.iter(a[0])
	var b strings.Builder
	for n := 0; ; n++ {
		e, ok := it()
		if !ok {
			return b.String()
		}
		s := r.str(key(e))
		r.alloc(len(s) + len(sep))
		if n > 0 {
			b.WriteString(sep)
		}
		b.WriteString(s)
	}
}

func filterRound(r *run, a []any) any {
	method, _ := asString(a[2])
	if !isNumber(a[0]) {
		if u, ok := a[0].(*undefined); ok {
			u.fail()
		}
		failf("round: found '%s', expected a number", typeName(a[0]))
	}
	digits := intArg(a[1], "round precision")
	f, isFloat := a[0].(float64)
	switch method {
	case "common":
		if isFloat {
			return roundFloat(f, digits)
		}
		if digits >= 0 {
			return arith("+", a[0], int64(0))
		}
		if digits < -maxDigits {
			return int64(0)
		}
		scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
		q := roundHalfEven(new(big.Rat).SetFrac(toBig(a[0]), scale))
		return normInt(q.Mul(q, scale))
	case "ceil", "floor":
		scale := arith("**", int64(10), int64(digits))
		scaled := arith("*", a[0], scale)
		var whole any = scaled
		if s, ok := scaled.(float64); ok {
			if math.IsNaN(s) || math.IsInf(s, 0) {
				failf("round: the number is not finite")
			}
			if method == "ceil" {
				whole = truncate(math.Ceil(s))
			} else {
				whole = truncate(math.Floor(s))
			}
		}
		return arith("/", whole, scale)
	}
	failf(`round: found method %s, expected "common", "ceil" or "floor"`, r.repr(a[2]))
	return nil
}

func filterTruncate(r *run, a []any) any {
	end := textArg(a[3], "truncate end")
	length, leeway := intArg(a[1], "truncate length"), 5
	if a[4] != nil {
		leeway = intArg(a[4], "truncate leeway")
	}
	n := utf8.RuneCountInString(end)
	if length < n || leeway < 0 {
		failf("truncate: length %d and leeway %d must be at least %d and 0", length, leeway, n)
	}
	size, ok := lengthOf(a[0])
	if !ok {
		failf("truncate: '%s' object has no length", typeName(a[0]))
	}
	if size-length <= leeway {
		return a[0]
	}
	s := textArg(a[0], "truncate")
	s = s[:runeOffset(s, length-n)]
	if !truthy(a[2]) {
		if i := strings.LastIndexByte(s, ' '); i >= 0 {
			s = s[:i]
		}
	}
	return r.text(s + end)
}

var (
	htmlComment = regexp.MustCompile(`(?s)<!--.*?-->`)
	htmlTag     = regexp.MustCompile(`(?s)<.*?>`)
)

// stripTags removes comments and tags and makes runs of blanks one.
func stripTags(s string) string {
	s = htmlComment.ReplaceAllString(s, "")
	s = htmlTag.ReplaceAllString(s, "")
	return html.UnescapeString(strings.Join(strings.FieldsFunc(s, isSpace), " "))
}

// quoteURL is Python's urllib.parse.quote with "/" safe, or quote_plus in a
// query.
func quoteURL(s string, query bool) string {
	s = strings.ReplaceAll(url.QueryEscape(s), "%7E", "~")
	if !query {
		s = strings.ReplaceAll(s, "%2F", "/")
		s = strings.ReplaceAll(s, "+", "%20")
	}
	return s
}

func filterURLEncode(r *run, a []any) any {
	if s, ok := asString(a[0]); ok {
		return r.text(quoteURL(s, false))
	}
	over := a[0]
	if d, ok := over.(*Object); ok {
		over = &dictView{"items", d}
	}
	it, ok := r.tryIter(over)
	if !ok {
		return r.text(quoteURL(r.str(a[0]), false))
	}
	var parts []string
	for e, ok := it(); ok; e, ok = it() {
		r.step(1)
		pair := r.list(e)
		if len(pair) != 2 {
			failf("urlencode: found %d values, expected pairs", len(pair))
		}
		parts = append(parts, r.text(quoteURL(r.str(pair[0]), true)+"="+quoteURL(r.str(pair[1]), true)))
	}
	return r.text(strings.Join(parts, "&"))
}

func defineTests() map[string]*builtin {
	is := func(name string, ok func(v any) bool) *builtin {
		return define(name, "value", func(r *run, a []any) any { return ok(a[0]) })
	}
	var list []*builtin
	comparison := func(op string, names ...string) {
		for _, name := range names {
			list = append(list, define(name, "value other", func(r *run, a []any) any {
				return r.compareOp(op, a[0], a[1])
			}))
		}
	}
	comparison("==", "==", "eq", "equalto")
	comparison("!=", "!=", "ne")
	comparison("<", "<", "lt", "lessthan")
	comparison("<=", "<=", "le")
	comparison(">", ">", "gt", "greaterthan")
	comparison(">=", ">=", "ge")
	isUndefined := func(v any) bool {
		_, ok := v.(*undefined)
		return ok
	}
	rest := func(name string, divisor, want int64) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			return r.equal(r.binary("%", a[0], divisor), want)
		})
	}
	cased := func(name string, ok func(string) bool) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			s := r.str(a[0])
			r.work(len(s))
			return ok(s)
		})
	}
	known := func(name string, t *map[string]*builtin) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			s, ok := asString(a[0])
			r.hash(a[0])
			return ok && (*t)[s] != nil
		})
	}
	list = append(list,
		is("defined", func(v any) bool { return !isUndefined(v) }),
		is("undefined", isUndefined),
		is("none", func(v any) bool { return v == nil }),
		is("true", func(v any) bool { b, ok := v.(bool); return ok && b }),
		is("false", func(v any) bool { b, ok := v.(bool); return ok && !b }),
		is("boolean", func(v any) bool { _, ok := v.(bool); return ok }),
		is("float", func(v any) bool { _, ok := v.(float64); return ok }),
		is("number", isNumber),
		is("integer", func(v any) bool {
			switch v.(type) {
			case int64, *big.Int:
				return true
			}
			return false
		}),
		is("string", func(v any) bool { _, ok := asString(v); return ok }),
		is("escaped", func(v any) bool { _, ok := v.(markup); return ok }),
		is("mapping", func(v any) bool { _, ok := v.(*Object); return ok }),
		is("callable", func(v any) bool {
			switch v.(type) {
			case *function, *macro, *loopContext, *joiner, *undefined:
				return true // an undefined value has a call, which fails
			}
			return false
		}),
		is("sequence", func(v any) bool {
			switch v.(type) {
			case string, markup, []any, tuple, *Object, *rangeValue, *undefined:
				return true
			}
			return false
		}),
		define("iterable", "value", func(r *run, a []any) any {
			_, ok := r.tryIter(a[0])
			return ok
		}),
		define("sameas", "value other", func(r *run, a []any) any { return same(a[0], a[1]) }),
		define("in", "value seq", func(r *run, a []any) any { return r.contains(a[1], a[0]) }),
		define("divisibleby", "value num", func(r *run, a []any) any {
			return r.equal(r.binary("%", a[0], a[1]), int64(0))
		}),
		rest("odd", 2, 1), rest("even", 2, 0),
		cased("lower", isLower), cased("upper", isUpper),
		known("filter", &filters), known("test", &tests),
	)
	return table(list...)
}

func defineGlobals() map[string]*builtin {
	joiners := define("joiner", "sep=", func(r *run, a []any) any { return &joiner{sep: a[0]} })
	joiners.params[0].def = ", " // has a blank, which signatures cannot write
	return table(
		define("range", "*args", globalRange),
		define("dict", "*args **kwargs", func(r *run, a []any) any { return r.makeDict("dict", a) }),
		define("namespace", "*args **kwargs", func(r *run, a []any) any {
			return &namespace{r.makeDict("namespace", a)}
		}),
		define("cycler", "*items", func(r *run, a []any) any {
			items := a[0].(tuple).elems
			if len(items) == 0 {
				failf("cycler() needs at least one value")
			}
			return &cycler{items: items}
		}),
		joiners,
		define("lipsum", "*args **kwargs", func(r *run, a []any) any {
			unsupportedf("function 'lipsum'")
			return nil
		}),
		define("raise_exception", "message", func(r *run, a []any) any {
			panic(failure{&RaisedError{Message: r.str(a[0])}})
		}),
		define("strftime_now", "format", func(r *run, a []any) any {
			return r.text(strftime(r.now(), textArg(a[0], "strftime_now")))
		}),
	)
}

func globalRange(r *run, a []any) any {
	args := a[0].(tuple).elems
	if len(args) < 1 || len(args) > 3 {
		failf("range() takes 1 to 3 arguments, found %d", len(args))
	}
	n := make([]int64, len(args))
	for i, v := range args {
		n[i] = int64(intArg(v, "range()"))
	}
	rg := &rangeValue{step: 1}
	switch len(n) {
	case 1:
		rg.stop = n[0]
	case 2:
		rg.start, rg.stop = n[0], n[1]
	case 3:
		rg.start, rg.stop, rg.step = n[0], n[1], n[2]
	}
	if rg.step == 0 {
		failf("range(): the step must not be zero")
	}
	// As unsigned numbers the span and the step cannot overflow.
	var span, step uint64
	if rg.step > 0 && rg.stop > rg.start {
		span, step = uint64(rg.stop)-uint64(rg.start), uint64(rg.step)
	} else if rg.step < 0 && rg.stop < rg.start {
		span, step = uint64(rg.start)-uint64(rg.stop), -uint64(rg.step)
	}
	if span > 0 {
		count := (span-1)/step + 1
		if count > uint64(r.limits.Range) {
			limitf("range() of %d elements, at most %d allowed", count, r.limits.Range)
		}
		rg.n = int64(count)
	}
	return rg
}

// makeDict is dict(*args, **kwargs): from an object or pairs, then names.
func (r *run) makeDict(what string, a []any) *Object {
	args, named := a[0].(tuple).elems, a[1].(*Object)
	if len(args) > 1 {
		failf("%s() takes at most 1 argument, found %d", what, len(args))
	}
	d := new(Object)
	if len(args) == 1 {
		over := args[0]
		if o, ok := over.(*Object); ok {
			over = &dictView{"items", o}
		}
		it := r.iter(over)
		for e, ok := it(); ok; e, ok = it() {
			pair := r.list(e)
			if len(pair) != 2 {
				failf("%s(): found an element of length %d, expected pairs", what, len(pair))
			}
			r.put(d, pair[0], pair[1])
		}
	}
	for name, v := range named.All() {
		r.put(d, name, v)
	}
	return d
}
