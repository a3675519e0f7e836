package engine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPrefixes compares the tree with a linear search of a list.
func TestPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tree radixTree[string]
		list := map[string]bool{}
		tokens := func(s string) (out []int32) {
			for _, c := range s {
				out = append(out, c)
			}
			return out
		}
		word := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 7, -1)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			s := word.Draw(t, "word")
			if rapid.Bool().Draw(t, "remove") {
				tree.remove(tokens(s))
				delete(list, s)
			} else {
				tree.put(tokens(s), s)
				list[s] = true
			}
			q := word.Draw(t, "question")
			wantN, wantWhole := 0, -1
			var along, behind []string
			for s := range list {
				k := common(tokens(s), tokens(q))
				wantN = max(wantN, k)
				if k == len(s) {
					wantWhole = max(wantWhole, k)
					along = append(along, s)
				}
				if k == len(q) {
					behind = append(behind, s)
				}
			}
			n, alike, whole, within := tree.longest(tokens(q))
			require.Equal(t, wantN, n)
			require.Equal(t, wantWhole, whole)
			if len(list) > 0 {
				require.True(t, list[alike])
				require.Equal(t, n, common(tokens(alike), tokens(q)))
			}
			if whole >= 0 {
				require.Equal(t, q[:whole], within)
			}
			require.ElementsMatch(t, along, tree.along(tokens(q)))
			require.ElementsMatch(t, behind, tree.extensions(tokens(q)))
			require.True(t, slices.IsSortedFunc(tree.along(tokens(q)), func(a, b string) int { return len(a) - len(b) }))
		}
	})
}
