package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 5 << 20: "5.0 MiB", 3 << 29: "1.5 GiB", 1 << 45: "32.0 TiB"} {
		assert.Equal(t, want, Bytes(n))
	}
}

func TestHeatMapSVG(t *testing.T) {
	h := HeatMap{Title: "a < b", Subtitle: "s & t", Command: "lukv 'x'", Values: [][]float64{{0, 0.5, 1}, nil}}
	var b bytes.Buffer
	require.NoError(t, h.WriteSVG(&b))
	d := xml.NewDecoder(&b)
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	last := -1.0
	for i := range 101 {
		r, g, b, _ := heatColor(float64(i) / 100)
		light := 0.2126*float64(r) + 0.7152*float64(g) + 0.0722*float64(b)
		assert.Greater(t, light, last, "brightness orders the colours")
		last = light
	}
}

func TestHeatMapText(t *testing.T) {
	h := HeatMap{Values: [][]float64{{0, 0.5}, nil, {0.994, 1}}}
	text := func(c Colors) string {
		var b strings.Builder
		require.NoError(t, h.WriteText(&b, c))
		return b.String()
	}
	assert.Equal(t, "layer   0   1  KV head\n    0   0  50\n    1  sliding window\n    2  99 100\n", text(NoColors))
	assert.Contains(t, text(Colors24), "\x1b[30;48;2;250;225;60m 100\x1b[0m", "the lightest ground under dark text")
	assert.Contains(t, text(Colors256), "\x1b[97;48;5;")
}

func TestTable(t *testing.T) {
	table := Table{Indent: "> ", Right: []int{1}}
	table.Row("name", "score", "note")
	table.Cells(Cell{Text: "é"}, Cell{"7.0", Good}, Cell{"last", Bad})
	table.Row("longer", "100.0")
	text := func(c Colors) string {
		var b strings.Builder
		require.NoError(t, table.Write(&b, c))
		return b.String()
	}
	assert.Equal(t, "> name    score  note\n> é         7.0  last\n> longer  100.0\n", text(NoColors))
	assert.Contains(t, text(Colors256), "  \x1b[32m7.0\x1b[0m  \x1b[31mlast\x1b[0m\n")
}
