// Package kvcache holds the keys and values of a transformer's attention: a
// cache in which every KV head of every layer has exactly its own number
// of entries.
//
// # What it is
//
// A [Cache] has Layers × KVHeads heads. Each head is a list of pages of
// [Options.PageEntries] entries; an entry is a key (after RoPE), a value and
// the position of its token in the text. Positions ascend within a head and
// never change: an evicted entry leaves a gap in the positions, not in memory.
//
//   - [Cache.Append] adds entries at the end.
//   - [Cache.Keep] evicts: survivors move together, and empty pages are freed
//     at once.
//   - [Cache.DropBefore] drops entries that a sliding window has passed.
//   - [Cache.Truncate] goes back to an earlier position.
//   - [Cache.Fork] makes a second cache that shares all pages until one of the
//     two changes them.
//   - [Cache.Save] and [File.Load] write and read a cache as one checksummed file,
//     [Cache.SaveFile] and [LoadFile] by name.
//
// Kernels read pages in place ([Cache.View]); all other code reads copies, with
// elements as float32 ([Cache.Keys], [Cache.Values], [Cache.Positions]).
//
// # Slots
//
// The entries of a head are numbered 0 … Len-1 in order; Keys, Values and Keep
// use these numbers. Attention kernels split their sums at multiples of a block
// of logical slots, which must not depend on whether a window's old entries
// are still there: entry 0 has the logical slot [Cache.Base], the number of
// entries before it that DropBefore removed. A Keep that removes anything
// renumbers logical slots from 0.
//
// # Memory
//
// Pages are outside the Go heap and are shared by a family: a cache made by
// New or Load and all its forks. [Cache.Bytes] counts whole pages, positions
// included. Freed pages go back to the operating system except for a reserve of
// at most 1 MiB per family. [Cache.Close] returns everything; a cache that is not
// closed leaks its pages, since the garbage collector does not see them. Page
// lists (32 bytes a page) are on the Go heap and not counted, see [Stats].
//
// # Devices
//
// With [Options.Device] the pages of the first layers are on an accelerator, and
// results are identical to the host's, bit for bit. Files are the same. The host
// keeps the positions of the entries, 4 bytes each, and all bookkeeping, so that
// only keys and values are ever fetched. Eviction and copy-on-write run on the
// device.
//
// A pass that computes keys and values on the device makes room for them with
// [Cache.Reserve] and finds the pages through [Cache.Table]; change a head only
// while no pass reads it. Append copies whole pages from the host. Keys and
// Values copy to the host, some MiB at a time, and View copies a whole head: it
// is for metrics that have no kernel on the device, for tests and for moving.
//
// Device errors are [kernels.ErrDeviceMemory], after which nothing has changed,
// and [kernels.ErrDeviceLost], after which the pages on the device are gone:
// close the cache. Methods without an error result report them through
// [Cache.Err].
//
// # Concurrency
//
// A cache belongs to one goroutine at a time, with two exceptions: Append, Keep,
// Reserve and Table may run concurrently on different heads, and any number of
// reading methods and Fork may run concurrently while nothing changes. Bytes,
// PoolStats and Err may be called at any time. The caches of one family do not
// affect each other and may be used from different goroutines.
//
// Slices that a method returns belong to the caller, except those of View.
// Methods that take a layer and a head and return no error panic if one of them
// is out of range, as indexing does.
//
// # Checks
//
// [Cache.Check] verifies the structure of a cache. With the environment
// variable LUKV_CHECK set to 1 when the program starts, every change is checked
// and a contradiction panics. A check takes time proportional to the length.
//
// # Limits
//
// Element types as [ParseType] reads them. HeadDim even, 2 to 512. Positions are below
// 2³¹. Values beyond the range of F16 become infinities, which kernels then
// process by IEEE arithmetic. On systems other than Linux, macOS and the BSDs,
// pages come from the Go heap in slabs and freed memory leaves the process only
// when the garbage collector returns it.
package kvcache
