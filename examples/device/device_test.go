package device_test

import (
	"testing"

	"github.com/lukv/lukv/examples/device"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kernels/conformance"
)

// TestConformance runs the suite on every instruction set of the processor, with -short on
// the best.
func TestConformance(t *testing.T) {
	variants := kernels.Variants()
	if testing.Short() {
		variants = variants[len(variants)-1:]
	}
	for _, cpu := range variants {
		t.Run(cpu.String(), func(t *testing.T) {
			conformance.Run(t, conformance.Options{
				Open:  func(testing.TB) kernels.Device { return device.New(cpu) },
				Exact: true, Allocates: true,
			})
		})
	}
}
