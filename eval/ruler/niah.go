package ruler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// haystack is what needles are hidden in.
type haystack int

const (
	noise   haystack = iota // one block of sentences, repeated on every line
	essay                   // words of essays
	needles                 // other needles
)

// kind says what keys or values are.
type kind int

const (
	words kind = iota
	number
	uuid
)

func (k kind) plural() string { return []string{"words", "numbers", "uuids"}[k] }

// niah is a task of needles: K keys with V values each, and Q of the keys asked
// for.
type niah struct {
	haystack              haystack
	key, value            kind
	keys, values, queried int // 0: 1
}

func (n niah) task(name string) task {
	n.values, n.queried = max(n.values, 1), max(n.queried, 1)
	n.keys = max(n.keys, n.queried, 1)
	return task{name, niahFamily, max(1, n.keys*n.values), n.make}
}

func needle(of kind, key, value string) string {
	return fmt.Sprintf("One of the special magic %s for %s is: %s.", of.plural(), key, value)
}

// drawn hands out keys and values, none of them twice, and no word that is part
// of another.
type drawn struct {
	r                 *rand.Rand
	s                 *Sources
	used              map[string]bool
	parts             map[string]bool // pairs that are part of one handed out
	adjectives, nouns map[string]bool
	lacking           string // what has run out
}

func newDrawn(x *draw) *drawn { return &drawn{r: x.r, s: x.Sources, used: map[string]bool{}} }

// next is empty if it finds no unused one in four times as many draws as there
// are; that many find even the very last one 98 times out of 100.
func (d *drawn) next(k kind) string {
	all := 9000000
	if k == words {
		adjectives, nouns := d.s.pairs()
		all = len(adjectives) * len(nouns)
	}
	for range 4 * all {
		s := ""
		switch k {
		case words:
			adjective, noun := d.s.pair(d.r)
			s = adjective + "-" + noun
		case number:
			s = fmt.Sprint(1000000 + d.r.IntN(9000000))
		case uuid:
			a, b := d.r.Uint64(), d.r.Uint64()
			s = fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0x3fff|0x8000, b&(1<<48-1))
		}
		if d.used[s] {
			continue
		}
		if k == words {
			within := d.pairsOf(s)
			if d.parts[s] || slices.ContainsFunc(within, func(p string) bool { return d.used[p] }) {
				continue
			}
			for _, p := range within {
				d.parts[p] = true
			}
		}
		d.used[s] = true
		return s
	}
	d.lacking = "words for keys"
	return ""
}

// pairsOf returns the adjective-noun pairs that are part of s, including s
// itself.
func (d *drawn) pairsOf(s string) []string {
	if d.parts == nil {
		adjectives, nouns := d.s.pairs()
		d.parts, d.adjectives, d.nouns = map[string]bool{}, set(adjectives), set(nouns)
	}
	var out []string
	for i := range len(s) {
		if s[i] != '-' {
			continue
		}
		for from := range i {
			if !d.adjectives[s[from:i]] {
				continue
			}
			for to := i + 2; to <= len(s); to++ {
				if d.nouns[s[i+1:to]] {
					out = append(out, s[from:to])
				}
			}
		}
	}
	return out
}

func set(words []string) map[string]bool {
	out := make(map[string]bool, len(words))
	for _, w := range words {
		out[w] = true
	}
	return out
}

func (n niah) make(x *draw) prompt {
	d, r := newDrawn(x), x.r
	var keys, lines []string
	values := map[string][]string{}
	for range n.keys {
		key := d.next(n.key)
		keys = append(keys, key)
		for range n.values {
			v := d.next(n.value)
			values[key] = append(values[key], v)
			lines = append(lines, needle(n.value, key, v))
		}
	}
	shuffle(x, lines)
	if d.lacking != "" {
		return prompt{lacking: d.lacking}
	}
	var asked, outputs []string
	for _, i := range r.Perm(len(keys))[:n.queried] {
		asked = append(asked, keys[i])
		outputs = append(outputs, values[keys[i]]...)
	}
	var context string
	if n.haystack == essay {
		context = insertSentences(r, x.essay(x.units), lines)
	} else {
		hay := make([]string, x.units)
		for i := range hay {
			hay[i] = x.noise()
			if n.haystack == needles {
				hay[i] = needle(n.value, d.next(n.key), d.next(n.value))
			}
			if d.lacking != "" {
				break
			}
		}
		if d.lacking != "" {
			return prompt{lacking: d.lacking}
		}
		context = strings.Join(insertLines(hay, places(r, x.units, len(lines)), lines), "\n")
	}
	query := asked[0]
	if len(asked) > 1 {
		query = strings.Join(asked[:len(asked)-1], ", ") + ", and " + asked[len(asked)-1]
	}
	what, w := n.value.plural(), x.wording(niahFamily)
	if n.queried*n.values == 1 {
		what = strings.TrimSuffix(what, "s")
		w.Template, w.AnswerPrefix = singular.Replace(w.Template), singular.Replace(w.AnswerPrefix)
	}
	p := w.fill("{type_needle_v}", what, "{context}", context, "{query}", query)
	p.outputs = outputs
	return p
}

// singular puts the words of a template into the singular, as RULER does.
var singular = strings.NewReplacer("Some", "A", "are all", "is", "are", "is", "answers", "answer")

// places draws n distinct lines out of h, in ascending order. Only the smallest
// haystacks have fewer lines than needles.
func places(r *rand.Rand, h, n int) []int {
	at := r.Perm(max(h, n))[:n]
	slices.Sort(at)
	return at
}

// insertLines puts the j-th new line before line at[j] of hay.
func insertLines(hay []string, at []int, lines []string) []string {
	out := make([]string, 0, len(hay)+len(lines))
	j := 0
	for i := 0; i <= len(hay); i++ {
		for j < len(lines) && (at[j] == i || i == len(hay)) {
			out = append(out, lines[j])
			j++
		}
		if i < len(hay) {
			out = append(out, hay[i])
		}
	}
	return out
}

// depths are the percentages of an essay at which needles may stand.
var depths = func() []int {
	out := make([]int, 40)
	for i := range out {
		out[i] = int(math.Round(100 * float64(i) / 39))
	}
	return out
}()

// insertSentences puts needles between sentences, each at a different depth.
func insertSentences(r *rand.Rand, sentences, lines []string) string {
	var at []int
	for _, i := range r.Perm(len(depths))[:len(lines)] {
		at = append(at, int(float64(len(sentences))*(float64(depths[i])/100)))
	}
	slices.Sort(at)
	return strings.Join(insertLines(sentences, at, lines), " ")
}
