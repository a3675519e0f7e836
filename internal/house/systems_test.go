package house

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// listed is what "go list" says of a package.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	ImportMap  map[string]string
	Module     *struct{ Main bool }
}

// TestSystems checks the types of the whole module, tests included, for systems other than this
// one: constants that overflow an int of 32 bits, files without a counterpart, missing
// functions. It takes seconds where building ("make cross") takes minutes.
func TestSystems(t *testing.T) {
	if testing.Short() {
		t.Skip("reads the standard library for each system")
	}
	for _, system := range []string{"linux/arm64", "darwin/arm64", "windows/amd64", "linux/386"} {
		t.Run(strings.ReplaceAll(system, "/", "-"), func(t *testing.T) {
			packages, errs := checkTypes(t, system, root)
			require.Empty(t, errs)
			require.Greater(t, packages, 100)
		})
	}
}

// The check must be able to fail.
func TestSystemsCanFail(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("go.mod", "module example\n\ngo 1.26\n")
	write("a.go", "package a\n\nconst big int = 1 << 40\n\nvar _ = wide()\n")
	write("a_amd64.go", "package a\n\nfunc wide() int { return big }\n")
	for system, n := range map[string]int{"linux/amd64": 0, "linux/arm64": 1, "linux/386": 2} {
		packages, errs := checkTypes(t, system, dir)
		require.Len(t, errs, n, "%s: %v", system, errs)
		require.Equal(t, 1, packages)
	}
}

// checkTypes checks the packages of the module in a folder, and returns their number.
func checkTypes(t *testing.T, system, dir string) (ours int, errs []error) {
	t.Helper()
	goos, goarch, _ := strings.Cut(system, "/")
	list := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,Module", "./...")
	list.Dir = dir
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, list.Start())
	files := token.NewFileSet()
	done := map[string]*types.Package{"unsafe": types.Unsafe}
	for decode := json.NewDecoder(out); ; { // dependencies come first
		var p listed
		if err := decode.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		mine := p.Module != nil && p.Module.Main
		if mine {
			ours++
		}
		var syntax []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			syntax = append(syntax, f)
		}
		config := types.Config{
			Importer: findPackage(func(path string) (*types.Package, error) {
				if to := p.ImportMap[path]; to != "" {
					path = to
				}
				return done[path], nil
			}),
			IgnoreFuncBodies: !mine,
			Sizes:            types.SizesFor("gc", goarch),
			Error: func(err error) {
				if mine {
					errs = append(errs, err)
				}
			},
		}
		path, _, _ := strings.Cut(p.ImportPath, " ") // a package and its tests
		done[p.ImportPath], _ = config.Check(path, files, syntax, nil)
	}
	require.NoError(t, list.Wait())
	return ours, errs
}

type findPackage func(path string) (*types.Package, error)

func (f findPackage) Import(path string) (*types.Package, error) { return f(path) }
