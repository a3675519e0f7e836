package lineedit

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// editor is one line being edited.
type editor struct {
	t      *Terminal
	prompt string
	line   []rune
	at     int // cursor, 0 … len(line)
	left   int // first character on the screen

	entry int    // of the history; its length stands for the line being written
	own   []rune // that line, while an entry is shown
}

// ReadLine shows the prompt, a single line of plain text, and returns the line
// that is typed, without its end. It returns ErrInterrupt for Ctrl-C, io.EOF for
// Ctrl-D in an empty line or the end of the input, and ctx's cause when it is
// done. It does not add the line to the history.
func (t *Terminal) ReadLine(ctx context.Context, prompt string) (string, error) {
	e := &editor{t: t, prompt: prompt, entry: len(t.History.lines)}
	e.draw()
	for {
		k, err := t.key(ctx)
		if err != nil {
			fmt.Fprint(t, "\n")
			return "", err
		}
		done, err := e.press(k)
		if done || err != nil {
			e.at = len(e.line)
			e.draw()
			fmt.Fprint(t, "\n")
			return string(e.line), err
		}
		e.draw()
	}
}

// press applies a key and reports whether the line is finished.
func (e *editor) press(k key) (done bool, err error) {
	switch k.name {
	case keyRune:
		e.insert(k.r)
	case keyPaste:
		e.insert([]rune(k.text)...)
	case keyEnter:
		return true, nil
	case keyInterrupt:
		return true, ErrInterrupt
	case keyDeleteOrEOF:
		if len(e.line) == 0 {
			return true, io.EOF
		}
		e.remove(e.at, e.at+1)
	case keyDelete:
		e.remove(e.at, e.at+1)
	case keyBackspace:
		e.remove(e.at-1, e.at)
	case keyLeft:
		e.at = max(0, e.at-1)
	case keyRight:
		e.at = min(len(e.line), e.at+1)
	case keyHome:
		e.at = 0
	case keyEnd:
		e.at = len(e.line)
	case keyWordLeft:
		e.at = e.wordStart()
	case keyWordRight:
		e.at = e.wordEnd()
	case keyWordBack:
		e.remove(e.wordStart(), e.at)
	case keyWordForward:
		e.remove(e.at, e.wordEnd())
	case keyKillStart:
		e.remove(0, e.at)
	case keyKillEnd:
		e.remove(e.at, len(e.line))
	case keyUp:
		e.show(e.entry - 1)
	case keyDown:
		e.show(e.entry + 1)
	case keyClear:
		fmt.Fprint(e.t, "\x1b[2J\x1b[H")
	}
	return false, nil
}

func (e *editor) insert(r ...rune) {
	e.line = slices.Insert(e.line, e.at, r...)
	e.at += len(r)
}

func (e *editor) remove(from, to int) {
	from, to = max(0, from), min(to, len(e.line))
	if from < to {
		e.line = slices.Delete(e.line, from, to)
		e.at = from
	}
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

func (e *editor) wordStart() int {
	i := e.at
	for i > 0 && !isWord(e.line[i-1]) {
		i--
	}
	for i > 0 && isWord(e.line[i-1]) {
		i--
	}
	return i
}

func (e *editor) wordEnd() int {
	i := e.at
	for i < len(e.line) && !isWord(e.line[i]) {
		i++
	}
	for i < len(e.line) && isWord(e.line[i]) {
		i++
	}
	return i
}

// show replaces the line by an entry of the history.
func (e *editor) show(entry int) {
	lines := e.t.History.lines
	if entry < 0 || entry > len(lines) {
		return
	}
	if e.entry == len(lines) {
		e.own = e.line
	}
	e.entry = entry
	if entry == len(lines) {
		e.line = e.own
	} else {
		e.line = []rune(lines[entry])
	}
	e.at = len(e.line)
}

// draw shows the part of the line around the cursor.
func (e *editor) draw() {
	columns := e.t.size()
	if columns <= 0 {
		columns = 80
	}
	// The last column stays free: some terminals wrap when it is written.
	room := max(4, columns-1-widthOf([]rune(e.prompt)))
	e.left = max(min(e.left, e.at), e.back(e.at, room-1))
	// After a deletion, show as much as there is room for.
	e.left = min(e.left, e.back(len(e.line), room-1))
	var b strings.Builder
	b.WriteString("\r" + e.prompt)
	used, cursor := 0, 0
	for i, r := range e.line[e.left:] {
		if i == e.at-e.left {
			cursor = used
		}
		if used+runeWidth(r) > room {
			break
		}
		used += runeWidth(r)
		b.WriteRune(visible(r))
	}
	if e.at == len(e.line) {
		cursor = used
	}
	b.WriteString("\x1b[K")
	if back := used - cursor; back > 0 {
		fmt.Fprintf(&b, "\x1b[%dD", back)
	}
	io.WriteString(e.t, b.String())
}

// back returns the first character from which on all up to end fit into columns.
func (e *editor) back(end, columns int) int {
	for used := 0; end > 0; end-- {
		if used += runeWidth(e.line[end-1]); used > columns {
			break
		}
	}
	return end
}

// visible stands for a character on the screen.
func visible(r rune) rune {
	switch {
	case r == '\n':
		return '↵'
	case r == '\t':
		return ' '
	case !unicode.IsPrint(r) && !unicode.Is(unicode.Mn, r):
		return '·'
	}
	return r
}

// runeWidth is the number of columns that visible(r) takes.
func runeWidth(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(visible(r)).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

func widthOf(s []rune) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}
