// Package embedded prepares the embedded model for commands: prompts as in its card, its
// own calibration texts and probes.
package embedded

import (
	"strings"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

// Framing is the text around context and question in builtin.Prompt.
var Framing = func() dialog.Framing {
	const question = "?"
	before, _ := builtin.Prompt("", "", "")
	_, tail := builtin.Prompt("", question, "")
	between, after, ok := strings.Cut(tail.Text, question)
	if !ok {
		panic("the prompt of the embedded model lacks the question")
	}
	return dialog.Framing{Before: before.Text, Between: between, After: after}
}()

// Texts returns the calibration texts of the embedded model.
func Texts() []calibration.Text {
	var out []calibration.Text
	for _, t := range builtin.Calibration() {
		text := calibration.Text{Context: t.Context}
		for _, q := range t.Questions {
			text.Questions = append(text.Questions, calibration.Question{Question: q.Question, AnswerPrefix: q.AnswerPrefix, Answers: q.Answers})
		}
		out = append(out, text)
	}
	return out
}

// Probes returns the calibration questions of the embedded model whose answer occurs
// exactly once in their context; the sentence around the answer is the needle.
func Probes() []calibration.Probe {
	var out []calibration.Probe
	for _, text := range builtin.Calibration() {
		for _, q := range text.Questions {
			if len(q.Answers) != 1 || strings.Count(text.Context, q.Answers[0]) != 1 {
				continue
			}
			at := strings.Index(text.Context, q.Answers[0])
			start := max(strings.LastIndex(text.Context[:at], ". ")+2, strings.LastIndex(text.Context[:at], "\n")+1)
			if at < start {
				start = 0
			}
			end := at + strings.Index(text.Context[at:]+".", ".")
			out = append(out, calibration.Probe{
				Context: text.Context, Needle: text.Context[start:end], Question: q.Question, AnswerPrefix: q.AnswerPrefix, Answer: q.Answers[0],
			})
		}
	}
	return out
}
