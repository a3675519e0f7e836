package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/lukv/lukv/eval"
)

// colors is what an output can show.
type colors int

const (
	colorNone colors = iota // numbers only
	color256
	color24
)

// colors returns what standard output can show: nothing where it is no
// terminal or NO_COLOR is set.
func (e *env) colors() colors {
	switch {
	case os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || !isTerminal(e.out):
		return colorNone
	case os.Getenv("COLORTERM") == "truecolor" || os.Getenv("COLORTERM") == "24bit":
		return color24
	}
	return color256
}

// writeHeat prints a heat map: a row per layer, a cell per KV head with its
// percentage, coloured if the output can show colours.
func writeHeat(w io.Writer, values [][]float64, c colors) error {
	var b strings.Builder
	heads := 0
	for _, row := range values {
		heads = max(heads, len(row))
	}
	b.WriteString("layer")
	for h := range heads {
		fmt.Fprintf(&b, "%4d", h)
	}
	b.WriteString("  KV head\n")
	for l, row := range values {
		fmt.Fprintf(&b, "%5d", l)
		if row == nil {
			b.WriteString("  sliding window")
		}
		for _, v := range row {
			cell := fmt.Sprintf("%4.0f", 100*v)
			if c == colorNone {
				b.WriteString(cell)
				continue
			}
			red, green, blue, dark := eval.HeatColor(v)
			text := 97
			if dark {
				text = 30
			}
			back := fmt.Sprintf("48;2;%d;%d;%d", red, green, blue)
			if c == color256 {
				cube := func(x uint8) int { return (int(x)*5 + 127) / 255 }
				back = fmt.Sprintf("48;5;%d", 16+36*cube(red)+6*cube(green)+cube(blue))
			}
			fmt.Fprintf(&b, "\x1b[%d;%sm%s\x1b[0m", text, back, cell)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
