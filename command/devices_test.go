package command

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
)

// commandEnv makes the test program act as the command.
const commandEnv = "LUKV_TEST_COMMAND"

func TestMain(m *testing.M) {
	switch os.Getenv(commandEnv) {
	case "broken":
		kernels.RegisterDevice(brokenDriver{})
		Main()
	case "1":
		Main()
	}
	os.Exit(runTests(m))
}

// testDir is a folder shared by all tests of a run, for such things as compiled shaders.
var testDir string

func runTests(m *testing.M) int {
	probeTime, probeBytes = time.Millisecond, 4<<20
	var err error
	if testDir, err = os.MkdirTemp("", "lukv-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(testDir)
	os.Unsetenv("LUKV_DEVICE")
	kernels.RegisterDevice(brokenDriver{})
	return m.Run()
}

// brokenDriver lists two devices and opens none.
type brokenDriver struct{}

func (brokenDriver) Name() string { return "broken" }

func (brokenDriver) Devices() ([]kernels.DeviceInfo, error) {
	return []kernels.DeviceInfo{
		{Index: 0, Name: "First Card", UUID: "00ff", Kind: "discrete", Driver: "some 1.2", API: "Other 3.4", Memory: 8 << 30, Free: 7 << 30, MaxAllocation: 4 << 30, Features: []string{"float16", "timestamps"}, Matrices: "none: it has none"},
		{Index: 1, Name: "Second Card", Kind: "software", Missing: "64-bit integers"},
	}, nil
}

func (brokenDriver) Open(selector string) (kernels.Device, error) {
	switch selector {
	case "full":
		return nil, fmt.Errorf("open the model on First Card: %w: it needs 9 GiB, 7 GiB are free", kernels.ErrDeviceMemory)
	case "crash":
		crashed := make(chan struct{})
		go func() {
			defer close(crashed)
			panic("a fault in a driver")
		}()
		<-crashed
	case "lost":
		return nil, fmt.Errorf("open First Card: %w", kernels.ErrDeviceLost)
	}
	return nil, fmt.Errorf("choose a device %q: %w: found two", selector, kernels.ErrNoDevice)
}

func TestDevices(t *testing.T) {
	l := decode[deviceList](t, ok(t, "devices", "--json"))
	assert.NotEmpty(t, l.CPU.Name)
	assert.Positive(t, l.CPU.Threads)
	assert.Equal(t, kernels.Detect().String(), l.CPU.Set)
	assert.Contains(t, l.CPU.Sets, "portable")
	var broken driverInfo
	for _, d := range l.Drivers {
		if d.Name == "broken" {
			broken = d
		}
	}
	require.Len(t, broken.Devices, 2)
	assert.Equal(t, "First Card", broken.Devices[0].Name)
	assert.False(t, broken.Devices[0].Default)
	assert.Contains(t, broken.Note, "no such device")

	text := ok(t, "devices")
	for _, want := range []string{
		"  cpu  " + l.CPU.Name, "in use, of portable", "  broken:0  First Card", "memory    8.0 GiB, 7.0 GiB free, 4.0 GiB in one piece",
		"features  float16, timestamps", "matrices  none: it has none", "lacks     64-bit integers: it cannot be used", `broken alone: choose a device ""`,
	} {
		assert.Contains(t, text, want)
	}
}

// Without drivers, and without devices, the list says so and why.
func TestDevicesWithout(t *testing.T) {
	var b strings.Builder
	require.NoError(t, (&deviceList{CPU: describeCPU()}).write(&b))
	assert.Contains(t, b.String(), "no device drivers")
	b.Reset()
	require.NoError(t, (&deviceList{Drivers: []driverInfo{{Name: "x", Error: "no such device: no loader"}}}).write(&b))
	assert.Contains(t, b.String(), "x: no such device: no loader\n")
	b.Reset()
	l := &deviceList{Drivers: []driverInfo{{Name: "x", Devices: []deviceInfo{{DeviceInfo: kernels.DeviceInfo{Index: 3, Name: "y"}, Default: true}}}}}
	require.NoError(t, l.write(&b))
	assert.Contains(t, b.String(), "* x:3  y\n")
}

func TestDeviceFlags(t *testing.T) {
	fails(t, exitUsage, `--device: found "crayon", expected one of cpu, `, "run", "builtin", "--device", "crayon", "x")
	fails(t, exitUsage, `--device: found "cpu:0"`, "eval", "builtin", "--device", "cpu:0")
	fails(t, exitUsage, "--gpu-layers: the device is cpu", "run", "builtin", "--gpu-layers", "3", "x")
	fails(t, exitUsage, "--gpu-layers: found 0", "bench", "builtin", "--device", "broken", "--gpu-layers", "0")
	fails(t, exitFull, "out of device memory: it needs 9 GiB", "run", "builtin", "--device", "broken:full", "x")
	fails(t, exitDevice, "device lost", "run", "builtin", "--device", "broken:lost", "x")
	fails(t, exitDevice, "no such device", "run", "builtin", "--device", "broken", "x")
	fails(t, exitDevice, "device lost", "bench", "builtin", "--device", "broken:lost", "--tg", "1")

	t.Setenv("LUKV_DEVICE", "broken:lost")
	fails(t, exitDevice, "device lost", "run", "builtin", "x")
	assert.NotEmpty(t, ok(t, "run", "builtin", "--device", "cpu", "x"), "the flag comes before the variable")
}
