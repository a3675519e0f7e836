//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kernels"
)

// A pass is a kernels.MetricPass.

// moments holds the query statistics of a layer, sums attention column sums.
type moments struct {
	p          *pass
	mem        *buffer
	covariance bool
}

type sums struct {
	p       *pass
	mem     *buffer
	entries int
}

func (m *moments) Free() { m.p.release(m.mem) }
func (s *sums) Free()    { s.p.release(s.mem) }

// keep allocates zeroed memory that Close frees unless it was freed before.
func (p *pass) keep(op string, n int64) (*buffer, error) {
	b, err := p.d.newLocalBuffer(n)
	if err == nil {
		if err = p.d.once(func(c *commands) { c.Zero(b.All()) }); err != nil {
			b.Free()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	p.kept[b] = struct{}{}
	return b, nil
}

func (p *pass) release(b *buffer) {
	delete(p.kept, b)
	b.Free()
}

func (p *pass) NewMoments(covariance bool) (kernels.DeviceMoments, error) {
	b, err := p.keep("make query statistics", momentBytes(p.s.Heads, p.s.HeadDim))
	if err != nil {
		return nil, err
	}
	return &moments{p, b, covariance}, nil
}

func (p *pass) NewSums(entries int) (kernels.DeviceSums, error) {
	const op = "make column sums"
	if entries < 0 {
		return nil, fmt.Errorf("%s: found %d entries", op, entries)
	}
	b, err := p.keep(op, 4*int64(p.s.Heads)*int64(entries))
	if err != nil {
		return nil, err
	}
	return &sums{p, b, entries}, nil
}

// checkRows checks that rows are in the list that is being recorded.
func (p *pass) checkRows(first, n int) bool {
	if p.recording() && (first < 0 || n < 0 || first+n > p.list.rows) {
		p.fail("rows [%d, %d) of %d", first, first+n, p.list.rows)
	}
	return p.err == nil
}

func (p *pass) Moments(m kernels.DeviceMoments, first, n int) {
	if !p.checkRows(first, n) {
		return
	}
	s, ok := m.(*moments)
	if !ok || s.p != p || s.mem.block == nil {
		p.fail("query statistics that are not of this pass")
		return
	}
	p.c.Moments(p.rows(kernels.ActQ), p.s.HeadDim, first, n, s.mem.All(), s.covariance)
	if s.covariance {
		p.work(2 * float64(n) * float64(p.s.Heads*p.s.HeadDim) * float64(p.s.HeadDim))
	}
}

func (p *pass) ReadMoments(ctx context.Context, m kernels.DeviceMoments, head int, mean, cov []float64) (int, error) {
	const op = "read query statistics"
	s, ok := m.(*moments)
	if !ok || s.p != p || s.mem.block == nil || head < 0 || head >= p.s.Heads {
		return 0, fmt.Errorf("%s of head %d of %d: they are not of this pass, or there is no such head", op, head, p.s.Heads)
	}
	if cov != nil && !s.covariance {
		return 0, fmt.Errorf("%s: they were made without covariance", op)
	}
	// Only this head, after the header.
	state := make([]float32, momentHeader+momentFloats(p.s.HeadDim))
	one := int64(4 * momentFloats(p.s.HeadDim))
	err := p.d.download(ctx, floatBytes(state[:momentHeader]), s.mem.All())
	if err == nil {
		err = p.d.download(ctx, floatBytes(state[momentHeader:]), s.mem.At(4*momentHeader+int64(head)*one, one))
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	return readMoments(state, p.s.HeadDim, 0, mean, cov)
}

func (p *pass) ColumnSums(s kernels.DeviceSums, layer, seq, first, n int) {
	if !p.checkRows(first, n) {
		return
	}
	y := p.layer(layer, &p.list.reads)
	to, ok := s.(*sums)
	switch {
	case !ok || to.p != p || to.mem.block == nil:
		p.fail("column sums that are not of this pass")
	case seq < 0 || seq >= p.s.Sequences:
		p.fail("column sums of sequence %d of %d", seq, p.s.Sequences)
	case y != nil && p.s.Windows[layer] > 0:
		p.fail("column sums of layer %d, which has a window", layer)
	}
	if p.err != nil {
		return
	}
	q := sequence{shape: p.shape, Table: y.heads, Seq: seq, Longest: to.entries}
	p.c.ColumnSums(q, p.rows(kernels.ActQ), p.stats, p.rowInfo.All(), first, n, to.mem.All(), to.entries)
	p.work(2 * float64(n) * float64(p.s.Heads*p.s.HeadDim) * float64(to.entries))
}

// score runs a metric on a sequence's heads in a layer and returns its scores, a
// row per head or, with queries, per query head. in is its input; work returns the
// bytes of work memory that it needs for a sequence.
func (p *pass) score(ctx context.Context, op string, layer, seq int, queries bool, in []byte, work func(s sequence) int64, record func(c *commands, s sequence, in, work, out view, ld int)) ([][]float32, error) {
	wrap := func(err error) ([][]float32, error) {
		return nil, fmt.Errorf("%s of layer %d, sequence %d: %w", op, layer, seq, err)
	}
	if err := p.d.ready(); err != nil {
		return wrap(err)
	}
	if p.closed || layer < 0 || layer >= len(p.layers) || seq < 0 || seq >= p.s.Sequences {
		return wrap(fmt.Errorf("expected one of %d layers and %d sequences of an open pass", len(p.layers), p.s.Sequences))
	}
	y, kv := &p.layers[layer], p.s.KVHeads
	entries := y.entries[seq*kv : (seq+1)*kv]
	for h, n := range entries {
		if t := y.tables[seq*kv+h]; n > 0 && (t == nil || t.mem == nil || t.pages*p.shape.PageEntries < n) {
			return wrap(fmt.Errorf("there are no pages for the %d entries of head %d", n, h))
		}
	}
	s := sequence{shape: p.shape, Table: y.heads, Seq: seq, Longest: slices.Max(entries)}
	heads, group, ld := kv, 1, padded(s.Longest)
	if queries {
		heads, group = p.s.Heads, p.shape.group()
	}
	up := func(n int64) int64 { return (n + alignment - 1) &^ (alignment - 1) }
	before, middle := up(int64(len(in))), int64(0)
	if work != nil {
		middle = up(work(s))
	}
	size := 4 * int64(heads) * int64(ld)
	mem, err := p.d.newLocalBuffer(before + middle + size)
	if err != nil {
		return wrap(err)
	}
	defer mem.Free()
	if err := p.d.upload(ctx, mem.All(), in); err != nil {
		return wrap(err)
	}
	out := mem.At(before+middle, size)
	if err := p.d.run(ctx, func(c *commands) { record(c, s, mem.At(0, before), mem.At(before, middle), out, ld) }); err != nil {
		return wrap(err)
	}
	scores := make([][]float32, heads)
	for h := range scores {
		scores[h] = make([]float32, entries[h/group])
		if err := p.d.download(ctx, floatBytes(scores[h]), out.At(4*int64(h)*int64(ld), 4*int64(ld))); err != nil {
			return wrap(err)
		}
	}
	return scores, nil
}

func (p *pass) WindowScores(ctx context.Context, layer, seq int, s kernels.DeviceSums, o kernels.WindowScoring) ([][]float32, error) {
	const op = "window scores"
	from, ok := s.(*sums)
	if !ok || from.p != p || from.mem.block == nil {
		return nil, fmt.Errorf("%s: the column sums are not of this pass", op)
	}
	return p.score(ctx, op, layer, seq, false, nil, nil, func(c *commands, s sequence, _, _, out view, ld int) {
		if s.Longest > from.entries || o.Window < 1 {
			c.fail(op, "found %d entries and a window of %d rows for sums of %d entries", s.Longest, o.Window, from.entries)
			return
		}
		c.SnapKV(s, o, from.mem.All(), from.entries, out, ld)
	})
}

func (p *pass) AnchorScores(ctx context.Context, layer, seq int) ([][]float32, error) {
	work := func(s sequence) int64 { return keyDiffBytes(s.shape, s.Longest) }
	return p.score(ctx, "anchor scores", layer, seq, false, nil, work, func(c *commands, s sequence, _, work, out view, ld int) {
		c.KeyDiff(s, work, out, ld)
	})
}

func (p *pass) KeyNorms(ctx context.Context, layer, seq int) ([][]float32, error) {
	return p.score(ctx, "key norms", layer, seq, false, nil, nil, func(c *commands, s sequence, _, _, out view, ld int) {
		c.KeyNorms(s, out, ld)
	})
}

func (p *pass) ValueNorms(ctx context.Context, layer, seq int) ([][]float32, error) {
	return p.score(ctx, "value norms", layer, seq, false, nil, nil, func(c *commands, s sequence, _, _, out view, ld int) {
		c.ValueNorms(s, out, ld)
	})
}

func (p *pass) OutputNorms(ctx context.Context, layer, seq int, out kernels.DeviceMatrix, norm int) ([][]float32, error) {
	const op = "output norms"
	w, ok := out.(*matrix)
	if !ok || w.buf.block == nil || w.buf.d != p.d {
		return nil, fmt.Errorf("%s: the output projection is not of this device", op)
	}
	return p.score(ctx, op, layer, seq, true, nil, nil, func(c *commands, s sequence, _, _, out view, ld int) {
		c.OutputNorms(s, w.weights, norm, out, ld)
	})
}

func (p *pass) ExpectedScores(ctx context.Context, layer, seq int, o kernels.ExpectedScoring) ([][]float32, error) {
	const op = "expected attention"
	H, D, P := p.s.Heads, p.s.HeadDim, padded(p.s.HeadDim)
	if len(o.Mean) != H*D || o.Form != nil && len(o.Form) != H*D*D || o.Sinks != nil && len(o.Sinks) != p.s.KVHeads {
		return nil, fmt.Errorf("%s: found means of %d, forms of %d and sinks of %d elements, expected %d, none or %d, none or %d", op, len(o.Mean), len(o.Form), len(o.Sinks), H*D, H*D*D, p.s.KVHeads)
	}
	// Means and forms with padding, then the sinks.
	mean, form := 4*H*P, 0
	if o.Form != nil {
		form = 4 * H * P * P
	}
	in := make([]byte, mean+form+4*p.s.KVHeads)
	for q := range H {
		copy(in[4*q*P:], floatBytes(o.Mean[q*D:(q+1)*D]))
		for a := 0; a < D && form > 0; a++ {
			copy(in[mean+4*(q*P+a)*P:], floatBytes(o.Form[(q*D+a)*D:(q*D+a+1)*D]))
		}
	}
	for h, n := range o.Sinks {
		if n < 0 {
			return nil, fmt.Errorf("%s: found %d sinks", op, n)
		}
		binary.LittleEndian.PutUint32(in[mean+form+4*h:], uint32(n))
	}
	work := func(s sequence) int64 { return expectedBytes(s.shape, s.Longest) }
	return p.score(ctx, op, layer, seq, false, in, work, func(c *commands, s sequence, in, work, out view, ld int) {
		e := expectedOp{
			sequence: s, Mean: in.At(0, int64(mean)), Sinks: in.At(int64(mean+form), int64(4*p.s.KVHeads)),
			Work: work, ValueNorm: o.ValueNorm, Epsilon: o.Epsilon, Scores: out, Ld: ld,
		}
		if form > 0 {
			e.Form = in.At(int64(mean), int64(form))
		}
		c.ExpectedAttention(e)
	})
}
