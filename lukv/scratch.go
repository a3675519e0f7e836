package lukv

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
)

// Scratch is memory outside the Go heap that metrics work in. Each layer reuses the
// memory of the one before it, and Close returns it to the system at once, so that
// no garbage piles up beside the cache. It serves the layers of one prefill, scored
// one after another; the heads of a layer may be scored concurrently. The zero
// value is ready for use.
type Scratch struct {
	// Scores puts scores there too; those of a layer are valid until
	// [Scratch.Next].
	Scores bool

	mu     sync.Mutex
	idle   []*workspace // last used last
	held   []*block     // of Hold
	scores []*block
	taken  int // of scores
}

// Next invalidates the scores handed out so far.
func (s *Scratch) Next() { s.taken = 0 }

// Close frees the memory, including that of scores. The scratch can be used again.
func (s *Scratch) Close() {
	for _, w := range s.idle {
		for i := range w.blocks {
			w.blocks[i].free()
		}
	}
	for _, b := range slices.Concat(s.scores, s.held) {
		b.free()
	}
	s.idle, s.scores, s.held, s.taken = nil, nil, nil, 0
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
	b := &block{mapped: true}
	s.held = append(s.held, b)
	return b.float32s(n)
}

// newScores returns room for the scores of a head, [n], all 0.
func (l *Layer) newScores(n int) []float32 {
	s := l.Scratch
	if s == nil || !s.Scores {
		return make([]float32, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == len(s.scores) {
		s.scores = append(s.scores, &block{mapped: true})
	}
	b := s.scores[s.taken]
	s.taken++
	x := b.float32s(n)
	clear(x)
	return x
}

// workspace is the scratch of one worker while it scores one head. Slices come from
// its blocks in turn: a metric that asks for the same sizes in the same order gets
// the memory of the previous head.
type workspace struct {
	mapped bool // outside the Go heap
	blocks []block
	taken  int
	attend attendScratch
	stats  *QueryStats // of one head
}

// momentsOf returns empty statistics for rows of dim values.
func (w *workspace) momentsOf(dim int, cpu kernels.CPU) *QueryStats {
	if w.stats == nil || w.stats.dim != dim {
		w.stats = NewQueryStats(1, dim, 0, true, cpu)
	}
	w.stats.cpu = cpu
	w.stats.Reset()
	return w.stats
}

// workspaces serves layers without a Scratch.
var workspaces = sync.Pool{New: func() any { return new(workspace) }}

// takeWorkspace returns a workspace; giveWorkspace gives it back with
// everything taken from it.
func (l *Layer) takeWorkspace() *workspace {
	s := l.Scratch
	if s == nil {
		return workspaces.Get().(*workspace)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.idle)
	if n == 0 {
		return &workspace{mapped: true}
	}
	w := s.idle[n-1]
	s.idle = s.idle[:n-1]
	return w
}

func (l *Layer) giveWorkspace(w *workspace) {
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

func (w *workspace) next() *block {
	if w.taken == len(w.blocks) {
		w.blocks = append(w.blocks, block{mapped: w.mapped})
	}
	w.taken++
	return &w.blocks[w.taken-1]
}

// float32s returns n arbitrary values.
func (w *workspace) float32s(n int) []float32 { return w.next().float32s(n) }

// float64s returns n arbitrary values; zeros returns n zeros.
func (w *workspace) float64s(n int) []float64 { return w.next().float64s(n) }

func (w *workspace) zeros(n int) []float64 {
	x := w.float64s(n)
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

func (b *block) float32s(n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b.float64s((n+1)/2)))), n)
}

func (b *block) free() {
	if b.bytes != nil {
		_ = arena.Unmap(b.bytes) // fails only for what is not a mapping
	}
	b.mem, b.bytes = nil, nil
}
