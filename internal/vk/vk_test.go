//go:build (linux || darwin || windows) && (amd64 || arm64)

package vk

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrors(t *testing.T) {
	for result, want := range map[Result]error{
		deviceLost: ErrDeviceLost, outOfDevMemory: ErrOutOfDeviceMemory, badDriver: ErrNotFound, timeout: ErrTimeout,
	} {
		err := fmt.Errorf("compute: %w", check("vkSomething", uintptr(uint32(result))))
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, "vkSomething: "+result.String())
		for _, other := range []error{ErrDeviceLost, ErrOutOfDeviceMemory, ErrNotFound, ErrTimeout} {
			require.Equal(t, other == want, errors.Is(err, other))
		}
	}
	require.NoError(t, check("vkSomething", 0))
	require.ErrorContains(t, check("vkSomething", ^uintptr(998)), "result -999")
	require.ErrorIs(t, DeviceLost("vkQueueSubmit2"), ErrDeviceLost)
}

func TestStrings(t *testing.T) {
	for _, s := range []string{"", "a", "VK_KHR_something"} {
		require.Equal(t, s, goStringAt(cString(s)))
		require.Equal(t, s, goString(append([]byte(s), 0, 'x')))
	}
	require.Equal(t, "", goStringAt(nil))
	require.Equal(t, "1.3.230", VersionString(1<<22|3<<12|230))
	require.Equal(t, "software", Software.String())
	require.Equal(t, "unknown", DeviceType(9).String())
}

func instance(t *testing.T, o InstanceOptions) *Instance {
	t.Helper()
	lib, err := Load()
	if err == nil && o.Validation != nil && !lib.HasValidation() {
		t.Skip("the validation layer is not installed")
	}
	var in *Instance
	if err == nil {
		in, err = lib.NewInstance(o)
	}
	if err != nil {
		if os.Getenv("LUKV_MUST_VULKAN") == "1" {
			t.Fatalf("LUKV_MUST_VULKAN is set, but: %v", err)
		}
		t.Skipf("no vulkan: %v", err)
	}
	t.Cleanup(func() {
		if in.handle != 0 {
			in.Destroy()
		}
	})
	return in
}

func TestDeviceLifetime(t *testing.T) {
	in := instance(t, InstanceOptions{Application: "test"})
	list, err := in.Devices()
	require.NoError(t, err)
	for _, p := range list {
		require.NotEmpty(t, p.Name)
		require.NotEmpty(t, p.Heaps)
		require.GreaterOrEqual(t, p.Limits.PushConstants, uint32(128), "Vulkan 1.3 promises that")
		require.GreaterOrEqual(t, p.Limits.WorkgroupCount[0], uint32(65535))
		require.NotZero(t, p.Limits.NonCoherentAtomSize)
		if p.Missing() != "" {
			t.Logf("%s lacks %s", p.Name, p.Missing())
			continue
		}
		d, err := p.Open(OpenOptions{Matrices: true})
		if len(p.Matrices) == 0 {
			require.ErrorContains(t, err, "cooperative matrices")
		} else {
			t.Logf("%s has %v", p.Name, p.Matrices)
			require.NoError(t, err)
			d.Destroy()
		}
		d, err = p.Open(OpenOptions{})
		require.NoError(t, err)
		s, err := d.CreateSemaphore()
		require.NoError(t, err)
		require.ErrorIs(t, d.WaitSemaphore(s, 1, 1000), ErrTimeout)
		require.Zero(t, testing.AllocsPerRun(20, func() { _ = d.WaitSemaphore(s, 1, 1000) }), "waiting in vain")
		pool, err := d.CreateCommandPool()
		require.NoError(t, err)
		c, err := d.AllocateCommandBuffer(pool)
		require.NoError(t, err)
		require.NoError(t, d.Begin(c, false))
		require.NoError(t, d.End(c))
		for i := uint64(1); i <= 3; i++ {
			require.NoError(t, d.Submit(c, s, i))
			require.NoError(t, d.WaitSemaphore(s, i, 1e10))
			v, err := d.SemaphoreValue(s)
			require.NoError(t, err)
			require.Equal(t, i, v)
		}
		require.NoError(t, d.WaitIdle())
		d.FreeCommandBuffer(pool, c)
		d.DestroyCommandPool(pool)
		d.DestroySemaphore(s)
		d.Destroy()
	}
}

// The handler receives what the layer finds: here, a buffer without a use, which drivers
// put up with.
func TestValidationReports(t *testing.T) {
	var messages []string
	in := instance(t, InstanceOptions{Application: "test", Validation: func(m string) { messages = append(messages, m) }})
	list, err := in.Devices()
	require.NoError(t, err)
	for _, p := range list {
		if p.Missing() != "" {
			continue
		}
		d, err := p.Open(OpenOptions{})
		require.NoError(t, err)
		require.Empty(t, messages)
		buffer, _, _, _, err := d.CreateBuffer(4096, 0)
		require.NoError(t, err)
		d.DestroyBuffer(buffer)
		d.Destroy()
		require.NotEmpty(t, messages)
		require.Contains(t, strings.Join(messages, "\n"), "VkBufferCreateInfo")
		return
	}
	t.Skip("no device can be opened")
}
