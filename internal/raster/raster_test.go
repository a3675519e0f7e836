package raster

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/report"
)

// at returns the colour of a unit of a drawing.
func at(img *image.RGBA, x, y int) string {
	c := color.NRGBAModel.Convert(img.At(x*pngScale, y*pngScale)).(color.NRGBA)
	return fmt.Sprintf("%02x%02x%02x", c.R, c.G, c.B)
}

// Shapes cover what the SVG standard says they cover.
func TestRasterizeShapes(t *testing.T) {
	img, err := rasterize([]byte(`<svg width="100" height="60" font-size="12"><title>no text</title><rect width="100" height="60" fill="white"/>
<rect x="10" y="10" width="20" height="10" fill="#0b3c8c"/>
<rect x="40" y="10" width="20" height="10" fill="none" stroke="#888" stroke-width="2"/>
<circle cx="80" cy="15" r="5" fill="#e00"/>
<line x1="0" y1="30" x2="100" y2="30" stroke="#00ff00" stroke-width="4" stroke-dasharray="20 30"/>
<polyline points="10,40 30,40 30,55" fill="none" stroke="#123456" stroke-width="4"/>
<polygon points="50,40 70,40 70,55 50,55" fill="#000000" fill-opacity="0.5"/></svg>`), pngScale)
	require.NoError(t, err)
	assert.Equal(t, image.Rect(0, 0, 200, 120), img.Bounds())
	for p, want := range map[[2]int]string{
		{5, 5}: "ffffff", {15, 15}: "0b3c8c", {29, 19}: "0b3c8c", {31, 15}: "ffffff", {30, 21}: "ffffff",
		{50, 15}: "ffffff", {40, 15}: "888888", {80, 15}: "ee0000", {84, 11}: "ffffff",
		{10, 30}: "00ff00", {30, 30}: "ffffff", {60, 30}: "00ff00", {80, 30}: "ffffff",
		{20, 40}: "123456", {30, 50}: "123456", {20, 50}: "ffffff", {60, 50}: "7f7f7f",
	} {
		assert.Equal(t, want, at(img, p[0], p[1]), p)
	}
}

// dark returns the bounds of all dark dots.
func dark(img *image.RGBA) image.Rectangle {
	var r image.Rectangle
	for y := range img.Rect.Dy() {
		for x := range img.Rect.Dx() {
			if c := img.RGBAAt(x, y); c.R < 128 {
				r = r.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return r
}

// Texts are drawn where they are anchored, upright or rotated.
func TestRasterizeText(t *testing.T) {
	text := func(extra string) image.Rectangle {
		img, err := rasterize([]byte(`<svg width="200" height="200" font-size="20"><rect width="200" height="200" fill="white"/><text x="100" y="100"`+extra+`>HHHH</text></svg>`), pngScale)
		require.NoError(t, err)
		return dark(img)
	}
	start, middle, end, turned := text(""), text(` text-anchor="middle"`), text(` text-anchor="end"`), text(` text-anchor="middle" transform="rotate(-90 100 100)"`)
	assert.InDelta(t, 200, start.Min.X, 6)
	assert.InDelta(t, 200, end.Max.X, 6)
	assert.InDelta(t, 200, (middle.Min.X+middle.Max.X)/2, 4)
	assert.InDelta(t, 200, start.Max.Y, 2, "the base line")
	assert.InDelta(t, 200, turned.Max.X, 2, "the base line is to the right")
	assert.InDelta(t, 200, (turned.Min.Y+turned.Max.Y)/2, 4)
	assert.InDelta(t, middle.Dx(), turned.Dy(), 2)
	assert.Greater(t, text(` font-weight="bold"`).Dx(), start.Dx()-1)
	assert.InDelta(t, 2*start.Dy(), text(` font-size="40"`).Dy(), 3)
}

// What cannot be drawn is an error, and nothing takes unbounded memory.
func TestRasterizeRefuses(t *testing.T) {
	for svg, want := range map[string]string{
		"":                                "no svg",
		"<rect/>":                         "outside of svg",
		`<svg width="1e5" height="1e5"/>`: "dots",
		`<svg width="x" height="1"/>`:     "expected a number",
		`<svg width="9" height="9"><path d="M0 0"/></svg>`:                                    "an element path",
		`<svg width="9" height="9"><rect fill="red"/></svg>`:                                  "expected a colour",
		`<svg width="9" height="9"><polyline points="1,2,x"/></svg>`:                          "points",
		`<svg width="9" height="9"><text transform="scale(2)">a</text></svg>`:                 "expected a turn",
		`<svg width="9" height="9"><line x2="9" stroke="#000" stroke-dasharray="1 y"/></svg>`: "stroke-dasharray",
		`<svg width="9" height="9"><rect`:                                                     "EOF",
	} {
		_, err := rasterize([]byte(svg), 1)
		assert.ErrorContains(t, err, want, svg)
	}
}

// Every kind of figure can be drawn as a PNG, the same every time.
func TestWritePNG(t *testing.T) {
	one := 0.5
	lines := []report.Line{{Name: "a", X: []float64{0, 1, 2}, Y: []float64{0, 2, 1}, Low: []float64{0, 1, 0}, High: []float64{1, 3, 2}}, {Name: "b & c", X: []float64{0, 2}, Y: []float64{1, 1}}, {Pale: true, X: []float64{0, 2}, Y: []float64{2, 1}}}
	for _, f := range []report.Figure{
		{ID: "lines", Title: "Lines", Subtitle: "of three", X: "x", Y: "y", Lines: lines},
		{ID: "charts", Title: "Charts", X: "x", Y: "y", Charts: []report.Chart{{Name: "one", Lines: lines}, {Name: "two", Lines: lines}}, Columns: 2},
		{ID: "heat", Title: "Heat", X: "x", Y: "y", Heat: []report.HeatPanel{{Name: "p", Rows: []string{"0", "1"}, Columns: []string{"0"}, Values: [][]*float64{{&one}, {nil}}}}},
	} {
		var svg, b, again bytes.Buffer
		require.NoError(t, f.WriteSVG(&svg, "a <command> & more"))
		require.NoError(t, WritePNG(&b, svg.Bytes()), f.ID)
		require.NoError(t, WritePNG(&again, svg.Bytes()))
		assert.Equal(t, b.Bytes(), again.Bytes(), "the same every time")
		img, err := png.Decode(&b)
		require.NoError(t, err)
		assert.Greater(t, img.Bounds().Dx(), 200)
		colors := map[color.Color]bool{}
		for y := range img.Bounds().Dy() {
			for x := range img.Bounds().Dx() {
				colors[img.At(x, y)] = true
			}
		}
		assert.Greater(t, len(colors), 20, f.ID)
	}
}
