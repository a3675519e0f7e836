// Package devicetest holds the tests of package model on a real device. They are
// in a separate test binary because a fault in a driver ends the process.
//
// Without a device they skip, unless LUKV_MUST_VULKAN=1 turns that into a
// failure. LUKV_TEST_DEVICE names the device; the default is Mesa's software
// device. The validation layer checks them if it is installed, and
// LUKV_VULKAN_GPU_ASSISTED=1 adds its checks of every address (scripts/vulkan-new).
package devicetest
