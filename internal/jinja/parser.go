package jinja

import "slices"

// maxNesting bounds nested expressions and statements in a template's source.
const maxNesting = 400

type parser struct {
	lex    *lexer
	toks   [2]token // the current one and the next
	at     pos      // of the token last consumed, or of the error
	lexing bool     // the lexer is running, so its position counts in errors
	depth  int
	// loops counts the enclosing for loops; inLoop says that break can leave one.
	loops  int
	inLoop bool
	macros []*macroDef // enclosing the current position
}

// Parse parses a template's source; errors refer to it by name. A line break at
// the very end of the source is dropped, as in Jinja. Unsupported features that
// names and literals show are refused here, by name. Errors are *Error.
func Parse(name, source string) (t *Template, err error) {
	p := &parser{at: pos{1, 1}}
	defer rescue(name, &p.at, &err)
	defer func() {
		if p.lexing {
			p.at = p.lex.at
		}
	}()
	p.lex = newLexer(source)
	p.fill(0)
	p.fill(1)
	return &Template{name: name, body: p.statements(nil)}, nil
}

func (p *parser) fill(i int) {
	p.lexing = true
	p.toks[i] = p.lex.next()
	p.lexing = false
}

func (p *parser) cur() token { return p.toks[0] }

func (p *parser) peek() token { return p.toks[1] }

func (p *parser) next() token {
	t := p.toks[0]
	p.at = t.at
	p.toks[0] = p.toks[1]
	p.fill(1)
	return t
}

// failf fails at the current token.
func (p *parser) failf(format string, args ...any) {
	p.at = p.cur().at
	failf(format, args...)
}

// refuse fails with ErrUnsupported at the given position.
func (p *parser) refuse(at pos, format string, args ...any) {
	p.at = at
	unsupportedf(format, args...)
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
		p.at = p.cur().at
		limitf("source nested deeper than %d", maxNesting)
	}
}

func (p *parser) leave() { p.depth-- }

// function parses a body that Jinja compiles to a separate function: break
// does not leave it.
func (p *parser) function(parse func()) {
	inLoop := p.inLoop
	p.inLoop = false
	parse()
	p.inLoop = inLoop
}

// body parses statements up to a tag named by one of ends, whose name is
// consumed and returned; the rest of the tag is left to the caller.
func (p *parser) body(ends ...string) (stmts []stmt, end string) {
	p.skipOp(":")
	p.expect(tokBlockEnd)
	stmts = p.statements(ends)
	if p.cur().kind == tokEOF {
		p.failf("found end of template, expected tag '%s'", ends[len(ends)-1])
	}
	return stmts, p.next().text
}

// statements parses until the end of the template or, with ends, a tag with
// one of those names, whose name is then the current token.
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
			out = append(out, &printStmt{value: value, at: t.at})
		default: // tokBlockBegin: nothing else follows a finished tag
			p.next()
			if p.cur().kind == tokName && slices.Contains(ends, p.cur().text) {
				return out
			}
			out = append(out, p.statement())
			p.expect(tokBlockEnd)
		}
	}
}

// statement parses a tag and its body, if it has one.
func (p *parser) statement() stmt {
	p.enter()
	defer p.leave()
	t := p.cur()
	if t.kind != tokName {
		p.failf("found %s, expected a tag name", t.describe())
	}
	p.next()
	switch t.text {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement(t.at)
	case "set":
		return p.setStatement(t.at)
	case "macro":
		return p.macro()
	case "call":
		return p.callBlock()
	case "filter":
		return p.filterBlock(nil, t.at, "endfilter")
	case "generation":
		g := &scopeStmt{}
		p.function(func() { g.body, _ = p.body("endgeneration") })
		return g
	case "break", "continue":
		if !p.inLoop {
			failf("'%s' outside of a loop", t.text)
		}
		if t.text == "break" {
			return jumpStmt{sigBreak}
		}
		return jumpStmt{sigContinue}
	}
	p.refuse(t.at, "tag '%s'", t.text)
	return nil
}

func (p *parser) ifStatement() stmt {
	n := &ifStmt{}
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
		return n
	}
}

func (p *parser) forStatement(at pos) stmt {
	n := &forStmt{at: at}
	p.loops++
	n.target = p.targets("in", false)
	p.expectWord("in")
	n.over = p.tuple(false, false, "recursive")
	if p.skipName("if") {
		n.filter = p.expression(true)
	}
	if p.isName("recursive") {
		p.refuse(p.cur().at, "'recursive' in a loop")
	}
	inLoop := p.inLoop
	p.inLoop = true
	var end string
	n.body, end = p.body("endfor", "else")
	p.inLoop = inLoop
	if end == "else" {
		n.otherwise, _ = p.body("endfor")
	}
	p.loops--
	return n
}

func (p *parser) setStatement(at pos) stmt {
	t := p.targets("", true)
	if p.skipOp("=") {
		return &setStmt{target: t, value: p.tuple(true, false), at: at}
	}
	if p.skipOp("|") {
		return p.filterBlock(t, at, "endset")
	}
	n := &setBlockStmt{target: t, at: at}
	n.body, _ = p.body("endset")
	return n
}

// filterBlock parses filters and the body that they apply to.
func (p *parser) filterBlock(t target, at pos, end string) stmt {
	block := &blockExpr{}
	n := &filterStmt{target: t, value: p.filterChain(block), at: at}
	block.body, _ = p.body(end)
	return n
}

// callBlock parses a call of a macro that gets the body as caller.
func (p *parser) callBlock() stmt {
	m := &macroDef{name: "caller"}
	if p.isOp("(") {
		p.parameters(m)
	}
	at := p.cur().at
	call, ok := p.expression(true).(*callExpr)
	if !ok {
		p.at = at
		failf("found something else, expected the call of a macro")
	}
	p.macroBody(m, "endcall")
	return &callStmt{call, m}
}

func (p *parser) macro() stmt {
	m := &macroDef{name: p.expectName()}
	p.noReserved(m.name)
	p.parameters(m)
	p.macroBody(m, "endmacro")
	return macroStmt{m}
}

// parameters parses the parameters of a macro.
func (p *parser) parameters(m *macroDef) {
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
}

func (p *parser) noReserved(name string) {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		p.failf("cannot assign to '%s'", name)
	}
}

// targets parses the targets of an assignment: names, tuples of them and, if attributes
// is set, namespace attributes. end is the word that follows, if any.
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
