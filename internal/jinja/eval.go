package jinja

import (
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

func (r *run) eval(e expr, s *scope) any {
	r.step(1)
	r.enter()
	v := e.eval(r, s)
	r.leave()
	return v
}

func (e *constExpr) eval(*run, *scope) any { return e.value }

func (e *nameExpr) eval(r *run, s *scope) any { return r.lookup(s, e.name) }

func (r *run) evalAll(items []expr, s *scope) []any {
	r.allocTimes(len(items), valueBytes)
	out := make([]any, len(items))
	for i, item := range items {
		out[i] = r.eval(item, s)
	}
	return out
}

func (e *listExpr) eval(r *run, s *scope) any { return r.evalAll(e.items, s) }

func (e *tupleExpr) eval(r *run, s *scope) any { return tuple{r.evalAll(e.items, s)} }

func (e *dictExpr) eval(r *run, s *scope) any {
	d := new(dict)
	for i := range e.keys {
		key := r.eval(e.keys[i], s)
		r.put(d, key, r.eval(e.values[i], s))
	}
	return d
}

func (e *unaryExpr) eval(r *run, s *scope) any {
	v := r.eval(e.operand, s)
	r.at = e.at
	if e.op == "not" {
		return !truthy(v)
	}
	defined(v)
	if !isNumber(v) {
		failf("bad operand for unary %s: '%s'", e.op, typeName(v))
	}
	f, isFloat := v.(float64)
	switch {
	case isFloat && e.op == "-":
		return -f
	case isFloat:
		return f
	}
	return arith(e.op, int64(0), v)
}

// eval joins texts that are added to each other all at once, so that a long sum
// copies each of them only once.
func (e *sumExpr) eval(r *run, s *scope) any {
	acc := r.eval(e.first, s)
	var parts []text // of acc, if there are any
	for i, op := range e.ops {
		v := r.eval(e.rest[i], s)
		r.at = e.at[i]
		a, aok := acc.(text)
		b, bok := v.(text)
		if op == "+" && aok && bok {
			if parts == nil {
				parts = append(make([]text, 0, len(e.ops)-i+1), a)
			}
			parts = append(parts, b)
			continue
		}
		if parts != nil {
			acc, parts = r.concat(parts...), nil
		}
		acc = r.binary(op, acc, v)
	}
	if parts != nil {
		return r.concat(parts...)
	}
	return acc
}

func (e *productExpr) eval(r *run, s *scope) any {
	a := r.eval(e.left, s)
	b := r.eval(e.right, s)
	r.at = e.at
	return r.binary(e.op, a, b)
}

// binary returns a op b for op one of + - * / // % **.
func (r *run) binary(op string, a, b any) any {
	defined(a)
	if isNumber(a) && isNumber(b) {
		return arith(op, a, b)
	}
	if _, ok := a.(text); ok && op == "%" {
		unsupportedf("text formatting with '%%'")
	}
	defined(b)
	switch op {
	case "+":
		switch x := a.(type) {
		case text:
			if y, ok := b.(text); ok {
				return r.concat(x, y)
			}
		case []any:
			if y, ok := b.([]any); ok {
				r.step((len(x) + len(y)) / scannedPerStep)
				r.allocTimes(len(x)+len(y), valueBytes)
				return slices.Concat([]any{}, x, y)
			}
		}
	case "*":
		if isNumber(a) {
			a, b = b, a
		}
		if v, ok := r.times(a, b); ok {
			return v
		}
	}
	if _, ok := a.(tuple); ok {
		unsupportedf("calculation with tuples")
	}
	failf("unsupported operands for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

// times returns seq * count.
func (r *run) times(seq, count any) (any, bool) {
	n64, ok := toInt64(count)
	if !ok {
		return nil, false
	}
	n := int(min(max(n64, 0), math.MaxInt))
	switch v := seq.(type) {
	case text:
		return r.repeat(v, n), true
	case []any:
		if len(v) == 0 || n == 0 {
			return []any{}, true
		}
		r.allocTimes(n, len(v)*valueBytes)
		return slices.Repeat(v, n), true
	}
	return nil, false
}

func (e *logicExpr) eval(r *run, s *scope) any {
	v := r.eval(e.left, s)
	if truthy(v) == (e.op == "and") {
		return r.eval(e.right, s)
	}
	return v
}

func (e *concatExpr) eval(r *run, s *scope) any {
	parts := make([]text, len(e.items))
	for i, item := range e.items {
		parts[i] = r.show(r.eval(item, s))
		parts[i].safe = false
	}
	return r.concat(parts...)
}

func (e *compareExpr) eval(r *run, s *scope) any {
	left := r.eval(e.first, s)
	for i, op := range e.ops {
		right := r.eval(e.rest[i], s)
		r.at = e.at
		if !r.compareOp(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (r *run) compareOp(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	c := r.compare(a, b, op)
	if c == unordered {
		return false
	}
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

func (e *condExpr) eval(r *run, s *scope) any {
	if truthy(r.eval(e.test, s)) {
		return r.eval(e.then, s)
	}
	if e.otherwise == nil {
		return &undefined{why: "the inline if was false and has no else"}
	}
	return r.eval(e.otherwise, s)
}

// eval returns of.name: attributes and methods first, then keys.
func (e *attrExpr) eval(r *run, s *scope) any {
	of := r.eval(e.of, s)
	r.at = e.at
	defined(of)
	if v, ok := r.attribute(of, e.name); ok {
		return v
	}
	if d, ok := of.(*dict); ok {
		if v, ok := d.get(textKey(e.name)); ok {
			return v
		}
	}
	return noAttribute(of, e.name)
}

func noAttribute(of any, name string) any {
	return &undefined{why: "'%s' has no attribute '%.100s'", first: objectName(of), second: name}
}

func (e *itemExpr) eval(r *run, s *scope) any {
	of := r.eval(e.of, s)
	key := r.eval(e.key, s)
	r.at = e.at
	return r.index(of, key)
}

// index returns of[key]: elements and keys first, then attributes.
func (r *run) index(of, key any) any {
	defined(of)
	if v, ok := r.element(of, key); ok {
		return v
	}
	if name, ok := key.(text); ok {
		if v, ok := r.attribute(of, name.s); ok {
			return v
		}
		return noAttribute(of, name.s)
	}
	shown := "of type " + typeName(key)
	if i, ok := key.(int64); ok {
		shown = strconv.FormatInt(i, 10)
	}
	return &undefined{why: "%s has no element %s", first: objectName(of), second: shown}
}

// element returns of[key] without looking at attributes.
func (r *run) element(of, key any) (any, bool) {
	if d, ok := of.(*dict); ok {
		h, ok := r.tryHash(key)
		if !ok {
			return nil, false
		}
		return d.get(h)
	}
	i64, ok := toInt64(key)
	if !ok {
		return nil, false
	}
	at := func(n int) (int, bool) {
		if i64 < 0 {
			i64 += int64(n)
		}
		return int(i64), 0 <= i64 && i64 < int64(n)
	}
	switch v := of.(type) {
	case text:
		r.work(len(v.s))
		if i, ok := at(utf8.RuneCountInString(v.s)); ok {
			from := runeOffset(v.s, i)
			_, n := utf8.DecodeRuneInString(v.s[from:])
			return r.cut(v, from, from+n), true
		}
	case []any:
		if i, ok := at(len(v)); ok {
			return v[i], true
		}
	case tuple:
		if i, ok := at(len(v.elems)); ok {
			return v.elems[i], true
		}
	case *rangeValue:
		if i, ok := at(int(v.n)); ok {
			return v.at(int64(i)), true
		}
	}
	return nil, false
}

func (e *sliceExpr) eval(r *run, s *scope) any {
	of := r.eval(e.of, s)
	part := func(p expr) any {
		if p == nil {
			return nil
		}
		return r.eval(p, s)
	}
	start, stop, step := part(e.start), part(e.stop), part(e.step)
	r.at = e.at
	return r.slice(of, start, stop, step)
}
