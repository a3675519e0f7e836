package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEnvironmentPage compares docs/environment.md with the sources: it must list
// every variable of ours, and every other one that is read by name.
func TestEnvironmentPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/environment.md"))
	require.NoError(t, err)
	ours := regexp.MustCompile(`\bLUKV_[A-Z0-9_]+\b`)
	read := regexp.MustCompile(`(?:Getenv|LookupEnv|isSet)\("([A-Z0-9_]+)"\)`)
	// Read by the one program that only generates files of this repository.
	developers := []string{"GLSLC_NEW", "SPIRV_VAL_NEW"}
	found := map[string]bool{}
	for _, folder := range append(moduleFolders(t), "scripts", "scripts/bench-peers") {
		entries, err := os.ReadDir(filepath.Join(root, folder))
		require.NoError(t, err)
		for _, entry := range entries {
			if !entry.Type().IsRegular() || folder != "scripts" && !strings.HasSuffix(entry.Name(), ".go") {
				continue
			}
			text, err := fs.ReadFile(os.DirFS(filepath.Join(root, folder)), entry.Name())
			require.NoError(t, err)
			for _, name := range ours.FindAllString(string(text), -1) {
				found[name] = true
			}
			if !strings.HasSuffix(entry.Name(), "_test.go") {
				for _, m := range read.FindAllStringSubmatch(string(text), -1) {
					found[m[1]] = true
				}
			}
		}
	}
	require.True(t, found["LUKV_CPU"] && found["NO_COLOR"] && found["HF_HOME"], "the sources are read")
	for _, name := range developers {
		delete(found, name)
	}
	for name := range found {
		assert.Contains(t, string(page), "`"+name+"`", "docs/environment.md lacks a variable")
	}
	for _, name := range ours.FindAllString(string(page), -1) {
		assert.True(t, found[name], "docs/environment.md has %s, which nothing reads", name)
	}
}
