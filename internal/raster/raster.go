package raster

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"strconv"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// pngScale is the number of dots per unit of the drawing.
const pngScale = 2

// maxDots limits the dots of an image, to 256 MB of memory.
const maxDots = 64 << 20

// WritePNG draws an SVG of package report as a PNG, with two dots per unit, in the
// fonts of the Go project.
func WritePNG(w io.Writer, svg []byte) error {
	img, err := rasterize(svg, pngScale)
	if err != nil {
		return fmt.Errorf("draw as PNG: %w", err)
	}
	return png.Encode(w, img)
}

// raster is an image being drawn.
type raster struct {
	img   *image.RGBA
	scale float64
	faces map[face]font.Face
}

type face struct {
	bold bool
	size float64 // in dots
}

// point is a place in dots.
type point struct{ x, y float64 }

// rasterize draws an SVG made of the elements that package report uses: svg, title and
// desc, rect, line, polyline, polygon, circle, text. Others are errors.
func rasterize(svg []byte, scale float64) (*image.RGBA, error) {
	r := &raster{scale: scale, faces: map[face]font.Face{}}
	size := 12.0
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if err == io.EOF {
			if r.img == nil {
				return nil, errors.New("no svg")
			}
			return r.img, nil
		}
		if err != nil {
			return nil, err
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		e, err := attributesOf(start)
		if err != nil {
			return nil, err
		}
		switch name := start.Name.Local; {
		case name == "svg":
			width, height := math.Ceil(e.number("width")*scale), math.Ceil(e.number("height")*scale)
			if !(width >= 1 && height >= 1 && width*height <= maxDots) {
				return nil, fmt.Errorf("%.0f by %.0f dots, expected at most %d together", width, height, maxDots)
			}
			r.img = image.NewRGBA(image.Rect(0, 0, int(width), int(height)))
			if s := e.number("font-size"); s > 0 {
				size = s
			}
		case r.img == nil:
			return nil, fmt.Errorf("%s stands outside of svg", name)
		case name == "title" || name == "desc":
			if err := d.Skip(); err != nil {
				return nil, err
			}
		case name == "text":
			var text string
			if err := d.DecodeElement(&text, &start); err != nil {
				return nil, err
			}
			if err := r.text(e, text, size); err != nil {
				return nil, err
			}
		default:
			if err := r.shape(name, e); err != nil {
				return nil, err
			}
		}
	}
}

// attributes are the attributes of an element.
type attributes map[string]string

func attributesOf(e xml.StartElement) (attributes, error) {
	out := attributes{}
	for _, a := range e.Attr {
		out[a.Name.Local] = a.Value
	}
	for _, name := range []string{"x", "y", "width", "height", "x1", "y1", "x2", "y2", "cx", "cy", "r", "stroke-width", "stroke-opacity", "fill-opacity", "font-size"} {
		if s := out[name]; s != "" {
			if x, err := strconv.ParseFloat(s, 64); err != nil || math.IsNaN(x) || math.Abs(x) > 1e6 {
				return nil, fmt.Errorf("%s: %s is %q, expected a number", e.Name.Local, name, s)
			}
		}
	}
	return out, nil
}

// number returns the value of a numeric attribute, 0 if there is none.
func (a attributes) number(name string) float64 {
	x, _ := strconv.ParseFloat(a[name], 64)
	return x
}

// numbers parses numbers separated by spaces or commas.
func numbers(s string) ([]float64, error) {
	var out []float64
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' }) {
		x, err := strconv.ParseFloat(f, 64)
		if err != nil || math.IsNaN(x) || math.Abs(x) > 1e6 {
			return nil, fmt.Errorf("found %q, expected a number", f)
		}
		out = append(out, x)
	}
	return out, nil
}

// ink returns the colour of an attribute, with its opacity; ok is false if it is none.
func (a attributes) ink(name, otherwise string) (c color.NRGBA, ok bool, err error) {
	s := a[name]
	if s == "" {
		s = otherwise
	}
	opacity := 1.0
	if a[name+"-opacity"] != "" {
		opacity = a.number(name + "-opacity")
	}
	c.A = uint8(math.Round(255 * min(max(opacity, 0), 1)))
	switch hex := strings.TrimPrefix(s, "#"); {
	case s == "none" || s == "":
		return c, false, nil
	case s == "white":
		c.R, c.G, c.B = 255, 255, 255
	case s == "black":
	case hex != s && (len(hex) == 3 || len(hex) == 6):
		if len(hex) == 3 {
			hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
		}
		x, err := strconv.ParseUint(hex, 16, 24)
		if err != nil {
			return c, false, fmt.Errorf("%s is %q, expected a colour", name, s)
		}
		c.R, c.G, c.B = uint8(x>>16), uint8(x>>8), uint8(x)
	default:
		return c, false, fmt.Errorf("%s is %q, expected a colour", name, s)
	}
	return c, true, nil
}

// shape draws an element other than text.
func (r *raster) shape(name string, e attributes) error {
	var points []point
	closed := true
	switch name {
	case "rect":
		x, y, w, h := e.number("x"), e.number("y"), e.number("width"), e.number("height")
		points = []point{{x, y}, {x + w, y}, {x + w, y + h}, {x, y + h}}
	case "circle":
		points = disc(point{e.number("cx"), e.number("cy")}, e.number("r"))
	case "line":
		points, closed = []point{{e.number("x1"), e.number("y1")}, {e.number("x2"), e.number("y2")}}, false
	case "polyline", "polygon":
		list, err := numbers(e["points"])
		if err != nil || len(list)%2 != 0 {
			return fmt.Errorf("%s: points: %d numbers (%w)", name, len(list), err)
		}
		for i := 0; i < len(list); i += 2 {
			points = append(points, point{list[i], list[i+1]})
		}
		closed = name == "polygon"
	default:
		return fmt.Errorf("an element %s, which cannot be drawn", name)
	}
	for i := range points {
		points[i].x, points[i].y = points[i].x*r.scale, points[i].y*r.scale
	}
	if closed {
		fill, ok, err := e.ink("fill", "black")
		if err != nil {
			return err
		}
		if ok {
			r.fill(fill, points)
		}
	}
	stroke, ok, err := e.ink("stroke", "none")
	if err != nil || !ok {
		return err
	}
	width := 1.0
	if e["stroke-width"] != "" {
		width = e.number("stroke-width")
	}
	dashes, err := numbers(e["stroke-dasharray"])
	if err != nil {
		return fmt.Errorf("%s: stroke-dasharray: %w", name, err)
	}
	for i := range dashes {
		dashes[i] *= r.scale
	}
	if closed && len(points) > 0 {
		points = append(points, points[0])
	}
	r.stroke(stroke, points, width*r.scale, dashes)
	return nil
}

// disc returns a polygon that approximates a circle.
func disc(at point, radius float64) []point {
	const corners = 24
	var out []point
	for i := range corners {
		sin, cos := math.Sincos(2 * math.Pi * float64(i) / corners)
		out = append(out, point{at.x + radius*cos, at.y + radius*sin})
	}
	return out
}

// stroke draws a line of straight segments, rounded where they meet.
func (r *raster) stroke(c color.NRGBA, points []point, width float64, dashes []float64) {
	total := 0.0
	for _, d := range dashes {
		total += max(d, 0)
	}
	if total < 0.5 {
		dashes = nil
	}
	var shapes [][]point
	at, left, on := 0, math.Inf(1), true // the current dash
	if dashes != nil {
		left = dashes[0]
	}
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		length := math.Hypot(b.x-a.x, b.y-a.y)
		if length == 0 {
			continue
		}
		ux, uy := (b.x-a.x)/length, (b.y-a.y)/length
		for done := 0.0; done < length; {
			step := min(left, length-done)
			if on && step > 0 {
				p, q := point{a.x + ux*done, a.y + uy*done}, point{a.x + ux*(done+step), a.y + uy*(done+step)}
				nx, ny := -uy*width/2, ux*width/2
				shapes = append(shapes, []point{{p.x - nx, p.y - ny}, {q.x - nx, q.y - ny}, {q.x + nx, q.y + ny}, {p.x + nx, p.y + ny}})
				if done+step == length && width > r.scale && turns(points, i) {
					shapes = append(shapes, disc(q, width/2))
				}
			}
			done += step
			if left -= step; left <= 0 {
				at, on = (at+1)%len(dashes), !on
				left = dashes[at]
			}
		}
	}
	r.fill(c, shapes...)
}

// turns reports whether a line turns so sharply at a point that its segments leave a gap.
func turns(points []point, i int) bool {
	if i+1 >= len(points) {
		return false
	}
	a, b, c := points[i-1], points[i], points[i+1]
	along := (b.x-a.x)*(c.x-b.x) + (b.y-a.y)*(c.y-b.y)
	return along < 0.95*math.Hypot(b.x-a.x, b.y-a.y)*math.Hypot(c.x-b.x, c.y-b.y)
}

// fill fills shapes, which must all have the same orientation, in one go.
func (r *raster) fill(c color.NRGBA, shapes ...[]point) {
	x0, y0, x1, y1 := math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for _, s := range shapes {
		for _, p := range s {
			x0, y0, x1, y1 = min(x0, p.x), min(y0, p.y), max(x1, p.x), max(y1, p.y)
		}
	}
	bounds := image.Rect(int(math.Floor(max(x0, -1e6))), int(math.Floor(max(y0, -1e6))), int(math.Ceil(min(x1, 1e6))), int(math.Ceil(min(y1, 1e6)))).Intersect(r.img.Bounds())
	if len(shapes) == 0 || bounds.Empty() {
		return
	}
	z := vector.NewRasterizer(bounds.Dx(), bounds.Dy())
	for _, s := range shapes {
		for i, p := range s {
			x, y := float32(p.x-float64(bounds.Min.X)), float32(p.y-float64(bounds.Min.Y))
			if i == 0 {
				z.MoveTo(x, y)
			} else {
				z.LineTo(x, y)
			}
		}
		z.ClosePath()
	}
	z.Draw(r.img, bounds, image.NewUniform(c), image.Point{})
}

// text draws a text, which may be rotated by -90 degrees about its position.
func (r *raster) text(e attributes, text string, size float64) error {
	if s := e.number("font-size"); s > 0 {
		size = s
	}
	c, ok, err := e.ink("fill", "black")
	if err != nil || !ok {
		return err
	}
	f, err := r.face(face{e["font-weight"] == "bold", size * r.scale})
	if err != nil {
		return err
	}
	wide := font.MeasureString(f, text)
	shift := 0.0
	switch e["text-anchor"] {
	case "middle":
		shift = float64(wide) / 64 / 2
	case "end":
		shift = float64(wide) / 64
	}
	x, y := e.number("x")*r.scale, e.number("y")*r.scale
	if e["transform"] == "" {
		d := font.Drawer{Dst: r.img, Src: image.NewUniform(c), Face: f, Dot: fixed.Point26_6{X: fixed.Int26_6((x - shift) * 64), Y: fixed.Int26_6(y * 64)}}
		d.DrawString(text)
		return nil
	}
	if !strings.HasPrefix(e["transform"], "rotate(-90 ") {
		return fmt.Errorf("text: transform is %q, expected a turn by -90 degrees", e["transform"])
	}
	m := f.Metrics()
	up, down := m.Ascent.Ceil(), m.Descent.Ceil()
	line := image.NewAlpha(image.Rect(0, 0, wide.Ceil()+1, up+down))
	if line.Rect.Dx()*line.Rect.Dy() > maxDots {
		return errors.New("text: too long")
	}
	d := font.Drawer{Dst: line, Src: image.Opaque, Face: f, Dot: fixed.P(0, up)}
	d.DrawString(text)
	turned := image.NewAlpha(image.Rect(0, 0, line.Rect.Dy(), line.Rect.Dx()))
	for i := range line.Rect.Dx() {
		for k := range line.Rect.Dy() {
			turned.SetAlpha(k, line.Rect.Dx()-1-i, line.AlphaAt(i, k))
		}
	}
	at := image.Pt(int(math.Round(x))-up, int(math.Round(y+shift))-turned.Rect.Dy())
	draw.DrawMask(r.img, turned.Rect.Add(at), image.NewUniform(c), image.Point{}, turned, image.Point{}, draw.Over)
	return nil
}

// face returns a font face, creating it on first use.
func (r *raster) face(want face) (font.Face, error) {
	if f := r.faces[want]; f != nil {
		return f, nil
	}
	data := goregular.TTF
	if want.bold {
		data = gobold.TTF
	}
	parsed, err := opentype.Parse(data)
	if err != nil {
		return nil, err
	}
	f, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: want.size, DPI: 72, Hinting: font.HintingNone})
	if err != nil {
		return nil, err
	}
	r.faces[want] = f
	return f, nil
}
