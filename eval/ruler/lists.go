package ruler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// hops is the number of assignments after the first in a chain.
const hops = 4

// letters draws a word of n letters that is not in used.
func letters(r *rand.Rand, n int, first byte, used map[string]bool, fits func(string) bool) string {
	b := make([]byte, n)
	for {
		for i := range b {
			b[i] = first + byte(r.IntN(26))
		}
		if s := string(b); !used[s] && (fits == nil || fits(s)) {
			used[s] = true
			return s
		}
	}
}

// variables is the task vt: a chain of assignments in noise, after a worked
// example of about 500 tokens.
func variables(x *draw) prompt {
	r := x.r
	used := map[string]bool{}
	var short []string
	for range hops + 1 {
		short = append(short, letters(r, 3, 'A', used, nil))
	}
	var long []string
	for range hops + 1 {
		long = append(long, letters(r, 5, 'A', used, func(s string) bool {
			for _, x := range short {
				if strings.Contains(s, x) {
					return false
				}
			}
			return true
		}))
	}
	first, second := 10000+r.IntN(89999), 0
	for second = 10000 + r.IntN(89999); second == first; {
		second = 10000 + r.IntN(89999)
	}
	const exampleLines = 14
	example, answer := x.chain(short, first, exampleLines), strings.Join(short, " ")
	p := x.chain(long, second, x.units)
	p.input = example.input + strings.TrimRight(example.prefix, " ") + " " + answer + "\n\n" + p.input
	p.outputs = long
	return p
}

// chain hides the assignments of one chain among lines of noise.
func (x *draw) chain(names []string, value, units int) prompt {
	lines := []string{fmt.Sprintf("VAR %s = %d", names[0], value)}
	for i := 1; i < len(names); i++ {
		lines = append(lines, fmt.Sprintf("VAR %s = VAR %s ", names[i], names[i-1]))
	}
	hay := make([]string, units)
	for i := range hay {
		hay[i] = x.noise()
	}
	context := strings.Join(insertLines(hay, places(x.r, units, len(lines)), lines), "\n")
	return x.wording(vtFamily).fill("{context}", context, "{query}", strconv.Itoa(value), "{num_v}", strconv.Itoa(len(names)))
}

// common is the number of words that cwe asks for.
const common = 10

// commonWords is the task cwe: a numbered list in which ten words are common,
// after a worked example with other words.
func commonWords(x *draw) prompt {
	example, often, seldom, exampleOften, exampleSeldom := 40, 30, 3, 10, 3
	if x.length < 4096 {
		example, often, seldom, exampleOften, exampleSeldom = 20, 6, 1, 3, 1
	}
	vocabulary := x.vocabulary(x.r, example+x.units)
	if vocabulary == nil {
		return prompt{lacking: "words"}
	}
	shown, shownAnswer := numbered(x, vocabulary[:example], exampleOften, exampleSeldom)
	list, answer := numbered(x, vocabulary[example:], often, seldom)
	fill := func(list string) prompt {
		return x.wording(cweFamily).fill("{context}", list, "{num_cw}", strconv.Itoa(common))
	}
	before, p := fill(shown), fill(list)
	words := make([]string, common)
	for i, w := range shownAnswer {
		words[i] = fmt.Sprintf("%d. %s", i+1, w)
	}
	p.input = before.input + before.prefix + " " + strings.Join(words, " ") + "\n" + p.input
	p.outputs = answer
	return p
}

// numbered makes a list in which each of the first ten words occurs often
// times, and each other word seldom times.
func numbered(x *draw, vocabulary []string, often, seldom int) (list string, answer []string) {
	var entries []string
	for i, w := range vocabulary {
		n := seldom
		if i < common {
			n = often
		}
		for range n {
			entries = append(entries, w)
		}
	}
	shuffle(x, entries)
	for i, w := range entries {
		entries[i] = fmt.Sprintf("%d. %s", i+1, w)
	}
	return strings.Join(entries, " "), vocabulary[:min(common, len(vocabulary))]
}

// frequentWords is the task fwe: coded words whose counts fall with the square of
// their rank. The first rank is dots; the next three are asked for.
func frequentWords(x *draw) prompt {
	const alpha, zeta = 2, math.Pi * math.Pi / 6
	r := x.r
	size := max(4, (x.length-50)/50)
	used := map[string]bool{}
	coded := []string{"..."}
	for len(coded) < size {
		coded = append(coded, letters(r, 6, 'a', used, nil))
	}
	var text []string
	for k := range coded {
		for range int(float64(x.units) * math.Pow(float64(k+1), -alpha) / zeta) {
			text = append(text, coded[k])
		}
	}
	shuffle(x, text)
	p := x.wording(fweFamily).fill("{context}", strings.Join(text, " "))
	p.outputs = coded[1:4]
	return p
}
