package kvevents

import (
	"encoding/binary"
	"math"
)

// pack is a growing text in MessagePack. Integers have the form that readers expect
// for their type rather than the shortest.
type pack []byte

func (p *pack) array(n int) {
	switch {
	case n < 16:
		*p = append(*p, 0x90|byte(n))
	case n < 1<<16:
		*p = binary.BigEndian.AppendUint16(append(*p, 0xdc), uint16(n))
	default:
		*p = binary.BigEndian.AppendUint32(append(*p, 0xdd), uint32(n))
	}
}

// str writes a text of fewer than 32 bytes.
func (p *pack) str(s string) { *p = append(append(*p, 0xa0|byte(len(s))), s...) }

func (p *pack) null() { *p = append(*p, 0xc0) }

func (p *pack) float64(v float64) {
	*p = binary.BigEndian.AppendUint64(append(*p, 0xcb), math.Float64bits(v))
}

// uint64 writes a hash: always in nine bytes, as readers recognise a hash by its type.
func (p *pack) uint64(v uint64) { *p = binary.BigEndian.AppendUint64(append(*p, 0xcf), v) }

// uint32 writes a token or a length.
func (p *pack) uint32(v uint32) {
	switch {
	case v < 0x80:
		*p = append(*p, byte(v))
	case v < 1<<8:
		*p = append(*p, 0xcc, byte(v))
	case v < 1<<16:
		*p = binary.BigEndian.AppendUint16(append(*p, 0xcd), uint16(v))
	default:
		*p = binary.BigEndian.AppendUint32(append(*p, 0xce), v)
	}
}
