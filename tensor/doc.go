// Package tensor describes arrays of numbers as stored in memory or in a file:
// element types, shapes and views.
//
// A Tensor is a view: a type, a shape and bytes that it does not own. Its
// elements are stored row by row (the last dimension varies fastest),
// little-endian, without gaps, on every host. Copying a Tensor copies the view,
// never the elements.
//
// # Lifetime
//
// The bytes of a tensor that was read from a file are usually the file's
// mapping. They may be read until the file is closed but never written: the
// mapping is read-only and a write faults. After the file is closed no view of it,
// including the slices returned by F32s and U16s, may be used. Views of
// allocated memory (Make) have no such limit.
//
// # Concurrency
//
// Nothing in this package has state. Any number of goroutines may read a
// tensor at the same time.
//
// # Limits
//
// There are no strides and no arithmetic. The float types of 8 bits or fewer and the
// complex type can be named, measured and copied, but not converted.
package tensor
