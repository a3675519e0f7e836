// Package gguf reads GGUF files, versions 2 and 3, little-endian: key-value
// metadata, and tensors in blocks of a few bits that dequantise to float32.
//
// [Open] maps a file and checks its whole header before it returns: names, types,
// counts, shapes, and that every tensor lies inside the file and overlaps no
// other. Nothing is allocated in proportion to a number that a file merely
// claims. Values are read by key ([File.Uint], [File.Text] and so on), tensors by
// name; [Tensor.Rows] returns rows as float32.
//
// # Lifetime and concurrency
//
// A File and its tensors may be used by any number of goroutines until Close.
// Returned strings and numbers are copies.
//
// # Limits
//
// Tensors of the types that are constants here are read; a file may hold others, but reading their
// rows is an error.
// Models in several files are opened by their first. Headers take at most 2²⁰ keys, 2²⁰ tensors and 256 MiB; arrays of arrays,
// big-endian files and version 1 are refused.
package gguf
