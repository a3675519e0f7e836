// Package devicetest holds the tests of package model on a real device. They are
// a test binary of their own because a driver that faults ends the process.
//
// Without a device they skip, unless LUKV_MUST_VULKAN=1 turns that into a
// failure. LUKV_TEST_DEVICE names the device; the default is Mesa's software
// device.
package devicetest
