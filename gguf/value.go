package gguf

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
)

// kind is the type of a value.
type kind uint32

const (
	kindU8 kind = iota
	kindI8
	kindU16
	kindI16
	kindU32
	kindI32
	kindF32
	kindBool
	kindText
	kindArray
	kindU64
	kindI64
	kindF64
)

var kindNames = []string{"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "text", "array", "u64", "i64", "f64"}

func (k kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("type %d", uint32(k))
}

// size is the number of bytes in a value of fixed size, 0 for other kinds.
func (k kind) size() uint64 {
	switch k {
	case kindU8, kindI8, kindBool:
		return 1
	case kindU16, kindI16:
		return 2
	case kindU32, kindI32, kindF32:
		return 4
	case kindU64, kindI64, kindF64:
		return 8
	}
	return 0
}

// value is a value as stored in the file: a scalar, or the elements of an array.
type value struct {
	kind  kind
	array bool
	count int
	data  []byte // strings are preceded by their lengths
}

func (v value) String() string {
	if v.array {
		return fmt.Sprintf("an array of %d × %s", v.count, v.kind)
	}
	return v.kind.String()
}

// value reads a value and checks that it is complete.
func (r *reader) value() (value, error) {
	v := value{kind: kind(r.u32()), count: 1}
	if v.kind == kindArray {
		v.array, v.kind = true, kind(r.u32())
		n := r.u64()
		if r.err == nil && n > uint64(len(r.data)) { // an element takes at least a byte
			return v, fmt.Errorf("an array of %d elements in a file of %d bytes", n, len(r.data))
		}
		v.count = int(n)
	}
	if r.err != nil {
		return v, r.err
	}
	switch size := v.kind.size(); {
	case v.kind == kindText:
		from := r.at
		for range v.count {
			r.bytes(r.u64())
			if r.err != nil {
				return v, r.err
			}
		}
		v.data = r.data[from:r.at]
	case size > 0:
		v.data = r.bytes(uint64(v.count) * size)
	case v.kind == kindArray:
		return v, fmt.Errorf("an array of arrays, expected one of plain values")
	default:
		return v, fmt.Errorf("a value of %s, expected one of the types 0 to %d", v.kind, len(kindNames)-1)
	}
	return v, r.err
}

// Has reports whether the file has a key.
func (f *File) Has(key string) bool { _, ok := f.values[key]; return ok }

// Pairs returns all keys, sorted, with their values in a form that [WriteFile] writes
// unchanged. They are valid until Close.
func (f *File) Pairs() []Pair {
	var out []Pair
	for _, key := range slices.Sorted(maps.Keys(f.values)) {
		out = append(out, Pair{key, f.values[key]})
	}
	return out
}

// get returns a value that must be there.
func (f *File) get(key string, array bool, want string, kinds ...kind) (value, error) {
	v, ok := f.values[key]
	if !ok {
		return v, fmt.Errorf("key %q is missing", key)
	}
	if v.array == array {
		for _, k := range kinds {
			if v.kind == k {
				return v, nil
			}
		}
	}
	return v, fmt.Errorf("key %q: found %s, expected %s", key, v, want)
}

var integers = []kind{kindU8, kindI8, kindU16, kindI16, kindU32, kindI32, kindU64, kindI64}

// integer returns element i of a value of an integer type.
func (v value) integer(i int) int64 {
	switch d := v.data; v.kind {
	case kindU8:
		return int64(d[i])
	case kindI8:
		return int64(int8(d[i]))
	case kindU16:
		return int64(binary.LittleEndian.Uint16(d[2*i:]))
	case kindI16:
		return int64(int16(binary.LittleEndian.Uint16(d[2*i:])))
	case kindU32:
		return int64(binary.LittleEndian.Uint32(d[4*i:]))
	case kindI32:
		return int64(int32(binary.LittleEndian.Uint32(d[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(v.data[8*i:])) // negative from 2⁶³ on
}

// Uint returns a non-negative integer.
func (f *File) Uint(key string) (uint64, error) {
	v, err := f.get(key, false, "an integer", integers...)
	if err != nil {
		return 0, err
	}
	n := v.integer(0)
	if n < 0 {
		return 0, fmt.Errorf("key %q: %d is out of range", key, n)
	}
	return uint64(n), nil
}

// Float returns a number.
func (f *File) Float(key string) (float64, error) {
	v, err := f.get(key, false, "a number", kindF32, kindF64)
	if err != nil {
		return 0, err
	}
	return v.float(0), nil
}

func (v value) float(i int) float64 {
	if v.kind == kindF32 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.data[4*i:])))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(v.data[8*i:]))
}

// Bool returns true or false.
func (f *File) Bool(key string) (bool, error) {
	v, err := f.get(key, false, "a bool", kindBool)
	if err != nil {
		return false, err
	}
	return v.data[0] != 0, nil
}

// Text returns a string.
func (f *File) Text(key string) (string, error) {
	v, err := f.get(key, false, "text", kindText)
	if err != nil {
		return "", err
	}
	return string(v.data[8:]), nil
}

// Texts returns an array of strings. They share memory, which any of them keeps.
func (f *File) Texts(key string) ([]string, error) {
	v, err := f.get(key, true, "an array of texts", kindText)
	if err != nil {
		return nil, err
	}
	out := make([]string, v.count)
	text, at := string(v.data), 0 // one copy: vocabularies have some 100,000 strings
	for i := range out {
		from := at + 8
		at = from + int(binary.LittleEndian.Uint64(v.data[at:]))
		out[i] = text[from:at]
	}
	return out, nil
}

// Ints returns an array of integers.
func (f *File) Ints(key string) ([]int64, error) {
	v, err := f.get(key, true, "an array of integers", integers...)
	if err != nil {
		return nil, err
	}
	out := make([]int64, v.count)
	for i := range out {
		out[i] = v.integer(i)
	}
	return out, nil
}

// Bools returns an array of true and false.
func (f *File) Bools(key string) ([]bool, error) {
	v, err := f.get(key, true, "an array of bools", kindBool)
	if err != nil {
		return nil, err
	}
	out := make([]bool, v.count)
	for i := range out {
		out[i] = v.data[i] != 0
	}
	return out, nil
}

// Floats returns an array of numbers.
func (f *File) Floats(key string) ([]float64, error) {
	v, err := f.get(key, true, "an array of numbers", kindF32, kindF64)
	if err != nil {
		return nil, err
	}
	out := make([]float64, v.count)
	for i := range out {
		out[i] = v.float(i)
	}
	return out, nil
}
