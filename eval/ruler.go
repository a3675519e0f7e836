package eval

import (
	"fmt"
	"regexp"
	"strings"
)

// rulerFamily says how the prompts of a family of RULER tasks are taken apart
// (spec evaluation 3.6).
type rulerFamily struct {
	question     *regexp.Regexp // the question begins at its last match
	answer       string         // the answer prefix begins at its first match after that
	maxNewTokens int
}

var rulerFamilies = map[string]rulerFamily{
	"niah": {regexp.MustCompile(`What (?:is|are all) the special magic`), "The special magic", 128},
	"vt":   {regexp.MustCompile(`Question: Find all variables that are assigned the value`), "Answer:", 30},
	"cwe":  {regexp.MustCompile(`Question: What are the 10 most common words in the above list\?`), "Answer:", 120},
	"fwe":  {regexp.MustCompile(`Question: Do not provide any explanation\.`), "Answer:", 50},
	"qa":   {regexp.MustCompile(`Answer the question based on the given documents\.`), "Answer:", 32},
}

// splitRuler takes the prompt of a RULER task apart. prefix is the record's own
// answer prefix, "" in older files, whose prompt includes it. The parts
// concatenate to the whole.
func splitRuler(task, prompt, prefix string) (context, question, answerPrefix string, maxNewTokens int, err error) {
	name, _, _ := strings.Cut(task, "_")
	family, ok := rulerFamilies[name]
	if !ok {
		return "", "", "", 0, fmt.Errorf("task %q: not one of RULER's", task)
	}
	text := prompt + prefix
	matches := family.question.FindAllStringIndex(text, -1)
	if len(matches) == 0 {
		return "", "", "", 0, fmt.Errorf("input: no question of task %s: expected %q", task, family.question)
	}
	at := matches[len(matches)-1][0]
	// The prefix's leading blanks stay with the question.
	cut := len(text) - len(strings.TrimLeft(prefix, " "))
	if prefix == "" {
		n := strings.Index(text[at:], family.answer)
		if n < 0 {
			return "", "", "", 0, fmt.Errorf("input: the answer prefix of task %s does not follow the question: expected %q", task, family.answer)
		}
		cut = at + n
	}
	if cut <= at {
		return "", "", "", 0, fmt.Errorf("answer_prefix: holds the question of task %s", task)
	}
	return text[:at], text[at:cut], text[cut:], family.maxNewTokens, nil
}
