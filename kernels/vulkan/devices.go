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

// ErrClosed reports that the device is closed.
var ErrClosed = errors.New("device is closed")

// noDevice makes errors that report missing Vulkan match kernels.ErrNoDevice.
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

// localHeap returns the largest device-local heap, -1 if there is none.
func localHeap(p *vk.PhysicalDevice) int {
	best := -1
	for i, h := range p.Heaps {
		if h.Flags&1 != 0 && (best < 0 || h.Size > p.Heaps[best].Size) {
			best = i
		}
	}
	return best
}

// Requirements of the shaders.
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

// Devices lists the devices of this system. Without Vulkan the error is
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

// noMatrices is the prefix of DeviceInfo.Matrices if products do not use matrix units.
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

// choose finds the device that a selector names: an index, a UUID (with or without
// dashes), or a part of exactly one name, ignoring case. The empty selector prefers
// discrete devices, then integrated, virtual and other ones, and among equals the
// larger memory; it never takes a software device.
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

// Options says how to open a device. The zero value is ready to use.
type Options struct {
	// MaxBytes limits the device memory that is taken, 0 for whatever the driver gives.
	MaxBytes uint64

	// BlockBytes is the size of the blocks in which memory is taken. If 0, it is 256
	// MiB, or less if the device is small.
	BlockBytes uint64

	// CacheDir is where compiled pipelines are kept between runs: if empty, a folder
	// in the user's cache directory; if "-", nowhere.
	CacheDir string

	// Matrices says which matrix units are used for products of bf16 activations by
	// bf16 weights. "auto": those for bf16, if the device has them and they pass a quick
	// check; DeviceInfo.Matrices then names them, otherwise it says why not. "off": none.
	// "f16": those for f16, or an error if that is not possible; numbers that f16 cannot
	// represent are changed, so this is for tests on devices without bf16 units. Empty:
	// the environment variable LUKV_VULKAN_MATRICES, or "auto".
	Matrices string

	// Validation, if not nil, receives the messages of the validation layer, for
	// tests. GPUAssisted adds checks of every address in shaders. The layer only
	// knows the driver's buffers, so each of our buffers becomes a driver buffer of its own.
	Validation  func(message string)
	GPUAssisted bool

	checkUnits func(*Device) error // nil for that of this package; tests use others
}

// Open opens the device that selector names (see [Devices]): its index, its UUID, or
// a part of exactly one name. The empty selector means the best hardware device.
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
	if err == nil && mode == matricesF16 && d.matrixUnits == nil {
		err = fmt.Errorf("open %s: matrices of f16: %s", d.info.Name, strings.TrimPrefix(d.info.Matrices, noMatrices))
		d.abandon()
	}
	if err != nil {
		in.Destroy()
		return nil, err
	}
	return d, nil
}

// openChecked opens a device with the matrix units u, or without any if they fail the
// check or u is nil, for the reason given by why.
func openChecked(in *vk.Instance, p *vk.PhysicalDevice, info kernels.DeviceInfo, u *matrixUnits, why string, o Options) (*Device, error) {
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
