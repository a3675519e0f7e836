package lukv

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
)

// Scratch is the memory that metrics work in. Each layer reuses the memory of the one
// before it, so that no garbage piles up beside the cache, and a metric that is made of
// the layer's reductions allocates nothing. It serves layers that are scored one after
// another; the heads of a layer may be scored concurrently. The zero value is ready for
// use and takes memory outside the Go heap, which Close returns to the system at once.
type Scratch struct {
	// Scores puts scores there too; those of a layer are valid until
	// [Scratch.Next].
	Scores bool

	// Heap takes the memory from the Go heap: Close may be omitted.
	Heap bool

	mu     sync.Mutex
	idle   []*Workspace // last used last
	held   []*block     // of Hold
	scores rowPool[float32]
	rows   rowPool[float64] // of reductions
	reduce reduction
}

// Next invalidates the scores and the results of reductions handed out so far.
func (s *Scratch) Next() { s.scores.taken, s.rows.taken = 0, 0 }

// Close frees the memory, including that of scores. The scratch can be used again.
func (s *Scratch) Close() {
	for _, w := range s.idle {
		for i := range w.blocks {
			w.blocks[i].free()
		}
	}
	for _, b := range s.held {
		b.free()
	}
	s.scores.free()
	s.rows.free()
	s.idle, s.held = nil, nil
}

// QueryWindow is [NewQueryWindow] with rows in the scratch, valid until Close, or
// on the Go heap if the scratch is nil.
func (s *Scratch) QueryWindow(heads, headDim, capacity int) *QueryWindow {
	if s == nil {
		return NewQueryWindow(heads, headDim, capacity)
	}
	w := NewQueryWindow(heads, headDim, 0)
	w.rows, w.pos = s.Hold(capacity*heads*headDim), make([]int32, capacity)
	return w
}

// Hold returns n arbitrary values that belong to the caller until Close. Not safe
// for concurrent use.
func (s *Scratch) Hold(n int) []float32 {
	b := &block{mapped: !s.Heap}
	s.held = append(s.held, b)
	return b.float32s(n)
}

// rowPool hands out lists of rows. Their memory is used again once taken is reset.
type rowPool[E float32 | float64] struct {
	lists []*rowList[E]
	taken int
}

type rowList[E float32 | float64] struct {
	rows   [][]E
	blocks []block
}

// take returns n rows of 0s, row i of size(i) elements.
func (p *rowPool[E]) take(mapped bool, n int, size func(i int) int) [][]E {
	if p.taken == len(p.lists) {
		p.lists = append(p.lists, new(rowList[E]))
	}
	x := p.lists[p.taken]
	p.taken++
	for len(x.blocks) < n {
		x.blocks = append(x.blocks, block{mapped: mapped})
	}
	x.rows = slices.Grow(x.rows[:0], n)[:n]
	for i := range x.rows {
		x.rows[i] = valuesOf[E](&x.blocks[i], size(i))
		clear(x.rows[i])
	}
	return x.rows
}

func (p *rowPool[E]) free() {
	for _, x := range p.lists {
		for i := range x.blocks {
			x.blocks[i].free()
		}
	}
	p.lists, p.taken = nil, 0
}

// NewScores returns a row of 0s for every KV head, [K][Len(h)]. They are in the layer's
// scratch, if that is for scores, until its Next, and otherwise on the Go heap.
func (l *Layer) NewScores() Scores {
	if s := l.Scratch; s != nil && s.Scores {
		return s.scores.take(!s.Heap, l.KVHeads, l.scored)
	}
	out := make(Scores, l.KVHeads)
	for h := range out {
		out[h] = make([]float32, l.scored(h))
	}
	return out
}

// scored is Len(h), or 0 if no scores of the head are wanted.
func (l *Layer) scored(h int) int {
	if l.wanted != nil && !l.wanted[h] {
		return 0
	}
	return l.Len(h)
}

// Workspace is the memory of one worker while it scores one head (see
// [Layer.EachHead]). Slices come from its blocks in turn: a metric that asks for the
// same sizes in the same order gets the memory of the previous head.
type Workspace struct {
	mapped bool // outside the Go heap
	blocks []block
	taken  int
	attend attendScratch
	stats  *QueryStats // of one head
}

// momentsOf returns empty statistics for rows of dim values.
func (w *Workspace) momentsOf(dim int, cpu kernels.CPU) *QueryStats {
	if w.stats == nil || w.stats.dim != dim {
		w.stats = NewQueryStats(1, dim, 0, true, cpu)
	}
	w.stats.cpu = cpu
	w.stats.Reset()
	return w.stats
}

// workspaces serves layers without a Scratch.
var workspaces = sync.Pool{New: func() any { return new(Workspace) }}

// takeWorkspace returns a workspace; giveWorkspace gives it back with
// everything taken from it.
func (l *Layer) takeWorkspace() *Workspace {
	s := l.Scratch
	if s == nil {
		return workspaces.Get().(*Workspace)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.idle)
	if n == 0 {
		return &Workspace{mapped: !s.Heap}
	}
	w := s.idle[n-1]
	s.idle = s.idle[:n-1]
	return w
}

func (l *Layer) giveWorkspace(w *Workspace) {
	w.taken = 0
	s := l.Scratch
	if s == nil {
		workspaces.Put(w)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, w)
}

func (w *Workspace) next() *block {
	if w.taken == len(w.blocks) {
		w.blocks = append(w.blocks, block{mapped: w.mapped})
	}
	w.taken++
	return &w.blocks[w.taken-1]
}

// Float32s returns n arbitrary values, valid until the head has been scored.
func (w *Workspace) Float32s(n int) []float32 { return w.next().float32s(n) }

// Float64s is [Workspace.Float32s] for float64.
func (w *Workspace) Float64s(n int) []float64 { return w.next().float64s(n) }

// zeros returns n zeros.
func (w *Workspace) zeros(n int) []float64 {
	x := w.Float64s(n)
	clear(x)
	return x
}

// block is a piece of memory that grows as needed.
type block struct {
	mapped bool // from the system, if it provides some
	mem    []float64
	bytes  []byte // of mem, if it was mapped
}

// float64s returns the first n values; if the block has to grow, earlier slices
// become invalid.
func (b *block) float64s(n int) []float64 {
	if len(b.mem) < n {
		b.free()
		n := n + n/4 // untouched, it takes no system memory
		if b.mapped {
			if bytes, err := arena.Map(8 * n); err == nil {
				b.bytes = bytes
				b.mem = unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(bytes))), n)
			}
		}
		if b.mem == nil {
			b.mem = make([]float64, n)
		}
	}
	return b.mem[:n:n]
}

func (b *block) float32s(n int) []float32 { return valuesOf[float32](b, n) }

// valuesOf returns the first n values of the block, as float64s does.
func valuesOf[E float32 | float64](b *block, n int) []E {
	if n == 0 {
		return nil
	}
	size := int(unsafe.Sizeof(E(0)))
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b.float64s((n*size+7)/8)))), n)
}

func (b *block) free() {
	if b.bytes != nil {
		_ = arena.Unmap(b.bytes) // fails only for what is not a mapping
	}
	b.mem, b.bytes = nil, nil
}
