package command

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/klauspost/cpuid/v2"

	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/kernels"
)

type devicesCmd struct {
	JSON bool `help:"Print one JSON object."`
}

func (devicesCmd) Help() string {
	return `List the processor and every accelerator that a driver of this program finds, with the names that --device takes. A star marks the device that the driver's name selects; software devices are selected only by index, name or UUID. If a driver finds none, the list gives the reason, and the exit status is still 0.

Examples:

  lukv devices

  lukv run DIR --device vulkan "question"

  lukv run DIR --device vulkan:1 "question"

  LUKV_DEVICE=vulkan:radeon lukv chat DIR`
}

// deviceList is printed by devices --json.
type deviceList struct {
	CPU     cpuInfo      `json:"cpu"`
	Drivers []driverInfo `json:"drivers"`
}

type cpuInfo struct {
	Name    string   `json:"name"`
	Threads int      `json:"threads"` // used by models by default
	Set     string   `json:"set"`     // instruction set in use
	Sets    []string `json:"sets"`    // accepted by --cpu here
}

type driverInfo struct {
	Name    string       `json:"name"`
	Error   string       `json:"error,omitempty"` // reason why no device was found
	Note    string       `json:"note,omitempty"`  // why none is the default
	Devices []deviceInfo `json:"devices"`
}

type deviceInfo struct {
	kernels.DeviceInfo
	Default bool `json:"default"` // selected by the driver's name alone
}

func (c *devicesCmd) Run(e *env) error {
	list := deviceList{CPU: describeCPU(), Drivers: []driverInfo{}}
	for _, d := range kernels.DeviceDrivers() {
		list.Drivers = append(list.Drivers, describeDriver(d))
	}
	if c.JSON {
		return e.writeJSON("lukv devices 1", list)
	}
	return list.write(e.out)
}

func describeCPU() cpuInfo {
	c := cpuInfo{
		Name: cmp.Or(cpuid.CPU.BrandName, "unknown processor"), Threads: runtime.GOMAXPROCS(0), Set: kernels.Detect().String(),
	}
	for _, v := range kernels.Variants() {
		c.Sets = append(c.Sets, v.String())
	}
	return c
}

func describeDriver(d kernels.DeviceDriver) driverInfo {
	info := driverInfo{Name: d.Name(), Devices: []deviceInfo{}}
	all, err := d.Devices()
	if err != nil {
		info.Error = oneLine(err)
		return info
	}
	for _, x := range all {
		info.Devices = append(info.Devices, deviceInfo{DeviceInfo: x})
	}
	// Only the driver knows which device it prefers.
	best, err := d.Open("")
	if err != nil {
		info.Note = oneLine(err)
		return info
	}
	defer best.Close()
	if i := slices.IndexFunc(info.Devices, func(x deviceInfo) bool { return x.Index == best.Info().Index }); i >= 0 {
		info.Devices[i].Default = true
		info.Devices[i].Matrices = best.Info().Matrices // as found on opening
	}
	return info
}

func (l *deviceList) write(w io.Writer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "    %-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "  cpu  %s\n", l.CPU.Name)
	line("threads", "%d", l.CPU.Threads)
	line("sets", "%s in use, of %s", l.CPU.Set, strings.Join(l.CPU.Sets, ", "))
	if len(l.Drivers) == 0 {
		fmt.Fprintln(&b, "no device drivers: this program was built without them (-tags novulkan)")
	}
	for _, d := range l.Drivers {
		if d.Error != "" {
			fmt.Fprintf(&b, "%s: %s\n", d.Name, d.Error)
		}
		for _, x := range d.Devices {
			mark := " "
			if x.Default {
				mark = "*"
			}
			fmt.Fprintf(&b, "%s %s:%d  %s\n", mark, d.Name, x.Index, x.Name)
			line("kind", "%s", x.Kind)
			line("uuid", "%s", x.UUID)
			line("driver", "%s, %s", x.Driver, x.API)
			line("memory", "%s, %s free, %s in one piece", report.Bytes(int64(x.Memory)), report.Bytes(int64(x.Free)), report.Bytes(int64(min(x.MaxAllocation, 1<<62))))
			if len(x.Features) > 0 {
				line("features", "%s", strings.Join(x.Features, ", "))
			}
			if x.Matrices != "" {
				line("matrices", "%s", x.Matrices)
			}
			if x.Missing != "" {
				line("lacks", "%s: it cannot be used", x.Missing)
			}
		}
		if d.Note != "" {
			fmt.Fprintf(&b, "%s alone: %s\n", d.Name, d.Note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// deviceFlags choose where a model runs.
type deviceFlags struct {
	Device    string `group:"model" env:"LUKV_DEVICE" default:"cpu" placeholder:"NAME" help:"Run the model on cpu or on an accelerator (see lukv devices) such as vulkan, vulkan:1 or vulkan:NAME (default: LUKV_DEVICE, or cpu)."`
	GPULayers *int   `group:"model" name:"gpu-layers" placeholder:"N" help:"With --device: run only the first N layers there, with their cache (default: all layers)."`
}

// device returns the name for model.WithDevice, "" for the processor, and the
// number of layers on it, 0 for all.
func (f *deviceFlags) device() (name string, layers int, err error) {
	if f.GPULayers != nil {
		if layers = *f.GPULayers; layers < 1 {
			return "", 0, usage("--gpu-layers: found %d, expected 1 or more", layers)
		}
	}
	if f.Device == "" || f.Device == "cpu" {
		if f.GPULayers != nil {
			return "", 0, usage("--gpu-layers: the device is cpu, expected an accelerator with --device")
		}
		return "", 0, nil
	}
	driver, _, _ := strings.Cut(f.Device, ":")
	known := []string{"cpu"}
	for _, d := range kernels.DeviceDrivers() {
		if d.Name() == driver {
			return f.Device, layers, nil
		}
		known = append(known, d.Name(), d.Name()+":INDEX", d.Name()+":NAME", d.Name()+":UUID")
	}
	if len(known) == 1 {
		return "", 0, fmt.Errorf("%w: %q: this program was built without device drivers (-tags novulkan)", kernels.ErrNoDevice, f.Device)
	}
	return "", 0, usage("--device: found %q, expected one of %s", f.Device, strings.Join(known, ", "))
}
