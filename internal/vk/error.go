//go:build (linux || darwin || windows) && (amd64 || arm64)

package vk

import (
	"errors"
	"fmt"
)

// Result is a VkResult.
type Result int32

const (
	success          Result = 0
	notReady         Result = 1
	timeout          Result = 2
	incomplete       Result = 5
	outOfHostMemory  Result = -1
	outOfDevMemory   Result = -2
	initFailed       Result = -3
	deviceLost       Result = -4
	mapFailed        Result = -5
	layerMissing     Result = -6
	extensionMissing Result = -7
	featureMissing   Result = -8
	badDriver        Result = -9
	tooManyObjects   Result = -10
)

var resultNames = map[Result]string{
	notReady: "not ready", timeout: "timeout", incomplete: "incomplete",
	outOfHostMemory: "out of host memory", outOfDevMemory: "out of device memory",
	initFailed: "initialisation failed", deviceLost: "device lost", mapFailed: "memory map failed",
	layerMissing: "layer not present", extensionMissing: "extension not present",
	featureMissing: "feature not present", badDriver: "no compatible driver",
	tooManyObjects: "too many objects",
}

func (r Result) String() string {
	if s, ok := resultNames[r]; ok {
		return s
	}
	return fmt.Sprintf("result %d", int32(r))
}

var (
	// ErrDeviceLost reports that the device stopped working: a reset, a fault in a
	// shader, a removed card. All its objects are unusable; destroy them, and open
	// the device again or do without.
	ErrDeviceLost = errors.New("device lost")

	// ErrOutOfDeviceMemory reports that an allocation on the device failed.
	ErrOutOfDeviceMemory = errors.New("out of device memory")

	// ErrNotFound reports that this system has no Vulkan: no loader or no driver.
	ErrNotFound = errors.New("vulkan is not available")

	// ErrTimeout reports that a wait ended before the event.
	ErrTimeout = errors.New("timeout")
)

// Error is the failure of a Vulkan function.
type Error struct {
	Call   string // Vulkan's name of the function
	Result Result
}

func (e *Error) Error() string { return e.Call + ": " + e.Result.String() }

// Is makes errors.Is match the sentinel errors of this package.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrDeviceLost:
		return e.Result == deviceLost
	case ErrOutOfDeviceMemory:
		return e.Result == outOfDevMemory
	case ErrNotFound:
		return e.Result == badDriver
	case ErrTimeout:
		return e.Result == timeout
	}
	return false
}

// DeviceLost returns the error of a lost device, for tests that inject one.
func DeviceLost(call string) error { return &Error{call, deviceLost} }

func check(call string, r uintptr) error {
	if res := Result(int32(r)); res != success {
		return &Error{call, res}
	}
	return nil
}
