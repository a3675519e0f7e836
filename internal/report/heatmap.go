package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// HeatMap is a picture of one number per layer and KV head.
type HeatMap struct {
	Title, Subtitle string
	Command         string      // put into the picture's description
	Values          [][]float64 // [L][K] from 0 to 1; a nil row is a layer that took no part
}

// palette runs from dark blue through green to yellow. It is ordered by
// brightness, so that it can be read without telling red from green.
var palette = [][3]float64{{45, 20, 90}, {60, 75, 140}, {35, 135, 140}, {95, 190, 100}, {250, 225, 60}}

// heatColor returns the colour of a value from 0 to 1, and whether dark text
// can be read on it.
func heatColor(v float64) (r, g, b uint8, darkText bool) {
	x := min(max(v, 0), 1) * float64(len(palette)-1)
	i := min(int(x), len(palette)-2)
	var c [3]float64
	for k := range c {
		c[k] = math.Round(palette[i][k] + (x-float64(i))*(palette[i+1][k]-palette[i][k]))
	}
	return uint8(c[0]), uint8(c[1]), uint8(c[2]), v > 0.6
}

// Colors is the number of colours of an output.
type Colors int

const (
	NoColors  Colors = iota // plain text
	Colors256               // the 256-colour palette of terminals
	Colors24                // any colour, 24 bits each
)

// WriteText prints the heat map: a row per layer, a cell per KV head with its
// percentage, on a coloured background if the output can show colours.
func (h HeatMap) WriteText(w io.Writer, c Colors) error {
	var b strings.Builder
	b.WriteString("layer")
	for k := range h.heads() {
		fmt.Fprintf(&b, "%4d", k)
	}
	b.WriteString("  KV head\n")
	for l, row := range h.Values {
		fmt.Fprintf(&b, "%5d", l)
		if row == nil {
			b.WriteString("  sliding window")
		}
		for _, v := range row {
			b.WriteString(c.ground(v, fmt.Sprintf("%4.0f", 100*v)))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ground puts text on a background in the colour of a value.
func (c Colors) ground(v float64, text string) string {
	if c == NoColors {
		return text
	}
	red, green, blue, dark := heatColor(v)
	ink := 97
	if dark {
		ink = 30
	}
	back := fmt.Sprintf("48;2;%d;%d;%d", red, green, blue)
	if c == Colors256 {
		cube := func(x uint8) int { return (int(x)*5 + 127) / 255 }
		back = fmt.Sprintf("48;5;%d", 16+36*cube(red)+6*cube(green)+cube(blue))
	}
	return fmt.Sprintf("\x1b[%d;%sm%s\x1b[0m", ink, back, text)
}

// heads returns the length of the longest row.
func (h HeatMap) heads() int {
	n := 0
	for _, row := range h.Values {
		n = max(n, len(row))
	}
	return n
}

// WriteSVG draws the heat map: layers downwards from 0, KV heads to the right,
// percentages in the cells, a colour bar at the side.
func (h HeatMap) WriteSVG(w io.Writer) error {
	heads := h.heads()
	const cw, ch, left, top, barGap = 34, 20, 56, 64, 24
	right := left + heads*cw
	bottom := top + len(h.Values)*ch
	width := max(right+barGap+70, left+8*max(len(h.Title), len(h.Subtitle)*3/4))
	height := max(bottom, top+120) + 40
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<desc>%s</desc>\n", html.EscapeString(h.Title), html.EscapeString(h.Command))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	text := func(x, y int, extra, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d"%s>%s</text>`+"\n", x, y, extra, html.EscapeString(s))
	}
	text(left, 20, ` font-size="14" font-weight="bold"`, h.Title)
	text(left, 37, ` fill="#444"`, h.Subtitle)
	for k := range heads {
		text(left+k*cw+cw/2, top-6, ` text-anchor="middle"`, fmt.Sprint(k))
	}
	for l, row := range h.Values {
		y := top + l*ch
		text(left-6, y+ch-6, ` text-anchor="end"`, fmt.Sprint(l))
		if row == nil {
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#eee"/>`+"\n", left, y, heads*cw, ch)
			text(left+6, y+ch-6, ` fill="#666"`, "sliding window")
		}
		for k, v := range row {
			r, g, bl, dark := heatColor(v)
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#%02x%02x%02x"/>`+"\n", left+k*cw, y, cw, ch, r, g, bl)
			fill := "#fff"
			if dark {
				fill = "#000"
			}
			text(left+k*cw+cw/2, y+ch-6, ` text-anchor="middle" fill="`+fill+`"`, fmt.Sprintf("%.0f", 100*v))
		}
	}
	text(left+heads*cw/2, bottom+20, ` text-anchor="middle"`, "KV head")
	middle := (top + bottom) / 2
	text(16, middle, fmt.Sprintf(` text-anchor="middle" transform="rotate(-90 16 %d)"`, middle), "layer")
	const steps, barHeight = 50, 100
	for i := range steps {
		r, g, bl, _ := heatColor(1 - (float64(i)+0.5)/steps)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="14" height="2" fill="#%02x%02x%02x"/>`+"\n", right+barGap, top+i*barHeight/steps, r, g, bl)
	}
	text(right+barGap+20, top+9, "", "100 %")
	text(right+barGap+20, top+barHeight, "", "0 %")
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
