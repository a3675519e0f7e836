//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"fmt"
	"sync"
)

// staging is a ring of host memory that carries data to and from the device, and the
// arguments of small jobs.
type staging struct {
	mu    sync.Mutex // one transfer at a time
	slots [2]stagingSlot
	next  int
}

type stagingSlot struct {
	buf *buffer
	cmd *commands
}

const stagingSlotBytes = 4 << 20

func newStaging(d *Device) (*staging, error) {
	s := &staging{}
	for i := range s.slots {
		b, off, err := d.mem.alloc(host, stagingSlotBytes)
		if err == nil {
			s.slots[i].buf = &buffer{d: d, block: b, off: off, size: stagingSlotBytes}
			s.slots[i].cmd, err = d.newCommands()
		}
		if err != nil {
			return nil, fmt.Errorf("make the staging ring: %w", err)
		}
	}
	return s, nil
}

// slot waits for the next slot of the ring to be free and returns it. stage.mu must be
// held.
func (d *Device) slot(ctx context.Context) (*stagingSlot, error) {
	if err := d.ready(); err != nil {
		return nil, err
	}
	s := &d.stage.slots[d.stage.next]
	d.stage.next = (d.stage.next + 1) % len(d.stage.slots)
	return s, d.wait(ctx, s.cmd.last)
}

// hand records and submits the commands that use a slot's memory. stage.mu must be
// held.
func (d *Device) hand(s *stagingSlot, record func(c *commands)) error {
	if err := s.cmd.Begin(); err != nil {
		return err
	}
	record(s.cmd)
	if err := s.cmd.End(); err != nil {
		return err
	}
	_, err := d.submit(s.cmd)
	return err
}

// once submits a job that needs no host memory.
func (d *Device) once(record func(c *commands)) error {
	d.stage.mu.Lock()
	defer d.stage.mu.Unlock()
	s, err := d.slot(context.Background())
	if err != nil {
		return err
	}
	return d.hand(s, record)
}

// upload copies data to the beginning of v, after all work submitted before and
// before all work submitted later. data may be reused at once.
func (d *Device) upload(ctx context.Context, v view, data []byte) error {
	if uint64(len(data)) > v.n {
		return fmt.Errorf("upload to %s: found %d bytes, expected at most %d", d.info.Name, len(data), v.n)
	}
	return d.uploadWith(ctx, v, len(data), func(dst []byte, at int) { copy(dst, data[at:]) })
}

// uploadRows copies rows of rowBytes each to rows of pitch bytes, the rest of which it
// zeros.
func (d *Device) uploadRows(ctx context.Context, v view, data []byte, rowBytes, pitch int) error {
	if rowBytes <= 0 || pitch < rowBytes || len(data)%rowBytes != 0 || uint64(len(data)/rowBytes)*uint64(pitch) > v.n {
		return fmt.Errorf("upload to %s: found %d bytes in rows of %d, expected whole rows that fit into %d bytes with %d each", d.info.Name, len(data), rowBytes, v.n, pitch)
	}
	if pitch == rowBytes {
		return d.upload(ctx, v, data)
	}
	return d.uploadWith(ctx, v, len(data)/rowBytes*pitch, func(dst []byte, at int) {
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

func (d *Device) uploadWith(ctx context.Context, v view, n int, fill func(dst []byte, at int)) error {
	return d.uploadPieces(ctx, n, stagingSlotBytes, fill, func(c *commands, src view, at int) {
		c.Copy(v.At(int64(at), src.Size()), src)
	})
}

// uploadViews fills the views, of the given number of bytes each, in order. It copies as
// many at once as fit in a slot of the ring.
func (d *Device) uploadViews(ctx context.Context, views []view, bytes int, fill func(dst []byte, i int)) error {
	each := func(dst []byte, at int) {
		for i := range len(dst) / bytes {
			fill(dst[i*bytes:(i+1)*bytes], at/bytes+i)
		}
	}
	return d.uploadPieces(ctx, len(views)*bytes, stagingSlotBytes/bytes*bytes, each, func(c *commands, src view, at int) {
		c.Concurrent(func() {
			for i := range int(src.Size()) / bytes {
				c.Copy(views[at/bytes+i], src.At(int64(i*bytes), int64(bytes)))
			}
		})
	})
}

// uploadPieces copies n bytes to the device, in order and in pieces of at most most
// bytes. fill provides the bytes from at on, record records where they go.
func (d *Device) uploadPieces(ctx context.Context, n, most int, fill func(dst []byte, at int), record func(c *commands, src view, at int)) error {
	d.stage.mu.Lock()
	defer d.stage.mu.Unlock()
	for at := 0; at < n; {
		m := min(most, n-at)
		s, err := d.slot(ctx)
		if err != nil {
			return err
		}
		fill(s.buf.Bytes()[:m], at)
		if err := d.hand(s, func(c *commands) { record(c, s.buf.At(0, int64(m)), at) }); err != nil {
			return fmt.Errorf("upload to %s: %w", d.info.Name, err)
		}
		at += m
	}
	return nil
}

// download copies the beginning of v to data, after everything submitted before is done.
func (d *Device) download(ctx context.Context, data []byte, v view) error {
	if uint64(len(data)) > v.n {
		return fmt.Errorf("download from %s: asked for %d bytes of %d", d.info.Name, len(data), v.n)
	}
	fill := func(c *commands, dst view, at int) { c.Copy(dst, v.At(int64(at), dst.Size())) }
	return d.downloadWith(ctx, len(data), stagingSlotBytes, fill, func(src []byte, at int) { copy(data[at:], src) })
}

// downloadViews passes the views, of the given number of bytes each, to drain in order.
// It copies as many at once as fit in a slot of the ring.
func (d *Device) downloadViews(ctx context.Context, views []view, bytes int, drain func(src []byte, i int)) error {
	fill := func(c *commands, dst view, at int) {
		c.Concurrent(func() {
			for i := range int(dst.Size()) / bytes {
				c.Copy(dst.At(int64(i*bytes), int64(bytes)), views[at/bytes+i])
			}
		})
	}
	return d.downloadWith(ctx, len(views)*bytes, stagingSlotBytes/bytes*bytes, fill, func(src []byte, at int) {
		for i := range len(src) / bytes {
			drain(src[i*bytes:(i+1)*bytes], at/bytes+i)
		}
	})
}

// downloadWith copies n bytes to the host, in order and in pieces of at most most
// bytes. fill records how the bytes from at on get to dst, drain takes them from there.
func (d *Device) downloadWith(ctx context.Context, n, most int, fill func(c *commands, dst view, at int), drain func(src []byte, at int)) error {
	d.stage.mu.Lock()
	defer d.stage.mu.Unlock()
	// Two slots in flight: one is drained while the other is filled.
	type piece struct {
		s     *stagingSlot
		at, n int
	}
	var flying []piece
	land := func() error {
		p := flying[0]
		flying = flying[1:]
		if err := d.wait(ctx, p.s.cmd.last); err != nil {
			return err
		}
		drain(p.s.buf.Bytes()[:p.n], p.at)
		return nil
	}
	for at := 0; at < n; {
		if len(flying) == len(d.stage.slots) {
			if err := land(); err != nil {
				return err
			}
		}
		m := min(most, n-at)
		s, err := d.slot(ctx)
		if err != nil {
			return err
		}
		if err := d.hand(s, func(c *commands) { fill(c, s.buf.At(0, int64(m)), at) }); err != nil {
			return fmt.Errorf("download from %s: %w", d.info.Name, err)
		}
		flying = append(flying, piece{s, at, m})
		at += m
	}
	for len(flying) > 0 {
		if err := land(); err != nil {
			return err
		}
	}
	return nil
}
