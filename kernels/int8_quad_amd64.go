//go:build !purego

package kernels

import (
	"encoding/binary"

	"github.com/lukv/lukv/tensor"
)

// int8Quad has integers of 16 bits, with their integer scales multiplied in (|c·w| ≤ 4096).
type int8Quad struct {
	w     [4][256]int16
	least [4][16]int16
	d     [4]float32 // of blocks of 256, as min
	min   [4]float32
	chain [2][8][4]float32 // D and Min of blocks of 32
}

//go:noescape
func int8QuadAVX2(a *int8QuadTile)

// int8QuadChainAVX2 takes types with blocks of 32.
//
//go:noescape
func int8QuadChainAVX2(a *int8QuadTile)

// int8ScaleAVX2 multiplies groups of 16 integers by their scales.
//
//go:noescape
func int8ScaleAVX2(dst *[256]int16, src *[256]int8, scale *[16]int8)

// int8QuadRoom is where a quad is made.
type int8QuadRoom struct {
	quad     int8Quad
	integers [256]int8
	block    tensor.Quants
}

// packInt8Quad unpacks up to 256 columns of outs rows of w, from row o on.
func (c CPU) packInt8Quad(room *int8QuadRoom, w *Matrix, o, outs, k int) {
	t := w.Type
	block := t.Block()
	n, row := min(256, w.Cols-k)/block, t.Bytes(w.Cols)
	src := w.Data[t.Bytes(o*w.Cols+k):]
	for i := range outs {
		b := src[i*row:][:t.Bytes(n*block)]
		unpackIntegers(&room.integers, b, n, t)
		if block == 256 {
			room.setBlock(i, b, t)
		} else {
			room.setBlocks(i, n, b, t)
		}
	}
}

// setBlock sets row i of the quad to integers and a block of 256.
func (room *int8QuadRoom) setBlock(i int, b []byte, t tensor.Type) {
	p, u := &room.quad, &room.block
	t.UnpackScales(u, b)
	p.d[i], p.min[i] = u.D, u.Min
	for g, v := range u.Least {
		p.least[i][g] = int16(v)
	}
	int8ScaleAVX2(&p.w[i], &room.integers, &u.Scale)
}

// setBlocks sets row i of the quad to integers and n blocks of 32.
func (room *int8QuadRoom) setBlocks(i, n int, b []byte, t tensor.Type) {
	p, u, size := &room.quad, &room.block, t.Bytes(32)
	ones := [16]int8{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	int8ScaleAVX2(&p.w[i], &room.integers, &ones)
	simple := t != tensor.MXFP4 && !t.Minima()
	u.Min = 0
	for g := range n {
		if simple {
			u.D = tensor.F16ToF32(binary.LittleEndian.Uint16(b[g*size:]))
		} else {
			t.UnpackScales(u, b[g*size:])
		}
		p.chain[0][g][i], p.chain[1][g][i] = u.D, u.Min
	}
}

// quadSums returns the part of a record, from column k on, that is multiplied by minima.
func (x *int8Rows) quadSums(k int, t tensor.Type) int { return x.sums16() + k/8 }

func (c CPU) runQuad(a *int8QuadTile, t tensor.Type) { int8QuadAVX2(a) }
func (c CPU) runChain(a *int8QuadTile)               { int8QuadChainAVX2(a) }
