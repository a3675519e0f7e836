package eval

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/lukv/lukv/internal/filelock"
)

// ErrSettings reports that a file of answers was made with other settings.
var ErrSettings = errors.New("made with other settings")

// ErrInUse reports that another evaluation is writing a file of answers.
var ErrInUse = errors.New("another evaluation is writing it")

// Log is a file of answers: one line that says what run it belongs to, and one
// line per answer, written and flushed one by one, so that a stopped run can be
// resumed. It belongs to one goroutine, and its file to one Log: the file is
// locked while it is open, where the system has locks.
type Log struct {
	f       *os.File
	answers []Answer
	done    map[logKey]bool
}

type logKey struct {
	item   int
	method string
}

// logHead is the first line.
type logHead struct {
	Format   string          `json:"format"`
	Hash     string          `json:"settings_hash"`
	Settings json.RawMessage `json:"settings"`
}

const logFormat = "lukv answers 2"

// OpenLog opens or creates a file of answers. hash stands for everything the
// answers depend on. A file with another hash gives [ErrSettings] and is left as
// it is; one that another Log has open gives [ErrInUse]. settings is written to a
// new file, for readers. An incomplete last line, left by a run that died while
// writing it, is removed.
func OpenLog(path, hash string, settings any) (*Log, error) {
	l, err := openLog(path, hash, settings)
	if err != nil {
		return nil, fmt.Errorf("open answers %s: %w", path, err)
	}
	return l, nil
}

func openLog(path, hash string, settings any) (l *Log, err error) {
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
	l = &Log{f: f, done: map[logKey]bool{}}
	r := bufio.NewReader(f)
	end := int64(0) // of the last whole line
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			if n == 1 && len(line) > 0 { // an unfinished first line may be anything
				return nil, errors.New("not a file of answers")
			}
			break
		}
		if err != nil {
			return nil, err
		}
		if err := l.line(n, line, hash); err != nil {
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
		return l, l.write(logHead{logFormat, hash, raw})
	}
	return l, nil
}

func (l *Log) line(n int, text []byte, hash string) error {
	if n > 1 {
		var a Answer
		if err := json.Unmarshal(text, &a); err != nil {
			return err
		}
		if err := a.check(); err != nil {
			return err
		}
		if !l.Done(a.Item, a.Method) { // two runs may have written it where there are no locks
			l.keep(a)
		}
		return nil
	}
	var head logHead
	if err := json.Unmarshal(text, &head); err != nil || head.Format != logFormat {
		return fmt.Errorf("not a file of answers of format %q", logFormat)
	}
	if head.Hash != hash {
		return fmt.Errorf("%w (%s, this run has %s): choose another file", ErrSettings, head.Hash, hash)
	}
	return nil
}

// check reports an answer that no run would give.
func (a *Answer) check() error {
	switch {
	case a.Method == "":
		return errors.New(`no "method": expected an answer`)
	case a.Item < 0:
		return fmt.Errorf("item %d, expected 0 or more", a.Item)
	case !(a.Score >= 0 && a.Score <= 1):
		return fmt.Errorf("score %v, expected 0 to 1", a.Score)
	}
	return nil
}

func (l *Log) keep(a Answer) {
	l.answers = append(l.answers, a)
	l.done[logKey{a.Item, a.Method}] = true
}

func (l *Log) write(v any) error {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := l.f.Write(buf.Bytes())
	return err
}

// Answers returns the answers in the file, in the order in which they were
// added. They must not be changed.
func (l *Log) Answers() []Answer { return l.answers }

// Done reports whether the file has the answer to an item under a method.
func (l *Log) Done(item int, method string) bool { return l.done[logKey{item, method}] }

// Add appends an answer.
func (l *Log) Add(a Answer) error {
	if err := l.write(a); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	l.keep(a)
	return nil
}

// Close closes the file. Closing twice is fine.
func (l *Log) Close() error {
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
