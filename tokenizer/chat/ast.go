package chat

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
	nameExpr  struct{ name string }
	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct{ keys, values []expr }
	unaryExpr struct { // op is "-", "+" or "not"
		op      string
		operand expr
		line    int
	}
	binaryExpr struct { // op is one of + - * / // % **
		op          string
		left, right expr
		line        int
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
		line  int
	}
	condExpr struct { // otherwise is nil without an else
		test, then, otherwise expr
		line                  int
	}
	attrExpr struct {
		of   expr
		name string
		line int
	}
	itemExpr struct {
		of, key expr
		line    int
	}
	sliceExpr struct { // only as an itemExpr's key; parts may be nil
		start, stop, step expr
	}
	callExpr struct {
		callee expr
		args   callArgs
		line   int
	}
	filterExpr struct { // of is nil where the filtered text comes from a block
		of   expr
		name string
		args callArgs
		line int
	}
	testExpr struct {
		of   expr
		name string
		args callArgs
		line int
	}
)

// callArgs are the arguments of a call, filter or test; star and starstar are
// nil where absent.
type callArgs struct {
	pos            []expr
	names          []string // of named
	named          []expr
	star, starstar expr
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
		line  int
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
		recursive bool
		line      int
	}
	setStmt struct {
		target target
		value  expr
		line   int
	}
	setBlockStmt struct {
		target target
		filter expr // chain of filterExpr ending in one without of; may be nil
		body   []stmt
		line   int
	}
	macroStmt struct{ *macroDef }
	callStmt  struct {
		call   *callExpr
		caller *macroDef
	}
	filterStmt struct {
		filter expr
		body   []stmt
		line   int
	}
	withStmt struct {
		targets []target
		values  []expr
		body    []stmt
		line    int
	}
	blockStmt struct {
		body   []stmt
		scoped bool
	}
	// scopeStmt is a body with names of its own: generation blocks.
	scopeStmt struct{ body []stmt }
	jumpStmt  struct{ sig signal }
)

// macroDef is what a macro or call block defines. defaults belong to the last
// parameters. The uses fields tell which special names the body reads.
type macroDef struct {
	name                               string
	params                             []string
	defaults                           []expr
	body                               []stmt
	usesCaller, usesArgs, usesKeywords bool
	line                               int
}
