package forward

import (
	"sync/atomic"

	"github.com/lukv/lukv/kernels"
)

// attentionItem is a tile of one span's tokens in one KV head, or, for a single token,
// some blocks of a head's cache.
type attentionItem struct {
	seg, head, from, n int
	split              int // index in hostRun.splits, -1: the whole head
	first, last        int // blocks
}

// splitHead is a head whose blocks are divided among several items.
type splitHead struct {
	rows   int // blocks × query heads
	blocks kernels.AttentionBlocks
	left   atomic.Int32 // items to come; whoever does the last one merges
}

// splitItems is how many items there should be per worker if heads are split, so that
// none waits long for another at the end.
const splitItems = 8

// SplitBlocks is the least number of blocks in an item, which takes some tens of
// microseconds. It is a variable for tests.
var SplitBlocks = 8

func (h *hostRun) attend(at int) {
	h.at = at
	c := h.net.Config
	h.items = h.items[:0]
	size := h.splitSize()
	h.splits = h.splits[:0]
	for i := range h.spans {
		// Later tokens see more: hand their tiles out first.
		n, tile := h.spans[i].N, h.attentionTile
		for from := (n - 1) / tile * tile; from >= 0; from -= tile {
			for head := range c.KVHeads {
				it := attentionItem{seg: i, head: head, from: from, n: min(tile, n-from), split: -1}
				if n > 1 || size == 0 || !h.splitItem(it, size) {
					h.items = append(h.items, it)
				}
			}
		}
	}
	h.splitMemory()
	h.Each(len(h.items), 1, (*attentionStage)(h))
}

// splitSize returns how many blocks an item should have, 0 if heads should stay whole
// because the workers then finish at about the same time: merging blocks costs 2 % of
// reading them.
func (h *hostRun) splitSize() int {
	w := len(h.workers)
	if w == 1 {
		return 0
	}
	total, largest, heads := 0, 0, 0
	for i := range h.spans {
		if g := &h.spans[i]; g.N == 1 {
			for head := range h.net.Config.KVHeads {
				n := g.slots(h.at, head)
				total, largest, heads = total+n, max(largest, n), heads+1
			}
		}
	}
	if 10*w*largest*((heads+w-1)/w) <= 11*total {
		return 0
	}
	return max(SplitBlocks, total/(w*splitItems*kernels.BlockEntries))
}

// splitItem splits a head into items if it is long enough, and reports whether it did.
func (h *hostRun) splitItem(it attentionItem, size int) bool {
	a := h.attentionArgs(&it, nil)
	n := a.Blocks()
	parts := (n + size/2) / size
	if parts < 2 {
		return false
	}
	it.split = len(h.splits)
	h.splits = append(h.splits, splitHead{rows: n * a.Group})
	h.splits[it.split].left.Store(int32(parts))
	for p := range parts {
		it.first, it.last = p*n/parts, (p+1)*n/parts
		h.items = append(h.items, it)
	}
	return true
}

// splitMemory divides memory among the heads that are split.
func (h *hostRun) splitMemory() {
	rows, d := 0, h.net.Config.HeadDim
	for i := range h.splits {
		rows += h.splits[i].rows
	}
	if len(h.stats) < rows {
		rows += rows / 4 // for tokens to come
		h.stats, h.values = make([]kernels.Softmax, rows), make([]float32, rows*d)
	}
	stats, values := h.stats, h.values
	for i := range h.splits {
		n := h.splits[i].rows
		h.splits[i].blocks = kernels.AttentionBlocks{Values: values[:n*d], Stats: stats[:n]}
		stats, values = stats[n:], values[n*d:]
	}
}

// attentionArgs returns the arguments for an item, whose tokens' attention goes to tile.
func (h *hostRun) attentionArgs(it *attentionItem, tile []float32) kernels.AttentionArgs {
	c := h.net.Config
	group := c.Heads / c.KVHeads
	stride, width := c.Heads*c.HeadDim, group*c.HeadDim
	g := &h.spans[it.seg]
	col, first := it.head*width, g.row+it.from
	a := kernels.AttentionArgs{
		Q: h.q[first*stride+col : (first+it.n-1)*stride+col+width], Stride: stride,
		N: it.n, Group: group,
		End:    g.slots(h.at, it.head) - g.N + it.from + 1,
		Window: h.net.Plan[h.at].Window,
		Scale:  h.net.Plan[h.at].AttentionScale(),
		Cap:    h.net.Plan[h.at].AttentionCap(),
		KV:     g.view(h.at, it.head),
		BF16:   g.BF16,
	}
	if tile != nil {
		a.Out = tile[col : (it.n-1)*stride+col+width]
	}
	if g.Watch != nil {
		a.Stats = g.Watch.softmaxOf(h.passRows, it.head, it.from, it.n)
	}
	return a
}

type attentionStage hostRun

func (st *attentionStage) Run(lo, hi, worker int) {
	h := (*hostRun)(st)
	c := h.net.Config
	group := c.Heads / c.KVHeads
	stride, width := c.Heads*c.HeadDim, group*c.HeadDim
	w := &h.workers[worker]
	for i := lo; i < hi && !h.stop.Load(); i++ {
		it := &h.items[i]
		g := &h.spans[it.seg]
		col, first := it.head*width, g.row+it.from
		a := h.attentionArgs(it, w.tile)
		if it.split < 0 {
			h.net.CPU.Attention(&a, &w.attention)
		} else {
			split := &h.splits[it.split]
			h.net.CPU.AttentionBlocks(&a, it.first, it.last, &split.blocks, &w.attention)
			if split.left.Add(-1) > 0 {
				continue
			}
			h.net.CPU.MergeAttention(&a, &split.blocks, &w.attention)
		}
		for j := range it.n {
			h.net.CPU.SetOperand(&h.narrow, first+j, col, w.tile[j*stride+col:j*stride+col+width])
		}
	}
}
