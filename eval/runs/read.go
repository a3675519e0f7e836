package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/inputfile"
)

// Run is what was read of a run.
type Run struct {
	Name    string // of its folder or file
	Info    *Info  // nil for files of answers alone, and for other programs' runs
	Answers []eval.Answer
}

// Read reads runs, one of each path: a [Folder], a file that [eval.ReadPredictions]
// reads, or a folder in which such files lie at any depth (predictions.csv of
// kvpress, .jsonl of RULER and LongBench), which together are one run.
func Read(paths ...string) ([]*Run, error) {
	var all []*Run
	for _, path := range paths {
		r, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("read run %s: %w", path, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func read(path string) (*Run, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	name, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	r := &Run{Name: filepath.Base(name)}
	if !stat.IsDir() {
		return r, r.add(path)
	}
	switch info, err := readInfo(path); {
	case err == nil:
		r.Info = info
		return r, r.add(filepath.Join(path, answersName))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if base := filepath.Base(p); base == "predictions.csv" || strings.HasSuffix(base, ".jsonl") {
			return r.add(p)
		}
		return nil
	})
	if err == nil && len(r.Answers) == 0 {
		err = errors.New("found neither run.json nor predictions.csv nor .jsonl files in it")
	}
	return r, err
}

// add reads the answers of a file. The items of other programs' files are numbered
// by their lines: those of equal lines and tasks are taken for the same.
func (r *Run) add(path string) error {
	f, err := inputfile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	answers, err := eval.ReadPredictions(f, path)
	if err != nil {
		return err
	}
	r.Answers = append(r.Answers, answers...)
	return nil
}

// Rescore gives all answers new scores; answers that failed have none.
func (r *Run) Rescore(s eval.Scoring) {
	for i := range r.Answers {
		r.Answers[i].Rescore(s)
	}
}
