package chat

import (
	"slices"
)

// maxNesting bounds nested expressions and statements in a template's source.
const maxNesting = 400

type parser struct {
	toks  []token
	pos   int
	line  *int // of the token last consumed or looked at in an error
	depth int

	// soft is true where Jinja checks filter and test names only when they are
	// reached: directly in an if or a conditional expression. missing collects
	// the unknown names elsewhere.
	soft    bool
	missing []missingName
	// loops counts the enclosing for loops, inLoop those break may leave.
	loops  int
	inLoop bool
	macros []*macroDef // enclosing macro and call bodies
	blocks map[string]bool
}

func (p *parser) cur() token { return p.toks[p.pos] }

func (p *parser) peek() token { return p.toks[min(p.pos+1, len(p.toks)-1)] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	*p.line = t.line
	if p.pos < len(p.toks)-1 {
		p.pos++
	}
	return t
}

func (p *parser) failf(format string, args ...any) {
	*p.line = p.cur().line
	failf(format, args...)
}

func (p *parser) isOp(op string) bool {
	t := p.cur()
	return t.kind == tokOp && t.text == op
}

func (p *parser) isName(name string) bool {
	t := p.cur()
	return t.kind == tokName && t.text == name
}

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) {
	if !p.skipOp(op) {
		p.failf("found %s, expected '%s'", p.cur().describe(), op)
	}
}

func (p *parser) expectName() string {
	if p.cur().kind != tokName {
		p.failf("found %s, expected a name", p.cur().describe())
	}
	return p.next().text
}

func (p *parser) expectWord(word string) {
	if !p.skipName(word) {
		p.failf("found %s, expected '%s'", p.cur().describe(), word)
	}
}

func (p *parser) expect(kind tokenKind) {
	if p.cur().kind != kind {
		p.failf("found %s, expected %s", p.cur().describe(), token{kind: kind}.describe())
	}
	p.next()
}

func (p *parser) enter() {
	p.depth++
	if p.depth > maxNesting {
		*p.line = p.cur().line
		limitf("source nested deeper than %d", maxNesting)
	}
}

func (p *parser) leave() { p.depth-- }

// withSoft parses with soft set as given.
func (p *parser) withSoft(soft bool, parse func()) {
	outer := p.soft
	p.soft = soft
	parse()
	p.soft = outer
}

// function parses a body that Jinja compiles to a function of its own: break
// does not leave it.
func (p *parser) function(parse func()) {
	inLoop := p.inLoop
	p.inLoop = false
	p.withSoft(false, parse)
	p.inLoop = inLoop
}

// body parses statements up to a tag named by one of ends, whose name is
// consumed and returned; the rest of the tag is the caller's.
func (p *parser) body(ends ...string) (stmts []stmt, end string) {
	p.skipOp(":")
	p.expect(tokBlockEnd)
	stmts = p.statements(ends)
	if p.cur().kind == tokEOF {
		p.failf("found end of template, expected tag '%s'", ends[len(ends)-1])
	}
	return stmts, p.next().text
}

// statements parses until the end of the template or, with ends, a tag of that
// name, whose name is then the current token.
func (p *parser) statements(ends []string) []stmt {
	p.enter()
	defer p.leave()
	var out []stmt
	for {
		switch t := p.cur(); t.kind {
		case tokEOF:
			return out
		case tokData:
			out = append(out, &textStmt{text: p.next().text})
		case tokVarBegin:
			p.next()
			value := p.tuple(true, false)
			p.expect(tokVarEnd)
			out = append(out, &printStmt{value: value, line: t.line})
		default: // tokBlockBegin: nothing else follows a finished tag
			p.next()
			if p.cur().kind == tokName && slices.Contains(ends, p.cur().text) {
				return out
			}
			out = append(out, p.statement()...)
			p.expect(tokBlockEnd)
		}
	}
}

func (p *parser) statement() []stmt {
	p.enter()
	defer p.leave()
	t := p.cur()
	if t.kind != tokName {
		p.failf("found %s, expected a tag name", t.describe())
	}
	p.next()
	switch t.text {
	case "if":
		return []stmt{p.ifStatement()}
	case "for":
		return []stmt{p.forStatement(t.line)}
	case "set":
		return []stmt{p.setStatement(t.line)}
	case "macro":
		m := &macroDef{name: p.expectName(), line: t.line}
		p.noReserved(m.name)
		p.signature(m)
		p.macroBody(m, "endmacro")
		return []stmt{macroStmt{m}}
	case "call":
		return []stmt{p.callBlock(t.line)}
	case "filter":
		f := &filterStmt{line: t.line, filter: p.filters(nil, true)}
		p.withSoft(false, func() { f.body, _ = p.body("endfilter") })
		return []stmt{f}
	case "with":
		return []stmt{p.withStatement(t.line)}
	case "block":
		return []stmt{p.blockStatement()}
	case "print":
		var out []stmt
		for p.cur().kind != tokBlockEnd {
			if len(out) > 0 {
				p.expectOp(",")
			}
			out = append(out, &printStmt{value: p.expression(true), line: t.line})
		}
		return out
	case "generation":
		g := &scopeStmt{}
		p.function(func() { g.body, _ = p.body("endgeneration") })
		return []stmt{g}
	case "break", "continue":
		if !p.inLoop {
			failf("'%s' outside of a loop", t.text)
		}
		if t.text == "break" {
			return []stmt{jumpStmt{sigBreak}}
		}
		return []stmt{jumpStmt{sigContinue}}
	case "autoescape":
		return p.autoescape()
	case "extends", "include", "import", "from", "trans", "do", "debug":
		unsupportedf("tag '%s'", t.text)
	}
	failf("unknown tag '%s'", t.text)
	return nil
}

func (p *parser) ifStatement() stmt {
	n := &ifStmt{}
	p.withSoft(true, func() {
		for {
			n.tests = append(n.tests, p.tuple(false, false))
			body, end := p.body("elif", "else", "endif")
			n.bodies = append(n.bodies, body)
			switch end {
			case "elif":
				continue
			case "else":
				n.otherwise, _ = p.body("endif")
			}
			return
		}
	})
	return n
}

func (p *parser) forStatement(line int) stmt {
	n := &forStmt{line: line}
	p.loops++
	n.target = p.targets("in", false)
	p.expectWord("in")
	n.over = p.tuple(false, false, "recursive")
	p.withSoft(false, func() {
		if p.skipName("if") {
			n.filter = p.expression(true)
		}
		n.recursive = p.skipName("recursive")
		inLoop := p.inLoop
		p.inLoop = true
		var end string
		n.body, end = p.body("endfor", "else")
		// A recursive loop is a function: break in its else leaves nothing.
		p.inLoop = inLoop && !n.recursive
		if end == "else" {
			n.otherwise, _ = p.body("endfor")
		}
		p.inLoop = inLoop
	})
	p.loops--
	return n
}

func (p *parser) setStatement(line int) stmt {
	t := p.targets("", true)
	if p.skipOp("=") {
		return &setStmt{target: t, value: p.tuple(true, false), line: line}
	}
	n := &setBlockStmt{target: t, line: line}
	if p.isOp("|") {
		n.filter = p.filters(nil, false)
	}
	p.withSoft(false, func() { n.body, _ = p.body("endset") })
	return n
}

// signature parses the parameters of a macro or call block.
func (p *parser) signature(m *macroDef) {
	p.expectOp("(")
	for !p.isOp(")") {
		if len(m.params) > 0 {
			p.expectOp(",")
		}
		name := p.expectName()
		p.noReserved(name)
		if slices.Contains(m.params, name) {
			p.failf("parameter '%s' is given twice", name)
		}
		m.params = append(m.params, name)
		if p.skipOp("=") {
			p.function(func() { m.defaults = append(m.defaults, p.expression(true)) })
		} else if len(m.defaults) > 0 {
			p.failf("parameter '%s' without a default follows one with a default", name)
		}
	}
	p.expectOp(")")
}

func (p *parser) macroBody(m *macroDef, end string) {
	p.macros = append(p.macros, m)
	p.function(func() { m.body, _ = p.body(end) })
	p.macros = p.macros[:len(p.macros)-1]
	if i := slices.Index(m.params, "caller"); i >= 0 && m.usesCaller {
		if i < len(m.params)-len(m.defaults) {
			failf("macro '%s': parameter 'caller' needs a default", m.name)
		}
	}
	m.usesArgs = m.usesArgs && !slices.Contains(m.params, "varargs")
	m.usesKeywords = m.usesKeywords && !slices.Contains(m.params, "kwargs")
}

func (p *parser) callBlock(line int) stmt {
	m := &macroDef{line: line}
	if p.isOp("(") {
		p.signature(m)
	}
	call, ok := p.expression(true).(*callExpr)
	if !ok {
		p.failf("call block: expected a call")
	}
	p.macroBody(m, "endcall")
	return &callStmt{call: call, caller: m}
}

func (p *parser) withStatement(line int) stmt {
	n := &withStmt{line: line}
	for p.cur().kind != tokBlockEnd {
		if len(n.targets) > 0 {
			p.expectOp(",")
		}
		n.targets = append(n.targets, p.targets("", false))
		p.expectOp("=")
		n.values = append(n.values, p.expression(true))
	}
	p.withSoft(false, func() { n.body, _ = p.body("endwith") })
	return n
}

func (p *parser) blockStatement() stmt {
	name := p.expectName()
	if p.blocks[name] {
		p.failf("block '%s' is defined twice", name)
	}
	if p.blocks == nil {
		p.blocks = make(map[string]bool)
	}
	p.blocks[name] = true
	n := &blockStmt{scoped: p.skipName("scoped")}
	if p.isName("required") {
		unsupportedf("required block '%s'", name)
	}
	p.function(func() { n.body, _ = p.body("endblock") })
	p.skipName(name)
	return n
}

// autoescape accepts the block where it switches escaping off, which it is.
func (p *parser) autoescape() []stmt {
	c, ok := p.expression(true).(*constExpr)
	if !ok || truthy(c.value) {
		unsupportedf("tag 'autoescape' with another value than false")
	}
	n := &scopeStmt{}
	p.withSoft(false, func() { n.body, _ = p.body("endautoescape") })
	return []stmt{n}
}

func (p *parser) noReserved(name string) {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		p.failf("cannot assign to '%s'", name)
	}
}

// targets parses what is assigned to: names, tuples of them and, with
// attributes, namespace attributes. end is the word that follows, if one does.
func (p *parser) targets(end string, attributes bool) target {
	var items []target
	isTuple := false
	for {
		if len(items) > 0 {
			p.expectOp(",")
			isTuple = true
		}
		if k := p.cur().kind; k == tokBlockEnd || k == tokVarEnd || p.isOp(")") || end != "" && p.isName(end) {
			break
		}
		items = append(items, p.target(attributes))
		if !p.isOp(",") {
			break
		}
	}
	if isTuple {
		return &tupleTarget{items}
	}
	if len(items) == 0 {
		p.failf("found %s, expected a name to assign to", p.cur().describe())
	}
	return items[0]
}

func (p *parser) target(attributes bool) target {
	p.enter()
	defer p.leave()
	if p.skipOp("(") {
		var t target
		if p.isOp(")") {
			t = &tupleTarget{}
		} else {
			t = p.targets("", false)
		}
		p.expectOp(")")
		return t
	}
	if p.cur().kind != tokName {
		p.failf("cannot assign to %s", p.cur().describe())
	}
	name := p.expectName()
	p.noReserved(name)
	if attributes && p.skipOp(".") {
		return &attrTarget{name, p.expectName()}
	}
	if name == "loop" && p.loops > 0 {
		p.failf("cannot assign to the special name 'loop' inside a loop")
	}
	return &nameTarget{name}
}

// tuple parses an expression, or several separated by commas as a tuple. end is
// a word that may follow a trailing comma; empty allows no expression at all.
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

// expression parses one expression; cond allows "a if b else c" at its top.
func (p *parser) expression(cond bool) expr {
	p.enter()
	defer p.leave()
	if !cond {
		return p.or()
	}
	line, missing := p.cur().line, len(p.missing)
	then := p.or()
	for p.skipName("if") {
		n := &condExpr{then: then, test: p.or(), line: line}
		if p.skipName("else") {
			n.otherwise = p.expression(true)
		}
		then = n
		p.missing = p.missing[:missing] // a conditional is soft throughout
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
		return &unaryExpr{op: "not", operand: p.not(), line: t.line}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	n := &compareExpr{line: p.cur().line, first: p.sum()}
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
	left := p.concat()
	for p.isOp("+") || p.isOp("-") {
		t := p.next()
		left = &binaryExpr{op: t.text, left: left, right: p.concat(), line: t.line}
	}
	return left
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
		left = &binaryExpr{op: t.text, left: left, right: p.power(), line: t.line}
	}
	return left
}

// power associates to the left, as in Jinja and unlike in Python.
func (p *parser) power() expr {
	left := p.unary(true)
	for p.isOp("**") {
		t := p.next()
		left = &binaryExpr{op: "**", left: left, right: p.unary(true), line: t.line}
	}
	return left
}

func (p *parser) unary(filters bool) expr {
	p.enter()
	defer p.leave()
	var n expr
	if t := p.cur(); p.isOp("-") || p.isOp("+") {
		p.next()
		n = &unaryExpr{op: t.text, operand: p.unary(false), line: t.line}
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
			n = p.filters(n, false)
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
		for _, m := range p.macros {
			m.usesCaller = m.usesCaller || t.text == "caller"
			m.usesArgs = m.usesArgs || t.text == "varargs"
			m.usesKeywords = m.usesKeywords || t.text == "kwargs"
		}
		return &nameExpr{t.text}
	case tokString:
		text := p.next().text
		if p.cur().kind == tokString {
			parts := []byte(text)
			for p.cur().kind == tokString {
				parts = append(parts, p.next().text...)
			}
			text = string(parts)
		}
		return &constExpr{text}
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
				n = &attrExpr{of: n, name: a.text, line: t.line}
			case tokInt:
				p.next()
				n = &itemExpr{of: n, key: &constExpr{a.num}, line: t.line}
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

func (p *parser) subscript(of expr) expr {
	line := p.next().line
	var keys []expr
	for !p.isOp("]") {
		if len(keys) > 0 {
			p.expectOp(",")
		}
		keys = append(keys, p.subscriptKey())
	}
	p.expectOp("]")
	if len(keys) == 1 {
		return &itemExpr{of: of, key: keys[0], line: line}
	}
	return &itemExpr{of: of, key: &tupleExpr{keys}, line: line}
}

func (p *parser) subscriptKey() expr {
	s := &sliceExpr{}
	if !p.isOp(":") {
		s.start = p.expression(true)
		if !p.isOp(":") {
			return s.start
		}
	}
	p.expectOp(":")
	part := func() expr {
		if p.isOp(":") || p.isOp("]") || p.isOp(",") {
			return nil
		}
		return p.expression(true)
	}
	s.stop = part()
	if p.skipOp(":") {
		if p.isOp(":") {
			p.failf("found ':', expected ']'")
		}
		s.step = part()
	}
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
		case p.isOp("*"):
			if a.star != nil || a.starstar != nil {
				p.failf("'*' must come once and before '**' in a call")
			}
			p.next()
			a.star = p.expression(true)
		case p.isOp("**"):
			if a.starstar != nil {
				p.failf("'**' must come once in a call")
			}
			p.next()
			a.starstar = p.expression(true)
		case p.cur().kind == tokName && p.peek().kind == tokOp && p.peek().text == "=":
			if a.starstar != nil {
				p.failf("named argument after '**' in a call")
			}
			name := p.next().text
			p.next()
			if slices.Contains(a.names, name) {
				p.failf("argument '%s' is given twice", name)
			}
			a.names = append(a.names, name)
			a.named = append(a.named, p.expression(true))
		default:
			if a.star != nil || a.starstar != nil || len(a.names) > 0 {
				p.failf("positional argument after a named one in a call")
			}
			a.pos = append(a.pos, p.expression(true))
		}
	}
	p.expectOp(")")
	return a
}

func (p *parser) call(callee expr) expr {
	line := p.cur().line
	return &callExpr{callee: callee, args: p.callArgs(), line: line}
}

// dottedName parses the name of a filter or test.
func (p *parser) dottedName() string {
	name := p.expectName()
	for p.skipOp(".") {
		name += "." + p.expectName()
	}
	return name
}

// filters parses a chain of filters over n; inline means that the first one's
// '|' is left out.
func (p *parser) filters(n expr, inline bool) expr {
	for inline || p.isOp("|") {
		if !inline {
			p.next()
		}
		inline = false
		f := &filterExpr{of: n, line: p.cur().line, name: p.dottedName()}
		if _, ok := filters[f.name]; !ok {
			p.unknown("filter", f.name)
		}
		if p.isOp("(") {
			f.args = p.callArgs()
		}
		n = f
	}
	return n
}

func (p *parser) test(of expr) expr {
	p.next()
	negated := p.skipName("not")
	n := &testExpr{of: of, line: p.cur().line, name: p.dottedName()}
	if _, ok := tests[n.name]; !ok {
		p.unknown("test", n.name)
	}
	switch t := p.cur(); {
	case p.isOp("("):
		n.args = p.callArgs()
	case t.kind == tokName && (t.text == "else" || t.text == "or" || t.text == "and"):
	case t.kind == tokName && t.text == "is":
		p.failf("tests cannot be chained with 'is'")
	case t.kind == tokName, t.kind == tokString, t.kind == tokInt, t.kind == tokFloat, p.isOp("["), p.isOp("{"):
		n.args.pos = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &unaryExpr{op: "not", operand: n, line: n.line}
	}
	return n
}

// missingName is a filter or test that does not exist.
type missingName struct {
	what, name string
	line       int
}

func (p *parser) unknown(what, name string) {
	if !p.soft {
		p.missing = append(p.missing, missingName{what, name, *p.line})
	}
}

// fail reports the name; filters that Jinja has are reported as unsupported.
func (m missingName) fail() {
	if m.what == "filter" && slices.Contains(unsupportedFilters, m.name) {
		unsupportedf("filter '%s'", m.name)
	}
	failf("no %s named '%s'", m.what, m.name)
}
