package eval

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/filelock"
)

// ErrSettings reports that a file of outcomes was made with other settings.
var ErrSettings = errors.New("made with other settings")

// ErrInUse reports that another evaluation is writing a file of outcomes.
var ErrInUse = errors.New("another evaluation is writing it")

// Outcome is what an item has under a method: an [Answer] or a [Divergence].
type Outcome interface {
	of() outcomeKey
	kind() outcomeKind
	check() error // an outcome that no run would give
}

type outcomeKey struct {
	item   int
	method string
}

// outcomeKind says what a file of outcomes has: its name in errors and its format.
type outcomeKind struct{ name, format string }

// Log is a file of outcomes: one line that says what run it belongs to, and one
// line per outcome, written and flushed one by one, so that a stopped run can be
// resumed. It belongs to one goroutine, and its file to one Log: the file is
// locked while it is open, where the system has locks.
type Log[T Outcome] struct {
	f        *os.File
	outcomes []T
	done     map[outcomeKey]bool
}

// logHead is the first line.
type logHead struct {
	Format   string          `json:"format"`
	Hash     string          `json:"settings_hash"`
	Settings json.RawMessage `json:"settings"`
}

const logFormat = "lukv answers 2"

// OpenLog opens or creates a file of outcomes. hash stands for everything they
// depend on. A file with another hash gives [ErrSettings] and is left as
// it is; one that another Log has open gives [ErrInUse]. settings is written to a
// new file, for readers. An incomplete last line, left by a run that died while
// writing it, is removed.
func OpenLog[T Outcome](path, hash string, settings any) (*Log[T], error) {
	l, err := openLog[T](path, hash, settings)
	if err != nil {
		return nil, fmt.Errorf("open %s %s: %w", l.kind().name, path, err)
	}
	return l, nil
}

func openLog[T Outcome](path, hash string, settings any) (l *Log[T], err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file: a run could not go on from it")
	}
	if ok, err := filelock.Try(f); err != nil {
		return nil, err
	} else if !ok {
		return nil, ErrInUse
	}
	l = &Log[T]{f: f, done: map[outcomeKey]bool{}}
	r := bufio.NewReader(f)
	end := int64(0) // of the last whole line
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			if n == 1 && len(line) > 0 { // an unfinished first line may be anything
				return nil, fmt.Errorf("not a file of %s", l.kind().name)
			}
			break
		}
		if err != nil {
			return nil, err
		}
		if err := l.line(n, line, hash, settings); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		end += int64(len(line))
	}
	if err := f.Truncate(end); err != nil {
		return nil, err
	}
	if _, err := f.Seek(end, io.SeekStart); err != nil {
		return nil, err
	}
	if end == 0 {
		raw, err := json.Marshal(settings)
		if err != nil {
			return nil, err
		}
		return l, l.write(logHead{l.kind().format, hash, raw})
	}
	return l, nil
}

// kind is that of the file's outcomes; l may be nil.
func (l *Log[T]) kind() outcomeKind {
	var none T
	return none.kind()
}

func (l *Log[T]) line(n int, text []byte, hash string, settings any) error {
	if n > 1 {
		var o T
		if err := json.Unmarshal(text, &o); err != nil {
			return err
		}
		if err := o.check(); err != nil {
			return err
		}
		if !l.done[o.of()] { // two runs may have written it where there are no locks
			l.keep(o)
		}
		return nil
	}
	var head logHead
	if err := json.Unmarshal(text, &head); err != nil || head.Format != l.kind().format {
		return fmt.Errorf("not a file of %s of format %q", l.kind().name, l.kind().format)
	}
	if head.Hash != hash {
		return fmt.Errorf("%w%s: choose another place", ErrSettings, differing(head.Settings, settings))
	}
	return nil
}

// questionKeys are the settings that choose questions: files of outcomes grow by more of them.
var questionKeys = []string{"items", "limit", "fraction"}

// differing lists the settings of a file that are not those of this run, for an error.
func differing(old json.RawMessage, settings any) string {
	var was, is map[string]json.RawMessage
	raw, err := json.Marshal(settings)
	if err != nil || json.Unmarshal(old, &was) != nil || json.Unmarshal(raw, &is) != nil {
		return ""
	}
	names := map[string]bool{}
	for _, s := range []map[string]json.RawMessage{was, is} {
		for name := range s {
			if !bytes.Equal(was[name], is[name]) && !slices.Contains(questionKeys, name) {
				names[name] = true
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(slices.Sorted(maps.Keys(names)), ", ") + ")"
}

func (k outcomeKey) check() error {
	switch {
	case k.method == "":
		return errors.New(`no "method", expected one`)
	case k.item < 0:
		return fmt.Errorf("item %d, expected 0 or more", k.item)
	}
	return nil
}

func (a Answer) of() outcomeKey { return outcomeKey{a.Item, a.Method} }

func (Answer) kind() outcomeKind { return outcomeKind{"answers", logFormat} }

func (a Answer) check() error {
	if !(a.Score >= 0 && a.Score <= 1) {
		return fmt.Errorf("score %v, expected 0 to 1", a.Score)
	}
	return a.of().check()
}

func (d Divergence) of() outcomeKey { return outcomeKey{d.Item, d.Method} }

func (Divergence) kind() outcomeKind { return outcomeKind{"divergences", "lukv divergences 1"} }

func (d Divergence) check() error {
	if !(d.AnswerTokens >= 0 && d.KL > -1e-3) { // of equal distributions it is about 0
		return fmt.Errorf("divergence %v over %d tokens, expected at least 0 for each", d.KL, d.AnswerTokens)
	}
	return d.of().check()
}

func (l *Log[T]) keep(o T) {
	l.outcomes = append(l.outcomes, o)
	l.done[o.of()] = true
}

func (l *Log[T]) write(v any) error {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := l.f.Write(buf.Bytes())
	return err
}

// Outcomes returns those in the file, in the order in which they were added.
// They must not be changed.
func (l *Log[T]) Outcomes() []T { return l.outcomes }

// Done reports whether the file has the outcome of an item under a method.
func (l *Log[T]) Done(item int, method string) bool { return l.done[outcomeKey{item, method}] }

// Add appends an outcome.
func (l *Log[T]) Add(o T) error {
	if err := l.write(o); err != nil {
		return fmt.Errorf("write %s: %w", l.kind().name, err)
	}
	l.keep(o)
	return nil
}

// Close closes the file. Closing twice is fine.
func (l *Log[T]) Close() error {
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
