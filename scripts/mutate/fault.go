package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A fault replaces the bytes [from, to) of a file.
type fault struct {
	file     string // base name
	line     int
	column   int
	from, to int
	with     string
	key      string // file, text of the line, the change, and its index if the same key recurs
	function [2]int // first and last line of the enclosing function; 0, 0 if there is none
	number   int    // selects it in the program; 0: not among those that are built together
	outcome  outcome
	by       string // the first test that noticed it
}

type outcome int

const (
	untried    outcome = iota
	killed             // a test failed, or did not end in time
	equivalent         // not tried, since it is listed as changing nothing
	survivor           // survived
	uncovered          // no test even runs the line
	broken             // does not compile
)

func (o outcome) String() string {
	return [...]string{"untried", "killed", "equivalent", "SURVIVED", "NOT COVERED", "does not compile"}[o]
}

// swaps maps operators to their replacements.
var swaps = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.LAND: token.LOR, token.LOR: token.LAND, token.SHL: token.SHR, token.SHR: token.SHL,
	token.AND: token.OR, token.OR: token.AND, token.REM: token.MUL,
	token.INC: token.DEC, token.DEC: token.INC,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
	token.MUL_ASSIGN: token.QUO_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN,
}

// faultsOf lists every fault that can be planted in a file.
func faultsOf(path string) ([]*fault, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	base := files.File(parsed.Pos())
	lines := bytes.Split(text, []byte("\n"))
	seen := map[string]int{}
	var function [2]int
	var out []*fault
	add := func(from, to token.Pos, with string) {
		f := &fault{file: filepath.Base(path), line: base.Line(from), column: base.Position(from).Column, from: base.Offset(from), to: base.Offset(to), with: with, function: function}
		was := strings.Join(strings.Fields(string(text[f.from:f.to])), " ")
		f.key = fmt.Sprintf("%s | %s | %s → %s", f.file, strings.TrimSpace(string(lines[f.line-1])), shorten(was), cmp.Or(shorten(with), "nothing"))
		if seen[f.key]++; seen[f.key] > 1 {
			f.key += fmt.Sprintf(" #%d", seen[f.key])
		}
		out = append(out, f)
	}
	unseen := map[ast.Node]bool{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if n != nil && unseen[n] {
			return false
		}
		switch n := n.(type) {
		case *ast.CallExpr:
			if i := capacity(n); i > 0 {
				unseen[n.Args[i]] = true
			}
		case *ast.ReturnStmt:
			return !failing(n)
		case *ast.FuncDecl:
			function = [2]int{base.Line(n.Pos()), base.Line(n.End())}
		case *ast.GenDecl:
			if base.Line(n.Pos()) > function[1] {
				function = [2]int{}
			}
			return n.Tok == token.VAR // constants, types and imports have no behaviour
		case *ast.BinaryExpr:
			if to, ok := swaps[n.Op]; ok && !concatenation(n) {
				add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to.String())
			}
		case *ast.IncDecStmt:
			add(n.TokPos, n.TokPos+2, swaps[n.Tok].String())
		case *ast.AssignStmt:
			if to, ok := swaps[n.Tok]; ok {
				add(n.TokPos, n.TokPos+2, to.String())
			} else if n.Tok == token.ASSIGN {
				add(n.Pos(), n.End(), "")
			}
		case *ast.UnaryExpr:
			if n.Op == token.NOT || n.Op == token.SUB {
				add(n.OpPos, n.OpPos+1, "")
			}
		case *ast.BasicLit:
			if n.Kind == token.INT {
				add(n.Pos(), n.End(), "("+n.Value+" + 1)")
			}
		case *ast.ExprStmt:
			add(n.Pos(), n.End(), "")
		case *ast.DeferStmt:
			add(n.Pos(), n.End(), "")
		case *ast.BranchStmt:
			if n.Tok == token.BREAK || n.Tok == token.CONTINUE {
				add(n.Pos(), n.End(), "")
			}
		case *ast.IfStmt:
			add(n.Cond.Pos(), n.Cond.End(), "!("+string(text[base.Offset(n.Cond.Pos()):base.Offset(n.Cond.End())])+")")
		case *ast.Ident:
			if n.Name == "true" {
				add(n.Pos(), n.End(), "false")
			} else if n.Name == "false" {
				add(n.Pos(), n.End(), "true")
			}
		}
		return true
	})
	return out, nil
}

// concatenation reports whether a sum looks like one of strings, where swapping the
// operator would not compile.
func concatenation(e *ast.BinaryExpr) bool {
	text := func(x ast.Expr) bool {
		lit, ok := x.(*ast.BasicLit)
		return ok && (lit.Kind == token.STRING)
	}
	return e.Op == token.ADD && (text(e.X) || text(e.Y))
}

// capacity returns the index of the argument of a make that is a capacity, which has no
// visible effect; 0 if there is none.
func capacity(call *ast.CallExpr) int {
	if name, ok := call.Fun.(*ast.Ident); !ok || name.Name != "make" {
		return 0
	}
	if _, ok := call.Args[0].(*ast.MapType); ok && len(call.Args) == 2 {
		return 1
	}
	if len(call.Args) == 3 {
		return 2
	}
	return 0
}

// failing reports whether a statement returns an error along with zero values or
// literals, which callers then ignore.
func failing(n *ast.ReturnStmt) bool {
	if len(n.Results) < 2 {
		return false
	}
	for _, r := range n.Results[:len(n.Results)-1] {
		switch r := r.(type) {
		case *ast.BasicLit, *ast.CompositeLit:
		case *ast.Ident:
			if r.Name != "nil" && r.Name != "false" {
				return false
			}
		default:
			return false
		}
	}
	last, ok := n.Results[len(n.Results)-1].(*ast.Ident)
	return !ok || last.Name != "nil"
}

func shorten(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

// sample selects n faults by the hashes of their keys, and sorts them by position.
func sample(faults []*fault, n int, seed uint64) []*fault {
	rank := func(f *fault) string {
		sum := sha256.Sum256(append(binary.LittleEndian.AppendUint64(nil, seed), f.key...))
		return string(sum[:])
	}
	faults = slices.Clone(faults)
	if n > 0 && n < len(faults) {
		slices.SortFunc(faults, func(a, b *fault) int { return strings.Compare(rank(a), rank(b)) })
		faults = faults[:n]
	}
	slices.SortFunc(faults, func(a, b *fault) int {
		return cmp.Or(strings.Compare(a.file, b.file), a.from-b.from, a.to-b.to)
	})
	return faults
}

// readEquivalents reads the reviewed list: each line has the package's folder, a
// colon, a fault's key, and after " // " the reason. Lines that start with # are
// comments.
func readEquivalents(name string) (map[string]bool, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndex(line, " // ") // a line of code may have a comment, too
		if at < 0 {
			return nil, fmt.Errorf("%s: line %d: found no \" // \" and reason", name, i+1)
		}
		known[line[:at]] = true
	}
	return known, nil
}
