package main

import (
	"strings"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

// What the command does differently for the embedded model: prompts as in its
// card, its own calibration texts, samples and profiles.

// builtinFraming is the text around context and question in builtin.Prompt.
var builtinFraming = func() dialog.Framing {
	const question = "?"
	before, _ := builtin.Prompt("", "", "")
	_, tail := builtin.Prompt("", question, "")
	between, after, ok := strings.Cut(tail.Text, question)
	if !ok {
		panic("the prompt of the embedded model lacks the question")
	}
	return dialog.Framing{Before: before.Text, Between: between, After: after}
}()

// builtinProfile returns the embedded profile for a metric, nil if there is none.
func builtinProfile(metric lukv.MetricConfig) (*lukv.Profile, error) {
	return builtin.Profile(metric)
}

// builtinTexts are the calibration texts of the embedded model.
func builtinTexts() []calibration.Text {
	var out []calibration.Text
	for _, t := range builtin.Calibration() {
		text := calibration.Text{Context: t.Context}
		for _, q := range t.Questions {
			text.Questions = append(text.Questions, calibration.Question{Question: q.Question, AnswerPrefix: q.AnswerPrefix})
		}
		out = append(out, text)
	}
	return out
}

// openFramed opens the model and returns it with the framing for data whose questions
// follow their context without an extra separator. The caller closes the model.
func (f *modelFlags) openFramed(e *env, raw bool) (*model.Model, dialog.Framing, error) {
	m, err := f.open(e)
	if err != nil {
		return nil, dialog.Framing{}, err
	}
	framing := builtinFraming
	switch {
	case raw:
		framing, err = dialog.PlainFraming(m)
	case f.Model != builtin.Name:
		framing, err = dialog.ChatFraming(e.ctx, m, dialog.FixedDate)
	}
	if err != nil {
		m.Close()
		return nil, dialog.Framing{}, err
	}
	return m, framing, nil
}
