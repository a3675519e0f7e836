package tensor

import "fmt"

// Type is the type of a tensor's elements. Elements are stored little-endian.
// The zero Type is invalid.
type Type uint8

// The element types. Up to F6E3M2 they are those of the safetensors format, named as there.
const (
	F32  Type = iota + 1 // IEEE 754 binary32
	F16                  // IEEE 754 binary16
	BF16                 // the upper half of a binary32
	F64                  // IEEE 754 binary64
	I64
	I32
	I16
	I8
	U64
	U32
	U16
	U8
	Bool   // one byte, 0 or 1
	F8E4M3 // 8-bit float, 4 exponent bits, no infinities
	F8E5M2 // 8-bit float, 5 exponent bits
	F8E4M3FNUZ
	F8E5M2FNUZ
	F8E8M0 // 8-bit power of two, a scale
	C64    // two F32, real and imaginary part

	// Types smaller than a byte, packed from the low bits up. As with the 8-bit
	// floats, whole tensors can only be listed and copied.
	F4     // 4-bit float, 2 exponent bits
	F6E2M3 // 6-bit float, 2 exponent bits
	F6E3M2 // 6-bit float, 3 exponent bits

	// Quantised types, in GGUF's layout of the type of the same name: blocks of integers
	// with common scales. No block runs from one row into the next.
	Q8_0
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	IQ4_NL
	IQ4_XS
	MXFP4

	typeCount = iota
)

// Valid reports whether t is one of the types above.
func (t Type) Valid() bool { return t >= F32 && t <= typeCount }

// Float reports whether t is a floating-point type whose values Float32s can
// convert. Those of 8 bits or fewer are not: they can only be listed and copied.
func (t Type) Float() bool { return t == F32 || t == F16 || t == BF16 || t == F64 }

// String returns the type's name in the safetensors format, such as "BF16", or in GGUF,
// such as "Q4_K".
func (t Type) String() string {
	if !t.Valid() {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return formats[t].name
}

// ParseType returns the type with the given safetensors name (upper case).
func ParseType(name string) (Type, error) {
	for t := F32; t <= F6E3M2; t++ {
		if formats[t].name == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("element type %q is not supported", name)
}
