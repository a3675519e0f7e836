// Package arena hands out blocks of one size from memory outside the Go heap, so
// that freed memory leaves the process without waiting for a garbage collection,
// and what is reported is what is held.
//
// An [Arena] maps slabs of anonymous memory and cuts them into blocks. Blocks
// are reference-counted: [Arena.Alloc] returns blocks with one reference,
// [Arena.Ref] adds one, [Arena.Unref] removes one and frees the block with the
// last. Freed blocks are reused first. Only a small reserve of them stays in
// memory ([Reserve]); the rest goes back to the operating system at once: free
// slabs are unmapped, and other freed blocks lose every memory page that no block
// in use touches.
//
// [Arena.Expect] makes writing many blocks for the first time faster. An arena of
// [NewHuge] trades release for speed: it returns memory only in huge pages.
//
// # Lifetime and concurrency
//
// All methods are safe for concurrent use. A block's bytes belong to whoever
// holds references to it; the arena touches them only in Alloc, to zero them, and
// after the last Unref. Blocks and every slice or pointer into them are invalid
// after that, and after Close: touching them may be a fault that Go cannot recover
// from.
//
// # Limits
//
// On systems whose mappings cannot be released in parts (everything but Linux,
// macOS and the BSDs) slabs come from the Go heap, and memory is given back slab
// by slab, to the garbage collector.
package arena
