package runs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/inputfile"
)

// DivergenceFormat is the format of what lukv eval --measure kl --json prints.
const DivergenceFormat = "lukv eval divergence 1"

// Measured is a run of lukv eval with the settings that runs must share to be compared.
// It has answers or divergences.
type Measured struct {
	Name        string
	Settings    Settings
	Answers     []eval.Answer
	Divergences []eval.Divergence
}

// Settings are the settings of a run that say what was asked of what. They are empty
// where a run does not say.
type Settings struct {
	Model string
	Cache string          // the type of its caches
	From  string          // of divergences: the type of the caches that answered, and the model, if it is another
	Data  json.RawMessage // files of questions
}

// ReadMeasured reads runs, one from each path: a [Folder], a file of answers (lukv eval
// --items), or one of divergences.
func ReadMeasured(paths ...string) ([]*Measured, error) {
	var all []*Measured
	for _, path := range paths {
		m, err := readMeasured(path)
		if err != nil {
			return nil, fmt.Errorf("read run %s: %w", path, err)
		}
		all = append(all, m)
	}
	return all, nil
}

func readMeasured(path string) (*Measured, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !stat.IsDir() {
		head, err := readHead(path)
		if err != nil {
			return nil, err
		}
		m := &Measured{Name: filepath.Base(path), Settings: settingsOf(head.Settings), Divergences: head.Items}
		if head.Format == DivergenceFormat {
			if len(head.Items) == 0 {
				err = errors.New("no divergences")
			}
			return m, err
		}
		m.Divergences = nil
		r, err := read(path)
		if err == nil {
			m.Answers = r.Answers
		}
		return m, err
	}
	r, err := read(path)
	if err != nil {
		return nil, err
	}
	m := &Measured{Name: r.Name, Answers: r.Answers}
	if r.Info != nil {
		m.Settings = settingsOf(r.Info.Settings)
	}
	return m, nil
}

// head is the first JSON value of a file of answers, or a whole file of divergences.
type head struct {
	Format   string            `json:"format"`
	Settings json.RawMessage   `json:"settings"`
	Items    []eval.Divergence `json:"items"`
}

// readHead returns an empty head for a file of something else.
func readHead(path string) (h head, err error) {
	f, err := inputfile.Open(path)
	if err != nil {
		return h, err
	}
	defer f.Close()
	if err := json.NewDecoder(f).Decode(&h); err != nil {
		if h.Format == DivergenceFormat {
			return h, err
		}
		return head{}, nil
	}
	return h, nil
}

// settingsOf reads the settings of lukv eval.
func settingsOf(raw json.RawMessage) Settings {
	var s struct {
		Model     string          `json:"model"`
		Precision string          `json:"precision"`
		CacheType string          `json:"cache_type"`
		Data      json.RawMessage `json:"data"`
		Reference string          `json:"reference_cache"`
		Original  string          `json:"reference_model"`
	}
	if json.Unmarshal(raw, &s) != nil {
		return Settings{}
	}
	if s.CacheType == "auto" { // as sessions choose it
		s.CacheType = "bf16"
		if s.Precision == "f32" {
			s.CacheType = "f32"
		}
	}
	from := cmp.Or(s.Reference, s.CacheType)
	if s.Original != "" {
		from += " of " + s.Original
	}
	return Settings{Model: s.Model, Cache: s.CacheType, Data: s.Data, From: from}
}
