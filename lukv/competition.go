package lukv

import "slices"

// poolCounts runs a competition: all unprotected entries of all rows compete
// by score, and the best are kept until total entries are kept, secured ones
// included. It returns how many entries each row keeps.
//
// Secured in every row are the protected entries and as many of the best
// others as it takes to reach safe entries; they stay whatever their scores.
// Order: score descending, then row, then slot; NaN as -Inf. If the secured
// entries alone exceed total, total is divided evenly among the rows that can
// hold their part, with the remainder going to the lower rows.
//
// The cut is found by radix selection over all rows at once: time O(sum of
// lengths), memory O(rows).
func poolCounts(rows [][]float32, prot Protection, safe, total int) []int {
	out := make([]int, len(rows))
	entrants := make([]entrant, len(rows))
	secured := 0
	for r, row := range rows {
		lo, hi := prot.Split(len(row))
		e := entrant{scores: row[lo:hi]}
		fixed := lo + len(row) - hi
		if n := min(safe-fixed, len(e.scores)); n > 0 {
			fixed += n
			e.cut, e.ties = threshold(e.scores, n)
			e.secured = true
		}
		entrants[r] = e
		out[r] = fixed
		secured += fixed
	}
	if secured > total {
		divideEvenly(out, rows, total)
		return out
	}
	open := 0
	for r, row := range rows {
		open += len(row) - out[r]
	}
	n := min(total-secured, open)
	if n == 0 {
		return out
	}
	cut, ties := poolThreshold(entrants, n)
	for r := range entrants {
		entrants[r].each(func(k uint32) {
			switch {
			case k > cut:
				out[r]++
			case k == cut && ties > 0:
				out[r]++
				ties--
			}
		})
	}
	return out
}

// divideEvenly writes to out an equal part of total for every row, but none above
// its length; what short rows leave goes to the others.
func divideEvenly(out []int, rows [][]float32, total int) {
	order := make([]int, len(rows)) // shortest first
	for r := range order {
		order[r] = r
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(rows[a]) - len(rows[b]) })
	for len(order) > 0 && len(rows[order[0]]) <= total/len(order) {
		r := order[0]
		out[r] = len(rows[r])
		total -= out[r]
		order = order[1:]
	}
	slices.Sort(order)
	for i, r := range order {
		out[r] = total / len(order)
		if i < total%len(order) {
			out[r]++
		}
	}
}

// entrant is one row of a competition without its protected entries.
type entrant struct {
	scores  []float32
	secured bool // entries above cut, and the first ties equal to it, do not compete
	cut     uint32
	ties    int
}

// each visits the rank keys of the entries that compete, in slot order.
func (e *entrant) each(visit func(k uint32)) {
	ties := e.ties
	for _, s := range e.scores {
		k := rankKey(s)
		if e.secured && k >= e.cut {
			if k > e.cut {
				continue
			}
			if ties > 0 {
				ties--
				continue
			}
		}
		visit(k)
	}
}

// poolThreshold is threshold over several rows.
func poolThreshold(entrants []entrant, n int) (cut uint32, ties int) {
	var prefix, mask uint32
	var hist [1 << 11]int
	// Three digits of 11, 11 and 10 bits, highest first.
	for _, digit := range []struct{ shift, bits int }{{21, 11}, {10, 11}, {0, 10}} {
		clear(hist[:])
		top := 1<<digit.bits - 1
		for r := range entrants {
			entrants[r].each(func(k uint32) {
				if k&mask == prefix {
					hist[int(k>>digit.shift)&top]++
				}
			})
		}
		c := top
		for ; hist[c] < n; c-- {
			n -= hist[c]
		}
		prefix |= uint32(c) << digit.shift
		mask |= uint32(top) << digit.shift
	}
	return prefix, n
}
