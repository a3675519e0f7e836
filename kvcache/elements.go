package kvcache

import (
	"slices"
	"unsafe"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Elements are laid out as kernels.PageLayout says, integers as kernels.IntRows does.

const tileEntries = kernels.TileEntries

// pageRows are the keys or the values of pages: floating-point elements, step apart, or integers.
type pageRows struct {
	typ  tensor.Type
	dim  int
	step int // between elements of a row
	size int // bytes of a row, scales included
	page int // entries

	integers kernels.IntRows
	isInt    bool
}

// keyRows and valueRows describe the sides of pages.
func keyRows(l kernels.PageLayout) pageRows {
	r := pageRows{typ: l.Type, dim: l.HeadDim, step: tileEntries, size: l.KeyBytes(), page: l.PageEntries}
	r.integers, r.isInt = l.IntKeys()
	return r
}

func valueRows(l kernels.PageLayout) pageRows {
	r := pageRows{typ: l.ValueType(), dim: l.HeadDim, step: 1, size: l.ValueBytes(), page: l.PageEntries}
	r.integers, r.isInt = l.IntValues()
	return r
}

// first is the index of the first element of an entry, span the distance to just past the last.
func (r *pageRows) first(entry int) int {
	if r.step == 1 {
		return entry * r.dim
	}
	return entry&^(tileEntries-1)*r.dim + entry&(tileEntries-1)
}

func (r *pageRows) span() int { return (r.dim-1)*r.step + 1 }

// elems returns n elements of type T, starting at element i from p.
func elems[T uint16 | uint32 | float32](p unsafe.Pointer, i, n int) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Add(p, i*int(unsafe.Sizeof(t)))), n)
}

// store rounds x to the type and writes it as an entry of the side at p.
func (r *pageRows) store(cpu *kernels.CPU, p unsafe.Pointer, entry int, x []float32) {
	i, step := r.first(entry), r.step
	switch {
	case r.isInt:
		r.integers.Store(*cpu, p, entry, x)
	case r.typ == tensor.F32 && step == 1:
		copy(elems[float32](p, i, r.dim), x)
	case r.typ == tensor.F32:
		dst := elems[float32](p, i, r.span())
		for d, x := range x {
			dst[d*step] = x
		}
	case step == 1:
		cpu.Narrow(unsafe.Slice((*byte)(unsafe.Add(p, 2*i)), 2*r.dim), x, r.typ)
	default:
		var buf [maxHeadDim]uint16
		narrow := buf[:len(x)]
		cpu.Narrow(unsafe.Slice((*byte)(unsafe.Pointer(&buf)), 2*len(x)), x, r.typ)
		dst := elems[uint16](p, i, r.span())
		for d, x := range narrow {
			dst[d*step] = x
		}
	}
}

// load is the inverse of store; it widens floating-point numbers exactly.
func (r *pageRows) load(cpu *kernels.CPU, p unsafe.Pointer, entry int, x []float32) {
	i, step := r.first(entry), r.step
	switch {
	case r.isInt:
		r.integers.Load(*cpu, p, entry, x)
	case r.typ == tensor.F32:
		src := elems[float32](p, i, r.span())
		if step == 1 {
			copy(x, src)
			return
		}
		for d := range x {
			x[d] = src[d*step]
		}
	case r.typ == tensor.F16:
		src := elems[uint16](p, i, r.span())
		for d := range x {
			x[d] = tensor.F16ToF32(src[d*step])
		}
	default:
		src := elems[uint16](p, i, r.span())
		for d := range x {
			x[d] = tensor.BF16ToF32(src[d*step])
		}
	}
}

// move copies an entry, bit for bit, from one place to another.
func (r *pageRows) move(dst unsafe.Pointer, to int, src unsafe.Pointer, from int) {
	switch {
	case r.isInt:
		var buf [maxRecord]byte
		record := buf[:r.size]
		r.integers.Read(record, src, from)
		r.integers.Write(dst, to, record)
	case r.typ == tensor.F32:
		moveElems[uint32](r, dst, to, src, from)
	default:
		moveElems[uint16](r, dst, to, src, from)
	}
}

// maxRecord is the size of the longest record of integers.
const maxRecord = maxHeadDim + 4

func moveElems[T uint16 | uint32](r *pageRows, dst unsafe.Pointer, to int, src unsafe.Pointer, from int) {
	d := elems[T](dst, r.first(to), r.span())
	s := elems[T](src, r.first(from), r.span())
	if r.step == 1 {
		copy(d, s)
		return
	}
	s = s[:len(d)]
	for i := 0; i < len(d); i += tileEntries {
		d[i] = s[i]
	}
}

// tiles returns the key tiles of a side from that of an entry on, [HeadDim][TileEntries] each.
func (r *pageRows) tiles(p unsafe.Pointer, entry int) []byte {
	at := entry / tileEntries * tileEntries * r.size
	return unsafe.Slice((*byte)(unsafe.Add(p, at)), r.page*r.size-at)
}

// appendTo appends the first n entries of the side at p to b, row by row.
func (r *pageRows) appendTo(cpu *kernels.CPU, b []byte, p unsafe.Pointer, n int) []byte {
	was, size := len(b), r.size/r.dim
	b = slices.Grow(b, n*r.size)[:was+n*r.size]
	switch out := b[was:]; {
	case r.isInt:
		for e := range n {
			r.integers.Read(out[e*r.size:(e+1)*r.size], p, e)
		}
	case r.step == 1:
		copy(out, unsafe.Slice((*byte)(p), n*r.size))
	default:
		for e := 0; e < n; e += tileEntries {
			cpu.Transpose(out[e*r.size:], r.size, r.tiles(p, e), tileEntries*size, r.dim, min(tileEntries, n-e), size)
		}
	}
	return b
}

// take is the inverse of appendTo.
func (r *pageRows) take(cpu *kernels.CPU, p unsafe.Pointer, in []byte) {
	n, size := len(in)/r.size, r.size/r.dim
	switch {
	case r.isInt:
		for e := range n {
			r.integers.Write(p, e, in[e*r.size:(e+1)*r.size])
		}
	case r.step == 1:
		copy(unsafe.Slice((*byte)(p), len(in)), in)
	default:
		for e := 0; e < n; e += tileEntries {
			cpu.Transpose(r.tiles(p, e), tileEntries*size, in[e*r.size:], r.size, min(tileEntries, n-e), r.dim, size)
		}
	}
}
