package kvcache

import (
	"encoding/binary"
	"unsafe"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Elements are read and written where kernels.PageLayout says.

const tileEntries = kernels.TileEntries

func (c *Cache) keyElement(entry int) int { return c.pool.host.layout.KeyElement(entry) }

func (c *Cache) valueElement(entry int) int { return c.pool.host.layout.ValueElement(entry) }

// elems returns n elements of type T at p, beginning with element i.
func elems[T uint16 | uint32 | float32](p unsafe.Pointer, i, n int) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Add(p, i*int(unsafe.Sizeof(t)))), n)
}

// keySpan is the distance from the first to behind the last element of a key.
func (c *Cache) keySpan() int { return (c.o.HeadDim-1)*tileEntries + 1 }

func (c *Cache) storeKey(p kernels.Page, entry int, row []float32) {
	c.store(p.K, c.keyElement(entry), c.keySpan(), tileEntries, row)
}

func (c *Cache) storeValue(p kernels.Page, entry int, row []float32) {
	c.store(p.V, c.valueElement(entry), c.o.HeadDim, 1, row)
}

// store rounds row to the cache's type and writes it to every step-th element
// at p, beginning with element i, span elements in all.
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
		kernels.Detect().Narrow(unsafe.Slice((*byte)(unsafe.Add(p, 2*i)), 2*span), row, c.o.Type)
	default:
		var buf [maxHeadDim]uint16
		narrow := buf[:len(row)]
		kernels.Detect().Narrow(unsafe.Slice((*byte)(unsafe.Pointer(&buf)), 2*len(row)), row, c.o.Type)
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

// move copies a key and a value, bit by bit, from one place of a page to another.
func (c *Cache) move(dst kernels.Page, to int, src kernels.Page, from int) {
	if c.o.Type.Size() == 4 {
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

// appendStored appends stored elements, little-endian, to buf: every step-th of
// span elements at p from element i on.
func (c *Cache) appendStored(buf []byte, p unsafe.Pointer, i, span, step int) []byte {
	if c.o.Type.Size() == 4 {
		return appendElems[uint32](buf, p, i, span, step)
	}
	return appendElems[uint16](buf, p, i, span, step)
}

func appendElems[T uint16 | uint32](buf []byte, p unsafe.Pointer, i, span, step int) []byte {
	src := elems[T](p, i, span)
	for j := 0; j < span; j += step {
		if unsafe.Sizeof(src[j]) == 4 {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(src[j]))
		} else {
			buf = binary.LittleEndian.AppendUint16(buf, uint16(src[j]))
		}
	}
	return buf
}

// takeStored is the inverse of appendStored; it returns the rest of buf.
func (c *Cache) takeStored(buf []byte, p unsafe.Pointer, i, span, step int) []byte {
	if c.o.Type.Size() == 4 {
		return takeElems[uint32](buf, p, i, span, step)
	}
	return takeElems[uint16](buf, p, i, span, step)
}

func takeElems[T uint16 | uint32](buf []byte, p unsafe.Pointer, i, span, step int) []byte {
	dst := elems[T](p, i, span)
	for j := 0; j < span; j += step {
		if unsafe.Sizeof(dst[j]) == 4 {
			dst[j], buf = T(binary.LittleEndian.Uint32(buf)), buf[4:]
		} else {
			dst[j], buf = T(binary.LittleEndian.Uint16(buf)), buf[2:]
		}
	}
	return buf
}
