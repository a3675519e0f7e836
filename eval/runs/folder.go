package runs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
)

// The files of a folder.
const (
	infoName    = "run.json"
	answersName = "answers.jsonl"
	scoresName  = "scores.json"
	tableName   = "scores.csv"
)

const infoFormat = "lukv run folder 1"

// maxInfo bounds run.json; maxName bounds a task's or method's name in a file name.
// Both are in bytes.
const (
	maxInfo = 64 << 20
	maxName = 120
)

// Info is run.json: the identity of a run and the program that made it.
type Info struct {
	Format   string          `json:"format"`
	Hash     string          `json:"settings_hash"`
	Settings json.RawMessage `json:"settings"` // everything that answers depend on
	Command  string          `json:"command"`  // of the first run in the folder
	Version  any             `json:"version"`  // of the program, with the system and processor of its machine
	Started  time.Time       `json:"started"`

	// Data is "builtin" if any question was made from this project's own texts:
	// such scores are not comparable with published ones.
	Data string `json:"data,omitempty"`
}

// Folder is a run on disk. It must be closed.
type Folder struct {
	dir string
	*eval.Log[eval.Answer]
}

// Open makes the folder of a run, or opens it to resume the run, with the
// settings of info and the rest of run.json as it was. A folder of a run with
// another hash gives [eval.ErrSettings] and is left as it is; one that another
// process is writing gives [eval.ErrInUse].
func Open(dir string, info Info) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("open run: %w", err)
	}
	log, err := eval.OpenLog[eval.Answer](filepath.Join(dir, answersName), info.Hash, info.Settings)
	if err != nil {
		return nil, err
	}
	f := &Folder{dir, log}
	if old, err := readInfo(dir); err == nil && old.Hash == info.Hash {
		old.Settings = info.Settings
		info = *old
	} // else run.json is from a run whose answers are gone
	info.Format = infoFormat
	if err := f.write(infoName, info); err != nil {
		log.Close()
		return nil, err
	}
	return f, nil
}

func (f *Folder) write(name string, v any) error {
	return atomicfile.Write(filepath.Join(f.dir, name), 0o666, func(w io.Writer) error { return report.WriteJSON(w, v) })
}

// Finish writes the scores, and writes the answers again by benchmark, task and
// method. policies are as for [eval.WriteCSV].
func (f *Folder) Finish(rows []eval.Row, policies map[string]string) error {
	if err := f.sort(); err != nil {
		return err
	}
	if err := f.write(scoresName, rows); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(f.dir, tableName), 0o666, func(w io.Writer) error { return eval.WriteCSV(w, rows, policies) })
}

// sort writes <benchmark>/<task>/<method>.jsonl, each in the order of items.
func (f *Folder) sort() error {
	files := map[string][]eval.Answer{}
	var paths []string
	var used names
	for _, a := range f.Outcomes() {
		bench := cmp.Or(eval.Benchmark(a.Task), "other")
		task := used.of(bench, a.Task)
		path := filepath.Join(f.dir, bench, task, used.of(bench+"/"+task, a.Method)+".jsonl")
		if files[path] == nil {
			paths = append(paths, path)
		}
		files[path] = append(files[path], a)
	}
	for _, path := range paths {
		answers := files[path]
		slices.SortStableFunc(answers, func(a, b eval.Answer) int { return a.Item - b.Item })
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return fmt.Errorf("sort answers: %w", err)
		}
		err := atomicfile.Write(path, 0o666, func(w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetEscapeHTML(false)
			for _, a := range answers {
				if err := e.Encode(a); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// names gives things valid file names, the same name to the same thing.
type names map[string]string // the thing, by folder and name

// of returns the name of a thing in a folder: its own name with hyphens for
// everything but letters, digits, periods, hyphens and underscores, and a number
// at the end if another thing has that name.
func (n *names) of(folder, thing string) string {
	if *n == nil {
		*n = names{}
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return '-'
	}, thing[:min(len(thing), maxName)])
	if strings.Trim(name, ".") == "" {
		name = "-" + name
	}
	// Some systems treat names that differ only in case as equal.
	for try, k := name, 2; ; try, k = fmt.Sprintf("%s-%d", name, k), k+1 {
		key := folder + "/" + strings.ToLower(try)
		if other, taken := (*n)[key]; !taken || other == thing {
			(*n)[key] = thing
			return try
		}
	}
}

func readInfo(dir string) (*Info, error) {
	data, err := inputfile.Read(filepath.Join(dir, infoName), maxInfo)
	if err != nil {
		return nil, err
	}
	var info Info
	if err := json.Unmarshal(data, &info); err != nil {
		return nil, fmt.Errorf("%s: %w", infoName, err)
	}
	if info.Format != infoFormat {
		return nil, fmt.Errorf("%s: format %q, expected %q", infoName, info.Format, infoFormat)
	}
	return &info, nil
}
