//go:build !novulkan

package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/bench"
)

// These tests run models on Mesa's Vulkan software device, and skip if there is none;
// LUKV_MUST_VULKAN=1 turns that into a failure. A fault in a driver ends its process
// without a Go trace, so each command line runs in its own process.

const softwareDevice = "vulkan:llvmpipe"

// process runs a command line in a process of its own.
func process(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(append(os.Environ(), commandEnv+"=1", "XDG_CACHE_HOME="+testDir), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// onDevice is process for a command line that must succeed.
func onDevice(t *testing.T, args ...string) string {
	t.Helper()
	o := process(t, nil, args...)
	require.Equal(t, exitOK, o.code, "lukv %s\n%s", strings.Join(args, " "), o.err)
	return o.out
}

var software struct {
	sync.Once
	found bool
	list  string
}

// needDevice skips unless the software device is there.
func needDevice(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a model on a software device")
	}
	software.Do(func() {
		o := process(t, nil, "devices", "--json")
		software.list = o.out + o.err
		var l deviceList
		if o.code != exitOK || json.Unmarshal([]byte(o.out), &l) != nil {
			return
		}
		for _, d := range l.Drivers {
			for _, x := range d.Devices {
				software.found = software.found || d.Name == "vulkan" && strings.Contains(x.Name, "llvmpipe") && x.Missing == ""
			}
		}
	})
	switch {
	case software.found:
	case os.Getenv("LUKV_MUST_VULKAN") == "1":
		t.Fatalf("LUKV_MUST_VULKAN is set, but there is no software device:\n%s", software.list)
	default:
		t.Skip("no vulkan software device")
	}
}

func TestDeviceRun(t *testing.T) {
	needDevice(t)
	s, path := sample(t, "niah_single_2", 256)
	args := []string{"run", "builtin", "--context", path, "--answer-prefix", s.AnswerPrefix, s.Question}
	for _, more := range [][]string{nil, {"--ratio", "0.5", "--metric", "keydiff", "--allocator", "lukv"}} {
		want := ok(t, append(args, more...)...)
		assert.Equal(t, want, onDevice(t, append(append(args, more...), "--device", softwareDevice)...), more)
	}
	want := ok(t, args...)
	r := decode[runResult](t, onDevice(t, append(args, "--device", softwareDevice, "--gpu-layers", "2", "--json")...))
	assert.Equal(t, strings.TrimSpace(want), strings.TrimSpace(r.Answer))
	assert.Contains(t, r.Stats.Device, "llvmpipe")
	assert.Equal(t, 2, r.Stats.DeviceLayers)

	// The variable takes the place of the flag, and --stats names the device.
	o := process(t, []string{"LUKV_DEVICE=" + softwareDevice}, append(args, "--stats")...)
	require.Equal(t, exitOK, o.code, o.err)
	assert.Equal(t, want, o.out)
	assert.Regexp(t, `(?m)^device    llvmpipe.*, 6 layers$`, o.err)

	// Saved on the device, loaded on the processor, and the other way round.
	file := filepath.Join(t.TempDir(), "context.session")
	save := []string{"run", "builtin", "--context", path, "--ratio", "0.5", "--save", file}
	load := []string{"run", "builtin", "--load", file, "--answer-prefix", s.AnswerPrefix, s.Question}
	direct := ok(t, append(args, "--ratio", "0.5")...)
	onDevice(t, append(save, "--device", softwareDevice)...)
	assert.Equal(t, direct, ok(t, load...))
	ok(t, save...)
	assert.Equal(t, direct, onDevice(t, append(load, "--device", softwareDevice)...))
}

func TestDeviceEval(t *testing.T) {
	needDevice(t)
	args := []string{"eval", "builtin", "--data", shortData(t), "--limit", "2", "--ratio", "0.5", "--json"}
	want := decode[evalResult](t, ok(t, args...))
	got := decode[evalResult](t, onDevice(t, append(args, "--device", softwareDevice)...))
	require.Len(t, got.Rows, len(want.Rows))
	for i, row := range got.Rows {
		assert.Equal(t, want.Rows[i].Method, row.Method)
		assert.Equal(t, want.Rows[i].Score, row.Score, row.Method)
		assert.Equal(t, want.Rows[i].RatioAchieved, row.RatioAchieved, row.Method)
	}
	assert.NotEqual(t, want.Hash, got.Hash, "answers of different devices do not mix")
}

func TestDeviceBench(t *testing.T) {
	needDevice(t)
	r := decode[bench.Report](t, onDevice(t, "bench", "builtin", "--device", softwareDevice, "--pp", "32", "--tg", "2", "--depth", "0,100", "--reps", "1", "--json"))
	require.NotNil(t, r.Device)
	assert.Contains(t, r.Device.Info.Name, "llvmpipe")
	assert.NotEmpty(t, r.Device.Info.Driver)
	require.Len(t, r.Points, 4)
	for _, p := range r.Points {
		assert.Empty(t, p.Error)
		assert.Contains(t, p.Device, "llvmpipe")
		assert.Positive(t, p.DeviceBytes)
		assert.Positive(t, p.Speed)
	}
}

func TestDeviceList(t *testing.T) {
	needDevice(t)
	text := onDevice(t, "devices")
	assert.Contains(t, text, "  cpu  ")
	assert.Regexp(t, `(?m)^  vulkan:\d+  llvmpipe`, text, "software is never the default")
	assert.Contains(t, text, "Vulkan 1.")
}

func TestDeviceErrors(t *testing.T) {
	one := func(o outcome, code int, want string) {
		t.Helper()
		assert.Equal(t, code, o.code, o.err)
		assert.Contains(t, o.err, want)
		assert.Equal(t, 1, strings.Count(o.err, "\n"), "expected one line, found %q", o.err)
		assert.Empty(t, o.out)
	}
	// Whatever hardware the system has, there is no device without a driver.
	without := []string{"VK_DRIVER_FILES=" + filepath.Join(t.TempDir(), "none"), "VK_ICD_FILENAMES="}
	one(process(t, without, "run", "builtin", "--device", "vulkan", "x"), exitDevice, "no such device")
	one(process(t, without, "bench", "builtin", "--device", "vulkan", "--tg", "1"), exitDevice, "no such device")
	l := decode[deviceList](t, process(t, without, "devices", "--json").out)
	require.NotEmpty(t, l.Drivers)
	assert.Contains(t, l.Drivers[0].Error, "no such device")
	assert.NotEmpty(t, l.CPU.Set)

	needDevice(t)
	one(process(t, nil, "run", "builtin", "--device", "vulkan:no-such-card", "x"), exitDevice, "llvmpipe")
	one(process(t, nil, "run", "builtin", "--device", softwareDevice, "--max-cache", "1KiB", "x"), exitFull, "cache is full")
}
