// Package vk is a minimal binding of Vulkan 1.3 for compute, built on
// github.com/ebitengine/purego, without cgo.
//
// # What it is
//
// The package declares the structures and calls the functions that a compute
// backend needs, and nothing else: no surfaces, images, descriptors or
// graphics. A [Library] is the loader that was found on the system, an
// [Instance] lists [PhysicalDevice] values, and [PhysicalDevice.Open] makes a
// [Device] whose methods are Vulkan's device functions in Go style: they fill in
// the structures, and a failed call returns an [*Error].
//
// # Lifetime
//
// Handles are plain numbers and belong to whoever made them; nothing is freed by
// a finalizer. Children are destroyed before their parents. The library stays
// loaded until the process ends, because drivers keep threads.
//
// # Memory
//
// Whatever is passed to Vulkan in a call is Go heap memory, reached through typed
// or unsafe pointers. Vulkan never keeps a Go pointer after a call has returned.
// Memory that [Device.MapMemory] returns belongs to the driver and is valid until
// the memory is freed.
//
// # Concurrency
//
// Vulkan's own rules apply: a queue, a command pool with its buffers, and an object
// being destroyed belong to one goroutine at a time. Everything else may be called
// from any goroutine. A validation handler is called on whichever thread made the
// faulty call, possibly on several at once.
//
// # Limits
//
// Linux, macOS and Windows on amd64 and arm64; elsewhere the package is empty.
// A fault inside a driver ends the process without a Go traceback, so tests of
// drivers should be in separate test binaries.
package vk
