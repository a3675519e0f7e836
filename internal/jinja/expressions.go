package jinja

import "slices"

// tuple parses an expression, or several separated by commas as a tuple. end is
// a word that may follow a trailing comma; empty also allows no expression at
// all.
func (p *parser) tuple(cond, empty bool, end ...string) expr {
	var items []expr
	isTuple := false
	for {
		if len(items) > 0 {
			p.expectOp(",")
		}
		if k := p.cur().kind; k == tokVarEnd || k == tokBlockEnd || p.isOp(")") || len(end) > 0 && p.isName(end[0]) {
			break
		}
		items = append(items, p.expression(cond))
		if !p.isOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if len(items) > 0 {
			return items[0]
		}
		if !empty {
			p.failf("found %s, expected an expression", p.cur().describe())
		}
	}
	return &tupleExpr{items}
}

// expression parses one expression; cond allows "a if b else c" at the top level.
func (p *parser) expression(cond bool) expr {
	p.enter()
	defer p.leave()
	then := p.or()
	for cond && p.skipName("if") {
		n := &condExpr{then: then, test: p.or()}
		if p.skipName("else") {
			n.otherwise = p.expression(true)
		}
		then = n
	}
	return then
}

func (p *parser) or() expr {
	left := p.and()
	for p.skipName("or") {
		left = &logicExpr{op: "or", left: left, right: p.and()}
	}
	return left
}

func (p *parser) and() expr {
	left := p.not()
	for p.skipName("and") {
		left = &logicExpr{op: "and", left: left, right: p.not()}
	}
	return left
}

func (p *parser) not() expr {
	if t := p.cur(); p.skipName("not") {
		p.enter()
		defer p.leave()
		return &unaryExpr{op: "not", operand: p.not(), at: t.at}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	n := &compareExpr{at: p.cur().at, first: p.sum()}
	for {
		op := ""
		switch t := p.cur(); {
		case t.kind == tokOp:
			switch t.text {
			case "==", "!=", "<", "<=", ">", ">=":
				op = t.text
				p.next()
			}
		case p.isName("in"):
			op = "in"
			p.next()
		case p.isName("not") && p.peek().kind == tokName && p.peek().text == "in":
			op = "not in"
			p.next()
			p.next()
		}
		if op == "" {
			break
		}
		n.ops = append(n.ops, op)
		n.rest = append(n.rest, p.sum())
	}
	if len(n.ops) == 0 {
		return n.first
	}
	return n
}

func (p *parser) sum() expr {
	n := &sumExpr{first: p.concat()}
	for p.isOp("+") || p.isOp("-") {
		t := p.next()
		n.ops, n.at = append(n.ops, t.text), append(n.at, t.at)
		n.rest = append(n.rest, p.concat())
	}
	if len(n.ops) == 0 {
		return n.first
	}
	return n
}

func (p *parser) concat() expr {
	items := []expr{p.product()}
	for p.skipOp("~") {
		items = append(items, p.product())
	}
	if len(items) == 1 {
		return items[0]
	}
	return &concatExpr{items}
}

func (p *parser) product() expr {
	left := p.power()
	for p.isOp("*") || p.isOp("/") || p.isOp("//") || p.isOp("%") {
		t := p.next()
		if c, ok := left.(*constExpr); ok && t.text == "%" {
			if _, isText := c.value.(text); isText {
				p.refuse(t.at, "text formatting with '%%'")
			}
		}
		left = &productExpr{op: t.text, left: left, right: p.power(), at: t.at}
	}
	return left
}

// power associates to the left, as in Jinja and unlike in Python.
func (p *parser) power() expr {
	left := p.unary(true)
	for p.isOp("**") {
		t := p.next()
		left = &productExpr{op: "**", left: left, right: p.unary(true), at: t.at}
	}
	return left
}

func (p *parser) unary(filters bool) expr {
	p.enter()
	defer p.leave()
	var n expr
	if t := p.cur(); p.isOp("-") || p.isOp("+") {
		p.next()
		n = &unaryExpr{op: t.text, operand: p.unary(false), at: t.at}
	} else {
		n = p.primary()
	}
	n = p.postfix(n)
	if !filters {
		return n
	}
	for {
		switch {
		case p.isOp("|"):
			n = p.filters(n)
		case p.isName("is"):
			n = p.test(n)
		case p.isOp("("):
			n = p.call(n)
		default:
			return n
		}
	}
}

func (p *parser) primary() expr {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.next()
		switch t.text {
		case "true", "True":
			return &constExpr{true}
		case "false", "False":
			return &constExpr{false}
		case "none", "None":
			return &constExpr{nil}
		}
		p.checkName(t)
		return &nameExpr{t.text, t.at}
	case tokString:
		s := p.next().text
		if p.cur().kind == tokString {
			parts := []byte(s)
			for p.cur().kind == tokString {
				parts = append(parts, p.next().text...)
			}
			s = string(parts)
		}
		return &constExpr{own(s)}
	case tokInt, tokFloat:
		return &constExpr{p.next().num}
	case tokOp:
		switch t.text {
		case "(":
			p.next()
			n := p.tuple(true, true)
			p.expectOp(")")
			return n
		case "[":
			return p.listLiteral()
		case "{":
			return p.dictLiteral()
		}
	}
	p.failf("unexpected %s", t.describe())
	return nil
}

func (p *parser) listLiteral() expr {
	n := &listExpr{}
	p.expectOp("[")
	for !p.isOp("]") {
		if len(n.items) > 0 {
			p.expectOp(",")
			if p.isOp("]") {
				break
			}
		}
		n.items = append(n.items, p.expression(true))
	}
	p.expectOp("]")
	return n
}

func (p *parser) dictLiteral() expr {
	n := &dictExpr{}
	p.expectOp("{")
	for !p.isOp("}") {
		if len(n.keys) > 0 {
			p.expectOp(",")
			if p.isOp("}") {
				break
			}
		}
		n.keys = append(n.keys, p.expression(true))
		p.expectOp(":")
		n.values = append(n.values, p.expression(true))
	}
	p.expectOp("}")
	return n
}

func (p *parser) postfix(n expr) expr {
	for {
		switch t := p.cur(); {
		case p.isOp("."):
			p.next()
			switch a := p.cur(); a.kind {
			case tokName:
				p.next()
				p.checkAttribute(n, a)
				n = &attrExpr{of: n, name: a.text, at: a.at}
			case tokInt:
				p.next()
				n = &itemExpr{of: n, key: &constExpr{a.num}, at: t.at}
			default:
				p.failf("found %s, expected a name or number after '.'", a.describe())
			}
		case p.isOp("["):
			n = p.subscript(n)
		case p.isOp("("):
			n = p.call(n)
		default:
			return n
		}
	}
}

// subscript parses of[key] and of[start:stop:step].
func (p *parser) subscript(of expr) expr {
	at := p.next().at
	if p.skipOp("]") {
		return &itemExpr{of: of, key: &tupleExpr{}, at: at}
	}
	s := &sliceExpr{of: of, at: at}
	if !p.isOp(":") {
		key := p.tuple(true, false)
		if p.skipOp("]") {
			return &itemExpr{of: of, key: key, at: at}
		}
		s.start = key
	}
	p.expectOp(":")
	part := func() expr {
		if p.isOp(":") || p.isOp("]") {
			return nil
		}
		return p.expression(true)
	}
	s.stop = part()
	if p.skipOp(":") {
		s.step = part()
	}
	p.expectOp("]")
	return s
}

func (p *parser) callArgs() callArgs {
	var a callArgs
	p.expectOp("(")
	for first := true; !p.isOp(")"); first = false {
		if !first {
			p.expectOp(",")
			if p.isOp(")") {
				break
			}
		}
		switch {
		case a.more != nil:
			p.failf("found another argument after one with '**'")
		case a.rest == nil && p.skipOp("*"):
			a.rest = p.expression(true)
		case p.skipOp("**"):
			a.more = p.expression(true)
		case p.cur().kind == tokName && p.peek().kind == tokOp && p.peek().text == "=":
			name := p.next().text
			p.next()
			if slices.Contains(a.names, name) {
				p.failf("argument '%s' is given twice", name)
			}
			a.names = append(a.names, name)
			a.named = append(a.named, p.expression(true))
		default:
			if len(a.names) > 0 || a.rest != nil {
				p.failf("positional argument after a named one or one with '*' in a call")
			}
			a.pos = append(a.pos, p.expression(true))
		}
	}
	p.expectOp(")")
	return a
}

func (p *parser) call(callee expr) expr {
	n := &callExpr{callee: callee, at: p.cur().at, args: p.callArgs()}
	switch c := callee.(type) {
	case *attrExpr:
		n.at = c.at
		p.checkMethod(n, c.name)
	case *nameExpr:
		n.at = c.at
		p.checkCall(c.name, n)
	}
	return n
}

// dottedName parses the name of a filter or test.
func (p *parser) dottedName() string {
	name := p.expectName()
	for p.skipOp(".") {
		name += "." + p.expectName()
	}
	return name
}

// filters parses a chain of filters over n.
func (p *parser) filters(n expr) expr {
	for p.skipOp("|") {
		n = p.filter(n)
	}
	return n
}

// filterChain parses a chain of filters over n, from the name of the first on.
func (p *parser) filterChain(n expr) expr { return p.filters(p.filter(n)) }

func (p *parser) filter(n expr) expr {
	f := &filterExpr{of: n, at: p.cur().at}
	f.def = p.known("filter", filters, p.dottedName(), f.at)
	if p.isOp("(") {
		f.args = p.callArgs()
	}
	p.checkFilter(f)
	return f
}

func (p *parser) test(of expr) expr {
	p.next()
	negated := p.skipName("not")
	n := &testExpr{of: of, at: p.cur().at}
	n.def = p.known("test", tests, p.dottedName(), n.at)
	switch t := p.cur(); {
	case p.isOp("("):
		n.args = p.callArgs()
	case t.kind == tokName && (t.text == "else" || t.text == "or" || t.text == "and"):
	case t.kind == tokName && t.text == "is":
		p.failf("tests cannot be chained with 'is'")
	case t.kind == tokName, t.kind == tokString, t.kind == tokInt, t.kind == tokFloat, p.isOp("["), p.isOp("{"):
		n.args.pos = []expr{p.postfix(p.primary())}
	}
	p.checkTest(n)
	if negated {
		return &unaryExpr{op: "not", operand: n, at: n.at}
	}
	return n
}
