package house

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/api.txt anew")

// apiFile is the reviewed list: a section per package, a line per exported
// name. A name that no other package of the module (examples included) uses is
// followed by " // " and the reason why it is public; the reason of a type also
// covers its fields, methods and constants. Reasons survive an update.
const apiFile = root + "/docs/api.txt"

const apiHeader = `# Every exported name of the packages that other modules can import, made by "make api" and
# compared by a test. " // " is followed by the reason why a name is public that no other package
# uses; the reason of a type also covers its fields, methods and constants. Names without a reason
# are used by another package, by an example, or by a module under scripts.
`

// TestExportedNames compares docs/api.txt with the source, so that reviews show
// changes to the public API and nothing is public without a reason.
func TestExportedNames(t *testing.T) {
	if testing.Short() {
		t.Skip("type-checks the whole module")
	}
	module := loadModule(t)
	old, err := os.ReadFile(apiFile)
	if !*update {
		require.NoError(t, err)
	}
	reasons := readReasons(string(old))
	text, unexplained := module.list(reasons)
	if *update {
		require.NoError(t, os.WriteFile(apiFile, []byte(text), 0o644))
	} else if text != string(old) {
		t.Errorf("the exported names are not those of docs/api.txt; run \"make api\" and review its diff:\n%s",
			difference(string(old), text))
	}
	for _, line := range unexplained {
		t.Errorf("no other package uses it: unexport it, or add \" // \" and the reason in docs/api.txt: %s", line)
	}
}

// goPackage is the output of "go list -json" for a package.
type goPackage struct {
	ImportPath, Dir, Export string
	Standard                bool
	GoFiles, XTestGoFiles   []string
	Module                  *struct{ Main bool }
}

// A module is the type-checked production code of all packages, for linux/amd64.
type module struct {
	files    *token.FileSet
	packages []*types.Package          // ours, dependencies first
	used     map[types.Object]bool     // used outside the package that declares it
	methods  map[*types.Func]bool      // needed to implement an interface
	all      map[string]*types.Package // every package that was loaded
}

func loadModule(t *testing.T) *module {
	command := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,Standard,GoFiles,XTestGoFiles,Module", "./...")
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	require.NoError(t, err, stderr.String())

	m := &module{files: token.NewFileSet(), used: map[types.Object]bool{}, all: map[string]*types.Package{}}
	exports := map[string]string{}
	foreign := importer.ForCompiler(m.files, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	load := importerFunc(func(path string) (*types.Package, error) {
		if pkg := m.all[path]; pkg != nil {
			return pkg, nil
		}
		return foreign.Import(path)
	})
	decoder := json.NewDecoder(bytes.NewReader(output))
	for decoder.More() { // dependencies come first
		var listed goPackage
		require.NoError(t, decoder.Decode(&listed))
		exports[listed.ImportPath] = listed.Export
		if listed.Module == nil || !listed.Module.Main {
			continue
		}
		pkg := m.check(t, listed, listed.ImportPath, listed.GoFiles, load)
		m.all[listed.ImportPath] = pkg
		m.packages = append(m.packages, pkg)
		var examples []string
		for _, name := range listed.XTestGoFiles {
			if strings.Contains(name, "example") {
				examples = append(examples, name)
			}
		}
		m.check(t, listed, listed.ImportPath+"_test", examples, load)
	}
	m.nested(t, load)
	m.methods = m.interfaceMethods()
	return m
}

// nested records the names that the modules under scripts and examples use. Imports that
// this module does not have are left unresolved.
func (m *module) nested(t *testing.T, load types.Importer) {
	for _, pattern := range []string{"/scripts/*/go.mod", "/examples/*/go.mod"} {
		modules, err := filepath.Glob(root + pattern)
		require.NoError(t, err)
		for _, file := range modules {
			dir := filepath.Dir(file)
			paths, err := filepath.Glob(dir + "/*.go")
			require.NoError(t, err)
			var names []string
			for _, name := range paths {
				if !strings.HasSuffix(name, "_test.go") {
					names = append(names, filepath.Base(name))
				}
			}
			m.check(t, goPackage{Dir: dir}, dir, names, load)
		}
	}
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// check type-checks files as one package and records what they use of others.
func (m *module) check(t *testing.T, listed goPackage, path string, names []string, load types.Importer) *types.Package {
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(m.files, filepath.Join(listed.Dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	// Examples may import what production code does not; there, only what resolves counts.
	config := types.Config{Importer: load, Error: func(error) {}}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	pkg, err := config.Check(path, m.files, files, info)
	if path == listed.ImportPath {
		require.NoError(t, err)
	}
	for _, object := range info.Uses {
		if object.Pkg() != nil && object.Pkg() != pkg {
			m.used[origin(object)] = true
		}
	}
	return pkg
}

// origin returns the declared object of which object may be a generic instance.
func origin(object types.Object) types.Object {
	switch object := object.(type) {
	case *types.Func:
		return object.Origin()
	case *types.Var:
		return object.Origin()
	}
	return object
}

// interfaceMethods finds the methods by which our types implement an interface
// that is declared in one of our packages or in a package that they import.
func (m *module) interfaceMethods() map[*types.Func]bool {
	interfaces := []*types.Interface{types.Universe.Lookup("error").Type().Underlying().(*types.Interface)}
	seen := map[*types.Package]bool{}
	collect := func(pkg *types.Package) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		for _, name := range pkg.Scope().Names() {
			if declared, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok {
				if i, ok := declared.Type().Underlying().(*types.Interface); ok && i.NumMethods() > 0 && i.IsMethodSet() {
					interfaces = append(interfaces, i)
				}
			}
		}
	}
	for _, pkg := range m.packages {
		collect(pkg)
		for _, imported := range pkg.Imports() {
			collect(imported)
		}
	}
	needed := map[*types.Func]bool{}
	for _, pkg := range m.packages {
		for _, name := range pkg.Scope().Names() {
			declared, ok := pkg.Scope().Lookup(name).(*types.TypeName)
			if !ok {
				continue
			}
			named, ok := declared.Type().(*types.Named)
			if !ok || named.TypeParams().Len() > 0 {
				continue
			}
			for _, i := range interfaces {
				if !types.Implements(types.NewPointer(named), i) {
					continue
				}
				for method := range i.Methods() {
					object, _, _ := types.LookupFieldOrMethod(types.NewPointer(named), true, pkg, method.Name())
					if f, ok := object.(*types.Func); ok {
						needed[f.Origin()] = true
					}
				}
			}
		}
	}
	return needed
}

// list returns the reviewed list, and the lines that lack a reason.
func (m *module) list(reasons map[string]string) (text string, unexplained []string) {
	out := bytes.NewBufferString(apiHeader)
	packages := slices.Clone(m.packages)
	slices.SortFunc(packages, func(a, b *types.Package) int { return strings.Compare(a.Path(), b.Path()) })
	for _, pkg := range packages {
		path := strings.TrimPrefix(strings.TrimPrefix(pkg.Path(), modulePath), "/")
		if pkg.Name() == "main" || strings.Contains("/"+path+"/", "/internal/") {
			continue
		}
		lines := m.exported(pkg)
		if len(lines) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s%s\n", packageLine, path)
		typeReasons := map[string]string{}
		for _, line := range lines {
			key := path + " " + line.text
			out.WriteString(line.text)
			reason := reasons[key]
			if reason != "" && (!line.used || strings.HasPrefix(line.text, "type ")) {
				out.WriteString(reasonMark + reason)
			}
			if line.of == "" {
				typeReasons[line.name] = reason
			}
			if !line.used && reason == "" && typeReasons[line.of] == "" {
				unexplained = append(unexplained, key)
			}
			out.WriteByte('\n')
		}
	}
	return out.String(), unexplained
}

const (
	packageLine = "package "
	reasonMark  = " // "
)

// readReasons returns the reasons of a list by package and line.
func readReasons(text string) map[string]string {
	reasons, path := map[string]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if after, ok := strings.CutPrefix(line, packageLine); ok {
			path = after
		} else if name, reason, ok := strings.Cut(line, reasonMark); ok {
			reasons[path+" "+name] = reason
		}
	}
	return reasons
}

// An apiLine is an exported name: its line, and the type that it belongs to if it
// is a field, a method or a constant.
type apiLine struct {
	text, name, of string
	used           bool
}

// exported lists a package's exported names: types, each with its fields and
// methods, and then constants, variables and functions by name.
func (m *module) exported(pkg *types.Package) []apiLine {
	qualify := func(other *types.Package) string {
		if other == pkg {
			return ""
		}
		return other.Name()
	}
	var declared, others []apiLine
	for _, name := range pkg.Scope().Names() {
		object := pkg.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		line := apiLine{name: name, used: m.used[object]}
		switch object := object.(type) {
		case *types.TypeName:
			declared = append(declared, m.exportedType(object, qualify)...)
			continue
		case *types.Const:
			line.text = "const " + name
			if named, ok := object.Type().(*types.Named); ok && named.Obj().Pkg() == pkg {
				line.of = named.Obj().Name()
				line.text += " " + line.of
			}
		default:
			line.text = types.ObjectString(object, qualify)
		}
		others = append(others, line)
	}
	return append(declared, others...)
}

func (m *module) exportedType(object *types.TypeName, qualify types.Qualifier) []apiLine {
	name := object.Name()
	if object.IsAlias() {
		text := "type " + name + " = " + types.TypeString(types.Unalias(object.Type()), qualify)
		return []apiLine{{text: text, name: name, used: m.used[object]}}
	}
	named := object.Type().(*types.Named)
	kind := types.TypeString(named.Underlying(), qualify)
	switch named.Underlying().(type) {
	case *types.Struct:
		kind = "struct"
	case *types.Interface:
		kind = "interface"
	}
	// A type whose name is never written counts as used if the signature of a used function
	// or the type of a used field mentions it; their reason to be public is also its.
	lines := []apiLine{{text: "type " + name + " " + kind, name: name, used: m.used[object] || m.mentioned(named)}}
	member := func(object types.Object, text string, used bool) {
		lines = append(lines, apiLine{text: text, name: object.Name(), of: name, used: used || m.used[object]})
	}
	switch what := named.Underlying().(type) {
	case *types.Struct:
		for field := range what.Fields() {
			if field.Exported() {
				// Fields with tags are encoded to and decoded from files.
				text := "field " + name + "." + field.Name() + " " + types.TypeString(field.Type(), qualify)
				member(field, text, hasTag(what, field) || field.Embedded())
			}
		}
	case *types.Interface:
		for method := range what.ExplicitMethods() {
			if method.Exported() {
				member(method, "method "+name+"."+method.Name()+parameters(method, qualify), false)
			}
		}
	}
	for method := range named.Methods() {
		if method.Exported() {
			receiver := name
			if _, pointer := method.Signature().Recv().Type().(*types.Pointer); pointer {
				receiver = "*" + name
			}
			member(method, "method ("+receiver+") "+method.Name()+parameters(method, qualify), m.methods[method])
		}
	}
	return lines
}

// parameters returns the signature of a method without the word func.
func parameters(method *types.Func, qualify types.Qualifier) string {
	return strings.TrimPrefix(types.TypeString(method.Type(), qualify), "func")
}

func hasTag(s *types.Struct, field *types.Var) bool {
	for i := range s.NumFields() {
		if s.Field(i) == field {
			return s.Tag(i) != ""
		}
	}
	return false
}

// mentioned reports whether a type occurs in the signature of a used exported
// function or method, or in a used field or variable, of our packages.
func (m *module) mentioned(named *types.Named) bool {
	for object := range m.used {
		if object.Pkg() == nil || !strings.HasPrefix(object.Pkg().Path(), modulePath) {
			continue
		}
		switch object.(type) {
		case *types.Func, *types.Var, *types.Const:
			if contains(object.Type(), named) {
				return true
			}
		}
	}
	return false
}

// contains reports whether a type mentions another one, without looking into
// named types.
func contains(t types.Type, part *types.Named) bool {
	switch t := t.(type) {
	case *types.Named:
		if t.Origin() == part.Origin() {
			return true
		}
		for argument := range t.TypeArgs().Types() {
			if contains(argument, part) {
				return true
			}
		}
	case *types.Alias:
		return contains(types.Unalias(t), part)
	case *types.Pointer:
		return contains(t.Elem(), part)
	case *types.Slice:
		return contains(t.Elem(), part)
	case *types.Array:
		return contains(t.Elem(), part)
	case *types.Chan:
		return contains(t.Elem(), part)
	case *types.Map:
		return contains(t.Key(), part) || contains(t.Elem(), part)
	case *types.Signature:
		return contains(t.Params(), part) || contains(t.Results(), part)
	case *types.Tuple:
		for variable := range t.Variables() {
			if contains(variable.Type(), part) {
				return true
			}
		}
	}
	return false
}

// difference returns the lines that occur in only one of two texts.
func difference(old, text string) string {
	had, has := strings.Split(old, "\n"), strings.Split(text, "\n")
	var out strings.Builder
	for _, line := range had {
		if !slices.Contains(has, line) {
			out.WriteString("- " + line + "\n")
		}
	}
	for _, line := range has {
		if !slices.Contains(had, line) {
			out.WriteString("+ " + line + "\n")
		}
	}
	return out.String()
}
