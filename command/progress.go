package command

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/term"
)

// progress draws one line on a terminal. Elsewhere it draws nothing or, of work that takes
// long, a line now and then. The nil progress draws nothing.
type progress struct {
	e     *env
	lines bool // not a terminal
	drawn time.Time
	begun time.Time
	wide  int // columns of the line on the screen
}

// progress returns a progress line, nil if there is no terminal to draw it on.
func (e *env) progress() *progress {
	if e.quiet || !isTerminal(e.err) {
		return nil
	}
	return &progress{e: e, begun: time.Now()}
}

// lineEvery is the time between lines where standard error is not a terminal.
var lineEvery = time.Minute

// longProgress is progress for work that may take minutes or hours: where there is no
// terminal, it is a line a minute, for logs.
func (e *env) longProgress() *progress {
	if e.quiet || isTerminal(e.err) {
		return e.progress()
	}
	now := time.Now()
	return &progress{e: e, begun: now, drawn: now, lines: true}
}

// show replaces the line, not more than ten times a second, or adds one.
func (p *progress) show(format string, args ...any) {
	every := 100 * time.Millisecond
	if p != nil && p.lines {
		every = lineEvery
	}
	if p == nil || time.Since(p.drawn) < every {
		return
	}
	p.drawn = time.Now()
	if p.lines {
		fmt.Fprintln(p.e.err, strings.Map(oneColumn, fmt.Sprintf(format, args...)))
		return
	}
	p.line(fmt.Sprintf(format, args...))
}

func (p *progress) line(text string) {
	columns := 80
	if f, ok := raw(p.e.err).(interface{ Fd() uintptr }); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			columns = w
		}
	}
	text = clip(strings.Map(oneColumn, text), columns-1)
	n := len([]rune(text))
	fmt.Fprintf(raw(p.e.err), "\r%s%s", text, strings.Repeat(" ", max(0, p.wide-n)))
	p.wide = n
}

// oneColumn maps a rune to one that keeps the progress on its line.
func oneColumn(r rune) rune {
	if r == '\n' || r == '\t' {
		return ' '
	}
	return shown(r)
}

// clip cuts text to a number of columns.
func clip(text string, columns int) string {
	if r := []rune(text); len(r) > columns {
		return string(r[:max(0, columns-1)]) + "…"
	}
	return text
}

// left estimates the remaining time after done of total steps, of which from
// were done before the work began.
func (p *progress) left(from, done, total int) string {
	if p == nil || done <= from {
		return ""
	}
	t := time.Duration(float64(time.Since(p.begun)) / float64(done-from) * float64(total-done))
	return ", " + t.Round(time.Second).String() + " left"
}

// clear erases the line.
func (p *progress) clear() {
	if p == nil || p.wide == 0 {
		return
	}
	fmt.Fprintf(raw(p.e.err), "\r%s\r", strings.Repeat(" ", p.wide))
	p.wide = 0
}

// note prints a line on standard error, above any progress.
func (e *env) note(format string, args ...any) {
	if !e.quiet {
		fmt.Fprintf(e.err, format+"\n", args...)
	}
}

// tokens returns the progress callback of a prefill.
func (p *progress) tokens(what string, layers int) func(done, total int) {
	if p == nil {
		return nil
	}
	return func(done, total int) {
		p.show("%s: %d of %d tokens%s", what, done/max(1, layers), total/max(1, layers), p.left(0, done, total))
	}
}

// counter returns a callback that shows how many things of a kind are done, of which
// from were done before the work began.
func (p *progress) counter(what, things string) func(from, done, total int) {
	return func(from, done, total int) {
		p.show("%s: %d of %d %s%s", what, done, total, things, p.left(from, done, total))
	}
}
