package tensor

import (
	"math"

	"github.com/x448/float16"
)

// BF16ToF32 widens a bfloat16. The result is exact; NaN payloads are kept.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 rounds f to the nearest bfloat16, ties to even. Values that round
// past the largest finite bfloat16 become infinities. A NaN stays a NaN of the
// same sign with the upper bits of its payload, made quiet.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	// Adding half a unit, less one where the kept part is even, makes the
	// truncation round to nearest even; a carry into the exponent is right.
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// F16ToF32 widens an IEEE 754 binary16. The result is exact; a NaN becomes
// quiet.
//
// Exponent and significand are shifted into place and scaled by 2^112, which
// also normalises subnormals.
func F16ToF32(h uint16) float32 {
	s, u := uint32(h&0x8000)<<16, uint32(h&0x7fff)<<13
	switch {
	case h&0x7c00 != 0x7c00:
		return math.Float32frombits(s | math.Float32bits(math.Float32frombits(u)*0x1p112))
	case h&0x3ff != 0:
		u |= 0x400000 // quiet
	}
	return math.Float32frombits(s | 0x7f800000 | u)
}

// F32ToF16 rounds f to the nearest IEEE 754 binary16, ties to even, with
// gradual underflow and infinities on overflow. A NaN stays a NaN of the same
// sign.
func F32ToF16(f float32) uint16 { return float16.Fromfloat32(f).Bits() }
