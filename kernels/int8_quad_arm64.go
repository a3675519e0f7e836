//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// int8Quad has integers of 8 bits, which SDOT multiplies. A group is 16 or 32 elements, see
// groupOf; scales and minima beyond the groups are not read.
type int8Quad struct {
	w     [4][256]int8
	scale [4][16]int32
	least [4][16]int16
	d     [4]float32 // of blocks of 256, as min
	min   [4]float32
	chain [2][8][4]float32 // D and Min of blocks of 32

	// w, scale and least with the four rows side by side, for many rows of activations.
	turned      [64][4][4]int8
	turnedScale [16][4]int32
	turnedLeast [16][4]int16
}

// The routines with SDOT, and those that do without. Quad16 and Quad32 take types with scales
// for 16 and 32 elements, Chain those with blocks of 32.

//go:noescape
func int8Quad16Dot(a *int8QuadTile)

//go:noescape
func int8Quad32Dot(a *int8QuadTile)

//go:noescape
func int8ChainDot(a *int8QuadTile)

//go:noescape
func int8Quad16NEON(a *int8QuadTile)

//go:noescape
func int8Quad32NEON(a *int8QuadTile)

//go:noescape
func int8ChainNEON(a *int8QuadTile)

// The routines for a multiple of six rows of activations, which read what int8TurnNEON has
// turned: w and, if scales is 1, scale and least.

//go:noescape
func int8Turned16Dot(a *int8QuadTile)

//go:noescape
func int8Turned32Dot(a *int8QuadTile)

//go:noescape
func int8TurnedChainDot(a *int8QuadTile)

//go:noescape
func int8TurnNEON(p *int8Quad, scales int)

// int8HalvesNEON sets every fourth number from dst on to n f16, step bytes apart, after it has
// flipped bits of theirs.
//
//go:noescape
func int8HalvesNEON(dst *float32, src unsafe.Pointer, n, step, flip int)

// int8SixBitsNEON sets row i of p, but for the integers, to a block of Q4_K or Q5_K.
//
//go:noescape
func int8SixBitsNEON(p *int8Quad, i int, src unsafe.Pointer)

// int8Scales16NEON widens the scales of 16 groups.
//
//go:noescape
func int8Scales16NEON(dst *[16]int32, src unsafe.Pointer)

// int8QuadRoom is where a quad is made.
type int8QuadRoom struct {
	quad  int8Quad
	block tensor.Quants
}

// packInt8Quad unpacks up to 256 columns of outs rows of w, from row o on.
func (c CPU) packInt8Quad(room *int8QuadRoom, w *Matrix, o, outs, k int) {
	p, t := &room.quad, w.Type
	block := t.Block()
	n, row, size := min(256, w.Cols-k)/block, t.Bytes(w.Cols), t.Bytes(block)
	all := w.Data[t.Bytes(o*w.Cols+k):][:(outs-1)*row+n*size]
	for i := range outs {
		src := unsafe.Pointer(&all[i*row])
		unpackBlocks(&p.w[i], src, n, t)
		switch t {
		case tensor.Q4_K, tensor.Q5_K:
			int8SixBitsNEON(p, i, src)
		case tensor.Q6_K:
			int8Scales16NEON(&p.scale[i], unsafe.Add(src, 192))
			int8HalvesNEON(&p.d[i], unsafe.Add(src, 208), 1, 0, 0)
		case tensor.Q2_K, tensor.Q3_K, tensor.IQ4_XS:
			p.setGroups(i, &room.block, all[i*row:], t)
		case tensor.MXFP4:
			for g := range n {
				t.UnpackScales(&room.block, all[i*row+g*size:])
				p.chain[0][g][i] = room.block.D
			}
		default:
			int8HalvesNEON(&p.chain[0][0][i], src, n, size, 0)
			if t.Minima() {
				int8HalvesNEON(&p.chain[1][0][i], unsafe.Add(src, 2), n, size, 0x8000)
			}
		}
	}
}

// setGroups sets row i, but for the integers, to the block of 256 at the start of b.
func (p *int8Quad) setGroups(i int, u *tensor.Quants, b []byte, t tensor.Type) {
	t.UnpackScales(u, b)
	p.d[i], p.min[i] = u.D, u.Min
	if groupOf(t) == 16 {
		int8Scales16NEON(&p.scale[i], unsafe.Pointer(&u.Scale))
		for g, v := range u.Least {
			p.least[i][g] = int16(v)
		}
		return
	}
	for g := range 8 {
		p.scale[i][g], p.least[i][g] = int32(u.Scale[2*g]), int16(u.Least[2*g])
	}
}

// quadSums returns the part of a record, from column k on, that is multiplied by minima.
func (x *int8Rows) quadSums(k int, t tensor.Type) int {
	if groupOf(t) == 16 {
		return x.sums16() + k/8
	}
	return x.sums32() + k/16
}

// turnedFrom is the fewest rows of activations for which six at a time, some of them for
// nothing, take fewer instructions than one at a time.
const turnedFrom = 4

// turn readies a for the routines for six rows, if there are enough.
func (c CPU) turn(a *int8QuadTile, scales int) bool {
	if !c.DotProd || a.rows < turnedFrom {
		return false
	}
	a.rows = (a.rows + int8TileRows - 1) / int8TileRows * int8TileRows
	int8TurnNEON(a.quad, scales)
	return true
}

func (c CPU) runQuad(a *int8QuadTile, t tensor.Type) {
	by16 := groupOf(t) == 16
	switch turned := c.turn(a, 1); {
	case turned && by16:
		int8Turned16Dot(a)
	case turned:
		int8Turned32Dot(a)
	case c.DotProd && by16:
		int8Quad16Dot(a)
	case c.DotProd:
		int8Quad32Dot(a)
	case by16:
		int8Quad16NEON(a)
	default:
		int8Quad32NEON(a)
	}
}

func (c CPU) runChain(a *int8QuadTile) {
	switch {
	case c.turn(a, 0):
		int8TurnedChainDot(a)
	case c.DotProd:
		int8ChainDot(a)
	default:
		int8ChainNEON(a)
	}
}

// groupOf returns the number of elements that share an integer scale.
func groupOf(t tensor.Type) int {
	switch t {
	case tensor.Q2_K, tensor.Q3_K, tensor.Q6_K:
		return 16
	}
	return 32
}
