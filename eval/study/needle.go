package study

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
)

// The needle, the question about it, and the answer.
const (
	needleText     = "The secret word of the lighthouse keeper is marigold."
	needleQuestion = "What is the secret word of the lighthouse keeper?"
	needlePrefix   = "The secret word of the lighthouse keeper is"
	needleAnswer   = "marigold"
)

// needleTask names the items of a cell.
func needleTask(length, depth int) string { return fmt.Sprintf("needle %d %d", length, depth) }

// Needles returns questions about a sentence placed at each depth, in percent, of a
// narrative cut to each length in tokens. [NeedleMap] shows the answers.
func Needles(lengths, depths []int, count func(string) int) ([]eval.Item, error) {
	story := strings.SplitAfter(strings.Join(strings.Fields(calibration.Narrative().Context), " "), ". ")
	var items []eval.Item
	for _, length := range lengths {
		// The most sentences that fit; the story starts over at its end.
		take := func(n int) []string {
			out := make([]string, n)
			for i := range out {
				out[i] = strings.TrimSpace(story[i%len(story)])
			}
			return out
		}
		size := func(n int) int { return count(strings.Join(take(n), " ") + " " + needleText) }
		low, high := 0, 1
		for size(high) <= length {
			low, high = high, 2*high
		}
		for high-low > 1 {
			if mid := (low + high) / 2; size(mid) <= length {
				low = mid
			} else {
				high = mid
			}
		}
		if low == 0 {
			return nil, fmt.Errorf("needles: a context of %d tokens has no room, expected at least %d", length, size(1))
		}
		for _, depth := range depths {
			if depth < 0 || depth > 100 {
				return nil, fmt.Errorf("needles: depth %d, expected 0 to 100", depth)
			}
			text := take(low)
			at := low * depth / 100
			text = append(text[:at:at], append([]string{needleText}, text[at:]...)...)
			items = append(items, eval.Item{Task: needleTask(length, depth), Context: strings.Join(text, " "), Question: needleQuestion,
				AnswerPrefix: needlePrefix, Answers: []string{needleAnswer}, MaxNewTokens: 8, Data: "builtin", Line: len(items) + 1})
		}
	}
	return items, nil
}

// AskNeedles answers the questions of [Needles] under every method. state and progress
// may be nil; progress is told how many answers there are, and how many of those
// (from) an earlier run gave.
func AskNeedles(ctx context.Context, m *model.Model, items []eval.Item, methods []eval.Method, o eval.Options, state *State, progress func(from, done, total int)) ([]eval.Answer, error) {
	inputs, err := methodInputs(methods)
	if err != nil {
		return nil, err
	}
	if err := state.begin(items, inputs); err != nil {
		return nil, err
	}
	part := func(item int, method string) string { return fmt.Sprintf("%s, %s", items[item].Task, method) }
	var answers []eval.Answer
	for i := range items {
		for _, method := range methods {
			var a eval.Answer
			have, err := state.take(part(i, method.Name), &a)
			if err != nil {
				return nil, err
			}
			if have {
				answers = append(answers, a)
			}
		}
	}
	if from := len(answers); progress != nil {
		o.Progress = func(done, total int) { progress(from, done, total) }
	}
	o.Done = func(item int, method string) bool { return state.has(part(item, method)) }
	err = eval.Run(ctx, m, items, methods, o, func(a eval.Answer) error {
		answers = append(answers, a)
		return errors.Join(state.put(part(a.Item, a.Method), a), state.save())
	})
	return answers, err
}

// NeedleMap shows whether needles were found, a panel per method.
func NeedleMap(lengths, depths []int, answers []eval.Answer) report.Figure {
	f := report.Figure{ID: "needles", Title: "Needles found, by depth and length", Subtitle: "one sentence in a narrative; substring match", X: "context (tokens)", Y: "depth", Unit: "%",
		Note: "100: the answer names the word; 0: it does not. One question per cell; a cell is empty where the context did not fit."}
	at := map[string]int{}
	for _, a := range answers {
		i, ok := at[a.Method]
		if !ok {
			i = len(f.Heat)
			at[a.Method] = i
			p := report.HeatPanel{Name: a.Method}
			for _, n := range lengths {
				p.Columns = append(p.Columns, fmt.Sprint(n))
			}
			for _, d := range depths {
				p.Rows = append(p.Rows, fmt.Sprintf("%d %%", d))
				p.Values = append(p.Values, make([]*float64, len(lengths)))
			}
			f.Heat = append(f.Heat, p)
		}
		for c, n := range lengths {
			for r, d := range depths {
				if a.Task == needleTask(n, d) && a.Error == "" {
					v := 100 * a.Score
					f.Heat[i].Values[r][c] = &v
				}
			}
		}
	}
	return f
}
