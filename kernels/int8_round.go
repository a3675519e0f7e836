//go:build (amd64 || arm64) && !purego

package kernels

// int8Round is roundInt8Portable for n elements, a positive multiple of 32.
//
//go:noescape
func int8Round(dst *int8, x *float32, n int) (scale float32)

// int8Sums is sumInt8Portable for n integers, a positive multiple of 128. less8 may be nil; on
// arm64 it always is.
//
//go:noescape
func int8Sums(q *int8, n int, less32, less16 *int32, sums32, sums16 *int16, less8 *int32)

func (c CPU) roundInt8(q []int8, x []float32) float32 {
	if !c.vector() || len(x) != len(q) {
		return roundInt8Portable(q, x)
	}
	return int8Round(&q[0], &x[0], len(q))
}

func (c CPU) sumInt8(w *int8Row) {
	if !c.vector() {
		sumInt8Portable(w)
		return
	}
	var less8 *int32
	if len(w.less8) > 0 {
		less8 = &w.less8[0]
	}
	int8Sums(&w.q[0], len(w.q), &w.less32[0], &w.less16[0], &w.sums32[0], &w.sums16[0], less8)
}
