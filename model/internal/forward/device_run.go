package forward

import (
	"context"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// deviceRun is the backend of an accelerator: it records operations on the buffers of one
// forward pass and runs lists of them. Lists without watchers are kept and run again for
// later passes with the same number of rows.
type deviceRun struct {
	*passRows
	acc  *Device
	e    kernels.Encoder
	a    kernels.Attention
	acts [actEnd]kernels.Buffer // nil where the model does not use one
	last kernels.Buffer         // [logitRows][Hidden] normalised rows, for logits
	mix  deviceMixture

	in        kernels.SharedBuffer // [rows][Hidden] embeddings
	turns     kernels.SharedBuffer // [rotations][cap][turnColumns] what rotates rows
	out       kernels.SharedBuffer // [logitRows][Vocab]
	logitRows int                  // most rows of logits at a time

	lists    map[listKey]kernels.CommandList
	recorded int // rows of the list being recorded

	described []kernels.RowSpan // spans of the pass, as the device wants them
	products  []kernels.Product // of the operation being recorded
	to, from  []float32         // logits being copied
	softmax   []kernels.Softmax // [rows][Heads], as the device leaves them
	ready     int               // rows of logits that the last list computed

	first int     // layer being reserved
	errs  []error // per layer, span and KV head

	ctx context.Context // of the list in progress
}

// listKey says what a recorded list computes: the first layers, from embeddings
// on, and then the logits of n rows from first on.
type listKey struct {
	rows     int
	layers   int
	first, n int
}

const (
	// keptLists bounds the lists that a pass keeps.
	keptLists = 64

	// deviceLogits is the number of rows whose logits a prefill computes at a time.
	deviceLogits = 16
)

func newDeviceRun(p *passRows, s Shape) (*deviceRun, error) {
	d := &deviceRun{
		passRows: p, acc: p.net.Device, lists: make(map[listKey]kernels.CommandList),
		described: make([]kernels.RowSpan, 0, s.Seqs),
	}
	if err := d.allocate(s); err != nil {
		d.close()
		return nil, fmt.Errorf("memory for %d rows on %s: %w", s.Rows, d.acc.dev.Info().Name, err)
	}
	return d, nil
}

// allocate makes the buffers of a pass.
func (d *deviceRun) allocate(s Shape) (err error) {
	c, dev := d.net.Config, d.acc.dev
	if d.e, err = dev.Encoder(); err != nil {
		return err
	}
	if d.a, err = dev.Attention(d.net.attentionShape(s)); err != nil {
		return err
	}
	if d.acc.whole() {
		d.logitRows = max(s.Seqs, min(s.Rows, deviceLogits))
	}
	buffer := func(t tensor.Type, rows, cols int) (b kernels.Buffer) {
		if err == nil {
			b, err = dev.Buffer(t, rows, cols)
		}
		return b
	}
	shared := func(use kernels.SharedUse, rows, cols int) (b kernels.SharedBuffer) {
		if err == nil {
			b, err = dev.Shared(use, rows, cols)
		}
		return b
	}
	operand := d.net.deviceOperand()
	for a := range actEnd {
		if !d.net.uses(a) {
			continue
		}
		t, rows := tensor.F32, s.Rows
		switch a {
		case actNorm, actAttention, actMLP:
			t = operand
		case actLogits:
			rows = d.logitRows
		}
		d.acts[a] = buffer(t, rows, a.columns(c))
	}
	d.last = buffer(operand, d.logitRows, c.Hidden)
	d.mix = d.net.newDeviceMixture(s.Rows, buffer)
	d.in = shared(kernels.HostWrites, s.Rows, c.Hidden)
	d.turns = shared(kernels.HostWrites, len(d.net.Ropes)*s.Rows, d.net.turnColumns())
	d.out = shared(kernels.HostReads, d.logitRows, c.Vocab)
	return err
}

func (d *deviceRun) close() {
	d.forget()
	for _, b := range slices.Concat(d.acts[:], d.mix.all(), []kernels.Buffer{d.last, d.in, d.turns, d.out}) {
		if b != nil {
			b.Free()
		}
	}
	if d.a != nil {
		d.a.Free()
	}
	if d.e != nil {
		d.e.Close()
	}
}

// begin starts recording operations on rows rows.
func (d *deviceRun) begin(rows int) {
	d.recorded = rows
	d.e.Begin()
}

// act returns an activation's rows, as many as the list has that is being recorded.
func (d *deviceRun) act(a act) kernels.Rows {
	return kernels.Rows{Buffer: d.acts[a], N: d.recorded}
}

// embeddings returns where the embeddings of a pass go.
func (d *deviceRun) embeddings() []float32 { return d.in.Floats() }

func (d *deviceRun) forget() {
	for _, l := range d.lists {
		l.Free()
	}
	clear(d.lists)
}

// start describes the pass's rows to the device.
func (d *deviceRun) start() {
	d.described = d.described[:0]
	for i := range d.spans {
		d.described = append(d.described, kernels.RowSpan{Row: d.spans[i].row, N: d.spans[i].N})
	}
	d.a.SetSpans(d.described, d.pos[:d.rows])
	d.ready = 0
}
