//go:build (linux || darwin || windows) && (amd64 || arm64)

package vk

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Library is the Vulkan loader of this system.
type Library struct {
	getInstanceProcAddr uintptr
	createInstance      uintptr
	enumerateExtensions uintptr
	enumerateLayers     uintptr
}

var load = sync.OnceValues(func() (*Library, error) {
	var errs []error
	for _, name := range libraryNames() {
		lib, err := openLibrary(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l := &Library{}
		if l.getInstanceProcAddr, err = findSymbol(lib, "vkGetInstanceProcAddr"); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		for _, f := range []struct {
			fn   *uintptr
			name string
		}{
			{&l.createInstance, "vkCreateInstance"},
			{&l.enumerateExtensions, "vkEnumerateInstanceExtensionProperties"},
			{&l.enumerateLayers, "vkEnumerateInstanceLayerProperties"},
		} {
			if *f.fn = l.proc(0, f.name); *f.fn == 0 {
				return nil, fmt.Errorf("load vulkan: %w: %s has no %s", ErrNotFound, name, f.name)
			}
		}
		return l, nil
	}
	return nil, fmt.Errorf("load vulkan: %w: %w", ErrNotFound, errors.Join(errs...))
})

// Load finds the system's Vulkan loader, once per process. The error wraps
// ErrNotFound and lists the attempts.
func Load() (*Library, error) { return load() }

func (l *Library) proc(instance uintptr, name string) uintptr {
	r, _, _ := purego.SyscallN(l.getInstanceProcAddr, instance, uintptr(unsafe.Pointer(cString(name))))
	return r
}

// cString returns s with a terminating zero, on the heap.
func cString(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }

func cStrings(list []string) **byte {
	if len(list) == 0 {
		return nil
	}
	p := make([]*byte, len(list))
	for i, s := range list {
		p[i] = cString(s)
	}
	return unsafe.SliceData(p)
}

// goString returns the string in a field of fixed size.
func goString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// goStringAt returns the zero-terminated string at p.
func goStringAt(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// enumerate calls a Vulkan function that fills an array, until the array is
// large enough. fn gets the addresses of the count and of the first element.
func enumerate[T any](call string, fn func(n *uint32, first *T) uintptr) ([]T, error) {
	for {
		n := new(uint32)
		if err := check(call, fn(n, nil)); err != nil {
			return nil, err
		}
		if *n == 0 {
			return nil, nil
		}
		list := make([]T, *n)
		r := fn(n, &list[0])
		if Result(int32(r)) == incomplete {
			continue
		}
		if err := check(call, r); err != nil {
			return nil, err
		}
		return list[:*n], nil
	}
}

const validationLayer = "VK_LAYER_KHRONOS_validation"

// HasValidation reports whether the validation layer is installed.
func (l *Library) HasValidation() bool {
	list, err := enumerate("vkEnumerateInstanceLayerProperties", func(n *uint32, p *layerProperties) uintptr {
		r, _, _ := purego.SyscallN(l.enumerateLayers, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(p)))
		return r
	})
	return err == nil && slices.ContainsFunc(list, func(p layerProperties) bool { return goString(p.name[:]) == validationLayer })
}

// extensions lists the instance extensions of the loader, or of one layer.
func (l *Library) extensions(layer string) ([]string, error) {
	var name *byte
	if layer != "" {
		name = cString(layer)
	}
	list, err := enumerate("vkEnumerateInstanceExtensionProperties", func(n *uint32, p *extensionProperties) uintptr {
		r, _, _ := purego.SyscallN(l.enumerateExtensions, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(p)))
		return r
	})
	return extensionNames(list), err
}

func extensionNames(list []extensionProperties) []string {
	names := make([]string, len(list))
	for i := range list {
		names[i] = goString(list[i].name[:])
	}
	return names
}

// InstanceOptions says how to make an instance.
type InstanceOptions struct {
	Application string

	// Validation, if not nil, receives the messages of the validation layer, which
	// must be installed: core checks and synchronisation checks. The handler may be
	// called on any thread and must not call Vulkan.
	Validation func(message string)

	// GPUAssisted adds checks of addresses inside shaders.
	GPUAssisted bool
}

// Instance is a connection to the system's drivers.
type Instance struct {
	handle uintptr
	fn     struct {
		destroyInstance, enumerateDevices uintptr
		properties, features, memory      uintptr
		queueFamilies, deviceExtensions   uintptr
		createDevice, getDeviceProcAddr   uintptr
		createMessenger, destroyMessenger uintptr
		matrixShapes                      uintptr // 0 if no driver has it
	}
	messenger messenger
	handler   uintptr
}

// NewInstance connects to the drivers. If there are none, the error is ErrNotFound.
func (l *Library) NewInstance(o InstanceOptions) (*Instance, error) {
	app := &applicationInfo{head: head{typ: typeApplicationInfo}, name: cString(o.Application), apiVersion: apiVersion13}
	info := &instanceCreateInfo{head: head{typ: typeInstanceCreateInfo}, app: app}
	var layers, extensions []string
	have, err := l.extensions("")
	if err != nil {
		return nil, fmt.Errorf("list vulkan extensions: %w", err)
	}
	if portability := "VK_KHR_portability_enumeration"; slices.Contains(have, portability) {
		extensions = append(extensions, portability)
		info.flags = 1
	}
	in := &Instance{}
	var debug *debugMessengerInfo
	if o.Validation != nil {
		if !l.HasValidation() {
			return nil, fmt.Errorf("create a vulkan instance: %s is not installed", validationLayer)
		}
		layers = append(layers, validationLayer)
		extensions = append(extensions, "VK_EXT_debug_utils")
		in.handler = addHandler(findings(o))
		const warning, failure, validation, performance = 0x100, 0x1000, 2, 4 // the loader's own messages are 1
		debug = &debugMessengerInfo{
			head: head{typ: typeDebugMessenger}, severity: warning | failure,
			kinds: validation | performance, callback: messageCallback(), user: in.handler,
		}
		info.next = unsafe.Pointer(debug)
		if ext, err := l.extensions(validationLayer); err == nil && slices.Contains(ext, "VK_EXT_validation_features") {
			extensions = append(extensions, "VK_EXT_validation_features")
			const gpuAssisted, reserveSlot, synchronization = 0, 1, 4
			enabled := []uint32{synchronization}
			if o.GPUAssisted {
				enabled = append(enabled, gpuAssisted, reserveSlot)
			}
			info.next = unsafe.Pointer(&validationFeatures{
				head:         head{typ: typeValidationFeatures, next: unsafe.Pointer(debug)},
				enabledCount: uint32(len(enabled)), enabled: &enabled[0],
			})
		}
	}
	info.layerCount, info.layers = uint32(len(layers)), cStrings(layers)
	info.extensionCount, info.extensions = uint32(len(extensions)), cStrings(extensions)
	r, _, _ := purego.SyscallN(l.createInstance, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&in.handle)))
	runtime.KeepAlive(info)
	if err := check("vkCreateInstance", r); err != nil {
		dropHandler(in.handler)
		return nil, fmt.Errorf("create a vulkan instance: %w", err)
	}
	f := &in.fn
	for _, p := range []struct {
		fn   *uintptr
		name string
	}{
		{&f.destroyInstance, "vkDestroyInstance"},
		{&f.enumerateDevices, "vkEnumeratePhysicalDevices"},
		{&f.properties, "vkGetPhysicalDeviceProperties2"},
		{&f.features, "vkGetPhysicalDeviceFeatures2"},
		{&f.memory, "vkGetPhysicalDeviceMemoryProperties2"},
		{&f.queueFamilies, "vkGetPhysicalDeviceQueueFamilyProperties"},
		{&f.deviceExtensions, "vkEnumerateDeviceExtensionProperties"},
		{&f.createDevice, "vkCreateDevice"},
		{&f.getDeviceProcAddr, "vkGetDeviceProcAddr"},
		{&f.createMessenger, "vkCreateDebugUtilsMessengerEXT"},
		{&f.destroyMessenger, "vkDestroyDebugUtilsMessengerEXT"},
	} {
		*p.fn = l.proc(in.handle, p.name)
		if *p.fn == 0 && (debug != nil || p.fn != &f.createMessenger && p.fn != &f.destroyMessenger) {
			in.Destroy()
			return nil, fmt.Errorf("create a vulkan instance: the loader has no %s: %w", p.name, ErrNotFound)
		}
	}
	f.matrixShapes = l.proc(in.handle, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
	if debug != nil {
		r, _, _ := purego.SyscallN(f.createMessenger, in.handle, uintptr(unsafe.Pointer(debug)), 0, uintptr(unsafe.Pointer(&in.messenger)))
		if err := check("vkCreateDebugUtilsMessengerEXT", r); err != nil {
			in.Destroy()
			return nil, fmt.Errorf("create a vulkan instance: %w", err)
		}
	}
	return in, nil
}

// Destroy closes the connection; all devices must have been destroyed.
func (in *Instance) Destroy() {
	if in.messenger != 0 {
		purego.SyscallN(in.fn.destroyMessenger, in.handle, uintptr(in.messenger), 0)
	}
	if in.fn.destroyInstance != 0 {
		purego.SyscallN(in.fn.destroyInstance, in.handle, 0)
	}
	dropHandler(in.handler)
	*in = Instance{}
}

// findings returns the handler of o; with GPUAssisted, without the layer's messages about
// its own settings: that it is slow, and which features it adds to a device for its checks.
func findings(o InstanceOptions) func(string) {
	if !o.GPUAssisted {
		return o.Validation
	}
	return func(m string) {
		if strings.HasPrefix(m, "VALIDATION-SETTINGS: ") && strings.Contains(m, "will be very slow") ||
			strings.HasPrefix(m, "WARNING-GPU-Assisted-Validation: ") && strings.Contains(m, "Internal Warning: Forcing ") ||
			strings.HasPrefix(m, "WARNING-Setting-Limit-Adjusted: ") && strings.Contains(m, "validation is adjusting settings") {
			return
		}
		o.Validation(m)
	}
}

// Handlers of validation messages, keyed by the number that Vulkan passes back.
var (
	handlersMu  sync.RWMutex
	handlers    = map[uintptr]func(string){}
	lastHandler uintptr
)

func addHandler(fn func(string)) uintptr {
	handlersMu.Lock()
	defer handlersMu.Unlock()
	lastHandler++
	handlers[lastHandler] = fn
	return lastHandler
}

func dropHandler(id uintptr) {
	handlersMu.Lock()
	defer handlersMu.Unlock()
	delete(handlers, id)
}

// messageCallback is the C function that calls handlers. There is one per
// process, since callbacks are never freed.
var messageCallback = sync.OnceValue(func() uintptr {
	return purego.NewCallback(func(severity, kinds uintptr, m *debugMessage, user uintptr) uintptr {
		handlersMu.RLock()
		fn := handlers[user]
		handlersMu.RUnlock()
		if fn != nil && m != nil {
			fn(goStringAt(m.idName) + ": " + goStringAt(m.message))
		}
		return 0
	})
})

// PhysicalDevice is a device that a driver offers, whether opened or not.
type PhysicalDevice struct {
	in     *Instance
	handle uintptr

	Name          string
	Driver        string // name and version as reported by the driver
	Kind          DeviceType
	Vendor, ID    uint32
	APIVersion    uint32
	DriverVersion uint32
	UUID          [16]byte // of the device
	CacheUUID     [16]byte // of the pipeline caches that the device accepts
	Limits        Limits

	MaxAllocation uint64 // bytes per allocation
	MaxBuffer     uint64 // bytes per buffer
	SubgroupSize  uint32
	MinSubgroup   uint32
	MaxSubgroup   uint32
	MaxSubgroups  uint32 // per compute workgroup

	Types []MemoryType
	Heaps []MemoryHeap

	// Features that matter here. Open requires the first four.
	DeviceAddress, Timeline, Sync2, Maintenance4         bool
	HostQueryReset                                       bool
	Float16, Float64, Int64, IntegerDot, SubgroupControl bool
	FullSubgroups                                        bool // shaders may request full subgroups of a given size
	MemoryModel                                          bool // with device scope

	Extensions []string // sorted

	// Matrices are the cooperative matrices of a subgroup, of bf16 or f16, that sum
	// in f32, in the driver's order.
	Matrices []MatrixShape

	queueFamily   uint32
	hasQueue      bool
	timestampBits uint32
}

// VersionString formats a Vulkan version as major.minor.patch.
func VersionString(v uint32) string {
	return fmt.Sprintf("%d.%d.%d", v>>22&0x7f, v>>12&0x3ff, v&0xfff)
}

// Has reports whether the device has an extension.
func (p *PhysicalDevice) Has(extension string) bool {
	_, ok := slices.BinarySearch(p.Extensions, extension)
	return ok
}

// Devices lists the devices of all drivers, in the loader's order, except those
// below Vulkan 1.3.
func (in *Instance) Devices() ([]*PhysicalDevice, error) {
	handles, err := enumerate("vkEnumeratePhysicalDevices", func(n *uint32, first *uintptr) uintptr {
		r, _, _ := purego.SyscallN(in.fn.enumerateDevices, in.handle, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(first)))
		return r
	})
	if err != nil {
		return nil, fmt.Errorf("list vulkan devices: %w", err)
	}
	var list []*PhysicalDevice
	for _, h := range handles {
		p := &PhysicalDevice{in: in, handle: h}
		if err := p.inspect(); err != nil {
			return nil, fmt.Errorf("inspect vulkan device %q: %w", p.Name, err)
		}
		if p.APIVersion >= apiVersion13 {
			list = append(list, p)
		}
	}
	return list, nil
}

func (p *PhysicalDevice) inspect() error {
	f := &p.in.fn
	base := &properties2{head: head{typ: typeProperties2}}
	purego.SyscallN(f.properties, p.handle, uintptr(unsafe.Pointer(base)))
	p.Name, p.Kind = goString(base.p.name[:]), base.p.kind
	p.APIVersion = base.p.apiVersion
	if p.APIVersion < apiVersion13 {
		return nil // it does not know the structures below
	}
	sub := &subgroupSizeControl{head: head{typ: typeSubgroupSizeControl}}
	m4 := &maintenance4Properties{head: head{typ: typeMaintenance4Properties, next: unsafe.Pointer(sub)}}
	drv := &driverProperties{head: head{typ: typeDriverProperties, next: unsafe.Pointer(m4)}}
	v11 := &vulkan11Properties{head: head{typ: typeVulkan11Properties, next: unsafe.Pointer(drv)}}
	base.next = unsafe.Pointer(v11)
	purego.SyscallN(f.properties, p.handle, uintptr(unsafe.Pointer(base)))
	p.Vendor, p.ID, p.DriverVersion = base.p.vendor, base.p.device, base.p.driverVersion
	p.CacheUUID, p.Limits = base.p.cacheUUID, base.p.limits
	p.Driver = goString(drv.name[:]) + " " + goString(drv.info[:])
	p.UUID, p.SubgroupSize, p.MaxAllocation = v11.deviceUUID, v11.subgroupSize, v11.maxMemoryAllocation
	p.MaxBuffer, p.MinSubgroup, p.MaxSubgroup, p.MaxSubgroups = m4.maxBufferSize, sub.min, sub.max, sub.perWorkgroup

	f13 := &vulkan13Features{head: head{typ: typeVulkan13Features}}
	f12 := &vulkan12Features{head: head{typ: typeVulkan12Features, next: unsafe.Pointer(f13)}}
	f2 := &features2{head: head{typ: typeFeatures2, next: unsafe.Pointer(f12)}}
	purego.SyscallN(f.features, p.handle, uintptr(unsafe.Pointer(f2)))
	p.DeviceAddress, p.Timeline = f12.f[feature12DeviceAddress] != 0, f12.f[feature12Timeline] != 0
	p.HostQueryReset, p.Float16 = f12.f[feature12HostReset] != 0, f12.f[feature12Float16] != 0
	p.Sync2, p.Maintenance4 = f13.f[feature13Sync2] != 0, f13.f[feature13Maintenance4] != 0
	p.IntegerDot, p.SubgroupControl = f13.f[feature13IntegerDot] != 0, f13.f[feature13SubgroupSize] != 0
	p.FullSubgroups = p.SubgroupControl && f13.f[feature13FullSubgroup] != 0 && sub.stages&shaderStageCompute != 0
	p.MemoryModel = f12.f[feature12MemoryModel] != 0 && f12.f[feature12MemoryDevice] != 0
	p.Float64, p.Int64 = f2.f[featureFloat64] != 0, f2.f[featureInt64] != 0

	mem := &memoryProperties2{head: head{typ: typeMemoryProperties2}}
	purego.SyscallN(f.memory, p.handle, uintptr(unsafe.Pointer(mem)))
	p.Types = slices.Clone(mem.types[:min(mem.typeCount, 32)])
	p.Heaps = slices.Clone(mem.heaps[:min(mem.heapCount, 16)])

	n := new(uint32)
	purego.SyscallN(f.queueFamilies, p.handle, uintptr(unsafe.Pointer(n)), 0)
	families := make([]queueFamilyProperties, *n+1)
	purego.SyscallN(f.queueFamilies, p.handle, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&families[0])))
	for i, q := range families[:*n] {
		// A family without graphics shares the device better with the desktop.
		if q.flags&QueueCompute != 0 && q.count > 0 && (!p.hasQueue || q.flags&QueueGraphics == 0) {
			p.queueFamily, p.hasQueue, p.timestampBits = uint32(i), true, q.timestampBits
			if q.flags&QueueGraphics == 0 {
				break
			}
		}
	}
	ext, err := enumerate("vkEnumerateDeviceExtensionProperties", func(n *uint32, first *extensionProperties) uintptr {
		r, _, _ := purego.SyscallN(f.deviceExtensions, p.handle, 0, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(first)))
		return r
	})
	p.Extensions = extensionNames(ext)
	slices.Sort(p.Extensions)
	p.Matrices = p.matrices()
	return err
}

// Extensions for cooperative matrices. Their functions and structures may be used
// only if a device lists them.
const (
	matrixExtension   = "VK_KHR_cooperative_matrix"
	bfloat16Extension = "VK_KHR_shader_bfloat16"
)

// matrices returns p.Matrices, none if the driver cannot list them.
func (p *PhysicalDevice) matrices() []MatrixShape {
	f := &p.in.fn
	if !p.Has(matrixExtension) || f.matrixShapes == 0 {
		return nil
	}
	bf16 := &bfloat16Features{head: head{typ: typeBFloat16Features}}
	matrix := &matrixFeatures{head: head{typ: typeMatrixFeatures}}
	if p.Has(bfloat16Extension) {
		matrix.next = unsafe.Pointer(bf16)
	}
	f2 := &features2{head: head{typ: typeFeatures2, next: unsafe.Pointer(matrix)}}
	purego.SyscallN(f.features, p.handle, uintptr(unsafe.Pointer(f2)))
	if matrix.matrix == 0 {
		return nil
	}
	n := new(uint32)
	if r, _, _ := purego.SyscallN(f.matrixShapes, p.handle, uintptr(unsafe.Pointer(n)), 0); Result(int32(r)) != success || *n == 0 {
		return nil
	}
	all := make([]matrixProperties, *n)
	for i := range all {
		all[i].typ = typeMatrixProperties
	}
	r, _, _ := purego.SyscallN(f.matrixShapes, p.handle, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&all[0])))
	if result := Result(int32(r)); result != success && result != incomplete {
		return nil
	}
	const subgroup = 3
	var shapes []MatrixShape
	for _, q := range all[:*n] {
		if q.scope != subgroup || q.saturating != 0 || q.a != q.b || q.c != ComponentF32 || q.result != ComponentF32 {
			continue
		}
		if q.a == ComponentF16 && p.Float16 || q.a == ComponentBF16 && bf16.scalars != 0 && bf16.matrix != 0 {
			shapes = append(shapes, MatrixShape{q.a, q.m, q.n, q.k})
		}
	}
	return shapes
}

// Budget returns, per heap, the bytes that this process may use and those it
// uses now, by EXT_memory_budget; ok is false without that extension.
func (p *PhysicalDevice) Budget() (budget, usage []uint64, ok bool) {
	if !p.Has("VK_EXT_memory_budget") {
		return nil, nil, false
	}
	b := &memoryBudget{head: head{typ: typeMemoryBudget}}
	mem := &memoryProperties2{head: head{typ: typeMemoryProperties2, next: unsafe.Pointer(b)}}
	purego.SyscallN(p.in.fn.memory, p.handle, uintptr(unsafe.Pointer(mem)))
	n := len(p.Heaps)
	return slices.Clone(b.budget[:n]), slices.Clone(b.usage[:n]), true
}

// Missing names something that Open requires and the device lacks, "" if nothing.
func (p *PhysicalDevice) Missing() string {
	switch {
	case !p.hasQueue:
		return "a compute queue"
	case !p.DeviceAddress:
		return "buffer device addresses"
	case !p.Timeline:
		return "timeline semaphores"
	case !p.Sync2:
		return "synchronization2"
	case !p.Maintenance4:
		return "maintenance4"
	}
	return ""
}
