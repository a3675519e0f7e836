package scoring

import (
	"math"
	"strings"
)

// codeSimilarity compares the first usable line of a prediction with the right
// one (spec evaluation 5.6). The result is from 0 to 1, in hundredths.
func codeSimilarity(prediction, answer string, how CodeSim) float64 {
	a, b := []rune(codeLine(prediction)), []rune(answer)
	switch {
	case string(a) == string(b):
		return 1
	case len(a) == 0 || len(b) == 0:
		return 0
	}
	common := 0
	if how == CodeIndel {
		row := make([]int32, len(b)+1)
		for _, x := range a {
			nextLengths(row, row, x, b)
		}
		common = int(row[len(b)])
	} else {
		common = newMatcher(b).common(a)
	}
	return math.RoundToEven(100*(2*float64(common)/float64(len(a)+len(b)))) / 100
}

// codeLine is the first line that is neither a comment nor code markup.
func codeLine(prediction string) string {
	for line := range strings.SplitSeq(strings.TrimLeft(prediction, "\n"), "\n") {
		if !strings.Contains(line, "`") && !strings.Contains(line, "#") && !strings.Contains(line, "//") {
			return line
		}
	}
	return ""
}

// matcher finds the matching blocks of a text b as Python's difflib does.
type matcher struct {
	b  []rune
	at map[rune][]int // places of each character, except the popular ones
}

// If b is at least this long, its frequent characters begin no block.
const popularFrom = 200

func newMatcher(b []rune) *matcher {
	m := &matcher{b: b, at: map[rune][]int{}}
	for j, r := range b {
		m.at[r] = append(m.at[r], j)
	}
	if n := len(b); n >= popularFrom {
		for r, at := range m.at {
			if len(at) > n/100+1 {
				delete(m.at, r)
			}
		}
	}
	return m
}

// common returns the total length of all matching blocks.
func (m *matcher) common(a []rune) int {
	type span struct{ alo, ahi, blo, bhi int }
	total := 0
	todo := []span{{0, len(a), 0, len(m.b)}}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		i, j, n := m.longest(a, s.alo, s.ahi, s.blo, s.bhi)
		if n == 0 {
			continue
		}
		total += n
		if s.alo < i && s.blo < j {
			todo = append(todo, span{s.alo, i, s.blo, j})
		}
		if i+n < s.ahi && j+n < s.bhi {
			todo = append(todo, span{i + n, s.ahi, j + n, s.bhi})
		}
	}
	return total
}

// longest returns the longest block within the ranges, extended over equal
// neighbours. Of several, it is the one that begins first in a, then in b.
func (m *matcher) longest(a []rune, alo, ahi, blo, bhi int) (i, j, n int) {
	i, j = alo, blo
	ending := map[int]int{} // length of the block that ends at the previous place of a and this place of b
	for x := alo; x < ahi; x++ {
		next := map[int]int{}
		for _, y := range m.at[a[x]] {
			if y < blo {
				continue
			}
			if y >= bhi {
				break
			}
			k := ending[y-1] + 1
			next[y] = k
			if k > n {
				i, j, n = x-k+1, y-k+1, k
			}
		}
		ending = next
	}
	for i > alo && j > blo && a[i-1] == m.b[j-1] {
		i, j, n = i-1, j-1, n+1
	}
	for i+n < ahi && j+n < bhi && a[i+n] == m.b[j+n] {
		n++
	}
	return i, j, n
}
