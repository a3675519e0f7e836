package calibration

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lukv/lukv/model"
)

// Probe is a fact in a text and a question that it answers.
type Probe struct {
	Context      string `json:"context"`
	Needle       string `json:"needle"` // the fact; it occurs in Context once
	Question     string `json:"question"`
	AnswerPrefix string `json:"answer_prefix,omitempty"`
	Answer       string `json:"answer"`
}

// ProbeOptions say how heads are probed.
type ProbeOptions struct {
	Options // IncludeQuestion has no effect

	// Correct reports whether an answer to a probe is right; required.
	Correct func(p *Probe, answer string) bool

	// Progress, if not nil, is called after every probe.
	Progress func(done int)
}

// HeadScores holds the mean score over the probes of every query head, [L][H]: how
// much it reads the fact being asked for (see [lukv.Retrieved]). Layers with a
// sliding window have 0.
type HeadScores struct {
	Scores  [][]float64
	Probes  int
	Correct int // answered correctly; the others do not count
}

// ProbeHeads measures the importance of a model's query heads as HeadKV does. It is
// an error if the model answers no probe correctly.
func ProbeHeads(ctx context.Context, m *model.Model, probes []Probe, o ProbeOptions) (*HeadScores, error) {
	c := m.Config()
	out := &HeadScores{Scores: make([][]float64, c.Layers), Probes: len(probes)}
	for at := range out.Scores {
		out.Scores[at] = make([]float64, c.Heads)
	}
	texts, err := probeTexts(probes)
	if err != nil {
		return nil, fmt.Errorf("probe heads: %w", err)
	}
	done := 0
	err = eachText(ctx, m, texts, o.Options, 0, nil, func(w *work) error {
		head, _ := o.Prompt(w.text.Context, w.text.Questions[0].Question, w.text.Questions[0].AnswerPrefix)
		tokens := head.Encode(w.tok)
		ob, err := m.Observe(ctx, tokens, o.Session)
		if err != nil {
			return err
		}
		defer ob.Close()
		for range w.text.Questions {
			p := probeWork{work: w, o: &o, ob: ob, tokens: tokens, probe: &probes[done], scores: out}
			if err := p.run(); err != nil {
				return fmt.Errorf("probe %d: %w", done+1, err)
			}
			if done++; o.Progress != nil {
				o.Progress(done)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("probe heads: %w", err)
	}
	if out.Correct == 0 {
		return nil, fmt.Errorf("probe heads: none of %d probes was answered correctly", len(probes))
	}
	for _, row := range out.Scores {
		for q := range row {
			row[q] /= float64(out.Correct)
		}
	}
	return out, nil
}

// probeTexts returns the contexts of probes with their questions; consecutive
// probes with the same context share a text.
func probeTexts(probes []Probe) ([]Text, error) {
	var out []Text
	for i := range probes {
		p := &probes[i]
		if n := strings.Count(p.Context, p.Needle); p.Needle == "" || n != 1 {
			return nil, fmt.Errorf("probe %d: found the needle %.60q %d times in the context, expected once", i+1, p.Needle, n)
		}
		if i == 0 || p.Context != out[len(out)-1].Context {
			out = append(out, Text{Context: p.Context})
		}
		t := &out[len(out)-1]
		t.Questions = append(t.Questions, Question{Question: p.Question, AnswerPrefix: p.AnswerPrefix})
	}
	if len(out) == 0 {
		return nil, errors.New("no probes")
	}
	return out, nil
}

// probeWork is the measurement of one probe.
type probeWork struct {
	*work
	o      *ProbeOptions
	ob     *model.Observation
	tokens []int32 // of the prompt
	probe  *Probe
	scores *HeadScores
}

func (w *probeWork) run() error {
	p := w.probe
	_, tail := w.o.Prompt(p.Context, p.Question, p.AnswerPrefix)
	a, err := w.ob.Answer(w.ctx, tail.Encode(w.tok), model.MeasureOptions{MaxTokens: w.o.MaxSteps, Sampling: w.o.Sampling})
	if err != nil {
		return err
	}
	defer a.Close()
	text := w.tok.Decode(a.Tokens(), true)
	if a.Steps() == 0 || !w.o.Correct(p, text) {
		return nil
	}
	from, to := w.needle()
	if from == to {
		return fmt.Errorf("the needle %.60q has no token of its own", p.Needle)
	}
	w.scores.Correct++
	c := w.m.Config()
	for at := range c.Layers {
		if !c.Ragged(at) {
			continue
		}
		for h := range c.KVHeads {
			row, err := a.Retrieved(w.ctx, at, h, from, to)
			if err != nil {
				return err
			}
			for g, v := range row {
				w.scores.Scores[at][h*len(row)+g] += v
			}
		}
	}
	return nil
}

// needle returns the range of the needle's tokens in the prompt: from the end of
// what the prompt has in common with one whose context ends before the needle, to
// the end of what it has in common with one whose context ends after it.
func (w *probeWork) needle() (from, to int) {
	p := w.probe
	start := strings.Index(p.Context, p.Needle)
	common := func(end int) int {
		head, _ := w.o.Prompt(p.Context[:end], p.Question, p.AnswerPrefix)
		n := 0
		for _, id := range head.Encode(w.tok) {
			if n == len(w.tokens) || id != w.tokens[n] {
				break
			}
			n++
		}
		return n
	}
	from = common(start)
	return from, max(from, common(start+len(p.Needle)))
}
