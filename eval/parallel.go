package eval

import (
	"context"
	"fmt"
	"sync"

	"github.com/lukv/lukv/model"
)

// parallel is a run that works on several contexts at the same time.
type parallel struct {
	*runner
	mu      sync.Mutex
	room    sync.Cond // a context is done
	working int
	bytes   int64 // of the contexts being worked on, if memory is limited
	err     error // the first
}

// runParallel evaluates several contexts at the same time.
func (r *runner) runParallel(ctx context.Context) error {
	p := &parallel{runner: r}
	p.room.L = &p.mu
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	p.progress(0)
	for _, group := range p.groups() {
		weight := int64(0)
		if p.o.Memory > 0 {
			weight = p.weight(group)
		}
		if !p.start(weight) {
			break
		}
		all.Go(func() {
			err := p.one(ctx, group)
			p.end(weight, err)
			if err != nil {
				cancel() // after end, so that this error is the first, not the others' cancellation
			}
		})
	}
	all.Wait()
	return p.err
}

// weight is the memory that a context is assumed to need alongside others: twice
// its full cache.
func (p *parallel) weight(group []int) int64 {
	longest := 0
	for _, c := range p.cut(group) {
		longest = max(longest, len(c.head))
	}
	return 2 * int64(longest) * bytesPerToken(p.m)
}

// start waits until there is room for another context; there is always room for
// one. It returns false if the run is over.
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

// one evaluates the items of one context. It calls back to the caller only under the
// lock.
func (p *parallel) one(ctx context.Context, group []int) error {
	p.mu.Lock()
	one := *p.runner // whose done others count on
	p.mu.Unlock()
	one.done, one.asked = 0, nil
	if p.o.Done != nil {
		one.o.Done = func(item int, method string) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.o.Done(item, method)
		}
	}
	last := 0
	one.o.Progress = func(done, _ int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.progress(done - last)
		last = done
	}
	one.emit = func(a Answer) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.err == nil {
			if err := p.emit(a); err != nil {
				p.err = p.failed(group, err)
			}
		}
		return p.err
	}
	var err error
	if one.sampler, err = p.m.NewSampler(model.Sampling{}, 0); err != nil {
		return fmt.Errorf("evaluate: %w", err)
	}
	defer one.forget()
	return one.contexts(ctx, [][]int{group})
}

// bytesPerToken is the most that a token takes in an uncompressed cache.
func bytesPerToken(m *model.Model) int64 {
	const keyAndValue, bytes = 2, 4
	c := m.Config()
	return keyAndValue * bytes * int64(c.Layers) * int64(c.KVHeads) * int64(c.HeadDim)
}
