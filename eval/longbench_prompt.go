package eval

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/internal/inputfile"
)

// LongBench says how LongBench's records become prompts. nil is the default.
type LongBench struct {
	// Prompts and MaxNew are LongBench's own dataset2prompt.json and
	// dataset2maxlen.json, see [ReadLongBench]; nil: this project's own wording
	// with the same structure and lengths.
	Prompts map[string]string
	MaxNew  map[string]int

	// ExactLength takes the lengths of answers as they are, including
	// InfiniteBench's. Otherwise they are 20 tokens longer, as in the tables
	// that kvpress publishes.
	ExactLength bool
}

// longbenchExtra is what kvpress adds to the lengths of answers.
const longbenchExtra = 20

// maxLongBenchConfig bounds a file of LongBench's configuration, in bytes.
const maxLongBenchConfig = 1 << 20

// ReadLongBench reads the two files of LongBench's configuration. Every one of the
// sixteen datasets must be in both.
func ReadLongBench(dir fs.FS) (*LongBench, error) {
	var l LongBench
	for name, v := range map[string]any{"dataset2prompt.json": &l.Prompts, "dataset2maxlen.json": &l.MaxNew} {
		data, err := inputfile.ReadFS(dir, name, maxLongBenchConfig)
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			return nil, fmt.Errorf("read LongBench's configuration: %s: %w", name, err)
		}
	}
	for _, name := range scoring.Datasets() {
		if _, _, _, err := splitLongBench(name, l.Prompts[name], "c", "i"); err != nil {
			return nil, fmt.Errorf("read LongBench's configuration: dataset2prompt.json: %s: %w", name, err)
		}
		if n := l.MaxNew[name]; n < 1 {
			return nil, fmt.Errorf("read LongBench's configuration: dataset2maxlen.json: %s: found %d, expected 1 or more", name, n)
		}
	}
	return &l, nil
}

// longbenchPrompt says how a dataset's prompt is taken apart (spec evaluation
// 4.2) and holds the default prompt.
type longbenchPrompt struct {
	question string // begins at its last match; "": no question
	answer   string // the answer prefix: the prompt's end, or the input's
	maxNew   int
	prompt   string
}

const (
	slotContext = "{context}"
	slotInput   = "{input}"
)

// ask is the wording of the questions about documents.
func ask(instruction, documents string) string {
	return instruction + "\n\n" + documents + "\n" + slotContext + "\n\n" + instruction + "\n\nQuestion: " + slotInput + "\nAnswer:"
}

var longbenchPrompts = func() map[string]longbenchPrompt {
	const (
		question = "Question: " + slotInput
		short    = "Answer the question from the text. Write the answer alone, in as few words as possible."
		passages = "Answer the question from the passages. Write the answer alone and nothing else."
	)
	about := func(documents string) string { return ask(passages, documents) }
	return map[string]longbenchPrompt{
		"narrativeqa": {question, "Answer:", 128, ask("A story or a script follows, and then a question. "+short, "Story:")},
		"qasper": {question, "Answer:", 128, ask(`A scientific article follows, and then a question. Answer it in a phrase or a sentence. If the article does not say, write "unanswerable". `+
			`If it asks yes or no, write "yes", "no" or "unanswerable". Write nothing else.`, "Article:")},
		"multifieldqa_en": {question, "Answer:", 64, ask(short, "Text:")},
		"hotpotqa":        {question, "Answer:", 32, about("Passages:")},
		"2wikimqa":        {question, "Answer:", 32, about("Passages:")},
		"musique":         {question, "Answer:", 32, about("Passages:")},
		"gov_report": {"Now, write", "Summary:", 512, "A report of a government agency follows. Summarise it on one page.\n\nReport:\n" + slotContext +
			"\n\nNow, write the summary of the report on one page.\n\nSummary:"},
		"qmsum": {"Query: " + slotInput, "Answer:", 512, "The transcript of a meeting follows, and then a query about it. Answer in one or more sentences.\n\nTranscript:\n" + slotContext +
			"\n\nAnswer the query from the transcript in one or more sentences.\n\nQuery: " + slotInput + "\nAnswer:"},
		"multi_news": {"Now, write", "Summary:", 512, "Several articles about one event follow. Summarise all of them on one page.\n\nArticles:\n" + slotContext +
			"\n\nNow, write the summary of all articles on one page.\n\nSummary:"},
		"trec":          {slotInput, "Type:", 64, "Say of which type the last question is. Questions with their types come first.\n\n" + slotContext + "\n" + slotInput},
		"triviaqa":      {slotInput, "Answer:", 32, "Answer the question from the passage. Write the answer alone. Examples come first.\n\n" + slotContext + "\n\n" + slotInput},
		"samsum":        {slotInput, "Summary:", 128, "Summarise the last dialogue in a few short sentences. Examples come first.\n\n" + slotContext + "\n\n" + slotInput},
		"passage_count": {"Please enter", "The final answer is: ", 32, "Numbered paragraphs follow; some of them are copies of others. Find out how many different paragraphs there are.\n\n" + slotContext + "\n\nPlease enter the number of different paragraphs, as digits such as 1, 2 or 3.\n\nThe final answer is: "},
		"passage_retrieval_en": {slotInput, "The answer is: ", 32, "Thirty numbered paragraphs follow, and then a summary of one of them. Find out of which.\n\n" + slotContext + "\n\nThe summary:\n\n" + slotInput +
			"\n\nWrite the number of the paragraph that it summarises, such as \"Paragraph 1\".\n\nThe answer is: "},
		"lcc":         {"", "Next line of code:\n", 64, "Continue this code.\n" + slotContext + "Next line of code:\n"},
		"repobench-p": {slotInput, "Next line of code:\n", 64, "Continue this code.\n" + slotContext + slotInput + "Next line of code:\n"},
	}
}()

// splitLongBench fills a dataset's prompt and takes it apart. The parts concatenate
// to the whole. For trec, triviaqa and samsum the answer prefix is taken from the
// end of the input.
func splitLongBench(dataset, prompt, context, input string) (before, question, prefix string, err error) {
	p := longbenchPrompts[dataset]
	rest, ok := strings.CutSuffix(prompt, p.answer)
	prefix = p.answer
	switch {
	case fromInput(dataset):
		rest = prompt
		if input, ok = strings.CutSuffix(input, p.answer); !ok {
			prefix = ""
		}
	case !ok:
		return "", "", "", fmt.Errorf("the prompt does not end in %q", p.answer)
	}
	at := len(rest)
	if p.question != "" {
		if at = strings.LastIndex(rest, p.question); at < 0 {
			return "", "", "", fmt.Errorf("the prompt has no %q", p.question)
		}
	}
	if !strings.Contains(rest[:at], slotContext) {
		return "", "", "", fmt.Errorf("the prompt has no %s in front of its question", slotContext)
	}
	// Only the slots are replaced: contexts may contain braces.
	return strings.Replace(rest[:at], slotContext, context, 1), strings.Replace(rest[at:], slotInput, input, 1), prefix, nil
}

// fromInput reports whether a dataset's answer prefix ends its input, not its prompt.
func fromInput(dataset string) bool {
	d, _ := scoring.LongBench(dataset)
	return d.FirstLine
}

// fill makes an item from a LongBench record; it already holds the context, the
// answers and the rest. The dataset is the one in the file's name, if it names
// one.
func (l *LongBench) fill(it *Item, dataset, input, name string) error {
	task := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	if !isLongBench(task) {
		task = dataset
	}
	d, e := scoring.LongBench(task)
	if d == nil {
		return fmt.Errorf("dataset %q: not one of LongBench's English ones (and no \"outputs\", as RULER's files have)", task)
	}
	if it.Context == "" {
		return errors.New(`no "context"`)
	}
	base := task
	if e {
		base = task[:len(task)-2]
		task = base + "-e"
	}
	if l == nil {
		l = &LongBench{}
	}
	p := longbenchPrompts[base]
	prompt, n := p.prompt, p.maxNew
	if l.Prompts != nil {
		prompt, n = l.Prompts[base], l.MaxNew[base]
	}
	if !l.ExactLength {
		n += longbenchExtra
	}
	var err error
	it.Task, it.MaxNewTokens = task, n
	it.Context, it.Question, it.AnswerPrefix, err = splitLongBench(base, prompt, it.Context, input)
	return err
}

// longbenchName reports whether a file of a folder or zip is one of LongBench's.
func longbenchName(name string) bool {
	base, ok := strings.CutSuffix(path.Base(name), ".jsonl")
	return ok && isLongBench(base)
}
