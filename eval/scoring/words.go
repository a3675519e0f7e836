package scoring

import (
	"math"
	"slices"
	"strings"
	"unicode"
)

// wordF1 is the harmonic mean of precision and recall of words (spec evaluation
// 5.2): lower case, without punctuation and articles, as multisets.
func wordF1(prediction, answer string) float64 {
	p, a := plainWords(prediction), plainWords(answer)
	count := map[string]int{}
	for _, w := range a {
		count[w]++
	}
	common := 0
	for _, w := range p {
		if count[w] > 0 {
			count[w]--
			common++
		}
	}
	if common == 0 {
		return 0
	}
	precision, recall := float64(common)/float64(len(p)), float64(common)/float64(len(a))
	return 2 * precision * recall / (precision + recall)
}

// plainWords are the words of a text in lower case, without ASCII punctuation
// and without the articles a, an and the.
func plainWords(s string) []string {
	s = strings.Map(func(r rune) rune {
		if r < 0x80 && (unicode.IsPunct(r) || unicode.IsSymbol(r)) {
			return -1
		}
		return r
	}, lower(s))
	var b strings.Builder
	rest := s
	for rest != "" {
		n := strings.IndexFunc(rest, func(r rune) bool { return !inWord(r) })
		if n < 0 {
			n = len(rest)
		}
		switch word := rest[:n]; word {
		case "a", "an", "the":
			b.WriteByte(' ')
		default:
			b.WriteString(word)
		}
		rest = rest[n:]
		n = strings.IndexFunc(rest, inWord)
		if n < 0 {
			n = len(rest)
		}
		b.WriteString(rest[:n])
		rest = rest[n:]
	}
	return strings.FieldsFunc(b.String(), isSpace)
}

// inWord reports whether r belongs to a word in the search for articles.
func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) || r == '_' }

// rougeL is the F value of summary-level ROUGE-L as a widespread package
// computes it (spec evaluation 5.3): over the set of words that lie on a longest
// common subsequence of any two sentences.
func rougeL(prediction, answer string) float64 {
	ref, cand := sentences(answer), sentences(prediction)
	if len(ref) == 0 || len(cand) == 0 {
		return 0
	}
	union := map[string]bool{}
	for _, r := range ref {
		for _, c := range cand {
			commonWords(r, c, union)
		}
	}
	recall := float64(len(union)) / float64(distinct(ref))
	precision := float64(len(union)) / float64(distinct(cand))
	return 2 * (precision * recall / (precision + recall + 1e-8))
}

// sentences splits a text at full stops, and each sentence into words. A piece
// of only white space is a sentence of one empty word.
func sentences(s string) [][]string {
	var out [][]string
	for piece := range strings.SplitSeq(s, ".") {
		if piece == "" {
			continue
		}
		words := strings.FieldsFunc(piece, isSpace)
		if len(words) == 0 {
			words = []string{""}
		}
		out = append(out, words)
	}
	return out
}

func distinct(sentences [][]string) int {
	seen := map[string]bool{}
	for _, s := range sentences {
		for _, w := range s {
			seen[w] = true
		}
	}
	return len(seen)
}

// commonWords adds the words of one longest common subsequence of r and c. If
// there are several, the trace-back decides: it moves towards the beginning of c
// unless the length above is greater.
func commonWords(r, c []string, union map[string]bool) {
	traceBack(r, c, func(above, left int32) bool { return above > left }, func(i int) { union[r[i]] = true })
}

// traceBack visits the places in a of a longest common subsequence of a and b, the last
// first. up decides whether it moves up rather than left, from the lengths in the
// table's cells above and to the left.
//
// The table of two long texts does not fit into memory: every step-th row is kept,
// about √len(a) of them, and the rows in between are computed again when the trace
// reaches them.
func traceBack[E comparable](a, b []E, up func(above, left int32) bool, visit func(i int)) {
	step := int(math.Sqrt(float64(len(a)))) + 1
	var kept [][]int32 // rows 0, step, …
	row := make([]int32, len(b)+1)
	for i, x := range a {
		if i%step == 0 {
			kept = append(kept, slices.Clone(row))
		}
		nextLengths(row, row, x, b)
	}
	rows := make([][]int32, step+1) // those from a kept one on, as far as they are needed
	for i, j, k := len(a), len(b), len(kept)-1; k >= 0 && j > 0; k-- {
		first := k * step
		rows[0] = kept[k]
		for n := first; n < i; n++ {
			if rows[n-first+1] == nil {
				rows[n-first+1] = make([]int32, len(b)+1)
			}
			nextLengths(rows[n-first+1], rows[n-first], a[n], b[:j])
		}
		for i > first && j > 0 {
			switch {
			case a[i-1] == b[j-1]:
				i, j = i-1, j-1
				visit(i)
			case up(rows[i-first-1][j], rows[i-first][j-1]):
				i--
			default:
				j--
			}
		}
	}
}

// nextLengths computes a row, [len(b)+1], of the table of lengths of longest common
// subsequences from the row above, for the element x; entry j is for the first j
// elements of b. row and above may be the same slice.
func nextLengths[E comparable](row, above []int32, x E, b []E) {
	corner := above[0]
	for j, y := range b {
		up := above[j+1]
		if x == y {
			row[j+1] = corner + 1
		} else {
			row[j+1] = max(up, row[j])
		}
		corner = up
	}
}

// numbers are the maximal runs of decimal digits of any script.
func numbers(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return !unicode.Is(unicode.Nd, r) })
}

// numberShare is the fraction of the numbers in a prediction that are the right one.
func numberShare(prediction, answer string) float64 {
	found, right := numbers(prediction), 0
	for _, n := range found {
		if n == answer {
			right++
		}
	}
	if len(found) == 0 {
		return 0
	}
	return float64(right) / float64(len(found))
}

// retrieval is the fraction of the numbers in a prediction that are the number
// of the paragraph named in the answer.
func retrieval(prediction, answer string) float64 {
	for rest := answer; ; {
		_, after, ok := strings.Cut(rest, "Paragraph ")
		if !ok {
			return 0
		}
		digits := strings.IndexFunc(after, func(r rune) bool { return !unicode.Is(unicode.Nd, r) })
		if digits < 0 {
			digits = len(after)
		}
		if digits > 0 {
			return numberShare(prediction, after[:digits])
		}
		rest = after
	}
}
