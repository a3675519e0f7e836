package calibration

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Text is a context with questions about different parts of it.
type Text struct {
	Context   string     `json:"context"`
	Questions []Question `json:"questions"`
}

// Question is a question with the beginning of its answer.
type Question struct {
	Question     string `json:"question"`
	AnswerPrefix string `json:"answer_prefix,omitempty"`

	// Answers are texts that a right answer has, all of them; empty if not known. Only
	// [LossMap] reads them.
	Answers []string `json:"answers,omitempty"`
}

//go:embed narrative.txt
var narrative string

//go:embed questions.jsonl
var narrativeQuestions []byte

// Narrative returns the embedded text: one English story of about 4,000 tokens
// with 30 questions about different parts of it. README.md says where it comes
// from.
func Narrative() Text {
	questions, err := ReadQuestions(bytes.NewReader(narrativeQuestions), "questions.jsonl")
	if err != nil {
		panic("calibration: embedded data: " + err.Error())
	}
	return Text{Context: narrative, Questions: questions}
}

// maxLine bounds a line in a file of texts.
const maxLine = 256 << 20

// lines calls f with every line of r that is not blank, numbered from 1.
func lines(r io.Reader, name string, f func(text []byte) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	for n := 1; sc.Scan(); n++ {
		text := bytes.TrimSpace(sc.Bytes())
		if n == 1 {
			text = bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff")))
		}
		if len(text) == 0 {
			continue
		}
		if err := f(text); err != nil {
			return fmt.Errorf("read %s: line %d: %w", name, n, err)
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// ReadTexts reads texts from JSON Lines of {context, questions}, where a
// question is a string or {question, answer_prefix, answers}. name appears in errors.
func ReadTexts(r io.Reader, name string) ([]Text, error) {
	var texts []Text
	err := lines(r, name, func(line []byte) error {
		var t Text
		if err := json.Unmarshal(line, &t); err != nil {
			return err
		}
		if err := t.validate(); err != nil {
			return err
		}
		texts = append(texts, t)
		return nil
	})
	if err == nil && len(texts) == 0 {
		err = fmt.Errorf("read %s: no texts", name)
	}
	return texts, err
}

// ReadProbes reads probes from JSON Lines. name appears in errors.
func ReadProbes(r io.Reader, name string) ([]Probe, error) {
	var out []Probe
	err := lines(r, name, func(line []byte) error {
		var p Probe
		if err := json.Unmarshal(line, &p); err != nil {
			return err
		}
		switch {
		case p.Question == "" || p.Answer == "":
			return errors.New("question or answer is empty")
		case p.Needle == "" || strings.Count(p.Context, p.Needle) != 1:
			return fmt.Errorf("found the needle %.60q %d times in the context, expected once", p.Needle, strings.Count(p.Context, p.Needle))
		}
		out = append(out, p)
		return nil
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("read %s: no probes", name)
	}
	return out, err
}

// ReadQuestions reads questions: plain text, one per line, or JSON Lines of
// {question, answer_prefix, answers}. name appears in errors.
func ReadQuestions(r io.Reader, name string) ([]Question, error) {
	var out []Question
	err := lines(r, name, func(line []byte) error {
		q := Question{Question: string(line)}
		if line[0] == '{' {
			q = Question{}
			if err := json.Unmarshal(line, &q); err != nil {
				return err
			}
		}
		if q.Question == "" {
			return errors.New("the question is empty")
		}
		out = append(out, q)
		return nil
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("read %s: no questions", name)
	}
	return out, err
}

// fewPairs is the number of questions below which individual ones carry too much
// weight.
const fewPairs = 16

// Notes says what may be wrong with texts as a calibration set: that they have few
// questions, or that most are of one kind, alike in their first four words. Kinds
// of task that no question represents may do worse under the profile.
func Notes(texts []Text) []string {
	var notes []string
	pairs := Pairs(texts)
	if pairs < fewPairs {
		notes = append(notes, fmt.Sprintf("the calibration set is small: %d questions, expected at least %d", pairs, fewPairs))
	}
	kinds := map[string]int{}
	most := ""
	for _, t := range texts {
		for _, q := range t.Questions {
			words := strings.Fields(q.Question)
			kind := strings.Join(words[:min(4, len(words))], " ")
			if kinds[kind]++; kinds[kind] > kinds[most] {
				most = kind
			}
		}
	}
	if n := kinds[most]; pairs > 3 && 3*n > 2*pairs {
		notes = append(notes, fmt.Sprintf("the calibration set is one-sided: %d of %d questions begin with %q; tasks of other kinds can lose", n, pairs, most))
	}
	return notes
}

// UnmarshalJSON reads a string, the question alone, or an object.
func (q *Question) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &q.Question)
	}
	type plain Question
	return json.Unmarshal(data, (*plain)(q))
}

func (t *Text) validate() error {
	switch {
	case t.Context == "":
		return errors.New("the context is empty")
	case len(t.Questions) == 0:
		return errors.New("no questions")
	}
	for i, q := range t.Questions {
		if q.Question == "" {
			return fmt.Errorf("question %d is empty", i+1)
		}
	}
	return nil
}
