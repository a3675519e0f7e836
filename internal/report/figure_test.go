package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// figures are one of each kind, plus some that are hard to draw.
func figures() []Figure {
	v := func(x float64) *float64 { return &x }
	return []Figure{
		{ID: "a", Title: "Lines <&>", Subtitle: "s", X: "x", Y: "y", Lines: []Line{
			{Name: "one", X: []float64{0, 1, 2}, Y: []float64{0.1, 0.5, 0.2}, Low: []float64{0, 0.4, 0}, High: []float64{0.2, 0.6, 0.3}},
			{Name: "back", X: []float64{0, 2}, Y: []float64{0, -1}, Pale: true}}},
		{ID: "log", Title: "Logarithmic", LogX: true, LogY: true, Lines: []Line{
			{Name: "l", X: []float64{0.5, 8, 700}, Y: []float64{1e-5, 0.2, 3}, Low: []float64{1e-6, 0.1, 2}, High: []float64{1e-4, 0.3, 4}, Best: []bool{true, false, true}}}},
		{ID: "log-point", Title: "One value on a logarithmic axis", LogX: true, LogY: true, Lines: []Line{{Name: "p", X: []float64{3}, Y: []float64{2}}}},
		{ID: "log-nothing", Title: "Nothing on a logarithmic axis", LogX: true, LogY: true, Lines: []Line{{Name: "empty"}}},
		{ID: "b", Title: "Nothing", Lines: []Line{{Name: "empty"}}},
		{ID: "c", Title: "A point", Lines: []Line{{Name: "p", X: []float64{3}, Y: []float64{0}}}},
		{ID: "d", Title: "Charts", Columns: 2, Charts: []Chart{{Name: "1", Lines: []Line{{Name: "l", X: []float64{0, 1}, Y: []float64{1, 1e7}}}}, {Name: "2"}, {Name: "3"}}},
		{ID: "e", Title: "Heat", Unit: "%", Heat: []HeatPanel{{Name: "h", Rows: []string{"r"}, Columns: []string{"1", "2"}, Values: [][]*float64{{v(5e-5), nil}}}}},
	}
}

// Every picture is well-formed XML without NaNs or infinities, and is the same
// after its data have been written and read back.
func TestFigureSVG(t *testing.T) {
	for _, f := range figures() {
		require.NoError(t, f.Validate())
		var b bytes.Buffer
		require.NoError(t, f.WriteSVG(&b, "lukv <x>"))
		text := b.String()
		assert.NotContains(t, text, "NaN", f.ID)
		assert.NotContains(t, text, "Inf", f.ID)
		assert.NotContains(t, text, ">-0<", f.ID)
		wellFormed(t, text)
		assert.Contains(t, text, "<desc>lukv &lt;x&gt;</desc>")
		data, err := json.Marshal(f)
		require.NoError(t, err)
		var again Figure
		require.NoError(t, json.Unmarshal(data, &again))
		b.Reset()
		require.NoError(t, again.WriteSVG(&b, "lukv <x>"))
		assert.Equal(t, text, b.String())
	}
}

// No two lines of a figure look the same, even if there are many.
func TestLineInksDiffer(t *testing.T) {
	seen := map[ink]int{}
	for k := range 64 {
		l := lineInk(k)
		if first, again := seen[l]; again {
			t.Fatalf("lines %d and %d are drawn alike: %v", first, k, l)
		}
		seen[l] = k
	}
}

// Figures come from files: nothing in them may crash the program or make it run
// forever.
func TestHostileFigureSVG(t *testing.T) {
	for _, text := range []string{
		`{"id":"a","charts":[]}`, `{"id":"a","heat":[]}`, `{"id":"a","lines":[]}`, `{"id":"a","charts":[{}],"columns":-1}`,
		`{"id":"a","lines":[{"x":[1,1.0000000000000002],"y":[0,1]}]}`,
		`{"id":"a","lines":[{"x":[1e300,1.0000000000000002e300],"y":[-1.7e308,1.7e308]}]}`,
		`{"id":"a","lines":[{"x":[0,5e-324],"y":[5e-324,0]}]}`,
		`{"id":"a","log_x":true,"log_y":true,"lines":[{"x":[5e-324,1.7e308],"y":[1.7e308,5e-324]}]}`,
	} {
		var f Figure
		require.NoError(t, json.Unmarshal([]byte(text), &f))
		require.NoError(t, f.Validate())
		var b bytes.Buffer
		require.NoError(t, f.WriteSVG(&b, ""))
		assert.Less(t, b.Len(), 1<<16, text)
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

func TestFigureCSVAndPage(t *testing.T) {
	want := []int{5, 3, 1, 0, 0, 1, 2, 1}
	for i, f := range figures() {
		var b bytes.Buffer
		require.NoError(t, f.WriteCSV(&b))
		records, err := csv.NewReader(&b).ReadAll()
		require.NoError(t, err)
		assert.Len(t, records, 1+want[i], f.ID)
	}
	var b bytes.Buffer
	p := Page{Title: "T<", Intro: "i", Sections: []Section{{Title: "s", Command: "c", Figures: figures()}}}
	require.NoError(t, p.WriteHTML(&b))
	assert.Equal(t, len(figures()), strings.Count(b.String(), "<figcaption>"))
	assert.NotContains(t, strings.ReplaceAll(b.String(), `xmlns="http://www.w3.org/2000/svg"`, ""), "http", "nothing is loaded")
}

func TestFigureValidate(t *testing.T) {
	for want, f := range map[string]Figure{
		"cannot be a file name":  {ID: "../x"},
		"2, 1, 0 and 0 values":   {ID: "x", Lines: []Line{{X: []float64{1, 2}, Y: []float64{1}}}},
		"1, 1, 1 and 0 values":   {ID: "x", Charts: []Chart{{Lines: []Line{{X: []float64{1}, Y: []float64{1}, Low: []float64{1}}}}}},
		"0 rows of values for 1": {ID: "x", Heat: []HeatPanel{{Rows: []string{"a"}}}},
		"1 points, 2 of which":   {ID: "x", Lines: []Line{{X: []float64{1}, Y: []float64{1}, Best: []bool{true, false}}}},
		"on a logarithmic axis":  {ID: "x", LogX: true, Lines: []Line{{X: []float64{0}, Y: []float64{1}}}},
		"that is not positive":   {ID: "x", LogY: true, Lines: []Line{{X: []float64{0}, Y: []float64{1}, Low: []float64{-1}, High: []float64{2}}}},
		"a row of 1 values for":  {ID: "x", Heat: []HeatPanel{{Rows: []string{"a"}, Values: [][]*float64{{nil}}}}},
	} {
		assert.ErrorContains(t, f.Validate(), want)
	}
}

func TestTicks(t *testing.T) {
	assert.Equal(t, []float64{0, 0.2, 0.4}, rounded(ticks(0, 0.5, 4)))
	assert.Equal(t, []float64{-1, 0, 1, 2}, ticks(-1, 2, 4))
	assert.Equal(t, "0.3", number(0.1+0.2))
	assert.False(t, math.Signbit(ticks(0, 1, 4)[0]))
}

func rounded(x []float64) []float64 {
	for i := range x {
		x[i] = math.Round(x[i]*1e9) / 1e9
	}
	return x
}
