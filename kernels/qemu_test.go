package kernels

import (
	"testing"

	"github.com/lukv/lukv/internal/testqemu"
)

// TestARM64 runs this package's tests, including the operation table with its recorded
// results, and those of detmath as arm64 programs.
func TestARM64(t *testing.T) {
	for _, pkg := range []string{".", "../internal/detmath"} {
		testqemu.ARM64(t, pkg, "-test.short")
	}
}
