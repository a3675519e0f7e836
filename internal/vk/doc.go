// Package vk is a minimal binding of Vulkan 1.3 for compute, over
// github.com/ebitengine/purego and without cgo.
//
// # What it is
//
// The package declares the structures and calls the functions that a compute
// backend needs, and nothing else: no surfaces, images, descriptors or
// graphics. A [Library] is the loader that was found on the system, an
// [Instance] gives [PhysicalDevice] values, and [PhysicalDevice.Open] makes a
// [Device] whose methods are Vulkan's device functions with Go's manners:
// structures are filled in here, a failed call is an [*Error].
//
// # Lifetime
//
// Handles are plain numbers and belong to whoever made them; nothing is freed by
// a finalizer. Children are destroyed before their parents. The library stays
// loaded until the process ends, because drivers keep threads.
//
// # Memory
//
// Whatever is handed to Vulkan during a call is Go heap memory, reached through
// typed or unsafe pointers. Vulkan never keeps a Go pointer after a call
// returned. Memory that [Device.MapMemory] returns belongs to the driver and
// is valid until the memory is freed.
//
// # Concurrency
//
// Vulkan's own rules hold: a queue, a command pool with its buffers, and an
// object under destruction belong to one goroutine at a time. Everything else may be called
// from any goroutine. A validation handler is called on whichever thread made
// the faulty call, perhaps on several at once.
//
// # Limits
//
// Linux, macOS and Windows on amd64 and arm64; elsewhere the package is empty.
// A fault inside a driver ends the process without a Go traceback, so programs
// that test drivers should be test binaries of their own.
package vk
