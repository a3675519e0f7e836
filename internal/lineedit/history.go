package lineedit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
)

// maxHistory is the number of lines that a history file is shortened to.
const maxHistory = 1000

// maxBytes bounds the size of a history file.
const maxBytes = 64 << 20

// History holds earlier lines, oldest first. The zero value is empty and is kept in
// memory only.
type History struct {
	lines []string
	path  string
}

// Open reads the history from a file, in which each line is a quoted string, and
// makes Add write to it. A missing file is created when needed, readable by its
// owner alone; lines that cannot be parsed are skipped.
func (h *History) Open(path string) error {
	data, err := inputfile.Read(path, maxBytes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read history: %w", err)
	}
	h.path = path
	for text := range strings.Lines(string(data)) {
		if line, err := strconv.Unquote(strings.TrimSpace(text)); err == nil {
			h.lines = append(h.lines, line)
		}
	}
	if n := len(h.lines) - maxHistory; n > maxHistory/4 {
		h.lines = h.lines[n:]
		return h.rewrite()
	}
	return nil
}

// Lines returns the history, oldest first.
func (h *History) Lines() []string { return h.lines }

// Add appends a line, unless it is blank or equal to the last.
func (h *History) Add(line string) error {
	if strings.TrimSpace(line) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return nil
	}
	h.lines = append(h.lines, line)
	if h.path == "" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(h.path), 0o700)
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(h.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil {
			_, err = f.WriteString(strconv.Quote(line) + "\n")
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		h.path = "" // one message is enough
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

func (h *History) rewrite() error {
	var b strings.Builder
	for _, line := range h.lines {
		b.WriteString(strconv.Quote(line) + "\n")
	}
	err := atomicfile.Write(h.path, 0o600, func(w io.Writer) error {
		_, err := io.WriteString(w, b.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("shorten history: %w", err)
	}
	return nil
}
