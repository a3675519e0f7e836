package forward

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/internal/workers"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
)

// Span is a run of consecutive tokens of one sequence inside a pass.
type Span struct {
	Cache  *kvcache.Cache // of the sequence
	Pos    int            // position of the first token
	N      int            // tokens
	SeqLen int            // length of the sequence at the end of the call that the span belongs to
	BF16   bool           // see Network.RoundsAttention
	Watch  *Watcher       // nil: nobody looks

	// Await, if not nil, waits for the entries of a layer and of those before it while the
	// cache is still being loaded.
	Await func(layer int) error

	row int // rows [row, row+N) of the pass
}

// slots returns the number of logical slots of a layer's KV head, view what attention reads
// of it.
func (g *Span) slots(layer, head int) int {
	return g.Cache.Base(layer, head) + g.Cache.Len(layer, head)
}

func (g *Span) view(layer, head int) kernels.KV { return g.Cache.View(layer, head) }

// passRows is the part of a pass that all backends share and watchers look at.
type passRows struct {
	net   *Network
	cap   int // most rows
	rows  int // in use
	spans []Span
	pos   []int32 // position of each row

	q []float32 // [rows][Heads*HeadDim] queries, when watchers may look

	watch   []watchScratch // per worker
	at      int            // layer in progress
	watched *Span          // for the stages that watch
	input   []float32      // likewise, [rows][Hidden] input of a layer

	pool *workers.Pool         // that stages run on
	stop atomic.Bool           // set when the context is done, or by Stop
	why  atomic.Pointer[error] // of Stop
}

// Add appends the rows of a span. There must be room for them.
func (p *passRows) Add(g Span) {
	for i := range g.N {
		p.pos[p.rows+i] = int32(g.Pos + i)
	}
	g.row = p.rows
	p.spans = append(p.spans, g)
	p.rows += g.N
}

// Rows returns the number of rows in the pass, Cap the most that it has room for.
func (p *passRows) Rows() int { return p.rows }
func (p *passRows) Cap() int  { return p.cap }

// First returns the first row of a span, counted in the order in which they were added.
func (p *passRows) First(span int) int { return p.spans[span].row }

// Reset empties the pass for the next rows.
func (p *passRows) Reset() {
	clear(p.spans)
	p.spans, p.rows = p.spans[:0], 0
}

// Stop makes the pass end soon with an error. It may be called from any goroutine.
func (p *passRows) Stop(err error) {
	p.why.Store(&err)
	p.stop.Store(true)
}

// Restart forgets that the pass was stopped.
func (p *passRows) Restart() {
	p.why.Store(nil)
	p.stop.Store(false)
}

// Each runs a stage over n items. A single item wakes no worker.
func (p *passRows) Each(n, grain int, t interface{ Run(lo, hi, worker int) }) {
	if n == 1 {
		t.Run(0, 1, 0)
		return
	}
	p.pool.Run(n, grain, t)
}

// WatchContext sets p.stop when ctx is done, until release is called. If p.stop is
// just being set, release waits for that, so that the pass can be reused. A context
// that cannot be cancelled costs nothing. A pass that is part of a request's work beside
// the steps of an engine has the thread of its turn.
func (p *passRows) WatchContext(ctx context.Context) (release func()) {
	p.pool = p.net.Pool
	if t := turns.Of(ctx); t != nil {
		p.pool = workers.Alone(func() { _ = t.Check(ctx) }) // an error stops the pass, too
	}
	if ctx.Done() == nil {
		return func() {}
	}
	set := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		p.stop.Store(true)
		close(set)
	})
	return func() {
		if !cancel() {
			<-set
		}
	}
}

// interrupted returns why the pass was stopped, nil if it was not: because its
// context is done, or by Stop.
func (p *passRows) interrupted(ctx context.Context) error {
	if !p.stop.Load() {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if why := p.why.Load(); why != nil {
		return *why
	}
	return errors.New("stopped")
}

func layerError(at, head int, err error) error {
	return fmt.Errorf("layer %d, kv head %d: %w", at, head, err)
}
