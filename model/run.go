package model

import (
	"math/bits"
	"slices"
	"sync"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/drafting"
)

// run is a pass with the backends that it needs: a device for the first layers,
// the host for the others.
type run struct {
	pass
	shape runShape
	host  *hostRun   // nil if the device has all layers
	dev   *deviceRun // nil without a device

	// The parts of a pass over sessions, their tokens, and the rows whose logits
	// are wanted.
	parts  []part
	tokens []int32
	wanted []int
	batch  []float32 // [wanted][Vocab]
}

// runShape says what a run is for. On a device a pass is bound to one layout of
// cache pages; on the host only rows matter, and the rest is zero.
type runShape struct {
	rows, seqs int // at most
	page       kernels.PageLayout
}

func newRun(m *Model, s runShape) (*run, error) {
	r := &run{shape: s, pass: pass{
		m: m, pool: m.pool, cap: s.rows,
		spans: make([]span, 0, max(1, s.seqs)), pos: make([]int32, s.rows),
		watch: make([]watchScratch, m.pool.Threads()),
	}}
	if m.acc != nil {
		var err error
		if r.dev, err = newDeviceRun(&r.pass, s); err != nil {
			return nil, err
		}
	}
	if m.acc == nil || !m.acc.whole() {
		r.host = newHostRun(&r.pass)
	}
	return r, nil
}

func (r *run) close() {
	if r.dev != nil {
		r.dev.close()
	}
}

// runList keeps idle runs for reuse.
type runList struct {
	m    *Model
	mu   sync.Mutex
	idle []*run // in the order in which they were last used
	over bool   // nobody needs them any more
}

// get returns a run for up to rows rows of up to seqs sequences whose caches have
// the given page layout, preferably the smallest idle one that fits.
func (l *runList) get(rows, seqs int, page kernels.PageLayout) (*run, error) {
	want := runShape{rows: rows}
	if l.m.acc != nil {
		want.seqs, want.page = seqs, page
	}
	if seqs > 1 {
		// Batches come in all sizes: let few shapes serve them.
		want.rows = powerOfTwo(rows)
		if l.m.acc != nil {
			want.seqs = powerOfTwo(seqs)
		}
	}
	if seqs == 1 && rows > 1 {
		want.rows = max(rows, 1+drafting.MostDrafts) // one for any number of drafts
	}
	l.mu.Lock()
	best := -1
	for i, r := range l.idle {
		if r.shape.fits(want) && (best < 0 || r.cap < l.idle[best].cap) {
			best = i
		}
	}
	var r *run
	if best >= 0 {
		r = l.idle[best]
		l.idle = slices.Delete(l.idle, best, best+1)
	}
	l.mu.Unlock()
	if r == nil {
		var err error
		if r, err = newRun(l.m, want); err != nil {
			return nil, err
		}
	}
	r.stop.Store(false)
	r.reset()
	return r, nil
}

// powerOfTwo rounds n up to a power of two.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }

// fits reports whether a run of shape s can serve for want. On a device, decoding
// has runs of its own.
func (s runShape) fits(want runShape) bool {
	return s.rows >= want.rows && s.seqs >= want.seqs && s.page == want.page &&
		(s.rows == s.seqs) == (want.rows == want.seqs)
}

// idleRuns bounds the scratch that an idle model holds. On a device a run serves
// fewer purposes.
const (
	idleRuns       = 4
	idleDeviceRuns = 8
)

// put takes a run back. If there are too many, the least recently used one is closed.
func (l *runList) put(r *run) {
	clear(r.spans[:cap(r.spans)])
	clear(r.parts[:cap(r.parts)])
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := idleRuns
	if r.dev != nil {
		limit = idleDeviceRuns
	}
	if l.over {
		limit = 0
	}
	l.idle = append(l.idle, r)
	if len(l.idle) > limit {
		l.idle[0].close()
		l.idle = slices.Delete(l.idle, 0, 1)
	}
}

// close frees all idle runs, and the others when they are put back.
func (l *runList) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.idle {
		r.close()
	}
	l.idle, l.over = nil, true
}

// room returns memory for n rows of logits.
func (r *run) room(n, vocab int) []float32 {
	if cap(r.batch) < n*vocab {
		r.batch = make([]float32, n*vocab)
	}
	return r.batch[:n*vocab]
}

// reset empties the run for the next chunk.
func (r *run) reset() { r.spans, r.parts, r.rows = r.spans[:0], r.parts[:0], 0 }
