// Package testmem lays out memory for tests of assembly routines, so that a
// routine that reads or writes one byte too far is caught.
//
// A buffer placed at the [End] or [Start] of its memory borders on an unreadable
// page: a stray access faults instead of going unnoticed. A buffer placed [Between]
// has guard bytes on both sides, which [Buffer.Check] compares. Where the operating
// system offers no page protection, all three places have only guard bytes.
//
// Buffers belong to the test that asked for them and are freed when it ends.
package testmem
