package model

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/weights"
)

// WithDevice makes the model compute on an accelerator, named driver[:selector] as
// for [kernels.OpenDevice], such as "vulkan" or "vulkan:1". The program must import
// the driver's package. The model opens and closes the device. "" (the default) and
// "cpu" mean the processor alone.
//
// Opening fails with kernels.ErrNoDevice, or with kernels.ErrDeviceMemory where
// the weights do not fit; see WithDeviceLayers.
func WithDevice(name string) Option { return func(o *options) { o.deviceName = name } }

// WithOpenDevice is WithDevice for a device that the caller has opened and
// closes after the model.
func WithOpenDevice(d kernels.Device) Option { return func(o *options) { o.device = d } }

// WithDeviceLayers puts only the first n layers and their caches on the device;
// the processor computes the others and the head. By default, and if n is at
// least the model's number of layers, everything is on the device.
func WithDeviceLayers(n int) Option { return func(o *options) { o.deviceLayers = &n } }

// Device returns the accelerator that the model computes on, nil if there is none.
func (m *Model) Device() kernels.Device {
	if m.net.Device == nil {
		return nil
	}
	return m.net.Device.Kernels()
}

// DeviceLayers returns how many of the layers, from the first, are on the device.
func (m *Model) DeviceLayers() int {
	if m.net.Device == nil {
		return 0
	}
	return m.net.Device.Layers()
}

// openDevice copies the weights to the device that the options name, if any.
func (m *Model) openDevice(ctx context.Context, w *weights.Weights, o *options) error {
	n := m.cfg.Layers
	if o.deviceLayers != nil {
		n = min(n, *o.deviceLayers)
	}
	switch {
	case n < 0:
		return fmt.Errorf("%d layers on a device: expected 0 or more", n)
	case n == 0 || o.device == nil && (o.deviceName == "" || o.deviceName == "cpu"):
		return nil
	}
	if err := m.net.OnDevices(w, n); err != nil {
		return err
	}
	dev, owned := o.device, false
	if dev == nil {
		var err error
		if dev, err = kernels.OpenDevice(o.deviceName); err != nil {
			return err
		}
		owned = true
	}
	return m.net.OpenDevice(ctx, dev, owned, w, n)
}
