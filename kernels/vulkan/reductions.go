//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kernels"
)

// moments holds the query statistics of a layer, columnSums attention column sums.
type moments struct {
	a          *attention
	mem        *buffer
	covariance bool
}

type columnSums struct {
	a       *attention
	mem     *buffer
	entries int
}

func (m *moments) Free()    { m.a.release(m.mem) }
func (s *columnSums) Free() { s.a.release(s.mem) }

// keep allocates zeroed memory that Free of the attention frees unless it was freed before.
func (a *attention) keep(op string, n int64) (*buffer, error) {
	b, err := a.d.newLocalBuffer(n)
	if err == nil && n > 0 {
		if err = a.d.once(func(c *commands) { c.Zero(b.All()) }); err != nil {
			b.Free()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	a.kept[b] = struct{}{}
	return b, nil
}

func (a *attention) release(b *buffer) {
	delete(a.kept, b)
	b.Free()
}

func (a *attention) Moments(covariance bool) (kernels.Moments, error) {
	b, err := a.keep("make query statistics", momentBytes(a.s.Heads, a.s.HeadDim))
	if err != nil {
		return nil, err
	}
	return &moments{a, b, covariance}, nil
}

func (a *attention) ReadMoments(ctx context.Context, m kernels.Moments, head int, mean, cov []float64) (int, error) {
	const op = "read query statistics"
	s, ok := m.(*moments)
	if !ok || s.a != a || s.mem.block == nil || head < 0 || head >= a.s.Heads {
		return 0, fmt.Errorf("%s of head %d of %d: found statistics of another attention, freed ones, or no such head", op, head, a.s.Heads)
	}
	if cov != nil && !s.covariance {
		return 0, fmt.Errorf("%s: they were made without covariance", op)
	}
	// Only this head, after the header.
	state := make([]float32, momentHeader+momentFloats(a.s.HeadDim))
	one := int64(4 * momentFloats(a.s.HeadDim))
	err := a.d.download(ctx, floatBytes(state[:momentHeader]), s.mem.All())
	if err == nil {
		err = a.d.download(ctx, floatBytes(state[momentHeader:]), s.mem.At(4*momentHeader+int64(head)*one, one))
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	return readMoments(state, a.s.HeadDim, 0, mean, cov)
}

func (a *attention) ColumnSums(entries int) (kernels.ColumnSums, error) {
	const op = "make column sums"
	if entries < 0 {
		return nil, fmt.Errorf("%s: found %d entries", op, entries)
	}
	b, err := a.keep(op, 4*int64(a.s.Heads)*int64(entries))
	if err != nil {
		return nil, err
	}
	return &columnSums{a, b, entries}, nil
}

func (a *attention) ReadColumnSums(ctx context.Context, s kernels.ColumnSums, layer, seq int) ([][]float32, error) {
	const op = "read column sums"
	from, ok := s.(*columnSums)
	if !ok || from.a != a || from.mem.block == nil {
		return nil, fmt.Errorf("%s: found sums of another attention, or freed ones", op)
	}
	of, entries, err := a.sequence(layer, seq)
	if err == nil && of.Longest > from.entries {
		err = fmt.Errorf("found %d entries, the sums are for %d", of.Longest, from.entries)
	}
	if err != nil {
		return nil, fmt.Errorf("%s of layer %d, sequence %d: %w", op, layer, seq, err)
	}
	return a.read(ctx, op, from.mem.All(), from.entries, entries, a.shape.group())
}

// sequence returns the heads of a sequence in a layer, and how many entries each has.
func (a *attention) sequence(layer, seq int) (sequence, []int, error) {
	if err := a.d.ready(); err != nil {
		return sequence{}, nil, err
	}
	if a.freed || layer < 0 || layer >= len(a.layers) || seq < 0 || seq >= a.s.Sequences {
		return sequence{}, nil, fmt.Errorf("expected one of %d layers and %d sequences of an attention in use", len(a.layers), a.s.Sequences)
	}
	y, kv := &a.layers[layer], a.s.KVHeads
	entries := y.entries[seq*kv : (seq+1)*kv]
	for h, n := range entries {
		if t := y.tables[seq*kv+h]; n > 0 && (t == nil || t.mem == nil || t.pages*a.shape.PageEntries < n) {
			return sequence{}, nil, fmt.Errorf("found too few pages for the %d entries of head %d", n, h)
		}
	}
	return sequence{shape: y.shape, Table: y.heads, Seq: seq, Longest: slices.Max(entries)}, entries, nil
}

// read copies rows of results, ld elements apart, to the host: one for each of group query
// heads per KV head, as long as that has entries.
func (a *attention) read(ctx context.Context, op string, from view, ld int, entries []int, group int) ([][]float32, error) {
	rows := make([][]float32, len(entries)*group)
	for i := range rows {
		rows[i] = make([]float32, entries[i/group])
		if err := a.d.download(ctx, floatBytes(rows[i]), from.At(4*int64(i)*int64(ld), 4*int64(ld))); err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
	}
	return rows, nil
}

// reduction is an operation over the entries of a sequence in a layer.
type reduction struct {
	name    string
	layer   int
	seq     int
	queries bool   // a result per query head, not per KV head
	in      []byte // operands
	work    func(s sequence) int64
	record  func(c *commands, s sequence, in, work, out view, ld int)
}

// reduce computes a reduction and returns its results.
func (a *attention) reduce(ctx context.Context, r reduction) ([][]float32, error) {
	wrap := func(err error) ([][]float32, error) {
		return nil, fmt.Errorf("%s of layer %d, sequence %d: %w", r.name, r.layer, r.seq, err)
	}
	s, entries, err := a.sequence(r.layer, r.seq)
	if err != nil {
		return wrap(err)
	}
	group, ld := 1, padded(s.Longest)
	if r.queries {
		group = a.shape.group()
	}
	up := func(n int64) int64 { return (n + alignment - 1) &^ (alignment - 1) }
	before, middle := up(int64(len(r.in))), int64(0)
	if r.work != nil {
		middle = up(r.work(s))
	}
	size := 4 * int64(len(entries)*group) * int64(ld)
	mem, err := a.d.newLocalBuffer(before + middle + size)
	if err != nil {
		return wrap(err)
	}
	defer mem.Free()
	if err := a.d.upload(ctx, mem.All(), r.in); err != nil {
		return wrap(err)
	}
	out := mem.At(before+middle, size)
	if err := a.d.run(ctx, func(c *commands) { r.record(c, s, mem.At(0, before), mem.At(before, middle), out, ld) }); err != nil {
		return wrap(err)
	}
	return a.read(ctx, r.name, out, ld, entries, group)
}

func (a *attention) KeyNorms(ctx context.Context, layer, seq int) ([][]float32, error) {
	return a.reduce(ctx, reduction{name: "key norms", layer: layer, seq: seq, record: func(c *commands, s sequence, _, _, out view, ld int) {
		c.KeyNorms(s, out, ld)
	}})
}

func (a *attention) ValueNorms(ctx context.Context, layer, seq int) ([][]float32, error) {
	return a.reduce(ctx, reduction{name: "value norms", layer: layer, seq: seq, record: func(c *commands, s sequence, _, _, out view, ld int) {
		c.ValueNorms(s, out, ld)
	}})
}

func (a *attention) MeanCosines(ctx context.Context, layer, seq int) ([][]float32, error) {
	return a.reduce(ctx, reduction{
		name: "mean cosines", layer: layer, seq: seq,
		work: func(s sequence) int64 { return cosineBytes(s.shape, s.Longest) },
		record: func(c *commands, s sequence, _, work, out view, ld int) {
			c.MeanCosines(s, work, out, ld)
		},
	})
}

func (a *attention) OutputNorms(ctx context.Context, layer, seq int, projection kernels.DeviceMatrix, norm int) ([][]float32, error) {
	const op = "output norms"
	w, err := a.d.matrixOf(projection)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return a.reduce(ctx, reduction{name: op, layer: layer, seq: seq, queries: true, record: func(c *commands, s sequence, _, _, out view, ld int) {
		c.OutputNorms(s, w, norm, out, ld)
	}})
}

func (a *attention) QuadraticForm(ctx context.Context, layer, seq int, linear, form []float32) ([][]float32, error) {
	const op = "quadratic form"
	H, D, P := a.s.Heads, a.s.HeadDim, padded(a.s.HeadDim)
	if len(linear) != H*D || form != nil && len(form) != H*D*D {
		return nil, fmt.Errorf("%s: found %d linear and %d quadratic coefficients, expected %d and none or %d", op, len(linear), len(form), H*D, H*D*D)
	}
	// Both with padding.
	first, second := 4*H*P, 0
	if form != nil {
		second = 4 * H * P * P
	}
	in := make([]byte, first+second)
	for q := range H {
		copy(in[4*q*P:], floatBytes(linear[q*D:(q+1)*D]))
		for i := 0; i < D && second > 0; i++ {
			copy(in[first+4*(q*P+i)*P:], floatBytes(form[(q*D+i)*D:(q*D+i+1)*D]))
		}
	}
	return a.reduce(ctx, reduction{name: op, layer: layer, seq: seq, queries: true, in: in, record: func(c *commands, s sequence, in, _, out view, ld int) {
		var quadratic view
		if second > 0 {
			quadratic = in.At(int64(first), int64(second))
		}
		c.QuadraticForm(s, in.At(0, int64(first)), quadratic, out, ld)
	}})
}

func (a *attention) KeyDistances(ctx context.Context, layer, seq int, frequencies []float64) ([][]float32, error) {
	const op = "key distances"
	if 2*len(frequencies) != a.s.HeadDim {
		return nil, fmt.Errorf("%s: found %d frequencies, expected half of head dimension %d", op, len(frequencies), a.s.HeadDim)
	}
	in := make([]byte, 8*len(frequencies))
	putFrequencies(in, frequencies)
	return a.reduce(ctx, reduction{
		name: op, layer: layer, seq: seq, in: in,
		work: func(s sequence) int64 { return cosineBytes(s.shape, s.Longest) },
		record: func(c *commands, s sequence, in, work, out view, ld int) {
			c.KeyDistances(s, in, work, out, ld)
		},
	})
}

func (a *attention) LinearForms(ctx context.Context, layer, seq int, keys, values []float32, frequencies []float64) ([][]float32, error) {
	const op = "linear forms"
	K, D, P := a.s.KVHeads, a.s.HeadDim, padded(a.s.HeadDim)
	if len(keys) != K*D || len(values) != K*D || 2*len(frequencies) != D {
		return nil, fmt.Errorf("%s: found %d and %d coefficients and %d frequencies, expected %d and %d", op, len(keys), len(values), len(frequencies), K*D, D/2)
	}
	first := 8 * K * P // bytes of the coefficients, with padding
	in := make([]byte, first+8*len(frequencies))
	for h := range K {
		copy(in[8*h*P:], floatBytes(keys[h*D:(h+1)*D]))
		copy(in[8*h*P+4*P:], floatBytes(values[h*D:(h+1)*D]))
	}
	putFrequencies(in[first:], frequencies)
	return a.reduce(ctx, reduction{name: op, layer: layer, seq: seq, in: in, record: func(c *commands, s sequence, in, _, out view, ld int) {
		c.LinearForms(s, in.At(int64(first), int64(8*len(frequencies))), in.At(0, int64(first)), out, ld)
	}})
}
