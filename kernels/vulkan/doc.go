// Package vulkan runs the operations of package kernels on a GPU through Vulkan
// 1.3 compute, without cgo.
//
// # What it is
//
// Importing the package registers the driver "vulkan" with package kernels, whose
// interfaces are how it is used:
//
//	import _ "github.com/lukv/lukv/kernels/vulkan"
//
//	d, err := kernels.OpenDevice("vulkan:0")
//
// [Devices] and [Open] are the same by hand, with [Options]. A [Device] is a
// [kernels.Device]: its memory, its compiled shaders, and one queue with one timeline. Its
// passes are [kernels.MetricPass]. A selector is a device's index, its UUID, or a
// part of exactly one name; without one the best device is taken that is no
// software. Software devices are used only when they are asked for.
//
// # How a pass works
//
// Operations are recorded into commands once and submitted as often as wanted. A
// pass keeps its activations on the device. What changes between runs lies in
// memory that the host writes in place: the residual stream that comes in, turns,
// the rows' places, page tables, and per layer a table of heads and the work list
// of attention, which say how long every head is. The numbers of workgroups are read from
// there when the commands run. So decoding records one list for each number of rows,
// and a step of it allocates nothing.
//
// A list of few rows splits attention: every block of 256 slots is a workgroup of
// its own, which leaves a partial result (memory for them grows as heads do, up to
// 128 MiB; beyond, and for many rows, a workgroup goes through the blocks of its
// rows). Long lists are cut into parts, of which at most two are under way, so that
// a run can be cancelled and no submission lasts long.
//
// With PassShape.BF16, ActNorm, ActAttention and ActInner are stored as bf16, and
// all matrices have to be bf16. Products write ActX, ActQ, ActK or ActV. With
// PassShape.AttentionBF16, RopeAppend rounds the queries where they lie, and attention
// its weights.
//
// # Memory
//
// Device memory is taken in blocks of up to 256 MiB, 4 MiB for memory of the host,
// and handed out in pieces. Freed pieces are used again by work that is submitted
// later; empty blocks go back to the driver, but for the last one, when the device is done
// with them. A pool of pages takes 1 MiB at a time, which goes back with its last
// page. Copies pass through a ring of two times 4 MiB; pages that are read or
// written together fill it together.
//
// # Arithmetic
//
// All sums are f32 in an order that each shader states. The bits of a row depend
// on its own operands alone: not on the number of rows, on how rows are cut into
// calls, on what else is in the batch, nor on whether attention is split. That
// holds on one device with one driver. Devices differ in whether they fuse multiply
// and add, in division, square roots and subnormal numbers; each operation states
// its bound against package kernels. What lies on the edge between two bf16 numbers
// may be rounded the other way than the processor rounds it. Infinities and NaN in
// operands may or may not arrive in the result.
//
// Products sum up in blocks of 2048 columns, but for those of bf16 by bf16, which are
// the products of passes with PassShape.BF16. Where a device has matrix units for
// them (cooperative matrices of a subgroup, bf16 summed up in f32), these are used for
// every number of rows, from one on: K is cut into blocks of 512, a block is one chain
// of steps of 8 or 16 columns, ascending from zero, and the blocks are added up in f32,
// ascending. How a unit adds up within a step is its own affair. So it is tried out when
// the device is opened whether tiles of all sizes give the same bits, within
// the bound of the plain shaders; if not, those are used. Device.Info says
// what was decided and why. Options.Matrices, or the environment variable
// LUKV_VULKAN_MATRICES, switches matrix units off.
//
// # Lifetime and concurrency
//
// A Device is safe for concurrent use, and so are its pools; a pass with its lists
// and a page table belong to one goroutine at a time. Work runs in the order of
// submission. Close gives back everything, also what was not freed.
//
// # Errors
//
// Without a loader, a driver or a usable device: kernels.ErrNoDevice. Memory that
// does not suffice: an error with the numbers, which is a
// kernels.ErrDeviceMemory, and nothing has changed. A device that stops working:
// kernels.ErrDeviceLost, from the call that found out and from all later ones; the
// process goes on, and Close and Open start afresh.
//
// # Limits
//
// Linux, macOS (through a Vulkan loader and MoltenVK) and Windows on amd64 and
// arm64; elsewhere the package is empty. Head dimensions are multiples of 4 up to
// 256; in pages they are rounded up to a multiple of 8. Pages have 16 to 1024
// entries, a power of two. Matrix units are used in steps of up to 16×16×16 elements,
// by products of bf16 alone. They have not run on a device that has them for bf16:
// tests use the same shader, compiled for f16, on Mesa's software device. How fast it is
// on hardware is not known.
//
// The shaders are GLSL in shaders/, committed with the SPIR-V made from them;
// go generate compiles them again (those for matrix units need a newer glslc, see
// shaders/generate) and a test compares both with the manifest.
package vulkan
