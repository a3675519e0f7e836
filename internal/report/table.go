package report

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Ink is how a cell of a table is coloured if colours are shown.
type Ink int

const (
	Plain Ink = iota
	Good      // green
	Bad       // red
	Bold
)

// Cell is one cell of a table.
type Cell struct {
	Text string
	Ink  Ink
}

// Table lays text out in columns. Columns are numbered from 0; all but those
// listed in Right are aligned to the left.
type Table struct {
	Indent string
	Right  []int
	rows   [][]Cell
}

// Row adds a row of plain cells.
func (t *Table) Row(texts ...string) {
	row := make([]Cell, len(texts))
	for i, s := range texts {
		row[i].Text = s
	}
	t.rows = append(t.rows, row)
}

// Cells adds a row.
func (t *Table) Cells(row ...Cell) { t.rows = append(t.rows, row) }

// Write prints the table with two spaces between columns.
func (t *Table) Write(w io.Writer, c Colors) error {
	var widths []int
	for _, row := range t.rows {
		for i, x := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(x.Text))
		}
	}
	right := make([]bool, len(widths))
	for _, i := range t.Right {
		if i < len(right) {
			right[i] = true
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		b.WriteString(t.Indent)
		for i, x := range row {
			if i > 0 {
				b.WriteString("  ")
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(x.Text))
			if right[i] {
				b.WriteString(pad)
			}
			b.WriteString(c.ink(x))
			if !right[i] && i < len(row)-1 {
				b.WriteString(pad)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ink colours a cell's text.
func (c Colors) ink(x Cell) string {
	codes := map[Ink]string{Good: "32", Bad: "31", Bold: "1"}
	code, ok := codes[x.Ink]
	if c == NoColors || !ok || x.Text == "" {
		return x.Text
	}
	return "\x1b[" + code + "m" + x.Text + "\x1b[0m"
}
