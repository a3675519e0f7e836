package ruler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// collection holds a user's documents and the questions about them.
type collection struct {
	documents []string
	article   []int // of each document, as those of one article go together; nil: none do
	questions []question
}

type question struct {
	text    string
	answers []string
	gold    []int // documents that it needs
}

// askUsers asks the sample's question, in the order of the file, over its own
// documents, then others of their article, then any others.
func (x *draw) askUsers(c *collection) prompt {
	q := &c.questions[max(0, x.sample)%len(c.questions)]
	chosen := slices.Clone(q.gold)
	taken := map[int]bool{}
	for _, i := range chosen {
		taken[i] = true
	}
	take := func(from []int) {
		x.r.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
		for _, i := range from {
			if len(chosen) < x.units && !taken[i] {
				taken[i] = true
				chosen = append(chosen, i)
			}
		}
	}
	if c.article != nil {
		var same []int
		for i, a := range c.article {
			if a == c.article[q.gold[0]] {
				same = append(same, i)
			}
		}
		take(same)
	}
	for len(chosen) < x.units {
		take(x.r.Perm(len(c.documents)))
		clear(taken) // the collection is too small: start over
	}
	texts := make([]string, len(chosen))
	for k, i := range chosen {
		texts[k] = c.documents[i]
	}
	return x.ask(texts, q.text, q.answers...)
}

// world hands out invented names, each once.
type world struct {
	at, step, given int
	r               *rand.Rand
}

func newWorld(r *rand.Rand) *world {
	// A step that has no factor in common with names = 65³ = 5³·13³ visits all
	// of them.
	step := 1 + r.IntN(names-1)
	for step%5 == 0 || step%13 == 0 {
		step++
	}
	return &world{at: r.IntN(names), step: step, r: r}
}

func (w *world) name() string {
	w.at = (w.at + w.step) % names
	w.given++
	return name(w.at)
}

// lacking reports whether names were handed out twice, so that questions may
// have two answers.
func (w *world) lacking() bool { return w.given > names }

func (w *world) pick(list ...string) string { return list[w.r.IntN(len(list))] }

func (w *world) year() int { return 1500 + w.r.IntN(400) }

// place is a document about a place with the person who founded it.
func (w *world) place() (text, place, founder string) {
	place, founder = w.name(), w.name()+" "+w.name()
	return fmt.Sprintf("%s is a %s on the river %s. It was founded by %s in the year %d. Its people are known for their %s, and every %s they %s.",
		place, w.pick("town", "village", "harbor", "fortress"), w.name(), founder, w.year(),
		w.pick("glass", "bells", "cheese", "boats", "carpets", "clocks"), w.pick("spring", "summer", "autumn", "winter"),
		w.pick("dance on the bridge", "burn a straw tower", "race their goats", "float candles to the sea")), place, founder
}

// person is a document about the writer of a song.
func (w *world) person(song string) (text, name string) {
	name = w.name() + " " + w.name()
	return fmt.Sprintf("%s\n%s was a %s from %s, born in %d. The song %s is the best known of all that %s wrote.",
		name, name, w.pick("fiddler", "singer", "teacher", "smith"), w.name(), w.year(), song, name), name
}

// song is a document about a song and the city that heard it first.
func (w *world) song() (text, song, city string) {
	song, city = w.name(), w.name()
	return fmt.Sprintf("%s\n%s is a song about a %s. It was first performed in the city of %s in %d, %s.",
		song, song, nouns[w.r.IntN(len(nouns))], city, w.year(), w.pick("to great applause", "in an empty hall", "at a wedding", "during a storm")), song, city
}

// ask shuffles the documents, joins them and asks the question.
func (x *draw) ask(documents []string, question string, outputs ...string) prompt {
	shuffle(x, documents)
	var b strings.Builder
	for i, d := range documents {
		if i > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, "Document %d:\n%s", i+1, d)
	}
	p := x.wording(qaFamily).fill("{context}", b.String(), "{query}", question)
	p.outputs = outputs
	return p
}

// oneDocument is the task qa_1: one document has the answer.
func oneDocument(x *draw) prompt {
	if x.squad != nil {
		return x.askUsers(x.squad)
	}
	w := newWorld(x.r)
	text, place, founder := w.place()
	documents := []string{text}
	for len(documents) < x.units && !w.lacking() {
		text, _, _ := w.place()
		documents = append(documents, text)
	}
	if w.lacking() {
		return prompt{lacking: "names"}
	}
	return x.ask(documents, fmt.Sprintf("Who founded %s?", place), founder)
}

// twoDocuments is the task qa_2: the answer needs two documents, and is yes or
// no for about every fifth question.
func twoDocuments(x *draw) prompt {
	if x.hotpot != nil {
		return x.askUsers(x.hotpot)
	}
	r, w := x.r, newWorld(x.r)
	songText, song, city := w.song()
	personText, person := w.person(song)
	documents := []string{songText, personText}
	for i := 2; i < x.units && !w.lacking(); i++ {
		text, other, _ := w.song()
		if i%2 == 1 {
			text, _ = w.person(other)
		}
		documents = append(documents, text)
	}
	if w.lacking() {
		return prompt{lacking: "names"}
	}
	if r.IntN(5) == 0 {
		answer, where := "yes", city
		if r.IntN(2) == 0 {
			answer, where = "no", w.name()
		}
		return x.ask(documents, fmt.Sprintf("Was the best known song of %s first performed in %s?", person, where), answer)
	}
	return x.ask(documents, fmt.Sprintf("In which city was the best known song of %s first performed?", person), city)
}
