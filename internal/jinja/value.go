package jinja

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The evaluator's values are Go values of these types, named as in Python:
//
//	nil         None
//	bool        bool
//	int64       int
//	wide        int outside the range of int64, from the input; only printed
//	float64     float
//	text        str
//	[]any       list
//	tuple       tuple
//	*dict       dict
//	*undefined  undefined
//	*namespace, *rangeValue, *view, *generator, *method, *macro, *loopContext
//
// Lists, tuples and dicts never change once made: the language has no operation
// that modifies them.

// wide holds the decimal digits of an integer that does not fit in 64 bits. It
// can be printed, passed on, found equal to itself and compared with 64-bit
// integers, but not calculated with.
type wide string

// tuple is an immutable list.
type tuple struct{ elems []any }

// undefined is the value of a missing name or key. It prints as nothing, is
// false and empty; most operations on it fail with why, formatted with first
// and second.
type undefined struct{ why, first, second string }

func (u *undefined) String() string {
	switch {
	case u.second != "":
		return fmt.Sprintf(u.why, u.first, u.second)
	case u.first != "":
		return fmt.Sprintf(u.why, u.first)
	}
	return u.why
}

func (u *undefined) fail() { failf("%v", u) }

// defined fails if one of the values is undefined.
func defined(values ...any) {
	for _, v := range values {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
	}
}

type namespace struct{ attrs *dict }

// rangeValue is range(start, stop, step); n is its length.
type rangeValue struct{ start, stop, step, n int64 }

func (r *rangeValue) at(i int64) int64 { return r.start + i*r.step }

// view is the result of dict.keys(), dict.values() or dict.items(); kind is the
// method's name.
type view struct {
	kind  string
	elems []any
}

// iterator returns the next value, or false at the end and from then on.
type iterator func() (any, bool)

// generator is what select, map and the like return: a sequence that is read
// once, always true and of unknown length.
type generator struct{ next iterator }

// typeName returns Python's name of v's type.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, wide:
		return "int"
	case float64:
		return "float"
	case text:
		if v.safe {
			return "Markup"
		}
		return "str"
	case []any:
		return "list"
	case tuple:
		return "tuple"
	case *dict:
		return "dict"
	case *undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *rangeValue:
		return "range"
	case *view:
		return "dict_" + v.kind
	case *generator:
		return "generator"
	case *macro:
		return "Macro"
	case *loopContext:
		return "LoopContext"
	}
	return "function"
}

// objectName returns how Jinja names an object in "has no attribute" errors.
func objectName(v any) string {
	if v == nil {
		return "None"
	}
	return typeName(v) + " object"
}

func isNumber(v any) bool {
	switch v.(type) {
	case bool, int64, wide, float64:
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
	case text:
		return v.s != ""
	case *undefined:
		return false
	case *generator, *loopContext:
		return true
	}
	n, ok := lengthOf(v)
	return !ok || n > 0
}

// lengthOf is Python's len; ok is false for values that have none.
func lengthOf(v any) (n int, ok bool) {
	switch v := v.(type) {
	case text:
		return utf8.RuneCountInString(v.s), true
	case []any:
		return len(v), true
	case tuple:
		return len(v.elems), true
	case *dict:
		return v.len(), true
	case *undefined:
		return 0, true
	case *rangeValue:
		return int(v.n), true
	case *view:
		return len(v.elems), true
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
	switch v := v.(type) {
	case text:
		at := 0
		v.safe = false
		return func() (any, bool) {
			if at == len(v.s) {
				return nil, false
			}
			_, n := utf8.DecodeRuneInString(v.s[at:])
			at += n
			return r.cut(v, at-n, at), true
		}, true
	case []any:
		return sliceIter(v), true
	case tuple:
		return sliceIter(v.elems), true
	case *dict:
		return sliceIter(v.keys), true
	case *view:
		return sliceIter(v.elems), true
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
	case *generator:
		return v.next, true
	case *loopContext:
		unsupportedf("iteration over 'loop'")
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
	if isNumber(a) {
		return isNumber(b) && compareNumbers(a, b) == 0
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case text:
		b, ok := b.(text)
		if !ok || len(a.s) != len(b.s) {
			return false
		}
		r.work(len(a.s))
		return a.s == b.s
	case []any:
		b, ok := b.([]any)
		return ok && r.equalLists(a, b)
	case tuple:
		b, ok := b.(tuple)
		return ok && r.equalLists(a.elems, b.elems)
	case *dict:
		b, ok := b.(*dict)
		if !ok || a.len() != b.len() {
			return false
		}
		for i := range a.keys {
			other, ok := b.get(r.hash(a.keys[i]))
			if !ok || !r.equal(a.vals[i], other) {
				return false
			}
		}
		return true
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *view:
		b, ok := b.(*view)
		return ok && (a == b || a.kind == b.kind && a.kind != "values" && r.equalLists(a.elems, b.elems))
	case *rangeValue:
		unsupportedf("comparison of ranges")
	}
	return a == b
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

// compare orders a and b for op, one of < <= > >=: -1, 0, +1 or unordered. It
// fails where Python defines no order.
func (r *run) compare(a, b any, op string) int {
	r.step(1)
	r.enter()
	defer r.leave()
	defined(a, b)
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b)
	}
	s, sok := a.(text)
	t, tok := b.(text)
	if sok && tok {
		r.work(min(len(s.s), len(t.s)))
		return strings.Compare(s.s, t.s) // UTF-8 sorts like code points
	}
	switch x := a.(type) {
	case []any:
		if y, ok := b.([]any); ok {
			return r.compareLists(x, y, op)
		}
	case tuple:
		if y, ok := b.(tuple); ok {
			return r.compareLists(x.elems, y.elems, op)
		}
	}
	failf("'%s' not supported between '%s' and '%s'", op, typeName(a), typeName(b))
	return 0
}

// compareLists orders lists by their first elements that differ, else by length.
func (r *run) compareLists(a, b []any, op string) int {
	for i := range min(len(a), len(b)) {
		if !r.equal(a[i], b[i]) {
			return r.compare(a[i], b[i], op)
		}
	}
	return cmp.Compare(len(a), len(b))
}

// contains is Python's "needle in container".
func (r *run) contains(container, needle any) bool {
	switch c := container.(type) {
	case text:
		s, ok := needle.(text)
		if !ok {
			failf("'in <string>' requires a string on its left, found '%s'", typeName(needle))
		}
		r.work(len(c.s))
		return strings.Contains(c.s, s.s)
	case *dict:
		_, ok := c.get(r.hash(needle))
		return ok
	}
	it, ok := r.tryIter(container)
	if !ok {
		failf("'in' needs a sequence or an object on its right, found '%s'", typeName(container))
	}
	for e, ok := it(); ok; e, ok = it() {
		r.step(1)
		if r.equal(e, needle) {
			return true
		}
	}
	return false
}

// sliceBounds resolves a Python slice over n elements: the first index, the step, the
// number of elements and the index to stop before.
func sliceBounds(n int, start, stop, step any) (first, stride, count, last int) {
	bound := func(v any, what string, missing int) int {
		if v == nil {
			return missing
		}
		i, ok := toInt64(v)
		if !ok {
			failf("slice %s: found '%s', expected an integer or none", what, typeName(v))
		}
		return int(max(min(i, math.MaxInt/2), math.MinInt/2))
	}
	stride = bound(step, "step", 1)
	if stride == 0 {
		failf("slice step cannot be zero")
	}
	low, high := 0, n
	if stride < 0 {
		low, high = -1, n-1
	}
	clamp := func(v any, what string, missing int) int {
		if v == nil {
			return missing
		}
		i := bound(v, what, missing)
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	if stride > 0 {
		first = clamp(start, "start", low)
		if last = clamp(stop, "stop", high); last > first {
			count = (last-first-1)/stride + 1
		}
	} else {
		first = clamp(start, "start", high)
		if last = clamp(stop, "stop", low); first > last {
			count = (first-last-1)/-stride + 1
		}
	}
	return first, stride, count, last
}

// slice returns of[start:stop:step].
func (r *run) slice(of, start, stop, step any) any {
	defined(of)
	var list []any
	switch v := of.(type) {
	case text:
		return r.sliceText(v, start, stop, step)
	case []any:
		list = v
	case tuple:
		list = v.elems
	case *rangeValue:
		first, stride, count, last := sliceBounds(int(v.n), start, stop, step)
		at := func(i int) int64 { return arith("+", v.start, arith("*", v.step, int64(i))).(int64) }
		return &rangeValue{at(first), at(last), arith("*", v.step, int64(stride)).(int64), int64(count)}
	default:
		failf("'%s' object cannot be sliced", typeName(of))
	}
	first, stride, count, _ := sliceBounds(len(list), start, stop, step)
	r.step(count)
	r.allocTimes(count, valueBytes)
	out := make([]any, count)
	for i := range out {
		out[i] = list[first+i*stride]
	}
	if _, ok := of.(tuple); ok {
		return tuple{out}
	}
	return out
}

func (r *run) sliceText(t text, start, stop, step any) text {
	r.work(len(t.s))
	n := utf8.RuneCountInString(t.s)
	first, stride, count, _ := sliceBounds(n, start, stop, step)
	if count == 0 {
		return text{safe: t.safe}
	}
	if stride == 1 {
		from := runeOffset(t.s, first)
		return r.cut(t, from, from+runeOffset(t.s[from:], count))
	}
	r.step(count)
	r.allocTimes(n, 8)
	offsets := make([]int, 0, n)
	for i := range t.s {
		offsets = append(offsets, i)
	}
	b := r.builder()
	for i := range count {
		at := offsets[first+i*stride]
		_, size := utf8.DecodeRuneInString(t.s[at:])
		b.add(r.cut(t, at, at+size))
	}
	out := b.text()
	out.safe = t.safe
	return out
}

// reversed is Python's reversed; ok is false for values that can only be read
// forward.
func (r *run) reversed(v any) (list []any, ok bool) {
	switch v.(type) {
	case text, []any, tuple, *dict, *rangeValue, *view, *undefined:
		list = r.list(v)
		slices.Reverse(list)
		return list, true
	}
	return nil, false
}

// show is Python's str(v): what printing v outputs.
func (r *run) show(v any) text {
	switch v := v.(type) {
	case text:
		return v
	case *undefined:
		return text{}
	case int64:
		return own(strconv.FormatInt(v, 10))
	}
	return r.repr(v)
}
