//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// rowSpan is a run of consecutive tokens of one sequence in a pass.
type rowSpan struct {
	Seq int // sequence
	Row int // first row of the pass
	N   int // tokens

	// End holds, per KV head, the number of logical slots that the first token sees: base +
	// entries before the pass + the sequence's tokens before this one + 1.
	End []int
}

// combineAhead is how many blocks combine.comp asks memory for at once, keysAhead how many
// chunks of a key attend.comp. They are constants of the pipeline: what glslc unrolls loses
// its promise not to contract sums.
const (
	combineAhead = 16
	keysAhead    = 4
)

// tileRows is the number of query rows (one query head of one token) in a task.
const tileRows = 8

// loopsPerBlock and loopsPerRow bound the rounds of all loops of attend.comp for a block
// of entries. They were measured with head dimensions from 8 to 256.
const (
	loopsPerBlock = 256
	loopsPerRow   = 64
)

const (
	taskBytes   = 32
	headerBytes = 64

	// Where the header has the workgroups of the two programs for attention, see fewRows.
	groupsAt    = 0
	fewGroupsAt = 40
)

// fewRows is the number of rows of a program for tasks of one token: rows cost time even if
// they are empty.
func (s shape) fewRows() int {
	r := 1
	for r < min(s.group(), tileRows) {
		r *= 2
	}
	return r
}

// workList is the work list of one layer's attention, in parameter memory. Recorded
// commands read it when they run, including their numbers of workgroups: the host
// refills it before each submission as lengths grow. It belongs to one goroutine at a
// time.
type workList struct {
	mem      *buffer
	shape    shape
	window   int
	maxTasks int
	loops    int // rounds of loops that the driver permits a shader, 0 for no limit

	endsEarly error // why the driver would end a workgroup early, nil if it would not
}

// newWorkList makes a list for passes of at most tokens tokens in at most spans
// spans. window is the layer's attention window in tokens, 0 for none.
func (d *Device) newWorkList(s shape, window, spans, tokens int) (*workList, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	g := s.group()
	per := (g + tileRows - 1) / tileRows
	if g < tileRows {
		per = 1
	}
	tile := max(tileRows/g, 1)
	tasks := s.KVHeads * per * ((tokens+tile-1)/tile + spans)
	b, err := d.newParamBuffer(headerBytes + int64(tasks)*taskBytes)
	if err != nil {
		return nil, err
	}
	clear(b.Bytes())
	return &workList{mem: b, shape: s, window: window, maxTasks: tasks, loops: d.loops}, nil
}

// Free frees the list.
func (w *workList) Free() { w.mem.Free() }

// Fill writes the list for the spans of a pass. It allocates nothing. With enough
// memory for partial results (see partialBytes; partials may be none) every block of
// 256 slots that a task reads becomes an item, which keeps a device busy when there
// are few tasks; otherwise a workgroup loops over the blocks of its task. The bits
// are the same. It returns the number of items that splitting needs.
func (w *workList) Fill(spans []rowSpan, partials view) (int, error) {
	m := w.mem.Bytes()
	s := w.shape
	g := s.group()
	heads := min(g, tileRows) // query heads of a task
	tile := max(tileRows/g, 1)
	tasks, items, longest := 0, 0, 0
	few := s.fewRows() < tileRows
	for i := range spans {
		sp := &spans[i]
		few = few && sp.N <= 1
		if len(sp.End) != s.KVHeads || sp.N < 0 {
			return 0, fmt.Errorf("plan attention: span %d has %d tokens and ends for %d kv heads, expected %d", i, sp.N, len(sp.End), s.KVHeads)
		}
		// Later tokens see more, so their tiles come first.
		for from := (sp.N - 1) / tile * tile; from >= 0 && sp.N > 0; from -= tile {
			n := min(tile, sp.N-from)
			for h := range s.KVHeads {
				end := sp.End[h] + from
				lo := 0
				if w.window > 0 {
					lo = max(0, end-w.window)
				}
				first := lo / kernels.BlockEntries
				blocks := (end+n-2)/kernels.BlockEntries - first + 1
				if end+n-1 <= lo {
					blocks = 0
				}
				for g0 := 0; g0 < g; g0 += heads {
					if tasks == w.maxTasks {
						return 0, fmt.Errorf("plan attention: more than %d tasks, as the list was made for fewer tokens or spans", w.maxTasks)
					}
					t := m[headerBytes+tasks*taskBytes:][:taskBytes]
					put := func(i int, x int) { binary.LittleEndian.PutUint32(t[4*i:], uint32(x)) }
					put(0, sp.Seq*s.KVHeads+h)
					put(1, sp.Row+from)
					put(2, n|min(heads, g-g0)<<8|g0<<16)
					put(3, end)
					put(4, first)
					put(5, blocks)
					put(6, items)
					put(7, 0)
					items += blocks
					longest = max(longest, blocks)
					tasks++
				}
			}
		}
	}
	header := func(at, groups int) {
		x, y := grid(groups)
		binary.LittleEndian.PutUint32(m[at:], uint32(x))
		binary.LittleEndian.PutUint32(m[at+4:], uint32(y))
		binary.LittleEndian.PutUint32(m[at+8:], min(uint32(y), 1))
	}
	groups, combine, total := tasks, 0, 0
	if items > 0 && !partials.None() && partials.Size() >= partialBytes(s.HeadDim, items) {
		groups, combine, total = items, tasks*tileRows, items
	}
	program, idle, rows := groupsAt, fewGroupsAt, tileRows
	if few {
		program, idle, rows = idle, program, s.fewRows()
	}
	header(program, groups)
	header(idle, 0)
	w.endsEarly = nil
	if most := w.loops / (loopsPerBlock + loopsPerRow*rows); w.loops > 0 && total == 0 && longest > most {
		w.endsEarly = fmt.Errorf("attention: the driver ends a shader after %d rounds of its loops, which %d entries may need; compute this on the processor", w.loops, longest*kernels.BlockEntries)
	}
	binary.LittleEndian.PutUint32(m[12:], uint32(tasks))
	header(16, combine)
	binary.LittleEndian.PutUint32(m[28:], uint32(total))
	binary.LittleEndian.PutUint64(m[32:], partials.address())
	return items, nil
}

// attentionOp holds the arguments of Attention.
type attentionOp struct {
	shape
	Q     rows2D // [N, Heads·HeadDim] f32, rotated; with BF16 also rounded
	Out   rows2D // the same shape, F32 or BF16
	Stats view   // [N][Heads][2] f32 (largest score and sum, base 2) or none
	Heads *headTable
	Work  *workList

	// Split says that Work may be filled for splitting when the commands run.
	Split bool
}

// Attention computes causal softmax attention as package kernels defines it, except
// for the order within a block of 256 slots: the weights are summed in 32 lanes, and
// the values in lanes as well. Bound: |error| ≤ 4e-6·max|v|. In bf16 a weight within
// 1e-4, relatively, of halfway between two bf16 numbers may be rounded the other way:
// that changes it by at most 2^-7 of its size, and adds as much of its value to the
// bound. The bits of a row depend only on its query and on the entries that it sees.
func (c *commands) Attention(a attentionOp) {
	const op = "attention"
	if !c.ready(op) {
		return
	}
	c.shape(op, a.shape)
	c.rows(op, "q", a.Q, a.shape.Heads*a.HeadDim, tensor.F32)
	yt := c.rows(op, "out", a.Out, a.shape.Heads*a.HeadDim, tensor.F32, tensor.BF16)
	c.floats(op, "stats", a.Stats, 2*a.Q.N*a.shape.Heads, true)
	if a.Out.N < a.Q.N {
		c.fail(op, "out: found %d rows, expected %d", a.Out.N, a.Q.N)
	}
	if a.Work == nil || a.Heads == nil || a.Work.shape != a.shape {
		c.fail(op, "the work list or the heads are missing or of another shape")
	}
	if c.err != nil {
		return
	}
	mode := yt
	if a.Split {
		mode++
	}
	ldt := a.HeadDim + 4
	var p push
	p.addr(a.Q.Mem)
	p.addr(a.Out.Mem)
	p.addr(a.Stats)
	p.addr(a.Work.mem.All())
	p.addr(a.Heads.mem.All())
	p.u32(a.Q.Stride, a.Out.Stride, a.shape.Heads, a.KVHeads, a.Work.window)
	p.f32(a.scale())
	p.u32(a.group(), ldt)
	p.f32(a.Cap)
	attend := func(rows, sums, at int) {
		constants := append(a.constants(), uint32(rows), mode, a.lanes(), a.narrow(), keysAhead, uint32(sums))
		c.dispatchIndirect(op, "attend", constants, &p, a.Work.mem.At(int64(at), 12))
	}
	few, sums := a.fewRows(), min(2, workgroup/a.HeadDim)
	switch {
	case few == tileRows:
		attend(tileRows, sums, groupsAt)
	case a.Q.N == 1:
		attend(few, 1, fewGroupsAt)
	default: // one of the two has no workgroups
		attend(few, 1, fewGroupsAt)
		c.noBarrier(func() { attend(tileRows, sums, groupsAt) })
	}
	if !a.Split {
		return
	}
	var m push
	m.addr(a.Out.Mem)
	m.addr(a.Stats)
	m.addr(a.Work.mem.All())
	m.u32(a.Out.Stride, a.shape.Heads, a.KVHeads, a.group(), ldt, tileRows)
	c.dispatchIndirect(op, "combine", []uint32{yt, uint32(a.HeadDim), combineAhead}, &m, a.Work.mem.At(16, 12))
}

// partialBytes returns the memory that split attention needs for the given number of items.
func partialBytes(headDim, items int) int64 {
	return int64(items) * tileRows * int64(headDim+4) * 4
}
