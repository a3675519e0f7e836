//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/kernels"
)

// outOfMemoryError reports that device memory does not suffice. It is a
// kernels.ErrDeviceMemory.
type outOfMemoryError struct {
	Needed uint64 // bytes that were asked for
	Free   uint64 // bytes that could still be taken
	Total  uint64 // bytes of the heap, or Options.MaxBytes
}

func (e *outOfMemoryError) Error() string {
	return fmt.Sprintf("out of device memory: %d bytes are needed, %d of %d are free", e.Needed, e.Free, e.Total)
}

func (e *outOfMemoryError) Is(target error) bool { return target == kernels.ErrDeviceMemory }

// kind is a kind of memory.
type kind int

const (
	local kind = iota // on the device, if possible not visible to the host
	host              // visible to both sides without flushing, for the host to read
	param             // the same, for the host to write and the device to read; on the device if possible
	kinds
)

const (
	// Shaders may read past their operands, so a block ends with room that is never
	// allocated.
	blockPad = 64 << 10

	defaultBlock = 256 << 20
	hostBlock    = 4 << 20
	alignment    = 256
)

const bufferUsage = vk.UsageStorage | vk.UsageTransferSrc | vk.UsageTransferDst | vk.UsageIndirect | vk.UsageDeviceAddress

// block is one piece of the driver's memory with one buffer over all of it.
type block struct {
	kind    kind
	memory  vk.Memory
	buffer  vk.Buffer
	address uint64
	size    uint64 // without the padding
	taken   uint64 // from the driver
	mapped  []byte // nil for local memory
	space   *space
	until   uint64 // value of the timeline from which the block, if empty, may go back to the driver
}

// allocator hands out parts of blocks. Device.mu guards it.
type allocator struct {
	dev       *vk.Device
	types     [kinds]uint32
	heaps     [kinds]int
	blockSize uint64
	maxBytes  uint64
	exact     bool // each buffer has its own block, where the driver's buffer ends, too
	blocks    []*block
	taken     [kinds]uint64 // bytes taken from the driver
	buffers   int           // live buffers
}

func newAllocator(dev *vk.Device, o Options) (*allocator, error) {
	a := &allocator{dev: dev, maxBytes: o.MaxBytes, exact: o.GPUAssisted}
	p := dev.Physical
	// The memory types that our buffers may have.
	b, _, _, allowed, err := dev.CreateBuffer(4096, bufferUsage)
	if err != nil {
		return nil, err
	}
	dev.DestroyBuffer(b)
	find := func(want, avoid uint32) int {
		best := -1
		for i, t := range p.Types {
			if allowed&(1<<i) == 0 || t.Properties&want != want || t.Properties&avoid != 0 || t.Properties&^0xf != 0 {
				continue
			}
			if best < 0 || p.Heaps[t.Heap].Size > p.Heaps[p.Types[best].Heap].Size {
				best = i
			}
		}
		return best
	}
	pick := func(k kind, choices ...[2]uint32) error {
		for _, c := range choices {
			if i := find(c[0], c[1]); i >= 0 {
				a.types[k], a.heaps[k] = uint32(i), int(p.Types[i].Heap)
				return nil
			}
		}
		return fmt.Errorf("the device has no memory with properties %#x for buffers", choices[len(choices)-1][0])
	}
	const visible = vk.HostVisible | vk.HostCoherent
	if err := errors.Join(
		pick(local, [2]uint32{vk.DeviceLocal, vk.HostVisible}, [2]uint32{vk.DeviceLocal, 0}),
		pick(host, [2]uint32{visible | vk.HostCached, vk.DeviceLocal}, [2]uint32{visible | vk.HostCached, 0}, [2]uint32{visible, 0}),
		pick(param, [2]uint32{visible | vk.DeviceLocal, 0}, [2]uint32{visible, 0}),
	); err != nil {
		return nil, err
	}
	a.blockSize = o.BlockBytes
	if a.blockSize == 0 {
		a.blockSize = min(defaultBlock, p.Heaps[a.heaps[local]].Size/8)
	}
	a.blockSize = max(min(a.blockSize, a.largest()), 1<<16)
	return a, nil
}

// largest returns the size of the largest possible block.
func (a *allocator) largest() uint64 {
	n := a.dev.Physical.MaxAllocation
	if m := a.dev.Physical.MaxBuffer; m != 0 {
		n = min(n, m)
	}
	return (n - blockPad) &^ (alignment - 1)
}

// free returns how many bytes the driver can still provide, and out of how many.
func (a *allocator) free(k kind) (free, total uint64) {
	p := a.dev.Physical
	total = p.Heaps[a.heaps[k]].Size
	free = total
	for o, taken := range a.taken {
		if a.heaps[o] == a.heaps[k] {
			free -= min(taken, free)
		}
	}
	if budget, usage, ok := p.Budget(); ok {
		h := a.heaps[k]
		free = budget[h] - min(usage[h], budget[h])
	}
	if k == local && a.maxBytes > 0 {
		total = min(total, a.maxBytes)
		free = min(free, total-min(a.taken[k], total))
	}
	return free, total
}

// alloc finds or makes room for size bytes.
func (a *allocator) alloc(k kind, size uint64) (*block, uint64, error) {
	size = (max(size, 1) + alignment - 1) &^ (alignment - 1)
	for _, b := range a.blocks {
		if b.kind == k && !a.exact {
			if off, ok := b.space.take(size, alignment); ok {
				return b, off, nil
			}
		}
	}
	free, total := a.free(k)
	if size > a.largest() {
		return nil, 0, &outOfMemoryError{Needed: size, Free: min(free, a.largest()), Total: total}
	}
	want := a.blockSize
	if k != local {
		want = hostBlock
	}
	want = max(want, size)
	if a.exact {
		want = size
	}
	if want+blockPad > free {
		want = size
	}
	if want+blockPad > free {
		return nil, 0, &outOfMemoryError{Needed: size, Free: free - min(free, blockPad), Total: total}
	}
	b, err := a.newBlock(k, want)
	if errors.Is(err, vk.ErrOutOfDeviceMemory) && want > size {
		b, err = a.newBlock(k, size)
	}
	if errors.Is(err, vk.ErrOutOfDeviceMemory) {
		return nil, 0, &outOfMemoryError{Needed: size, Free: free, Total: total}
	}
	if err != nil {
		return nil, 0, err
	}
	off, _ := b.space.take(size, alignment)
	return b, off, nil
}

func (a *allocator) newBlock(k kind, size uint64) (*block, error) {
	pad, spare := uint64(blockPad), uint64(0)
	if a.exact {
		pad, spare = spare, pad
	}
	buf, need, _, _, err := a.dev.CreateBuffer(size+pad, bufferUsage)
	if err != nil {
		return nil, err
	}
	need += spare
	m, err := a.dev.AllocateMemory(need, a.types[k])
	if err != nil {
		a.dev.DestroyBuffer(buf)
		return nil, err
	}
	b := &block{kind: k, memory: m, buffer: buf, size: size, taken: need, space: newSpace(size)}
	if b.address, err = a.dev.BindBuffer(buf, m, 0); err == nil && k != local {
		b.mapped, err = a.dev.MapMemory(m, need)
	}
	if err != nil {
		a.dev.DestroyBuffer(buf)
		a.dev.FreeMemory(m)
		return nil, err
	}
	a.blocks = append(a.blocks, b)
	a.taken[k] += need
	return b, nil
}

// release takes back a range that work up to value last of the timeline may use.
// Ranges may be handed out again at once: what uses them next runs later.
func (a *allocator) release(b *block, off, size, last uint64) {
	b.space.give(off, (max(size, 1)+alignment-1)&^(alignment-1))
	b.until = last
}

// sweep returns to the driver empty blocks that the device is done with, except the
// last one of a kind unless that is larger than usual.
func (a *allocator) sweep(done uint64) {
	for i := 0; i < len(a.blocks); {
		b := a.blocks[i]
		others := slices.ContainsFunc(a.blocks, func(o *block) bool { return o != b && o.kind == b.kind })
		if b.space.used == 0 && b.until <= done && (others || b.size > a.blockSize) {
			a.drop(b)
		} else {
			i++
		}
	}
}

func (a *allocator) drop(b *block) {
	a.dev.DestroyBuffer(b.buffer)
	a.dev.FreeMemory(b.memory)
	a.taken[b.kind] -= b.taken
	a.blocks = slices.DeleteFunc(a.blocks, func(o *block) bool { return o == b })
}

func (a *allocator) close() {
	for len(a.blocks) > 0 {
		a.drop(a.blocks[0])
	}
}

// Memory returns the current use of memory.
func (d *Device) Memory() kernels.DeviceMemory {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return kernels.DeviceMemory{}
	}
	d.mem.sweep(d.done)
	s := kernels.DeviceMemory{Taken: d.mem.taken[local], Host: d.mem.taken[host] + d.mem.taken[param], Buffers: d.mem.buffers}
	for _, b := range d.mem.blocks {
		if b.kind == local {
			s.Used += b.space.used
		}
	}
	s.Free, s.Total = d.mem.free(local)
	return s
}

// buffer is a piece of device memory, aligned to 256 bytes. Its contents are
// undefined at first. A host buffer may be freed only when the device is done with it,
// other buffers even while submitted work uses them: what gets the memory next runs
// later.
type buffer struct {
	d     *Device
	block *block
	off   uint64
	size  uint64
}

// newLocalBuffer allocates n bytes of memory on the device.
func (d *Device) newLocalBuffer(n int64) (*buffer, error) { return d.allocate(local, n) }

// newHostBuffer allocates n bytes of memory that the host writes and reads in place
// (buffer.Bytes) and the device accesses more slowly.
func (d *Device) newHostBuffer(n int64) (*buffer, error) { return d.allocate(host, n) }

// newParamBuffer allocates n bytes of memory that the host writes in place and the
// device reads often: for parameters that change from step to step. Reading it may be
// slow for the host.
func (d *Device) newParamBuffer(n int64) (*buffer, error) {
	b, err := d.allocate(param, n)
	if errors.Is(err, kernels.ErrDeviceMemory) {
		// The host may be able to see only a small part of a device's memory.
		return d.allocate(host, n)
	}
	return b, err
}

func (d *Device) allocate(k kind, n int64) (*buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("allocate %d bytes on %s: the size is negative", n, d.info.Name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	b, off, err := d.mem.alloc(k, uint64(n))
	if errors.Is(err, kernels.ErrDeviceMemory) && d.done < d.last {
		// Empty blocks may only be waiting for work that is about to end.
		d.mu.Unlock()
		err = d.idle(context.Background())
		d.mu.Lock()
		if err == nil {
			err = d.usable()
		}
		if err == nil {
			d.mem.sweep(d.done)
			b, off, err = d.mem.alloc(k, uint64(n))
		}
	}
	if err != nil {
		return nil, d.note(fmt.Errorf("allocate %d bytes on %s: %w", n, d.info.Name, err))
	}
	d.mem.buffers++
	return &buffer{d: d, block: b, off: off, size: uint64(n)}, nil
}

// Free frees the memory. A second Free does nothing, nor does Free after the
// device was closed.
func (b *buffer) Free() {
	if b == nil || b.block == nil {
		return
	}
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if !b.d.closed {
		b.d.mem.release(b.block, b.off, b.size, b.d.last)
		b.d.mem.sweep(b.d.done)
		b.d.mem.buffers--
	}
	b.block = nil
}

// Size returns the size of the buffer in bytes.
func (b *buffer) Size() int64 { return int64(b.size) }

// Address returns the address on the device.
func (b *buffer) Address() uint64 { return b.block.address + b.off }

// Bytes returns the memory of a host or parameter buffer, nil for other buffers. The
// device sees everything written before a submission. It is valid until Free.
func (b *buffer) Bytes() []byte {
	if b.block.mapped == nil {
		return nil
	}
	return b.block.mapped[b.off : b.off+b.size : b.off+b.size]
}

// view is a part of a buffer. The zero view is none.
type view struct {
	b      *buffer
	off, n uint64
}

// All returns the whole buffer.
func (b *buffer) All() view { return view{b, 0, b.size} }

// At returns the n bytes from byte off on; it panics if they are not all inside.
func (b *buffer) At(off, n int64) view { return b.All().At(off, n) }

// At returns a part of a view; it panics if that is not inside.
func (v view) At(off, n int64) view {
	if off < 0 || n < 0 || uint64(off) > v.n || uint64(n) > v.n-uint64(off) {
		panic(fmt.Sprintf("vulkan: bytes [%d, %d+%d) of a view of %d", off, off, n, v.n))
	}
	return view{v.b, v.off + uint64(off), uint64(n)}
}

// Size returns the size of the view in bytes.
func (v view) Size() int64 { return int64(v.n) }

// None reports whether the view is the zero view.
func (v view) None() bool { return v.b == nil }

// address returns the address on the device, 0 for none.
func (v view) address() uint64 {
	if v.b == nil {
		return 0
	}
	return v.b.Address() + v.off
}
