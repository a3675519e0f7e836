// Package mapfile gives read-only access to whole files as byte slices, mapped
// into memory where the system supports it and read into memory elsewhere.
//
// A File's bytes stay valid until Close and must never be written: on mapped
// files a write faults. After Close any access faults, so the owner must make
// sure that no slice of the bytes is still in use. If another process truncates
// a mapped file, reads beyond its new end fault as well: with
// runtime/debug.SetPanicOnFault in every goroutine that reads, that is a
// recoverable panic, even in assembly. Replacing a file by renaming another over
// it is safe.
//
// Bytes may be read from any number of goroutines. Close may be called at any
// time, by several goroutines, any number of times.
//
// Only regular files can be opened: a directory, pipe or device is an error.
// Mapped bytes start at a page boundary. Files larger than the address space
// are an error.
package mapfile
