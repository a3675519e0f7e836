package model

import (
	"context"
	"math/bits"
	"slices"
	"sync"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/drafting"
	"github.com/lukv/lukv/model/internal/forward"
)

// run is a pass over sessions: the parts that they do, their tokens, and the rows whose
// logits are wanted.
type run struct {
	*forward.Pass
	m     *Model
	shape forward.Shape

	parts  []part
	tokens []int32
	wanted []int
	batch  []float32 // [wanted][Vocab]
}

func newRun(m *Model, s forward.Shape) (*run, error) {
	r, err := forward.NewPass(m.net, s)
	if err != nil {
		return nil, err
	}
	return &run{Pass: r, m: m, shape: s}, nil
}

// score ranks the entries of a layer of s, on the device if it can. w is the watcher
// of the layer in this run, or nil; a nil run has no device.
func (r *run) score(ctx context.Context, s *Session, w *forward.Watcher, metric lukv.Metric, l *lukv.Layer) (lukv.Scores, error) {
	if r == nil {
		return lukv.Score(ctx, metric, l)
	}
	return r.Score(ctx, s.cache, w, metric, l)
}

// newStream is NewStream on the account of all sessions.
func (r *run) newStream(tokens []int32) (*forward.Stream, error) {
	return r.NewStream(tokens, r.m.memory)
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
	want := forward.Shape{Rows: rows}
	if l.m.net.Device != nil {
		want.Seqs, want.Page = seqs, page
	}
	if seqs > 1 {
		// Batches come in all sizes: let few shapes serve them.
		want.Rows = powerOfTwo(rows)
		if l.m.net.Device != nil {
			want.Seqs = powerOfTwo(seqs)
		}
	}
	if seqs == 1 && rows > 1 {
		want.Rows = max(rows, 1+drafting.MostDrafts) // one for any number of drafts
	}
	l.mu.Lock()
	best := -1
	for i, r := range l.idle {
		if fits(r.shape, want) && (best < 0 || r.Cap() < l.idle[best].Cap()) {
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
	r.Restart()
	r.reset()
	return r, nil
}

// powerOfTwo rounds n up to a power of two.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }

// fits reports whether a run of shape s can serve for want. On a device, decoding
// has runs of its own.
func fits(s, want forward.Shape) bool {
	return s.Rows >= want.Rows && s.Seqs >= want.Seqs && s.Page == want.Page &&
		(s.Rows == s.Seqs) == (want.Rows == want.Seqs)
}

// idleRuns bounds the scratch that an idle model holds. On a device a run serves
// fewer purposes.
const (
	idleRuns       = 4
	idleDeviceRuns = 8
)

// put takes a run back. If there are too many, the least recently used one is closed.
func (l *runList) put(r *run) {
	clear(r.parts[:cap(r.parts)])
	r.reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := idleRuns
	if l.m.net.Device != nil {
		limit = idleDeviceRuns
	}
	if l.over {
		limit = 0
	}
	l.idle = append(l.idle, r)
	if len(l.idle) > limit {
		l.idle[0].Close()
		l.idle = slices.Delete(l.idle, 0, 1)
	}
}

// close frees all idle runs, and the others when they are put back.
func (l *runList) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.idle {
		r.Close()
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
func (r *run) reset() {
	r.Reset()
	r.parts = r.parts[:0]
}

// add appends a span of n tokens of s, whose first position is s.pos+offset.
func (r *run) add(s *Session, offset, n, seqLen int, w *forward.Watcher) {
	r.Add(forward.Span{
		Cache: s.cache, Pos: s.pos + offset, N: n, SeqLen: seqLen, Watch: w,
		BF16: r.m.net.RoundsAttention(s.opts.CacheType), Await: s.await,
	})
}
