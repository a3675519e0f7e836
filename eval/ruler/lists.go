package ruler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// hops is the number of assignments behind the first of a chain.
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

// variables is the task vt: a chain of assignments in noise, behind a worked
// example of about 500 tokens.
func variables(r *rand.Rand, _, units int) prompt {
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
	example, prefix := chain(r, short, first, exampleLines)
	ask, answer := chain(r, long, second, units)
	return prompt{
		input:  example + prefix + strings.Join(short, " ") + "\n\n" + ask,
		prefix: answer, outputs: long,
	}
}

// chain hides the assignments of one chain among lines of noise.
func chain(r *rand.Rand, names []string, value, units int) (text, prefix string) {
	lines := []string{fmt.Sprintf("VAR %s = %d", names[0], value)}
	for i := 1; i < len(names); i++ {
		lines = append(lines, fmt.Sprintf("VAR %s = VAR %s ", names[i], names[i-1]))
	}
	hay := make([]string, units)
	for i := range hay {
		hay[i] = noiseBlock
	}
	context := strings.Join(insertLines(hay, places(r, units, len(lines)), lines), "\n")
	return fmt.Sprintf("Follow the chain of variable assignments that is hidden in the text below.\n\n%s\n"+
			"Question: Find all variables that are assigned the value %d in the text above.", context, value),
		fmt.Sprintf(" Answer: By the chain of assignments in the text above, %d variables are assigned the value %d. They are: ", len(names), value)
}

// common is the number of words that cwe asks for.
const common = 10

// commonWords is the task cwe: a numbered list in which ten words are common,
// behind a worked example with other words.
func commonWords(r *rand.Rand, length, units int) prompt {
	example, often, seldom, exampleOften, exampleSeldom := 40, 30, 3, 10, 3
	if length < 4096 {
		example, often, seldom, exampleOften, exampleSeldom = 20, 6, 1, 3, 1
	}
	vocabulary := listWords(r, example+units)
	shown, shownAnswer := numbered(r, vocabulary[:example], exampleOften, exampleSeldom)
	ask, answer := numbered(r, vocabulary[example:], often, seldom)
	const before = "Below is a numbered list of words. Some of them stand there more often than others. Remember those that stand there most often.\n"
	const question = "\nQuestion: What are the 10 most common words in the above list?"
	const prefix = " Answer: The top 10 words that stand most often in the list are:"
	list := make([]string, common)
	for i, w := range shownAnswer {
		list[i] = fmt.Sprintf("%d. %s", i+1, w)
	}
	return prompt{
		input:  before + shown + question + prefix + " " + strings.Join(list, " ") + "\n" + before + ask + question,
		prefix: prefix, outputs: answer,
	}
}

// listWords draws n distinct words: nouns and adjectives, then invented ones.
func listWords(r *rand.Rand, n int) []string {
	seen := map[string]bool{}
	var out []string
	for _, w := range append(append([]string{}, nouns...), adjectives...) {
		if !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	for len(out) < n {
		if w := strings.ToLower(name(r.IntN(names))); !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out[:n]
}

// numbered makes a list in which the first ten words stand often times, the
// others seldom times.
func numbered(r *rand.Rand, vocabulary []string, often, seldom int) (list string, answer []string) {
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
	r.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	for i, w := range entries {
		entries[i] = fmt.Sprintf("%d. %s", i+1, w)
	}
	return strings.Join(entries, " "), vocabulary[:min(common, len(vocabulary))]
}

// frequentWords is the task fwe: coded words whose counts fall with the square of
// their rank; the first rank is dots, the next three are asked for.
func frequentWords(r *rand.Rand, length, units int) prompt {
	const alpha, zeta = 2, math.Pi * math.Pi / 6
	size := max(4, (length-50)/50)
	used := map[string]bool{}
	coded := []string{"..."}
	for len(coded) < size {
		coded = append(coded, letters(r, 6, 'a', used, nil))
	}
	var text []string
	for k := range coded {
		for range int(float64(units) * math.Pow(float64(k+1), -alpha) / zeta) {
			text = append(text, coded[k])
		}
	}
	r.Shuffle(len(text), func(i, j int) { text[i], text[j] = text[j], text[i] })
	return prompt{
		input: "Read this coded text and find the three words that stand in it most often; dots between them mean nothing. " + strings.Join(text, " ") +
			"\nQuestion: Do not provide any explanation. Ignore the dots '....'. Which three words stand most often in the coded text above?",
		prefix:  " Answer: In the coded text above, the three words that stand most often are:",
		outputs: coded[1:4],
	}
}
