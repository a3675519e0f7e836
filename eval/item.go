package eval

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/lukv/lukv/eval/scoring"
)

// Item is one question about one context.
type Item struct {
	Task         string   `json:"task"`
	Context      string   `json:"context"`
	Question     string   `json:"question"`
	AnswerPrefix string   `json:"answer_prefix"`
	Answers      []string `json:"answers"`
	MaxNewTokens int      `json:"max_new_tokens"` // 0: the run's default

	// Classes are all classes of a classification task, or the options of a
	// multiple-choice one.
	Classes []string `json:"all_classes"`

	// Length is in words; LongBench-E groups its results by it.
	Length int `json:"length"`

	// Data is "builtin" where texts of this project stand in for a benchmark's own:
	// such results are not comparable with published ones.
	Data string `json:"data,omitempty"`

	Line int `json:"-"` // line of the file, from 1
}

// reference returns the item's answers for scoring.
func (it *Item) reference() *scoring.Reference {
	return &scoring.Reference{Task: it.Task, Answers: it.Answers, Classes: it.Classes}
}

// maxLine bounds a line of a data file; contexts of 128k tokens take about 1 MB.
const maxLine = 256 << 20

// ReadItems reads items from JSON Lines; blank lines are skipped and unknown fields
// ignored. The answers may also be under "answer", and may be one string instead of a
// list. A line with "input" and "outputs" is from one of RULER's own files: its prompt is
// taken apart, and if it names no task, the file's folder does. A line with "input" and
// "context" from one of LongBench's datasets becomes a prompt in the default wording, as
// does one from InfiniteBench's files, <task>.jsonl with "input", "context", "answer" and
// "options". A file whose name ends in .csv is a table with the same columns. name is the
// file's name; it appears in errors together with the line.
func ReadItems(r io.Reader, name string) ([]Item, error) { return readItems(r, name, nil) }

func readItems(r io.Reader, name string, longbench *LongBench) ([]Item, error) {
	var items []Item
	if strings.EqualFold(filepath.Ext(name), ".csv") {
		err := readCSV(r, func(line int, row map[string]string) error {
			it, err := csvItem(row, name)
			it.Line = line
			items = append(items, it)
			return err
		})
		if err == nil && len(items) == 0 {
			err = errors.New("no items")
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		return items, nil
	}
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	for line := 1; sc.Scan(); line++ {
		text := bytes.TrimSpace(sc.Bytes())
		if line == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		if len(text) == 0 {
			continue
		}
		it, err := parseItem(text, name, longbench)
		if err != nil {
			return nil, fmt.Errorf("read %s: line %d: %w", name, line, err)
		}
		it.Line = line
		items = append(items, it)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("read %s: no items", name)
	}
	return items, nil
}

func parseItem(text []byte, name string, longbench *LongBench) (Item, error) {
	var raw struct {
		Item
		Answers json.RawMessage `json:"answers"`
		Answer  json.RawMessage `json:"answer"`

		// RULER's.
		Input   *string `json:"input"`
		Outputs strict  `json:"outputs"`

		// LongBench's, with input.
		Dataset string `json:"dataset"`

		// InfiniteBench's, with input.
		Options []string `json:"options"`
	}
	if !utf8.Valid(text) {
		return Item{}, errNotUTF8
	}
	if text[0] != '{' {
		return Item{}, fmt.Errorf("found %.40q, expected one question per line as a JSON object", text)
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return Item{}, err
	}
	it := raw.Item
	for _, task := range []string{it.Task, strings.TrimSuffix(filepath.Base(name), ".jsonl")} {
		if err := scoring.CheckTask(task); err != nil {
			return Item{}, err
		}
	}
	if raw.Input != nil && raw.Outputs != nil && it.Context == "" {
		return rulerItem(it, *raw.Input, raw.Outputs, name)
	}
	if raw.Input != nil && raw.Outputs == nil && it.Question == "" && (raw.Dataset != "" || longbenchName(name)) {
		if err := longbench.fill(&it, raw.Dataset, *raw.Input, name); err != nil {
			return Item{}, err
		}
	}
	if raw.Input != nil && it.Question == "" && infiniteName(name) {
		if longbench == nil || !longbench.ExactLength {
			it.MaxNewTokens = longbenchExtra
		}
		err := fillInfinite(&it, *raw.Input, raw.Options, raw.Answer, name)
		return it, err
	}
	absent := func(m json.RawMessage) bool { return m == nil || string(m) == "null" }
	if absent(raw.Answers) {
		raw.Answers = raw.Answer
	}
	if absent(raw.Answers) {
		return Item{}, errors.New(`no "answers"`)
	}
	var one string
	if json.Unmarshal(raw.Answers, &one) == nil {
		if err := plain(one); err != nil {
			return Item{}, fmt.Errorf("answers: %w", err)
		}
		it.Answers = []string{one}
	} else if err := json.Unmarshal(raw.Answers, (*strict)(&it.Answers)); err != nil {
		return Item{}, fmt.Errorf("answers: expected a list of strings: %w", err)
	}
	switch {
	case len(it.Answers) == 0:
		return Item{}, errors.New("answers: the list is empty")
	case blank(it.Answers) != nil:
		return Item{}, fmt.Errorf("answers: %w", blank(it.Answers))
	case it.Context == "":
		return Item{}, errors.New(`no "context"`)
	case it.MaxNewTokens < 0:
		return Item{}, fmt.Errorf("max_new_tokens is %d, expected 0 or more", it.MaxNewTokens)
	}
	if it.Task == "" {
		it.Task = "default"
	}
	if infiniteTasks[it.Task] != nil && it.Classes == nil {
		it.Classes = askedOptions(it.Question)
	}
	return it, nil
}

// errNotUTF8 reports a file in another encoding, whose characters would be lost.
var errNotUTF8 = errors.New("not UTF-8: convert the file first")

// blank returns an error if an answer has no text: every prediction contains it.
func blank(answers []string) error {
	for i, a := range answers {
		if strings.TrimSpace(a) == "" {
			return fmt.Errorf("string %d is empty, which every prediction contains", i+1)
		}
	}
	return nil
}

// strict is a list of strings without null. Package json would decode a null as an empty
// string, which every prediction contains.
type strict []string

func (s *strict) UnmarshalJSON(data []byte) error {
	var list []*string
	if err := json.Unmarshal(data, &list); err != nil || list == nil {
		return err
	}
	*s = make(strict, len(list))
	for i, text := range list {
		if text == nil {
			return fmt.Errorf("string %d is null", i+1)
		}
		(*s)[i] = *text
	}
	return nil
}

// rulerItem makes an item from a line of one of RULER's own files.
func rulerItem(it Item, input string, outputs []string, name string) (Item, error) {
	if it.Task == "" { // <folder>/<task>/validation.jsonl
		it.Task = filepath.Base(filepath.Dir(name))
	}
	if len(outputs) == 0 {
		return Item{}, errors.New("outputs: the list is empty")
	}
	if err := blank(outputs); err != nil {
		return Item{}, fmt.Errorf("outputs: %w", err)
	}
	context, question, prefix, limit, err := splitRuler(it.Task, input, it.AnswerPrefix)
	if err != nil {
		return Item{}, err
	}
	if context == "" {
		return Item{}, errors.New("input: nothing stands before the question")
	}
	it.Context, it.Question, it.AnswerPrefix, it.Answers, it.MaxNewTokens = context, question, prefix, outputs, limit
	return it, nil
}
