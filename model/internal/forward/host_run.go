package forward

import (
	"github.com/lukv/lukv/internal/workers"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
)

type (
	hostLinear  = linear[kernels.Matrix, []float32]
	hostDecoder = decoder[kernels.Matrix, []float32]
)

// hostRun is the backend of the processor: the scratch of one forward pass.
// Buffers are [rows][…] with rows up to the pass's capacity. What an operation
// can finish within a strip of columns or a tile of tokens is in the scratch of the
// worker that computes it.
type hostRun struct {
	*passRows

	x       []float32       // [rows][Hidden] residual stream
	own     []float32       // memory for x if the caller brings none, made when first needed
	narrow  kernels.Operand // [rows][Hidden] normalised, then [rows][Heads*HeadDim] attention
	shared  []float32       // queries, keys and values, or inner: never needed at the same time
	inner   kernels.Operand // [rows][Intermediate]
	k, v    []float32       // [rows][KVHeads*HeadDim]
	cos     []float32       // [rotations][rows][HeadDim/2]
	sin     []float32
	branch  []float32 // [rows][Hidden], nil if all branches are added directly
	experts *mixture  // nil if no layer has experts
	dst     []float32 // [rows][Vocab] logits, the caller's
	workers []hostScratch

	attentionTile int // tokens of an attention item

	// The current stage's operands; see the stage types below.
	weight   []float32
	src      *kernels.Operand
	add      bool
	scale    float32
	order    []int32
	ffn      *arch.FFNPlan
	strip    int // weight rows that a worker takes at a time
	linears  []hostLinear
	gate, up hostLinear
	norming  act
	items    []attentionItem
	splits   []splitHead
	values   []float32 // of the blocks of splits
	stats    []kernels.Softmax
	errs     []error // per span and KV head
}

// hostScratch is the scratch of one worker.
type hostScratch struct {
	attention kernels.AttentionScratch
	tile      []float32    // [attentionTile][Heads*HeadDim] attention of an item
	row       []float32    // [Hidden] of the norm, [HeadDim] of a head
	strip     [2][]float32 // [rows][columns] of products that are not complete yet
}

const (
	// strip is the number of weight rows that a worker takes at a time: few
	// enough to divide them evenly and to notice a cancellation, enough to fill
	// the kernels' tiles. While many are left, strips are wider: with many rows of
	// activations that means fewer passes over them; with few, which are bound by
	// memory, longer stretches of it are read, and the beginning of each is slow.
	strip        = 64
	wideStrip    = 128
	wideRows     = 128 // rows of activations from which it pays
	longStrip    = 256
	longestStrip = 1024
	longWeights  = 512 << 10 // a strip between the two has as many weights
	longRows     = 6         // those up to which it pays
)

// stripOf returns how wide strips of weights of cols columns are for a number of rows of
// activations.
func stripOf(rows, cols int) int {
	switch {
	case rows <= longRows:
		return min(max(longStrip, longWeights/cols/strip*strip), longestStrip)
	case rows >= wideRows:
		return wideStrip
	}
	return strip
}

// share divides n weight rows of cols columns among the workers, in strips.
func (h *hostRun) share(n, cols int, t workers.Task) {
	h.strip = stripOf(h.rows, cols)
	h.pool.RunPieces(n, strip, h.strip, t)
}

// useOwn points x to the backend's own memory.
func (h *hostRun) useOwn() {
	if h.own == nil {
		h.own = make([]float32, h.cap*h.net.Config.Hidden)
	}
	h.x = h.own
}

// operand returns the operand that holds an activation.
func (h *hostRun) operand(a act) *kernels.Operand {
	if a == actMLP {
		return &h.inner
	}
	return &h.narrow
}

// buffer returns an activation that products write, in rows without padding.
func (h *hostRun) buffer(a act) []float32 {
	switch a {
	case actX:
		return h.x
	case actQ:
		return h.q
	case actK:
		return h.k
	case actV:
		return h.v
	case actLogits:
		return h.dst
	case actBranch:
		return h.branch
	}
	panic("model: no products go to this activation")
}
