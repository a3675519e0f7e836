package report

import (
	"encoding/csv"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Figure is the data of a picture: lines over a common axis, or heat maps with a
// common scale. The picture can be drawn again from it.
type Figure struct {
	ID       string `json:"id"` // for file names
	Title    string `json:"title"`
	Subtitle string `json:"subtitle,omitempty"`
	Note     string `json:"note,omitempty"` // explanation for the reader
	X        string `json:"x"`              // the axes
	Y        string `json:"y"`

	Lines  []Line      `json:"lines,omitempty"`  // one line chart, or
	Charts []Chart     `json:"charts,omitempty"` // small ones, or
	Heat   []HeatPanel `json:"heat,omitempty"`   // heat maps

	LogX bool `json:"log_x,omitempty"` // the axis of lines is logarithmic, so that values must be positive
	LogY bool `json:"log_y,omitempty"`

	Columns int    `json:"columns,omitempty"` // of small charts
	Unit    string `json:"unit,omitempty"`    // of the values in heat maps
}

// Line is a series of points. Low and High, if present, bound a band; where points are
// marked as best, which rings them, they bound a bar at each of those instead.
type Line struct {
	Name string    `json:"name"`
	X    []float64 `json:"x"`
	Y    []float64 `json:"y"`
	Low  []float64 `json:"low,omitempty"`
	High []float64 `json:"high,omitempty"`
	Best []bool    `json:"best,omitempty"`
	Pale bool      `json:"pale,omitempty"` // in the background, without a name of its own
}

// Chart is one of several small charts with common axes.
type Chart struct {
	Name  string `json:"name"`
	Lines []Line `json:"lines"`
}

// HeatPanel is one heat map, with rows downwards. Null values are not drawn.
type HeatPanel struct {
	Name    string       `json:"name"`
	Rows    []string     `json:"rows"`
	Columns []string     `json:"columns"`
	Values  [][]*float64 `json:"values"`
}

// An ink is how a line is drawn.
type ink struct{ color, dash string }

// inks can be told apart without red and green, and their dashes differ, too.
var inks = []ink{
	{"#0b3c8c", ""}, {"#e08a00", "7 3"}, {"#008f8f", "2 3"}, {"#8a2be2", "9 3 2 3"}, {"#444444", "4 4"}, {"#c2185b", "12 4"}, {"#6d4c1b", "1 3"}, {"#5aa0e0", "6 2 2 2 2 2"},
}

// lineInk returns the ink of line k. Colors repeat after len(inks) lines, but
// with other dashes.
func lineInk(k int) ink {
	n := len(inks)
	return ink{inks[k%n].color, inks[(k+k/n)%n].dash}
}

// maxBands is the largest number of lines whose bands do not hide each other.
const maxBands = 4

// maxMarked is the number of points at and above which lines have no marks.
const maxMarked = 20

// WriteCSV writes the points in long form.
func (f *Figure) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	n := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	c.Write([]string{"figure", "panel", "series", "x", "y", "low", "high"})
	lines := func(panel string, lines []Line) {
		for _, l := range lines {
			for i := range l.X {
				low, high := "", ""
				if l.Low != nil {
					low, high = n(l.Low[i]), n(l.High[i])
				}
				c.Write([]string{f.ID, panel, l.Name, n(l.X[i]), n(l.Y[i]), low, high})
			}
		}
	}
	lines("", f.Lines)
	for _, x := range f.Charts {
		lines(x.Name, x.Lines)
	}
	for _, p := range f.Heat {
		for i, row := range p.Values {
			for k, v := range row {
				if v != nil {
					c.Write([]string{f.ID, p.Name, p.Rows[i], p.Columns[k], n(*v), "", ""})
				}
			}
		}
	}
	c.Flush()
	return c.Error()
}

// Validate reports data that cannot be drawn.
func (f *Figure) Validate() error {
	check := func(lines []Line) error {
		for _, l := range lines {
			if len(l.X) != len(l.Y) || l.Low != nil && len(l.Low) != len(l.X) || len(l.High) != len(l.Low) {
				return fmt.Errorf("figure %s: series %s: %d, %d, %d and %d values of x, y, low and high", f.ID, l.Name, len(l.X), len(l.Y), len(l.Low), len(l.High))
			}
			if l.Best != nil && len(l.Best) != len(l.X) {
				return fmt.Errorf("figure %s: series %s: %d points, %d of which are said to be best or not", f.ID, l.Name, len(l.X), len(l.Best))
			}
			if f.LogX && !positive(l.X) || f.LogY && !(positive(l.Y) && positive(l.Low)) {
				return fmt.Errorf("figure %s: series %s: found a value that is not positive, expected none on a logarithmic axis", f.ID, l.Name)
			}
		}
		return nil
	}
	if err := check(f.Lines); err != nil {
		return err
	}
	for _, c := range f.Charts {
		if err := check(c.Lines); err != nil {
			return err
		}
	}
	for _, p := range f.Heat {
		if len(p.Values) != len(p.Rows) {
			return fmt.Errorf("figure %s: panel %s: %d rows of values for %d names", f.ID, p.Name, len(p.Values), len(p.Rows))
		}
		for _, row := range p.Values {
			if len(row) != len(p.Columns) {
				return fmt.Errorf("figure %s: panel %s: a row of %d values for %d columns", f.ID, p.Name, len(row), len(p.Columns))
			}
		}
	}
	if f.ID == "" || strings.ContainsAny(f.ID, "/\\\x00") || strings.HasPrefix(f.ID, ".") {
		return fmt.Errorf("figure: id %q cannot be a file name", f.ID)
	}
	return nil
}

func positive(values []float64) bool {
	return !slices.ContainsFunc(values, func(x float64) bool { return !(x > 0) })
}

// svg is a picture being drawn.
type svg struct {
	strings.Builder
}

func (s *svg) text(x, y float64, extra, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f"%s>%s</text>`+"\n", x, y, extra, html.EscapeString(text))
}

// WriteSVG draws the figure. Its description holds command.
func (f *Figure) WriteSVG(w io.Writer, command string) error {
	var s svg
	width, height := f.draw(&s)
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`+"\n"+
		"<title>%s</title>\n<desc>%s</desc>\n"+`<rect width="%.0f" height="%.0f" fill="white"/>`+"\n%s</svg>\n",
		width, height, width, height, html.EscapeString(f.Title), html.EscapeString(command), width, height, s.String())
	return err
}

// draw draws the title and contents and returns the size.
func (f *Figure) draw(s *svg) (width, height float64) {
	const left, top = 64, 60
	s.text(left, 22, ` font-size="16" font-weight="bold"`, f.Title)
	s.text(left, 42, ` fill="#555"`, f.Subtitle)
	wide := left + 7*float64(max(len(f.Title)*9/8, len(f.Subtitle)))
	switch {
	case len(f.Heat) > 0:
		width, height = f.drawHeat(s, left, top)
	case len(f.Charts) > 0:
		width, height = f.drawCharts(s, left, top)
	default:
		a := axesOf(f.Lines, f.LogX, f.LogY)
		a.draw(s, left, top, 460, 300, true)
		a.lines(s, f.Lines)
		s.text(left+230, top+340, ` text-anchor="middle"`, f.X)
		s.text(18, top+150, fmt.Sprintf(` text-anchor="middle" transform="rotate(-90 18 %d)"`, top+150), f.Y)
		width = left + 480 + legend(s, left+480, top, f.Lines)
		height = top + max(356, 20*float64(len(f.Lines))+30)
	}
	return max(width, wide), height
}

// legend names the series that are not pale and returns its width.
func legend(s *svg, x, y float64, lines []Line) float64 {
	wide, k, pale := 0, 0, 0
	for _, l := range lines {
		if l.Pale {
			pale++
			continue
		}
		ink := lineInk(k)
		at := y + 10 + 20*float64(k)
		fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n", x, at, x+28, at, ink.color, ink.dash)
		s.text(x+34, at+4, "", l.Name)
		wide = max(wide, len([]rune(l.Name)))
		k++
	}
	if pale > 0 {
		at := y + 10 + 20*float64(k)
		fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#bbb" stroke-width="1"/>`+"\n", x, at, x+28, at)
		s.text(x+34, at+4, ` fill="#666"`, fmt.Sprintf("%d others", pale))
		wide = max(wide, 10)
	}
	return 50 + 7*float64(wide)
}

// axes map data to the place where lines are drawn.
type axes struct {
	x0, x1, y0, y1           float64 // data
	left, top, width, height float64 // picture
	logX, logY               bool
}

// axesOf returns axes that hold all lines, with y from 0 if no values are
// negative and the axis is not logarithmic.
func axesOf(lines []Line, logX, logY bool) *axes {
	a := &axes{x0: math.Inf(1), x1: math.Inf(-1), y0: 0, y1: math.Inf(-1), logX: logX, logY: logY}
	if logY {
		a.y0 = math.Inf(1)
	}
	for _, l := range lines {
		for i := range l.X {
			a.x0, a.x1 = min(a.x0, l.X[i]), max(a.x1, l.X[i])
			a.y0, a.y1 = min(a.y0, l.Y[i]), max(a.y1, l.Y[i])
			if l.High != nil {
				a.y0, a.y1 = min(a.y0, l.Low[i]), max(a.y1, l.High[i])
			}
		}
	}
	if logX {
		a.x0, a.x1 = decades(a.x0, a.x1)
	}
	if logY {
		a.y0, a.y1 = decades(a.y0, a.y1)
		return a
	}
	if !(a.x1 > a.x0) {
		a.x0, a.x1 = a.x0-1, a.x0+1
	}
	if math.IsInf(a.x0, 0) || math.IsNaN(a.x0) {
		a.x0, a.x1 = 0, 1
	}
	if !(a.y1 > a.y0) || math.IsInf(a.y1, 0) {
		a.y1 = a.y0 + 1
	}
	if t := ticks(a.y0, a.y1, 6); len(t) > 1 { // up to the next round value
		a.y1 = t[0] + (t[1]-t[0])*math.Ceil((a.y1-t[0])/(t[1]-t[0])-1e-9)
	}
	return a
}

// decades returns the ends of a logarithmic axis that holds positive values: at least a
// factor of two, or 1 to 10 if there are none.
func decades(from, to float64) (float64, float64) {
	from, to = max(from, 1e-300), min(to, 1e300) // with room beyond
	switch {
	case !(to >= from):
		return 1, 10
	case to/from < 2:
		return from / 2, to * 2
	}
	return from / 1.1, to * 1.1
}

// logTicks returns 1, 2 and 5 times the powers of ten between from and to, or the powers
// alone if they are many.
func logTicks(from, to float64) []float64 {
	steps := []float64{1, 2, 5}
	if math.Log10(to)-math.Log10(from) > 3 {
		steps = steps[:1]
	}
	var out []float64
	for e := math.Floor(math.Log10(from)); e <= math.Log10(to) && len(out) < 24; e++ {
		for _, m := range steps {
			if x := m * math.Pow(10, e); x >= from && x <= to {
				out = append(out, x)
			}
		}
	}
	return out
}

// axisTicks returns the ticks of an axis.
func axisTicks(from, to float64, log bool) []float64 {
	if log {
		return logTicks(from, to)
	}
	return ticks(from, to, 6)
}

// share returns where a value lies on an axis, 0 to 1.
func share(x, from, to float64, log bool) float64 {
	if log {
		return (math.Log(x) - math.Log(from)) / (math.Log(to) - math.Log(from))
	}
	return (x - from) / (to - from)
}

// ticks returns about n round values between from and to.
func ticks(from, to float64, n int) []float64 {
	step := math.Pow(10, math.Floor(math.Log10((to-from)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (to-from)/(m*step) <= float64(n) {
			step *= m
			break
		}
	}
	var out []float64
	first := math.Ceil(from/step - 1e-9)
	for k := range n + 2 { // bounded, as a step may be too small to change the sum
		x := (first+float64(k))*step + 0 // no -0
		if !(x <= to+step*1e-9) {
			break
		}
		out = append(out, x)
	}
	return out
}

// number formats a tick.
func number(x float64) string {
	if x != 0 && (math.Abs(x) >= 1e6 || math.Abs(x) < 1e-3) {
		return strconv.FormatFloat(x, 'e', 1, 64)
	}
	return strconv.FormatFloat(math.Round(x*1e6)/1e6, 'f', -1, 64)
}

func (a *axes) px(x float64) float64 { return a.left + share(x, a.x0, a.x1, a.logX)*a.width }
func (a *axes) py(y float64) float64 {
	return a.top + a.height - share(y, a.y0, a.y1, a.logY)*a.height
}

// draw draws the frame, with a grid and numbers if requested.
func (a *axes) draw(s *svg, left, top, width, height float64, numbers bool) {
	a.left, a.top, a.width, a.height = left, top, width, height
	if numbers {
		for _, x := range axisTicks(a.x0, a.x1, a.logX) {
			fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#e6e6e6"/>`+"\n", a.px(x), top, a.px(x), top+height)
			s.text(a.px(x), top+height+17, ` text-anchor="middle" fill="#333"`, number(x))
		}
		for _, y := range axisTicks(a.y0, a.y1, a.logY) {
			fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#e6e6e6"/>`+"\n", left, a.py(y), left+width, a.py(y))
			s.text(left-6, a.py(y)+4, ` text-anchor="end" fill="#333"`, number(y))
		}
	}
	fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="none" stroke="#888"/>`+"\n", left, top, width, height)
}

// lines draws the pale series first, then the others with their bands.
func (a *axes) lines(s *svg, lines []Line) {
	path := func(x, y []float64) string {
		var b strings.Builder
		for i := range x {
			fmt.Fprintf(&b, "%.1f,%.1f ", a.px(x[i]), a.py(y[i]))
		}
		return strings.TrimSpace(b.String())
	}
	for _, l := range lines {
		if l.Pale {
			fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="#bbb" stroke-width="0.8" stroke-opacity="0.7"/>`+"\n", path(l.X, l.Y))
		}
	}
	k := 0
	for _, l := range lines {
		if l.Pale {
			continue
		}
		ink := lineInk(k)
		k++
		if l.Low != nil && l.Best == nil && len(lines) <= maxBands {
			points := path(l.X, l.High)
			for i := len(l.X) - 1; i >= 0; i-- {
				points += fmt.Sprintf(" %.1f,%.1f", a.px(l.X[i]), a.py(l.Low[i]))
			}
			fmt.Fprintf(s, `<polygon points="%s" fill="%s" fill-opacity="0.10"/>`+"\n", points, ink.color)
		}
		fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n", path(l.X, l.Y), ink.color, ink.dash)
		if len(l.X) < maxMarked && a.width > 200 {
			for i := range l.X {
				fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", a.px(l.X[i]), a.py(l.Y[i]), ink.color)
			}
		}
		a.rings(s, &l, ink)
	}
}

// rings draws rings around the points that are marked as best, with bars between their
// bounds.
func (a *axes) rings(s *svg, l *Line, ink ink) {
	for i, best := range l.Best {
		if !best {
			continue
		}
		x := a.px(l.X[i])
		if l.Low != nil {
			fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="1"/>`+"\n", x, a.py(l.Low[i]), x, a.py(l.High[i]), ink.color)
		}
		fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="6" fill="none" stroke="#000" stroke-width="1.2"/>`+"\n", x, a.py(l.Y[i]))
	}
}

// drawCharts draws small charts with common axes in rows.
func (f *Figure) drawCharts(s *svg, left, top float64) (width, height float64) {
	var all []Line
	for _, c := range f.Charts {
		all = append(all, c.Lines...)
	}
	size, columns := 150.0, max(1, f.Columns)
	if columns > 6 {
		size = 70
	}
	const gap, name = 12.0, 16.0
	common := axesOf(all, false, false)
	for i, c := range f.Charts {
		a := *common
		x, y := left+float64(i%columns)*(size+gap), top+name+float64(i/columns)*(size+gap+name)
		a.draw(s, x, y, size, size, false)
		a.lines(s, c.Lines)
		s.text(x, y-4, ` font-size="10"`, c.Name)
	}
	rows := (len(f.Charts) + columns - 1) / columns
	width, height = left+float64(columns)*(size+gap), top+float64(rows)*(size+gap+name)
	a := common
	s.text(left, height+14, ` fill="#555"`, fmt.Sprintf("to the right: %s, %s to %s; upwards: %s, %s to %s", f.X, number(a.x0), number(a.x1), f.Y, number(a.y0), number(a.y1)))
	return width + legend(s, width+10, top, f.Charts[0].Lines) + 10, height + 28
}

// drawHeat draws heat maps side by side on one scale.
func (f *Figure) drawHeat(s *svg, left, top float64) (width, height float64) {
	low, high := 0.0, math.Inf(-1)
	rows, names := 0, 0
	for _, p := range f.Heat {
		rows = max(rows, len(p.Rows))
		for _, r := range p.Rows {
			names = max(names, len([]rune(r)))
		}
		for _, row := range p.Values {
			for _, v := range row {
				if v != nil {
					low, high = min(low, *v), max(high, *v)
				}
			}
		}
	}
	if !(high > low) {
		high = low + 1
	}
	cw, ch := 34.0, 18.0
	if rows > 12 {
		ch = 13
	}
	left += 7 * float64(max(0, names-4))
	x := left
	for i, p := range f.Heat {
		s.text(x, top+8, ` font-weight="bold"`, p.Name)
		for k, c := range p.Columns {
			s.text(x+cw*(float64(k)+0.5), top+26, ` text-anchor="middle" fill="#333" font-size="10"`, c)
		}
		for r, row := range p.Values {
			y := top + 32 + ch*float64(r)
			if i == 0 {
				s.text(x-6, y+ch-4, ` text-anchor="end" fill="#333" font-size="10"`, p.Rows[r])
			}
			for k, v := range row {
				if v == nil {
					continue
				}
				share := (*v - low) / (high - low)
				red, green, blue, dark := heatColor(share)
				fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#%02x%02x%02x"/>`+"\n", x+cw*float64(k), y, cw, ch, red, green, blue)
				ink := "#fff"
				if dark {
					ink = "#000"
				}
				s.text(x+cw*(float64(k)+0.5), y+ch-4, ` text-anchor="middle" font-size="9" fill="`+ink+`"`, short(*v))
			}
		}
		x += max(cw*float64(len(p.Columns)), 7.5*float64(len([]rune(p.Name)))) + 24
	}
	bottom := top + 32 + ch*float64(rows)
	s.text(left, bottom+18, "", f.X)
	s.text(16, (top+bottom)/2, fmt.Sprintf(` text-anchor="middle" transform="rotate(-90 16 %.0f)"`, (top+bottom)/2), f.Y)
	const steps, tall = 50, 120.0
	for i := range steps {
		red, green, blue, _ := heatColor(1 - (float64(i)+0.5)/steps)
		fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="14" height="%.1f" fill="#%02x%02x%02x"/>`+"\n", x, top+32+float64(i)*tall/steps, tall/steps+0.2, red, green, blue)
	}
	s.text(x+20, top+42, "", strings.TrimSpace(short(high)+" "+f.Unit))
	s.text(x+20, top+32+tall, "", short(low))
	return x + 40 + 7*float64(len(f.Unit)+6), max(bottom, top+32+tall) + 30
}

// short formats a value in a cell.
func short(x float64) string {
	switch a := math.Abs(x); {
	case a >= 1e4 || a > 0 && a < 1e-3:
		return strconv.FormatFloat(x, 'e', 0, 64)
	case a >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 2, 64)
}

// Page is a self-contained page of figures.
type Page struct {
	Title, Intro string
	Sections     []Section
}

// Section is the figures of one data file.
type Section struct {
	Title, Command string
	Figures        []Figure
}

const pageStyle = `body{font-family:system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222;line-height:1.45}
h1{font-size:1.6em}h2{font-size:1.25em;margin-top:2.2em;border-bottom:1px solid #ccc;padding-bottom:.2em}
figure{margin:1.6em 0;overflow-x:auto}figcaption{max-width:52em;color:#444;margin-top:.3em}
code{background:#f4f4f4;padding:.1em .3em;font-size:.85em;overflow-wrap:anywhere}nav a{margin-right:1em}svg{max-width:100%;height:auto}`

// WriteHTML writes the page, which needs no other files.
func (p *Page) WriteHTML(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>%s</title>\n<style>%s</style>\n</head>\n<body>\n<h1>%s</h1>\n<p>%s</p>\n<nav>",
		html.EscapeString(p.Title), pageStyle, html.EscapeString(p.Title), html.EscapeString(p.Intro))
	for i, s := range p.Sections {
		for k := range s.Figures {
			fmt.Fprintf(&b, "<a href=\"#f%d-%d\">%s</a>\n", i, k, html.EscapeString(s.Figures[k].Title))
		}
	}
	b.WriteString("</nav>\n")
	for i, s := range p.Sections {
		fmt.Fprintf(&b, "<h2>%s</h2>\n<p><code>%s</code></p>\n", html.EscapeString(s.Title), html.EscapeString(s.Command))
		for k := range s.Figures {
			fmt.Fprintf(&b, "<figure id=\"f%d-%d\">\n", i, k)
			if err := s.Figures[k].WriteSVG(&b, s.Command); err != nil {
				return err
			}
			fmt.Fprintf(&b, "<figcaption>%s</figcaption>\n</figure>\n", html.EscapeString(s.Figures[k].Note))
		}
	}
	b.WriteString("</body>\n</html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
