package chat

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// The evaluator's values are Go values of these types, named as in Python:
//
//	nil                None
//	bool               bool
//	int64, *big.Int    int; *big.Int only outside the range of int64
//	float64            float
//	string             str
//	markup             str that the safe filter marked
//	[]any              list
//	tuple              tuple
//	*Object            dict
//	*undefined         undefined
//	*namespace, *rangeValue, *dictView, *generator, *function, *macro,
//	*loopContext, *cycler, *joiner
//
// Lists, tuples and dicts never change once made: the sandbox has no operation
// that would.

// markup is text that is already escaped. Adding a plain string to it escapes
// that string; everything else treats it as text.
type markup string

// tuple is an immutable list; fields names elements for attribute access and is
// empty but for what groupby returns.
type tuple struct {
	elems  []any
	fields []string
}

// undefined is the value of a missing name or key. It prints as nothing, is
// false and empty; most operations on it fail with why.
type undefined struct{ why string }

func (u *undefined) fail() { failf("%s", u.why) }

type namespace struct{ attrs *Object }

// rangeValue is range(start, stop, step); n is its length.
type rangeValue struct{ start, stop, step, n int64 }

func (r *rangeValue) at(i int64) int64 { return r.start + i*r.step }

// dictView is dict.keys(), dict.values() or dict.items(); kind is that name.
type dictView struct {
	kind string
	of   *Object
}

func (d *dictView) at(i int) any {
	switch d.kind {
	case "keys":
		return d.of.keys[i]
	case "values":
		return d.of.vals[i]
	}
	return tuple{elems: []any{d.of.keys[i], d.of.vals[i]}}
}

// iterator returns the next value, or false at the end and ever after.
type iterator func() (any, bool)

// generator is a lazy sequence that is read once.
type generator struct{ next iterator }

type cycler struct {
	items []any
	pos   int
}

type joiner struct {
	sep  any
	used bool
}

// typeName is Python's name of v's type.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case markup:
		return "Markup"
	case []any:
		return "list"
	case tuple:
		return "tuple"
	case *Object:
		return "dict"
	case *undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *rangeValue:
		return "range"
	case *dictView:
		return "dict_" + v.kind
	case *generator:
		return "generator"
	case *function:
		return "function"
	case *macro:
		return "Macro"
	case *loopContext:
		return "LoopContext"
	case *cycler:
		return "Cycler"
	case *joiner:
		return "Joiner"
	}
	return "object"
}

// objectName is how Jinja names an object in "has no attribute" errors.
func objectName(v any) string {
	if v == nil {
		return "None"
	}
	return typeName(v) + " object"
}

// asString returns the text of a string or markup.
func asString(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

func isNumber(v any) bool {
	switch v.(type) {
	case bool, int64, *big.Int, float64:
		return true
	}
	return false
}

func truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case []any:
		return len(v) > 0
	case tuple:
		return len(v.elems) > 0
	case *Object:
		return v.Len() > 0
	case *undefined:
		return false
	case *rangeValue:
		return v.n > 0
	case *dictView:
		return v.of.Len() > 0
	case *loopContext:
		return v.length() > 0
	}
	return true
}

// lengthOf is Python's len; ok is false for values that have none.
func lengthOf(v any) (n int, ok bool) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), true
	case markup:
		return utf8.RuneCountInString(string(v)), true
	case []any:
		return len(v), true
	case tuple:
		return len(v.elems), true
	case *Object:
		return v.Len(), true
	case *undefined:
		return 0, true
	case *rangeValue:
		return int(v.n), true
	case *dictView:
		return v.of.Len(), true
	case *loopContext:
		return v.length(), true
	}
	return 0, false
}

func sliceIter(list []any) iterator {
	i := 0
	return func() (any, bool) {
		if i >= len(list) {
			return nil, false
		}
		i++
		return list[i-1], true
	}
}

// tryIter is Python's iter; ok is false for values that cannot be iterated.
func (r *run) tryIter(v any) (it iterator, ok bool) {
	if s, isText := asString(v); isText {
		return func() (any, bool) {
			if s == "" {
				return nil, false
			}
			_, n := utf8.DecodeRuneInString(s)
			c := s[:n]
			s = s[n:]
			return c, true
		}, true
	}
	switch v := v.(type) {
	case []any:
		return sliceIter(v), true
	case tuple:
		return sliceIter(v.elems), true
	case *Object:
		if v == nil {
			return sliceIter(nil), true
		}
		return sliceIter(v.keys), true
	case *undefined:
		return sliceIter(nil), true
	case *rangeValue:
		i := int64(0)
		return func() (any, bool) {
			if i >= v.n {
				return nil, false
			}
			i++
			return v.at(i - 1), true
		}, true
	case *dictView:
		i := 0
		return func() (any, bool) {
			if i >= v.of.Len() {
				return nil, false
			}
			i++
			return v.at(i - 1), true
		}, true
	case *generator:
		return v.next, true
	case *loopContext:
		return func() (any, bool) {
			item, ok := v.advance()
			return tuple{elems: []any{item, v}}, ok
		}, true
	}
	return nil, false
}

// iter is tryIter with every element counted as a step; it fails for values
// that cannot be iterated.
func (r *run) iter(v any) iterator {
	it, ok := r.tryIter(v)
	if !ok {
		failf("'%s' object is not iterable", typeName(v))
	}
	return func() (any, bool) {
		r.step(1)
		r.enter() // generators over generators nest
		defer r.leave()
		return it()
	}
}

// list collects what v yields.
func (r *run) list(v any) []any {
	it := r.iter(v)
	out := []any{}
	for e, ok := it(); ok; e, ok = it() {
		r.alloc(valueBytes)
		out = append(out, e)
	}
	return out
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool {
	r.step(1)
	r.enter()
	defer r.leave()
	if s, ok := asString(a); ok {
		t, ok := asString(b)
		if !ok || len(s) != len(t) {
			return false
		}
		r.work(len(s))
		return s == t
	}
	if isNumber(a) {
		return isNumber(b) && compareNumbers(a, b) == 0
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case []any:
		b, ok := b.([]any)
		return ok && r.equalLists(a, b)
	case tuple:
		b, ok := b.(tuple)
		return ok && r.equalLists(a.elems, b.elems)
	case *Object:
		b, ok := b.(*Object)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			other, ok := b.get(r.hash(a.keys[i]))
			if !ok || !r.equal(a.vals[i], other) {
				return false
			}
		}
		return true
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *dictView:
		b, ok := b.(*dictView)
		return ok && (a == b || r.equalViews(a, b))
	case *rangeValue:
		b, ok := b.(*rangeValue)
		return ok && a.n == b.n && (a.n == 0 || a.start == b.start && (a.n == 1 || a.step == b.step))
	}
	return same(a, b)
}

func (r *run) equalLists(a, b []any) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !r.equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// equalViews compares keys and items as sets; values are never equal.
func (r *run) equalViews(a, b *dictView) bool {
	if a.kind != b.kind || a.kind == "values" || a.of.Len() != b.of.Len() {
		return false
	}
	if a.kind == "items" {
		return r.equal(a.of, b.of)
	}
	for h := range a.of.index {
		r.step(1)
		if _, ok := b.of.index[h]; !ok {
			return false
		}
	}
	return true
}

// same is Python's "is".
func same(a, b any) bool {
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		return ok && len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
	case tuple:
		b, ok := b.(tuple)
		return ok && len(a.elems) == len(b.elems) && (len(a.elems) == 0 || &a.elems[0] == &b.elems[0])
	}
	switch b.(type) {
	case []any, tuple:
		return false
	}
	return a == b
}

// unordered is what compareNumbers returns when a NaN takes part.
const unordered = 2

// compareNumbers compares exactly: -1, 0, +1 or unordered.
func compareNumbers(a, b any) int {
	x, xf := a.(float64)
	y, yf := b.(float64)
	if xf && math.IsNaN(x) || yf && math.IsNaN(y) {
		return unordered
	}
	switch {
	case xf && yf:
		return cmp.Compare(x, y)
	case xf:
		return new(big.Float).SetFloat64(x).Cmp(new(big.Float).SetInt(toBig(b)))
	case yf:
		return new(big.Float).SetInt(toBig(a)).Cmp(new(big.Float).SetFloat64(y))
	}
	i, iok := toInt64(a)
	j, jok := toInt64(b)
	if iok && jok {
		return cmp.Compare(i, j)
	}
	return toBig(a).Cmp(toBig(b))
}

// compare orders a and b for op, one of < <= > >=: -1, 0, +1 or unordered. It
// fails where Python has no order.
func (r *run) compare(a, b any, op string) int {
	r.step(1)
	r.enter()
	defer r.leave()
	if u, ok := a.(*undefined); ok {
		u.fail()
	}
	if u, ok := b.(*undefined); ok {
		u.fail()
	}
	if s, ok := asString(a); ok {
		if t, ok := asString(b); ok {
			r.work(min(len(s), len(t)))
			return strings.Compare(s, t) // UTF-8 sorts as code points do
		}
	}
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b)
	}
	var x, y []any
	switch a := a.(type) {
	case []any:
		if b, ok := b.([]any); ok {
			x, y = a, b
			break
		}
		r.noOrder(a, b, op)
	case tuple:
		if b, ok := b.(tuple); ok {
			x, y = a.elems, b.elems
			break
		}
		r.noOrder(a, b, op)
	default:
		r.noOrder(a, b, op)
	}
	for i := range min(len(x), len(y)) {
		if !r.equal(x[i], y[i]) {
			return r.compare(x[i], y[i], op)
		}
	}
	return cmp.Compare(len(x), len(y))
}

func (r *run) noOrder(a, b any, op string) {
	failf("'%s' not supported between '%s' and '%s'", op, typeName(a), typeName(b))
}

// contains is Python's "needle in container".
func (r *run) contains(container, needle any) bool {
	if text, ok := asString(container); ok {
		s, ok := asString(needle)
		if !ok {
			failf("'in <string>' requires a string on its left, found '%s'", typeName(needle))
		}
		r.work(len(text))
		return strings.Contains(text, s)
	}
	switch c := container.(type) {
	case *Object:
		_, ok := c.get(r.hash(needle))
		return ok
	case *dictView:
		if c.kind == "keys" {
			_, ok := c.of.get(r.hash(needle))
			return ok
		}
	case *rangeValue:
		if !isNumber(needle) {
			return false
		}
	}
	it, ok := r.tryIter(container)
	if !ok {
		failf("'in' needs a sequence or an object on its right, found '%s'", typeName(container))
	}
	for e, ok := it(); ok; e, ok = it() {
		r.step(1)
		if same(e, needle) || r.equal(e, needle) {
			return true
		}
	}
	return false
}

// hash returns v's dict key and fails for values that cannot be one.
func (r *run) hash(v any) hashKey {
	h, ok := r.tryHash(v)
	if !ok {
		failf("unhashable type: '%s'", typeName(v))
	}
	return h
}

// tryHash is hash with ok false for values that cannot be a key.
func (r *run) tryHash(v any) (h hashKey, ok bool) {
	r.step(1)
	if s, isText := asString(v); isText {
		r.work(len(s))
		return hashKey{kind: 's', s: s}, true
	}
	switch v := v.(type) {
	case nil:
		return hashKey{kind: 'n'}, true
	case bool, int64:
		i, _ := toInt64(v)
		return hashKey{kind: 'i', n: i}, true
	case *big.Int:
		return hashKey{kind: 'b', s: v.Text(16)}, true
	case float64:
		if v == math.Trunc(v) && !math.IsInf(v, 0) {
			return r.tryHash(truncate(v)) // 1.0 is the key 1
		}
		return hashKey{kind: 'f', n: int64(math.Float64bits(v))}, true
	case tuple:
		r.enter()
		defer r.leave()
		var b strings.Builder
		for _, e := range v.elems {
			h, ok := r.tryHash(e)
			if !ok {
				return hashKey{}, false
			}
			part := fmt.Sprintf("%c%x:%d:%s", h.kind, h.n, len(h.s), h.s)
			r.alloc(len(part))
			b.WriteString(part)
		}
		return hashKey{kind: 't', s: b.String()}, true
	case *undefined:
		return hashKey{kind: 'u'}, true
	}
	return hashKey{}, false
}

// sliceBounds resolves a Python slice over n elements: the first index, the step
// and how many elements it takes.
func sliceBounds(n int, start, stop, step any) (first, stride, count int) {
	bound := func(v any, what string) (int, bool) {
		if v == nil {
			return 0, false
		}
		if _, isFloat := v.(float64); isFloat || !isNumber(v) {
			failf("slice %s: found '%s', expected an integer or none", what, typeName(v))
		}
		i, ok := toInt64(v)
		if !ok {
			if toBig(v).Sign() < 0 {
				return math.MinInt / 2, true
			}
			return math.MaxInt / 2, true
		}
		return int(max(min(i, math.MaxInt/2), math.MinInt/2)), true
	}
	stride = 1
	if s, ok := bound(step, "step"); ok {
		stride = s
	}
	if stride == 0 {
		failf("slice step cannot be zero")
	}
	low, high := 0, n
	if stride < 0 {
		low, high = -1, n-1
	}
	clamp := func(v any, what string, missing int) int {
		i, ok := bound(v, what)
		if !ok {
			return missing
		}
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	var last int
	if stride > 0 {
		first, last = clamp(start, "start", low), clamp(stop, "stop", high)
		if last > first {
			count = (last - first + stride - 1) / stride
		}
	} else {
		first, last = clamp(start, "start", high), clamp(stop, "stop", low)
		if first > last {
			count = (first - last - stride - 1) / -stride
		}
	}
	return first, stride, count
}

func takeSlice(list []any, start, stop, step any) []any {
	first, stride, count := sliceBounds(len(list), start, stop, step)
	out := make([]any, count)
	for i := range out {
		out[i] = list[first+i*stride]
	}
	return out
}

// reversed is Python's reversed; ok is false for values that only go forward.
func (r *run) reversed(v any) (it iterator, ok bool) {
	var list []any
	switch v := v.(type) {
	case string, markup, []any, tuple, *Object, *rangeValue, *dictView, *undefined:
		list = r.list(v)
	default:
		return nil, false
	}
	list = slices.Clone(list)
	slices.Reverse(list)
	return sliceIter(list), true
}
