// Package arena hands out blocks of one size from memory that the Go heap does
// not know, so that what is freed leaves the process instead of waiting for a
// garbage collection, and what is reported is what is held.
//
// An [Arena] maps slabs of anonymous memory and cuts them into blocks. Blocks
// are reference-counted: [Arena.Alloc] returns blocks with one reference,
// [Arena.Ref] adds one, [Arena.Unref] takes one away and frees the block with
// the last. Freed blocks are used again first. Only a small reserve of them
// stays in memory ([Reserve]); the rest goes back to the operating system at
// once: whole slabs are unmapped, other blocks lose every memory page of the
// system that no living block touches.
//
// An arena of [NewHuge] trades the latter for speed: memory leaves it by large pages.
//
// # Lifetime and concurrency
//
// All methods are safe for concurrent use. A block's bytes belong to whoever
// holds references to it; the arena reads and writes them only in Alloc (zeros)
// and after the last Unref. Blocks and every slice or pointer into them are
// invalid after that, and after Close: touching them is a fault that Go cannot
// recover from.
//
// # Limits
//
// On systems without a mapping that can be released in parts (everything but
// Linux, macOS and the BSDs) slabs come from the Go heap and memory is given
// back slab by slab, to the garbage collector.
package arena
