package scoring

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFrequentCharacters begin no block of a long line of code: from 200
// characters on, those that occur more than once per hundred characters, plus one.
func TestFrequentCharacters(t *testing.T) {
	for _, x := range []struct{ length, times, want int }{
		{199, 50, 1}, {200, 3, 1}, {200, 4, 0}, {299, 3, 1}, {300, 4, 1}, {300, 5, 0},
	} {
		b := make([]rune, x.length)
		for i := range b {
			b[i] = rune(0x4e00 + i)
		}
		for i := range x.times {
			b[10+2*i] = 'x'
		}
		require.Equal(t, x.want, newMatcher(b).common([]rune("x")), "%d of %d", x.times, x.length)
	}
}

// TestMatchingBlocks: on both sides of the longest block, and never across it.
func TestMatchingBlocks(t *testing.T) {
	for _, x := range []struct {
		a, b string
		want int
	}{
		{"abxcd", "abcd", 4},
		{"cdab", "abcd", 2},     // the first longest, and whatever is before and after it in both
		{"1abc2", "2abc1", 3},   // nothing across
		{"1abc2", "1abc2", 5},   // all
		{"axbycz", "abcz", 4},   // a, b and cz
		{"", "abc", 0},          // nothing
		{"aaaa", "aa", 2},       // the first of equals
		{"zzab12", "ab12yy", 4}, // at the ends
	} {
		require.Equal(t, x.want, newMatcher([]rune(x.b)).common([]rune(x.a)), "%q and %q", x.a, x.b)
	}
}
