//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// layout describes the pages of a cache on the device. A page holds PageEntries
// entries: keys [⌈HeadDim/8⌉][PageEntries][8], values [PageEntries][HeadDim rounded
// up to a multiple of 8], float32 scales [PageEntries] of keys and of values where they are
// I8, positions [PageEntries] int32. Eight neighbouring components of one key are adjacent,
// followed by the same eight of the next entry, so that with a thread per entry whole lines
// are read.
//
// Head dimensions are multiples of 4 up to 256, pages have 16 to 1024 entries, a
// power of two. Components beyond HeadDim, up to a multiple of 8, are zeros.
type layout kernels.PageLayout

// Check returns an error if the layout is invalid.
func (l layout) Check() error {
	for _, t := range []tensor.Type{l.Type, l.values()} {
		if _, ok := pageCode(t); !ok {
			return fmt.Errorf("pages on the device: found type %v, expected F32, F16, BF16 or I8", t)
		}
	}
	if v := l.values(); v != l.Type && v != tensor.I8 {
		return fmt.Errorf("pages on the device: found keys of type %v with values of type %v, expected the same or I8", l.Type, v)
	}
	if l.HeadDim < 4 || l.HeadDim > 256 || l.HeadDim%4 != 0 {
		return fmt.Errorf("pages on the device: found head dimension %d, expected a multiple of 4 from 4 to 256", l.HeadDim)
	}
	if l.PageEntries < 16 || l.PageEntries > 1024 || l.PageEntries&(l.PageEntries-1) != 0 {
		return fmt.Errorf("pages on the device: found %d entries, expected a power of two from 16 to 1024", l.PageEntries)
	}
	return nil
}

// pageCode is typeCode for what pages hold, as in shaders/page.glsl.
func pageCode(t tensor.Type) (uint32, bool) {
	if t == tensor.I8 {
		return 16, true
	}
	return typeCode(t)
}

func (l layout) values() tensor.Type { return kernels.PageLayout(l).ValueType() }

// sideBytes is the size of a page's keys or values of a type, without scales.
func (l layout) sideBytes(t tensor.Type) int { return t.Bytes(l.PageEntries * padded(l.HeadDim)) }

// valuesAt and scalesAt are offsets in a page.
func (l layout) valuesAt() int { return l.sideBytes(l.Type) }
func (l layout) scalesAt() int { return l.valuesAt() + l.sideBytes(l.values()) }

// scales is the number of sides that have scales.
func (l layout) scales() (n int) {
	for _, t := range []tensor.Type{l.Type, l.values()} {
		if t == tensor.I8 {
			n++
		}
	}
	return n
}

// PageBytes is the size of a page on the device.
func (l layout) PageBytes() int { return l.scalesAt() + 4*l.PageEntries*(l.scales()+1) }

// hostBytes is the size of a page on the host.
func (l layout) hostBytes() int { return kernels.PageLayout(l).Bytes() }

// lanes is the number of sums over slots that the value phase keeps.
func (l layout) lanes() uint32 {
	return 1 << (bits.Len(uint(min(workgroup/(padded(l.HeadDim)/8), 32))) - 1)
}

func (l layout) constants() []uint32 {
	keys, _ := pageCode(l.Type)
	values, _ := pageCode(l.values())
	return []uint32{keys, uint32(l.HeadDim), uint32(l.PageEntries), values}
}

// FromHost converts a page from block, hostBytes in the order that kernels.PagePool
// describes, to dst, PageBytes in the device's order. Elements keep their bits.
func (l layout) FromHost(dst, block []byte) { l.turn(block, dst, true) }

// ToHost is the inverse of FromHost.
func (l layout) ToHost(block, src []byte) { l.turn(block, src, false) }

func (l layout) turn(hst, dev []byte, in bool) {
	host, words := kernels.PageLayout(l), 4*l.PageEntries
	l.turnKeys(hst, dev, in)
	l.turnValues(hst[host.ValuesAt():], dev[l.valuesAt():l.scalesAt()], in)
	var arrays []int // of words: where they begin on the host
	if l.Type == tensor.I8 {
		arrays = append(arrays, host.ValuesAt()-words)
	}
	if l.values() == tensor.I8 {
		arrays = append(arrays, host.PositionsAt()-words)
	}
	for i, from := range append(arrays, host.PositionsAt()) {
		at := l.scalesAt() + i*words
		move(hst[from:from+words], dev[at:at+words], in)
	}
}

func (l layout) turnKeys(hst, dev []byte, in bool) {
	size, turn := l.Type.Bytes(1), turnTile
	if l.Type == tensor.I8 {
		turn = turnPairs
	}
	// A tile of 16 keys on the host is 16 rows of 8 in each of the device's chunks.
	for e := 0; e < l.PageEntries; e += kernels.TileEntries {
		for c := 0; c < l.HeadDim; c += 8 {
			h, d := hst[(e*l.HeadDim+c*kernels.TileEntries)*size:], dev[(c*l.PageEntries+8*e)*size:]
			turn(h, d, size, min(8, l.HeadDim-c), in)
		}
	}
}

func (l layout) turnValues(hst, dev []byte, in bool) {
	size := l.values().Bytes(1)
	row, pitch := l.HeadDim*size, padded(l.HeadDim)*size
	switch {
	case l.values() == tensor.I8:
		for e := 0; e < l.PageEntries; e += 2 {
			turnPair(hst[e*row:(e+2)*row], dev[e*pitch:(e+1)*pitch], dev[(e+1)*pitch:(e+2)*pitch], in)
		}
	case row == pitch:
		move(hst[:l.PageEntries*row], dev, in)
	default:
		for e := range l.PageEntries {
			move(hst[e*row:(e+1)*row], dev[e*pitch:(e+1)*pitch], in)
		}
	}
}

// turnPair copies the values of two entries, whose integers alternate on the host, to their
// rows, where it zeros the rest, or copies back.
func turnPair(hst, even, odd []byte, in bool) {
	n := len(hst) / 2
	if in {
		clear(even[n:])
		clear(odd[n:])
	}
	for i := range n {
		if pair := hst[2*i : 2*i+2 : 2*i+2]; in {
			even[i], odd[i] = pair[0], pair[1]
		} else {
			pair[0], pair[1] = even[i], odd[i]
		}
	}
}

// turnPairs is turnTile for integers, whose host has [4][16] pairs of components.
func turnPairs(hst, dev []byte, _, n int, in bool) {
	const tile = kernels.TileEntries
	if in && n < 8 {
		clear(dev[:8*tile])
	}
	for c := 0; c < n; c += 2 {
		for e := range tile {
			move(hst[(c/2*tile+e)*2:][:2], dev[8*e+c:][:2], in)
		}
	}
}

// move copies hst to the beginning of dev and zeros the rest, or copies back.
func move(hst, dev []byte, in bool) {
	if in {
		clear(dev[copy(dev, hst):])
	} else {
		copy(hst, dev)
	}
}

// turnTile copies n ≤ 8 components of 16 keys from hst, [8][16] elements, to dev,
// [16][8], where it zeros the others; or back.
func turnTile(hst, dev []byte, size, n int, in bool) {
	const tile = kernels.TileEntries
	switch {
	case n == 8 && size == 2:
		turn16((*[8 * tile * 2]byte)(hst), (*[8 * tile * 2]byte)(dev), in)
		return
	case n == 8:
		turn32((*[8 * tile * 4]byte)(hst), (*[8 * tile * 4]byte)(dev), in)
		return
	case in:
		clear(dev[:8*tile*size])
	}
	for e := range tile {
		for i := range n {
			move(hst[(i*tile+e)*size:][:size], dev[(8*e+i)*size:][:size], in)
		}
	}
}

// turn16 is turnTile for 8 components of two bytes, four neighbours at a time.
func turn16(hst, dev *[256]byte, in bool) {
	le := binary.LittleEndian
	for i := 0; i < 256; i += 8 {
		d := dev[i : i+8 : i+8]              // components 4c … 4c+3 of entry e
		h := hst[i%16/8*128+i/16*2:][:98:98] // 32 bytes from one to the next
		if in {
			le.PutUint64(d, uint64(le.Uint16(h))|uint64(le.Uint16(h[32:]))<<16|uint64(le.Uint16(h[64:]))<<32|uint64(le.Uint16(h[96:]))<<48)
		} else {
			x := le.Uint64(d)
			le.PutUint16(h, uint16(x))
			le.PutUint16(h[32:], uint16(x>>16))
			le.PutUint16(h[64:], uint16(x>>32))
			le.PutUint16(h[96:], uint16(x>>48))
		}
	}
}

// turn32 is turnTile for 8 components of four bytes, two neighbours at a time.
func turn32(hst, dev *[512]byte, in bool) {
	le := binary.LittleEndian
	for i := 0; i < 512; i += 8 {
		d := dev[i : i+8 : i+8]
		h := hst[i%32/8*128+i/32*4:][:68:68]
		if in {
			le.PutUint64(d, uint64(le.Uint32(h))|uint64(le.Uint32(h[64:]))<<32)
		} else {
			x := le.Uint64(d)
			le.PutUint32(h, uint32(x))
			le.PutUint32(h[64:], uint32(x>>32))
		}
	}
}

// headTable is the table of one layer's (sequence, KV head) pairs that commands read:
// for each pair, where its pages are, how many entries it held before the pass, and
// the logical slot of its entry 0. It is in parameter memory; the host writes it
// between submissions, which is how recorded commands follow a growing cache. A table
// belongs to one goroutine at a time.
type headTable struct {
	mem *buffer
	n   int
}

const headBytes = 16

// newHeadTable makes a table of n pairs.
func (d *Device) newHeadTable(n int) (*headTable, error) {
	b, err := d.newParamBuffer(int64(n) * headBytes)
	if err != nil {
		return nil, err
	}
	clear(b.Bytes())
	return &headTable{b, n}, nil
}

// Set describes pair i: pages is its table of page addresses (uint64 each), start
// the number of entries that it held before the pass, and base the logical slot of
// entry 0, a multiple of the page size.
func (h *headTable) Set(i int, pages view, start, base int) {
	m := h.mem.Bytes()[i*headBytes : (i+1)*headBytes]
	binary.LittleEndian.PutUint64(m, pages.address())
	binary.LittleEndian.PutUint32(m[8:], uint32(start))
	binary.LittleEndian.PutUint32(m[12:], uint32(base))
}

// Free frees the table.
func (h *headTable) Free() { h.mem.Free() }

// rowInfo gives the destination of a row of a pass.
type rowInfo struct {
	Seq      int // sequence: the pair of KV head h is number Seq·KVHeads + h
	Offset   int // index of the row among those that the sequence appends in this pass
	Position int32
}

// rowInfoBytes is the size of a rowInfo on the device.
const rowInfoBytes = 16

// putRows writes rows to dst, rowInfoBytes each, as RopeAppend reads them.
func putRows(dst []byte, rows []rowInfo) {
	for i, r := range rows {
		putRow(dst[i*rowInfoBytes:], r)
	}
}

func putRow(dst []byte, r rowInfo) {
	binary.LittleEndian.PutUint32(dst, uint32(r.Seq))
	binary.LittleEndian.PutUint32(dst[4:], uint32(r.Offset))
	binary.LittleEndian.PutUint32(dst[8:], uint32(r.Position))
	binary.LittleEndian.PutUint32(dst[12:], 0)
}

// shape holds the parameters that the operations on a layer's heads share.
type shape struct {
	layout
	Heads, KVHeads int

	// Scale is the factor of attention scores, including log2 e; 0 means
	// kernels.AttentionScale.
	Scale float32

	// Cap, if positive, is what the soft-cap limits scaled scores to.
	Cap float32

	// BF16 says that attention is in bf16: rotated queries and weights are rounded.
	BF16 bool
}

// narrow returns 1 if attention is in bf16, as shaders expect it.
func (s shape) narrow() uint32 {
	if s.BF16 {
		return 1
	}
	return 0
}

func (s shape) scale() float32 {
	if s.Scale != 0 {
		return s.Scale
	}
	return kernels.AttentionScale(s.HeadDim)
}

func (s shape) group() int { return s.Heads / s.KVHeads }

func (c *commands) shape(op string, s shape) {
	if err := s.Check(); err != nil {
		c.fail(op, "%w", err)
	} else if s.KVHeads < 1 || s.Heads < s.KVHeads || s.Heads%s.KVHeads != 0 || s.group() > 255 {
		c.fail(op, "found %d query heads and %d kv heads, expected a multiple of at most 255", s.Heads, s.KVHeads)
	} else if s.BF16 && s.Type != tensor.BF16 {
		c.fail(op, "found attention in bf16 over pages of type %v, expected BF16", s.Type)
	}
}

// RopeAppend rotates queries q, [N, Heads·HeadDim], and keys k, [N,
// KVHeads·HeadDim], in the half-split layout, the queries in place, and stores
// keys, values v and positions in the pages of the rows' sequences. turns is
// [N][HeadDim] f32: HeadDim/2 cosines, then as many sines, for each row. rows is
// [N] rowInfo. Rotations are within one rounding of those of package kernels; stored
// elements, and the queries if attention is in bf16, are rounded once to nearest
// even, integers as kernels.PageRows defines it.
func (c *commands) RopeAppend(s shape, q, k, v, turns rows2D, rows view, heads *headTable) {
	const op = "rope and append"
	if !c.ready(op) {
		return
	}
	c.shape(op, s)
	c.rows(op, "q", q, s.Heads*s.HeadDim, tensor.F32)
	c.rows(op, "k", k, s.KVHeads*s.HeadDim, tensor.F32)
	c.rows(op, "v", v, s.KVHeads*s.HeadDim, tensor.F32)
	if !turns.Mem.None() && (turns.N < q.N || turns.Cols != s.HeadDim && turns.Cols != s.HeadDim+1) {
		c.fail(op, "found cosines and sines in %d rows of %d, expected %d rows of %d, or of one more with a factor", turns.N, turns.Cols, q.N, s.HeadDim)
	}
	c.floats(op, "turns", turns.Mem, (q.N-1)*turns.Stride+turns.Cols, true)
	c.floats(op, "rows", rows, 4*q.N, false)
	if k.N < q.N || v.N < q.N || rows.address()%16 != 0 {
		c.fail(op, "found %d keys, %d values and rows at %#x for %d queries, expected as many and a multiple of 16", k.N, v.N, rows.address(), q.N)
	}
	if c.err != nil {
		return
	}
	var p push
	for _, a := range []view{q.Mem, k.Mem, v.Mem, turns.Mem, rows, heads.mem.All()} {
		p.addr(a)
	}
	p.u32(q.N, s.Heads, s.KVHeads, q.Stride, k.Stride, v.Stride, turns.Stride, turns.Cols)
	threads := (s.Heads + 2*s.KVHeads) * s.HeadDim / 4
	c.dispatch(op, "rope", append(s.constants(), s.narrow()), &p, (threads+255)/256, q.N, 1)
	if n := s.scales(); n > 0 {
		first := (2 - n) * s.KVHeads // keys of other types are stored already
		var i push
		for _, a := range []view{k.Mem, v.Mem, turns.Mem, rows, heads.mem.All()} {
			i.addr(a)
		}
		i.u32(s.KVHeads, k.Stride, v.Stride, turns.Stride, first)
		c.noBarrier(func() { c.dispatch(op, "append", s.constants(), &i, n*s.KVHeads, q.N, 1) })
	}
}
