//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/lukv/lukv/internal/vk"
)

// commands is a list of operations that the device runs. Record it once with
// Begin, the operations and End; submit it as often as needed: operations read
// their buffers, work lists and parameters when they run, not when they are recorded.
//
// An operation sees the results of all operations before it, except inside
// Concurrent. Arguments are checked while recording: End returns an error for the first
// one that does not fit (a shape, a size, an alignment), and nothing after it is
// recorded.
//
// A list belongs to one goroutine at a time.
type commands struct {
	d           *Device
	pool        vk.CommandPool
	cb          vk.CommandBuffer
	state       recordState
	err         error
	concurrent  bool // inside Concurrent
	skipBarrier bool // inside Concurrent, with the barrier before it recorded
	copied      bool // something other than shaders may have come since the last barrier for all
	last        ticket

	queries vk.QueryPool
	marks   uint32

	// tiling is anyTiling, which chooses by the shapes of products, unless tests or the
	// check of matrix units set it to an index of tilings, or noUnits.
	tiling int
}

const (
	anyTiling = -2
	noUnits   = -1
)

type recordState int

const (
	empty recordState = iota
	recording
	recorded
)

// newCommands makes an empty list.
func (d *Device) newCommands() (*commands, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	pool, err := d.dev.CreateCommandPool()
	if err != nil {
		return nil, d.note(fmt.Errorf("make commands: %w", err))
	}
	cb, err := d.dev.AllocateCommandBuffer(pool)
	if err != nil {
		d.dev.DestroyCommandPool(pool)
		return nil, d.note(fmt.Errorf("make commands: %w", err))
	}
	c := &commands{d: d, pool: pool, cb: cb, tiling: anyTiling}
	d.live[c] = struct{}{}
	return c, nil
}

// Free waits until the commands are done and frees them. A second Free does
// nothing.
func (c *commands) Free() {
	d := c.d
	d.mu.Lock()
	_, live := d.live[c]
	d.mu.Unlock()
	if !live {
		return
	}
	// A lost or closed device has nothing to wait for.
	_ = d.wait(context.Background(), c.last)
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, live := d.live[c]; live {
		if c.queries != 0 {
			d.dev.DestroyTimestamps(c.queries)
		}
		d.dev.DestroyCommandPool(c.pool)
		delete(d.live, c)
	}
	c.state = empty
}

// Begin starts recording and discards an earlier recording. It waits until
// the last submission of these commands is done.
func (c *commands) Begin() error {
	if err := c.d.wait(context.Background(), c.last); err != nil {
		return err
	}
	if err := c.d.ready(); err != nil {
		return err
	}
	if err := c.d.dev.Begin(c.cb, false); err != nil {
		return c.d.check(fmt.Errorf("record commands: %w", err))
	}
	c.state, c.err, c.concurrent, c.skipBarrier, c.copied, c.marks = recording, nil, false, false, true, 0
	if c.queries != 0 {
		c.d.dev.ResetTimestamps(c.cb, c.queries, maxMarks)
	}
	return nil
}

// End ends recording and returns the first error of an operation. Once the
// commands are done, the host sees their results in host buffers.
func (c *commands) End() error {
	if c.state != recording {
		return errors.New("record commands: Begin is missing")
	}
	if err := c.d.ready(); err != nil {
		c.state = empty
		return fmt.Errorf("record commands: %w", err)
	}
	c.d.dev.Barrier(c.cb, everyStage, vk.AccessShaderWrite|vk.AccessTransferWrite, vk.StageHost, vk.AccessHostRead)
	err := c.d.check(c.d.dev.End(c.cb))
	c.state = recorded
	if c.err != nil {
		err = c.err
	}
	if err != nil {
		c.state = empty
		return fmt.Errorf("record commands: %w", err)
	}
	return nil
}

// run records operations that are needed once, submits them and waits for them.
func (d *Device) run(ctx context.Context, record func(c *commands)) error {
	c, err := d.newCommands()
	if err != nil {
		return err
	}
	defer c.Free()
	if err := c.Begin(); err != nil {
		return err
	}
	record(c)
	if err := c.End(); err != nil {
		return err
	}
	t, err := d.submit(c)
	if err != nil {
		return err
	}
	return d.wait(ctx, t)
}

// Concurrent records operations that do not depend on each other, so that the
// device may overlap them.
func (c *commands) Concurrent(record func()) {
	if c.concurrent {
		record()
		return
	}
	c.concurrent, c.skipBarrier = true, false
	record()
	c.concurrent = false
}

// noBarrier records operations that do not depend on the one recorded last.
func (c *commands) noBarrier(record func()) {
	concurrent, skip := c.concurrent, c.skipBarrier
	c.concurrent, c.skipBarrier = true, true
	record()
	c.concurrent, c.skipBarrier = concurrent, skip
}

const everyStage = vk.StageCompute | vk.StageTransfer | vk.StageIndirect

// order makes the results of all operations recorded so far visible to the next one: a shader,
// or copies. Between two shaders the barrier leaves copies out: with them a step of a small
// model takes a fifth longer on an NVIDIA H200.
func (c *commands) order(copies bool) {
	if c.concurrent && c.skipBarrier {
		c.copied = c.copied || copies
		return
	}
	c.skipBarrier = c.concurrent
	if !c.copied && !copies && !c.concurrent {
		c.d.dev.Barrier(c.cb, vk.StageCompute, vk.AccessShaderWrite, vk.StageCompute, vk.AccessShaderRead|vk.AccessShaderWrite)
		return
	}
	c.copied = copies
	c.d.dev.Barrier(c.cb, everyStage, vk.AccessShaderWrite|vk.AccessTransferWrite, everyStage,
		vk.AccessShaderRead|vk.AccessShaderWrite|vk.AccessTransferRead|vk.AccessTransferWrite|vk.AccessIndirectRead)
}

// fail keeps the first error.
func (c *commands) fail(op, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%s: %w", op, fmt.Errorf(format, args...))
	}
}

// ready reports whether an operation may be recorded.
func (c *commands) ready(op string) bool {
	if c.state != recording {
		c.fail(op, "commands are not being recorded")
	}
	return c.err == nil
}

// push is the argument block of a shader: addresses and 32-bit words.
type push struct {
	data [pushBytes]byte
	n    int
}

func (p *push) addr(v view) { p.u64(v.address()) }

func (p *push) u64(x uint64) {
	*(*[8]byte)(p.data[p.n:]) = *(*[8]byte)(unsafe.Pointer(&x))
	p.n += 8
}

func (p *push) u32(x ...int) {
	for _, v := range x {
		w := uint32(v)
		*(*[4]byte)(p.data[p.n:]) = *(*[4]byte)(unsafe.Pointer(&w))
		p.n += 4
	}
}

func (p *push) f32(x float32) { p.u32(int(math.Float32bits(x))) }

// maxGroups is the number of workgroups per dimension that every device allows.
const maxGroups = 65535

// dispatch records one shader over x·y·z workgroups.
func (c *commands) dispatch(op, shader string, constants []uint32, p *push, x, y, z int) {
	c.dispatchSized(op, shader, 0, constants, p, x, y, z)
}

// dispatchSized is dispatch for a shader that requires a subgroup size.
func (c *commands) dispatchSized(op, shader string, subgroup uint32, constants []uint32, p *push, x, y, z int) {
	if x == 0 || y == 0 || z == 0 || c.err != nil {
		return
	}
	if x > maxGroups || y > maxGroups || z > maxGroups {
		c.fail(op, "%d×%d×%d workgroups, expected at most %d each way", x, y, z, maxGroups)
		return
	}
	if c.bind(op, shader, subgroup, constants, p) {
		c.d.dev.Dispatch(c.cb, uint32(x), uint32(y), uint32(z))
	}
}

// dispatchIndirect records one shader; args holds the numbers of workgroups when it runs.
func (c *commands) dispatchIndirect(op, shader string, constants []uint32, p *push, args view) {
	if c.err == nil && c.bind(op, shader, 0, constants, p) {
		c.d.dev.DispatchIndirect(c.cb, args.b.block.buffer, args.b.off+args.off)
	}
}

func (c *commands) bind(op, shader string, subgroup uint32, constants []uint32, p *push) bool {
	pipe, err := c.d.pipes.get(shader, subgroup, constants)
	if err != nil {
		c.fail(op, "%w", c.d.check(err))
		return false
	}
	c.order(false)
	c.d.dev.BindPipeline(c.cb, pipe)
	c.d.dev.PushConstants(c.cb, c.d.pipes.layout, p.data[:p.n])
	return true
}

// Copy copies src to the beginning of dst. The views must not overlap.
func (c *commands) Copy(dst, src view) {
	const op = "copy"
	if !c.ready(op) {
		return
	}
	if src.n > dst.n {
		c.fail(op, "%d bytes to a view of %d", src.n, dst.n)
		return
	}
	switch {
	case src.n == 0:
	case shaderCopies(dst, src):
		var p push
		p.addr(dst)
		p.addr(src)
		p.u32(int(src.n / 16))
		x, y := grid(int((src.n + copyGroup - 1) / copyGroup))
		c.dispatch(op, "copy", nil, &p, x, y, 1)
	default:
		c.order(true)
		c.d.dev.CopyBuffer(c.cb, src.b.block.buffer, dst.b.block.buffer, vk.BufferCopy{Src: src.b.off + src.off, Dst: dst.b.off + dst.off, Size: src.n})
	}
}

// copyGroup is how many bytes a workgroup of copy.comp copies.
const copyGroup = 16 << 10

// shaderCopies reports whether a shader copies src to dst: within the device's memory that can
// be much faster than the driver's own copies, which move 0.8 of 3 TB/s on an NVIDIA H100,
// unless it is so little that the time to start it counts.
func shaderCopies(dst, src view) bool {
	return dst.b.block.kind == local && src.b.block.kind == local && src.n >= copyGroup && src.n < 1<<34 &&
		src.n%16 == 0 && src.address()%16 == 0 && dst.address()%16 == 0
}

// CopyRows copies n rows of the given number of bytes, whose starts are the pitches
// apart.
func (c *commands) CopyRows(dst view, dstPitch int, src view, srcPitch, bytes, n int) {
	const op = "copy rows"
	if !c.ready(op) {
		return
	}
	if n <= 0 || bytes <= 0 {
		return
	}
	if dstPitch < bytes || srcPitch < bytes || dst.Size() < int64(n-1)*int64(dstPitch)+int64(bytes) || src.Size() < int64(n-1)*int64(srcPitch)+int64(bytes) {
		c.fail(op, "found views of %d and %d bytes, expected %d rows of %d bytes %d and %d apart", dst.Size(), src.Size(), n, bytes, dstPitch, srcPitch)
		return
	}
	if dstPitch == bytes && srcPitch == bytes {
		bytes, n = bytes*n, 1
	}
	regions := make([]vk.BufferCopy, n)
	for i := range regions {
		regions[i] = vk.BufferCopy{Src: src.b.off + src.off + uint64(i*srcPitch), Dst: dst.b.off + dst.off + uint64(i*dstPitch), Size: uint64(bytes)}
	}
	c.order(true)
	c.d.dev.CopyBuffer(c.cb, src.b.block.buffer, dst.b.block.buffer, regions...)
}

// Zero clears a view; its offset and size are multiples of 4.
func (c *commands) Zero(v view) {
	const op = "zero"
	if !c.ready(op) {
		return
	}
	if v.off%4 != 0 || v.n%4 != 0 {
		c.fail(op, "%d bytes from offset %d on, expected multiples of 4", v.n, v.off)
		return
	}
	if v.n > 0 {
		c.order(true)
		c.d.dev.FillBuffer(c.cb, v.b.block.buffer, v.b.off+v.off, v.n, 0)
	}
}

// maxMarks is the most time marks in one list of commands.
const maxMarks = 64

// Mark records the time at which everything recorded before it is done. A list has
// at most 64 marks. On a queue without timestamps it does nothing.
func (c *commands) Mark() {
	const op = "mark"
	if !c.ready(op) || c.d.dev.TimestampBits() == 0 {
		return
	}
	if c.marks == maxMarks {
		c.fail(op, "more than %d marks", maxMarks)
		return
	}
	if c.queries == 0 {
		q, err := c.d.dev.CreateTimestamps(maxMarks)
		if err != nil {
			c.fail(op, "%w", err)
			return
		}
		c.queries = q
		c.d.dev.ResetTimestamps(c.cb, q, maxMarks)
	}
	c.d.dev.WriteTimestamp(c.cb, c.queries, c.marks)
	c.marks++
}

// Times returns, for commands that are done, the nanoseconds from the first mark
// to each mark, nil without timestamps.
func (c *commands) Times() ([]float64, error) {
	if c.marks == 0 {
		return nil, nil
	}
	ticks, err := c.d.dev.Timestamps(c.queries, c.marks)
	if err != nil {
		return nil, fmt.Errorf("read times: %w", err)
	}
	mask := ^uint64(0)
	if bits := c.d.dev.TimestampBits(); bits < 64 {
		mask = 1<<bits - 1
	}
	out := make([]float64, len(ticks))
	for i, t := range ticks {
		out[i] = float64((t-ticks[0])&mask) * float64(c.d.dev.Physical.Limits.TimestampPeriod)
	}
	return out, nil
}
