package tensor

import "fmt"

// Type is the type of a tensor's elements. Elements are stored little-endian.
// The zero Type is invalid.
type Type uint8

// The element types, named as in the safetensors format.
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

	typeCount = iota
)

var typeInfo = [typeCount + 1]struct {
	name string
	size int
}{
	F32: {"F32", 4}, F16: {"F16", 2}, BF16: {"BF16", 2}, F64: {"F64", 8},
	I64: {"I64", 8}, I32: {"I32", 4}, I16: {"I16", 2}, I8: {"I8", 1},
	U64: {"U64", 8}, U32: {"U32", 4}, U16: {"U16", 2}, U8: {"U8", 1},
	Bool: {"BOOL", 1}, F8E4M3: {"F8_E4M3", 1}, F8E5M2: {"F8_E5M2", 1},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 1}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 1},
	F8E8M0: {"F8_E8M0", 1}, C64: {"C64", 8},
}

// Valid reports whether t is one of the types above.
func (t Type) Valid() bool { return t >= F32 && t <= typeCount }

// Size returns the number of bytes of one element, 0 for an invalid type.
func (t Type) Size() int {
	if !t.Valid() {
		return 0
	}
	return typeInfo[t].size
}

// Float reports whether t is a floating-point type whose values Float32s can
// widen. The 8-bit floats are not: they can be listed and copied only.
func (t Type) Float() bool { return t == F32 || t == F16 || t == BF16 || t == F64 }

// String returns the type's name in the safetensors format, such as "BF16".
func (t Type) String() string {
	if !t.Valid() {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return typeInfo[t].name
}

// ParseType returns the type with the given safetensors name (upper case).
func ParseType(name string) (Type, error) {
	for t := F32; t <= typeCount; t++ {
		if typeInfo[t].name == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("element type %q is not supported", name)
}
