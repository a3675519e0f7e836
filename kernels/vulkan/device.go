//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/kernels"
)

// Device is an open device: its memory, its pipelines, and one queue with one
// timeline. It is a kernels.Device. It is safe for concurrent use; work runs in the
// order of submission.
type Device struct {
	in   *vk.Instance
	dev  *vk.Device
	info kernels.DeviceInfo

	matrixUnits *matrixUnits // for products of bf16 by bf16, nil for plain shaders
	loops       int          // rounds of all its loops after which the driver ends a shader, 0: never

	mu       sync.Mutex // guards everything below, and the queue
	mem      *allocator
	timeline vk.Semaphore
	last     uint64 // value of the latest submission
	done     uint64 // value that the device is known to have reached
	lost     error  // why the device is lost
	closed   bool
	stage    *staging
	pipes    *pipelines
	live     map[*commands]struct{}
	inject   error // error of the next submission, for tests

	// waitMu serialises waits, which share the device's argument list. Locks are
	// taken in the order staging.mu, waitMu, mu.
	waitMu sync.Mutex
}

// ticket is a point in the device's timeline. The zero ticket has always passed.
type ticket uint64

func open(in *vk.Instance, p *vk.PhysicalDevice, info kernels.DeviceInfo, u *matrixUnits, o Options) (*Device, error) {
	dev, err := p.Open(vk.OpenOptions{Matrices: u != nil})
	if err != nil {
		return nil, err
	}
	d := &Device{in: in, dev: dev, info: info, matrixUnits: u, live: map[*commands]struct{}{}}
	if strings.HasPrefix(info.Name, "llvmpipe") {
		d.loops = 65535 // LP_MAX_TGSI_LOOP_ITERATIONS of Mesa, which then continues as if the loops had ended
	}
	fail := func(err error) (*Device, error) {
		d.discard()
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
func (d *Device) Info() kernels.DeviceInfo { return d.info }

// usable returns why the device cannot be used, nil if it can. mu must be held.
func (d *Device) usable() error {
	switch {
	case d.closed:
		return ErrClosed
	case d.lost != nil:
		return fmt.Errorf("%s: %w", d.info.Name, d.lost)
	}
	return nil
}

// note makes errors of the driver match those of package kernels and records a lost
// device. mu must be held.
func (d *Device) note(err error) error {
	switch {
	case errors.Is(err, vk.ErrDeviceLost):
		if !errors.Is(err, kernels.ErrDeviceLost) {
			err = fmt.Errorf("%w: %w", kernels.ErrDeviceLost, err)
		}
		if d.lost == nil {
			d.lost = err
		}
	case errors.Is(err, vk.ErrOutOfDeviceMemory) && !errors.Is(err, kernels.ErrDeviceMemory):
		err = fmt.Errorf("%w: %w", kernels.ErrDeviceMemory, err)
	}
	return err
}

// check is note for callers that do not hold mu.
func (d *Device) check(err error) error {
	if err == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.note(err)
}

// ready returns why the device cannot be used, nil if it can.
func (d *Device) ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usable()
}

// Close waits for the device and releases everything, including buffers and
// commands that were not freed. A second Close does nothing. The error is that of
// the last work, or of writing the pipeline cache.
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
	// A lost device returns at once, with an error that is already known.
	err := d.dev.WaitIdle()
	if d.lost != nil {
		err = nil
	} else if d.note(err) == nil {
		err = d.pipes.save()
	}
	d.discard()
	d.in.Destroy()
	if err != nil {
		return fmt.Errorf("close %s: %w", d.info.Name, err)
	}
	return nil
}

// abandon discards a device that has not been returned to the caller.
func (d *Device) abandon() {
	_ = d.dev.WaitIdle() // a lost one returns at once
	d.discard()
}

// discard releases the device and everything that open and its users made, but not
// its instance. The device must be idle, or lost.
func (d *Device) discard() {
	for c := range d.live {
		if c.queries != 0 {
			d.dev.DestroyTimestamps(c.queries)
		}
		d.dev.DestroyCommandPool(c.pool)
	}
	clear(d.live)
	if d.pipes != nil {
		d.pipes.destroy()
	}
	if d.timeline != 0 {
		d.dev.DestroySemaphore(d.timeline)
	}
	if d.mem != nil {
		d.mem.close()
	}
	d.dev.Destroy()
}

// submitBuffer submits a recorded command buffer. mu must be held.
func (d *Device) submitBuffer(cb vk.CommandBuffer) (ticket, error) {
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
	return ticket(d.last), nil
}

// submit submits recorded commands, which may be submitted any number of times. It
// does not wait and does not allocate.
func (d *Device) submit(c *commands) (ticket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.state != recorded {
		return 0, errors.New("submit commands to a device: they are not recorded")
	}
	t, err := d.submitBuffer(c.cb)
	if err == nil {
		c.last = t
	}
	return t, err
}

// waitSlice is how long a single wait in the driver lasts, so that a cancelled
// context is noticed.
const waitSlice = 20 * time.Millisecond

// wait waits until the device has passed t or ctx is done, in which case the work
// continues.
func (d *Device) wait(ctx context.Context, t ticket) error {
	for {
		done, err := d.poll(t, waitSlice)
		if done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for %s: %w", d.info.Name, context.Cause(ctx))
		}
	}
}

// poll waits for t, up to limit, and reports whether it has passed.
func (d *Device) poll(t ticket, limit time.Duration) (bool, error) {
	if t == 0 {
		return true, nil
	}
	d.waitMu.Lock()
	defer d.waitMu.Unlock()
	if err := d.ready(); err != nil {
		return false, err
	}
	err := d.dev.WaitSemaphore(d.timeline, uint64(t), uint64(limit))
	if errors.Is(err, vk.ErrTimeout) {
		return false, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		return false, d.note(fmt.Errorf("wait for %s: %w", d.info.Name, err))
	}
	d.done = max(d.done, uint64(t))
	return true, nil
}

// idle waits until everything submitted so far is done.
func (d *Device) idle(ctx context.Context) error {
	d.mu.Lock()
	t := ticket(d.last)
	err := d.usable()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	return d.wait(ctx, t)
}
