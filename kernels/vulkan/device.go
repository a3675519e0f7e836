//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lukv/lukv/internal/vk"
)

// Device is an open device: its memory, its pipelines, and one queue with one
// timeline. It is safe for concurrent use; work runs in the order of submission.
type Device struct {
	in   *vk.Instance
	dev  *vk.Device
	info DeviceInfo

	mu       sync.Mutex // guards everything below, the queue included
	mem      *allocator
	timeline vk.Semaphore
	last     uint64 // value of the latest submission
	lost     error  // why the device is lost
	closed   bool
	stage    *staging
	pipes    *pipelines
	live     map[*Commands]struct{}
	inject   error // what the next submission fails with, for tests

	// waitMu serialises waits, which use the device's one argument list. Locks are
	// taken in the order staging.mu, waitMu, mu.
	waitMu sync.Mutex
}

// Ticket is a point of the device's timeline. The zero Ticket is long past.
type Ticket uint64

func open(in *vk.Instance, p *vk.PhysicalDevice, info DeviceInfo, o Options) (*Device, error) {
	dev, err := p.Open()
	if err != nil {
		return nil, err
	}
	d := &Device{in: in, dev: dev, info: info, live: map[*Commands]struct{}{}}
	fail := func(err error) (*Device, error) {
		d.destroy()
		d.dev.Destroy()
		return nil, fmt.Errorf("open %s: %w", p.Name, err)
	}
	if d.mem, err = newAllocator(dev, o); err != nil {
		return fail(err)
	}
	if d.timeline, err = dev.CreateSemaphore(); err != nil {
		return fail(err)
	}
	if d.pipes, err = newPipelines(dev, o.CacheDir); err != nil {
		return fail(err)
	}
	if d.stage, err = newStaging(d); err != nil {
		return fail(err)
	}
	return d, nil
}

// Info describes the device.
func (d *Device) Info() DeviceInfo { return d.info }

// usable returns why the device cannot be used, nil if it can. mu is held.
func (d *Device) usable() error {
	switch {
	case d.closed:
		return ErrClosed
	case d.lost != nil:
		return fmt.Errorf("%s: %w", d.info.Name, d.lost)
	}
	return nil
}

// note remembers a lost device. mu is held.
func (d *Device) note(err error) error {
	if errors.Is(err, ErrDeviceLost) && d.lost == nil {
		d.lost = err
	}
	return err
}

// Close waits for the device and gives everything back, buffers and commands
// that were not freed included. A second Close does nothing. The error is that
// of the last work, or of writing the pipeline cache.
func (d *Device) Close() error {
	d.stage.mu.Lock() // no transfer is under way
	defer d.stage.mu.Unlock()
	d.waitMu.Lock()
	defer d.waitMu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	// A lost device answers at once; what it says is known already.
	err := d.dev.WaitIdle()
	if d.lost != nil {
		err = nil
	} else if d.note(err) == nil {
		err = d.pipes.save()
	}
	d.destroy()
	d.dev.Destroy()
	d.in.Destroy()
	if err != nil {
		return fmt.Errorf("close %s: %w", d.info.Name, err)
	}
	return nil
}

// destroy gives back what open and its users made.
func (d *Device) destroy() {
	for c := range d.live {
		if c.queries != 0 {
			d.dev.DestroyTimestamps(c.queries)
		}
		d.dev.DestroyCommandPool(c.pool)
	}
	clear(d.live)
	if d.stage != nil {
		d.dev.DestroyCommandPool(d.stage.pool)
	}
	if d.pipes != nil {
		d.pipes.destroy()
	}
	if d.timeline != 0 {
		d.dev.DestroySemaphore(d.timeline)
	}
	if d.mem != nil {
		d.mem.close()
	}
}

// submit hands over a recorded command buffer. mu is held.
func (d *Device) submit(cb vk.CommandBuffer) (Ticket, error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	if err := d.inject; err != nil {
		d.inject = nil
		return 0, d.note(err)
	}
	if err := d.dev.Submit(cb, d.timeline, d.last+1); err != nil {
		return 0, d.note(fmt.Errorf("%s: %w", d.info.Name, err))
	}
	d.last++
	return Ticket(d.last), nil
}

// Submit hands over recorded commands, as often as wanted. It does not wait and
// does not allocate. Commands that are recorded again or freed must be done.
func (d *Device) Submit(c *Commands) (Ticket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.state != recorded {
		return 0, errors.New("submit commands to a device: they are not recorded")
	}
	t, err := d.submit(c.cb)
	if err == nil {
		c.last = t
	}
	return t, err
}

// waitSlice is how long one wait for the driver lasts, so that a context is
// noticed.
const waitSlice = 20 * time.Millisecond

// Wait waits until the device has passed t, or ctx is done. The work goes on in
// that case.
func (d *Device) Wait(ctx context.Context, t Ticket) error {
	for {
		done, err := d.poll(t, waitSlice)
		if done || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for %s: %w", d.info.Name, err)
		}
	}
}

// poll waits a while for t and reports whether it has passed.
func (d *Device) poll(t Ticket, limit time.Duration) (bool, error) {
	if t == 0 {
		return true, nil
	}
	d.waitMu.Lock()
	defer d.waitMu.Unlock()
	d.mu.Lock()
	err := d.usable()
	d.mu.Unlock()
	if err != nil {
		return false, err
	}
	err = d.dev.WaitSemaphore(d.timeline, uint64(t), uint64(limit))
	if err == nil {
		return true, nil
	}
	if errors.Is(err, vk.ErrTimeout) {
		return false, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return false, d.note(fmt.Errorf("wait for %s: %w", d.info.Name, err))
}

// Idle waits until everything submitted so far is done.
func (d *Device) Idle(ctx context.Context) error {
	d.mu.Lock()
	t := Ticket(d.last)
	err := d.usable()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	return d.Wait(ctx, t)
}
