// Package testnum compares numbers in tests.
package testnum

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// SameBits fails unless both have the same bits; it prints the first that differ.
func SameBits(t testing.TB, what string, want, got []float32) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%s: %d values, expected %d", what, len(got), len(want))
	}
	var lines []string
	bad := 0
	for i := range want {
		w, g := math.Float32bits(want[i]), math.Float32bits(got[i])
		if w == g {
			continue
		}
		if bad++; bad <= 4 {
			lines = append(lines, fmt.Sprintf("  [%d] want %g (%08x), got %g (%08x)", i, want[i], w, got[i], g))
		}
	}
	if bad > 0 {
		t.Fatalf("%s: %d of %d values differ\n%s", what, bad, len(want), strings.Join(lines, "\n"))
	}
}

// Deviation is max |got-want| / max |want|; infinite where lengths differ or a
// number is none.
func Deviation(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	diff, size := 0.0, 0.0
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if d != d {
			return math.Inf(1)
		}
		diff, size = max(diff, d), max(size, math.Abs(float64(want[i])))
	}
	return diff / size
}
