//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// Layout describes the pages of a cache on the device. A page holds
// PageEntries entries: keys [HeadDim/8][PageEntries][8], values
// [PageEntries][HeadDim], positions [PageEntries] int32. Eight neighbouring
// components of one key lie together and the same eight of the next entry beside
// them, so that a thread per entry reads whole lines.
type Layout struct {
	Type        tensor.Type // F32, F16 or BF16
	HeadDim     int         // multiple of 8, 8 to 256
	PageEntries int         // power of two, 16 to 1024
}

// Check returns what is wrong with a layout.
func (l Layout) Check() error {
	if _, ok := typeCode(l.Type); !ok {
		return fmt.Errorf("pages on the device: found type %v, expected F32, F16 or BF16", l.Type)
	}
	if l.HeadDim < 8 || l.HeadDim > 256 || l.HeadDim%8 != 0 {
		return fmt.Errorf("pages on the device: found head dimension %d, expected a multiple of 8 from 8 to 256", l.HeadDim)
	}
	if l.PageEntries < 16 || l.PageEntries > 1024 || l.PageEntries&(l.PageEntries-1) != 0 {
		return fmt.Errorf("pages on the device: found %d entries, expected a power of two from 16 to 1024", l.PageEntries)
	}
	return nil
}

// half is the bytes of a page's keys, and of its values.
func (l Layout) half() int { return l.PageEntries * l.HeadDim * l.Type.Size() }

// PageBytes is the size of a page.
func (l Layout) PageBytes() int { return 2*l.half() + 4*l.PageEntries }

// lanes is the number of sums over slots that the value phase keeps.
func (l Layout) lanes() uint32 {
	return 1 << (bits.Len(uint(min(workgroup/(l.HeadDim/8), 32))) - 1)
}

func (l Layout) constants() []uint32 {
	t, _ := typeCode(l.Type)
	return []uint32{t, uint32(l.HeadDim), uint32(l.PageEntries)}
}

// FromHost writes the page that package kvcache holds as keys k, tiles
// [PageEntries/16][HeadDim][16], values v and positions pos to dst, PageBytes
// bytes, in the device's order; ToHost is the inverse. Elements keep their bits.
func (l Layout) FromHost(dst, k, v []byte, pos []int32) {
	l.turnKeys(func(dev, hst, n int) { copy(dst[dev:dev+n], k[hst:]) })
	copy(dst[l.half():2*l.half()], v)
	for i, p := range pos {
		binary.LittleEndian.PutUint32(dst[2*l.half()+4*i:], uint32(p))
	}
}

// ToHost is the inverse of FromHost.
func (l Layout) ToHost(k, v []byte, pos []int32, src []byte) {
	l.turnKeys(func(dev, hst, n int) { copy(k[hst:hst+n], src[dev:]) })
	copy(v, src[l.half():2*l.half()])
	for i := range pos {
		pos[i] = int32(binary.LittleEndian.Uint32(src[2*l.half()+4*i:]))
	}
}

// turnKeys calls move for every element of a page's keys with its place in both orders.
func (l Layout) turnKeys(move func(dev, hst, n int)) {
	size, tile := l.Type.Size(), kernels.TileEntries
	for d := range l.HeadDim {
		for e := range l.PageEntries {
			move(((d/8*l.PageEntries+e)*8+d%8)*size, (e/tile*tile*l.HeadDim+d*tile+e%tile)*size, size)
		}
	}
}

// Heads is the table of the (sequence, KV head) pairs of one layer that commands
// read: for each pair where its pages are, how many entries it held before the
// pass, and the logical slot of its entry 0. It lies in host memory; the host
// writes it between submissions, which is how recorded commands follow a cache
// that grows. A table belongs to one goroutine at a time.
type Heads struct {
	mem *Buffer
	n   int
}

const headBytes = 16

// NewHeads makes a table of n pairs.
func (d *Device) NewHeads(n int) (*Heads, error) {
	b, err := d.NewHostBuffer(int64(n) * headBytes)
	if err != nil {
		return nil, err
	}
	clear(b.Bytes())
	return &Heads{b, n}, nil
}

// Set describes pair i: pages is its table of page addresses (uint64 each), start
// the entries that it held before the pass, base the logical slot of entry 0, a
// multiple of the page size.
func (h *Heads) Set(i int, pages View, start, base int) {
	m := h.mem.Bytes()[i*headBytes : (i+1)*headBytes]
	binary.LittleEndian.PutUint64(m, pages.address())
	binary.LittleEndian.PutUint32(m[8:], uint32(start))
	binary.LittleEndian.PutUint32(m[12:], uint32(base))
}

// Free gives the table back.
func (h *Heads) Free() { h.mem.Free() }

// RowInfo says where a row of a pass goes.
type RowInfo struct {
	Seq      int // sequence: the pairs of KV head h are number Seq·KVHeads + h
	Offset   int // number of the row among those that the sequence appends in this pass
	Position int32
}

// RowBytes is the size of a RowInfo on the device.
const RowBytes = 16

// PutRows writes rows to dst, RowBytes each, as RopeAppend reads them.
func PutRows(dst []byte, rows []RowInfo) {
	for i, r := range rows {
		m := dst[i*RowBytes : (i+1)*RowBytes]
		binary.LittleEndian.PutUint32(m, uint32(r.Seq))
		binary.LittleEndian.PutUint32(m[4:], uint32(r.Offset))
		binary.LittleEndian.PutUint32(m[8:], uint32(r.Position))
		binary.LittleEndian.PutUint32(m[12:], 0)
	}
}

// Shape is what the operations on a layer's heads have in common.
type Shape struct {
	Layout
	Heads, KVHeads int
}

func (s Shape) group() int { return s.Heads / s.KVHeads }

func (c *Commands) shape(op string, s Shape) {
	if err := s.Check(); err != nil {
		c.fail(op, "%w", err)
	} else if s.KVHeads < 1 || s.Heads < s.KVHeads || s.Heads%s.KVHeads != 0 || s.group() > 255 {
		c.fail(op, "found %d query heads and %d kv heads, expected a multiple of at most 255", s.Heads, s.KVHeads)
	}
}

// RopeAppend rotates queries q, [N, Heads·HeadDim], and keys k, [N,
// KVHeads·HeadDim], in the half-split layout, the queries in place, and stores
// keys, values v and positions in the pages of the rows' sequences. turns is
// [N][HeadDim] f32: HeadDim/2 cosines, then as many sines, of each row. rows is
// [N] RowInfo. Rotations are within one rounding of package kernels', stored
// elements are rounded once to nearest even.
func (c *Commands) RopeAppend(s Shape, q, k, v Rows, turns, rows View, heads *Heads) {
	const op = "rope and append"
	if !c.ready(op) {
		return
	}
	c.shape(op, s)
	c.rows(op, "q", q, s.Heads*s.HeadDim, tensor.F32)
	c.rows(op, "k", k, s.KVHeads*s.HeadDim, tensor.F32)
	c.rows(op, "v", v, s.KVHeads*s.HeadDim, tensor.F32)
	c.floats(op, "turns", turns, q.N*s.HeadDim, false)
	c.floats(op, "rows", rows, 4*q.N, false)
	if k.N < q.N || v.N < q.N || rows.address()%16 != 0 {
		c.fail(op, "found %d keys, %d values and rows at %#x for %d queries, expected as many and a multiple of 16", k.N, v.N, rows.address(), q.N)
	}
	if c.err != nil {
		return
	}
	var p push
	for _, a := range []View{q.Mem, k.Mem, v.Mem, turns, rows, heads.mem.All()} {
		p.addr(a)
	}
	p.u32(q.N, s.Heads, s.KVHeads, q.Stride, k.Stride, v.Stride)
	threads := (s.Heads + 2*s.KVHeads) * s.HeadDim / 4
	c.dispatch(op, "rope", s.constants(), &p, (threads+255)/256, q.N, 1)
}
