//go:build (linux || darwin || windows) && (amd64 || arm64)

package vk

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Device is an opened device with one compute queue.
type Device struct {
	Physical *PhysicalDevice
	Queue    Queue
	handle   uintptr
	fn       deviceFunctions

	// Arguments of the calls that a decode step makes, kept so that it allocates
	// nothing. They belong to the owner of the queue.
	submit struct {
		info    submitInfo
		buffer  commandBufferSubmitInfo
		signal  semaphoreSubmitInfo
		args    [4]uintptr
		waiting semaphoreWaitInfo
		value   uint64
		sem     Semaphore
		waitArg [3]uintptr
	}
}

type deviceFunctions struct {
	destroyDevice, getQueue, waitIdle                                          uintptr
	allocateMemory, freeMemory, mapMemory                                      uintptr
	createBuffer, destroyBuffer, bufferRequirements, bindBuffer, bufferAddress uintptr
	createShader, destroyShader, createLayout, destroyLayout                   uintptr
	createCache, destroyCache, cacheData, createCompute, destroyPipeline       uintptr
	createPool, destroyPool, allocateCommands, freeCommands                    uintptr
	begin, end, bindPipeline, pushConstants, dispatch, dispatchIndirect        uintptr
	barrier, copyBuffer, fillBuffer, resetQueries, writeTimestamp              uintptr
	createSemaphore, destroySemaphore, waitSemaphores, semaphoreValue, submit  uintptr
	createQueries, destroyQueries, queryResults                                uintptr
}

// OpenOptions are the options of a device, in addition to the features and
// extensions that this package always uses where p lists them.
type OpenOptions struct {
	// Matrices enables what shaders that use one of p.Matrices need.
	Matrices bool
}

// Open makes a device with one compute queue.
func (p *PhysicalDevice) Open(o OpenOptions) (*Device, error) {
	if m := p.Missing(); m != "" {
		return nil, fmt.Errorf("open vulkan device %q: it lacks %s", p.Name, m)
	}
	flag := func(b bool) uint32 {
		if b {
			return 1
		}
		return 0
	}
	f13 := &vulkan13Features{head: head{typ: typeVulkan13Features}}
	f13.f[feature13Sync2], f13.f[feature13Maintenance4] = 1, 1
	f13.f[feature13SubgroupSize] = flag(p.SubgroupControl)
	f12 := &vulkan12Features{head: head{typ: typeVulkan12Features, next: unsafe.Pointer(f13)}}
	f12.f[feature12DeviceAddress], f12.f[feature12Timeline] = 1, 1
	f12.f[feature12HostReset] = flag(p.HostQueryReset)
	f2 := &features2{head: head{typ: typeFeatures2, next: unsafe.Pointer(f12)}}
	f2.f[featureInt64] = flag(p.Int64)

	var extensions []string
	for _, e := range []string{"VK_KHR_portability_subset", "VK_EXT_memory_budget"} {
		if p.Has(e) {
			extensions = append(extensions, e)
		}
	}
	if o.Matrices {
		if len(p.Matrices) == 0 || !p.FullSubgroups || !p.MemoryModel {
			return nil, fmt.Errorf("open vulkan device %q: it lacks what shaders with cooperative matrices need", p.Name)
		}
		f13.f[feature13FullSubgroup], f12.f[feature12Float16] = 1, flag(p.Float16)
		f12.f[feature12MemoryModel], f12.f[feature12MemoryDevice] = 1, 1 // atomics in other shaders have device scope
		extensions = append(extensions, matrixExtension)
		matrix := &matrixFeatures{head: head{typ: typeMatrixFeatures}, matrix: 1}
		f13.next = unsafe.Pointer(matrix)
		if slices.ContainsFunc(p.Matrices, func(s MatrixShape) bool { return s.Type == ComponentBF16 }) {
			extensions = append(extensions, bfloat16Extension)
			matrix.next = unsafe.Pointer(&bfloat16Features{head: head{typ: typeBFloat16Features}, scalars: 1, matrix: 1})
		}
	}
	priority := new(float32)
	*priority = 1
	queue := &deviceQueueCreateInfo{head: head{typ: typeDeviceQueueCreateInfo}, family: p.queueFamily, count: 1, priorities: priority}
	info := &deviceCreateInfo{
		head: head{typ: typeDeviceCreateInfo, next: unsafe.Pointer(f2)}, queueCount: 1, queues: queue,
		extensionCount: uint32(len(extensions)), extensions: cStrings(extensions),
	}
	d := &Device{Physical: p}
	r, _, _ := purego.SyscallN(p.in.fn.createDevice, p.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&d.handle)))
	runtime.KeepAlive(info)
	if err := check("vkCreateDevice", r); err != nil {
		return nil, fmt.Errorf("open vulkan device %q: %w", p.Name, err)
	}
	f := &d.fn
	for _, e := range []struct {
		fn   *uintptr
		name string
	}{
		{&f.destroyDevice, "vkDestroyDevice"}, {&f.getQueue, "vkGetDeviceQueue"}, {&f.waitIdle, "vkDeviceWaitIdle"},
		{&f.allocateMemory, "vkAllocateMemory"}, {&f.freeMemory, "vkFreeMemory"}, {&f.mapMemory, "vkMapMemory"},
		{&f.createBuffer, "vkCreateBuffer"}, {&f.destroyBuffer, "vkDestroyBuffer"},
		{&f.bufferRequirements, "vkGetBufferMemoryRequirements"}, {&f.bindBuffer, "vkBindBufferMemory"},
		{&f.bufferAddress, "vkGetBufferDeviceAddress"},
		{&f.createShader, "vkCreateShaderModule"}, {&f.destroyShader, "vkDestroyShaderModule"},
		{&f.createLayout, "vkCreatePipelineLayout"}, {&f.destroyLayout, "vkDestroyPipelineLayout"},
		{&f.createCache, "vkCreatePipelineCache"}, {&f.destroyCache, "vkDestroyPipelineCache"}, {&f.cacheData, "vkGetPipelineCacheData"},
		{&f.createCompute, "vkCreateComputePipelines"}, {&f.destroyPipeline, "vkDestroyPipeline"},
		{&f.createPool, "vkCreateCommandPool"}, {&f.destroyPool, "vkDestroyCommandPool"},
		{&f.allocateCommands, "vkAllocateCommandBuffers"}, {&f.freeCommands, "vkFreeCommandBuffers"},
		{&f.begin, "vkBeginCommandBuffer"}, {&f.end, "vkEndCommandBuffer"},
		{&f.bindPipeline, "vkCmdBindPipeline"}, {&f.pushConstants, "vkCmdPushConstants"},
		{&f.dispatch, "vkCmdDispatch"}, {&f.dispatchIndirect, "vkCmdDispatchIndirect"},
		{&f.barrier, "vkCmdPipelineBarrier2"}, {&f.copyBuffer, "vkCmdCopyBuffer"}, {&f.fillBuffer, "vkCmdFillBuffer"},
		{&f.resetQueries, "vkCmdResetQueryPool"}, {&f.writeTimestamp, "vkCmdWriteTimestamp2"},
		{&f.createSemaphore, "vkCreateSemaphore"}, {&f.destroySemaphore, "vkDestroySemaphore"},
		{&f.waitSemaphores, "vkWaitSemaphores"}, {&f.semaphoreValue, "vkGetSemaphoreCounterValue"}, {&f.submit, "vkQueueSubmit2"},
		{&f.createQueries, "vkCreateQueryPool"}, {&f.destroyQueries, "vkDestroyQueryPool"}, {&f.queryResults, "vkGetQueryPoolResults"},
	} {
		*e.fn, _, _ = purego.SyscallN(p.in.fn.getDeviceProcAddr, d.handle, uintptr(unsafe.Pointer(cString(e.name))))
		if *e.fn == 0 {
			if f.destroyDevice != 0 {
				d.Destroy()
			}
			return nil, fmt.Errorf("open vulkan device %q: the driver has no %s", p.Name, e.name)
		}
	}
	purego.SyscallN(f.getQueue, d.handle, uintptr(p.queueFamily), 0, uintptr(unsafe.Pointer(&d.Queue)))
	return d, nil
}

// Destroy closes the device. Everything made from it must have been destroyed.
func (d *Device) Destroy() {
	if d.handle != 0 {
		purego.SyscallN(d.fn.destroyDevice, d.handle, 0)
		d.handle = 0
	}
}

// WaitIdle waits until the device is idle.
func (d *Device) WaitIdle() error {
	r, _, _ := purego.SyscallN(d.fn.waitIdle, d.handle)
	return check("vkDeviceWaitIdle", r)
}

// AllocateMemory allocates size bytes of a memory type, for buffers with device addresses.
func (d *Device) AllocateMemory(size uint64, memoryType uint32) (Memory, error) {
	flags := &memoryAllocateFlags{head: head{typ: typeMemoryAllocateFlags}, flags: 2}
	info := &memoryAllocateInfo{head: head{typ: typeMemoryAllocateInfo, next: unsafe.Pointer(flags)}, size: size, memoryType: memoryType}
	var m Memory
	r, _, _ := purego.SyscallN(d.fn.allocateMemory, d.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&m)))
	return m, check("vkAllocateMemory", r)
}

// FreeMemory frees memory and unmaps it.
func (d *Device) FreeMemory(m Memory) { purego.SyscallN(d.fn.freeMemory, d.handle, uintptr(m), 0) }

// MapMemory maps size bytes of host-visible memory, until the memory is freed.
func (d *Device) MapMemory(m Memory, size uint64) ([]byte, error) {
	var p unsafe.Pointer
	r, _, _ := purego.SyscallN(d.fn.mapMemory, d.handle, uintptr(m), 0, uintptr(size), 0, uintptr(unsafe.Pointer(&p)))
	if err := check("vkMapMemory", r); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), size), nil
}

// CreateBuffer makes a buffer without memory and returns it with the size and
// alignment of the memory that it needs and a mask of the allowed memory types.
func (d *Device) CreateBuffer(size uint64, usage uint32) (b Buffer, need, alignment uint64, types uint32, err error) {
	info := &bufferCreateInfo{head: head{typ: typeBufferCreateInfo}, size: size, usage: usage}
	r, _, _ := purego.SyscallN(d.fn.createBuffer, d.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&b)))
	if err := check("vkCreateBuffer", r); err != nil {
		return 0, 0, 0, 0, err
	}
	req := new(memoryRequirements)
	purego.SyscallN(d.fn.bufferRequirements, d.handle, uintptr(b), uintptr(unsafe.Pointer(req)))
	return b, req.size, req.alignment, req.types, nil
}

// DestroyBuffer destroys a buffer; its memory stays.
func (d *Device) DestroyBuffer(b Buffer) {
	purego.SyscallN(d.fn.destroyBuffer, d.handle, uintptr(b), 0)
}

// BindBuffer binds a buffer to memory and returns its address on the device.
func (d *Device) BindBuffer(b Buffer, m Memory, offset uint64) (address uint64, err error) {
	r, _, _ := purego.SyscallN(d.fn.bindBuffer, d.handle, uintptr(b), uintptr(m), uintptr(offset))
	if err := check("vkBindBufferMemory", r); err != nil {
		return 0, err
	}
	info := &bufferAddressInfo{head: head{typ: typeBufferDeviceAddress}, buffer: b}
	a, _, _ := purego.SyscallN(d.fn.bufferAddress, d.handle, uintptr(unsafe.Pointer(info)))
	return uint64(a), nil
}

// CreateShaderModule makes a module from SPIR-V code.
func (d *Device) CreateShaderModule(code []byte) (ShaderModule, error) {
	words := make([]uint32, (len(code)+3)/4) // aligned
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 4*len(words)), code)
	info := &shaderModuleInfo{
		head: head{typ: typeShaderModuleCreateInfo}, size: uint64(len(code)),
		code: (*byte)(unsafe.Pointer(unsafe.SliceData(words))),
	}
	var m ShaderModule
	r, _, _ := purego.SyscallN(d.fn.createShader, d.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&m)))
	runtime.KeepAlive(info)
	return m, check("vkCreateShaderModule", r)
}

func (d *Device) DestroyShaderModule(m ShaderModule) {
	purego.SyscallN(d.fn.destroyShader, d.handle, uintptr(m), 0)
}

// CreatePipelineLayout makes a layout with size bytes of push constants and nothing else.
func (d *Device) CreatePipelineLayout(size uint32) (PipelineLayout, error) {
	push := &pushConstantRange{stages: shaderStageCompute, size: size}
	info := &pipelineLayoutInfo{head: head{typ: typePipelineLayoutInfo}, pushCount: 1, push: push}
	var l PipelineLayout
	r, _, _ := purego.SyscallN(d.fn.createLayout, d.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&l)))
	return l, check("vkCreatePipelineLayout", r)
}

func (d *Device) DestroyPipelineLayout(l PipelineLayout) {
	purego.SyscallN(d.fn.destroyLayout, d.handle, uintptr(l), 0)
}

// CreatePipelineCache makes a cache from the data of an earlier one, nil for none.
func (d *Device) CreatePipelineCache(data []byte) (PipelineCache, error) {
	info := &pipelineCacheInfo{head: head{typ: typePipelineCacheCreateInfo}, size: uint64(len(data))}
	if len(data) > 0 {
		info.data = &data[0]
	}
	var c PipelineCache
	r, _, _ := purego.SyscallN(d.fn.createCache, d.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&c)))
	runtime.KeepAlive(data)
	return c, check("vkCreatePipelineCache", r)
}

func (d *Device) DestroyPipelineCache(c PipelineCache) {
	purego.SyscallN(d.fn.destroyCache, d.handle, uintptr(c), 0)
}

// PipelineCacheData returns the cache's data in the form that CreatePipelineCache takes.
func (d *Device) PipelineCacheData(c PipelineCache) ([]byte, error) {
	for {
		n := new(uint64)
		r, _, _ := purego.SyscallN(d.fn.cacheData, d.handle, uintptr(c), uintptr(unsafe.Pointer(n)), 0)
		if err := check("vkGetPipelineCacheData", r); err != nil || *n == 0 {
			return nil, err
		}
		data := make([]byte, *n)
		r, _, _ = purego.SyscallN(d.fn.cacheData, d.handle, uintptr(c), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&data[0])))
		if Result(int32(r)) == incomplete {
			continue
		}
		return data[:*n], check("vkGetPipelineCacheData", r)
	}
}

// CreateComputePipeline makes a pipeline from a module's entry point main.
// Specialisation constant i gets the 32 bits of constants[i]. subgroup is the size
// of its subgroups, which are then all full (PhysicalDevice.FullSubgroups), or 0 for
// the driver's choice.
func (d *Device) CreateComputePipeline(cache PipelineCache, layout PipelineLayout, m ShaderModule, subgroup uint32, constants []uint32) (Pipeline, error) {
	info := &computePipelineInfo{
		head:   head{typ: typeComputePipelineInfo},
		stage:  shaderStageInfo{head: head{typ: typeShaderStageCreateInfo}, stage: shaderStageCompute, module: m, name: cString("main")},
		layout: layout, baseIndex: -1,
	}
	if subgroup > 0 {
		const full = 2
		info.stage.flags = full
		info.stage.next = unsafe.Pointer(&subgroupSizeStage{head: head{typ: typeSubgroupSizeStage}, size: subgroup})
	}
	if len(constants) > 0 {
		entries := make([]specialisationEntry, len(constants))
		for i := range entries {
			entries[i] = specialisationEntry{id: uint32(i), offset: uint32(4 * i), size: 4}
		}
		data := append([]uint32(nil), constants...)
		info.stage.specialisation = &specialisationInfo{count: uint32(len(entries)), entries: &entries[0], size: uint64(4 * len(data)), data: &data[0]}
	}
	var p Pipeline
	r, _, _ := purego.SyscallN(d.fn.createCompute, d.handle, uintptr(cache), 1, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&p)))
	runtime.KeepAlive(info)
	return p, check("vkCreateComputePipelines", r)
}

func (d *Device) DestroyPipeline(p Pipeline) {
	purego.SyscallN(d.fn.destroyPipeline, d.handle, uintptr(p), 0)
}

// CreateSemaphore makes a timeline semaphore with the value 0.
func (d *Device) CreateSemaphore() (Semaphore, error) {
	kind := &semaphoreTypeInfo{head: head{typ: typeSemaphoreType}, kind: 1}
	info := &semaphoreInfo{head: head{typ: typeSemaphoreCreateInfo, next: unsafe.Pointer(kind)}}
	var s Semaphore
	r, _, _ := purego.SyscallN(d.fn.createSemaphore, d.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&s)))
	runtime.KeepAlive(info)
	return s, check("vkCreateSemaphore", r)
}

func (d *Device) DestroySemaphore(s Semaphore) {
	purego.SyscallN(d.fn.destroySemaphore, d.handle, uintptr(s), 0)
}

// SemaphoreValue returns the value that the device has reached.
func (d *Device) SemaphoreValue(s Semaphore) (uint64, error) {
	v := new(uint64)
	r, _, _ := purego.SyscallN(d.fn.semaphoreValue, d.handle, uintptr(s), uintptr(unsafe.Pointer(v)))
	return *v, check("vkGetSemaphoreCounterValue", r)
}

// WaitSemaphore waits until s has reached value, or returns ErrTimeout after the given
// number of nanoseconds. Only the owner of the queue may call it. It does not allocate.
func (d *Device) WaitSemaphore(s Semaphore, value, nanoseconds uint64) error {
	w := &d.submit
	w.sem, w.value = s, value
	w.waiting = semaphoreWaitInfo{head: head{typ: typeSemaphoreWait}, count: 1, semaphores: &w.sem, values: &w.value}
	w.waitArg = [3]uintptr{d.handle, uintptr(unsafe.Pointer(&w.waiting)), uintptr(nanoseconds)}
	r, _, _ := purego.SyscallN(d.fn.waitSemaphores, w.waitArg[:]...)
	runtime.KeepAlive(d)
	if Result(int32(r)) == timeout {
		return ErrTimeout // not an *Error, which allocates: a slow step waits often
	}
	return check("vkWaitSemaphores", r)
}

// Submit submits a command buffer to the queue; when everything submitted so far is
// done, s gets the value. It does not allocate.
func (d *Device) Submit(c CommandBuffer, s Semaphore, value uint64) error {
	w := &d.submit
	const allCommands = 0x10000
	w.buffer = commandBufferSubmitInfo{head: head{typ: typeCommandBufferSubmit}, buffer: c}
	w.signal = semaphoreSubmitInfo{head: head{typ: typeSemaphoreSubmit}, semaphore: s, value: value, stages: allCommands}
	w.info = submitInfo{head: head{typ: typeSubmitInfo2}, bufferCount: 1, buffers: &w.buffer, signalCount: 1, signals: &w.signal}
	w.args = [4]uintptr{uintptr(d.Queue), 1, uintptr(unsafe.Pointer(&w.info)), 0}
	r, _, _ := purego.SyscallN(d.fn.submit, w.args[:]...)
	runtime.KeepAlive(d)
	return check("vkQueueSubmit2", r)
}

// CreateTimestamps makes a pool of n timestamp queries. TimestampBits tells whether
// the queue can write them.
func (d *Device) CreateTimestamps(n uint32) (QueryPool, error) {
	info := &queryPoolInfo{head: head{typ: typeQueryPoolCreateInfo}, kind: 2, count: n}
	var q QueryPool
	r, _, _ := purego.SyscallN(d.fn.createQueries, d.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&q)))
	return q, check("vkCreateQueryPool", r)
}

func (d *Device) DestroyTimestamps(q QueryPool) {
	purego.SyscallN(d.fn.destroyQueries, d.handle, uintptr(q), 0)
}

// Timestamps waits for the first n results and returns them in ticks.
func (d *Device) Timestamps(q QueryPool, n uint32) ([]uint64, error) {
	if n == 0 {
		return nil, nil
	}
	out := make([]uint64, n)
	const result64, wait = 1, 2
	r, _, _ := purego.SyscallN(d.fn.queryResults, d.handle, uintptr(q), 0, uintptr(n), uintptr(8*n), uintptr(unsafe.Pointer(&out[0])), 8, result64|wait)
	return out, check("vkGetQueryPoolResults", r)
}

// TimestampBits returns the number of valid bits in a timestamp, 0 if the queue has none.
func (d *Device) TimestampBits() uint32 { return d.Physical.timestampBits }
