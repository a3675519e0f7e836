//go:build (linux || darwin || windows) && (amd64 || arm64)

package vk

import "unsafe"

// Non-dispatchable handles. Zero is none.
type (
	Memory         uint64
	Buffer         uint64
	ShaderModule   uint64
	PipelineLayout uint64
	Pipeline       uint64
	PipelineCache  uint64
	CommandPool    uint64
	Semaphore      uint64
	QueryPool      uint64
	messenger      uint64
)

// Dispatchable handles: addresses in the driver's memory.
type (
	Queue         uintptr
	CommandBuffer uintptr
)

// Values of VkStructureType.
const (
	typeApplicationInfo         = 0
	typeInstanceCreateInfo      = 1
	typeDeviceQueueCreateInfo   = 2
	typeDeviceCreateInfo        = 3
	typeMemoryAllocateInfo      = 5
	typeSemaphoreCreateInfo     = 9
	typeQueryPoolCreateInfo     = 11
	typeBufferCreateInfo        = 12
	typeShaderModuleCreateInfo  = 16
	typePipelineCacheCreateInfo = 17
	typeShaderStageCreateInfo   = 18
	typeComputePipelineInfo     = 29
	typePipelineLayoutInfo      = 30
	typeCommandPoolCreateInfo   = 39
	typeCommandBufferAllocate   = 40
	typeCommandBufferBegin      = 42
	typeVulkan11Properties      = 50
	typeVulkan12Features        = 51
	typeVulkan13Features        = 53
	typeFeatures2               = 1000059000
	typeProperties2             = 1000059001
	typeMemoryProperties2       = 1000059006
	typeMemoryAllocateFlags     = 1000060000
	typeDebugMessenger          = 1000128004
	typeBFloat16Features        = 1000141000
	typeDriverProperties        = 1000196000
	typeSemaphoreType           = 1000207002
	typeSemaphoreWait           = 1000207004
	typeSubgroupSizeControl     = 1000225000
	typeSubgroupSizeStage       = 1000225001
	typeMemoryBudget            = 1000237000
	typeBufferDeviceAddress     = 1000244001
	typeValidationFeatures      = 1000247000
	typeMemoryBarrier2          = 1000314000
	typeDependencyInfo          = 1000314003
	typeSubmitInfo2             = 1000314004
	typeSemaphoreSubmit         = 1000314005
	typeCommandBufferSubmit     = 1000314006
	typeMaintenance4Properties  = 1000413001
	typeMatrixFeatures          = 1000506000
	typeMatrixProperties        = 1000506001
)

// apiVersion13 is VK_API_VERSION_1_3.
const apiVersion13 = 1<<22 | 3<<12

// DeviceType is a VkPhysicalDeviceType.
type DeviceType uint32

const (
	Other DeviceType = iota
	Integrated
	Discrete
	Virtual
	Software // runs on the CPU
)

func (t DeviceType) String() string {
	if int(t) < 5 {
		return [...]string{"other", "integrated", "discrete", "virtual", "software"}[t]
	}
	return "unknown"
}

// Properties of memory types (VkMemoryPropertyFlags).
const (
	DeviceLocal  = 1
	HostVisible  = 2
	HostCoherent = 4
	HostCached   = 8
)

// Uses of buffers (VkBufferUsageFlags).
const (
	UsageTransferSrc   = 0x1
	UsageTransferDst   = 0x2
	UsageStorage       = 0x20
	UsageIndirect      = 0x100
	UsageDeviceAddress = 0x20000
)

// Kinds of queue families (VkQueueFlags).
const (
	QueueGraphics = 1
	QueueCompute  = 2
	QueueTransfer = 4
)

// Stages and accesses of barriers (VkPipelineStageFlags2, VkAccessFlags2).
const (
	StageIndirect = 0x2
	StageCompute  = 0x800
	StageTransfer = 0x1000
	StageHost     = 0x4000

	AccessIndirectRead  = 0x1
	AccessShaderRead    = 0x20
	AccessShaderWrite   = 0x40
	AccessTransferRead  = 0x800
	AccessTransferWrite = 0x1000
	AccessHostRead      = 0x2000
	AccessHostWrite     = 0x4000
)

const pipelineBindCompute, shaderStageCompute = 1, 0x20

type head struct {
	typ  uint32
	next unsafe.Pointer
}

type applicationInfo struct {
	head
	name       *byte
	_          uint32 // application version
	_          *byte  // engine
	_          uint32
	apiVersion uint32
}

type instanceCreateInfo struct {
	head
	flags          uint32
	app            *applicationInfo
	layerCount     uint32
	layers         **byte
	extensionCount uint32
	extensions     **byte
}

type debugMessengerInfo struct {
	head
	flags, severity, kinds uint32
	callback               uintptr
	user                   uintptr // a number, not an address
}

type debugMessage struct {
	_       head
	_       uint32 // flags
	idName  *byte
	_       int32 // number
	message *byte
	_       [6]uint64
}

type validationFeatures struct {
	head
	enabledCount  uint32
	enabled       *uint32
	disabledCount uint32
	disabled      *uint32
}

type extensionProperties struct {
	name    [256]byte
	version uint32
}

type layerProperties struct {
	name              [256]byte
	version, revision uint32
	description       [256]byte
}

// Limits are the parts of VkPhysicalDeviceLimits that matter for compute.
type Limits struct {
	_                      [28]byte
	StorageBufferRange     uint32
	PushConstants          uint32 // bytes
	MemoryAllocations      uint32 // maximum number of allocations at a time
	_                      [176]byte
	SharedMemory           uint32 // bytes per workgroup
	WorkgroupCount         [3]uint32
	WorkgroupInvocations   uint32
	WorkgroupSize          [3]uint32
	_                      [172]byte
	TimestampsOnAllCompute uint32
	TimestampPeriod        float32 // nanoseconds per tick
	_                      [68]byte
	NonCoherentAtomSize    uint64
}

type physicalDeviceProperties struct {
	apiVersion, driverVersion uint32
	vendor, device            uint32
	kind                      DeviceType
	name                      [256]byte
	cacheUUID                 [16]byte
	limits                    Limits
	sparse                    [5]uint32
}

type properties2 struct {
	head
	p physicalDeviceProperties
}

type vulkan11Properties struct {
	head
	deviceUUID, driverUUID [16]byte
	deviceLUID             [8]byte
	nodeMask, luidValid    uint32
	subgroupSize           uint32
	_                      [9]uint32
	maxMemoryAllocation    uint64
}

type driverProperties struct {
	head
	id          uint32
	name, info  [256]byte
	conformance [4]byte
}

type maintenance4Properties struct {
	head
	maxBufferSize uint64
}

type subgroupSizeControl struct {
	head
	min, max, perWorkgroup, stages uint32
}

type features2 struct {
	head
	f [55]uint32
}

// Indices into the lists of features.
const (
	featureFloat64 = 39
	featureInt64   = 40

	feature12Float16       = 7
	feature12HostReset     = 36
	feature12Timeline      = 37
	feature12DeviceAddress = 38
	feature12MemoryModel   = 41
	feature12MemoryDevice  = 42

	feature13SubgroupSize = 7
	feature13FullSubgroup = 8
	feature13Sync2        = 9
	feature13IntegerDot   = 13
	feature13Maintenance4 = 14
)

type vulkan12Features struct {
	head
	f [47]uint32
}

type vulkan13Features struct {
	head
	f [15]uint32
}

type matrixFeatures struct {
	head
	matrix, robust uint32
}

type bfloat16Features struct {
	head
	scalars, dot, matrix uint32
}

type matrixProperties struct {
	head
	m, n, k    uint32
	a, b, c    ComponentType
	result     ComponentType
	saturating uint32
	scope      uint32
}

// ComponentType is a VkComponentTypeKHR, the element type of a cooperative matrix.
type ComponentType uint32

const (
	ComponentF16  ComponentType = 0
	ComponentF32  ComponentType = 1
	ComponentBF16 ComponentType = 1000141000
)

// MatrixShape is a product of cooperative matrices of a subgroup that a device
// supports: [M, K]·[K, N], both of one type, summed in f32.
type MatrixShape struct {
	Type    ComponentType
	M, N, K uint32
}

// MemoryType is a kind of memory, in one of the heaps.
type MemoryType struct {
	Properties uint32
	Heap       uint32
}

// MemoryHeap is memory from which allocations are made.
type MemoryHeap struct {
	Size  uint64
	Flags uint32 // 1: device-local
}

type memoryProperties2 struct {
	head
	typeCount uint32
	types     [32]MemoryType
	heapCount uint32
	heaps     [16]MemoryHeap
}

type memoryBudget struct {
	head
	budget, usage [16]uint64
}

type queueFamilyProperties struct {
	flags         uint32
	count         uint32
	timestampBits uint32
	granularity   [3]uint32
}

type deviceQueueCreateInfo struct {
	head
	_             uint32 // flags
	family, count uint32
	priorities    *float32
}

type deviceCreateInfo struct {
	head
	flags          uint32
	queueCount     uint32
	queues         *deviceQueueCreateInfo
	layerCount     uint32
	layers         **byte
	extensionCount uint32
	extensions     **byte
	features       unsafe.Pointer
}

type memoryAllocateInfo struct {
	head
	size       uint64
	memoryType uint32
}

type memoryAllocateFlags struct {
	head
	flags, mask uint32
}

type bufferCreateInfo struct {
	head
	flags       uint32
	size        uint64
	usage       uint32
	sharing     uint32
	familyCount uint32
	families    *uint32
}

type memoryRequirements struct {
	size, alignment uint64
	types           uint32
}

type bufferAddressInfo struct {
	head
	buffer Buffer
}

type shaderModuleInfo struct {
	head
	flags uint32
	size  uint64
	code  *byte
}

type pushConstantRange struct {
	stages uint32
	_      uint32 // offset
	size   uint32
}

type pipelineLayoutInfo struct {
	head
	flags     uint32
	setCount  uint32
	sets      unsafe.Pointer
	pushCount uint32
	push      *pushConstantRange
}

type shaderStageInfo struct {
	head
	flags, stage   uint32
	module         ShaderModule
	name           *byte
	specialisation *specialisationInfo
}

type subgroupSizeStage struct {
	head
	size uint32
}

type specialisationInfo struct {
	count   uint32
	entries *specialisationEntry
	size    uint64
	data    *uint32
}

type specialisationEntry struct {
	id, offset uint32
	size       uint64
}

type computePipelineInfo struct {
	head
	flags     uint32
	stage     shaderStageInfo
	layout    PipelineLayout
	base      uint64
	baseIndex int32
}

type pipelineCacheInfo struct {
	head
	flags uint32
	size  uint64
	data  *byte
}

type commandPoolInfo struct {
	head
	flags, family uint32
}

type commandBufferAllocateInfo struct {
	head
	pool         CommandPool
	level, count uint32
}

type commandBufferBeginInfo struct {
	head
	flags       uint32
	inheritance unsafe.Pointer
}

type memoryBarrier struct {
	head
	srcStage, srcAccess, dstStage, dstAccess uint64
}

type dependencyInfo struct {
	head
	flags       uint32
	memoryCount uint32
	memory      *memoryBarrier
	bufferCount uint32
	buffers     unsafe.Pointer
	imageCount  uint32
	images      unsafe.Pointer
}

type semaphoreTypeInfo struct {
	head
	kind    uint32
	initial uint64
}

type semaphoreInfo struct {
	head
	flags uint32
}

type semaphoreWaitInfo struct {
	head
	flags, count uint32
	semaphores   *Semaphore
	values       *uint64
}

type semaphoreSubmitInfo struct {
	head
	semaphore Semaphore
	value     uint64
	stages    uint64
	_         uint32 // device of a group
}

type commandBufferSubmitInfo struct {
	head
	buffer CommandBuffer
	_      uint32 // devices of a group
}

type submitInfo struct {
	head
	flags       uint32
	waitCount   uint32
	waits       *semaphoreSubmitInfo
	bufferCount uint32
	buffers     *commandBufferSubmitInfo
	signalCount uint32
	signals     *semaphoreSubmitInfo
}

type queryPoolInfo struct {
	head
	flags, kind, count, statistics uint32
}

// BufferCopy is one region of a copy between buffers, in bytes.
type BufferCopy struct {
	Src, Dst, Size uint64
}

// The sizes and offsets below are those of the C header; a difference does not compile.
var (
	_ = [1]int{}[unsafe.Sizeof(applicationInfo{})-48]
	_ = [1]int{}[unsafe.Offsetof(applicationInfo{}.apiVersion)-44]
	_ = [1]int{}[unsafe.Sizeof(instanceCreateInfo{})-64]
	_ = [1]int{}[unsafe.Offsetof(instanceCreateInfo{}.extensions)-56]
	_ = [1]int{}[unsafe.Sizeof(debugMessengerInfo{})-48]
	_ = [1]int{}[unsafe.Sizeof(debugMessage{})-96]
	_ = [1]int{}[unsafe.Offsetof(debugMessage{}.idName)-24]
	_ = [1]int{}[unsafe.Offsetof(debugMessage{}.message)-40]
	_ = [1]int{}[unsafe.Sizeof(validationFeatures{})-48]
	_ = [1]int{}[unsafe.Sizeof(extensionProperties{})-260]
	_ = [1]int{}[unsafe.Sizeof(layerProperties{})-520]
	_ = [1]int{}[unsafe.Sizeof(Limits{})-504]
	_ = [1]int{}[unsafe.Offsetof(Limits{}.StorageBufferRange)-28]
	_ = [1]int{}[unsafe.Offsetof(Limits{}.PushConstants)-32]
	_ = [1]int{}[unsafe.Offsetof(Limits{}.SharedMemory)-216]
	_ = [1]int{}[unsafe.Offsetof(Limits{}.WorkgroupSize)-236]
	_ = [1]int{}[unsafe.Offsetof(Limits{}.TimestampsOnAllCompute)-420]
	_ = [1]int{}[unsafe.Offsetof(Limits{}.NonCoherentAtomSize)-496]
	_ = [1]int{}[unsafe.Sizeof(physicalDeviceProperties{})-824]
	_ = [1]int{}[unsafe.Offsetof(physicalDeviceProperties{}.limits)-296]
	_ = [1]int{}[unsafe.Sizeof(properties2{})-840]
	_ = [1]int{}[unsafe.Sizeof(vulkan11Properties{})-112]
	_ = [1]int{}[unsafe.Offsetof(vulkan11Properties{}.subgroupSize)-64]
	_ = [1]int{}[unsafe.Offsetof(vulkan11Properties{}.maxMemoryAllocation)-104]
	_ = [1]int{}[unsafe.Sizeof(driverProperties{})-536]
	_ = [1]int{}[unsafe.Sizeof(maintenance4Properties{})-24]
	_ = [1]int{}[unsafe.Sizeof(subgroupSizeControl{})-32]
	_ = [1]int{}[unsafe.Sizeof(features2{})-240]
	_ = [1]int{}[unsafe.Sizeof(vulkan12Features{})-208]
	_ = [1]int{}[unsafe.Sizeof(vulkan13Features{})-80]
	_ = [1]int{}[unsafe.Sizeof(matrixFeatures{})-24]
	_ = [1]int{}[unsafe.Sizeof(bfloat16Features{})-32]
	_ = [1]int{}[unsafe.Sizeof(matrixProperties{})-56]
	_ = [1]int{}[unsafe.Offsetof(matrixProperties{}.scope)-48]
	_ = [1]int{}[unsafe.Sizeof(subgroupSizeStage{})-24]
	_ = [1]int{}[unsafe.Sizeof(memoryProperties2{})-536]
	_ = [1]int{}[unsafe.Sizeof(memoryBudget{})-272]
	_ = [1]int{}[unsafe.Sizeof(queueFamilyProperties{})-24]
	_ = [1]int{}[unsafe.Sizeof(deviceQueueCreateInfo{})-40]
	_ = [1]int{}[unsafe.Sizeof(deviceCreateInfo{})-72]
	_ = [1]int{}[unsafe.Sizeof(memoryAllocateInfo{})-32]
	_ = [1]int{}[unsafe.Sizeof(memoryAllocateFlags{})-24]
	_ = [1]int{}[unsafe.Sizeof(bufferCreateInfo{})-56]
	_ = [1]int{}[unsafe.Sizeof(memoryRequirements{})-24]
	_ = [1]int{}[unsafe.Sizeof(bufferAddressInfo{})-24]
	_ = [1]int{}[unsafe.Sizeof(shaderModuleInfo{})-40]
	_ = [1]int{}[unsafe.Sizeof(pipelineLayoutInfo{})-48]
	_ = [1]int{}[unsafe.Sizeof(pushConstantRange{})-12]
	_ = [1]int{}[unsafe.Sizeof(shaderStageInfo{})-48]
	_ = [1]int{}[unsafe.Sizeof(specialisationInfo{})-32]
	_ = [1]int{}[unsafe.Sizeof(specialisationEntry{})-16]
	_ = [1]int{}[unsafe.Sizeof(computePipelineInfo{})-96]
	_ = [1]int{}[unsafe.Sizeof(pipelineCacheInfo{})-40]
	_ = [1]int{}[unsafe.Sizeof(commandPoolInfo{})-24]
	_ = [1]int{}[unsafe.Sizeof(commandBufferAllocateInfo{})-32]
	_ = [1]int{}[unsafe.Sizeof(commandBufferBeginInfo{})-32]
	_ = [1]int{}[unsafe.Sizeof(memoryBarrier{})-48]
	_ = [1]int{}[unsafe.Sizeof(dependencyInfo{})-64]
	_ = [1]int{}[unsafe.Sizeof(semaphoreTypeInfo{})-32]
	_ = [1]int{}[unsafe.Sizeof(semaphoreInfo{})-24]
	_ = [1]int{}[unsafe.Sizeof(semaphoreWaitInfo{})-40]
	_ = [1]int{}[unsafe.Sizeof(semaphoreSubmitInfo{})-48]
	_ = [1]int{}[unsafe.Sizeof(commandBufferSubmitInfo{})-32]
	_ = [1]int{}[unsafe.Sizeof(submitInfo{})-64]
	_ = [1]int{}[unsafe.Offsetof(submitInfo{}.buffers)-40]
	_ = [1]int{}[unsafe.Sizeof(queryPoolInfo{})-32]
	_ = [1]int{}[unsafe.Sizeof(BufferCopy{})-24]
	_ = [1]int{}[unsafe.Sizeof(MemoryType{})-8]
	_ = [1]int{}[unsafe.Sizeof(MemoryHeap{})-16]
)
