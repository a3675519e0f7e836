//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"fmt"
	"sync"

	"github.com/lukv/lukv/internal/vk"
)

// staging is a ring of host memory through which data go to and from the
// device. Each slot has its command buffer and the ticket of its last use.
type staging struct {
	mu    sync.Mutex // one transfer at a time
	pool  vk.CommandPool
	slots [2]stagingSlot
	next  int
}

type stagingSlot struct {
	buf  *Buffer
	cb   vk.CommandBuffer
	last Ticket
}

const stagingSlotBytes = 4 << 20

func newStaging(d *Device) (*staging, error) {
	s := &staging{}
	var err error
	if s.pool, err = d.dev.CreateCommandPool(); err != nil {
		return nil, err
	}
	for i := range s.slots {
		b, off, err := d.mem.alloc(host, stagingSlotBytes)
		if err == nil {
			s.slots[i].buf = &Buffer{d: d, block: b, off: off, size: stagingSlotBytes}
			s.slots[i].cb, err = d.dev.AllocateCommandBuffer(s.pool)
		}
		if err != nil {
			d.dev.DestroyCommandPool(s.pool)
			return nil, fmt.Errorf("make the staging ring: %w", err)
		}
	}
	return s, nil
}

const everyStage = vk.StageCompute | vk.StageTransfer | vk.StageIndirect

// transfer runs one copy between a slot and a view, after and before everything
// else on the queue.
func (d *Device) transfer(s *stagingSlot, v View, n int, toDevice bool) error {
	if err := d.dev.Begin(s.cb, true); err != nil {
		return err
	}
	d.dev.Barrier(s.cb, everyStage, vk.AccessShaderWrite|vk.AccessTransferWrite, vk.StageTransfer, vk.AccessTransferRead|vk.AccessTransferWrite)
	if toDevice {
		d.dev.CopyBuffer(s.cb, s.buf.block.buffer, v.b.block.buffer, vk.BufferCopy{Src: s.buf.off, Dst: v.b.off + v.off, Size: uint64(n)})
		d.dev.Barrier(s.cb, vk.StageTransfer, vk.AccessTransferWrite, everyStage,
			vk.AccessShaderRead|vk.AccessShaderWrite|vk.AccessTransferRead|vk.AccessTransferWrite|vk.AccessIndirectRead)
	} else {
		d.dev.CopyBuffer(s.cb, v.b.block.buffer, s.buf.block.buffer, vk.BufferCopy{Src: v.b.off + v.off, Dst: s.buf.off, Size: uint64(n)})
		d.dev.Barrier(s.cb, vk.StageTransfer, vk.AccessTransferWrite, vk.StageHost, vk.AccessHostRead)
	}
	if err := d.dev.End(s.cb); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	s.last, err = d.submit(s.cb)
	return err
}

// slot returns the next slot of the ring when it is free.
func (d *Device) slot(ctx context.Context) (*stagingSlot, error) {
	d.mu.Lock()
	err := d.usable()
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s := &d.stage.slots[d.stage.next]
	d.stage.next = (d.stage.next + 1) % len(d.stage.slots)
	return s, d.Wait(ctx, s.last)
}

// Upload copies data to the beginning of v, after what was submitted before and
// before what is submitted later. Data may be reused at once.
func (d *Device) Upload(ctx context.Context, v View, data []byte) error {
	if uint64(len(data)) > v.n {
		return fmt.Errorf("upload to %s: found %d bytes, expected at most %d", d.info.Name, len(data), v.n)
	}
	return d.upload(ctx, v, len(data), func(dst []byte, at int) { copy(dst, data[at:]) })
}

// UploadRows copies rows of rowBytes each to rows of pitch bytes, the rest of
// which becomes zero.
func (d *Device) UploadRows(ctx context.Context, v View, data []byte, rowBytes, pitch int) error {
	if rowBytes <= 0 || pitch < rowBytes || len(data)%rowBytes != 0 || uint64(len(data)/rowBytes)*uint64(pitch) > v.n {
		return fmt.Errorf("upload to %s: found %d bytes in rows of %d, expected whole rows that fit into %d bytes with %d each", d.info.Name, len(data), rowBytes, v.n, pitch)
	}
	if pitch == rowBytes {
		return d.Upload(ctx, v, data)
	}
	return d.upload(ctx, v, len(data)/rowBytes*pitch, func(dst []byte, at int) {
		for i := 0; i < len(dst); {
			row, col := (at+i)/pitch, (at+i)%pitch
			n := min(pitch-col, len(dst)-i)
			m := 0
			if col < rowBytes {
				m = copy(dst[i:i+min(n, rowBytes-col)], data[row*rowBytes+col:])
			}
			clear(dst[i+m : i+n])
			i += n
		}
	})
}

func (d *Device) upload(ctx context.Context, v View, n int, fill func(dst []byte, at int)) error {
	d.stage.mu.Lock()
	defer d.stage.mu.Unlock()
	for at := 0; at < n; {
		m := min(stagingSlotBytes, n-at)
		s, err := d.slot(ctx)
		if err != nil {
			return err
		}
		fill(s.buf.Bytes()[:m], at)
		if err := d.transfer(s, v.At(int64(at), int64(m)), m, true); err != nil {
			return fmt.Errorf("upload to %s: %w", d.info.Name, err)
		}
		at += m
	}
	return nil
}

// Download copies the beginning of v to data when everything submitted before is done.
func (d *Device) Download(ctx context.Context, data []byte, v View) error {
	if uint64(len(data)) > v.n {
		return fmt.Errorf("download from %s: asked for %d bytes of %d", d.info.Name, len(data), v.n)
	}
	d.stage.mu.Lock()
	defer d.stage.mu.Unlock()
	// Two slots in flight: one is copied out while the other is filled.
	type piece struct {
		s     *stagingSlot
		at, n int
	}
	var flying []piece
	land := func() error {
		p := flying[0]
		flying = flying[1:]
		if err := d.Wait(ctx, p.s.last); err != nil {
			return err
		}
		copy(data[p.at:p.at+p.n], p.s.buf.Bytes())
		return nil
	}
	for at := 0; at < len(data); {
		if len(flying) == len(d.stage.slots) {
			if err := land(); err != nil {
				return err
			}
		}
		n := min(stagingSlotBytes, len(data)-at)
		s, err := d.slot(ctx)
		if err != nil {
			return err
		}
		if err := d.transfer(s, v.At(int64(at), int64(n)), n, false); err != nil {
			return fmt.Errorf("download from %s: %w", d.info.Name, err)
		}
		flying = append(flying, piece{s, at, n})
		at += n
	}
	for len(flying) > 0 {
		if err := land(); err != nil {
			return err
		}
	}
	return nil
}
