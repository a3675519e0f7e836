package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTypes(t *testing.T) {
	bits := map[Type]int{F32: 32, F16: 16, BF16: 16, F64: 64, I64: 64, I32: 32, I16: 16, I8: 8,
		U64: 64, U32: 32, U16: 16, U8: 8, Bool: 8, F8E4M3: 8, F8E5M2: 8,
		F8E4M3FNUZ: 8, F8E5M2FNUZ: 8, F8E8M0: 8, C64: 64, F4: 4, F6E2M3: 6, F6E3M2: 6}
	require.Len(t, bits, int(F6E3M2))
	for typ, n := range bits {
		assert.Equal(t, n, typ.Bytes(8), typ.String())
		if n%8 != 0 {
			assert.Panics(t, func() { typ.Bytes(1) }, typ.String())
		}
		got, err := ParseType(typ.String())
		require.NoError(t, err)
		assert.Equal(t, typ, got)
	}
	for _, name := range []string{"", "f32", "F5", "Type(0)", "F32 "} {
		_, err := ParseType(name)
		assert.Error(t, err, name)
	}
	assert.False(t, Type(0).Valid())
	assert.Zero(t, Type(0).Bytes(1))
	assert.Equal(t, "Type(200)", Type(200).String())
}

// TestTypesOfLessThanAByte: whole tensors have a size in bytes, rows need not have one.
func TestTypesOfLessThanAByte(t *testing.T) {
	for _, c := range []struct {
		typ   Type
		shape []int
		bytes int // -1: error
	}{
		{F4, nil, -1}, {F4, []int{0}, 0}, {F4, []int{2}, 1}, {F4, []int{3}, -1}, {F4, []int{2, 3}, 3},
		{F6E2M3, []int{4}, 3}, {F6E3M2, []int{2, 2}, 3}, {F6E3M2, []int{2}, -1},
		{F4, []int{math.MaxInt - 1}, (math.MaxInt - 1) / 2},
	} {
		n, err := Bytes(c.typ, c.shape)
		if c.bytes < 0 {
			assert.Error(t, err, "%v%v", c.typ, c.shape)
			continue
		}
		require.NoError(t, err, "%v%v", c.typ, c.shape)
		assert.Equal(t, c.bytes, n, "%v%v", c.typ, c.shape)
	}
	x := Make(F6E2M3, 4, 2)
	assert.Len(t, x.Data, 6)
	assert.Equal(t, 8, x.Len())
	assert.Panics(t, func() { x.Row(0) })
	assert.Panics(t, func() { x.Float32s(nil) })
}

func TestCountAndBytes(t *testing.T) {
	cases := []struct {
		shape []int
		count int // -1: error
		bytes int // as F32; -1: error
	}{
		{nil, 1, 4},
		{[]int{0}, 0, 0},
		{[]int{3, 0}, 0, 0},
		{[]int{2, 3, 4}, 24, 96},
		{[]int{-1}, -1, -1},
		{[]int{-2, -2}, -1, -1},
		{[]int{math.MaxInt}, math.MaxInt, -1},
		{[]int{math.MaxInt, 2}, -1, -1},
		{[]int{math.MaxInt/4 + 1}, math.MaxInt/4 + 1, -1},
		{[]int{math.MaxInt/2 + 1, 4}, -1, -1}, // the product is 0 modulo 2^64
	}
	for _, c := range cases {
		n, err := Count(c.shape)
		b, berr := Bytes(F32, c.shape)
		if c.count < 0 {
			assert.Error(t, err, c.shape)
		} else {
			assert.NoError(t, err)
			assert.Equal(t, c.count, n)
		}
		if c.bytes < 0 {
			assert.Error(t, berr, c.shape)
		} else {
			assert.NoError(t, berr)
			assert.Equal(t, c.bytes, b)
		}
	}
	_, err := Bytes(0, nil)
	assert.Error(t, err)
}

func TestNewRefusesWrongSize(t *testing.T) {
	_, err := New(F16, []int{2, 3}, make([]byte, 11))
	assert.EqualError(t, err, "F16[2, 3]: got 11 bytes, expected 12")
	x, err := New(F16, []int{2, 3}, make([]byte, 12))
	require.NoError(t, err)
	assert.Equal(t, 6, x.Len())
	assert.Equal(t, "F16[2, 3]", x.String())
	assert.True(t, x.HasShape(2, 3))
	assert.False(t, x.HasShape(3, 2))
	assert.False(t, x.HasShape(2))
	assert.True(t, Tensor{}.IsZero())
	assert.Zero(t, Tensor{}.Len())
	assert.False(t, x.IsZero())
}

func TestRowsAndValues(t *testing.T) {
	values := []float32{0, 1, -2, 3.5, 1e-3, -65504}
	for _, typ := range []Type{F32, F16, BF16} {
		x := FromF32s(typ, values, 2, 3)
		got := x.Float32s(nil)
		for i, v := range values {
			want := v
			switch typ {
			case F16:
				want = F16ToF32(F32ToF16(v))
			case BF16:
				want = BF16ToF32(F32ToBF16(v))
			}
			assert.Equal(t, want, got[i], "%v element %d", typ, i)
			assert.InEpsilon(t, float64(v)+1e-30, float64(want)+1e-30, 1.0/128)
		}
		row := x.Row(1)
		assert.Equal(t, []int{3}, row.Shape)
		assert.Equal(t, got[3:], row.Float32s(nil))
		assert.Equal(t, len(row.Data), cap(row.Data))
		assert.Panics(t, func() { x.Row(2) })
		assert.Panics(t, func() { x.Row(-1) })
	}
	assert.Panics(t, func() { Make(F32).Row(0) })
	assert.Panics(t, func() { FromF32s(I64, values, 6) })
	assert.Panics(t, func() { FromF32s(F32, values, 5) })
	assert.Panics(t, func() { Make(F32, -1) })

	d := Tensor{Type: F64, Shape: []int{1}, Data: []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}}
	assert.Equal(t, []float32{1.5}, d.Float32s(nil))
	buf := make([]float32, 8)
	out := d.Float32s(buf)
	assert.Same(t, &buf[0], &out[0])
}

func TestViewsAndUnalignedCopies(t *testing.T) {
	x := FromF32s(F32, []float32{1, 2, 3}, 3)
	v := x.F32s()
	assert.Equal(t, []float32{1, 2, 3}, v)
	if littleEndian {
		x.Data[3] = 0x40 // 1.0 = 0x3f800000 becomes 3.0 with byte 2 changed, too
		x.Data[2] = 0x40
		assert.Equal(t, float32(3), v[0], "an aligned view shares the memory")
	}
	for off := 1; off < 8; off++ {
		raw := alignedBytes(off + 12)[off:]
		copy(raw, FromF32s(F32, []float32{1, 2, 3}, 3).Data)
		y, err := New(F32, []int{3}, raw)
		require.NoError(t, err)
		assert.Equal(t, []float32{1, 2, 3}, y.F32s(), "offset %d", off)
		h := Tensor{Type: BF16, Shape: []int{6}, Data: raw}
		assert.Equal(t, []uint16{0, 0x3f80, 0, 0x4000, 0, 0x4040}, h.U16s(), "offset %d", off)
	}
	assert.Empty(t, Make(F32, 0).F32s())
	assert.Panics(t, func() { Make(F16, 1).F32s() })
	assert.Panics(t, func() { Make(F32, 1).U16s() })
	assert.Panics(t, func() { Make(F8E4M3, 1).Float32s(nil) })
}

func TestInt64s(t *testing.T) {
	ff := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	want := map[Type]int64{I64: -1, U64: -1, I32: -1, U32: math.MaxUint32, I16: -1,
		U16: math.MaxUint16, I8: -1, U8: 255, Bool: 255}
	for typ, w := range want {
		x := Tensor{Type: typ, Shape: []int{1}, Data: ff[:typ.Bytes(1)]}
		assert.Equal(t, []int64{w}, x.Int64s(nil), typ.String())
	}
	x := FromI64s([]int64{5, -6}, 2)
	assert.Equal(t, []int64{5, -6}, x.Int64s(make([]int64, 0, 9)))
	assert.Panics(t, func() { Make(F32, 1).Int64s(nil) })
	assert.Panics(t, func() { FromI64s([]int64{1}, 2) })
}

// Every bfloat16 must survive a round trip through float32, and a float32 must
// round to the nearest one, ties to even.
func TestBF16(t *testing.T) {
	for h := range 1 << 16 {
		f := BF16ToF32(uint16(h))
		got := F32ToBF16(f)
		if math.IsNaN(float64(f)) {
			require.True(t, math.IsNaN(float64(BF16ToF32(got))))
			require.Equal(t, uint16(h)|0x40, got)
			continue
		}
		require.Equal(t, uint16(h), got)
		if h&0x7fff >= 0x7f7f {
			continue
		}
		lo := math.Float32bits(f) // and the next bfloat16 away from zero, 1<<16 later
		for _, d := range []uint32{1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			want := uint16(h)
			if d > 0x8000 || d == 0x8000 && h&1 == 1 {
				want++
			}
			require.Equal(t, want, F32ToBF16(math.Float32frombits(lo+d)), "%#x + %#x", h, d)
		}
	}
	assert.Equal(t, uint16(0x7f80), F32ToBF16(math.MaxFloat32), "rounds to infinity")
	// A payload only in the lower half must not turn a NaN into an infinity.
	assert.Equal(t, uint16(0x7fc0), F32ToBF16(math.Float32frombits(0x7f800001)))
	assert.Equal(t, uint16(0xffc0), F32ToBF16(math.Float32frombits(0xff80ffff)))
}

func TestF16(t *testing.T) {
	for h := range 1 << 16 {
		f := F16ToF32(uint16(h))
		if math.IsNaN(float64(f)) {
			require.True(t, math.IsNaN(float64(F16ToF32(F32ToF16(f)))))
			continue
		}
		require.Equal(t, uint16(h), F32ToF16(f))
	}
	cases := map[float32]uint16{65504: 0x7bff, 65519.996: 0x7bff, 65520: 0x7c00, 1: 0x3c00,
		1 + 1.0/2048: 0x3c00, 1 + 3.0/2048: 0x3c02, 5.9604645e-8: 1, 2.9802322e-8: 0, 2.9802326e-8: 1}
	for f, h := range cases {
		assert.Equal(t, h, F32ToF16(f), "%g", f)
	}
}

func TestShapeString(t *testing.T) {
	assert.Equal(t, "[]", ShapeString(nil))
	assert.Equal(t, "[1, 2, 3, 4, 5, 6, 7, 8, ... (9 dimensions)]", ShapeString([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}))
}
