package jinja

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

func (t *nameTarget) assign(r *run, s *scope, v any) { r.assign(s, t.name, v) }

func (t *attrTarget) assign(r *run, s *scope, v any) {
	ns, ok := r.lookup(s, t.name).(*namespace)
	if !ok {
		failf("cannot assign attribute '%s' of '%s': not a namespace", t.attr, t.name)
	}
	r.put(ns.attrs, own(t.attr), v)
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
	r.out.put(n.text, false)
	return sigNone
}

func (n *printStmt) exec(r *run, s *scope) signal {
	r.at = n.at
	r.out.add(r.show(r.eval(n.value, s)))
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
	r.at = n.at
	r.alloc(lazyBytes)
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
	loop := &loopContext{over: over, next: r.iter(over), r: r, index0: -1}
	completed := false
	for {
		item, ok := loop.advance()
		if !ok {
			break
		}
		inner := &scope{parent: s, names: make([]binding, 0, 4)}
		inner.names = append(inner.names, binding{"loop", loop})
		r.at = n.at
		n.target.assign(r, inner, item)
		sig := r.exec(n.body, inner)
		if sig == sigBreak {
			break
		}
		// Jinja's else runs unless some iteration reached the end of the body.
		completed = completed || sig == sigNone
	}
	if completed || n.otherwise == nil {
		return sigNone
	}
	return r.exec(n.otherwise, &scope{parent: s})
}

func (n *setStmt) exec(r *run, s *scope) signal {
	v := r.eval(n.value, s)
	r.at = n.at
	n.target.assign(r, s, v)
	return sigNone
}

func (n *setBlockStmt) exec(r *run, s *scope) signal {
	var sig signal
	t := r.capture(func() { sig = r.exec(n.body, &scope{parent: s}) })
	if sig == sigNone {
		r.at = n.at
		n.target.assign(r, s, t)
	}
	return sig
}

func (n *scopeStmt) exec(r *run, s *scope) signal {
	return r.exec(n.body, &scope{parent: s})
}

func (n jumpStmt) exec(*run, *scope) signal { return n.sig }

func (n macroStmt) exec(r *run, s *scope) signal {
	r.alloc(scopeBytes)
	r.assign(s, n.name, &macro{n.macroDef, s})
	return sigNone
}

func (n *callStmt) exec(r *run, s *scope) signal {
	r.alloc(scopeBytes)
	r.at = n.call.at
	r.out.add(r.show(n.call.call(r, s, &macro{n.caller, s})))
	return sigNone
}

func (n *filterStmt) exec(r *run, s *scope) signal {
	v := r.eval(n.value, s)
	sig := r.blockEnd
	r.blockEnd = sigNone
	switch {
	case sig != sigNone:
	case n.target == nil:
		r.out.add(r.show(v))
	default:
		r.at = n.at
		n.target.assign(r, s, v)
	}
	return sig
}

func (e *blockExpr) eval(r *run, s *scope) any {
	return r.capture(func() { r.blockEnd = r.exec(e.body, &scope{parent: s}) })
}

// loopContext is the value of "loop" inside a for.
type loopContext struct {
	r      *run
	over   any
	next   iterator
	index0 int // -1 before the first element

	current, before any
	after           any // the next element, if peeked
	peeked          bool
	ended           bool // peeking found the end
	known           bool // size is known
	size            int
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

// length returns the number of elements of the loop; a lazy sequence is read to its
// end for it.
func (l *loopContext) length() int {
	if l.known {
		return l.size
	}
	if t, ok := l.over.(text); ok {
		l.r.work(len(t.s))
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

// loopAttributes are the attributes of loop that a template may use.
var loopAttributes = []string{"index", "index0", "revindex", "revindex0", "length", "first", "last", "previtem", "nextitem"}

// attribute returns loop.name.
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
	case "first":
		return l.index0 == 0, true
	case "last":
		_, more := l.peek()
		return !more, true
	case "previtem":
		if l.index0 == 0 {
			return &undefined{why: "the loop has no previous item here"}, true
		}
		return l.before, true
	case "nextitem":
		if v, ok := l.peek(); ok {
			return v, true
		}
		return &undefined{why: "the loop has no next item here"}, true
	}
	return nil, false
}
