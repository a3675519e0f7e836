package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/internal/inputfile"
)

// Run is a run as read.
type Run struct {
	Name    string // of its folder or file
	Info    *Info  // nil for single files of answers and for other programs' runs
	Answers []eval.Answer
}

// Read reads runs, one from each path: a [Folder], a file that
// [eval.ReadPredictions] reads, or a folder with such files at any depth (kvpress's
// predictions.csv, RULER's and LongBench's .jsonl), which together are one run. A
// folder that holds a [Folder] is refused: that one has each of its answers twice.
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
		if err != nil {
			return err
		}
		if d.IsDir() { // seen before the files in it
			if _, err := os.Lstat(filepath.Join(p, infoName)); err == nil {
				return fmt.Errorf("%s in it is the folder of a run, expected that name: lukv eval --out keeps each answer there twice", p)
			}
			return nil
		}
		if base := filepath.Base(p); d.Type().IsRegular() && (base == "predictions.csv" || strings.HasSuffix(base, ".jsonl")) {
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
// by line: those with equal line and task are taken to be the same.
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

// Rescore gives all answers new scores; answers that failed keep none.
func (r *Run) Rescore(s scoring.Options) {
	for i := range r.Answers {
		r.Answers[i].Rescore(s)
	}
}
