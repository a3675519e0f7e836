package ruler

import (
	_ "embed"
	"math/rand/v2"
	"strings"
	"sync"
)

//go:embed words.txt
var wordList string

// adjectives and nouns have no word in common except "stable".
var adjectives, nouns = func() ([]string, []string) {
	a, n, _ := strings.Cut(wordList, "\n\n")
	return strings.Fields(a), strings.Fields(n)
}()

// essays are the sentences of the built-in essays made so far. They come from a
// grammar over the word lists, are always the same, and do not repeat.
var essays struct {
	sync.Mutex
	r         *rand.Rand
	sentences [][]string
	words     int
}

// builtinSentences returns the sentences of the first n words of the essays. The
// last sentence may be cut off.
func builtinSentences(n int) []string {
	e := &essays
	e.Lock()
	defer e.Unlock()
	if e.r == nil {
		e.r = rand.New(rand.NewPCG(7, 11))
	}
	for e.words < n {
		s := strings.Fields(sentence(e.r))
		e.sentences = append(e.sentences, s)
		e.words += len(s)
	}
	var out []string
	for _, s := range e.sentences {
		if n <= 0 {
			break
		}
		out = append(out, strings.Join(s[:min(n, len(s))], " "))
		n -= len(s)
	}
	return out
}

// sentence makes one sentence.
func sentence(r *rand.Rand) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	noun := func() string {
		return adjectives[r.IntN(len(adjectives))] + " " + nouns[r.IntN(len(nouns))]
	}
	verb := func() string {
		return pick("resembles", "explains", "outlives", "rewards", "hides", "needs", "follows", "improves", "teaches", "carries", "answers", "repeats")
	}
	switch r.IntN(6) {
	case 0:
		return "Most people believe that every " + noun() + " " + verb() + " a " + noun() + "."
	case 1:
		return "When I was young, the " + noun() + " " + verb() + " the " + noun() + ", " + pick("and nobody asked why", "or so it seemed", "which surprised us all") + "."
	case 2:
		return "The " + noun() + " " + verb() + " what the " + noun() + " only promises."
	case 3:
		return pick("In practice", "Over the years", "To be honest", "In the end") + ", a " + noun() + " " + verb() + " more than any " + noun() + "."
	case 4:
		return "There is a reason why the " + noun() + " " + verb() + " the " + noun() + ": it takes less " + pick("time", "courage", "money", "patience") + "."
	}
	return "If the " + noun() + " " + verb() + " you, look for a " + noun() + " instead."
}

// name is the i-th invented name, six letters long; no two are alike.
func name(i int) string {
	const consonants, vowels = "bdfglmnprstvz", "aeiou"
	b := make([]byte, 0, 6)
	for range 3 {
		x := i % (len(consonants) * len(vowels))
		i /= len(consonants) * len(vowels)
		b = append(b, consonants[x%len(consonants)], vowels[x/len(consonants)])
	}
	b[0] -= 'a' - 'A'
	return string(b)
}

// names is the number of names.
const names = 65 * 65 * 65
