package kvcache

import (
	"slices"
	"unsafe"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Elements are laid out as kernels.PageLayout says.

const tileEntries = kernels.TileEntries

func (c *Cache) keyElement(entry int) int { return c.pool.host.layout.KeyElement(entry) }

func (c *Cache) valueElement(entry int) int { return c.pool.host.layout.ValueElement(entry) }

// elems returns n elements of type T, starting at element i from p.
func elems[T uint16 | uint32 | float32](p unsafe.Pointer, i, n int) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Add(p, i*int(unsafe.Sizeof(t)))), n)
}

// keySpan is the distance from the first element of a key to just past the last.
func (c *Cache) keySpan() int { return (c.o.HeadDim-1)*tileEntries + 1 }

func (c *Cache) storeKey(p kernels.Page, entry int, row []float32) {
	c.store(p.K, c.keyElement(entry), c.keySpan(), tileEntries, row)
}

func (c *Cache) storeValue(p kernels.Page, entry int, row []float32) {
	c.store(p.V, c.valueElement(entry), c.o.HeadDim, 1, row)
}

// store rounds row to the cache's type and writes it to every step-th element of
// the span elements that start at element i from p.
func (c *Cache) store(p unsafe.Pointer, i, span, step int, row []float32) {
	switch {
	case c.o.Type == tensor.F32:
		dst := elems[float32](p, i, span)
		if step == 1 {
			copy(dst, row)
			return
		}
		for d, x := range row {
			dst[d*step] = x
		}
	case step == 1:
		c.o.CPU.Narrow(unsafe.Slice((*byte)(unsafe.Add(p, 2*i)), 2*span), row, c.o.Type)
	default:
		var buf [maxHeadDim]uint16
		narrow := buf[:len(row)]
		c.o.CPU.Narrow(unsafe.Slice((*byte)(unsafe.Pointer(&buf)), 2*len(row)), row, c.o.Type)
		dst := elems[uint16](p, i, span)
		for d, x := range narrow {
			dst[d*step] = x
		}
	}
}

func (c *Cache) loadKey(p kernels.Page, entry int, row []float32) {
	c.load(p.K, c.keyElement(entry), c.keySpan(), tileEntries, row)
}

func (c *Cache) loadValue(p kernels.Page, entry int, row []float32) {
	c.load(p.V, c.valueElement(entry), c.o.HeadDim, 1, row)
}

// load is the inverse of store; it widens exactly.
func (c *Cache) load(p unsafe.Pointer, i, span, step int, row []float32) {
	switch c.o.Type {
	case tensor.F32:
		src := elems[float32](p, i, span)
		if step == 1 {
			copy(row, src)
			return
		}
		for d := range row {
			row[d] = src[d*step]
		}
	case tensor.F16:
		src := elems[uint16](p, i, span)
		for d := range row {
			row[d] = tensor.F16ToF32(src[d*step])
		}
	case tensor.BF16:
		src := elems[uint16](p, i, span)
		for d := range row {
			row[d] = tensor.BF16ToF32(src[d*step])
		}
	}
}

// move copies a key and a value, bit for bit, from one place in a page to another.
func (c *Cache) move(dst kernels.Page, to int, src kernels.Page, from int) {
	if c.o.Type.Bytes(1) == 4 {
		moveElems[uint32](c, dst, to, src, from)
	} else {
		moveElems[uint16](c, dst, to, src, from)
	}
}

func moveElems[T uint16 | uint32](c *Cache, dst kernels.Page, to int, src kernels.Page, from int) {
	d := c.o.HeadDim
	copy(elems[T](dst.V, c.valueElement(to), d), elems[T](src.V, c.valueElement(from), d))
	dk := elems[T](dst.K, c.keyElement(to), c.keySpan())
	sk := elems[T](src.K, c.keyElement(from), c.keySpan())
	sk = sk[:len(dk)]
	for i := 0; i < len(dk); i += tileEntries {
		dk[i] = sk[i]
	}
}

// rowBytes is the size of a key or a value in bytes.
func (c *Cache) rowBytes() int { return c.o.Type.Bytes(c.o.HeadDim) }

// values returns the first n values of a page, [n][HeadDim].
func (c *Cache) values(p kernels.Page, n int) []byte {
	return unsafe.Slice((*byte)(p.V), n*c.rowBytes())
}

// keyTiles returns the key tiles of a page from that of an entry on, [HeadDim][TileEntries] each.
func (c *Cache) keyTiles(p kernels.Page, entry int) []byte {
	at := entry / tileEntries * tileEntries * c.rowBytes()
	return unsafe.Slice((*byte)(unsafe.Add(p.K, at)), c.o.PageEntries*c.rowBytes()-at)
}

// appendKeys appends the first n keys of a page to b, row by row.
func (c *Cache) appendKeys(b []byte, p kernels.Page, n int) []byte {
	was, size, d := len(b), c.o.Type.Bytes(1), c.o.HeadDim
	cpu := c.o.CPU
	b = slices.Grow(b, n*c.rowBytes())[:was+n*c.rowBytes()]
	for e := 0; e < n; e += tileEntries {
		m := min(tileEntries, n-e)
		cpu.Transpose(b[was+e*c.rowBytes():], c.rowBytes(), c.keyTiles(p, e), tileEntries*size, d, m, size)
	}
	return b
}

// takeKeys is the inverse of appendKeys.
func (c *Cache) takeKeys(p kernels.Page, rows []byte) {
	n, size, d := len(rows)/c.rowBytes(), c.o.Type.Bytes(1), c.o.HeadDim
	cpu := c.o.CPU
	for e := 0; e < n; e += tileEntries {
		m := min(tileEntries, n-e)
		cpu.Transpose(c.keyTiles(p, e), tileEntries*size, rows[e*c.rowBytes():], c.rowBytes(), m, d, size)
	}
}
