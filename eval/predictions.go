package eval

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lukv/lukv/eval/scoring"
)

// ReadPredictions reads answers that were given earlier, here or elsewhere; their scores
// are those in the file or, if it has none, those of the zero [Scoring]. name is the
// file's path: it determines the format, and gives task and method where the lines do not.
// It reads
//
//   - files of answers of a [Log], with or without the first line;
//   - predictions.csv of kvpress, whose folder name gives press and ratio;
//   - RULER's <task>.jsonl with pred and outputs;
//   - LongBench's <dataset>.jsonl with pred and answers, LongBench-E's in a folder pred_e.
func ReadPredictions(r io.Reader, name string) ([]Answer, error) {
	var answers []Answer
	var err error
	if strings.EqualFold(filepath.Ext(name), ".csv") {
		answers, err = kvpressPredictions(r, name)
	} else {
		answers, err = linePredictions(r, name)
	}
	if err == nil && len(answers) == 0 {
		err = errors.New("no predictions")
	}
	if err != nil {
		return nil, fmt.Errorf("read predictions %s: %w", name, err)
	}
	return answers, nil
}

// Rescore gives an answer a new score; one that failed keeps none.
func (a *Answer) Rescore(s scoring.Options) {
	if a.Error != "" {
		return
	}
	it := scoring.Reference{Task: a.Task, Answers: a.References, Classes: a.Classes}
	var text string
	a.Score, text = s.Score(&it, a.Prediction)
	a.Empty = text == ""
}

// kvpressPredictions reads the table in one of kvpress's folders.
func kvpressPredictions(r io.Reader, name string) ([]Answer, error) {
	// <dataset>__<data_dir>__<model>__<press>__<ratio>[__more]
	method, ratio := filepath.Base(filepath.Dir(name)), 0.0
	parts := strings.Split(method, "__")
	for i := len(parts) - 1; i > 0; i-- {
		if x, err := strconv.ParseFloat(parts[i], 64); err == nil && x >= 0 && x < 1 {
			method, ratio = strings.Join(parts[i-1:], "__"), x
			break
		}
	}
	var answers []Answer
	err := readCSV(r, func(line int, row map[string]string) error {
		prediction, ok := row["predicted_answer"]
		if !ok {
			return errors.New("no column predicted_answer")
		}
		a := Answer{Item: len(answers), Line: line, Task: row["task"], Method: method, Ratio: ratio, Prediction: prediction}
		if a.Task == "" { // LongBench's tables have one dataset and no such column
			a.Task = parts[0]
			if len(parts) > 1 && (isLongBench(parts[1]) || infiniteTasks[parts[1]] != nil || scoring.CheckTask(parts[1]) != nil) {
				a.Task = parts[1]
			}
		}
		if err := scoring.CheckTask(a.Task); err != nil {
			return err
		}
		for _, column := range []string{"answers", "answer"} {
			list, err := cellList(row[column])
			if err != nil {
				return fmt.Errorf("column %s: %w", column, err)
			}
			if a.References == nil {
				a.References = list
			}
		}
		if len(a.References) == 0 {
			return errors.New("no answers: expected a column answer or answers")
		}
		if err := blank(a.References); err != nil {
			return err
		}
		var err error
		if a.Classes, err = cellList(row["all_classes"]); err != nil {
			return fmt.Errorf("column all_classes: %w", err)
		}
		if infiniteTasks[a.Task] != nil && a.Classes == nil {
			a.Classes = askedOptions(row["question"])
		}
		if a.Length, err = cellNumber(row["length"]); err != nil {
			return fmt.Errorf("column length: %w", err)
		}
		if err := a.complete(); err != nil {
			return err
		}
		a.Rescore(scoring.Options{})
		answers = append(answers, a)
		return nil
	})
	return answers, err
}

// linePredictions reads JSON Lines.
func linePredictions(r io.Reader, name string) ([]Answer, error) {
	folder := filepath.Base(filepath.Dir(name))
	if folder == "pred" { // RULER's <model>/…/pred/<task>.jsonl
		folder = filepath.Base(filepath.Dir(filepath.Dir(name)))
	}
	task := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	if err := scoring.CheckTask(task); err != nil {
		return nil, err
	}
	if filepath.Base(filepath.Dir(filepath.Dir(name))) == "pred_e" && isLongBench(task) { // pred_e/<model>/<dataset>.jsonl
		task = base(task) + "_e"
	}
	var answers []Answer
	type key struct {
		task string
		outcomeKey
	}
	seen := map[key]bool{}
	own := false
	for lines, line := bufio.NewReader(r), 1; ; line++ {
		text, err := readLine(lines, maxLine)
		if err == io.EOF && (own || len(text) == 0) { // a run may be writing the last line
			return answers, nil
		}
		if err != nil && err != io.EOF {
			return nil, err
		}
		if line == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		if !utf8.Valid(text) {
			return nil, fmt.Errorf("line %d: %w", line, errNotUTF8)
		}
		var raw struct {
			logHead
			Answer
			Pred    *string `json:"pred"`
			Outputs strict  `json:"outputs"` // RULER's
			Answers strict  `json:"answers"` // LongBench's
		}
		if err := json.Unmarshal(text, &raw); err != nil {
			return nil, fmt.Errorf("line %d: %w, expected an answer or a prediction as a JSON object", line, err)
		}
		switch {
		case line == 1 && raw.Format == logFormat:
			own = true
			continue
		case own, raw.Pred == nil && raw.Method != "" && raw.Format == "":
			if err := raw.Answer.check(); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			k := key{raw.Task, raw.of()}
			if own && seen[k] { // two runs have written it: the first counts, as when a run goes on
				continue
			}
			seen[k] = true
			answers = append(answers, raw.Answer)
			continue
		case raw.Format != "":
			return nil, fmt.Errorf("line %d: format %q, expected %q", line, raw.Format, logFormat)
		case raw.Pred == nil:
			return nil, fmt.Errorf("line %d: no \"pred\": expected a line of RULER's or LongBench's predictions", line)
		}
		a := Answer{Item: len(answers), Line: line, Task: task, Method: folder, Prediction: *raw.Pred, References: raw.Outputs, Classes: raw.Classes, Length: raw.Length}
		if a.References == nil {
			a.References = raw.Answers
		}
		if len(a.References) == 0 {
			return nil, fmt.Errorf("line %d: no \"outputs\" or \"answers\"", line)
		}
		if err := blank(a.References); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if err := scoring.CheckTask(raw.Task); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if err := a.complete(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		a.Rescore(scoring.Options{})
		answers = append(answers, a)
	}
}

// complete returns an error if a prediction from elsewhere lacks what its measure needs.
func (a *Answer) complete() error {
	d, extended := scoring.LongBench(a.Task)
	switch {
	case d != nil && d.Match == scoring.MatchClassification && len(a.Classes) == 0:
		return fmt.Errorf("no \"all_classes\": expected the classes of task %s", a.Task)
	case extended && a.Length <= 0:
		return fmt.Errorf("length %d: expected the number of words, by which the results of task %s are grouped", a.Length, a.Task)
	}
	return nil
}

// readLine reads a line with its line break. A line that exceeds most bytes by more
// than the reader's buffer is an error and is not read to its end.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err != bufio.ErrBufferFull {
			return line, err
		}
		if len(line) > most {
			return nil, fmt.Errorf("a line is longer than %d bytes", most)
		}
	}
}
