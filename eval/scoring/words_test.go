package scoring

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wholeTable is what traceBack visits, computed from the whole table.
func wholeTable(a, b []int, up func(above, left int32) bool) []int {
	table := make([][]int32, len(a)+1)
	for i := range table {
		table[i] = make([]int32, len(b)+1)
		for j := 1; i > 0 && j <= len(b); j++ {
			if table[i][j] = max(table[i-1][j], table[i][j-1]); a[i-1] == b[j-1] {
				table[i][j] = table[i-1][j-1] + 1
			}
		}
	}
	var out []int
	for i, j := len(a), len(b); i > 0 && j > 0; {
		switch {
		case a[i-1] == b[j-1]:
			i, j = i-1, j-1
			out = append(out, i)
		case up(table[i-1][j], table[i][j-1]):
			i--
		default:
			j--
		}
	}
	return out
}

// The trace is the same as through the whole table, ties included, though most
// rows are computed again.
func TestTraceBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := func() []int {
		out := make([]int, rng.IntN(40))
		for i := range out {
			out[i] = rng.IntN(5)
		}
		return out
	}
	for range 2000 {
		a, b := text(), text()
		for _, up := range []func(above, left int32) bool{
			func(above, left int32) bool { return above > left },
			func(above, left int32) bool { return above >= left },
		} {
			var got []int
			traceBack(a, b, up, func(i int) { got = append(got, i) })
			require.Equal(t, wholeTable(a, b, up), got, "%v and %v", a, b)
		}
	}
}

// Texts without a full stop in a file of predictions do not take memory proportional
// to the product of their lengths.
func TestLongTexts(t *testing.T) {
	words := make([]string, 4000)
	for i := range words {
		words[i] = strconv.Itoa(i)
	}
	text, line := strings.Join(words, " "), strings.Repeat("ab", 2000)
	slices.Reverse(words)
	other := strings.Join(words, " ")
	for name, score := range map[string]func() float64{
		"rouge_l":   func() float64 { return rougeL(text, text) + rougeL(text, other) },
		"rougeLSum": func() float64 { return linesInCommon(text, text) + linesInCommon(text, other) },
		"code_sim":  func() float64 { return codeSimilarity(line, line+"c", CodeIndel) },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		require.Greater(t, score(), 0.99, name)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), name)
	}
}

func TestWordsAndNumbers(t *testing.T) {
	require.Equal(t, []string{"x—", "—y"}, plainWords("x—the—y"), "an article leaves a gap")
	require.Equal(t, []string{"theory", "another"}, plainWords("The theory, an another!"), "whole words alone")
	require.Equal(t, 1.0, retrieval("it is 3", "Paragraph one, Paragraph 3"))
	require.Zero(t, retrieval("3", "Paragraph one"))
	require.Zero(t, numberShare("none at all", "3"))
	require.Equal(t, 0.5, numberShare("3 of 12", "3"))
	for r, want := range map[rune]bool{0x1b: false, 0x1c: true, 0x1f: true, ' ': true, 0x85: true, 'x': false} {
		require.Equal(t, want, isSpace(r), "%U", r)
	}
}
