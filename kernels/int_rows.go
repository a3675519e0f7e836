package kernels

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// # Keys and values as integers
//
// A key or value of type I8 is D integers q of 8 bits and one float32 scale s; its elements
// are q·s, rounded once. With a the largest magnitude of the row,
//
//   - a < 2^-100: all q are 0, and s is 0;
//   - a row with an infinity or a NaN: all q are 0, and s is NaN;
//   - otherwise s = a/127 and q = x·(127/a), rounded to the nearest integer, ties to even,
//     after quotient and product have each been rounded to float32. |q| is at most 127.
//
// One of type Q4_0, whose head dimension is a multiple of 32, is rotated first (below). Each
// group of 32 elements of the result has integers of 4 bits and an F16 scale s: with a the
// largest magnitude of the group, s = a/7, rounded to float32 and then to F16; q is 0 where s
// is 0; q is 0 and s is NaN where s is not finite; otherwise q = x/s, rounded to float32, limited
// to ±7 and rounded to the nearest integer, ties to even. Its elements are the products q·s,
// rounded, and rotated back.
//
// A rotation multiplies by an orthonormal Hadamard matrix, which spreads the large elements of
// a row over all of it and is its own inverse. A row is cut into parts of n elements, n being
// the largest power of two that divides D. In each, for h = 1, 2, 4, … n/2, the elements i and
// i+h (i with the bit h not set) become x[i] + x[i+h] and x[i] - x[i+h]; at the end each is
// multiplied by 1/√n. Every operation is rounded to float32.
//
// Nothing here depends on other entries: eviction moves the integers and scales of an entry
// as they are, and neither forks nor the number of tokens at a time change a bit.

// As a record, an entry's key or value is its integers in order (Q4_0: pairs of elements) and
// then its scales, KeyBytes or ValueBytes of [PageLayout].

func isInt(t tensor.Type) bool { return t == tensor.I8 || t == tensor.Q4_0 }

// fourBits reports whether integers of type t are pairs in a byte, with an F16 scale for each group of
// 32, and rotated. Others are bytes with an F32 scale for each row.
func fourBits(t tensor.Type) bool { return t == tensor.Q4_0 }

// intGroup is the number of elements of Q4_0 that share a scale.
const intGroup = 32

// groups returns how many scales a row of d elements has, and how many elements share one.
func groups(t tensor.Type, d int) (n, size int) {
	if !fourBits(t) {
		return 1, d
	}
	return d / intGroup, intGroup
}

// cellBytes is the size of n elements without scales.
func cellBytes(t tensor.Type, n int) int {
	if fourBits(t) {
		return n / 2
	}
	return t.Bytes(n)
}

const maxIntRow = maxHead + 4 // bytes of the longest record

// cells is the size of the integers of a record.
func (r *PageRows) cells() int { return cellBytes(r.typ, r.dim) }

// cell returns the first integer, or pair of 4 bits, of an entry, and the distance to the next.
func (r *PageRows) cell(side unsafe.Pointer, entry int) (p unsafe.Pointer, step int) {
	size := 2 // of a pair
	if fourBits(r.typ) {
		size = 1
	}
	if r.keys {
		tile, column := entry/TileEntries, entry%TileEntries
		return unsafe.Add(side, (tile*r.dim/2*TileEntries+column)*size), TileEntries * size
	}
	p = unsafe.Add(side, entry/2*r.dim*size)
	if !fourBits(r.typ) {
		p = unsafe.Add(p, entry%2)
	}
	return p, size
}

// scale returns an entry's scale in a group.
func (r *PageRows) scale(side unsafe.Pointer, entry, group int) unsafe.Pointer {
	p := unsafe.Add(side, r.page*r.cells())
	if !fourBits(r.typ) {
		return unsafe.Add(p, 4*entry)
	}
	return unsafe.Add(p, 2*(group*r.page+entry))
}

// readRecord sets record to that of an entry of the keys or values at side.
func (r *PageRows) readRecord(record []byte, side unsafe.Pointer, entry int) {
	p, step := r.cell(side, entry)
	q := record[:r.cells()]
	switch {
	case !fourBits(r.typ) && r.keys:
		for i := 0; i < len(q); i += 2 {
			pair := (*[2]byte)(unsafe.Add(p, i/2*step))
			q[i], q[i+1] = pair[0], pair[1]
		}
	case !fourBits(r.typ) || r.keys:
		for i := range q {
			q[i] = *(*byte)(unsafe.Add(p, i*step))
		}
	default:
		shift := 4 * (entry % 2)
		for i := range q {
			pair := (*[2]byte)(unsafe.Add(p, 2*i))
			q[i] = pair[0]>>shift&15 | pair[1]>>shift<<4
		}
	}
	rest, size := record[len(q):r.Bytes()], 2
	if !fourBits(r.typ) {
		size = 4
	}
	for g := 0; len(rest) > 0; g++ {
		copy(rest[:size], unsafe.Slice((*byte)(r.scale(side, entry, g)), size))
		rest = rest[size:]
	}
}

// writeRecord stores a record as an entry of the keys or values at side.
func (r *PageRows) writeRecord(side unsafe.Pointer, entry int, record []byte) {
	p, step := r.cell(side, entry)
	q := record[:r.cells()]
	switch {
	case !fourBits(r.typ) && r.keys:
		for i := 0; i < len(q); i += 2 {
			*(*[2]byte)(unsafe.Add(p, i/2*step)) = [2]byte{q[i], q[i+1]}
		}
	case !fourBits(r.typ) || r.keys:
		for i, x := range q {
			*(*byte)(unsafe.Add(p, i*step)) = x
		}
	default:
		shift := 4 * (entry % 2)
		other := byte(0xf0) >> shift
		for i, x := range q {
			pair := (*[2]byte)(unsafe.Add(p, 2*i))
			pair[0] = pair[0]&other | x&15<<shift
			pair[1] = pair[1]&other | x>>4<<shift
		}
	}
	rest, size := record[len(q):r.Bytes()], 2
	if !fourBits(r.typ) {
		size = 4
	}
	for g := 0; len(rest) > 0; g++ {
		copy(unsafe.Slice((*byte)(r.scale(side, entry, g)), size), rest[:size])
		rest = rest[size:]
	}
}

// storeIntegers rounds x [HeadDim] to the type and stores it as an entry of the keys or values at
// side.
func (r *PageRows) storeIntegers(c CPU, side unsafe.Pointer, entry int, x []float32) {
	var buf [maxIntRow]byte
	record := buf[:r.Bytes()]
	if !fourBits(r.typ) {
		q := unsafe.Slice((*int8)(unsafe.Pointer(&buf)), r.dim)
		s := c.roundInt8Row(q, x)
		binary.LittleEndian.PutUint32(record[r.dim:], math.Float32bits(s))
	} else {
		c.roundInt4(record, x)
	}
	r.writeRecord(side, entry, record)
}

// loadIntegers is the inverse of storeIntegers: it sets x [HeadDim] to the elements of an entry.
func (r *PageRows) loadIntegers(c CPU, side unsafe.Pointer, entry int, x []float32) {
	var buf [maxIntRow]byte
	record := buf[:r.Bytes()]
	r.readRecord(record, side, entry)
	if !fourBits(r.typ) {
		s := math.Float32frombits(binary.LittleEndian.Uint32(record[r.dim:]))
		for i := range x {
			x[i] = float32(int8(record[i])) * s
		}
		return
	}
	for i := range x {
		s := tensor.F16ToF32(binary.LittleEndian.Uint16(record[r.dim/2+i/intGroup*2:]))
		x[i] = float32(int(record[i/2]>>(4*(i%2))&15)-8) * s
	}
	c.rotate(x)
}

// roundInt8Row rounds a row of 8-bit integers and returns its scale.
func (c CPU) roundInt8Row(q []int8, x []float32) float32 {
	if len(x)%32 != 0 {
		return roundInt8Portable(q, x)
	}
	return c.roundInt8(q, x)
}

// roundInt4 sets record to that of x in 4 bits.
func (c CPU) roundInt4(record []byte, x []float32) {
	var buf [2 * maxIntRow]float32
	y := buf[:len(x)]
	copy(y, x)
	c.rotate(y)
	q := record[:len(x)/2]
	for g := 0; g < len(y); g += intGroup {
		part := y[g : g+intGroup]
		h := uint16(RoundTo(tensor.F16, largest(part)/7))
		if h&0x7c00 == 0x7c00 {
			h = 0x7e00
		}
		s := tensor.F16ToF32(h)
		if !c.nibblesAsm(q[g/2:(g+intGroup)/2], part, s) {
			for i := 0; i < intGroup; i += 2 {
				q[(g+i)/2] = nibble(part[i], s) | nibble(part[i+1], s)<<4
			}
		}
		binary.LittleEndian.PutUint16(record[len(q)+g/intGroup*2:], h)
	}
}

func nibble(x, s float32) byte {
	if s == 0 || s != s {
		return 8
	}
	return byte(int(math.RoundToEven(float64(min(max(x/s, -7), 7)))) + 8)
}

// largest returns the largest magnitude in x, which is not finite if an element is not.
func largest(x []float32) float32 {
	var most uint32
	for _, v := range x {
		most = max(most, math.Float32bits(v)&0x7fffffff)
	}
	return math.Float32frombits(most)
}

// rotate multiplies x by the Hadamard matrix.
func (c CPU) rotate(x []float32) {
	n := 1 << bits.TrailingZeros(uint(len(x)))
	factor := float32(1 / math.Sqrt(float64(n)))
	for ; len(x) > 0; x = x[n:] {
		part := x[:n]
		if c.rotateAsm(part, factor) {
			continue
		}
		for h := 1; h < n; h *= 2 {
			for i := 0; i < n; i += 2 * h {
				a, b := part[i:i+h], part[i+h:i+2*h]
				for j, v := range a {
					w := b[j]
					a[j], b[j] = v+w, v-w
				}
			}
		}
		for i := range part {
			part[i] *= factor
		}
	}
}
