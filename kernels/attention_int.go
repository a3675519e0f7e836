package kernels

import (
	"math"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// # Attention over integers
//
// Attention over keys or values of type I8 or Q4_0 has the blocks, weights and statistics of
// other attention (see the package comment); its scores and its weighted sums are exact sums of
// integers, whose order, tiles and instructions are therefore free, with a float part in one
// order.
//
// Numbers of 16 bits. x is rounded to integers n of at most M, with a the largest magnitude:
//
//   - a < 2^-100: all n are 0, and the factor f is 0;
//   - x with an infinity or a NaN: all n are 0, and f is NaN;
//   - otherwise f = a/M and n = x·(M/a), rounded to the nearest integer, ties to even, after
//     quotient and product have each been rounded to float32.
//
// Scores. A query, rotated if keys are Q4_0, is rounded with M = 16255. The score of a key is
// the chain, starting at +0, over its groups in ascending order (I8 has one group),
//
//	t = fma(float32(Σ n·q), s·(f·Scale), t)
//
// with Σ over the elements of the group, the products in parentheses rounded, the left first.
//
// Weighted values. For each group, y = p·s is rounded for each slot, 0 where p is 0, and
// the y of the block are rounded with M = 32767. A component of the block is
//
//	float32(Σ n·q)·f
//
// with Σ over the slots of the block. Weights p are not rounded before they are summed. The
// result, if values are Q4_0, is rotated back after the division by the sum of weights.
//
// The sums fit int32: 16255·127·512 and 32767·127·256 are below 2^31.
//
// The definition is that of "quantise and multiply integers" (Jacob et al., 2018), with scales
// of entries instead of tensors, so that evicting or appending entries changes no other.

const (
	queryMost  = 16255 // 128·127 - 1: two numbers of 8 bits hold it
	weightMost = 32767
)

// query is a query as scores need it.
type query struct {
	x      []float32 // for floating-point keys, or
	n      []int16   // rounded, for integers
	factor float32   // of sums of products
}

// roundInt16Portable rounds x·s, 0 where x is 0, to integers n of at most the given magnitude
// and returns their factor.
func roundInt16Portable(n []int16, x, s []float32, magnitude float32) float32 {
	s = s[:len(x)]
	var most uint32
	for i, v := range x {
		if v != 0 {
			most = max(most, math.Float32bits(v*s[i])&0x7fffffff)
		}
	}
	a := math.Float32frombits(most)
	switch {
	case most >= 0x7f800000:
		clear(n)
		return float32(math.NaN())
	case a < tiniestScale:
		clear(n)
		return 0
	}
	inv := magnitude / a
	for i, v := range x {
		n[i] = 0
		if v != 0 {
			y := v * s[i]
			n[i] = int16(math.RoundToEven(float64(y * inv)))
		}
	}
	return a / magnitude
}

// ones are scales of 1.
var ones = func() (x [512]float32) {
	for i := range x {
		x[i] = 1
	}
	return x
}()

// scalesOf sets s to the scales in a group of the n entries of a page from entry on.
func (r *PageRows) scalesOf(c CPU, s []float32, side unsafe.Pointer, entry, group int) {
	p := r.scale(side, entry, group)
	if !fourBits(r.typ) {
		copy(s, unsafe.Slice((*float32)(p), len(s)))
		return
	}
	c.Widen(s, unsafe.Slice((*byte)(p), 2*len(s)), tensor.F16)
}

// floatType returns the floating-point type that a head has, if it has one.
func (kv *KV) floatType() tensor.Type {
	if isInt(kv.Type) {
		return kv.valueType()
	}
	return kv.Type
}

func (kv *KV) layout() PageLayout {
	return PageLayout{Type: kv.Type, Values: kv.Values, HeadDim: kv.HeadDim, PageEntries: kv.PageEntries}
}

// at returns the page and the entry in it of a logical slot.
func (kv *KV) at(slot int) (*Page, int) {
	slot -= kv.Base
	return &kv.Pages[slot/kv.PageEntries], slot % kv.PageEntries
}

// scoresIntPortable sets p[j] to the scaled score of q with logical slot from+j.
func scoresIntPortable(p []float32, q *query, kv *KV, from int) {
	r := kv.layout().KeyRows()
	n, size := groups(r.typ, r.dim)
	var record [maxIntRow]byte
	var k [512]int8
	var s [1]float32
	for j := range p {
		page, e := kv.at(from + j)
		r.readRecord(record[:], page.K, e)
		r.unpack(k[:r.dim], record[:])
		t := float32(0)
		for g := range n {
			r.scalesOf(CPU{}, s[:], page.K, e, g)
			factor := s[0] * q.factor
			t = fma32(float32(dotInt16(q.n[g*size:(g+1)*size], k[g*size:])), factor, t)
		}
		p[j] = t
	}
}

// unpack sets q to the integers of a record.
func (r *PageRows) unpack(q []int8, record []byte) {
	if !fourBits(r.typ) {
		copy(q, unsafe.Slice((*int8)(unsafe.Pointer(unsafe.SliceData(record))), len(q)))
		return
	}
	for i := range q {
		q[i] = int8(record[i/2]>>(4*(i%2))&15) - 8
	}
}

func dotInt16(n []int16, q []int8) int32 {
	d := int32(0)
	for i, v := range n {
		d += int32(v) * int32(q[i])
	}
	return d
}

// valuesIntPortable sets acc to the weighted sum of the values of the logical slots from,
// from+1, …, with the weights p, in one block.
func valuesIntPortable(acc, p []float32, kv *KV, from int) {
	r := kv.layout().ValueRows()
	count, size := groups(r.typ, r.dim)
	var record [maxIntRow]byte
	var v [512]int8
	var s [BlockEntries]float32
	var w [16][BlockEntries]int16
	var f [16]float32
	for g := range count {
		for j := range p {
			page, e := kv.at(from + j)
			r.scalesOf(CPU{}, s[j:j+1], page.V, e, g)
		}
		f[g] = roundInt16Portable(w[g][:len(p)], p, s[:], weightMost)
	}
	var sums [512]int32
	for j := range p {
		page, e := kv.at(from + j)
		r.readRecord(record[:], page.V, e)
		r.unpack(v[:r.dim], record[:])
		for d := range acc {
			sums[d] += int32(w[d/size][j]) * int32(v[d])
		}
	}
	for d := range acc {
		acc[d] = float32(sums[d]) * f[d/size]
	}
}

// scoresIntOf sets dst[j] to the scaled score of the query x with logical slot from+j.
func (c CPU) scoresIntOf(dst, x []float32, kv *KV, from int, scale float32) {
	var n [512]int16
	q := c.intQuery(n[:len(x)], x, kv.Type, scale)
	if !c.scoresIntAsm(dst, &q, kv, from) {
		scoresIntPortable(dst, &q, kv, from)
	}
}

// intQuery rounds a query to n for keys of type t.
func (c CPU) intQuery(n []int16, x []float32, t tensor.Type, scale float32) query {
	if fourBits(t) {
		var rotated [512]float32
		x = rotated[:copy(rotated[:], x)]
		c.rotate(x)
	}
	f := c.roundInt16(n, x, ones[:], queryMost)
	return query{n: n, factor: f * scale}
}

// rotateBack undoes the rotation of values in a result of attention.
func (kv *KV) rotateBack(c CPU, out []float32) {
	if fourBits(kv.valueType()) {
		c.rotate(out)
	}
}

// intScratch is the part of AttentionScratch for integers.
type intScratch struct {
	n []int16 // [rows][attentionStride] queries
	intRowsScratch
}

// bytes is the size of the scratch.
func (s *intScratch) bytes() int { return 2*cap(s.n) + s.intRowsScratch.bytes() }

// query returns room for one query of d components.
func (s *intScratch) query(d int) []int16 {
	if len(s.n) < d {
		s.n = make([]int16, 512)
	}
	return s.n[:d]
}
