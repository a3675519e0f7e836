package forward

// Operations of layers that differ from Llama's.

func (h *hostRun) fullNorm(a act, w []float32) {
	h.weight, h.norming = w, a
	h.Each(h.rows, 4, (*fullNormStage)(h))
}

type fullNormStage hostRun

func (st *fullNormStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	buf, n := h.buffer(h.norming), len(h.weight)
	for i := lo; i < hi; i++ {
		x := buf[i*n : (i+1)*n]
		h.net.CPU.RMSNorm(x, x, h.weight, h.net.Config.NormEps)
	}
}

func (h *hostRun) reorder(order []int32) {
	h.order = order
	h.Each(h.rows, 4, (*reorderStage)(h))
}

type reorderStage hostRun

func (st *reorderStage) Run(lo, hi, worker int) {
	h := (*hostRun)(st)
	c := h.net.Config
	d := c.HeadDim
	old := h.workers[worker].row[:d]
	reorder := func(heads []float32) {
		for ; len(heads) > 0; heads = heads[d:] {
			copy(old, heads)
			for i, from := range h.order {
				heads[i] = old[from]
			}
		}
	}
	reorder(h.q[lo*c.Heads*d : hi*c.Heads*d])
	reorder(h.k[lo*c.KVHeads*d : hi*c.KVHeads*d])
}

func (h *hostRun) addBranch(w []float32, scale float32) {
	h.weight, h.scale = w, scale
	h.Each(h.rows, 4, (*addBranchStage)(h))
}

type addBranchStage hostRun

func (st *addBranchStage) Run(lo, hi, worker int) {
	h := (*hostRun)(st)
	n := h.net.Config.Hidden
	for i := lo; i < hi; i++ {
		branch := h.branch[i*n : (i+1)*n]
		if h.weight != nil {
			row := h.workers[worker].row[:n]
			h.net.CPU.RMSNorm(row, branch, h.weight, h.net.Config.NormEps)
			branch = row
		}
		if h.scale == 1 {
			h.net.CPU.Add(h.x[i*n:(i+1)*n], branch)
		} else {
			h.net.CPU.AddScaled(h.x[i*n:(i+1)*n], branch, h.scale)
		}
	}
}

// finishStage finishes rows of logits.
type finishStage hostRun

func (st *finishStage) Run(lo, hi, _ int) {
	vocab := st.net.Config.Vocab
	st.net.finishLogits(st.dst[lo*vocab : hi*vocab])
}
