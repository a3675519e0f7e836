package ruler

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// world gives out invented names, each once.
type world struct {
	at, step int
	r        *rand.Rand
}

func newWorld(r *rand.Rand) *world {
	// A step that has no factor of names = 65³ = 5³·13³ in common visits all.
	step := 1 + r.IntN(names-1)
	for step%5 == 0 || step%13 == 0 {
		step++
	}
	return &world{at: r.IntN(names), step: step, r: r}
}

func (w *world) name() string {
	w.at = (w.at + w.step) % names
	return name(w.at)
}

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

// person is a document about somebody who wrote a song.
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

// ask joins documents in any order and asks.
func ask(r *rand.Rand, documents []string, question string, outputs ...string) prompt {
	r.Shuffle(len(documents), func(i, j int) { documents[i], documents[j] = documents[j], documents[i] })
	var b strings.Builder
	for i, d := range documents {
		if i > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, "Document %d:\n%s", i+1, d)
	}
	const order = "Answer the question based on the given documents. Write the answer alone and nothing else."
	return prompt{
		input:  order + "\n\nThese are the documents.\n\n" + b.String() + "\n\n" + order + "\n\nQuestion: " + question,
		prefix: " Answer:", outputs: outputs,
	}
}

// oneDocument is the task qa_1: one document has the answer.
func oneDocument(r *rand.Rand, _, units int) prompt {
	w := newWorld(r)
	text, place, founder := w.place()
	documents := []string{text}
	for len(documents) < units {
		text, _, _ := w.place()
		documents = append(documents, text)
	}
	return ask(r, documents, fmt.Sprintf("Who founded %s?", place), founder)
}

// twoDocuments is the task qa_2: the answer takes two documents, and is yes or
// no for every fifth question or so.
func twoDocuments(r *rand.Rand, _, units int) prompt {
	w := newWorld(r)
	songText, song, city := w.song()
	personText, person := w.person(song)
	documents := []string{songText, personText}
	for i := 2; i < units; i++ {
		text, other, _ := w.song()
		if i%2 == 1 {
			text, _ = w.person(other)
		}
		documents = append(documents, text)
	}
	if r.IntN(5) == 0 {
		answer, where := "yes", city
		if r.IntN(2) == 0 {
			answer, where = "no", w.name()
		}
		return ask(r, documents, fmt.Sprintf("Was the best known song of %s first performed in %s?", person, where), answer)
	}
	return ask(r, documents, fmt.Sprintf("In which city was the best known song of %s first performed?", person), city)
}
