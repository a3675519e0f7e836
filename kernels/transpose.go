package kernels

import "encoding/binary"

// Transpose sets element [j][i] of dst to element [i][j] of src, for i < rows and
// j < cols. Elements have size bytes, 2 or 4. Rows of dst begin dstStep bytes apart,
// those of src srcStep; what lies between rows of dst is left alone.
func (c CPU) Transpose(dst []byte, dstStep int, src []byte, srcStep, rows, cols, size int) {
	if rows == 0 || cols == 0 {
		return
	}
	dst, src = dst[:(cols-1)*dstStep+size*rows], src[:(rows-1)*srcStep+size*cols]
	if size == 4 {
		for i := range rows {
			for j := range cols {
				binary.LittleEndian.PutUint32(dst[j*dstStep+4*i:], binary.LittleEndian.Uint32(src[i*srcStep+4*j:]))
			}
		}
		return
	}
	whole, across := rows&^7, cols&^7
	if whole == 0 || across == 0 || !c.transposeAsm(dst, dstStep, src, srcStep, whole, across) {
		whole, across = rows&^3, cols&^3
		for i := 0; i < whole; i += 4 {
			for j := 0; j < across; j += 4 {
				transpose4(dst[j*dstStep+2*i:], dstStep, src[i*srcStep+2*j:], srcStep)
			}
		}
	}
	// The elements outside whole blocks, one by one.
	for i := range rows {
		from := across
		if i >= whole {
			from = 0
		}
		for j := from; j < cols; j++ {
			binary.LittleEndian.PutUint16(dst[j*dstStep+2*i:], binary.LittleEndian.Uint16(src[i*srcStep+2*j:]))
		}
	}
}

// transpose4 transposes 4 × 4 elements of 2 bytes.
func transpose4(dst []byte, dstStep int, src []byte, srcStep int) {
	const even, low = 0x0000ffff0000ffff, 0xffffffff
	a := binary.LittleEndian.Uint64(src)
	b := binary.LittleEndian.Uint64(src[srcStep:])
	c := binary.LittleEndian.Uint64(src[2*srcStep:])
	d := binary.LittleEndian.Uint64(src[3*srcStep:])
	a, c = a&low|c<<32, a>>32|c&^low
	b, d = b&low|d<<32, b>>32|d&^low
	binary.LittleEndian.PutUint64(dst, a&even|b&even<<16)
	binary.LittleEndian.PutUint64(dst[dstStep:], a>>16&even|b&^even)
	binary.LittleEndian.PutUint64(dst[2*dstStep:], c&even|d&even<<16)
	binary.LittleEndian.PutUint64(dst[3*dstStep:], c>>16&even|d&^even)
}

// raceTranspose tells the race detector what transposeAsm reads and writes.
func raceTranspose(dst []byte, dstStep int, src []byte, srcStep, rows, cols int) {
	if !raceEnabled {
		return
	}
	for i := range rows {
		raceRead(src[i*srcStep:][:2*cols])
	}
	for j := range cols {
		raceWrite(dst[j*dstStep:][:2*rows])
	}
}
