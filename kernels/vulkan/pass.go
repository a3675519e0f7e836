//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// pass is a kernels.Pass. It has activations on the device, and in host-visible memory
// what changes between runs: In, Turns, the rows' places, and per layer the table of
// heads and the work list of attention.
type pass struct {
	d     *Device
	s     kernels.PassShape
	shape shape

	buffers []*buffer // to be freed by Close, except for those below
	act     [kernels.ActLogits + 1]rowset
	last    rowset // normalised rows for Logits
	stats   view   // [Rows][Heads][2]
	in      *buffer
	turns   *buffer
	out     *buffer // for OutLogits
	rowInfo *buffer

	layers   []passLayer
	spans    []rowSpan
	used     int     // rows that rowInfo describes
	partials *buffer // for split attention, nil at first
	lists    map[*passList]struct{}
	spare    []*commands
	kept     map[*buffer]struct{} // statistics of metrics
	closed   bool

	// What is being recorded.
	list  *passList
	c     *commands
	err   error
	flops float64 // of c, approximate

	// partFlops is the amount of work after which a new part of a list begins.
	partFlops float64
}

// passLayer is what a layer's attention reads. Heads are numbered
// sequence·KVHeads + head.
type passLayer struct {
	heads   *headTable
	work    *workList
	tables  []*pageTable
	entries []int // before the pass
	ends    []int // logical slots that the sequence's first row in the pass sees
}

// passList is a kernels.PassList: commands in parts short enough to wait for when a
// run is cancelled.
type passList struct {
	p       *pass
	rows    int
	parts   []*commands
	attend  []int // layers whose work lists are read
	appends []int // layers whose pages are written
	reads   []int // layers whose pages are read otherwise
	split   bool
}

const (
	// splitRows is the most rows for which the blocks of a task may run in
	// parallel. More rows provide enough tasks.
	splitRows = 32

	// maxPartialBytes bounds the memory of split attention.
	maxPartialBytes = 128 << 20

	// noRow marks rows that belong to no sequence.
	noRow = math.MaxUint32

	// Work for a part that takes tens of milliseconds, or a tenth of a second.
	hardwareFlops = 1e11
	unitsFlops    = 5e11 // with matrix units
	softwareFlops = 2e9
)

// Pass allocates what passes of a shape need.
func (d *Device) Pass(s kernels.PassShape) (kernels.Pass, error) {
	p, err := d.newPass(s)
	if err != nil {
		return nil, fmt.Errorf("make passes of %d rows: %w", s.Rows, err)
	}
	return p, nil
}

func (d *Device) newPass(s kernels.PassShape) (*pass, error) {
	if min(s.Rows, s.Sequences, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.Intermediate, s.Vocab) < 1 || s.Logits < 0 || s.Heads%s.KVHeads != 0 || s.Page.HeadDim != s.HeadDim {
		return nil, fmt.Errorf("found %+v, expected positive sizes and whole groups of heads", s)
	}
	l := layout(s.Page)
	if err := l.Check(); err != nil {
		return nil, err
	}
	if s.AttentionBF16 && s.Page.Type != tensor.BF16 {
		return nil, fmt.Errorf("attention in bf16: found pages of type %v, expected BF16", s.Page.Type)
	}
	if err := d.ready(); err != nil {
		return nil, err
	}
	p := &pass{d: d, s: s, shape: shape{layout: l, Heads: s.Heads, KVHeads: s.KVHeads, Scale: s.Scale, BF16: s.AttentionBF16}, lists: map[*passList]struct{}{}, kept: map[*buffer]struct{}{}, partFlops: hardwareFlops}
	switch {
	case d.info.Kind == "software":
		p.partFlops = softwareFlops
	case s.BF16 && d.units != nil:
		p.partFlops = unitsFlops
	}
	if err := p.allocate(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *pass) allocate() error {
	s := &p.s
	var err error
	grab := func(take func(int64) (*buffer, error), n int) *buffer {
		if err != nil {
			return nil
		}
		var b *buffer
		if b, err = take(int64(n)); err == nil {
			p.buffers = append(p.buffers, b)
		}
		return b
	}
	rows := func(n, cols int, t tensor.Type) (r rowset) {
		if b := grab(p.d.newLocalBuffer, t.Bytes(n*padded(cols))); b != nil {
			r = newRowset(b.All(), t, n, cols)
		}
		return r
	}
	factor := tensor.F32 // type of the activations that products read
	if s.BF16 {
		factor = tensor.BF16
	}
	for a := range p.act {
		t, n := tensor.F32, s.Rows
		switch kernels.Activation(a) {
		case kernels.ActNorm, kernels.ActAttention, kernels.ActMLP:
			t = factor
		case kernels.ActLogits:
			n = s.Logits
		}
		p.act[a] = rows(n, s.Columns(kernels.Activation(a)), t)
	}
	p.last = rows(s.Logits, s.Hidden, factor)
	if b := grab(p.d.newLocalBuffer, 8*s.Rows*s.Heads); b != nil {
		p.stats = b.All()
	}
	p.in = grab(p.d.newHostBuffer, 4*s.Rows*s.Hidden)
	p.turns = grab(p.d.newParamBuffer, 4*s.Rows*s.HeadDim)
	p.out = grab(p.d.newHostBuffer, 4*s.Logits*s.Vocab)
	p.rowInfo = grab(p.d.newParamBuffer, rowInfoBytes*s.Rows)
	if err != nil {
		return err
	}
	for r := range s.Rows {
		binary.LittleEndian.PutUint32(p.rowInfo.Bytes()[r*rowInfoBytes:], noRow)
	}
	pairs := s.Sequences * s.KVHeads
	p.layers = make([]passLayer, len(s.Windows))
	for i := range p.layers {
		y := &p.layers[i]
		y.tables, y.entries, y.ends = make([]*pageTable, pairs), make([]int, pairs), make([]int, pairs)
		if y.heads, err = p.d.newHeadTable(pairs); err != nil {
			return err
		}
		p.buffers = append(p.buffers, y.heads.mem)
		if y.work, err = p.d.newWorkList(p.shape, s.Windows[i], s.Sequences, s.Rows); err != nil {
			return err
		}
		p.buffers = append(p.buffers, y.work.mem)
	}
	p.spans = make([]rowSpan, 0, s.Sequences)
	// Memory that nothing has written yet is zero, so that no reader meets NaN.
	return p.d.once(func(c *commands) {
		c.Together(func() {
			for _, a := range append(p.act[:], p.last) {
				if a.N > 0 {
					c.Zero(a.Mem)
				}
			}
			c.Zero(p.stats)
		})
	})
}

func (p *pass) Close() {
	if p.closed {
		return
	}
	p.abandon()
	for l := range p.lists {
		l.Free()
	}
	for _, c := range p.spare {
		c.Free()
	}
	for _, b := range p.buffers {
		b.Free()
	}
	for b := range p.kept {
		b.Free()
	}
	clear(p.kept)
	p.partials.Free()
	p.spare, p.buffers, p.partials, p.closed = nil, nil, nil, true
}
