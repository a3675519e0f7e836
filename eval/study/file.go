package study

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/lukv/lukv/internal/report"
)

const format = "lukv analysis 1"

// File is the data of some figures and how they were made.
type File struct {
	Format  string          `json:"format"`
	Title   string          `json:"title"`
	Command string          `json:"command"`
	Model   string          `json:"model,omitempty"`
	Data    string          `json:"data,omitempty"` // what was measured on
	N       int             `json:"n,omitempty"`    // questions, or repetitions
	Seconds float64         `json:"seconds"`
	Figures []report.Figure `json:"figures"`

	// Frontier holds the points of lukv analyze frontier.
	Frontier []FrontierPoint `json:"frontier,omitempty"`
}

// Write writes the file, adding data and model to the figures' subtitles.
func (f *File) Write(w io.Writer) error {
	f.Format = format
	for i := range f.Figures {
		x := &f.Figures[i]
		for _, s := range []string{f.Data, f.Model} {
			if s != "" {
				x.Subtitle = strings.TrimPrefix(x.Subtitle+"; "+s, "; ")
			}
		}
	}
	return report.WriteJSON(w, f)
}

// maxFile bounds how much of a file is read, in bytes.
const maxFile = 1 << 30

// Read reads a file. name appears in errors.
func Read(r io.Reader, name string) (*File, error) {
	var f File
	err := json.NewDecoder(io.LimitReader(r, maxFile)).Decode(&f)
	switch {
	case err != nil:
		err = fmt.Errorf("%w, expected an object of the format %q", err, format)
	case f.Format != format:
		err = fmt.Errorf("format %q, expected %q", f.Format, format)
	case len(f.Figures) == 0:
		err = errors.New("no figures")
	}
	for i := range f.Figures {
		if err == nil {
			err = f.Figures[i].Validate()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read analysis %s: %w", name, err)
	}
	return &f, nil
}
