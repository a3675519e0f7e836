package workers

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

const (
	cacheLine = 128 // two lines of 64 bytes: processors fetch them in pairs

	// burst is the number of polls between two points at which the garbage
	// collector can stop a spinning worker, yieldBursts the number of bursts
	// between two yields to other goroutines.
	burst       = 32
	yieldBursts = 32

	// idleSpin is how long a helper spins before it blocks.
	idleSpin = 200 * time.Microsecond
)

// Task is the work of one region. Run computes the items [lo, hi); worker is
// below the pool's number of threads and distinct for concurrent calls of one
// region, so that it can select scratch memory. Concurrent regions use the same
// worker numbers: scratch belongs to whoever calls Pool.Run.
//
// A Task should be a pointer; storing another type in the interface may allocate.
type Task interface {
	Run(lo, hi, worker int)
}

// Panic is what Run panics with when a task panicked on a helper's goroutine.
type Panic struct {
	Value any    // what the task panicked with
	Stack []byte // of the helper
}

// Error returns the value and the helper's stack.
func (p *Panic) Error() string {
	return fmt.Sprintf("task on a worker goroutine: %v\n%s", p.Value, p.Stack)
}

// Unwrap returns the value if it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Pool is a set of workers. All methods are safe for concurrent use.
type Pool struct {
	threads int
	between func() // of Alone, called between pieces; may be nil
	start   sync.Once
	helpers []helper // worker i is helpers[i-1]
	wg      sync.WaitGroup
	closed  atomic.Bool
	calls   atomic.Int32 // Run calls in progress, and threads lent
	owned   atomic.Bool  // a Run has the helpers
	asleep  atomic.Int32 // helpers blocked or about to block
	failure atomic.Pointer[Panic]

	_ [cacheLine]byte

	// gate is epoch<<32 | open<<31 | number of helpers inside. The other fields
	// of the region are written only while it is closed and empty, and read by
	// helpers only while they are inside.
	gate   atomic.Uint64
	task   Task
	n      int
	grain  int
	most   uint32 // most chunks of grain items that a worker takes at once
	spread int    // workers that own a span

	_ [cacheLine]byte

	spans []span // of each worker
}

const (
	gateOpen  = 1 << 31
	gateEpoch = 0xffffffff << 32
)

// span is the run of chunks [lo, hi) that a worker has not yet begun: hi<<32 | lo.
type span struct {
	atomic.Uint64
	_ [cacheLine - 8]byte
}

// set may be called only while the gate is closed: opening and entering it order the
// store. With an atomic store the caller would wait for each helper's cache line.
func (s *span) set(lo, hi int) {
	*(*uint64)(unsafe.Pointer(&s.Uint64)) = uint64(hi)<<32 | uint64(lo)
}

// share returns how many of n chunks to take at once: half of them, so that pieces are
// large and yet workers end at about the same time, even if one is only half as fast as
// the others, but at least one and at most most.
func share(n, most uint32) uint32 { return max(1, min(n/2, most)) }

// front takes the first chunks, back the last ones: [lo, hi), empty if there are none.
func (s *span) front(most uint32) (lo, hi uint32) {
	for {
		v := s.Load()
		lo, hi := uint32(v), uint32(v>>32)
		if lo >= hi {
			return 0, 0
		}
		if n := share(hi-lo, most); s.CompareAndSwap(v, v+uint64(n)) {
			return lo, lo + n
		}
	}
}

func (s *span) back(most uint32) (lo, hi uint32) {
	for {
		v := s.Load()
		lo, hi := uint32(v), uint32(v>>32)
		if lo >= hi {
			return 0, 0
		}
		if n := share(hi-lo, most); s.CompareAndSwap(v, v-uint64(n)<<32) {
			return hi - n, hi
		}
	}
}

type helper struct {
	asleep atomic.Bool
	wake   chan struct{} // capacity 1; gets a value when wake clears asleep
	_      [cacheLine - 16]byte
}

// New returns a pool of n threads, including the caller of Run. If n is below 1, it
// counts as 1. More threads than processors are allowed but slow.
func New(n int) *Pool { return &Pool{threads: max(1, n)} }

// Alone returns a pool of the calling goroutine alone, which calls between after each
// piece. It need not be closed.
func Alone(between func()) *Pool { return &Pool{threads: 1, between: between} }

// Threads returns the number of threads.
func (p *Pool) Threads() int { return p.threads }

// Lend leaves a thread's processor to something else until the returned function is
// called: regions have one helper fewer, as if another Run were in progress.
func (p *Pool) Lend() (back func()) {
	p.calls.Add(1)
	return sync.OnceFunc(func() { p.calls.Add(-1) })
}

// Run executes t over the items [0, n) in pieces of at most grain neighbouring
// items (below 1 counts as 1) and returns when all are done. If a piece panics,
// pieces not yet begun may be skipped, and Run panics once no worker is running t.
// Run does not allocate. On a closed pool, and inside a task of the same pool, it
// executes t in the calling goroutine.
func (p *Pool) Run(n, grain int, t Task) { p.RunPieces(n, grain, grain, t) }

// RunPieces is like Run, but for tasks that benefit from large pieces: of up to most
// items while many are left, and of grain items towards the end.
func (p *Pool) RunPieces(n, grain, most int, t Task) {
	if n <= 0 {
		return
	}
	grain = max(1, grain, n/math.MaxInt32+1)
	most = max(1, most/grain)
	if p.threads == 1 {
		p.alone(n, grain*most, t)
		return
	}
	chunks := (n-1)/grain + 1
	calls := p.calls.Add(1)
	defer p.calls.Add(-1)
	spread := min(p.threads-int(calls)+1, chunks)
	if spread <= 1 || p.closed.Load() || !p.owned.CompareAndSwap(false, true) {
		p.alone(n, grain*most, t)
		return
	}
	defer p.owned.Store(false)
	if p.start.Do(p.startHelpers); p.spans == nil { // closed before they started
		p.alone(n, grain*most, t)
		return
	}
	p.task, p.n, p.grain, p.most, p.spread = t, n, grain, uint32(min(most, math.MaxInt32)), spread
	for i := range spread {
		p.spans[i].set(chunks*i/spread, chunks*(i+1)/spread)
	}
	p.gate.Store((p.gate.Load()>>32+1)<<32 | gateOpen)
	if p.asleep.Load() > 0 {
		p.wake(spread - 1)
	}
	done := false
	defer p.join(&done)
	p.work(0)
	done = true
}

func (p *Pool) alone(n, grain int, t Task) {
	for lo := 0; lo < n; lo += grain {
		t.Run(lo, min(n, lo+grain), 0)
		if p.between != nil {
			p.between()
		}
	}
}

// join ends the region: it waits for the helpers inside and propagates their panic.
// Chunks are left only if the task panicked in the calling goroutine.
func (p *Pool) join(done *bool) {
	if !*done {
		p.drain()
	}
	p.gate.And(^uint64(gateOpen))
	for i := 1; ; i++ {
		g := p.gate.Load()
		if uint32(g) == 0 {
			break
		}
		p.spin(math.MaxUint64, g)
		if i%yieldBursts == 0 {
			yield()
		}
	}
	p.task = nil
	if f := p.failure.Load(); f != nil {
		p.failure.Store(nil)
		panic(f)
	}
}

func (p *Pool) drain() {
	for i := range p.spread {
		p.spans[i].Store(0)
	}
}

// work executes the worker's own chunks, then those of the others.
func (p *Pool) work(id int) {
	t, n, grain, most := p.task, p.n, p.grain, p.most
	for own := &p.spans[id]; ; {
		lo, hi := own.front(most)
		if lo == hi {
			break
		}
		t.Run(int(lo)*grain, min(n, int(hi)*grain), id)
	}
	for i := 1; i < p.spread; i++ {
		for s := &p.spans[(id+i)%p.spread]; ; {
			lo, hi := s.back(most)
			if lo == hi {
				break
			}
			t.Run(int(lo)*grain, min(n, int(hi)*grain), id)
		}
	}
}

func (p *Pool) startHelpers() {
	p.spans = make([]span, p.threads)
	p.helpers = make([]helper, p.threads-1)
	p.wg.Add(len(p.helpers))
	for i := range p.helpers {
		p.helpers[i].wake = make(chan struct{}, 1)
		go p.serve(i + 1)
	}
}

// serve is the main loop of helper id.
func (p *Pool) serve(id int) {
	defer p.wg.Done()
	debug.SetPanicOnFault(true) // a mapped file that was truncated ends the task, not the process
	for seen := uint64(0); ; {
		seen = p.await(&p.helpers[id-1], seen)
		if p.closed.Load() {
			return
		}
		p.help(id)
	}
}

// await returns the gate's epoch bits, in place, once they differ from seen or the
// pool is closed.
func (p *Pool) await(h *helper, seen uint64) uint64 {
	var since time.Time
	for i := 1; ; i++ {
		if g := p.spin(gateEpoch, seen) & gateEpoch; g != seen || p.closed.Load() {
			return g
		}
		if i%yieldBursts != 0 {
			continue
		}
		yield()
		switch now := time.Now(); {
		case since.IsZero():
			since = now
		case now.Sub(since) > idleSpin:
			p.sleep(h, seen)
			since = time.Time{}
		}
	}
}

// spin polls the gate, at most burst times, until the bits in mask differ from seen.
// As a call with a frame it is a point at which the goroutine can be stopped.
//
//go:noinline
func (p *Pool) spin(mask, seen uint64) uint64 {
	g := p.gate.Load()
	for i := 0; i < burst && g&mask == seen; i++ {
		pause()
		g = p.gate.Load()
	}
	return g
}

// yield lets other goroutines and other threads run.
func yield() {
	runtime.Gosched()
	yieldProcessor()
}

// sleep blocks until wake, unless there is something to do.
func (p *Pool) sleep(h *helper, seen uint64) {
	p.asleep.Add(1)
	h.asleep.Store(true)
	// A region opened before this load is seen here; one opened later sees asleep set.
	if (p.gate.Load()&gateEpoch != seen || p.closed.Load()) && h.asleep.CompareAndSwap(true, false) {
		p.asleep.Add(-1)
		return
	}
	<-h.wake
}

// wake wakes those of the first n helpers that are asleep.
func (p *Pool) wake(n int) {
	for i := range p.helpers[:n] {
		if h := &p.helpers[i]; h.asleep.CompareAndSwap(true, false) {
			p.asleep.Add(-1)
			h.wake <- struct{}{}
		}
	}
}

// help enters the open region, if there is one, and works.
func (p *Pool) help(id int) {
	for {
		g := p.gate.Load()
		if g&gateOpen == 0 {
			return
		}
		if p.gate.CompareAndSwap(g, g+1) {
			break
		}
	}
	defer p.leave()
	if id < p.spread {
		p.work(id)
	}
}

func (p *Pool) leave() {
	if v := recover(); v != nil {
		p.failure.CompareAndSwap(nil, &Panic{Value: v, Stack: debug.Stack()})
		p.drain()
	}
	p.gate.Add(^uint64(0))
}

// Close ends the helpers and waits for them. Regions in progress are completed.
// It must not be called from a task of the pool. Close always returns nil and may
// be called more than once.
func (p *Pool) Close() error {
	p.closed.Store(true)
	p.start.Do(func() {}) // helpers that have not started never will
	p.wake(len(p.helpers))
	p.wg.Wait()
	return nil
}
