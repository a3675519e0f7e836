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

// editor is one line being edited. Pasted text and history entries may contain
// line breaks; each of their lines takes a row of the screen.
type editor struct {
	t      *Terminal
	prompt string
	line   []rune
	at     int // cursor, 0 … len(line)
	left   int // first character shown of the row with the cursor
	top    int // first row on the screen
	below  int // rows from the first one on the screen to the cursor's

	entry int    // index in the history; its length is the line being written
	own   []rune // that line, while an entry is shown
}

// maxRows is the maximum number of rows that a line takes on the screen.
const maxRows = 10

// ReadLine shows the prompt, a single line of plain text, and returns the line
// that is typed, without its line break. It returns ErrInterrupt for Ctrl-C, with
// the line typed so far, io.EOF for Ctrl-D in an empty line or the end of the
// input, and ctx's cause when ctx is done. It does not add the line to the history.
func (t *Terminal) ReadLine(ctx context.Context, prompt string) (string, error) {
	return t.EditLine(ctx, prompt, "")
}

// EditLine is like ReadLine but begins with text to edit.
func (t *Terminal) EditLine(ctx context.Context, prompt, text string) (string, error) {
	e := &editor{t: t, prompt: prompt, entry: len(t.History.lines), line: []rune(text)}
	e.at = len(e.line)
	e.draw()
	for {
		k, err := t.key(ctx)
		if err == nil && k.name == keySearch {
			k, err = e.search(ctx)
		}
		if err != nil {
			e.finish()
			return "", err
		}
		done, err := e.press(k)
		if done || err != nil {
			e.finish()
			return string(e.line), err
		}
		e.draw()
	}
}

// finish moves the cursor to the row after the text.
func (e *editor) finish() {
	e.at = len(e.line)
	e.draw()
	fmt.Fprint(e.t, "\n")
	e.t.drawn = 0
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
		if !e.vertical(-1) {
			e.show(e.entry - 1)
		}
	case keyDown:
		if !e.vertical(1) {
			e.show(e.entry + 1)
		}
	case keyTab:
		e.complete()
	case keyClear:
		e.below = 0
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

// show replaces the line with an entry of the history.
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

// row is the range of characters in one row of the text: from its beginning to the
// line break or the end of the text.
type row struct{ from, to int }

func (e *editor) rows() []row {
	var out []row
	from := 0
	for i, r := range e.line {
		if r == '\n' {
			out = append(out, row{from, i})
			from = i + 1
		}
	}
	return append(out, row{from, len(e.line)})
}

// cursorRow returns the index of the row that the cursor is in.
func (e *editor) cursorRow(rows []row) int {
	for i, r := range rows {
		if e.at <= r.to {
			return i
		}
	}
	return len(rows) - 1
}

// vertical moves the cursor by a number of rows, and reports whether there is such a row.
func (e *editor) vertical(by int) bool {
	rows := e.rows()
	from := e.cursorRow(rows)
	to := from + by
	if to < 0 || to >= len(rows) {
		return false
	}
	e.at = min(rows[to].from+e.at-rows[from].from, rows[to].to)
	return true
}

// draw shows the text, each of its rows in a row of the screen. The row with the
// cursor is scrolled sideways to it; of many rows, those around it are shown.
func (e *editor) draw() {
	columns := e.t.size()
	if columns <= 0 {
		columns = 80
	}
	// The last column stays free: some terminals wrap when it is written to.
	room := max(4, columns-1-widthOf([]rune(e.prompt)))
	rows := e.rows()
	current := e.cursorRow(rows)
	e.top = max(min(e.top, current, len(rows)-1), current-maxRows+1, 0)
	shown := rows[e.top:min(e.top+maxRows, len(rows))]

	var b strings.Builder
	if e.below > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", e.below)
	}
	used, cursor := 0, 0
	for i, r := range shown {
		if i > 0 {
			b.WriteString("\n")
		}
		if i+e.top == 0 {
			b.WriteString("\r" + e.prompt)
		} else {
			b.WriteString("\r" + e.dots())
		}
		left := r.from
		if i+e.top == current {
			e.left = max(r.from, min(e.left, e.at), e.back(e.at, room-1))
			// After a deletion, show as much as there is room for.
			e.left = max(r.from, min(e.left, e.back(r.to, room-1)))
			left = e.left
		}
		n, at := e.drawRow(&b, row{left, r.to}, room)
		if i+e.top == current {
			used, cursor = n, at
		}
		b.WriteString("\x1b[K")
	}
	last := len(shown) - 1
	e.below = current - e.top
	if len(rows) > 1 || e.t.drawn > 1 {
		b.WriteString("\x1b[J") // erase rows of a longer text
	}
	e.t.drawn = len(rows)
	if up := last - e.below; up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", up)
		if right := widthOf([]rune(e.prompt)) + cursor; right > 0 {
			fmt.Fprintf(&b, "\x1b[%dC", right)
		}
	} else if back := used - cursor; back > 0 {
		fmt.Fprintf(&b, "\x1b[%dD", back)
	}
	io.WriteString(e.t, b.String())
}

// dots returns the text in front of further rows, as wide as the prompt.
func (e *editor) dots() string {
	n := widthOf([]rune(e.prompt))
	return strings.Repeat(".", max(0, n-1)) + strings.Repeat(" ", min(n, 1))
}

// drawRow writes as much of a row as fits, and returns the number of its columns and of
// those before the cursor.
func (e *editor) drawRow(b *strings.Builder, r row, room int) (used, cursor int) {
	for i, c := range e.line[r.from:r.to] {
		if i == e.at-r.from {
			cursor = used
		}
		if used+Width(c) > room {
			break
		}
		used += Width(c)
		b.WriteRune(visible(c))
	}
	if e.at == r.to {
		cursor = used
	}
	return used, cursor
}

// back returns the first character from which all characters up to end fit into columns.
func (e *editor) back(end, columns int) int {
	for used := 0; end > 0; end-- {
		if used += Width(e.line[end-1]); used > columns {
			break
		}
	}
	return end
}

// visible returns the form of a character on the screen.
func visible(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case !unicode.IsPrint(r) && !unicode.Is(unicode.Mn, r):
		return '·'
	}
	return r
}

// Width returns the number of columns that visible(r) takes.
func Width(r rune) int {
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
		n += Width(r)
	}
	return n
}
