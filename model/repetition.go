package model

import (
	"context"
	"fmt"
	"slices"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
	"github.com/lukv/lukv/tokenizer"
)

// A repetition feeds the context again, chunk by chunk, for metrics that score
// its entries by the attention of a text that repeats them (spec 3.4). It
// accompanies a layer-by-layer prefill: when a layer has the whole context, the
// repetition passes through it and sees its full cache, and its own entries are
// removed before the layer is cut. Peak and budgets are as for any other metric;
// the cost is about that of a second and third prefill. A nil repetition does
// nothing.
type repetition struct {
	text   lukv.RepeatText
	end    int // position after the context
	chunks []repeatedChunk

	next   int                // chunk of the layer in progress
	scores *lukv.RepeatScores // of that layer, nil if it has a sliding window

	// The chunk in progress: rows that have passed, and their watcher and norms.
	passed int
	watch  *forward.Watcher
	inputs []float32

	window  *lukv.QueryWindow // of the watcher, in the scratch, as are
	keys    [][]float32       // [K] the chunk's keys
	scratch lukv.Scratch
}

// repeatedChunk repeats the tokens at positions [from,to).
type repeatedChunk struct {
	from, to int
	tokens   []int32
	x        *forward.Stream // residual stream
}

// The instructions of the method's authors.
const (
	repeatAll  = "\n\nRepeat the previous context exactly."
	repeatPart = "\n\nRepeat the part of the previous context exactly, starting with"

	// repeatLead is how many tokens of one chunk lead into the next.
	repeatLead = 8
)

// newRepetition prepares the repetition of a context from position start on, nil if
// text asks for none.
func (m *Model) newRepetition(text lukv.RepeatText, start int, context []int32) (*repetition, error) {
	if text.Chunk == 0 {
		return nil, nil
	}
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, fmt.Errorf("repeat the context: %w", err)
	}
	encode := func(s string) []int32 {
		return tok.Encode(s, tokenizer.EncodeOptions{})
	}
	p := &repetition{text: text, end: start + len(context)}
	suffix := encode(text.Suffix)
	first := min(max(0, text.Prefix-start), len(context))
	for from := first; from < len(context); from += text.Chunk {
		to := min(from+text.Chunk, len(context))
		var lead []int32
		if len(p.chunks) == 0 {
			lead = encode(repeatAll)
		} else {
			lead = append(encode(repeatPart), context[max(first, from-repeatLead):from]...)
		}
		p.chunks = append(p.chunks, repeatedChunk{from: start + from, to: start + to, tokens: slices.Concat(lead, suffix, context[from:to])})
	}
	return p, nil
}

// embed makes the streams of all chunks, before the first layer runs.
func (p *repetition) embed(r *run) error {
	if p == nil {
		return nil
	}
	if p.text.Inputs {
		if at := slices.Index(r.m.cfg.Windows[:r.m.DeviceLayers()], 0); at >= 0 {
			return fmt.Errorf("repeat the context: norms of the attention's inputs: layer %d is on a device, expected it on the processor", at)
		}
	}
	for i := range p.chunks {
		c := &p.chunks[i]
		var err error
		if c.x, err = r.newStream(c.tokens); err != nil {
			return fmt.Errorf("repeat tokens %d to %d: %w", c.from, c.to, err)
		}
	}
	return nil
}

// rows returns the number of tokens that pass through each layer.
func (p *repetition) rows() int {
	if p == nil {
		return 0
	}
	n := 0
	for i := range p.chunks {
		n += len(p.chunks[i].tokens)
	}
	return n
}

// piece runs at most limit rows of the next chunk through a layer whose cache holds the
// whole context, and counts them; when there are no more chunks, scores are the repetition's
// scores of the layer's entries, nil for a layer with a sliding window.
func (p *repetition) piece(ctx context.Context, r *run, s *Session, at, limit int) (scores *lukv.RepeatScores, rows int, more bool, err error) {
	if p == nil {
		return nil, 0, false, nil
	}
	if p.next == 0 && p.passed == 0 && s.m.cfg.Ragged(at) {
		lens := make([]int, s.m.cfg.KVHeads)
		for h := range lens {
			lens[h] = s.cache.Len(at, h)
		}
		p.scores = lukv.NewRepeatScores(lens)
	}
	if p.next < len(p.chunks) {
		c := &p.chunks[p.next]
		rows, err = p.rowsOf(ctx, r, s, at, c, limit)
		if err == nil && p.passed < len(c.tokens) {
			return nil, rows, true, nil
		}
		if err == nil && p.scores != nil {
			err = p.score(ctx, s, at, c)
		}
		if cut := s.cache.Truncate(int32(p.end)); err == nil {
			err = cut
		}
		if err != nil {
			return nil, 0, false, fmt.Errorf("repeat tokens %d to %d: %w", c.from, c.to, err)
		}
		p.passed = 0
		if p.next++; p.next < len(p.chunks) {
			return nil, rows, true, nil
		}
	}
	scores, p.scores, p.next = p.scores, nil, 0
	return scores, rows, false, nil
}

// rowsOf runs the next rows of a chunk, at most limit, through a layer, and counts them.
func (p *repetition) rowsOf(ctx context.Context, r *run, s *Session, at int, c *repeatedChunk, limit int) (rows int, err error) {
	n := len(c.tokens)
	if p.passed == 0 {
		p.watch, p.inputs = nil, p.inputs[:0]
		if p.scores != nil {
			p.watch = &forward.Watcher{Window: p.emptyWindow(s.m.cfg), Tail: p.end}
		}
	}
	rows = min(n-p.passed, limit, s.opts.ChunkTokens, r.Cap())
	if p.scores != nil && p.text.Inputs {
		p.inputs = r.m.net.InputNorms(p.inputs, at, c.x, p.passed, rows)
	}
	r.reset()
	r.add(s, p.end-s.pos+p.passed, rows, p.end+n, p.watch)
	if err := r.ForwardLayer(ctx, at, c.x, p.passed); err != nil {
		return 0, err
	}
	p.passed += rows
	return rows, nil
}

// score scores a layer's entries by a chunk that has passed through it.
func (p *repetition) score(ctx context.Context, s *Session, at int, c *repeatedChunk) error {
	cfg, n := s.m.cfg, len(c.tokens)
	view := s.layerView(at, p.end)
	view.Scratch = &p.scratch
	for len(p.keys) < cfg.KVHeads {
		p.keys = append(p.keys, p.scratch.Hold(p.window.Cap()*cfg.HeadDim))
	}
	queries := p.watch.Window.Rows()
	errs := make([]error, cfg.KVHeads)
	s.m.Parallel(cfg.KVHeads, func(h int) {
		positions := s.cache.Positions(at, h, nil)
		slot := func(pos int) int {
			i, _ := slices.BinarySearch(positions, int32(pos))
			return i
		}
		end := slot(p.end)
		x := lukv.Repetition{
			From: slot(c.from), To: slot(c.to), Sinks: p.text.Sinks, Queries: queries,
			Keys: func(h int) []float32 { return s.cache.Keys(at, h, end, end+n, p.keys[h]) }, Inputs: p.inputs,
		}
		if x.From < x.To { // otherwise all of it was evicted before
			errs[h] = p.scores.Add(ctx, view, h, x)
		}
	})
	return firstError(append(errs, s.cache.Err()))
}

// emptyWindow returns an empty window for the queries of any chunk.
func (p *repetition) emptyWindow(cfg *Config) *lukv.QueryWindow {
	if p.window == nil {
		most := 0
		for i := range p.chunks {
			most = max(most, len(p.chunks[i].tokens))
		}
		p.window = p.scratch.QueryWindow(cfg.Heads, cfg.HeadDim, most)
	}
	p.window.Trim(0)
	return p.window
}

// close frees the streams and the scratch.
func (p *repetition) close() {
	if p == nil {
		return
	}
	p.scratch.Close()
	p.window, p.keys = nil, nil
	for i := range p.chunks {
		if x := p.chunks[i].x; x != nil {
			x.Close()
			p.chunks[i].x = nil
		}
	}
}
