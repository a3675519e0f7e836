//go:build novulkan

package command

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lukv/lukv/kernels"
)

// Built without Vulkan, the program has no driver but the tests' own.
func TestNoVulkan(t *testing.T) {
	for _, d := range kernels.DeviceDrivers() {
		assert.Equal(t, "broken", d.Name())
	}
	fails(t, exitUsage, `--device: found "vulkan"`, "run", "builtin", "--device", "vulkan", "x")
}
