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

// TestSummaryWords: a lower-case letter may be followed by an accent, which ends a word.
func TestSummaryWords(t *testing.T) {
	require.Equal(t, 1.0, linesInCommon("İx", "i x"))
}
