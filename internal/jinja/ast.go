package jinja

// expr is an expression of the syntax tree. Evaluate with run.eval, which
// counts steps and depth.
type expr interface {
	eval(r *run, s *scope) any
}

// stmt is a statement of the syntax tree. Execute with run.exec.
type stmt interface {
	exec(r *run, s *scope) signal
}

// signal says how a statement ended.
type signal uint8

const (
	sigNone signal = iota
	sigBreak
	sigContinue
)

// Expressions.
type (
	constExpr struct{ value any }
	nameExpr  struct {
		name string
		at   pos
	}
	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct{ keys, values []expr }
	unaryExpr struct { // op is "-", "+" or "not"
		op      string
		operand expr
		at      pos
	}
	sumExpr struct { // first ops[0] rest[0] ops[1] rest[1] …; ops are + and -
		first expr
		ops   []string
		rest  []expr
		at    []pos
	}
	productExpr struct { // op is one of * / // % **
		op          string
		left, right expr
		at          pos
	}
	logicExpr struct { // op is "and" or "or"
		op          string
		left, right expr
	}
	concatExpr  struct{ items []expr }
	compareExpr struct { // a chain: first ops[0] rest[0] ops[1] rest[1] …
		first expr
		ops   []string
		rest  []expr
		at    pos
	}
	condExpr struct { // otherwise is nil without an else
		test, then, otherwise expr
	}
	attrExpr struct {
		of   expr
		name string
		at   pos
	}
	itemExpr struct {
		of, key expr
		at      pos
	}
	sliceExpr struct { // parts may be nil
		of, start, stop, step expr
		at                    pos
	}
	callExpr struct {
		callee expr
		args   callArgs
		at     pos
	}
	filterExpr struct {
		of   expr
		def  *builtin
		args callArgs
		at   pos
	}
	testExpr struct {
		of   expr
		def  *builtin
		args callArgs
		at   pos
	}
	blockExpr struct{ body []stmt } // what a body prints
)

// callArgs are the arguments of a call, filter or test: pos, *rest, names=named, **more.
type callArgs struct {
	pos        []expr
	rest, more expr // may be nil
	names      []string
	named      []expr
}

// Assignment targets are a nameTarget, attrTarget or tupleTarget.
type target interface {
	assign(r *run, s *scope, v any)
}

type (
	nameTarget  struct{ name string }
	attrTarget  struct{ name, attr string } // namespace attribute
	tupleTarget struct{ items []target }
)

// Statements.
type (
	textStmt  struct{ text string }
	printStmt struct {
		value expr
		at    pos
	}
	ifStmt struct {
		tests     []expr   // if, elif …
		bodies    [][]stmt // one per test
		otherwise []stmt
	}
	forStmt struct {
		target    target
		over      expr
		filter    expr // nil without an if
		body      []stmt
		otherwise []stmt
		at        pos
	}
	setStmt struct {
		target target
		value  expr
		at     pos
	}
	setBlockStmt struct {
		target target
		body   []stmt
		at     pos
	}
	filterStmt struct { // value is a chain of filters over a blockExpr
		target target // nil: it is printed
		value  expr
		at     pos
	}
	macroStmt struct{ *macroDef }
	callStmt  struct { // call is of a macro, which gets caller
		call   *callExpr
		caller *macroDef
	}
	// scopeStmt is a body with its own names: generation blocks.
	scopeStmt struct{ body []stmt }
	jumpStmt  struct{ sig signal }
)

// macroDef is what a macro statement defines. defaults belong to the last
// parameters.
type macroDef struct {
	name     string
	params   []string
	defaults []expr
	body     []stmt
	caller   bool // the body uses caller, which call blocks pass
}
