package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The tables of the language's functions. They are filled by init because
// their functions refer back to the evaluator that reads the tables.
var (
	filters     map[string]*builtin
	tests       map[string]*builtin
	globals     map[string]*builtin
	textMethods map[string]*builtin
	dictMethods map[string]*builtin

	methodsByName map[string][]*builtin // everything that can be called after a dot
)

func init() {
	filters = table(textFilters(), numberFilters(), sequenceFilters(), selectionFilters())
	tests = table(typeTests(), valueTests())
	globals = table(defineGlobals())
	textMethods = table(defineTextMethods())
	dictMethods = table(defineDictMethods())
	methodsByName = make(map[string][]*builtin)
	for _, t := range []map[string]*builtin{textMethods, dictMethods} {
		for name, f := range t {
			methodsByName[name] = append(methodsByName[name], f)
		}
	}
}

func textFilters() []*builtin {
	textual := func(name string, f func(*run, text) text) *builtin {
		return define(name, "value", func(r *run, a []any) any { return f(r, r.show(a[0])) })
	}
	escape := func(name string) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			t := r.show(a[0])
			if t.safe && name != "forceescape" {
				return t
			}
			return r.escape(t)
		})
	}
	return []*builtin{
		textual("upper", (*run).upper),
		textual("lower", (*run).lower),
		textual("capitalize", (*run).capitalize),
		textual("title", (*run).titleFilter),
		textual("string", func(_ *run, t text) text { return t }),
		textual("safe", func(_ *run, t text) text { t.safe = true; return t }),
		escape("escape"), escape("e"), escape("forceescape"),
		define("indent", "s width=4 first=False blank=False", filterIndent),
		define("replace", "s old new count=None", func(r *run, a []any) any {
			count := -1
			if a[3] != nil {
				count = intArg(a[3], "replace count")
			}
			t := r.show(a[0])
			t.safe = false
			return r.replace(t, r.show(a[1]), r.show(a[2]), count)
		}),
		define("tojson", "value ensure_ascii=False indent=None separators=None sort_keys=False", filterToJSON),
		define("from_json", "value", filterFromJSON),
		define("trim", "value chars=None", func(r *run, a []any) any { return r.strip(r.show(a[0]), a[1], true, true) }),
	}
}

func filterIndent(r *run, a []any) any {
	pad, ok := a[1].(text)
	if !ok {
		pad = r.repeat(own(" "), intArg(a[1], "indent width"))
	}
	defined(a[0])
	t := textArg(a[0], "indent")
	b := r.builder()
	for i, line := range r.splitLines(r.concat(t, own("\n")), false) {
		r.step(1)
		if i > 0 {
			b.put("\n", false)
		}
		if i == 0 && truthy(a[2]) || i > 0 && (truthy(line) || truthy(a[3])) {
			b.add(pad)
		}
		b.add(line.(text))
	}
	out := b.text()
	out.safe = t.safe
	return out
}

func numberFilters() []*builtin {
	return []*builtin{
		define("abs", "value", func(r *run, a []any) any {
			if f, ok := a[0].(float64); ok {
				return math.Abs(f)
			}
			i, ok := toInt64(a[0])
			if !ok {
				failf("abs: found '%s', expected a number", typeName(a[0]))
			}
			if i < 0 {
				return arith("-", int64(0), i)
			}
			return i
		}),
		define("float", "value default=0.0", func(r *run, a []any) any {
			defined(a[0])
			if t, ok := a[0].(text); ok {
				r.work(len(t.s))
				if f, ok := parseFloat(t.s); ok {
					return f
				}
				return a[1]
			}
			if isNumber(a[0]) {
				return toFloat(a[0])
			}
			return a[1]
		}),
		define("int", "value default=0", filterInt),
		define("round", "value precision=0 method=common", filterRound),
	}
}

func filterInt(r *run, a []any) any {
	defined(a[0])
	f := math.NaN()
	switch v := a[0].(type) {
	case text:
		r.work(len(v.s))
		if i, ok := parseInt(v.s); ok {
			return i
		}
		if g, ok := parseFloat(v.s); ok && !math.IsInf(g, 0) {
			f = g
		}
	case float64:
		f = v
	case bool, int64:
		i, _ := toInt64(v)
		return i
	case wide:
		return v
	}
	if math.IsNaN(f) {
		return a[1]
	}
	if math.IsInf(f, 0) {
		failf("int: infinity has no integer value")
	}
	return truncate(f)
}

func filterRound(r *run, a []any) any {
	defined(a[0])
	if !isNumber(a[0]) {
		failf("round: found '%s', expected a number", typeName(a[0]))
	}
	digits := intArg(a[1], "round precision")
	if digits < 0 {
		unsupportedf("round with the precision %d", digits)
	}
	f, isFloat := a[0].(float64)
	how, _ := a[2].(text)
	switch how.s {
	case "common":
		if isFloat {
			return roundFloat(f, digits)
		}
		i, _ := toInt64(a[0])
		return i
	case "ceil", "floor":
		scale := math.Pow(10, float64(digits))
		whole := math.Floor
		if how.s == "ceil" {
			whole = math.Ceil
		}
		return (whole(toFloat(a[0])*scale) + 0) / scale // no -0: Python rounds to integers here
	}
	failf(`round: found method '%.40s', expected "common", "ceil" or "floor"`, how.s)
	return nil
}

func sequenceFilters() []*builtin {
	length := func(name string) *builtin {
		return define(name, "value", func(r *run, a []any) any {
			if t, ok := a[0].(text); ok {
				r.work(len(t.s))
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
	// extreme defines min and max.
	extreme := func(name string, better int) *builtin {
		return define(name, "value case_sensitive=False attribute=None", func(r *run, a []any) any {
			key := r.getter(a[2], !truthy(a[1]), nil)
			it := r.iter(a[0])
			best, ok := it()
			if !ok {
				return &undefined{why: "no aggregated item, sequence was empty"}
			}
			bestKey := key(best)
			for e, ok := it(); ok; e, ok = it() {
				if k := key(e); r.compare(k, bestKey, "<") == better {
					best, bestKey = e, k
				}
			}
			return best
		})
	}
	return []*builtin{
		length("length"), length("count"), fallback("default"), fallback("d"),
		extreme("min", -1), extreme("max", 1),
		define("dictsort", "value case_sensitive=False by=key reverse=False", filterDictSort),
		define("first", "seq", func(r *run, a []any) any {
			if v, ok := r.iter(a[0])(); ok {
				return v
			}
			return &undefined{why: "no first item, sequence was empty"}
		}),
		define("items", "value", func(r *run, a []any) any {
			var it iterator
			return r.lazy(func() (any, bool) {
				if it == nil && isUndefined(a[0]) {
					it = sliceIter(nil)
				} else if it == nil {
					it = sliceIter(r.items(dictArg(a[0], "items")))
				}
				return it()
			})
		}),
		define("join", "value d= attribute=None", filterJoin),
		define("last", "seq", filterLast),
		define("list", "value", func(r *run, a []any) any { return r.list(a[0]) }),
		define("reverse", "value", func(r *run, a []any) any {
			if t, ok := a[0].(text); ok {
				return r.sliceText(t, nil, nil, int64(-1))
			}
			if list, ok := r.reversed(a[0]); ok {
				return r.lazy(sliceIter(list))
			}
			list := r.list(a[0])
			slices.Reverse(list)
			return list
		}),
		define("sort", "value reverse=False case_sensitive=False attribute=None", filterSort),
		define("sum", "iterable attribute=None start=0", func(r *run, a []any) any {
			key := r.getter(a[1], false, nil)
			total := a[2]
			if _, ok := total.(text); ok {
				failf("sum: texts cannot be summed, use join")
			}
			it := r.iter(a[0])
			for e, ok := it(); ok; e, ok = it() {
				total = r.binary("+", total, key(e))
			}
			return total
		}),
		define("unique", "value case_sensitive=False attribute=None", filterUnique),
	}
}

func filterLast(r *run, a []any) any {
	switch v := a[0].(type) {
	case text:
		if v.s != "" {
			_, n := utf8.DecodeLastRuneInString(v.s)
			return r.cut(v, len(v.s)-n, len(v.s))
		}
	case []any:
		if len(v) > 0 {
			return v[len(v)-1]
		}
	default:
		list, ok := r.reversed(v)
		if !ok {
			failf("last: '%s' object is not reversible", typeName(v))
		}
		if len(list) > 0 {
			return list[0]
		}
	}
	return &undefined{why: "no last item, sequence was empty"}
}

// lazyIter is iter deferred until the first element is asked for, as in the
// body of a generator.
func (r *run) lazyIter(v any) iterator {
	var it iterator
	return func() (any, bool) {
		if it == nil {
			it = r.iter(v)
		}
		return it()
	}
}

// lazy returns a sequence that is read once.
func (r *run) lazy(next iterator) *generator {
	r.alloc(lazyBytes)
	return &generator{next}
}

// attributeParts splits "a.b.0" into keys.
func (r *run) attributeParts(v any) []any {
	if v == nil {
		return nil
	}
	t, ok := v.(text)
	if !ok {
		return []any{v}
	}
	var parts []any
	r.work(len(t.s))
	r.allocTimes(strings.Count(t.s, ".")+1, valueBytes)
	for p := range strings.SplitSeq(t.s, ".") {
		if i, err := strconv.ParseUint(p, 10, 63); err == nil {
			parts = append(parts, int64(i))
		} else {
			parts = append(parts, own(p))
		}
	}
	return parts
}

// getter returns a function that follows an attribute path, replaces undefined
// values along the way with def unless that is nil, and folds case if asked.
func (r *run) getter(attribute any, ignoreCase bool, def any) func(any) any {
	parts := r.attributeParts(attribute)
	return func(v any) any {
		r.step(len(parts))
		for _, p := range parts {
			v = r.index(v, p)
			if _, ok := v.(*undefined); ok && def != nil {
				v = def
			}
		}
		if t, ok := v.(text); ok && ignoreCase {
			return r.lower(t)
		}
		return v
	}
}

// sortByKeys sorts list stably by keys. With lists, keys are compared as lists of one
// element: equal ones need no order.
func (r *run) sortByKeys(list, keys []any, lists, reverse bool) []any {
	r.allocTimes(len(list), 2*valueBytes)
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if lists && r.equal(keys[i], keys[j]) {
			return 0
		}
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

func filterSort(r *run, a []any) any {
	if t, ok := a[3].(text); ok && strings.Contains(t.s, ",") {
		unsupportedf("sort by several attributes")
	}
	list := r.list(a[0])
	r.allocTimes(len(list), valueBytes)
	keys := make([]any, len(list))
	get := r.getter(a[3], !truthy(a[2]), nil)
	for i, e := range list {
		keys[i] = get(e)
	}
	return r.sortByKeys(list, keys, true, truthy(a[1]))
}

func filterDictSort(r *run, a []any) any {
	by := 0
	switch how := textArg(a[2], "dictsort by").s; how {
	case "key":
	case "value":
		by = 1
	default:
		failf(`dictsort: sorts by "key" or "value" only`)
	}
	list := r.items(dictArg(a[0], "dictsort"))
	keys := make([]any, len(list))
	get := r.getter(nil, !truthy(a[1]), nil)
	for i, e := range list {
		keys[i] = get(e.(tuple).elems[by])
	}
	return r.sortByKeys(list, keys, false, truthy(a[3]))
}

func filterJoin(r *run, a []any) any {
	key := r.getter(a[2], false, nil)
	return r.join(r.show(a[1]), a[0], func(e any) text { return r.show(key(e)) })
}

// join joins the parts that v yields with a separator. The result is not safe.
func (r *run) join(sep text, v any, part func(any) text) text {
	it := r.iter(v)
	b := r.builder()
	for n := 0; ; n++ {
		e, ok := it()
		if !ok {
			return b.text()
		}
		if n > 0 {
			b.add(sep)
		}
		b.add(part(e))
	}
}

func filterUnique(r *run, a []any) any {
	key := r.getter(a[2], !truthy(a[1]), nil)
	seen := make(map[hashKey]bool)
	it := r.lazyIter(a[0])
	return r.lazy(func() (any, bool) {
		for e, ok := it(); ok; e, ok = it() {
			h := r.hash(key(e))
			if !seen[h] {
				r.alloc(entryBytes)
				seen[h] = true
				return e, true
			}
		}
		return nil, false
	})
}

func selectionFilters() []*builtin {
	selection := func(name string, byAttribute, keep bool) *builtin {
		return define(name, "value *args **kwargs", func(r *run, a []any) any {
			return r.selectItems(name, a, byAttribute, keep)
		})
	}
	return []*builtin{
		selection("select", false, true), selection("reject", false, false),
		selection("selectattr", true, true), selection("rejectattr", true, false),
		define("map", "value *args **kwargs", filterMap),
	}
}

// named looks up a filter or test that a template names by a value.
func (r *run) named(what string, table map[string]*builtin, v any, user string) *builtin {
	t, ok := v.(text)
	if !ok {
		failf("%s: found '%s', expected the name of a %s", user, typeName(v), what)
	}
	f, ok := table[t.s]
	if !ok {
		unsupportedf("%s '%.40s'", what, t.s)
	}
	return f
}

func (r *run) selectItems(name string, a []any, byAttribute, keep bool) any {
	args, named := a[1].([]any), a[2].([]argument)
	r.allocTimes(len(args)+len(named), valueBytes) // the generator keeps them
	subject := func(e any) any { return e }
	if byAttribute {
		if len(args) == 0 {
			failf("%s: missing the attribute's name", name)
		}
		subject = r.getter(args[0], false, nil)
		args = args[1:]
	}
	test := truthy
	if len(args) > 0 {
		def := r.named("test", tests, args[0], name)
		test = func(v any) bool { return truthy(r.invoke(def, v, true, args[1:], named)) }
	}
	it := r.lazyIter(a[0])
	return r.lazy(func() (any, bool) {
		if !truthy(a[0]) {
			return nil, false
		}
		for e, ok := it(); ok; e, ok = it() {
			if test(subject(e)) == keep {
				return e, true
			}
		}
		return nil, false
	})
}

func filterMap(r *run, a []any) any {
	args, named := a[1].([]any), a[2].([]argument)
	r.allocTimes(len(args)+len(named), valueBytes) // the generator keeps them
	var convert func(any) any
	if attribute, ok := find(named, "attribute"); ok && len(args) == 0 {
		def, hasDefault := find(named, "default")
		if len(named) > 2 || len(named) == 2 && !hasDefault {
			failf("map: found other named arguments than attribute and default")
		}
		convert = r.getter(attribute, false, def)
	} else {
		if len(args) == 0 {
			failf("map: missing the name of a filter or an attribute")
		}
		def := r.named("filter", filters, args[0], "map")
		convert = func(e any) any { return r.invoke(def, e, true, args[1:], named) }
	}
	it := r.lazyIter(a[0])
	return r.lazy(func() (any, bool) {
		if !truthy(a[0]) {
			return nil, false
		}
		e, ok := it()
		if !ok {
			return nil, false
		}
		return convert(e), true
	})
}
