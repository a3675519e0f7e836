//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

func (p *pass) In() []float32     { return floatsOf(p.in) }
func (p *pass) CosSin() []float32 { return floatsOf(p.turns) }

func (p *pass) OutLogits(n int) []float32 {
	out := floatsOf(p.out)
	return out[:n*p.s.Vocab]
}

func (p *pass) SetSpans(spans []kernels.PassSpan, positions []int32) {
	m := p.rowInfo.Bytes()
	for r := range p.used {
		binary.LittleEndian.PutUint32(m[r*rowInfoBytes:], noRow)
	}
	p.used, p.spans = 0, p.spans[:0]
	for i, s := range spans {
		p.spans = append(p.spans, rowSpan{Seq: i, Row: s.Row, N: s.N})
		for j := range s.N {
			putRow(m[(s.Row+j)*rowInfoBytes:], rowInfo{Seq: i, Offset: j, Position: positions[s.Row+j]})
		}
		p.used = max(p.used, s.Row+s.N)
	}
}

func (p *pass) SetHead(layer, seq, head int, t kernels.PageTable, entries, base int) {
	y, i := &p.layers[layer], seq*p.s.KVHeads+head
	table, _ := t.(*pageTable)
	y.tables[i], y.entries[i], y.ends[i] = table, entries, base+entries+1
	if table != nil && table.mem != nil {
		y.heads.Set(i, table.mem.All(), entries, base)
	}
}

// prepare checks that a list's layers have the pages they need and fills their work lists.
func (p *pass) prepare(l *passList) error {
	if len(l.appends)+len(l.attend)+len(l.reads) == 0 {
		return nil
	}
	if p.used > l.rows {
		return fmt.Errorf("found sequences in %d rows, the list is for %d", p.used, l.rows)
	}
	kv, pe := p.s.KVHeads, p.shape.PageEntries
	for _, layers := range [...][]int{l.appends, l.attend, l.reads} {
		for _, i := range layers {
			y := &p.layers[i]
			for _, s := range p.spans {
				for h := s.Seq * kv; h < (s.Seq+1)*kv; h++ {
					if t := y.tables[h]; t == nil || t.mem == nil || t.pages*pe < y.entries[h]+s.N {
						return fmt.Errorf("layer %d, sequence %d, head %d: there are no pages for %d entries and %d more", i, s.Seq, h%kv, y.entries[h], s.N)
					}
				}
			}
		}
	}
	need, err := p.plan(l)
	if err == nil && l.split && need <= maxPartialBytes && (p.partials == nil || need > p.partials.Size()) && p.growPartials(need) {
		_, err = p.plan(l)
	}
	for _, i := range l.attend {
		if err == nil {
			err = p.layers[i].work.endsEarly
		}
	}
	return err
}

// plan fills the work lists of a list's layers and returns the memory that splitting
// the one with the most items needs.
func (p *pass) plan(l *passList) (int64, error) {
	var parts view
	if l.split && p.partials != nil {
		parts = p.partials.All()
	}
	kv, most := p.s.KVHeads, 0
	for _, i := range l.attend {
		y := &p.layers[i]
		for j := range p.spans {
			seq := p.spans[j].Seq
			p.spans[j].End = y.ends[seq*kv : (seq+1)*kv]
		}
		items, err := y.work.Fill(p.spans, parts)
		if err != nil {
			return 0, err
		}
		most = max(most, items)
	}
	return partialBytes(p.s.HeadDim, most), nil
}

// growPartials allocates more memory for split attention. It returns false if there is
// not enough, which only costs time.
func (p *pass) growPartials(need int64) bool {
	b, err := p.d.newLocalBuffer(min(max(2*need, 64<<10), maxPartialBytes))
	if err != nil {
		return false
	}
	p.partials.Free()
	p.partials = b
	return true
}

func (p *pass) Run(ctx context.Context, list kernels.PassList) error {
	l, ok := list.(*passList)
	if !ok || l.p != p {
		return errors.New("run a pass: the list is not of this pass")
	}
	if _, live := p.lists[l]; !live {
		return errors.New("run a pass: the list was freed")
	}
	if err := p.d.ready(); err != nil {
		return fmt.Errorf("run a pass: %w", err)
	}
	if err := p.prepare(l); err != nil {
		return fmt.Errorf("run a pass: %w", err)
	}
	if err := p.run(ctx, l); err != nil {
		return fmt.Errorf("run a pass: %w", err)
	}
	return nil
}

// run submits the parts of a list, of which at most two are in flight.
func (p *pass) run(ctx context.Context, l *passList) error {
	var last, before ticket
	var err error
	for _, c := range l.parts {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		t, e := p.d.submit(c)
		if e == nil {
			before, last = last, t
			e = p.d.wait(context.Background(), before)
		}
		if err = e; err != nil {
			break
		}
	}
	// Host memory is written again after a run, so nothing may be in flight.
	if e := p.d.wait(context.Background(), last); err == nil {
		err = e
	}
	return err
}

func (p *pass) Read(ctx context.Context, dst []float32, a kernels.Activation, first, n int) error {
	if a > kernels.ActLogits {
		return fmt.Errorf("read activation %d: there is none", a)
	}
	r := p.act[a]
	if p.closed || first < 0 || n < 0 || first+n > r.N || len(dst) < n*r.Cols {
		return fmt.Errorf("read rows [%d, %d) of activation %d: found %d rows of %d and room for %d numbers", first, first+n, a, r.N, r.Cols, len(dst))
	}
	if n == 0 {
		return p.d.ready()
	}
	r = r.Part(first, n)
	size := r.Type.Bytes(1)
	raw := floatBytes(dst[:n*r.Cols])
	if r.Stride != r.Cols || r.Type != tensor.F32 {
		raw = make([]byte, r.bytes())
	}
	if err := p.d.download(ctx, raw, r.Mem); err != nil {
		return fmt.Errorf("read an activation: %w", err)
	}
	if r.Stride != r.Cols || r.Type != tensor.F32 {
		for i := range n {
			kernels.CPU{}.Widen(dst[i*r.Cols:(i+1)*r.Cols], raw[i*r.Stride*size:(i*r.Stride+r.Cols)*size], r.Type)
		}
	}
	return nil
}

func (p *pass) ReadStats(ctx context.Context, dst []kernels.Softmax, first, n int) error {
	heads := p.s.Heads
	if p.closed || first < 0 || n < 0 || first+n > p.s.Rows || len(dst) < n*heads {
		return fmt.Errorf("read softmax statistics of rows [%d, %d): found %d rows of %d and room for %d", first, first+n, p.s.Rows, heads, len(dst))
	}
	dst = dst[:n*heads]
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 8*len(dst))
	if err := p.d.download(ctx, raw, p.stats.At(8*int64(first*heads), int64(len(raw)))); err != nil {
		return fmt.Errorf("read softmax statistics: %w", err)
	}
	for i := range dst {
		if dst[i].Sum == 0 {
			dst[i].Max = float32(math.Inf(-1))
		}
	}
	return nil
}
