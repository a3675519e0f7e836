package house

import (
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const modulePath = "github.com/lukv/lukv"

// root is the module's folder, relative to that of this package.
const root = "../.."

var (
	floorRow = regexp.MustCompile("(?m)^\\| (\\d+) \\| (`[^|]*`) \\|")
	spelled  = regexp.MustCompile("`([^`]+)`")
)

// readFloors reads the table of docs/architecture.md, which says where each package
// lives. A package may import only from lower floors; on its own floor it may import
// the packages of its parent folders and of folders under its own (kernels/vulkan
// imports kernels). Tests may import anything.
func readFloors(t *testing.T) map[string]int {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	require.NoError(t, err)
	floors := map[string]int{"": 0} // the module's root package, which has no code
	for _, row := range floorRow.FindAllStringSubmatch(string(text), -1) {
		floor, err := strconv.Atoi(row[1])
		require.NoError(t, err)
		for _, name := range spelled.FindAllStringSubmatch(row[2], -1) {
			require.NotContains(t, floors, name[1], "listed twice")
			floors[name[1]] = floor
		}
	}
	require.Greater(t, len(floors), 20)
	return floors
}

// sameHouse reports whether one of two packages is in a folder under the other.
func sameHouse(a, b string) bool {
	return strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

// moduleFolders lists the folders of the module that hold Go files, relative to
// its root; nested modules, testdata and hidden folders are left out.
func moduleFolders(t *testing.T) []string {
	var folders []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() {
			if strings.HasSuffix(name, ".go") {
				relative, err := filepath.Rel(root, filepath.Dir(name))
				if err != nil {
					return err
				}
				relative = strings.TrimPrefix(filepath.ToSlash(relative), ".")
				if !slices.Contains(folders, relative) {
					folders = append(folders, relative)
				}
			}
			return nil
		}
		if name == root {
			return nil
		}
		if base := entry.Name(); base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
			return filepath.SkipDir
		}
		if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
			return filepath.SkipDir
		}
		return nil
	})
	require.NoError(t, err)
	slices.Sort(folders)
	return folders
}

// moduleImports returns the packages of this module that a folder's production
// files import, on any platform and under any build tags, each with a file that
// imports it.
func moduleImports(t *testing.T, folder string) map[string]string {
	imports := map[string]string{}
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if imported == modulePath || strings.HasPrefix(imported, modulePath+"/") {
				imports[strings.TrimPrefix(strings.TrimPrefix(imported, modulePath), "/")] = filepath.Base(name)
			}
		}
	}
	return imports
}

func TestImportsGoDownwards(t *testing.T) {
	floors, folders := readFloors(t), moduleFolders(t)
	for _, folder := range folders {
		floor, listed := floors[folder]
		if !listed {
			t.Errorf("package %q has no floor: give it one in the table of docs/architecture.md", folder)
			continue
		}
		for imported, file := range moduleImports(t, folder) {
			below := floors[imported]
			if below < floor || below == floor && sameHouse(folder, imported) {
				continue
			}
			t.Errorf("%s imports %s: from floor %d to floor %d; imports go downwards only",
				path.Join(folder, file), imported, floor, below)
		}
	}
	for folder := range floors {
		if !slices.Contains(folders, folder) {
			t.Errorf("floor of %q, which is no package any more: remove it from docs/architecture.md", folder)
		}
	}
}

// The rule must be able to fail: moduleImports sees the imports that go/build sees
// on this platform, and sameHouse accepts only packages above or below each other.
func TestFloorsSeeImports(t *testing.T) {
	pkg, err := build.ImportDir(filepath.Join(root, "model"), 0)
	require.NoError(t, err)
	seen := moduleImports(t, "model")
	count := 0
	for _, imported := range pkg.Imports {
		if folder, ours := strings.CutPrefix(imported, modulePath+"/"); ours {
			require.Contains(t, seen, folder)
			count++
		}
	}
	require.Positive(t, count)
	require.False(t, sameHouse("kvcache", "model"))
	require.False(t, sameHouse("model", "modeling"))
	require.True(t, sameHouse("kernels/vulkan", "kernels"))
}
