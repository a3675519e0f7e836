package scoring

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLowerSigma: a final sigma is one wherever in a text its word stands. The forms are
// Python's.
func TestLowerSigma(t *testing.T) {
	for n := range 300 {
		before := strings.Repeat("x", n)
		require.Equal(t, before+" οδος ab", lower(before+" ΟΔΟΣ AB"), n)
	}
	for s, want := range map[string]string{
		"ΣΑΣ": "σας", "Σ": "σ", "Α.Σ": "α.ς", "ΑΣ.": "ας.", "ΑΣ.Α": "ασ.α", "Α\u0301Σ’": "α\u0301ς’", "1Σ": "1σ", "ΑΣ1Α": "ας1α",
		"ʰΣ": "ʰσ", // a modifier letter has case, yet is passed over
		"İx": "i\u0307x", "É": "é",
	} {
		require.Equal(t, want, lower(s), s)
	}
}

// TestUpper: one letter may become several.
func TestUpper(t *testing.T) {
	for _, c := range []struct {
		text, name string
		want       [2]float64 // kvpress, official
	}{
		{"it is Straße", "STRASSE", [2]float64{1, 1}},
		{"STRASSE", "Straße", [2]float64{1, 0}},
		{"ﬁnn", "FINN", [2]float64{1, 1}},
		{"ŉ", "ŉ", [2]float64{1, 0}},
		{"x ace", " ACE", [2]float64{1, 0}},
		{" ace", " ACE", [2]float64{0, 0}}, // the prediction is trimmed, the answer is not
	} {
		for i, official := range []bool{false, true} {
			require.Equal(t, c.want[i], speaker(c.text, &Reference{Answers: []string{c.name}}, official), "%q for %q", c.text, c.name)
		}
	}
}

// TestPythonNumbers: what Python's int() and \d take for numbers.
func TestPythonNumbers(t *testing.T) {
	for s, want := range map[string]string{
		"12": "12", "+012": "12", "-0": "0", "-07": "-7", "1_000": "1000", "１２": "12", "١٢": "12", "𝟏𝟎": "10", "1٢": "12",
		"": "", "_5": "", "5_": "", "1__0": "", "--3": "", "+-3": "", "-": "", "−3": "", "7.0": "", "0x7": "", "²": "", "x": "",
	} {
		got, ok := pythonInt(s)
		require.Equal(t, want, got, s)
		require.Equal(t, want != "", ok, s)
	}
	for _, c := range []struct {
		text, answer string
		want         float64
	}{
		{"is １２", "12", 1}, {"٣.١٤", "3.14", 1}, {"٣.١", "1", 0}, {"٣ 1", "1", 0}, {"22", "2.2e1", 1}, {"0", "1e3", 0},
	} {
		require.Equal(t, c.want, firstNumber(c.text, &Reference{Answers: []string{c.answer}}, false), "%q for %q", c.text, c.answer)
	}
}

// TestChoiceByText: kvpress knows the right option's letter alone.
func TestChoiceByText(t *testing.T) {
	it := &Reference{Answers: []string{"B"}, Classes: []string{"yes", "no", "C", "maybe"}}
	for text, want := range map[string][2]float64{"no": {0, 1}, "answer is: no": {0, 1}, "B": {1, 1}, "answer is: B.": {1, 1}, "C": {0, 0}} {
		for i, official := range []bool{false, true} {
			require.Equal(t, want[i], choice(text, it, official), text)
		}
	}
}

// TestSummaryWords: a lower-case letter may be followed by an accent, which ends a word.
func TestSummaryWords(t *testing.T) {
	require.Equal(t, 1.0, linesInCommon("İx", "i x"))
}
