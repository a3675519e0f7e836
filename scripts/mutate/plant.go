package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// environment is the variable that holds the number of the fault to plant.
const environment = "MUTATE_FAULT"

// plant writes files that can plant any of the faults, and returns the overlay
// that puts them in place. A function with faults gets a copy for each, after the
// file's own text, and begins by choosing among them:
//
//	func f(a int) int { switch fault_ { case 7: return f_7(a) }; …
//	func f_7(a int) int { …
//
// Faults that cannot be planted this way keep the number 0. Those that do not compile
// are found by building the package's own tests, and left out.
func (r *runner) plant(ctx context.Context, faults []*fault) (string, error) {
	for range 20 {
		places := map[string]string{}
		copies := map[string][]*fault{} // by file: the fault to whose copy each line belongs
		for _, path := range r.files {
			text, begins, err := withFaults(path, faults)
			if err != nil {
				return "", err
			}
			if text == nil {
				continue
			}
			name := filepath.Join(r.scratch, "all_"+filepath.Base(path))
			if err := os.WriteFile(name, text, 0o600); err != nil {
				return "", err
			}
			places[path], copies[filepath.Base(path)] = name, begins
		}
		chooser := filepath.Join(r.scratch, "chooser.go")
		text := fmt.Sprintf("package %s\n\nimport (\"os\"; \"strconv\")\n\nvar fault_, _ = strconv.Atoi(os.Getenv(%q))\n", r.name, environment)
		if err := os.WriteFile(chooser, []byte(text), 0o600); err != nil {
			return "", err
		}
		places[filepath.Join(r.dir, "fault_.go")] = chooser
		overlay, err := r.overlay("all.json", places)
		if err != nil {
			return "", err
		}
		own := r.programs[0]
		out, err := own.build(ctx, own.file, "-overlay", overlay)
		if err == nil {
			return overlay, nil
		}
		if !leaveOut(out, copies) {
			return "", fmt.Errorf("build %s with faults: %w\n%s", r.path, err, out)
		}
	}
	return "", fmt.Errorf("build %s with faults: errors without end", r.path)
}

var compileError = regexp.MustCompile(`(?m)^(\S*\.go):(\d+):`)

// leaveOut marks the faults in whose copies the compiler found errors, and reports
// whether there are any.
func leaveOut(errors []byte, copies map[string][]*fault) bool {
	found := false
	for _, m := range compileError.FindAllSubmatch(errors, -1) {
		lines := copies[strings.TrimPrefix(filepath.Base(string(m[1])), "all_")]
		line, err := strconv.Atoi(string(m[2]))
		if err == nil && line < len(lines) && lines[line] != nil && lines[line].outcome != broken {
			lines[line].outcome = broken
			found = true
		}
	}
	return found
}

// plantAlone returns the overlay with one fault.
func (r *runner) plantAlone(f *fault) (string, error) {
	original := filepath.Join(r.dir, f.file)
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	faulty := filepath.Join(r.scratch, "alone_"+f.file)
	if err := os.WriteFile(faulty, []byte(string(text[:f.from])+f.with+string(text[f.to:])), 0o600); err != nil {
		return "", err
	}
	return r.overlay("alone.json", map[string]string{original: faulty})
}

func (r *runner) overlay(name string, places map[string]string) (string, error) {
	text, err := json.Marshal(map[string]any{"Replace": places})
	if err != nil {
		return "", err
	}
	name = filepath.Join(r.scratch, name)
	return name, os.WriteFile(name, text, 0o600)
}

// withFaults returns the text of a file that can plant its faults, nil if it has none,
// and for each line the fault to whose copy it belongs. It numbers the faults.
func withFaults(path string, faults []*fault) ([]byte, []*fault, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	var copies bytes.Buffer
	var owners []*fault // by line of copies, from 0
	var out bytes.Buffer
	done := 0
	for _, d := range parsed.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil || bytes.Contains(text[offset(fn.Pos()):offset(fn.End())], []byte("recover()")) {
			continue // recover works only in the deferred function itself
		}
		begin, end := offset(fn.Body.Lbrace), offset(fn.End())
		var cases strings.Builder
		name, head, call := signature(files, fn)
		for i, f := range faults {
			if f.file != filepath.Base(path) || f.from <= begin || f.to > end || f.outcome == broken {
				continue
			}
			f.number = i + 1
			fmt.Fprintf(&cases, "case %d: %s; ", f.number, fmt.Sprintf(call, fmt.Sprintf("%s_%d", name, f.number)))
			decl := fmt.Sprintf(head, fmt.Sprintf("%s_%d", name, f.number)) + string(text[begin:f.from]) + f.with + string(text[f.to:end]) + "\n"
			copies.WriteString(decl)
			for range strings.Count(decl, "\n") {
				owners = append(owners, f)
			}
		}
		if cases.Len() == 0 {
			continue
		}
		out.Write(text[done:offset(fn.Pos())])
		own := fmt.Sprintf(head, name)
		out.WriteString(own + "{ switch fault_ { " + cases.String() + "}; ")
		done = begin + 1
	}
	if done == 0 {
		return nil, nil, nil
	}
	out.Write(text[done:])
	out.WriteString("\n")
	lines := make([]*fault, bytes.Count(out.Bytes(), []byte("\n"))+1)
	out.Write(copies.Bytes())
	return out.Bytes(), append(lines, owners...), nil
}

// signature returns a function's name and, with %s in place of the name, its head
// on one line and the statement that passes its arguments on.
func signature(files *token.FileSet, fn *ast.FuncDecl) (name, head, call string) {
	show := func(n ast.Node) string {
		var b strings.Builder
		_ = printer.Fprint(&b, files, n) // a node that was parsed, into memory
		return strings.Join(strings.Fields(b.String()), " ")
	}
	count := 0
	// list shows parameters, all of them named, and returns their names.
	list := func(fields *ast.FieldList) (string, []string) {
		var shown, names []string
		for _, field := range fields.List {
			own := len(field.Names)
			for i := range max(own, 1) {
				count++
				name := fmt.Sprintf("p_%d", count)
				if own > 0 && field.Names[i].Name != "_" {
					name = field.Names[i].Name
				}
				shown = append(shown, name+" "+show(field.Type))
				if _, ok := field.Type.(*ast.Ellipsis); ok {
					name += "..."
				}
				names = append(names, name)
			}
		}
		return "(" + strings.Join(shown, ", ") + ")", names
	}
	name, head, call = fn.Name.Name, "func ", "%s"
	if fn.Recv != nil {
		shown, names := list(fn.Recv)
		head += shown + " "
		call = names[0] + ".%s"
	}
	head += "%s"
	if fn.Type.TypeParams != nil {
		shown, names := list(fn.Type.TypeParams)
		head += "[" + strings.Trim(shown, "()") + "]"
		call += "[" + strings.Join(names, ", ") + "]"
	}
	shown, names := list(fn.Type.Params)
	head += shown
	call += "(" + strings.Join(names, ", ") + ")"
	if results := fn.Type.Results; results == nil || len(results.List) == 0 {
		call += "; return"
	} else {
		shown := show(&ast.FuncType{Params: &ast.FieldList{}, Results: results})
		head += " " + strings.TrimPrefix(shown, "func()")
		call = "return " + call
	}
	return name, head + " ", call
}
