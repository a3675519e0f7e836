package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPageListsFamilies compares the table of docs/models.md with the registry.
func TestPageListsFamilies(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "models.md"))
	require.NoError(t, err)
	table := "| architecture | published models |\n| --- | --- |\n"
	for _, f := range families {
		require.NotEmpty(t, f.models, f.arch)
		table += fmt.Sprintf("| `%s` | %s |\n", f.arch, f.models)
	}
	require.Contains(t, string(text), table, "docs/models.md should contain\n%s", table)
}

// TestFamiliesAreUnambiguous: architectures and classes name one family each, none of those
// refused.
func TestFamiliesAreUnambiguous(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range families {
		for _, name := range []string{f.arch, f.class} {
			require.False(t, seen[name], name)
			seen[name] = true
			require.NotContains(t, unsupported, name)
		}
		for _, role := range []Role{RoleEmbed, RoleLastNorm, RoleHead, RoleQ, RoleK, RoleV, RoleO} {
			for _, n := range []Naming{HuggingFace, GGUF} {
				require.NotEmpty(t, f.tensors.Name(n, role, 0), "%s: role %d", f.arch, role)
			}
		}
	}
}
