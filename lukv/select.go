package lukv

import "math"

// rankKey maps a score to an unsigned integer that orders the same way: NaN
// and -Inf lowest, the two zeros equal, +Inf highest. Cutting by integers
// makes selection exact and independent of how floats compare.
func rankKey(f float32) uint32 {
	if f != f {
		return 0x007fffff // the key of -Inf
	}
	if f == 0 {
		return 1 << 31
	}
	u := math.Float32bits(f)
	if u&(1<<31) != 0 {
		return ^u
	}
	return u | 1<<31
}

// Keep returns the b best slots of one head in ascending order, appended to
// dst[:0]: protected slots first, then by score descending, ties by slot
// ascending, NaN as -Inf. b is clipped to [0, len(scores)]. Time O(T), and no
// allocation if dst has capacity for b.
//
// Within one score vector the kept sets grow with b: Keep(b) is contained in
// Keep(b+1).
func Keep(dst []int32, scores []float32, b int, p Protection) []int32 {
	T := len(scores)
	b = min(max(b, 0), T)
	dst = dst[:0]
	lo, hi := p.Split(T)
	if secured := lo + T - hi; b <= secured {
		return keepProtected(dst, T, lo, hi, b, p.Recent)
	}
	for t := range lo {
		dst = append(dst, int32(t))
	}
	dst = appendTop(dst, scores[lo:hi], b-lo-(T-hi), int32(lo))
	for t := hi; t < T; t++ {
		dst = append(dst, int32(t))
	}
	return dst
}

// keepProtected is Keep for a budget that the protected slots [0,lo) and
// [hi,T) exhaust.
func keepProtected(dst []int32, T, lo, hi, b int, recent bool) []int32 {
	for t := range min(lo, b) {
		dst = append(dst, int32(t))
	}
	rest := b - len(dst)
	first := hi
	if recent {
		first = T - rest
	}
	for t := first; t < first+rest; t++ {
		dst = append(dst, int32(t))
	}
	return dst
}

// appendTop appends base plus the indices of the n best scores, ascending.
func appendTop(dst []int32, scores []float32, n int, base int32) []int32 {
	if n <= 0 {
		return dst
	}
	if n >= len(scores) {
		for t := range scores {
			dst = append(dst, base+int32(t))
		}
		return dst
	}
	cut, ties := threshold(scores, n)
	for t, s := range scores {
		switch k := rankKey(s); {
		case k > cut:
			dst = append(dst, base+int32(t))
		case k == cut && ties > 0:
			dst = append(dst, base+int32(t))
			ties--
		}
	}
	return dst
}

// threshold returns the rank key of the n-th best score, 0 < n <= len(scores),
// and how many of the entries with exactly that key belong to the n best. It
// is a radix selection: one histogram per key byte, highest byte first.
func threshold(scores []float32, n int) (cut uint32, ties int) {
	var prefix, mask uint32
	for shift := 24; shift >= 0; shift -= 8 {
		var hist [256]int
		for _, s := range scores {
			if k := rankKey(s); k&mask == prefix {
				hist[k>>shift&255]++
			}
		}
		c := 255
		for ; hist[c] < n; c-- {
			n -= hist[c]
		}
		prefix |= uint32(c) << shift
		mask |= 255 << shift
	}
	return prefix, n
}
