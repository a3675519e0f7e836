package model

import (
	"github.com/lukv/lukv/examples/device"
	"github.com/lukv/lukv/internal/testdevice"
	"github.com/lukv/lukv/kernels"
)

// newFakeDevice returns a device in host memory that computes with package kernels, so that
// a model on it must give exactly the bits of one without. It can be told to fail.
func newFakeDevice() *testdevice.Device { return testdevice.New(device.New(kernels.Detect())) }
