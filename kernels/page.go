package kernels

import (
	"cmp"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// PageLayout describes the pages of a cache: PageEntries entries of one KV head,
// with keys and values of HeadDim elements and their positions. On the host a
// page is Bytes bytes, one part after another, little-endian:
//
//	keys       [PageEntries/TileEntries][HeadDim][TileEntries]
//	values     [PageEntries][HeadDim]
//	positions  [PageEntries] int32
//
// Integers of neighbouring elements of a key, and of one element of neighbouring entries, are
// side by side in pairs, as instructions multiply and add them. Their scales follow:
//
//	keys, I8      [PageEntries/TileEntries][HeadDim/2][TileEntries][2] int8
//	values, I8    [PageEntries/2][HeadDim][2] int8
//	keys, Q4_0    [PageEntries/TileEntries][HeadDim/2][TileEntries] pairs
//	values, Q4_0  [PageEntries/2][HeadDim] pairs
//	scales, I8    [PageEntries] float32
//	scales, Q4_0  [HeadDim/32][PageEntries] F16
//
// where a pair is a byte, q+8 of the even one in the low half. Unused places hold finite
// numbers. [PageRows] reads and writes entries. Devices arrange pages as they like.
type PageLayout struct {
	Type        tensor.Type // F32, F16 or BF16, or integers of I8 or Q4_0
	Values      tensor.Type // of values, if it is not Type
	HeadDim     int
	PageEntries int // a multiple of TileEntries
}

// TileEntries is the number of entries in a key tile. Inside a tile the keys are
// transposed, so that a vector register holds the same element of 16 keys.
const TileEntries = 16

// ValueType is the type of values.
func (l PageLayout) ValueType() tensor.Type { return cmp.Or(l.Values, l.Type) }

// rowBytes is the size of a key or value of d elements of type t, scales included.
func rowBytes(t tensor.Type, d int) int {
	if isInt(t) && !fourBits(t) {
		return t.Bytes(d) + 4
	}
	return t.Bytes(d)
}

// WithWideKeys returns the layout with keys of BF16 and values as they are.
func (l PageLayout) WithWideKeys() PageLayout {
	l.Type, l.Values = tensor.BF16, l.ValueType()
	return l
}

// KeyBytes is the size of a key, ValueBytes that of a value, scales included.
func (l PageLayout) KeyBytes() int { return rowBytes(l.Type, l.HeadDim) }

// ValueBytes is the size of a value, scales included.
func (l PageLayout) ValueBytes() int { return rowBytes(l.ValueType(), l.HeadDim) }

// ValuesAt is the offset of the values in bytes.
func (l PageLayout) ValuesAt() int { return l.PageEntries * l.KeyBytes() }

// PositionsAt is the offset of the positions in bytes.
func (l PageLayout) PositionsAt() int { return l.ValuesAt() + l.PageEntries*l.ValueBytes() }

// Bytes is the size of a page, rounded up to a multiple of 64.
func (l PageLayout) Bytes() int { return (l.PositionsAt() + 4*l.PageEntries + 63) &^ 63 }

// Page points to the keys and the values of a page; see [PageLayout].
type Page struct {
	K, V unsafe.Pointer
}

// KV is the view of one KV head that attention reads. It does not copy the entries.
type KV struct {
	Type        tensor.Type // F32, F16 or BF16, or integers of I8 or Q4_0
	Values      tensor.Type // of values, if it is not Type
	HeadDim     int
	PageEntries int // multiple of TileEntries
	Base        int // logical slot of the first entry of Pages[0]; a multiple of PageEntries
	Pages       []Page
}

func (kv *KV) valueType() tensor.Type { return cmp.Or(kv.Values, kv.Type) }

// key returns the start of the key tile of a logical slot, value the start of its value, or
// of the value of the pair of slots if values are integers.
func (kv *KV) key(slot int) unsafe.Pointer {
	slot -= kv.Base
	tile := slot % kv.PageEntries &^ (TileEntries - 1)
	return unsafe.Add(kv.Pages[slot/kv.PageEntries].K, cellBytes(kv.Type, tile*kv.HeadDim))
}

func (kv *KV) value(slot int) unsafe.Pointer {
	slot -= kv.Base
	t, entry := kv.valueType(), slot%kv.PageEntries
	if isInt(t) {
		entry &^= 1
	}
	return unsafe.Add(kv.Pages[slot/kv.PageEntries].V, cellBytes(t, entry*kv.HeadDim))
}
