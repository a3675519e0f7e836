package ruler

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lukv/lukv/internal/inputfile"
)

// Sources are a user's texts in place of the built-in ones. The zero value has none.
// Each Read method reads one of them; after that, Sources may be shared.
type Sources struct {
	essays            []string // words
	noiseBlock        string
	adjectives, nouns []string
	verbs, moreWords  []string
	squad, hotpot     *collection
	wordings          map[string]promptText
}

// promptText is the wording of the prompts of a family of tasks, with RULER's slots.
type promptText struct {
	Template     string `json:"template"`
	AnswerPrefix string `json:"answer_prefix"`
	Tokens       int    `json:"tokens_to_generate"`
}

// The families, by RULER's names.
const (
	niahFamily = "niah"
	vtFamily   = "variable_tracking"
	cweFamily  = "common_words_extraction"
	fweFamily  = "freq_words_extraction"
	qaFamily   = "qa"
)

const qaOrder = "Answer the question based on the given documents. Write the answer alone and nothing else."

// builtinWordings keep the phrases that readers of RULER's files look for.
var builtinWordings = map[string]promptText{
	niahFamily: {"Some special magic {type_needle_v} are hidden in the text below. Remember what you read: you will be asked for it afterwards.\n{context}\n" +
		"What are all the special magic {type_needle_v} for {query} in this text?",
		" The special magic {type_needle_v} for {query} in this text are", 128},
	vtFamily: {"Follow the chain of variable assignments that is hidden in the text below.\n\n{context}\n" +
		"Question: Find all variables that are assigned the value {query} in the text above.",
		" Answer: By the chain of assignments in the text above, {num_v} variables are assigned the value {query}. They are: ", 30},
	cweFamily: {"Below is a numbered list of words. Some of them stand there more often than others. Remember those that stand there most often.\n{context}" +
		"\nQuestion: What are the 10 most common words in the above list?",
		" Answer: The top {num_cw} words that stand most often in the list are:", 120},
	fweFamily: {"Read this coded text and find the three words that stand in it most often; dots between them mean nothing. {context}" +
		"\nQuestion: Do not provide any explanation. Ignore the dots '....'. Which three words stand most often in the coded text above?",
		" Answer: In the coded text above, the three words that stand most often are:", 50},
	qaFamily: {qaOrder + "\n\nThese are the documents.\n\n{context}\n\n" + qaOrder + "\n\nQuestion: {query}", " Answer:", 32},
}

// slots are those that a family's template must have.
var slots = map[string][]string{
	niahFamily: {"{context}", "{query}"}, vtFamily: {"{context}", "{query}"}, cweFamily: {"{context}"}, fweFamily: {"{context}"}, qaFamily: {"{context}", "{query}"},
}

func (s *Sources) wording(family string) promptText {
	if w, ok := s.wordings[family]; ok {
		return w
	}
	return builtinWordings[family]
}

// fill replaces slots, given as pairs of name and text, and does not look for
// slots in what it fills in.
func (w promptText) fill(pairs ...string) prompt {
	r := strings.NewReplacer(pairs...)
	return prompt{input: r.Replace(w.Template), prefix: r.Replace(w.AnswerPrefix)}
}

const builtinNoise = "The sand is warm. The sea is cold. The hill is high. On we walk. Home we come again."

func (s *Sources) noise() string { return cmp.Or(s.noiseBlock, builtinNoise) }

// pairs returns the words that keys are made of.
func (s *Sources) pairs() (adj, noun []string) {
	if s.nouns != nil {
		return s.adjectives, s.nouns
	}
	return adjectives, nouns
}

// pair draws an adjective and a noun.
func (s *Sources) pair(r *rand.Rand) (adjective, noun string) {
	a, n := s.pairs()
	return a[r.IntN(len(a))], n[r.IntN(len(n))]
}

// essay returns the sentences of the first n words of the essays, which repeat
// if they are shorter. The last sentence may be cut off.
func (s *Sources) essay(n int) []string {
	if s.essays == nil {
		return builtinSentences(n)
	}
	words := make([]string, n)
	for i := range words {
		words[i] = s.essays[i%len(s.essays)]
	}
	return sentences(words)
}

// abbreviations do not end a sentence.
var abbreviations = []string{"Mr.", "Mrs.", "Ms.", "Dr.", "Prof.", "St.", "Jr.", "Sr.", "vs.", "e.g.", "i.e.", "etc.", "No.", "Inc.", "Co.", "U.S."}

// sentences joins words into sentences. One ends with a word that ends in a full
// stop, exclamation mark or question mark, perhaps with a closing quote, if the next
// word can begin a sentence.
func sentences(words []string) []string {
	var out []string
	from := 0
	for i, w := range words {
		end := strings.TrimRight(w, "\"'”’)")
		ends := strings.HasSuffix(end, ".") || strings.HasSuffix(end, "!") || strings.HasSuffix(end, "?")
		if !ends || slices.Contains(abbreviations, w) || i+1 < len(words) && !begins(words[i+1]) {
			continue
		}
		out = append(out, strings.Join(words[from:i+1], " "))
		from = i + 1
	}
	if from < len(words) {
		out = append(out, strings.Join(words[from:], " "))
	}
	return out
}

// begins reports whether a word can begin a sentence.
func begins(w string) bool {
	r := []rune(w)[0]
	return unicode.IsUpper(r) || unicode.IsDigit(r) || strings.ContainsRune("\"'“‘", r)
}

// vocabulary draws n distinct words: nouns, adjectives and verbs, then further ones,
// then invented ones. It returns nil if there are too few.
func (s *Sources) vocabulary(r *rand.Rand, n int) []string {
	seen := map[string]bool{}
	var out []string
	add := func(lists ...[]string) {
		from := len(out)
		for _, list := range lists {
			for _, w := range list {
				if !seen[w] {
					seen[w] = true
					out = append(out, w)
				}
			}
		}
		more := out[from:]
		r.Shuffle(len(more), func(i, j int) { more[i], more[j] = more[j], more[i] })
	}
	if s.nouns != nil {
		add(s.nouns, s.adjectives, s.verbs)
	} else {
		add(nouns, adjectives)
	}
	if len(out) < n && s.moreWords != nil {
		add(s.moreWords)
	}
	if n-len(out) > names/2 { // there may not be enough names
		free := 0
		for i := range names {
			if !seen[strings.ToLower(name(i))] {
				free++
			}
		}
		if n-len(out) > free {
			return nil
		}
	}
	for len(out) < n {
		if w := strings.ToLower(name(r.IntN(names))); !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out[:n]
}

// label is "builtin" if a task uses texts of this project.
func (s *Sources) label(task string) string {
	own := map[string]bool{"niah": s.nouns == nil, "cwe": s.nouns == nil, "vt": s.noiseBlock == "", "qa_1": s.squad == nil, "qa_2": s.hotpot == nil}
	family, _, _ := strings.Cut(task, "_")
	long := map[string]string{"niah": niahFamily, "vt": vtFamily, "cwe": cweFamily, "fwe": fweFamily, "qa": qaFamily}[family]
	_, worded := s.wordings[long]
	is := !worded || own[family] || own[task]
	switch task {
	case "niah_single_1":
		is = is || s.noiseBlock == ""
	case "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery":
		is = is || s.essays == nil
	case "niah_multikey_3": // uuids among uuids
		is = !worded
	}
	if is {
		return "builtin"
	}
	return ""
}

// maxSource bounds a user's file, in bytes.
const maxSource = 1 << 30

// errNotUTF8 reports a file in another encoding, whose characters would be lost.
var errNotUTF8 = errors.New("not UTF-8: convert the file first")

// readFile reads a file of text.
func readFile(path string) ([]byte, error) {
	data, err := inputfile.Read(path, maxSource)
	if err == nil && !utf8.Valid(data) {
		err = fmt.Errorf("%s: %w", path, errNotUTF8)
	}
	return data, err
}

// read decodes a JSON file into a value.
func read(what, path string, v any) error {
	data, err := readFile(path)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("read %s %s: %w", what, path, err)
	}
	return nil
}

// lines reads the words of a file, one per line, sorted and each once.
func lines(what, path string) ([]string, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	out := strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	slices.Sort(out)
	out = slices.DeleteFunc(slices.Compact(out), func(s string) bool { return s == "" })
	if len(out) == 0 {
		return nil, fmt.Errorf("read %s %s: no words", what, path)
	}
	return out, nil
}

// ReadTemplates reads prompts as JSON: {family: {"template", "answer_prefix",
// "tokens_to_generate"}} with RULER's families and slots.
func (s *Sources) ReadTemplates(path string) error {
	w := map[string]promptText{}
	if err := read("templates", path, &w); err != nil {
		return err
	}
	for family, x := range w {
		need, ok := slots[family]
		if !ok {
			return fmt.Errorf("read templates %s: family %q, expected one of niah, variable_tracking, common_words_extraction, freq_words_extraction, qa", path, family)
		}
		for _, slot := range need {
			if !strings.Contains(x.Template, slot) {
				return fmt.Errorf("read templates %s: %s: the template has no %s", path, family, slot)
			}
		}
		if x.Tokens < 1 {
			return fmt.Errorf("read templates %s: %s: tokens_to_generate is %d, expected 1 or more", path, family, x.Tokens)
		}
	}
	s.wordings = w
	return nil
}

// ReadEssays reads the text that needles are hidden in: {"text": …} as JSON, a
// .txt file, or a folder of these, joined in order of name.
func (s *Sources) ReadEssays(path string) error {
	var text strings.Builder
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("read essays: %w", err)
	case info.IsDir():
		names, err := fs.Glob(inputfile.Dir(path), "*.txt")
		if err != nil {
			return fmt.Errorf("read essays: %w", err)
		}
		for _, name := range names {
			data, err := readFile(filepath.Join(path, name))
			if err != nil {
				return fmt.Errorf("read essays: %w", err)
			}
			text.Write(data)
			text.WriteByte('\n')
		}
	case strings.HasSuffix(path, ".json"):
		var x struct{ Text string }
		if err := read("essays", path, &x); err != nil {
			return err
		}
		text.WriteString(x.Text)
	default:
		data, err := readFile(path)
		if err != nil {
			return fmt.Errorf("read essays: %w", err)
		}
		text.Write(data)
	}
	if s.essays = strings.Fields(text.String()); len(s.essays) == 0 {
		return fmt.Errorf("read essays %s: no text", path)
	}
	return nil
}

// ReadNoise reads the block of sentences that fills lines.
func (s *Sources) ReadNoise(path string) error {
	data, err := readFile(path)
	if err != nil {
		return fmt.Errorf("read noise: %w", err)
	}
	if s.noiseBlock = strings.Join(strings.Fields(string(data)), " "); s.noiseBlock == "" {
		return fmt.Errorf("read noise %s: no text", path)
	}
	return nil
}

// ReadWords reads nounlist.txt, adjectivelist.txt and verblist.txt in a folder, one word per
// line.
func (s *Sources) ReadWords(dir string) error {
	for name, list := range map[string]*[]string{"nounlist.txt": &s.nouns, "adjectivelist.txt": &s.adjectives, "verblist.txt": &s.verbs} {
		words, err := lines("words", filepath.Join(dir, name))
		if err != nil {
			return err
		}
		*list = words
	}
	return nil
}

// ReadMoreWords reads words for long lists: the values of a JSON object, or one word per
// line.
func (s *Sources) ReadMoreWords(path string) (err error) {
	if !strings.HasSuffix(path, ".json") {
		s.moreWords, err = lines("more words", path)
		return err
	}
	words := map[string]string{}
	if err := read("more words", path, &words); err != nil {
		return err
	}
	for _, w := range words {
		s.moreWords = append(s.moreWords, w)
	}
	slices.Sort(s.moreWords)
	return nil
}

// ReadSQuAD reads SQuAD 2.0: paragraphs and the questions that can be answered.
func (s *Sources) ReadSQuAD(path string) error {
	var x struct {
		Data []struct {
			Paragraphs []struct {
				Context string
				QAs     []struct {
					Question   string
					Impossible bool `json:"is_impossible"`
					Answers    []struct{ Text string }
				}
			}
		}
	}
	if err := read("SQuAD", path, &x); err != nil {
		return err
	}
	c := &collection{}
	at := map[string]int{}
	for article, d := range x.Data {
		for _, p := range d.Paragraphs {
			doc, ok := at[p.Context]
			if !ok {
				doc = len(c.documents)
				at[p.Context] = doc
				c.documents, c.article = append(c.documents, p.Context), append(c.article, article)
			}
			for _, q := range p.QAs {
				var answers []string
				for _, a := range q.Answers {
					if a.Text != "" {
						answers = append(answers, a.Text)
					}
				}
				if !q.Impossible && len(answers) > 0 {
					c.questions = append(c.questions, question{q.Question, answers, []int{doc}})
				}
			}
		}
	}
	if len(c.questions) == 0 {
		return fmt.Errorf("read SQuAD %s: %w", path, errNoQuestions)
	}
	s.squad = c
	return nil
}

var errNoQuestions = errors.New("no questions with answers")

// ReadHotpot reads HotpotQA's distractor setting.
func (s *Sources) ReadHotpot(path string) error {
	var x []struct {
		Question, Answer string
		Context          [][]json.RawMessage // [title, [sentence, …]]
	}
	if err := read("HotpotQA", path, &x); err != nil {
		return err
	}
	c := &collection{}
	at := map[string]int{}
	for i, q := range x {
		var gold []int
		for _, d := range q.Context {
			var title string
			var text []string
			if len(d) != 2 || json.Unmarshal(d[0], &title) != nil || json.Unmarshal(d[1], &text) != nil {
				return fmt.Errorf("read HotpotQA %s: question %d: expected context as [[title, [sentence, …]], …]", path, i)
			}
			whole := title + "\n" + strings.Join(text, "")
			doc, ok := at[whole]
			if !ok {
				doc = len(c.documents)
				at[whole] = doc
				c.documents = append(c.documents, whole)
			}
			if !slices.Contains(gold, doc) {
				gold = append(gold, doc)
			}
		}
		if q.Answer != "" && len(gold) > 0 {
			c.questions = append(c.questions, question{q.Question, []string{q.Answer}, gold})
		}
	}
	if len(c.questions) == 0 {
		return fmt.Errorf("read HotpotQA %s: %w", path, errNoQuestions)
	}
	s.hotpot = c
	return nil
}
