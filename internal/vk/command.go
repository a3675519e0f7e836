//go:build (linux || darwin || windows) && (amd64 || arm64)

package vk

import (
	"unsafe"

	"github.com/ebitengine/purego"
)

// CreateCommandPool makes a pool whose buffers can be re-recorded individually.
func (d *Device) CreateCommandPool() (CommandPool, error) {
	const resettable = 2
	info := &commandPoolInfo{head: head{typ: typeCommandPoolCreateInfo}, flags: resettable, family: d.Physical.queueFamily}
	var p CommandPool
	r, _, _ := purego.SyscallN(d.fn.createPool, d.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&p)))
	return p, check("vkCreateCommandPool", r)
}

// DestroyCommandPool destroys a pool and all its buffers.
func (d *Device) DestroyCommandPool(p CommandPool) {
	purego.SyscallN(d.fn.destroyPool, d.handle, uintptr(p), 0)
}

func (d *Device) AllocateCommandBuffer(p CommandPool) (CommandBuffer, error) {
	info := &commandBufferAllocateInfo{head: head{typ: typeCommandBufferAllocate}, pool: p, count: 1}
	var c CommandBuffer
	r, _, _ := purego.SyscallN(d.fn.allocateCommands, d.handle, uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&c)))
	return c, check("vkAllocateCommandBuffers", r)
}

func (d *Device) FreeCommandBuffer(p CommandPool, c CommandBuffer) {
	purego.SyscallN(d.fn.freeCommands, d.handle, uintptr(p), 1, uintptr(unsafe.Pointer(&c)))
}

// Begin starts recording and discards what c held. With once, c may be submitted only
// once.
func (d *Device) Begin(c CommandBuffer, once bool) error {
	info := &commandBufferBeginInfo{head: head{typ: typeCommandBufferBegin}}
	if once {
		info.flags = 1
	}
	r, _, _ := purego.SyscallN(d.fn.begin, uintptr(c), uintptr(unsafe.Pointer(info)))
	return check("vkBeginCommandBuffer", r)
}

// End ends recording; the error covers all commands recorded.
func (d *Device) End(c CommandBuffer) error {
	r, _, _ := purego.SyscallN(d.fn.end, uintptr(c))
	return check("vkEndCommandBuffer", r)
}

func (d *Device) BindPipeline(c CommandBuffer, p Pipeline) {
	purego.SyscallN(d.fn.bindPipeline, uintptr(c), pipelineBindCompute, uintptr(p))
}

// PushConstants sets the first len(data) bytes of the push constants.
func (d *Device) PushConstants(c CommandBuffer, l PipelineLayout, data []byte) {
	purego.SyscallN(d.fn.pushConstants, uintptr(c), uintptr(l), shaderStageCompute, 0, uintptr(len(data)), uintptr(unsafe.Pointer(unsafe.SliceData(data))))
}

func (d *Device) Dispatch(c CommandBuffer, x, y, z uint32) {
	purego.SyscallN(d.fn.dispatch, uintptr(c), uintptr(x), uintptr(y), uintptr(z))
}

// DispatchIndirect reads the three workgroup counts from a buffer when it is executed.
func (d *Device) DispatchIndirect(c CommandBuffer, b Buffer, offset uint64) {
	purego.SyscallN(d.fn.dispatchIndirect, uintptr(c), uintptr(b), uintptr(offset))
}

// Barrier makes accesses of srcStage before it visible to those of dstStage after it.
func (d *Device) Barrier(c CommandBuffer, srcStage, srcAccess, dstStage, dstAccess uint64) {
	m := &memoryBarrier{
		head: head{typ: typeMemoryBarrier2}, srcStage: srcStage, srcAccess: srcAccess, dstStage: dstStage, dstAccess: dstAccess,
	}
	info := &dependencyInfo{head: head{typ: typeDependencyInfo}, memoryCount: 1, memory: m}
	purego.SyscallN(d.fn.barrier, uintptr(c), uintptr(unsafe.Pointer(info)))
}

func (d *Device) CopyBuffer(c CommandBuffer, src, dst Buffer, regions ...BufferCopy) {
	if len(regions) == 0 {
		return
	}
	purego.SyscallN(d.fn.copyBuffer, uintptr(c), uintptr(src), uintptr(dst), uintptr(len(regions)), uintptr(unsafe.Pointer(&regions[0])))
}

// FillBuffer repeats a 32-bit value; offset and size are multiples of 4.
func (d *Device) FillBuffer(c CommandBuffer, b Buffer, offset, size uint64, value uint32) {
	purego.SyscallN(d.fn.fillBuffer, uintptr(c), uintptr(b), uintptr(offset), uintptr(size), uintptr(value))
}

func (d *Device) ResetTimestamps(c CommandBuffer, q QueryPool, n uint32) {
	purego.SyscallN(d.fn.resetQueries, uintptr(c), uintptr(q), 0, uintptr(n))
}

// WriteTimestamp records the time at which everything recorded before it is done.
func (d *Device) WriteTimestamp(c CommandBuffer, q QueryPool, i uint32) {
	const allCommands = 0x10000
	purego.SyscallN(d.fn.writeTimestamp, uintptr(c), allCommands, uintptr(q), uintptr(i))
}
