package calibration

import "strings"

// facts are hidden in the narrative by NarrativeProbes: plain ones, and ones whose
// answer takes a step of reasoning because the other choice is stated beside it.
var facts = []Probe{
	{Needle: "The password of the night watchman is amber falcon.", Question: "What is the password of the night watchman?", Answer: "amber falcon"},
	{Needle: "Of the red kite and the green kite Odette keeps the one with the longer tail, and the tail of the green kite is longer.", Question: "Which kite does Odette keep?", Answer: "the green kite"},
	{Needle: "Corporal Hesketh was born on the fourth of October.", Question: "On which day was Corporal Hesketh born?", Answer: "the fourth of October"},
	{Needle: "The prize goes to the older of two sisters, and Philippa is older than Marian.", Question: "Which sister gets the prize?", Answer: "Philippa"},
	{Needle: "The number of the locker at the swimming baths is 5183.", Question: "What is the number of the locker at the swimming baths?", Answer: "5183"},
	{Needle: "Mr Abernathy takes the cheaper of two trains, and the slow train costs more than the express.", Question: "Which train does Mr Abernathy take?", Answer: "the express"},
	{Needle: "The favourite dish of the bell-ringer is mushroom soup.", Question: "What is the favourite dish of the bell-ringer?", Answer: "mushroom soup"},
	{Needle: "Whoever jumps farther may choose first, and Rufus jumped farther than Leopold.", Question: "Who may choose first?", Answer: "Rufus"},
	{Needle: "The parcel for the dentist lies behind the piano.", Question: "Where does the parcel for the dentist lie?", Answer: "behind the piano"},
	{Needle: "The choir sings in the warmer of two halls, and the north hall is colder than the south hall.", Question: "In which hall does the choir sing?", Answer: "the south hall"},
	{Needle: "The sailing boat of the twins is called Quiet Thunder.", Question: "What is the sailing boat of the twins called?", Answer: "Quiet Thunder"},
	{Needle: "Greta buys the heavier of two lamps, and the copper lamp is lighter than the iron lamp.", Question: "Which lamp does Greta buy?", Answer: "the iron lamp"},
	{Needle: "The painter of the blue fence comes from Lisbon.", Question: "From which city does the painter of the blue fence come?", Answer: "Lisbon"},
	{Needle: "The museum shows the younger of two maps, and the map of Crete is older than the map of Malta.", Question: "Which map does the museum show?", Answer: "the map of Malta"},
	{Needle: "The apprentice of the clockmaker earns ninety crowns.", Question: "How much does the apprentice of the clockmaker earn?", Answer: "ninety crowns"},
	{Needle: "The bridge is named after the faster of two riders, and Valentin rides faster than Osmund.", Question: "After whom is the bridge named?", Answer: "Valentin"},
}

// NarrativeProbes returns probes of the embedded text: facts that have nothing to do
// with it, spread over it.
func NarrativeProbes() []Probe {
	sentences := strings.SplitAfter(narrative, ". ")
	var b strings.Builder
	next := 0
	for i, s := range sentences {
		b.WriteString(s)
		for ; next < len(facts) && (i+1)*(len(facts)+1) >= (next+1)*len(sentences); next++ {
			b.WriteString(facts[next].Needle + " ")
		}
	}
	context := b.String()
	out := make([]Probe, len(facts))
	for i, f := range facts {
		f.Context, f.AnswerPrefix = context, "Answer:"
		out[i] = f
	}
	return out
}
