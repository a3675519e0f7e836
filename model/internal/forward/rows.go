package model

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/internal/workers"
)

// span is a run of consecutive tokens of one session inside a pass.
type span struct {
	s      *Session
	row, n int // rows [row, row+n) of the pass
	seqLen int // length of the sequence at the end of the call that the span belongs to
	watch  *watcher
}

// pass is the part of a forward pass that all backends share and watchers look at.
type pass struct {
	m     *Model
	cap   int // most rows
	rows  int // in use
	spans []span
	pos   []int32 // position of each row

	q []float32 // [rows][Heads*HeadDim] queries, when watchers may look

	watch   []watchScratch // per worker
	at      int            // layer in progress
	watched *span          // for the stages that watch
	input   []float32      // likewise, [rows][Hidden] input of a layer

	pool *workers.Pool // that stages run on
	stop atomic.Bool   // set when the context is done
}

// add appends a span of n tokens of s, whose first position is s.pos+offset.
func (p *pass) add(s *Session, offset, n, seqLen int, w *watcher) {
	for i := range n {
		p.pos[p.rows+i] = int32(s.pos + offset + i)
	}
	p.spans = append(p.spans, span{s: s, row: p.rows, n: n, seqLen: seqLen, watch: w})
	p.rows += n
}

// each runs a stage over n items. A single item wakes no worker.
func (p *pass) each(n, grain int, t interface{ Run(lo, hi, worker int) }) {
	if n == 1 {
		t.Run(0, 1, 0)
		return
	}
	p.pool.Run(n, grain, t)
}

// watchContext sets p.stop when ctx is done, until release is called. If p.stop is
// just being set, release waits for that, so that the pass can be reused. A context
// that cannot be cancelled costs nothing. A pass that is part of a request's work beside
// the steps of an engine has the thread of its turn.
func (p *pass) watchContext(ctx context.Context) (release func()) {
	p.pool = p.m.pool
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
// context is done, or its session was closed.
func (p *pass) interrupted(ctx context.Context) error {
	if !p.stop.Load() {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errSessionClosed
}

// attentionInput sets dst to what the attention of layer at reads where the residual
// stream is x.
func (m *Model) attentionInput(dst, x []float32, at int) {
	if w := m.layers[at].attnNorm; w != nil {
		m.cpu.RMSNorm(dst, x, w, m.cfg.NormEps)
	} else {
		copy(dst, x)
	}
}

func layerError(at, head int, err error) error {
	return fmt.Errorf("layer %d, kv head %d: %w", at, head, err)
}

// embedTokens writes the embeddings of tokens to x, [len(tokens)][Hidden].
func (m *Model) embedTokens(x []float32, tokens []int32) {
	h := m.cfg.Hidden
	for i, t := range tokens {
		row := x[i*h : (i+1)*h]
		m.cpu.WidenRow(row, &m.embed, int(t), 0)
		if m.embedScale != 1 {
			m.cpu.Scale(row, m.embedScale)
		}
	}
}

// act names a matrix of activations of a forward pass, [rows][columns].
type act uint8

const (
	actX         act = iota // [Hidden] residual stream
	actNorm                 // [Hidden] normalised
	actQ                    // [Heads*HeadDim]
	actK                    // [KVHeads*HeadDim]
	actV                    // [KVHeads*HeadDim]
	actAttention            // [Heads*HeadDim]
	actMLP                  // [Intermediate]
	actLogits               // [Vocab]
	actBranch               // [Hidden] added to actX later
	actGate                 // [Intermediate] on a device, gates and
	actUp                   // [Intermediate] what they multiply, if that is not one operation
	actEnd
)

// columns returns the number of columns of an activation in a model of config c.
func (a act) columns(c *Config) int {
	switch a {
	case actQ, actAttention:
		return c.Heads * c.HeadDim
	case actK, actV:
		return c.KVHeads * c.HeadDim
	case actMLP, actGate, actUp:
		return c.Intermediate
	case actLogits:
		return c.Vocab
	}
	return c.Hidden
}
