package kernels

import (
	"slices"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// PageRows reads and writes the keys, or the values, of pages on the host: an entry's are a row
// of HeadDim elements, at most 512.
type PageRows struct {
	typ  tensor.Type
	keys bool // else values
	dim  int  // HeadDim
	page int  // PageEntries
}

// maxHead is the length of the longest row.
const maxHead = 512

// KeyRows describes the keys of pages, ValueRows their values.
func (l PageLayout) KeyRows() PageRows { return PageRows{l.Type, true, l.HeadDim, l.PageEntries} }

// ValueRows describes the values of pages, see KeyRows.
func (l PageLayout) ValueRows() PageRows {
	return PageRows{l.ValueType(), false, l.HeadDim, l.PageEntries}
}

// IntKeys reports whether keys are integers with scales, IntValues whether values are.
func (l PageLayout) IntKeys() bool   { return isInt(l.Type) }
func (l PageLayout) IntValues() bool { return isInt(l.ValueType()) }

// Type is the type of elements, Bytes the size of a row, scales included.
func (r *PageRows) Type() tensor.Type { return r.typ }
func (r *PageRows) Bytes() int        { return rowBytes(r.typ, r.dim) }

// Of returns the keys or the values of a page.
func (r *PageRows) Of(p Page) unsafe.Pointer {
	if r.keys {
		return p.K
	}
	return p.V
}

// step is the distance between the elements of a row, if they are floating-point numbers.
func (r *PageRows) step() int {
	if r.keys {
		return TileEntries
	}
	return 1
}

// first is the index of the first element of an entry, span the distance to just past the last.
func (r *PageRows) first(entry int) int {
	if !r.keys {
		return entry * r.dim
	}
	return entry&^(TileEntries-1)*r.dim + entry&(TileEntries-1)
}

func (r *PageRows) span() int { return (r.dim-1)*r.step() + 1 }

// elems returns n elements of type T, starting at element i from p.
func elems[T uint16 | uint32 | float32](p unsafe.Pointer, i, n int) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Add(p, i*int(unsafe.Sizeof(t)))), n)
}

// Store rounds x, [HeadDim], to the type and writes it as an entry of the keys or values at p.
func (r *PageRows) Store(c CPU, p unsafe.Pointer, entry int, x []float32) {
	i, step := r.first(entry), r.step()
	switch {
	case isInt(r.typ):
		r.storeIntegers(c, p, entry, x)
	case r.typ == tensor.F32 && step == 1:
		copy(elems[float32](p, i, r.dim), x)
	case r.typ == tensor.F32:
		dst := elems[float32](p, i, r.span())
		for d, x := range x {
			dst[d*step] = x
		}
	case step == 1:
		c.Narrow(unsafe.Slice((*byte)(unsafe.Add(p, 2*i)), 2*r.dim), x, r.typ)
	default:
		var buf [maxHead]uint16
		narrow := buf[:len(x)]
		c.Narrow(unsafe.Slice((*byte)(unsafe.Pointer(&buf)), 2*len(x)), x, r.typ)
		dst := elems[uint16](p, i, r.span())
		for d, x := range narrow {
			dst[d*step] = x
		}
	}
}

// Load is the inverse of Store; it widens floating-point numbers exactly.
func (r *PageRows) Load(c CPU, p unsafe.Pointer, entry int, x []float32) {
	i, step := r.first(entry), r.step()
	switch {
	case isInt(r.typ):
		r.loadIntegers(c, p, entry, x)
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

// Move copies an entry, bit for bit, from one place to another.
func (r *PageRows) Move(dst unsafe.Pointer, to int, src unsafe.Pointer, from int) {
	switch {
	case isInt(r.typ):
		var buf [maxIntRow]byte
		record := buf[:r.Bytes()]
		r.readRecord(record, src, from)
		r.writeRecord(dst, to, record)
	case r.typ == tensor.F32:
		moveElems[uint32](r, dst, to, src, from)
	default:
		moveElems[uint16](r, dst, to, src, from)
	}
}

func moveElems[T uint16 | uint32](r *PageRows, dst unsafe.Pointer, to int, src unsafe.Pointer, from int) {
	d := elems[T](dst, r.first(to), r.span())
	s := elems[T](src, r.first(from), r.span())
	if !r.keys {
		copy(d, s)
		return
	}
	s = s[:len(d)]
	for i := 0; i < len(d); i += TileEntries {
		d[i] = s[i]
	}
}

// tiles returns the key tiles at p from that of an entry on, [HeadDim][TileEntries] each.
func (r *PageRows) tiles(p unsafe.Pointer, entry int) []byte {
	size := r.Bytes()
	at := entry / TileEntries * TileEntries * size
	return unsafe.Slice((*byte)(unsafe.Add(p, at)), r.page*size-at)
}

// Append appends the first n entries of the keys or values at p to b, row by row, without
// gaps: integers as records of KeyBytes or ValueBytes, their scales last.
func (r *PageRows) Append(c CPU, b []byte, p unsafe.Pointer, n int) []byte {
	was, row := len(b), r.Bytes()
	size := row / r.dim // of a floating-point element
	b = slices.Grow(b, n*row)[:was+n*row]
	switch out := b[was:]; {
	case isInt(r.typ):
		for e := range n {
			r.readRecord(out[e*row:(e+1)*row], p, e)
		}
	case !r.keys:
		copy(out, unsafe.Slice((*byte)(p), n*row))
	default:
		for e := 0; e < n; e += TileEntries {
			c.Transpose(out[e*row:], row, r.tiles(p, e), TileEntries*size, r.dim, min(TileEntries, n-e), size)
		}
	}
	return b
}

// Set is the inverse of Append: it sets the first entries to the rows of in.
func (r *PageRows) Set(c CPU, p unsafe.Pointer, in []byte) {
	row := r.Bytes()
	n, size := len(in)/row, row/r.dim
	switch {
	case isInt(r.typ):
		for e := range n {
			r.writeRecord(p, e, in[e*row:(e+1)*row])
		}
	case !r.keys:
		copy(unsafe.Slice((*byte)(p), len(in)), in)
	default:
		for e := 0; e < n; e += TileEntries {
			c.Transpose(r.tiles(p, e), TileEntries*size, in[e*row:], row, min(TileEntries, n-e), r.dim, size)
		}
	}
}
