// Package vulkan runs the operations of package kernels on a GPU through Vulkan
// 1.3 compute, without cgo.
//
// # Use
//
// Importing the package registers the driver "vulkan" with package kernels, through
// whose interfaces it is used:
//
//	import _ "github.com/lukv/lukv/kernels/vulkan"
//
//	d, err := kernels.OpenDevice("vulkan:0")
//
// [Devices] and [Open] do the same directly, with [Options]. A [Device] is a
// [kernels.Device]: its memory, its compiled shaders, and one queue with one timeline. A
// selector is a device's index, its UUID, or a part of exactly one name; the empty selector
// takes the best hardware device. Software devices are used only when asked for.
//
// # How lists run
//
// Operations are recorded into commands once and submitted as often as needed. The host writes in
// place whatever changes between runs: shared buffers, and in an
// attention's state the rows' places, page tables, and per layer a table of heads and the
// work list of attention, which give the length of every head. The commands read the numbers of
// workgroups from there when they run. Decoding therefore records one list for each
// number of rows, and a decode step allocates nothing.
//
// Attention of few rows is split: every block of 256 slots has its own workgroup, which
// writes a partial result (memory for these grows as heads do, up to 128 MiB; beyond that,
// and for many rows, a workgroup loops over the blocks of its rows). Long lists are
// divided into parts, of which at most two are in flight, so that a run can be cancelled and
// no submission takes long.
//
// # Memory
//
// Device memory is taken in blocks of up to 256 MiB, host memory in blocks of 4 MiB,
// and handed out in pieces. Freed pieces are reused by work that is submitted later;
// empty blocks, except for the last one, go back to the driver when the device is done
// with them. A pool of pages takes 1 MiB at a time, which goes back with its last
// page. Copies pass through a ring of two 4 MiB slots; pages that are read or written
// together share a slot.
//
// # Arithmetic
//
// All sums are f32 in an order that each shader states. The bits of a row depend
// only on its own operands: not on the number of rows, on how rows are divided into
// calls, on what else is in the batch, or on whether attention is split. That
// holds for one device with one driver. Devices differ in whether they fuse multiply
// and add, and in division, square roots and subnormal numbers; each operation states
// its bound against package kernels. A value halfway between two bf16 numbers, or
// nearly so, may be rounded differently than on the CPU. Infinities and NaN in
// operands may or may not propagate to the result.
//
// Weights in blocks of integers stay as they are in the file, in rows of multiples of 16 bytes.
// Products widen eight at a time in registers, with the values that tensor.Type.Widen gives, and
// take activations as they are.
//
// Entries of 8 bits have the integers and scales of the processor if keys and values have the same
// bits (kernels.PageRows; quotients are rounded by integer arithmetic, whatever the device's division
// does). Attention and reductions widen them in registers, as elements that are rounded once, and
// take queries as they are.
//
// Products with experts have the order of sums of other products of plain shaders. Where an
// expert has several rows on average, a shader sorts the rows by expert when the list runs, and
// a workgroup takes a tile of those of one; which rows share a tile changes no bit. Matrix
// units are not used for them.
//
// Products sum in blocks of 2048 columns, except those of bf16 buffers by bf16 weights.
// If a device has matrix units for them (cooperative matrices of a subgroup, bf16 summed in f32), these are used for
// every number of rows, from one up: K is divided into blocks of 512, a block is one
// chain of steps of 8 or 16 columns, ascending from zero, and the blocks are added in
// f32, ascending. The order of sums within a step is up to the unit. Opening a device
// therefore tests whether tiles of all sizes give the same bits, within the bound of
// the plain shaders; if not, those are used. Device.Info gives the decision and
// the reason. Options.Matrices, or the environment variable LUKV_VULKAN_MATRICES, switches
// matrix units off.
//
// # Lifetime and concurrency
//
// A Device is safe for concurrent use, and so are its pools; an encoder with its lists
// belongs to one goroutine at a time, as do an attention and a page table. Work runs in the order of
// submission. Close releases everything, including memory that was not freed.
//
// # Errors
//
// Without a loader, a driver or a usable device: kernels.ErrNoDevice. If memory does
// not suffice: an error with the numbers, which is a kernels.ErrDeviceMemory, and
// nothing has changed. If a device stops working: kernels.ErrDeviceLost, from the call
// that detects it and from all later ones; the process continues, and Close and Open
// start afresh.
//
// # Limits
//
// Linux, macOS (through a Vulkan loader and MoltenVK) and Windows on amd64 and
// arm64; elsewhere the package is empty. Head dimensions are multiples of 4 up to
// 256; in pages they are rounded up to a multiple of 8. Pages have 16 to 1024
// entries, a power of two. Matrix units are used in steps of up to 16×16×16 elements,
// only by products of bf16. Where a device has none for bf16, as Mesa's software device,
// tests use the same shader, compiled for f16.
//
// Mesa's llvmpipe silently ends the loops of a shader after 65,535 rounds in all.
// Attention that would need more, over some 20,000 to 50,000 entries, is refused there
// unless there is memory to split it. No other shader loops over a context:
// for models of eight billion parameters, in chunks of 512, they need some 11,000 rounds.
//
// The shaders are GLSL in shaders/, committed together with the SPIR-V made from them;
// go generate recompiles them (those for matrix units need a newer glslc, see
// shaders/generate), and a test compares both with the manifest.
package vulkan
