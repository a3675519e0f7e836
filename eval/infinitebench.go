package eval

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// infiniteTask is a task of InfiniteBench (spec evaluation 10), with contexts of
// around 100k tokens.
type infiniteTask struct {
	category string
	items    int // in the published set
	maxNew   int

	before, question, prefix string // our own wording; {input} and {options} are slots
}

var infiniteTasks = map[string]*infiniteTask{
	"passkey": {"retrieval", 590, 6, "An important number is hidden in a lot of irrelevant text. Find it and remember it.\n\n", "{input}", "The pass key is "},
	"number_string": {"retrieval", 590, 12, "A long row of digits is hidden in a lot of irrelevant text. Find it and remember it.\n\n", "{input}",
		"The sequence of digits is "},
	"kv_retrieval": {"retrieval", 500, 50, "Here is a JSON object of keys and values.\n\n", "{input}", ""},
	"longdialogue_qa_eng": {"dialogue", 200, 40, "Here is a script in which the name of one character is replaced by $$MASK$$.\n\n", "Who is the character $$MASK$$?",
		"The name is "},
	"longbook_sum_eng":    {"book", 103, 1200, "Here is a book.\n\n", "Summarise the book.", "Summary: "},
	"longbook_choice_eng": {"book", 229, 40, "Here is a book.\n\n", "{input}\nOnly one of these options is right:\n{options}", "The letter of the right option is "},
	"longbook_qa_eng":     {"book", 351, 40, "Here is a book.\n\n", "{input} Answer with a few words.", "Answer: "},
	"longbook_qa_chn":     {"book", 175, 40, "请读下面这本书。\n\n", "{input} 请尽量简短地回答。", "答案："},
	"math_find":           {"math", 350, 3, "Here is a long list of numbers.\n\n", "{input}", "The number is "},
	"math_calc": {"math", 50, 30000, "Here is a long calculation.\n\n", "Write the intermediate results, one after each operation, separated by commas.",
		"Intermediate results: "},
	"code_run": {"code", 400, 5, "Here are functions in Python.\n\n", "{input}", "The return value is "},
	"code_debug": {"code", 394, 5, "Here is the code of a program, in which one function has an obvious fault.\n\n",
		"Which of these functions has the fault?\n{options}", "The letter of the right option is "},
}

// infiniteName reports whether a file of a folder or zip is one of InfiniteBench's.
func infiniteName(name string) bool {
	base, ok := strings.CutSuffix(path.Base(name), ".jsonl")
	return ok && infiniteTasks[base] != nil
}

// fillInfinite makes an item from a record of InfiniteBench: context, input,
// options, and an answer of numbers or texts, which becomes a letter where there
// are options. The file's name gives the task. The benchmark's answer length is
// added to it.MaxNewTokens.
func fillInfinite(it *Item, input string, options []string, answer json.RawMessage, name string) error {
	task := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	t := infiniteTasks[task]
	if it.Context == "" {
		return errors.New(`no "context"`)
	}
	answers, err := textsOf(answer)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	question := t.question
	if strings.Contains(question, "{options}") {
		if len(options) != 4 {
			return fmt.Errorf("options: found %d, expected 4", len(options))
		}
		var list []string
		for i, o := range options {
			list = append(list, fmt.Sprintf("%c. %s", 'A'+i, o))
		}
		question = strings.Replace(question, "{options}", strings.Join(list, "\n"), 1)
		it.Classes = options
		for i, a := range answers {
			if k := slices.Index(options, a); k >= 0 {
				answers[i] = string(rune('A' + k))
			} else if len(a) != 1 || a < "A" || a > "D" {
				return fmt.Errorf("answer: %.40q is none of the options", a)
			}
		}
	}
	it.Task, it.Answers = task, answers
	it.MaxNewTokens += t.maxNew
	it.Context = t.before + it.Context
	it.Question, it.AnswerPrefix = "\n\n"+strings.Replace(question, "{input}", input, 1)+"\n", t.prefix
	return nil
}

// textsOf reads a text, a number, or a list of them, as texts.
func textsOf(raw json.RawMessage) ([]string, error) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	var out []string
	for _, one := range list {
		var s string
		var n json.Number
		switch {
		case string(one) != "null" && json.Unmarshal(one, &s) == nil:
		case string(one) != "null" && json.Unmarshal(one, &n) == nil:
			s = n.String()
		default:
			return nil, fmt.Errorf("found %.40q, expected a text, a number, or a list of them", one)
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("the list is empty")
	}
	return out, nil
}

// askedOptions returns the options at the end of a question, for tables that
// list them nowhere else; nil if there are none.
func askedOptions(question string) []string {
	lines := strings.Split(question, "\n")
	if len(lines) < 5 {
		return nil
	}
	lines = lines[len(lines)-4:]
	var out []string
	for i, line := range lines {
		text, ok := strings.CutPrefix(line, string(rune('A'+i))+". ")
		if !ok {
			return nil
		}
		out = append(out, text)
	}
	return out
}
