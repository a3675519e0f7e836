//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/kernels"
)

// ErrClosed says that the device was closed.
var ErrClosed = errors.New("device is closed")

// noDevice marks what the loader and the driver say where there is no Vulkan.
func noDevice(err error) error {
	if errors.Is(err, vk.ErrNotFound) {
		return fmt.Errorf("%w: %w", kernels.ErrNoDevice, err)
	}
	return err
}

func describe(i int, p *vk.PhysicalDevice) kernels.DeviceInfo {
	d := kernels.DeviceInfo{
		Index: i, Name: p.Name, UUID: hex.EncodeToString(p.UUID[:]), Kind: p.Kind.String(),
		Driver: p.Driver, API: "Vulkan " + vk.VersionString(p.APIVersion), Missing: missing(p), MaxAllocation: p.MaxAllocation,
	}
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"float16", p.Float16}, {"int64", p.Int64}, {"integer-dot", p.IntegerDot}, {"subgroup-control", p.SubgroupControl},
		{"cooperative-matrix", p.Has("VK_KHR_cooperative_matrix")}, {"bfloat16", p.Has("VK_KHR_shader_bfloat16")},
		{"memory-budget", p.Has("VK_EXT_memory_budget")}, {"timestamps", p.Limits.TimestampPeriod > 0},
	} {
		if f.has {
			d.Features = append(d.Features, f.name)
		}
	}
	heap := localHeap(p)
	if heap < 0 {
		return d
	}
	d.Memory = p.Heaps[heap].Size
	d.Free = d.Memory
	if budget, usage, ok := p.Budget(); ok {
		d.Free = budget[heap] - min(usage[heap], budget[heap])
	}
	return d
}

// localHeap is the largest device-local heap, -1 if there is none.
func localHeap(p *vk.PhysicalDevice) int {
	best := -1
	for i, h := range p.Heaps {
		if h.Flags&1 != 0 && (best < 0 || h.Size > p.Heaps[best].Size) {
			best = i
		}
	}
	return best
}

// What the shaders take for granted.
const (
	workgroup       = 256
	minSharedMemory = 32 << 10
	pushBytes       = 128
)

func missing(p *vk.PhysicalDevice) string {
	if m := p.Missing(); m != "" {
		return m
	}
	l := &p.Limits
	switch {
	case l.WorkgroupInvocations < workgroup || l.WorkgroupSize[0] < workgroup:
		return fmt.Sprintf("workgroups of %d (it has %d)", workgroup, min(l.WorkgroupInvocations, l.WorkgroupSize[0]))
	case l.SharedMemory < minSharedMemory:
		return fmt.Sprintf("%d bytes of shared memory (it has %d)", minSharedMemory, l.SharedMemory)
	case localHeap(p) < 0:
		return "device-local memory"
	}
	return ""
}

// Devices lists the devices of this system; without Vulkan the error is
// kernels.ErrNoDevice.
func Devices() ([]kernels.DeviceInfo, error) {
	mode, err := matrixMode("")
	if err != nil {
		return nil, err
	}
	in, list, err := connect(nil, false)
	if err != nil {
		return nil, err
	}
	defer in.Destroy()
	infos := describeAll(list)
	for i, p := range list {
		if u, why := unitsOf(p, mode); u != nil {
			infos[i].Matrices = u.String() + ", if they pass the check when it is opened"
		} else {
			infos[i].Matrices = noMatrices + why
		}
	}
	return infos, nil
}

// noMatrices begins what DeviceInfo.Matrices says when products do without.
const noMatrices = "none: "

func describeAll(list []*vk.PhysicalDevice) []kernels.DeviceInfo {
	infos := make([]kernels.DeviceInfo, len(list))
	for i, p := range list {
		infos[i] = describe(i, p)
	}
	return infos
}

func connect(validation func(string), gpuAssisted bool) (*vk.Instance, []*vk.PhysicalDevice, error) {
	lib, err := vk.Load()
	if err != nil {
		return nil, nil, noDevice(err)
	}
	in, err := lib.NewInstance(vk.InstanceOptions{Application: "lukv", Validation: validation, GPUAssisted: gpuAssisted})
	if err != nil {
		return nil, nil, noDevice(err)
	}
	list, err := in.Devices()
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%w: no driver offers a device with vulkan 1.3", kernels.ErrNoDevice)
	}
	if err != nil {
		in.Destroy()
		return nil, nil, noDevice(err)
	}
	return in, list, nil
}

// choose finds the device that a selector names: an index, a UUID (with or
// without dashes), or a part of exactly one name, whatever its case. The empty
// selector prefers discrete devices, then integrated ones, then the larger
// memory; it never takes a software device.
func choose(list []kernels.DeviceInfo, selector string) (int, error) {
	listing := func() string {
		var s []string
		for _, d := range list {
			text := fmt.Sprintf("%d: %s (%s)", d.Index, d.Name, d.Kind)
			if d.Missing != "" {
				text += ", which lacks " + d.Missing
			}
			s = append(s, text)
		}
		return strings.Join(s, "; ")
	}
	if selector == "" {
		rank := map[string]int{"discrete": 0, "integrated": 1, "virtual": 2, "other": 3}
		best := slices.Clone(list)
		best = slices.DeleteFunc(best, func(d kernels.DeviceInfo) bool { return d.Kind == "software" || d.Missing != "" })
		if len(best) == 0 {
			return 0, fmt.Errorf("choose a vulkan device: %w: found %s; a software device is used only when asked for", kernels.ErrNoDevice, listing())
		}
		slices.SortStableFunc(best, func(a, b kernels.DeviceInfo) int {
			return cmp.Or(cmp.Compare(rank[a.Kind], rank[b.Kind]), cmp.Compare(b.Memory, a.Memory))
		})
		return best[0].Index, nil
	}
	found := -1
	uuid := strings.ToLower(strings.ReplaceAll(selector, "-", ""))
	if i := slices.IndexFunc(list, func(d kernels.DeviceInfo) bool { return d.UUID == uuid }); i >= 0 {
		found = i
	} else if i, err := strconv.Atoi(selector); err == nil { // never a part of a name
		if i >= 0 && i < len(list) {
			found = i
		}
	} else {
		for i, d := range list {
			if !strings.Contains(strings.ToLower(d.Name), strings.ToLower(selector)) {
				continue
			}
			if found >= 0 {
				return 0, fmt.Errorf("choose vulkan device %q: %w: more than one name contains it, found %s", selector, kernels.ErrNoDevice, listing())
			}
			found = i
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("choose vulkan device %q: %w: expected an index, a uuid or a part of a name, found %s", selector, kernels.ErrNoDevice, listing())
	}
	if m := list[found].Missing; m != "" {
		return 0, fmt.Errorf("choose vulkan device %q: %w: %s lacks %s", selector, kernels.ErrNoDevice, list[found].Name, m)
	}
	return found, nil
}

// Options say how to open a device. The zero value is ready.
type Options struct {
	// MaxBytes bounds the device memory that is taken, 0 for what the driver gives.
	MaxBytes uint64

	// BlockBytes is the size of the blocks that memory is taken in, 256 MiB if 0
	// and less where the device is small.
	BlockBytes uint64

	// CacheDir is where compiled pipelines are kept between runs: a folder of
	// the user's cache directory if empty, nothing is kept if "-".
	CacheDir string

	// Matrices says which matrix units products of bf16 activations by bf16 weights
	// use. "auto": those for bf16, if the device has them and they pass a check,
	// which takes an instant; then DeviceInfo.Matrices names them, otherwise it says why
	// not. "off": none. "f16": those for f16, which is an error where that is not
	// possible; numbers that f16 does not hold are changed, so this is for tests on
	// devices without bf16 units. Empty: the environment variable
	// LUKV_VULKAN_MATRICES, or "auto".
	Matrices string

	// Validation receives the messages of the validation layer, for tests; nil
	// for none. GPUAssisted adds checks of every address in shaders. The layer
	// knows the driver's buffers, so each buffer becomes one of them.
	Validation  func(message string)
	GPUAssisted bool

	checkUnits func(*Device) error // nil for that of this package; tests have others
}

// Open opens the device that selector names (see [Devices]): its index, its UUID, or
// a part of exactly one name. The empty selector means the best device that is no
// software.
func Open(selector string, o Options) (*Device, error) {
	mode, err := matrixMode(o.Matrices)
	if err != nil {
		return nil, err
	}
	in, list, err := connect(o.Validation, o.GPUAssisted)
	if err != nil {
		return nil, err
	}
	infos := describeAll(list)
	i, err := choose(infos, selector)
	if err != nil {
		in.Destroy()
		return nil, err
	}
	u, why := unitsOf(list[i], mode)
	d, err := openChecked(in, list[i], infos[i], u, why, o)
	if err == nil && mode == matricesF16 && d.units == nil {
		err = fmt.Errorf("open %s: matrices of f16: %s", d.info.Name, strings.TrimPrefix(d.info.Matrices, noMatrices))
		d.abandon()
	}
	if err != nil {
		in.Destroy()
		return nil, err
	}
	return d, nil
}

// openChecked opens a device with matrix units, if any, and without them if they fail
// the check; why says why there are none.
func openChecked(in *vk.Instance, p *vk.PhysicalDevice, info kernels.DeviceInfo, u *units, why string, o Options) (*Device, error) {
	if u != nil {
		check := o.checkUnits
		if check == nil {
			check = checkUnits
		}
		d, err := open(in, p, info, u, o)
		if err == nil {
			if err = check(d); err == nil {
				d.info.Matrices = u.String()
				return d, nil
			}
			d.abandon()
		}
		why = fmt.Sprintf("%v failed the check: %v", u, err)
	}
	info.Matrices = noMatrices + why
	return open(in, p, info, nil, o)
}
