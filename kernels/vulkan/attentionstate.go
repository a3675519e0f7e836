//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// attention is a kernels.Attention. The host writes in place whatever changes between runs:
// the rows' places, and per layer the table of heads and the work list.
type attention struct {
	d     *Device
	s     kernels.AttentionShape
	shape shape

	rowInfo *buffer
	stats   *buffer // [Rows][Heads][2]
	layers  []attentionLayer
	spans   []rowSpan
	used    int // rows that rowInfo describes

	partials *buffer              // for split attention, nil at first
	kept     map[*buffer]struct{} // statistics and sums
	freed    bool
}

// attentionLayer holds the operands of a layer's attention. Heads are numbered
// sequence·KVHeads + head.
type attentionLayer struct {
	shape   shape // with the layer's own pages
	heads   *headTable
	work    *workList
	tables  []*pageTable
	entries []int // before the pass
	ends    []int // logical slots that the sequence's first row in the pass sees
}

const (
	// splitRows is the most rows for which the blocks of a task may run in
	// parallel. More rows provide enough tasks.
	splitRows = 32

	// maxPartialBytes bounds the memory of split attention.
	maxPartialBytes = 128 << 20

	// noRow marks rows that belong to no sequence.
	noRow = math.MaxUint32
)

// Attention allocates the state of attention for passes of a shape.
func (d *Device) Attention(s kernels.AttentionShape) (kernels.Attention, error) {
	a, err := d.newAttention(s)
	if err != nil {
		return nil, fmt.Errorf("make attention for %d rows: %w", s.Rows, err)
	}
	return a, nil
}

func (d *Device) newAttention(s kernels.AttentionShape) (*attention, error) {
	if min(s.Rows, s.Sequences, s.Heads, s.KVHeads, s.HeadDim) < 1 || s.Heads%s.KVHeads != 0 || s.Page.HeadDim != s.HeadDim {
		return nil, fmt.Errorf("found %+v, expected positive sizes, whole groups of heads, and pages of the heads' dimension", s)
	}
	if s.WideKeys != nil && len(s.WideKeys) != len(s.Windows) {
		return nil, fmt.Errorf("found wide keys of %d layers, expected %d", len(s.WideKeys), len(s.Windows))
	}
	l := layout(s.Page)
	if err := l.Check(); err != nil {
		return nil, err
	}
	if s.BF16 && s.Page.Type != tensor.BF16 {
		return nil, fmt.Errorf("attention in bf16: found pages of type %v, expected BF16", s.Page.Type)
	}
	if err := d.ready(); err != nil {
		return nil, err
	}
	a := &attention{
		d: d, s: s, shape: shape{layout: l, Heads: s.Heads, KVHeads: s.KVHeads, Scale: s.Scale, Cap: s.Cap, BF16: s.BF16},
		spans: make([]rowSpan, 0, s.Sequences), kept: map[*buffer]struct{}{},
	}
	if err := a.allocate(); err != nil {
		a.Free()
		return nil, err
	}
	return a, nil
}

func (a *attention) allocate() (err error) {
	s := &a.s
	if a.stats, err = a.d.newLocalBuffer(8 * int64(s.Rows) * int64(s.Heads)); err != nil {
		return err
	}
	if a.rowInfo, err = a.d.newParamBuffer(rowInfoBytes * int64(s.Rows)); err != nil {
		return err
	}
	for r := range s.Rows {
		binary.LittleEndian.PutUint32(a.rowInfo.Bytes()[r*rowInfoBytes:], noRow)
	}
	pairs := s.Sequences * s.KVHeads
	a.layers = make([]attentionLayer, len(s.Windows))
	for i := range a.layers {
		y := &a.layers[i]
		y.shape = a.shape
		y.shape.layout = layout(s.PageOf(i))
		if err := y.shape.Check(); err != nil {
			return err
		}
		y.tables, y.entries, y.ends = make([]*pageTable, pairs), make([]int, pairs), make([]int, pairs)
		if y.heads, err = a.d.newHeadTable(pairs); err != nil {
			return err
		}
		if y.work, err = a.d.newWorkList(y.shape, s.Windows[i], s.Sequences, s.Rows); err != nil {
			return err
		}
	}
	return a.d.once(func(c *commands) { c.Zero(a.stats.All()) })
}

// Free frees the attention with its statistics and sums.
func (a *attention) Free() {
	if a.freed {
		return
	}
	a.freed = true
	for i := range a.layers {
		if y := &a.layers[i]; y.heads != nil {
			y.heads.Free()
			if y.work != nil {
				y.work.Free()
			}
		}
	}
	for b := range a.kept {
		b.Free()
	}
	clear(a.kept)
	for _, b := range []*buffer{a.rowInfo, a.stats, a.partials} {
		b.Free()
	}
}

func (a *attention) SetSpans(spans []kernels.RowSpan, positions []int32) {
	m := a.rowInfo.Bytes()
	for r := range a.used {
		binary.LittleEndian.PutUint32(m[r*rowInfoBytes:], noRow)
	}
	a.used, a.spans = 0, a.spans[:0]
	for i, s := range spans {
		a.spans = append(a.spans, rowSpan{Seq: i, Row: s.Row, N: s.N})
		for j := range s.N {
			putRow(m[(s.Row+j)*rowInfoBytes:], rowInfo{Seq: i, Offset: j, Position: positions[s.Row+j]})
		}
		a.used = max(a.used, s.Row+s.N)
	}
}

func (a *attention) SetHead(layer, seq, head int, t kernels.PageTable, entries, base int) {
	y, i := &a.layers[layer], seq*a.s.KVHeads+head
	table, _ := t.(*pageTable)
	y.tables[i], y.entries[i], y.ends[i] = table, entries, base+entries+1
	if table != nil && table.mem != nil {
		y.heads.Set(i, table.mem.All(), entries, base)
	}
}

func (a *attention) ReadStats(ctx context.Context, dst []kernels.Softmax, first, n int) error {
	heads := a.s.Heads
	if a.freed || first < 0 || n < 0 || n > a.s.Rows-first || len(dst) < n*heads {
		return fmt.Errorf("read softmax statistics of rows [%d, %d+%d): found %d rows of %d and room for %d", first, first, n, a.s.Rows, heads, len(dst))
	}
	dst = dst[:n*heads]
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 8*len(dst))
	if err := a.d.download(ctx, raw, a.stats.At(8*int64(first*heads), int64(len(raw)))); err != nil {
		return fmt.Errorf("read softmax statistics: %w", err)
	}
	for i := range dst {
		if dst[i].Sum == 0 {
			dst[i].Max = float32(math.Inf(-1))
		}
	}
	return nil
}

// prepare checks that the layers that a list uses have the pages that it needs, and fills
// their work lists.
func (l *commandList) prepare() error {
	for i := range l.uses {
		if err := l.uses[i].check(); err != nil {
			return err
		}
	}
	if err := l.plan(); err != nil {
		return err
	}
	grown := false
	for i := range l.uses {
		u := &l.uses[i]
		if a := u.a; u.split && u.need <= maxPartialBytes && (a.partials == nil || u.need > a.partials.Size()) {
			grown = a.growPartials(u.need) || grown
		}
	}
	if grown {
		if err := l.plan(); err != nil {
			return err
		}
	}
	for i := range l.uses {
		if u := &l.uses[i]; u.attends {
			if err := u.a.layers[u.layer].work.endsEarly; err != nil {
				return err
			}
		}
	}
	return nil
}

// plan fills the work lists of the layers, and notes the memory that splitting needs.
func (l *commandList) plan() error {
	for i := range l.uses {
		u := &l.uses[i]
		if !u.attends {
			continue
		}
		a := u.a
		var parts view
		if u.split && a.partials != nil {
			parts = a.partials.All()
		}
		kv, y := a.s.KVHeads, &a.layers[u.layer]
		for i := range a.spans {
			seq := a.spans[i].Seq
			a.spans[i].End = y.ends[seq*kv : (seq+1)*kv]
		}
		items, err := y.work.Fill(a.spans, parts)
		if err != nil {
			return err
		}
		u.need = partialBytes(a.s.HeadDim, items)
	}
	return nil
}

// check returns an error unless every head of the layer has pages for a pass.
func (u *attentionUse) check() error {
	a := u.a
	switch {
	case a.freed:
		return fmt.Errorf("the attention to layer %d was freed", u.layer)
	case a.used > u.rows:
		return fmt.Errorf("found sequences in %d rows, the list is for %d", a.used, u.rows)
	}
	kv, perPage, y := a.s.KVHeads, a.shape.PageEntries, &a.layers[u.layer]
	for _, s := range a.spans {
		for h := s.Seq * kv; h < (s.Seq+1)*kv; h++ {
			if t := y.tables[h]; t == nil || t.mem == nil || t.pages*perPage < y.entries[h]+s.N {
				return fmt.Errorf("layer %d, sequence %d, head %d: found too few pages for %d entries and %d more", u.layer, s.Seq, h%kv, y.entries[h], s.N)
			}
		}
	}
	return nil
}

// growPartials allocates more memory for split attention. It returns false if there is
// not enough, which only costs time.
func (a *attention) growPartials(need int64) bool {
	b, err := a.d.newLocalBuffer(min(max(2*need, 64<<10), maxPartialBytes))
	if err != nil {
		return false
	}
	a.partials.Free()
	a.partials = b
	return true
}
