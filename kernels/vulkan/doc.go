// Package vulkan runs the operations of package kernels on a GPU through Vulkan
// 1.3 compute, without cgo.
//
// # What it is
//
// [Devices] lists what the system has, [Open] opens one as a [Device]: its
// memory, its compiled shaders, and one queue with one timeline. [Buffer] is
// device memory, [View] a part of it, [Rows] and [Weights] give views a shape.
// Operations are methods of [Commands], a list that is recorded once and
// submitted as often as wanted. A cache lies in pages as [Layout] describes;
// [Heads] says where a layer's pages are, [Work] what its attention has to do.
//
//	d, err := vulkan.Open("", vulkan.Options{})
//	defer d.Close()
//	err = d.Run(ctx, func(c *vulkan.Commands) {
//		c.RMSNorm(xn, x, norm, 1e-5)
//		c.MatMul(xn, false, vulkan.Product{W: wq, Dst: q}, vulkan.Product{W: wk, Dst: k})
//	})
//
// # How a forward pass uses it
//
// A pass of N rows over L layers needs, made once: activations (Rows for N
// rows), a table of Heads and a list of Work per layer, and host buffers for
// token numbers, RowInfo and turns (cosines and sines, which the host computes so
// that they are those of the CPU). It is recorded as Embed and, per layer,
// RMSNorm, MatMul of q, k and v, RopeAppend, Attention, MatMul of o with add,
// RMSNorm, MatMul of gate and up, SwiGLU, MatMul of down with add; at the end
// RMSNorm, MatMul of the head, Argmax. With activations of type BF16 between the
// steps it is the bf16 precision of package kernels, with F32 the other.
//
// Decoding records one list per number of rows, with Partials so that every
// block of 256 slots is a workgroup of its own, and submits it for every token.
// Between submissions the host writes what has changed, all of it in host
// buffers: the token numbers, the rows, the turns, [Heads.Set] with the new
// lengths (and new page tables where a page was added), [Work.Fill]. Lengths,
// and with them the number of workgroups, are read when the commands run. That
// allocates nothing. Prefill records a list per chunk, without Partials.
//
// Metrics come between layers of a prefill: Moments on q before RopeAppend;
// ColumnSums on the last rows, or on all of them, after Attention with Stats;
// then SnapKV, KeyDiff, ExpectedAttention or norms write scores, which the host
// reads back, ranks, and answers with moves for Compact. Pages that become empty
// can be used again by commands that are submitted later.
//
// # Arithmetic
//
// All sums are f32 in an order that each shader states. The bits of a row depend
// on its own operands alone: not on the number of rows, on how rows are cut into
// calls, on what else is in the batch, nor on Partials. That holds on one device
// with one driver. Devices differ in whether they fuse multiply and add, in
// division, square roots and subnormal numbers; each operation states its bound
// against package kernels. Infinities and NaN in operands may or may not arrive
// in the result.
//
// # Lifetime and concurrency
//
// A Device is safe for concurrent use; Commands, Heads and Work belong to one
// goroutine at a time. Work runs in the order of submission. A buffer must not be
// freed, and a host buffer not be written, while submitted work uses it: wait for
// its ticket. Close gives back everything, also what was not freed.
//
// # Errors
//
// Without a loader, a driver or a usable device: ErrNoVulkan. Memory that does
// not suffice: an [OutOfMemoryError] with the numbers, and nothing has changed.
// A device that stops working: ErrDeviceLost, from the call that found out and
// from all later ones; the process goes on, and Close and Open start afresh.
// Software devices are used only when they are asked for.
//
// # Limits
//
// Linux, macOS (through a Vulkan loader and MoltenVK) and Windows on amd64 and
// arm64; elsewhere the package is empty. Head dimensions are multiples of 8 up to
// 256. Matrix products do not use matrix units: the shader compilers at hand know
// no KHR_cooperative_matrix, and its order of sums would have to hold for single
// rows as well. A sum over K is cut into blocks of 2048.
//
// The shaders are GLSL in shaders/, committed with the SPIR-V made from them;
// go generate compiles them again and a test compares both with the manifest.
package vulkan
