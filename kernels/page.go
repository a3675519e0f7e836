package kernels

import (
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
// Unused places hold finite numbers. Devices arrange pages as they like.
type PageLayout struct {
	Type        tensor.Type // F32, F16 or BF16
	HeadDim     int
	PageEntries int // a multiple of TileEntries
}

// TileEntries is the number of entries in a key tile. Inside a tile the keys are
// transposed, so that a vector register holds the same element of 16 keys.
const TileEntries = 16

// ValuesAt is the offset of the values in bytes.
func (l PageLayout) ValuesAt() int { return l.Type.Bytes(l.PageEntries * l.HeadDim) }

// PositionsAt is the offset of the positions in bytes.
func (l PageLayout) PositionsAt() int { return 2 * l.ValuesAt() }

// Bytes is the size of a page.
func (l PageLayout) Bytes() int { return l.PositionsAt() + 4*l.PageEntries }

// KeyElement is the index, from the start of the keys, of the first element of
// an entry's key; the others follow at distances of TileEntries.
func (l PageLayout) KeyElement(entry int) int {
	return entry&^(TileEntries-1)*l.HeadDim + entry&(TileEntries-1)
}

// ValueElement is the index, from the start of the values, of the first element
// of an entry's value; the others follow.
func (l PageLayout) ValueElement(entry int) int { return entry * l.HeadDim }

// Page points to the keys and the values of a page; see [PageLayout].
type Page struct {
	K, V unsafe.Pointer
}

// KV is the view of one KV head that attention reads. It does not copy the entries.
type KV struct {
	Type        tensor.Type // F32, F16 or BF16
	HeadDim     int
	PageEntries int // multiple of TileEntries
	Base        int // logical slot of the first entry of Pages[0]; a multiple of PageEntries
	Pages       []Page
}

// key returns the start of the key tile of a logical slot, value the start of its value.
func (kv *KV) key(slot int) unsafe.Pointer {
	slot -= kv.Base
	tile := slot % kv.PageEntries &^ (TileEntries - 1)
	return unsafe.Add(kv.Pages[slot/kv.PageEntries].K, kv.Type.Bytes(tile*kv.HeadDim))
}

func (kv *KV) value(slot int) unsafe.Pointer {
	slot -= kv.Base
	return unsafe.Add(kv.Pages[slot/kv.PageEntries].V, kv.Type.Bytes(slot%kv.PageEntries*kv.HeadDim))
}
