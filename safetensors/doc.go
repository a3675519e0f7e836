// Package safetensors reads and writes the safetensors format: an 8-byte
// little-endian length, a JSON header of that length which gives each tensor a
// name, an element type, a shape and a byte range, and then the bytes.
//
// A File is one such file. A Checkpoint is the contents of a model folder: a file
// model.safetensors, or several shards and an index that assigns each tensor to
// one. Tensors are views of the file's mapping, so opening takes only the time to
// check the headers. Write and WriteFile write files and can stream tensors.
//
// # Strictness
//
// Everything in a header is checked before a File is returned: the JSON, with
// nothing after it but white space; names, which must be unique even if spelled
// with different escapes; element types; shapes and byte ranges, computed
// without overflow; and that the ranges cover the data exactly, without gaps or
// overlap. Unknown fields of a tensor's entry are skipped. Nothing is allocated
// in proportion to a number that a file merely claims. An index may name only
// files inside its own folder.
//
// # Lifetime and concurrency
//
// Tensors of an opened File or Checkpoint are valid until its Close and must
// not be written (see package tensor and its notes on mapped memory). Those of
// Parse share the given bytes and are valid as long as they are.
// Files and checkpoints do not change once opened and may be used by any number
// of goroutines; Close must come after their last use and may be called twice.
//
// # Limits
//
// Headers and index files are at most 100 MB (10^8 bytes), tensors have at most 64
// dimensions, JSON nests at most 64 deep. Tensors with elements smaller than a byte
// must end on a byte boundary.
package safetensors
