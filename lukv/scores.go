package lukv

import (
	"math"
)

// Dimension names of this package: L layers, H query heads, K KV heads,
// G = H/K query heads per KV head (query head q reads KV head q/G), D head
// dimension, T cached entries of a head, w window rows, b entries kept in one
// head (protected ones included), n the uniform share of a head.
//
// A slot is an index into a head's cache, a position the token's place in the
// text. They coincide until something is evicted; afterwards slots of a head
// are in ascending order of position.

// Scores holds the scores of one layer: Scores[h][t] for KV head h and slot t,
// larger means keep. Rows of different heads differ in length where the cache
// is ragged. Entries that the metric always keeps and has no real score for
// (SnapKV's window, Expected Attention's sinks) hold +Inf. NaN ranks as -Inf.
type Scores [][]float32

// NaNs counts the scores that are NaN; a metric that produces any was fed
// non-finite keys, values or queries.
func (s Scores) NaNs() int {
	n := 0
	for _, row := range s {
		for _, v := range row {
			if v != v {
				n++
			}
		}
	}
	return n
}

// Degenerate reports whether every finite score of some head is the same value
// although the head has at least two of them: the lowest positions then win
// and the metric says nothing.
func (s Scores) Degenerate() bool {
	for _, row := range s {
		seen, same := 0, true
		var first float32
		for _, v := range row {
			if math.IsInf(float64(v), 0) || v != v {
				continue
			}
			if seen == 0 {
				first = v
			}
			seen++
			if v != first {
				same = false
				break
			}
		}
		if seen > 1 && same {
			return true
		}
	}
	return false
}

// ReplaceInf writes m+plus into every +Inf entry, where m is the largest
// finite score of the whole layer. It turns the protection flag into what
// other implementations write instead: plus 1 for kvpress, plus 0 for the
// LU-KV authors' fork. Needed for number-for-number comparison only.
func (s Scores) ReplaceInf(plus float32) {
	m := float32(math.Inf(-1))
	for _, row := range s {
		for _, v := range row {
			if v > m && !math.IsInf(float64(v), 1) {
				m = v
			}
		}
	}
	if math.IsInf(float64(m), -1) {
		m = 0
	}
	for _, row := range s {
		for t, v := range row {
			if math.IsInf(float64(v), 1) {
				row[t] = m + plus
			}
		}
	}
}
