// Package kvcache holds the keys and values of a transformer's attention: a
// cache in which every KV head of every layer has exactly its own number
// of entries.
//
// # What it is
//
// A [Cache] has Layers × KVHeads heads. Each head is a list of pages of
// [Options.PageEntries] entries; an entry is a key (after RoPE), a value and
// the position of its token in the text. Positions ascend within a head and
// never change: what was evicted leaves a gap in the positions, not in memory.
//
//   - [Cache.Append] adds entries at the end.
//   - [Cache.Keep] evicts: survivors move together, and empty pages are freed
//     at once.
//   - [Cache.DropBefore] drops what a sliding window has passed.
//   - [Cache.Truncate] goes back to an earlier position.
//   - [Cache.Fork] makes a second cache that shares all pages until one of the
//     two changes them.
//   - [Cache.Save] and [Load] keep a cache in one checksummed file, [SaveFile]
//     and [LoadFile] by name.
//
// Kernels read pages in place ([Cache.View]); all other code reads copies in
// float32 ([Cache.Keys], [Cache.Values], [Cache.Positions]).
//
// # Slots
//
// The entries of a head are numbered 0 … Len-1 in order; Keys, Values and Keep
// use these numbers. Attention kernels cut their sums at multiples of a block
// of logical slots, which must not depend on whether a window's old entries
// are still there: entry 0 has the logical slot [Cache.Base], the number of
// entries that DropBefore removed in front of it. A Keep that removes anything
// numbers logical slots anew from 0.
//
// # Memory
//
// Pages lie outside the Go heap and are shared by a family: a cache made by
// New or Load and all its forks. The bytes that [Cache.Bytes] reports are
// whole pages, positions included. Freed pages go back to the operating system
// except for a reserve of at most 1 MiB per family. [Cache.Close] returns
// everything; a cache that is not closed leaks its pages, since the garbage
// collector does not see them. Lists of pages (32 bytes a page) are on the Go
// heap and not counted, see [Stats].
//
// # Devices
//
// With [Options.Device] the pages of the first layers are on an accelerator, and
// everything works as on the host, to the bit. Files are the same. The host
// keeps the positions of the entries, 4 bytes each, and all bookkeeping, so that
// only keys and values are ever fetched. Eviction and copy-on-write run on the
// device.
//
// A pass that computes keys and values on the device takes room for them with
// [Cache.Reserve] and finds the pages through [Cache.Table]; change a head only
// while no pass reads it. Append copies from the host, page by page. Keys and
// Values copy to it, some MiB at a time, and View copies a whole head: it is for
// metrics that have no kernel on the device, for tests and for moving.
//
// Errors of a device are [kernels.ErrDeviceMemory], after which nothing has
// changed, and [kernels.ErrDeviceLost], after which the pages on the device are
// gone: close the cache. Methods without an error result leave them to
// [Cache.Err].
//
// # Concurrency
//
// A cache belongs to one goroutine at a time, with two exceptions: Append and
// Keep of different heads may run at the same time, as may Reserve and Table,
// and so may any number of reading methods and Fork while nothing changes. Bytes,
// PoolStats and Err may be called at any time. The caches of one family do not affect
// each other and may be used from different goroutines.
//
// Slices that a method returns belong to the caller, except those of View.
// Methods that take a layer and a head and return no error panic when one of
// them is out of range, as an index does.
//
// # Checks
//
// [Cache.Check] verifies the structure of a cache. With the environment
// variable LUKV_CHECK set to 1 when the program starts, every change is checked
// and a contradiction panics. That costs time in proportion to the length.
//
// # Limits
//
// Element types F32, F16 and BF16. HeadDim even, 2 to 512. Positions are below
// 2³¹. Values beyond the range of F16 become infinities; a kernel that reads
// them gets what IEEE arithmetic makes of it. On systems other than Linux,
// macOS and the BSDs, pages come from the Go heap in slabs and freed memory
// leaves the process only when the garbage collector returns it.
package kvcache
