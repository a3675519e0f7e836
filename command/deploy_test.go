package command

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDeployFiles: the command has the flags used in the files under deploy and in their
// documentation.
func TestDeployFiles(t *testing.T) {
	var out, log strings.Builder
	require.Equal(t, exitOK, run(t.Context(), []string{"serve", "--help"}, strings.NewReader(""), &out, &log))
	help := out.String()
	flag := regexp.MustCompile(`--[a-z][a-z-]*`)
	known := map[string]bool{}
	for _, f := range flag.FindAllString(help, -1) {
		known[f] = true
	}
	root := ".."
	manifest, err := os.ReadFile(filepath.Join(root, "deploy", "kubernetes", "lukv.yaml"))
	require.NoError(t, err)
	found := flag.FindAllString(string(manifest), -1)
	page, err := os.ReadFile(filepath.Join(root, "docs", "deployment.md"))
	require.NoError(t, err)
	image, err := os.ReadFile(filepath.Join(root, "deploy", "Containerfile"))
	require.NoError(t, err)
	for line := range strings.Lines(string(page) + string(image)) {
		if _, args, ok := strings.Cut(line, "lukv serve "); ok {
			found = append(found, flag.FindAllString(args, -1)...)
		}
	}
	require.Greater(t, len(found), 8)
	for _, f := range found {
		require.True(t, known[f], "lukv serve has no %s", f)
	}
}
