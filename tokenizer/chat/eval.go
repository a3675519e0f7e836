package chat

import (
	"math"
	"strings"
	"unicode/utf8"
)

func (r *run) eval(e expr, s *scope) any {
	r.step(1)
	r.enter()
	v := e.eval(r, s)
	r.leave()
	return v
}

// exec runs statements up to the first break or continue.
func (r *run) exec(body []stmt, s *scope) signal {
	r.enter()
	defer r.leave()
	for _, st := range body {
		r.step(1)
		if sig := st.exec(r, s); sig != sigNone {
			return sig
		}
	}
	return sigNone
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

func (e *tupleExpr) eval(r *run, s *scope) any { return tuple{elems: r.evalAll(e.items, s)} }

func (e *dictExpr) eval(r *run, s *scope) any {
	d := new(Object)
	for i := range e.keys {
		key := r.eval(e.keys[i], s)
		value := r.eval(e.values[i], s)
		r.put(d, key, value)
	}
	return d
}

// put sets a dict's key while the dict is being made.
func (r *run) put(d *Object, key, value any) {
	const entryBytes = 128 // key, value, and their share of the index
	h := r.hash(key)
	if m, ok := key.(markup); ok {
		key = string(m)
	}
	r.alloc(entryBytes)
	d.put(h, key, value)
}

func (e *unaryExpr) eval(r *run, s *scope) any {
	v := r.eval(e.operand, s)
	r.line = e.line
	if e.op == "not" {
		return !truthy(v)
	}
	if u, ok := v.(*undefined); ok {
		u.fail()
	}
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

func (e *binaryExpr) eval(r *run, s *scope) any {
	a := r.eval(e.left, s)
	b := r.eval(e.right, s)
	r.line = e.line
	return r.binary(e.op, a, b)
}

// binary is a op b for one of + - * / // % **.
func (r *run) binary(op string, a, b any) any {
	if u, ok := a.(*undefined); ok {
		u.fail()
	}
	if isNumber(a) && isNumber(b) {
		return arith(op, a, b)
	}
	if s, ok := asString(a); ok && op == "%" {
		return r.text(r.percent(s, b))
	}
	if u, ok := b.(*undefined); ok {
		u.fail()
	}
	switch op {
	case "+":
		if v, ok := r.join2(a, b); ok {
			return v
		}
	case "*":
		if isNumber(a) {
			a, b = b, a
		}
		if v, ok := r.repeat(a, b); ok {
			return v
		}
	}
	failf("unsupported operands for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

// join2 is a + b for texts, lists and tuples.
func (r *run) join2(a, b any) (any, bool) {
	if s, ok := asString(a); ok {
		t, ok := asString(b)
		if !ok {
			return nil, false
		}
		_, am := a.(markup)
		_, bm := b.(markup)
		if am || bm {
			if !am {
				s = r.escape(s)
			}
			if !bm {
				t = r.escape(t)
			}
			r.alloc(len(s) + len(t))
			return markup(s + t), true
		}
		r.alloc(len(s) + len(t))
		return s + t, true
	}
	var x, y []any
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		if !ok {
			return nil, false
		}
		x, y = a, b
	case tuple:
		b, ok := b.(tuple)
		if !ok {
			return nil, false
		}
		x, y = a.elems, b.elems
	default:
		return nil, false
	}
	r.allocTimes(len(x)+len(y), valueBytes)
	out := append(append(make([]any, 0, len(x)+len(y)), x...), y...)
	if _, ok := a.(tuple); ok {
		return tuple{elems: out}, true
	}
	return out, true
}

// repeat is seq * times.
func (r *run) repeat(seq, times any) (any, bool) {
	if _, isFloat := times.(float64); isFloat || !isNumber(times) {
		return nil, false
	}
	n64, ok := toInt64(times)
	if !ok {
		if toBig(times).Sign() > 0 {
			limitf("repetition %s times", formatInt(times))
		}
		n64 = 0
	}
	n := int(min(max(n64, 0), math.MaxInt))
	list := func(elems []any) []any {
		if len(elems) == 0 {
			return elems
		}
		r.allocTimes(n, len(elems)*valueBytes)
		out := make([]any, 0, n*len(elems))
		for range n {
			out = append(out, elems...)
		}
		return out
	}
	switch v := seq.(type) {
	case string:
		return r.repeatText(v, n), true
	case markup:
		return markup(r.repeatText(string(v), n)), true
	case []any:
		return list(v), true
	case tuple:
		return tuple{elems: list(v.elems)}, true
	}
	return nil, false
}

func (r *run) repeatText(s string, n int) string {
	if s == "" || n <= 0 {
		return ""
	}
	r.allocTimes(n, len(s))
	return strings.Repeat(s, n)
}

func (e *logicExpr) eval(r *run, s *scope) any {
	v := r.eval(e.left, s)
	if truthy(v) == (e.op == "and") {
		return r.eval(e.right, s)
	}
	return v
}

func (e *concatExpr) eval(r *run, s *scope) any {
	vals := make([]any, len(e.items))
	for i, item := range e.items {
		vals[i] = r.eval(item, s)
	}
	var b strings.Builder
	for _, v := range vals {
		t := r.str(v)
		r.alloc(len(t))
		b.WriteString(t)
	}
	return b.String()
}

func (e *compareExpr) eval(r *run, s *scope) any {
	left := r.eval(e.first, s)
	for i, op := range e.ops {
		right := r.eval(e.rest[i], s)
		r.line = e.line
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

func (e *attrExpr) eval(r *run, s *scope) any {
	of := r.eval(e.of, s)
	r.line = e.line
	return r.dot(of, e.name)
}

func (e *itemExpr) eval(r *run, s *scope) any {
	of := r.eval(e.of, s)
	if sl, ok := e.key.(*sliceExpr); ok {
		part := func(p expr) any {
			if p == nil {
				return nil
			}
			return r.eval(p, s)
		}
		start, stop, step := part(sl.start), part(sl.stop), part(sl.step)
		r.line = e.line
		return r.slice(of, start, stop, step)
	}
	key := r.eval(e.key, s)
	r.line = e.line
	return r.index(of, key)
}

// eval is reached for a slice inside a tuple key, which nothing can be indexed
// with.
func (e *sliceExpr) eval(*run, *scope) any {
	failf("a slice cannot be part of a tuple key")
	return nil
}

// dot is of.name: attributes and methods first, then keys.
func (r *run) dot(of any, name string) any {
	if u, ok := of.(*undefined); ok {
		u.fail()
	}
	if v, ok := r.attribute(of, name); ok {
		return v
	}
	if d, ok := of.(*Object); ok {
		if v, ok := d.Get(name); ok {
			return v
		}
	}
	return &undefined{why: "'" + objectName(of) + "' has no attribute '" + name + "'"}
}

// index is of[key]: elements and keys first, then attributes.
func (r *run) index(of, key any) any {
	if u, ok := of.(*undefined); ok {
		u.fail()
	}
	if v, ok := r.element(of, key); ok {
		return v
	}
	name, isName := asString(key)
	if isName {
		if v, ok := r.attribute(of, name); ok {
			return v
		}
		return &undefined{why: "'" + objectName(of) + "' has no attribute '" + name + "'"}
	}
	return &undefined{why: objectName(of) + " has no element " + r.repr(key)}
}

// element is of[key] without attributes.
func (r *run) element(of, key any) (any, bool) {
	if d, ok := of.(*Object); ok {
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
	if s, ok := asString(of); ok {
		r.work(len(s))
		i, ok := at(utf8.RuneCountInString(s))
		if !ok {
			return nil, false
		}
		from := runeOffset(s, i)
		_, n := utf8.DecodeRuneInString(s[from:])
		return likeText(of, s[from:from+n]), true
	}
	switch v := of.(type) {
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

// likeText gives s the kind of text that of has.
func likeText(of any, s string) any {
	if _, ok := of.(markup); ok {
		return markup(s)
	}
	return s
}

// runeOffset is the byte offset of the n-th code point of s.
func runeOffset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

func (r *run) slice(of, start, stop, step any) any {
	if u, ok := of.(*undefined); ok {
		u.fail()
	}
	if s, ok := asString(of); ok {
		return likeText(of, r.sliceText(s, start, stop, step))
	}
	switch v := of.(type) {
	case []any:
		out := takeSlice(v, start, stop, step)
		r.allocTimes(len(out), valueBytes)
		return out
	case tuple:
		out := takeSlice(v.elems, start, stop, step)
		r.allocTimes(len(out), valueBytes)
		return tuple{elems: out}
	case *rangeValue:
		first, stride, count := sliceBounds(int(v.n), start, stop, step)
		part := &rangeValue{start: v.at(int64(first)), step: v.step * int64(stride), n: int64(count)}
		part.stop = part.at(part.n)
		return part
	}
	failf("'%s' object cannot be sliced", typeName(of))
	return nil
}

func (r *run) sliceText(s string, start, stop, step any) string {
	r.work(len(s))
	first, stride, count := sliceBounds(utf8.RuneCountInString(s), start, stop, step)
	if count == 0 {
		return ""
	}
	if stride == 1 {
		from := runeOffset(s, first)
		return s[from : from+runeOffset(s[from:], count)]
	}
	r.alloc(4 * len(s))
	runes := []rune(s)
	out := make([]rune, count)
	for i := range out {
		out[i] = runes[first+i*stride]
	}
	return string(out)
}

// args evaluates the arguments of a call.
func (r *run) args(a *callArgs, s *scope) (pos []any, named *Object) {
	pos = r.evalAll(a.pos, s)
	for i, name := range a.names {
		if named == nil {
			named = new(Object)
		}
		named.Set(name, r.eval(a.named[i], s))
	}
	if a.star != nil {
		pos = append(pos, r.list(r.eval(a.star, s))...)
	}
	if a.starstar != nil {
		d, ok := r.eval(a.starstar, s).(*Object)
		if !ok {
			failf("the argument after ** must be an object")
		}
		if named == nil {
			named = new(Object)
		}
		for i := range d.Len() {
			name, ok := d.keys[i].(string)
			if !ok {
				failf("argument names must be strings, found '%s'", typeName(d.keys[i]))
			}
			if _, twice := named.Get(name); twice {
				failf("argument '%s' is given twice", name)
			}
			named.Set(name, d.vals[i])
		}
	}
	return pos, named
}

func (e *callExpr) eval(r *run, s *scope) any {
	callee := r.eval(e.callee, s)
	pos, named := r.args(&e.args, s)
	r.line = e.line
	return r.call(callee, pos, named)
}

func (r *run) call(callee any, pos []any, named *Object) any {
	switch c := callee.(type) {
	case *function:
		return r.invoke(c.def, c.self, c.bound, pos, named)
	case *macro:
		return r.callMacro(c, pos, named)
	case *loopContext:
		if len(pos) != 1 || named.Len() > 0 {
			failf("loop() takes exactly one argument")
		}
		return c.call(r, pos[0])
	case *joiner:
		if !c.used {
			c.used = true
			return ""
		}
		return c.sep
	case *undefined:
		c.fail()
	}
	failf("'%s' object is not callable", typeName(callee))
	return nil
}

func (e *filterExpr) eval(r *run, s *scope) any {
	return r.filterValue(e, r.eval(e.of, s), s)
}

// filterValue applies a filter to a value evaluated before.
func (r *run) filterValue(e *filterExpr, v any, s *scope) any {
	pos, named := r.args(&e.args, s)
	r.line = e.line
	return r.callFilter(e.name, v, pos, named)
}

// filterText applies a chain of filters, whose innermost has no operand, to text.
func (r *run) filterText(e expr, text string, s *scope) any {
	f := e.(*filterExpr)
	if f.of == nil {
		return r.filterValue(f, text, s)
	}
	r.enter()
	defer r.leave()
	return r.filterValue(f, r.filterText(f.of, text, s), s)
}

func (r *run) callFilter(name string, v any, pos []any, named *Object) any {
	f, ok := filters[name]
	if !ok {
		missingName{what: "filter", name: name}.fail()
	}
	return r.invoke(f, v, true, pos, named)
}

func (e *testExpr) eval(r *run, s *scope) any {
	v := r.eval(e.of, s)
	pos, named := r.args(&e.args, s)
	r.line = e.line
	return r.callTest(e.name, v, pos, named)
}

func (r *run) callTest(name string, v any, pos []any, named *Object) bool {
	t, ok := tests[name]
	if !ok {
		missingName{what: "test", name: name}.fail()
	}
	return r.invoke(t, v, true, pos, named).(bool)
}

func (t *nameTarget) assign(r *run, s *scope, v any) {
	r.alloc(valueBytes)
	s.set(t.name, v)
}

func (t *attrTarget) assign(r *run, s *scope, v any) {
	ns, ok := r.lookup(s, t.name).(*namespace)
	if !ok {
		failf("cannot assign attribute '%s' of '%s': not a namespace", t.attr, t.name)
	}
	ns.attrs.Set(t.attr, v)
}

func (t *tupleTarget) assign(r *run, s *scope, v any) {
	it := r.iter(v)
	parts := make([]any, 0, len(t.items))
	for len(parts) < len(t.items) {
		e, ok := it()
		if !ok {
			failf("not enough values to unpack: found %d, expected %d", len(parts), len(t.items))
		}
		parts = append(parts, e)
	}
	if _, more := it(); more {
		failf("too many values to unpack: expected %d", len(t.items))
	}
	for i, item := range t.items {
		item.assign(r, s, parts[i])
	}
}

func (n *textStmt) exec(r *run, _ *scope) signal {
	r.emit(n.text)
	return sigNone
}

func (n *printStmt) exec(r *run, s *scope) signal {
	r.line = n.line
	r.emit(r.str(r.eval(n.value, s)))
	return sigNone
}

func (n *ifStmt) exec(r *run, s *scope) signal {
	for i, test := range n.tests {
		if truthy(r.eval(test, s)) {
			return r.exec(n.bodies[i], s)
		}
	}
	return r.exec(n.otherwise, s)
}

func (n *forStmt) exec(r *run, s *scope) signal {
	over := r.eval(n.over, s)
	r.line = n.line
	if !n.recursive {
		return n.loop(r, s, over, nil, 0)
	}
	var recurse func(over any, depth int) string
	recurse = func(over any, depth int) string {
		return r.capture(func() { n.loop(r, s, over, recurse, depth) })
	}
	r.emit(recurse(over, 0))
	return sigNone
}

// loop runs the loop over a value; recurse is nil unless the loop is recursive.
func (n *forStmt) loop(r *run, s *scope, over any, recurse func(any, int) string, depth int) signal {
	if n.filter != nil {
		all := r.iter(over)
		over = &generator{func() (any, bool) {
			for e, ok := all(); ok; e, ok = all() {
				inner := &scope{parent: s}
				n.target.assign(r, inner, e)
				if truthy(r.eval(n.filter, inner)) {
					return e, true
				}
			}
			return nil, false
		}}
	}
	ctx := &loopContext{over: over, next: r.iter(over), r: r, recurse: recurse, depth: depth, index0: -1}
	completed := false
	for {
		item, ok := ctx.advance()
		if !ok {
			break
		}
		inner := &scope{parent: s}
		inner.set("loop", ctx)
		r.line = n.line
		n.target.assign(r, inner, item)
		sig := r.exec(n.body, inner)
		if sig == sigBreak {
			break
		}
		// Jinja's else runs unless one body came to its end.
		completed = completed || sig == sigNone
	}
	if completed || n.otherwise == nil {
		return sigNone
	}
	return r.exec(n.otherwise, &scope{parent: s})
}

func (n *setStmt) exec(r *run, s *scope) signal {
	v := r.eval(n.value, s)
	r.line = n.line
	n.target.assign(r, s, v)
	return sigNone
}

func (n *setBlockStmt) exec(r *run, s *scope) signal {
	inner := &scope{parent: s}
	var sig signal
	var v any = r.capture(func() { sig = r.exec(n.body, inner) })
	if sig != sigNone {
		return sig
	}
	if n.filter != nil {
		v = r.filterText(n.filter, v.(string), inner)
	}
	r.line = n.line
	n.target.assign(r, s, v)
	return sigNone
}

func (n *filterStmt) exec(r *run, s *scope) signal {
	inner := &scope{parent: s}
	var sig signal
	text := r.capture(func() { sig = r.exec(n.body, inner) })
	if sig == sigNone {
		r.emit(r.str(r.filterText(n.filter, text, inner)))
	}
	return sig
}

func (n *withStmt) exec(r *run, s *scope) signal {
	inner := &scope{parent: s}
	for i, t := range n.targets {
		v := r.eval(n.values[i], s)
		r.line = n.line
		t.assign(r, inner, v)
	}
	return r.exec(n.body, inner)
}

func (n *blockStmt) exec(r *run, s *scope) signal {
	// A block sees the template's own names; only a scoped one those around it.
	if !n.scoped {
		s = r.root
	}
	return r.exec(n.body, &scope{parent: s})
}

func (n *scopeStmt) exec(r *run, s *scope) signal {
	return r.exec(n.body, &scope{parent: s})
}

func (n jumpStmt) exec(*run, *scope) signal { return n.sig }

// macro is a macro with the scope it was defined in.
type macro struct {
	*macroDef
	scope *scope
}

func (n macroStmt) exec(r *run, s *scope) signal {
	r.alloc(valueBytes)
	s.set(n.name, &macro{n.macroDef, s})
	return sigNone
}

func (n *callStmt) exec(r *run, s *scope) signal {
	callee := r.eval(n.call.callee, s)
	pos, named := r.args(&n.call.args, s)
	if named == nil {
		named = new(Object)
	}
	if _, twice := named.Get("caller"); twice {
		failf("argument 'caller' is given twice")
	}
	named.Set("caller", &macro{n.caller, s})
	r.line = n.call.line
	r.emit(r.str(r.call(callee, pos, named)))
	return sigNone
}

// callMacro binds arguments as Jinja does and returns what the body renders.
func (r *run) callMacro(m *macro, pos []any, named *Object) any {
	inner := &scope{parent: m.scope}
	used := make(map[string]bool)
	take := func(name string) (any, bool) {
		v, ok := named.Get(name)
		used[name] = true
		return v, ok
	}
	bound := min(len(pos), len(m.params))
	hasCaller := false
	for i, name := range m.params {
		hasCaller = hasCaller || name == "caller"
		if i < bound {
			inner.set(name, pos[i])
			continue
		}
		if v, ok := take(name); ok {
			inner.set(name, v)
			continue
		}
		if d := i - (len(m.params) - len(m.defaults)); d >= 0 {
			inner.set(name, r.eval(m.defaults[d], inner))
			continue
		}
		inner.set(name, &undefined{why: "parameter '" + name + "' was not provided"})
	}
	if m.usesCaller && !hasCaller {
		caller, ok := take("caller")
		if !ok || caller == nil {
			caller = &undefined{why: "no caller defined"}
		}
		inner.set("caller", caller)
	}
	left := new(Object)
	for name, v := range named.All() {
		if !used[name] {
			left.Set(name, v)
		}
	}
	if m.usesKeywords {
		inner.set("kwargs", left)
	} else if left.Len() > 0 {
		failf("macro '%s' takes no argument named '%v'", m.name, left.keys[0])
	}
	if m.usesArgs {
		inner.set("varargs", tuple{elems: pos[bound:]})
	} else if len(pos) > len(m.params) {
		failf("macro '%s' takes at most %d arguments, found %d", m.name, len(m.params), len(pos))
	}
	return r.capture(func() { r.exec(m.body, inner) })
}

// loopContext is the value of "loop" inside a for.
type loopContext struct {
	r       *run
	over    any
	next    iterator
	recurse func(over any, depth int) string
	depth   int // 0 for the outermost
	index0  int // -1 before the first element

	current, before any
	after           any // looked at ahead if peeked
	peeked          bool
	ended           bool // what was peeked is the end
	known           bool // size is known
	size            int
	changedTo       any
}

// advance moves to the next element.
func (l *loopContext) advance() (any, bool) {
	item, ok := l.after, !l.ended
	if !l.peeked {
		item, ok = l.next()
	}
	l.peeked, l.ended, l.after = false, false, nil
	if !ok {
		return nil, false
	}
	l.index0++
	l.before, l.current = l.current, item
	return item, true
}

func (l *loopContext) peek() (any, bool) {
	if !l.peeked {
		var ok bool
		l.after, ok = l.next()
		l.peeked, l.ended = true, !ok
	}
	return l.after, !l.ended
}

// length of what is looped over; a lazy sequence is read to its end for it.
func (l *loopContext) length() int {
	if l.known {
		return l.size
	}
	n, ok := lengthOf(l.over)
	if !ok {
		var rest []any
		if !l.ended {
			rest = l.r.list(&generator{l.next})
			l.next = sliceIter(rest)
		}
		n = len(rest) + l.index0 + 1
		if l.peeked && !l.ended {
			n++
		}
	}
	l.known, l.size = true, n
	return n
}

func (l *loopContext) call(r *run, over any) any {
	if l.recurse == nil {
		failf("only a loop marked 'recursive' can be called")
	}
	r.enter()
	defer r.leave()
	return l.recurse(over, l.depth+1)
}

// attribute is loop.name.
func (l *loopContext) attribute(name string) (any, bool) {
	num := func(n int) (any, bool) { return int64(n), true }
	switch name {
	case "index":
		return num(l.index0 + 1)
	case "index0":
		return num(l.index0)
	case "revindex":
		return num(l.length() - l.index0)
	case "revindex0":
		return num(l.length() - l.index0 - 1)
	case "length":
		return num(l.length())
	case "depth":
		return num(l.depth + 1)
	case "depth0":
		return num(l.depth)
	case "first":
		return l.index0 == 0, true
	case "last":
		_, more := l.peek()
		return !more, true
	case "previtem":
		if l.index0 == 0 {
			return &undefined{why: "there is no previous item"}, true
		}
		return l.before, true
	case "nextitem":
		if v, ok := l.peek(); ok {
			return v, true
		}
		return &undefined{why: "there is no next item"}, true
	case "cycle", "changed":
		return &function{def: loopMethods[name], self: l, bound: true}, true
	}
	return nil, false
}
