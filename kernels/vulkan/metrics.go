//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"fmt"
	"math"

	"github.com/lukv/lukv/tensor"
)

// Sequence names the heads of one sequence in a layer for the metrics: heads
// Seq·KVHeads … of the table. Longest is the largest number of entries of any of
// them when the commands run, Held how many of a head's entries are not counted
// in the table because the current pass appended them.
type Sequence struct {
	Shape
	Table   *Heads
	Seq     int
	Longest int
	Held    int
}

func (c *Commands) sequence(op string, s Sequence) (blocks int) {
	c.shape(op, s.Shape)
	if s.Table == nil || s.Seq < 0 || (s.Seq+1)*s.KVHeads > s.Table.n {
		c.fail(op, "sequence %d is not in the table of heads", s.Seq)
	}
	if s.Longest < 0 || s.Held < 0 {
		c.fail(op, "found %d entries of which %d are new", s.Longest, s.Held)
	}
	return (s.Longest + 255) / 256
}

func (c *Commands) table(op, name string, v View, rows, ld, longest int) {
	c.floats(op, name, v, rows*ld, false)
	if ld < longest {
		c.fail(op, "%s: rows are %d elements apart, expected at least the longest head's %d entries", name, ld, longest)
	}
}

// ColumnSums adds to sums, [Heads][ld] f32, the attention that every slot
// receives from n tokens of one sequence whose rotated queries are rows row … of
// q: per query head, token after token, so that the bits do not depend on how
// tokens are cut into calls. offset is the number of tokens of this pass before
// them, and s.Table holds the entries before the pass; s.Held is not used. stats
// are what Attention left. Bound: relative error 1e-5 per token, beside the order of f32 sums.
func (c *Commands) ColumnSums(s Sequence, q Rows, stats View, row, n, offset int, sums View, ld int) {
	const op = "attention column sums"
	if !c.ready(op) {
		return
	}
	blocks := c.sequence(op, s)
	c.rows(op, "q", q, s.Heads*s.HeadDim, tensor.F32)
	c.floats(op, "stats", stats, 2*q.N*s.Heads, false)
	c.table(op, "sums", sums, s.Heads, ld, s.Longest)
	if row < 0 || n < 0 || row+n > q.N {
		c.fail(op, "rows [%d, %d) of %d", row, row+n, q.N)
	}
	if c.err != nil || n == 0 {
		return
	}
	var p push
	p.addr(q.Mem)
	p.addr(stats)
	p.addr(sums)
	p.addr(s.Table.mem.All())
	p.u32(q.Stride, s.Heads, s.group(), s.Seq*s.KVHeads, row, n, offset, ld)
	p.f32(attentionScale(s.HeadDim))
	c.dispatch(op, "columns", s.constants(), &p, blocks, s.KVHeads, (s.group()+7)/8)
}

// SnapKVOptions are the parameters of lukv's metric snapkv.
type SnapKVOptions struct {
	Window      int // rows that the sums cover, below the number of entries
	Kernel      int // odd
	MaxPool     bool
	GroupMax    bool
	ReduceFirst bool
}

// SnapKV turns the column sums of the last Window queries (ColumnSums over them
// alone, from zero) into scores [KVHeads][ldo] f32: larger means keep, +Inf for
// the last Window entries. Bound: relative error 1e-6 beside that of the sums.
func (c *Commands) SnapKV(s Sequence, o SnapKVOptions, sums View, ld int, scores View, ldo int) {
	const op = "snapkv"
	if !c.ready(op) {
		return
	}
	blocks := c.sequence(op, s)
	c.table(op, "sums", sums, s.Heads, ld, s.Longest)
	c.table(op, "scores", scores, s.KVHeads, ldo, s.Longest)
	if o.Window < 0 || o.Kernel < 1 || o.Kernel%2 == 0 {
		c.fail(op, "found window %d and kernel %d, expected 0 or more and an odd number", o.Window, o.Kernel)
	}
	if c.err != nil {
		return
	}
	flags := 0
	for i, b := range []bool{o.MaxPool, o.GroupMax, o.ReduceFirst} {
		if b {
			flags |= 1 << i
		}
	}
	var p push
	p.addr(sums)
	p.addr(scores)
	p.addr(s.Table.mem.All())
	p.u32(s.group(), s.Seq*s.KVHeads, o.Window, o.Kernel, ld, ldo, s.Held, flags)
	c.dispatch(op, "snapkv", nil, &p, blocks, s.KVHeads, 1)
}

const (
	modeUnitSums = iota
	modeAnchor
	modeKeyDiff
	modeKeyNorm
	modeValueNorm
)

// KeyDiffBytes is the size of KeyDiff's work memory.
func KeyDiffBytes(s Shape, longest int) int64 {
	return int64(s.KVHeads) * int64((longest+255)/256+2) * int64(s.HeadDim) * 4
}

// KeyDiff sets scores, [KVHeads][ldo] f32, to minus the cosine of each key with
// the mean of the head's unit keys. Bound: |error| ≤ 1e-5.
func (c *Commands) KeyDiff(s Sequence, work, scores View, ldo int) {
	const op = "keydiff"
	if !c.ready(op) {
		return
	}
	if work.Size() < KeyDiffBytes(s.Shape, s.Longest) || work.address()%32 != 0 {
		c.fail(op, "work: found %d bytes at %#x, expected %d at a multiple of 32", work.Size(), work.address(), KeyDiffBytes(s.Shape, s.Longest))
	}
	for _, mode := range []int{modeUnitSums, modeAnchor, modeKeyDiff} {
		c.vectors(op, s, mode, work, scores, ldo)
	}
}

// KeyNorms sets out, [KVHeads][ldo] f32, to the lengths of the keys; ValueNorms to
// those of the values. Bound: relative error 2e-6.
func (c *Commands) KeyNorms(s Sequence, out View, ldo int) {
	c.vectors("key norms", s, modeKeyNorm, View{}, out, ldo)
}

// ValueNorms is KeyNorms for values.
func (c *Commands) ValueNorms(s Sequence, out View, ldo int) {
	c.vectors("value norms", s, modeValueNorm, View{}, out, ldo)
}

func (c *Commands) vectors(op string, s Sequence, mode int, work, out View, ldo int) {
	if !c.ready(op) {
		return
	}
	blocks := c.sequence(op, s)
	c.table(op, "scores", out, s.KVHeads, ldo, s.Longest)
	if c.err != nil {
		return
	}
	var p push
	p.addr(out)
	p.addr(work)
	p.addr(s.Table.mem.All())
	p.u32(s.Seq*s.KVHeads, ldo, blocks, s.Held)
	x := blocks
	if mode == modeAnchor {
		x = min(blocks, 1)
	}
	c.dispatch(op, "vectors", append(s.constants(), uint32(mode), s.lanes()), &p, x, s.KVHeads, 1)
}

// OutputNorms sets out, [Heads][ldo] f32, to the norm of every value after the
// part of the output projection wo, [M, Heads·HeadDim], that reads the query
// head: norm 1 is the sum of absolute values, 2 the length. Bound: relative error 1e-5.
func (c *Commands) OutputNorms(s Sequence, wo Weights, norm int, out View, ldo int) {
	const op = "output norms"
	if !c.ready(op) {
		return
	}
	blocks := c.sequence(op, s)
	code := c.weights(op, wo)
	c.table(op, "out", out, s.Heads, ldo, s.Longest)
	if wo.Cols != s.Heads*s.HeadDim || wo.Rows < 1 || norm != 1 && norm != 2 {
		c.fail(op, "found weights %d×%d and norm %d, expected %d columns and norm 1 or 2", wo.Rows, wo.Cols, norm, s.Heads*s.HeadDim)
	}
	if c.err != nil {
		return
	}
	var p push
	p.addr(wo.Mem)
	p.addr(out)
	p.addr(s.Table.mem.All())
	p.u32(s.Seq*s.KVHeads, s.group(), wo.Rows, Pad(wo.Cols), ldo, norm, s.Held)
	c.dispatch(op, "outnorm", append(s.constants(), code), &p, blocks, s.Heads, 1)
}

// MomentBytes is the size of the query statistics of a layer.
func MomentBytes(heads, headDim int) int64 {
	return int64(heads) * int64(momentFloats(headDim)) * 4
}

func momentFloats(d int) int { return 3*d + 2*d*d }

// Moments adds rows row … row+n-1 of q, [N, heads·headDim] f32 before rotation, to
// the statistics in state: sums and, with products, sums of products, both
// relative to the first row ever added (first says that this is it). One row
// after the other with the error carried along: chunks do not matter. Read the
// result with [ReadMoments]. Bound: 1e-6 of the mean square.
func (c *Commands) Moments(q Rows, headDim, row, n int, state View, first, products bool) {
	const op = "query moments"
	if !c.ready(op) {
		return
	}
	c.rows(op, "q", q, q.Cols, tensor.F32)
	if headDim < 1 || q.Cols%headDim != 0 || row < 0 || n < 0 || row+n > q.N {
		c.fail(op, "rows [%d, %d) of %d, %d elements each in heads of %d", row, row+n, q.N, q.Cols, headDim)
		return
	}
	heads := q.Cols / headDim
	c.floats(op, "state", state, heads*momentFloats(headDim), false)
	if c.err != nil || n == 0 {
		return
	}
	var p push
	p.addr(q.Mem)
	p.addr(state)
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	p.u32(q.Stride, row, n, flag(first), flag(products))
	threads := headDim
	if products {
		threads += headDim * headDim
	}
	c.dispatch(op, "moments", []uint32{uint32(headDim)}, &p, (threads+255)/256, heads, 1)
	if first {
		var o push
		o.addr(q.Mem)
		o.addr(state)
		o.u32(q.Stride, row, heads)
		c.dispatch(op, "origin", []uint32{uint32(headDim)}, &o, (q.Cols+255)/256, 1, 1)
	}
}

// ReadMoments computes mean [headDim] and biased covariance [headDim][headDim] (nil:
// not wanted) of query head q over n rows from a state that was read back as f32.
func ReadMoments(state []float32, headDim, q, n int, mean, cov []float64) error {
	f := momentFloats(headDim)
	if q < 0 || len(state) < (q+1)*f || len(mean) < headDim || cov != nil && len(cov) < headDim*headDim || n < 1 {
		return fmt.Errorf("read query moments of head %d over %d rows: found %d values, mean %d and covariance %d for dimension %d", q, n, len(state), len(mean), len(cov), headDim)
	}
	s := state[q*f : (q+1)*f]
	d, N := headDim, float64(n)
	shift := make([]float64, d)
	for a := range d {
		shift[a] = (float64(s[d+a]) - float64(s[2*d+a])) / N
		mean[a] = float64(s[a]) + shift[a]
	}
	if cov == nil {
		return nil
	}
	hi, lo := s[3*d:3*d+d*d], s[3*d+d*d:]
	for a := range d {
		for b := a; b < d; b++ {
			v := (float64(hi[a*d+b])-float64(lo[a*d+b]))/N - float64(shift[a]*shift[b])
			cov[a*d+b], cov[b*d+a] = v, v
		}
	}
	return nil
}

// ExpectedOp is a call of ExpectedAttention.
type ExpectedOp struct {
	Sequence
	Mean  View // [Heads][HeadDim] f32: rotated mean query over √HeadDim
	Form  View // [Heads][HeadDim][HeadDim] f32 upper triangle of kᵀΣk/(2·HeadDim), zeros below; or none
	Sinks View // [KVHeads] uint32 leading entries that are always kept, or none
	Work  View // ExpectedBytes

	ValueNorm bool
	Epsilon   float64
	Scores    View // [KVHeads][Ld] f32
	Ld        int
}

// ExpectedBytes is the size of ExpectedAttention's work memory.
func ExpectedBytes(s Shape, longest int) int64 {
	blocks := (longest + 255) / 256
	return int64(s.Heads) * (int64(blocks)*256 + 2*int64(blocks+1)) * 4
}

// ExpectedAttention scores entries as lukv's metric expected_attention does,
// given the rotated moments of the queries. Bound: relative error 1e-4.
func (c *Commands) ExpectedAttention(e ExpectedOp) {
	const op = "expected attention"
	if !c.ready(op) {
		return
	}
	s := e.Sequence
	blocks := c.sequence(op, s)
	c.floats(op, "mean", e.Mean, s.Heads*s.HeadDim, false)
	c.floats(op, "form", e.Form, s.Heads*s.HeadDim*s.HeadDim, true)
	c.floats(op, "sinks", e.Sinks, s.KVHeads, true)
	c.table(op, "scores", e.Scores, s.KVHeads, e.Ld, s.Longest)
	if e.Work.Size() < ExpectedBytes(s.Shape, s.Longest) {
		c.fail(op, "work: found %d bytes, expected %d", e.Work.Size(), ExpectedBytes(s.Shape, s.Longest))
	}
	if e.Mean.address()%16 != 0 || e.Form.address()%16 != 0 || math.IsNaN(e.Epsilon) {
		c.fail(op, "mean at %#x and form at %#x, expected multiples of 16", e.Mean.address(), e.Form.address())
	}
	if c.err != nil || blocks == 0 {
		return
	}
	ldz := blocks * 256
	norm := 0
	if e.ValueNorm {
		norm = 1
	}
	z := e.Work
	part := z.At(int64(s.Heads)*int64(ldz)*4, int64(s.Heads)*2*int64(blocks+1)*4)
	for mode, g := range [][2]int{{blocks, s.Heads}, {1, s.Heads}, {blocks, s.KVHeads}} {
		var p push
		for _, a := range []View{z, e.Mean, e.Form, part, e.Scores, s.Table.mem.All(), e.Sinks} {
			p.addr(a)
		}
		p.u32(s.Seq*s.KVHeads, s.group(), ldz, e.Ld, blocks, norm, s.Held)
		p.f32(float32(e.Epsilon))
		c.dispatch(op, "expected", append(s.constants(), uint32(mode)), &p, g[0], g[1], 1)
	}
}

// Move is the compaction of one head: entry Slots[i] becomes entry i for From ≤ i < N.
type Move struct {
	Src, Dst View // tables of page addresses; the same or with fresh pages in place of shared ones
	Slots    View // [N] uint32, ascending
	N, From  int  // the first From entries are where they belong
}

// MoveBytes is the size of a Move on the device.
const MoveBytes = 32

// PutMoves writes moves to dst, MoveBytes each, as Compact reads them.
func PutMoves(dst []byte, moves []Move) {
	for i, m := range moves {
		var p push
		p.addr(m.Src)
		p.addr(m.Dst)
		p.addr(m.Slots)
		p.u32(m.N, m.From)
		copy(dst[i*MoveBytes:(i+1)*MoveBytes], p.data[:])
	}
}

// Compact runs n moves, which lie in moves as PutMoves wrote them: eviction on
// the device, in place and without further memory. Entries keep their bits.
func (c *Commands) Compact(l Layout, moves View, n int) {
	const op = "compact"
	if !c.ready(op) {
		return
	}
	if err := l.Check(); err != nil {
		c.fail(op, "%w", err)
	}
	if n < 0 || moves.Size() < int64(n)*MoveBytes {
		c.fail(op, "found %d bytes, expected %d for %d moves", moves.Size(), int64(n)*MoveBytes, n)
	}
	if c.err != nil {
		return
	}
	var p push
	p.addr(moves)
	c.dispatch(op, "compact", l.constants(), &p, l.HeadDim/4+1, n, 1)
}
