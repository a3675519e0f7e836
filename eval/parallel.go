package eval

import (
	"context"
	"fmt"
	"sync"

	"github.com/lukv/lukv/model"
)

// parallel is a run on several contexts at the same time.
type parallel struct {
	*runner
	mu      sync.Mutex
	room    sync.Cond // a context is done
	working int
	bytes   int64 // of the contexts being worked on, as far as memory is limited
	err     error // the first
}

// runParallel is [Run] on several contexts at the same time.
func runParallel(ctx context.Context, m *model.Model, items []Item, methods []Method, o Options, emit func(Answer) error) error {
	tok, err := m.Tokenizer()
	if err != nil {
		return fmt.Errorf("evaluate: %w", err)
	}
	p := &parallel{runner: &runner{m: m, tok: tok, o: o, items: items, methods: methods, emit: emit}}
	p.room.L = &p.mu
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	p.progress(0)
	for _, group := range p.groups() {
		weight := int64(0)
		if o.Memory > 0 {
			weight = p.weight(group)
		}
		if !p.start(weight) {
			break
		}
		all.Go(func() {
			if err := p.one(ctx, group); err != nil {
				cancel()
				p.end(weight, err)
				return
			}
			p.end(weight, nil)
		})
	}
	all.Wait()
	return p.err
}

// weight is what a context is taken to need beside others: twice its full cache.
func (p *parallel) weight(group []int) int64 {
	head, _ := p.context(group)
	return 2 * int64(len(head)) * bytesPerToken(p.m)
}

// start waits until there is room for one more context, at least for one. False:
// the run is over.
func (p *parallel) start(weight int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.err == nil && p.working > 0 && (p.working >= p.o.Parallel || p.o.Memory > 0 && p.bytes+weight > p.o.Memory) {
		p.room.Wait()
	}
	p.working++
	p.bytes += weight
	return p.err == nil
}

func (p *parallel) end(weight int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.working--
	p.bytes -= weight
	if p.err == nil {
		p.err = err
	}
	p.room.Broadcast()
}

// one runs on the items of one context.
func (p *parallel) one(ctx context.Context, group []int) error {
	items := make([]Item, len(group))
	for k, i := range group {
		items[k] = p.items[i]
	}
	o, last := p.o, 0
	o.Parallel = 0
	if p.o.Done != nil {
		o.Done = func(k int, method string) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.o.Done(group[k], method)
		}
	}
	o.Progress = func(done, _ int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.progress(done - last)
		last = done
	}
	return Run(ctx, p.m, items, p.methods, o, func(a Answer) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.err == nil {
			a.Item = group[a.Item]
			p.err = p.emit(a)
		}
		return p.err
	})
}

// bytesPerToken is what a token takes in an uncompressed cache, at most.
func bytesPerToken(m *model.Model) int64 {
	const keyAndValue, bytes = 2, 4
	c := m.Config()
	return keyAndValue * bytes * int64(c.Layers) * int64(c.KVHeads) * int64(c.HeadDim)
}
