// Package testmem lays out memory for tests of assembly routines, so that a
// routine which reads or writes one byte too far is found out.
//
// A buffer placed at the [End] or [Start] of its memory touches a page that
// may not be read: a stray access is a fault instead of a lucky read. A buffer
// placed [Between] has guard bytes on both sides, which [Buffer.Check] compares. Where
// the operating system offers no page protection, all three places have guard
// bytes only.
//
// Buffers belong to the test that asked for them and are gone when it ends.
package testmem
