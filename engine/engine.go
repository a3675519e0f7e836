package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// Options configure an engine. The zero value has sensible limits, but none on
// memory.
type Options struct {
	// MaxBytes bounds the KV caches of all requests and the prefix cache together; 0: no
	// bound.
	MaxBytes int64

	// PrefixCacheBytes bounds the prefix cache, within MaxBytes: 0 for all the room that
	// requests leave (none if MaxBytes is 0), -1 for none. Each prompt counts with its KV
	// cache, its tokens and the logits after it.
	PrefixCacheBytes int64

	// Store, if not empty, is a folder in which prompts outlive the engine: those of
	// requests with PromptOnly, before these end; compressed contexts, after their prefill;
	// and the prefix cache when the engine is closed. Each model takes at
	// most StoreBytes (0: no bound), and its least recently used files are removed
	// first. A damaged file affects nothing else. The folder is created if it does not
	// exist; engines of several models may share it, two on the same model may not.
	Store      string
	StoreBytes int64

	// OnPrefix, if not nil, is called whenever a prompt enters or leaves the prefix cache. It
	// is called by the goroutine that computes everything and must not block.
	OnPrefix func(PrefixEvent)

	// Log, if not nil, receives messages about the store.
	Log *slog.Logger

	// MaxRunning bounds the answers computed at once (default 64, at most MostRunning; a
	// request with more choices runs by itself, and a client of whom nothing runs may have
	// an eighth of it beside those of others), MaxQueue the requests that wait (default 256), and
	// MaxQueueTokens the tokens of their prompts (default 4 Mi).
	MaxRunning     int
	MaxQueue       int
	MaxQueueTokens int

	// Latency is the time that may pass between two tokens of an answer during the prefill
	// of other prompts. Prefill gets the time that decoding leaves, but at least 16 tokens of
	// each step. The default, 0, is 100 ms, or where that is longer the time of a step with
	// as many tokens of prompts as take eight passes without, 128 at most: with fewer,
	// products read the weights so often that all requests together take longer. Whatever
	// it is, an eighth of the time of prompts of 1,024 tokens and more is followed by steps
	// for answers alone. It does not change answers.
	Latency time.Duration

	// MaxTokens bounds the prompt and answer of a request together; both its default
	// and its maximum are the model's context.
	MaxTokens int

	// MaxAnswer bounds the tokens of each answer, whatever its request asks for; 0: no bound.
	// DefaultAnswer is the bound for requests that ask for none; 0: what the prompt leaves of
	// MaxTokens. Answers that reach a bound end with model.FinishLength.
	MaxAnswer, DefaultAnswer int

	// AnswerTime bounds the time of decoding of each request: answers that are not complete
	// by then end with model.FinishLength; 0: no bound. With a bound, how long an answer is
	// depends on the machine.
	AnswerTime time.Duration

	// Lookup computes several tokens of an answer in one step if it quotes its prompt
	// or itself (see model.SessionOptions), as long as few answers share the step. It
	// does not change answers.
	Lookup bool

	// Requests bounds the memory that requests take besides their KV caches, from Submit to
	// their end: prompts, unread events, answers, logits and samplers. The default is
	// ProcessAccount.
	Requests *Account

	// CacheType, CacheValues and PageEntries are as in model.SessionOptions. A request whose
	// policy names a cache type has caches of that type.
	CacheType, CacheValues tensor.Type
	PageEntries            int
}

func (o Options) withDefaults(positions int) (Options, error) {
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&o.MaxTokens, positions)
	set(&o.MaxRunning, 64)
	set(&o.MaxQueue, 256)
	set(&o.MaxQueueTokens, 4<<20)
	if o.PrefixCacheBytes == 0 {
		o.PrefixCacheBytes = o.MaxBytes
	}
	if o.OnPrefix == nil {
		o.OnPrefix = func(PrefixEvent) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.MaxTokens < 1 || o.MaxTokens > positions:
		return o, fmt.Errorf("a limit of %d tokens, expected 1 to %d", o.MaxTokens, positions)
	case o.MaxBytes < 0:
		return o, fmt.Errorf("a limit of %d bytes, expected 0 or more", o.MaxBytes)
	case o.StoreBytes < 0:
		return o, fmt.Errorf("a store of %d bytes, expected 0 or more", o.StoreBytes)
	case o.StoreBytes > 0 && o.Store == "":
		return o, errors.New("a bound on a store without a folder for it")
	case o.PrefixCacheBytes < -1:
		return o, fmt.Errorf("a prefix cache of %d bytes, expected -1 or more", o.PrefixCacheBytes)
	case o.MaxRunning < 1 || o.MaxRunning > MostRunning:
		return o, fmt.Errorf("%d answers at once, expected 1 to %d", o.MaxRunning, MostRunning)
	case o.MaxQueue < 1 || o.MaxQueueTokens < 1:
		return o, fmt.Errorf("a queue of %d requests of %d tokens, expected 1 or more", o.MaxQueue, o.MaxQueueTokens)
	case o.Latency < 0:
		return o, fmt.Errorf("a latency of %v, expected 0 or more", o.Latency)
	case o.MaxAnswer < 0 || o.DefaultAnswer < 0 || o.AnswerTime < 0:
		return o, fmt.Errorf("answers of %d tokens (default %d) and %v, expected 0 or more", o.MaxAnswer, o.DefaultAnswer, o.AnswerTime)
	}
	return o, nil
}

// MostRunning is the most that MaxRunning of [Options] may be.
const MostRunning = 1 << 12

// Engine answers requests to a model. Close it before the model.
type Engine struct {
	m        *model.Model
	tok      *tokenizer.Tokenizer
	compiler *structured.Compiler // nil without a tokenizer
	o        Options
	chunk    int // most tokens of a prompt in a step
	account  *Account
	patience time.Duration // with clients that read slowly while others wait
	alarm    *time.Timer   // wakes the engine when it may be over
	verify   func(*Engine) // of tests, after each step

	ctx     context.Context // for the computations
	cancel  context.CancelFunc
	wake    chan struct{} // something happened that the loop should look at
	stopped chan struct{} // closed when the loop has ended

	mu        sync.Mutex // guards the following
	queue     queue
	closing   bool
	names     int      // requests named by the engine
	callbacks []func() // for the loop to run

	// Owned by the loop.
	running   []*job // in the order of admission
	parked    []*job // preempted because their events are not read
	reserved  int64  // bytes, of all running requests and of files in progress
	detached  int64  // of these, those of files that no request waits for
	cache     prefixCache
	disk      *disk    // nil without Options.Store
	pendingIO int      // file loads and writes in progress
	writing   bool     // one of them is a write that no request waits for
	writes    []*write // of these, those that wait for room in the store
	pace      pace
	share     share
	parts     []model.Part
	owners    []*job      // of parts
	decoding  []*choice   // of those parts that continue answers, which come first
	replays   []*choice   // answers that are recomputed, as a prompt is, since they lost their cache
	replayed  int         // tokens in parts that recompute answers
	draws     []*choice   // whose logits are there, but not yet the next token
	each      []*job      // scratch: a copy of running
	reading   []*job      // scratch: those whose prompts are read
	ready     []*choice   // scratch: those that are drawn
	drawReady func(i int) // draws ready[i]
	masks     sync.WaitGroup

	stats counters
}

// verifySteps is what tests have engines do after each step.
var verifySteps func(*Engine)

// New returns an engine on a model. Events of a model made in memory, which has no
// tokenizer, carry no text. The caller must close the engine.
func New(m *model.Model, o Options) (*Engine, error) {
	o, err := o.withDefaults(m.Config().MaxPositions)
	if err != nil {
		return nil, fmt.Errorf("new engine: %w", err)
	}
	var tok *tokenizer.Tokenizer
	var compiler *structured.Compiler
	if m.Source() != nil {
		if tok, err = m.Tokenizer(); err == nil {
			compiler, err = structured.NewCompiler(m)
		}
		if err != nil {
			return nil, fmt.Errorf("new engine: %w", err)
		}
	}
	e := &Engine{
		m: m, tok: tok, compiler: compiler, o: o, chunk: 512,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), patience: slowPatience, verify: verifySteps,
		account: cmp.Or(o.Requests, ProcessAccount()),
		cache:   prefixCache{limit: max(o.PrefixCacheBytes, 0), vocab: m.Config().Vocab, trees: map[string]*radixTree[*entry]{}, changed: o.OnPrefix},
	}
	e.alarm = time.AfterFunc(e.patience, e.poke)
	e.drawReady = func(i int) { e.ready[i].draw() }
	for _, w := range m.Config().Windows {
		e.cache.windowed = e.cache.windowed || w > 0
	}
	if o.Store != "" {
		if e.disk, err = openDisk(o.Store, o.StoreBytes, m, o.Log); err != nil {
			return nil, fmt.Errorf("new engine: store: %w", err)
		}
		e.disk.windowed = e.cache.windowed
		e.stats.stored.Store(e.disk.bytes)
	}
	e.pace = newPace(o.Latency, e.chunk)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	go e.loop()
	return e, nil
}

// MaxTokens returns the bound on the prompt and answer of a request together.
func (e *Engine) MaxTokens() int { return e.o.MaxTokens }

// MaxRequests returns how many requests of so many choices can wait and run at once.
func (e *Engine) MaxRequests(choices int) int {
	return e.o.MaxQueue + max(1, e.o.MaxRunning/max(1, choices))
}

// Submit queues a request and returns the stream of its answer. It does not wait:
// [ErrQueueFull], [TooLargeError] and errors in the request are returned at once. When
// ctx is done the request is cancelled, whatever its state.
func (e *Engine) Submit(ctx context.Context, r Request) (*Stream, error) {
	if r.ID == "" {
		e.mu.Lock()
		e.names++
		r.ID = "req-" + strconv.Itoa(e.names)
		e.mu.Unlock()
	}
	s, err := e.submit(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", r.ID, err)
	}
	return s, nil
}

func (e *Engine) submit(ctx context.Context, r Request) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := e.check(&r); err != nil {
		return nil, err
	}
	if r.PromptOnly {
		r.Choices = 1
	}
	plan, err := e.plan(ctx, &r)
	if err != nil {
		return nil, err
	}
	j := &job{e: e, req: r, plan: plan, answerTokens: e.answerTokens(&r)}
	if j.stops, err = dialog.NewStops(r.Stop); err != nil {
		return nil, err
	}
	if err := j.size(); err != nil {
		return nil, err
	}
	j.held = j.memory()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closing:
		return nil, ErrClosed
	case e.queue.n >= e.o.MaxQueue || e.queue.n > 0 && e.queue.tokens+len(r.Prompt) > e.o.MaxQueueTokens:
		return nil, fmt.Errorf("%w: %d requests of %d tokens wait", ErrQueueFull, e.queue.n, e.queue.tokens)
	}
	if err := e.account.Take(j.held); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(turns.Apart(ctx))
	j.ctx = ctx
	j.stream = &Stream{
		id: r.ID, events: make(chan Event, j.events()), done: make(chan struct{}), cancel: cancel, wake: e.poke, prompt: len(r.Prompt),
	}
	j.req.Prompt = slices.Clone(r.Prompt) // the prefix cache may hold it longer than the caller does
	context.AfterFunc(ctx, e.poke)
	j.arrived = time.Now()
	e.queue.push(j)
	e.stats.waiting.Store(int64(e.queue.n))
	e.poke()
	return j.stream, nil
}

// poke wakes the loop.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Drain stops accepting requests and waits until all are answered or ctx is done, in
// which case it cancels the rest. It then closes the engine.
func (e *Engine) Drain(ctx context.Context) error {
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	e.poke()
	var err error
	select {
	case <-e.stopped:
	case <-ctx.Done():
		err = fmt.Errorf("drain engine: %w", context.Cause(ctx))
	}
	return errors.Join(err, e.Close())
}

// Close cancels all requests, waits for the step in progress, writes the prefix cache to
// the store, if there is one, and frees all memory. Closing twice is fine.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	e.cancel()
	e.poke()
	<-e.stopped
	return nil
}

// loop is the goroutine that owns all sessions.
func (e *Engine) loop() {
	defer close(e.stopped)
	turns.Computes()
	defer turns.Waits()
	for {
		over := e.receive()
		if over {
			turns.Waits()
			e.masks.Wait()
			turns.Computes()
			e.storeCached()
			e.cache.close()
			e.disk.close()
			return
		}
		worked := e.step()
		if e.verify != nil {
			e.verify(e)
		}
		if !worked {
			turns.Waits()
			<-e.wake
			turns.Computes()
		}
	}
}

// receive runs callbacks, ends cancelled requests and admits
// waiting ones. It reports whether the loop should end.
func (e *Engine) receive() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runCallbacks()
	for _, j := range e.queue.all() {
		if err := e.cancelled(j); err != nil {
			e.queue.remove(j)
			e.finish(j, err)
		}
	}
	e.each = append(e.each[:0], e.running...)
	for _, j := range e.each {
		if err := e.cancelled(j); err != nil {
			e.leave(j)
			e.finish(j, err)
		}
	}
	e.parked = slices.DeleteFunc(e.parked, func(j *job) bool {
		err := e.cancelled(j)
		if err != nil {
			e.finish(j, err)
		}
		return err != nil
	})
	e.unpark()
	e.admit()
	e.stats.waiting.Store(int64(e.queue.n + len(e.parked)))
	e.stats.running.Store(int64(len(e.running)))
	return e.closing && e.queue.n == 0 && len(e.running)+len(e.parked) == 0 && e.pendingIO == 0
}

// cancelled returns the cause if a request or the engine was cancelled, nil otherwise.
func (e *Engine) cancelled(j *job) error {
	if j.ctx.Err() != nil {
		return context.Cause(j.ctx)
	}
	if e.ctx.Err() != nil {
		return ErrClosed
	}
	return nil
}

// admit takes requests from the queue while they fit. If the first does not, guests may pass it.
func (e *Engine) admit() {
	for {
		j := e.queue.front()
		if j == nil {
			return
		}
		places := e.hasPlaces(j)
		if places && e.fits(j) {
			e.queue.pop()
			j.guest = false
		} else {
			if !places && e.yield() {
				continue
			}
			if j = e.nextGuest(j, places); j == nil {
				if slow := e.slowest(false); slow != nil && (places || e.queue.first(e.guest) != nil) {
					e.park(slow)
					continue
				}
				return
			}
			e.queue.remove(j)
		}
		if err := j.start(); err != nil {
			e.release(j)
			e.finish(j, err)
			continue
		}
		e.running = append(e.running, j)
	}
}

// nextGuest returns a guest that may run before the first request of the queue, which lacks
// places or bytes; nil if there is none. Guests that pass one which lacks bytes take an eighth of
// all at most, so that they never keep it waiting.
func (e *Engine) nextGuest(first *job, places bool) *job {
	left := e.o.MaxBytes
	if places {
		left /= 8
		if first.need > e.o.MaxBytes-left {
			return nil
		}
		for _, j := range e.running {
			if j.guest {
				left -= j.reserved
			}
		}
	}
	j := e.queue.first(func(j *job) bool { return e.guest(j) && e.fits(j) && (e.o.MaxBytes == 0 || j.need <= left) })
	if j != nil {
		j.guest = true
	}
	return j
}

// fits reports whether there is room for a request beside those that run. One that lost
// its cache must also leave room for every answer to grow once; otherwise it would lose
// it again at once.
func (e *Engine) fits(j *job) bool {
	if e.o.MaxBytes == 0 {
		return true
	}
	need := j.need
	if j.preempted && len(e.running) > 0 {
		need += j.step
		for _, x := range e.running {
			if x.covered < x.answerTokens {
				need += x.step
			}
		}
	}
	return e.reserved+need <= e.o.MaxBytes
}

// hasPlaces reports whether the answers of a waiting request may run beside the others. Guests
// do not count: one after the other, they would keep it waiting for ever.
func (e *Engine) hasPlaces(j *job) bool {
	width := e.width()
	for _, x := range e.running {
		if x.guest && !x.yielded {
			width -= x.places()
		}
	}
	return (width+j.req.Choices <= e.o.MaxRunning || width == 0) && !e.before(j)
}

// guest reports whether a request runs although all places are taken or another waits for
// room: clients do not wait for each other's answers to end. One of whom nothing runs has an
// eighth of MaxRunning beside it, as long as all together do not exceed twice that.
func (e *Engine) guest(j *job) bool {
	n := j.req.Choices
	return n <= max(1, e.o.MaxRunning/8) && e.width()+n <= 2*e.o.MaxRunning &&
		!slices.ContainsFunc(e.running, func(x *job) bool { return x.req.Client == j.req.Client && !x.yielded })
}

// width returns the number of answers in progress, without those of requests that have
// yielded their places.
func (e *Engine) width() int {
	n := 0
	for _, j := range e.running {
		if !j.yielded {
			n += j.places()
		}
	}
	return n
}

// places returns the number of a request's answers in progress.
func (j *job) places() int {
	n := j.req.Choices
	for _, c := range j.choices {
		if c.done {
			n--
		}
	}
	return n
}

// reserve takes n more bytes for a request, dropping entries of the prefix cache if necessary. It
// reports whether they fit.
func (e *Engine) reserve(j *job, n int64) bool {
	if e.o.MaxBytes > 0 {
		if e.reserved+n > e.o.MaxBytes {
			return false
		}
		e.cache.shrink(e.o.MaxBytes - e.reserved - n)
		e.stats.cached.Store(e.cache.bytes)
	}
	e.reserved += n
	j.reserved += n
	e.stats.reserved.Store(e.reserved)
	e.stats.peak.Store(max(e.stats.peak.Load(), e.reserved))
	return true
}

// room returns the bytes that are left for the prefix cache.
func (e *Engine) room() int64 {
	if e.o.MaxBytes == 0 {
		return math.MaxInt64
	}
	return e.o.MaxBytes - e.reserved
}

// release gives back what was reserved for a request.
func (e *Engine) release(j *job) {
	e.reserved -= j.reserved
	j.reserved = 0
	e.stats.reserved.Store(e.reserved)
	e.stats.saved.Add(-j.saved)
	j.saved = 0
}

// leave removes a request from the running ones and frees its caches.
func (e *Engine) leave(j *job) {
	if i := slices.Index(e.running, j); i >= 0 {
		e.running = slices.Delete(e.running, i, i+1)
	}
	e.draws = slices.DeleteFunc(e.draws, func(c *choice) bool { return c.j == j })
	j.slowSince, j.yielded = time.Time{}, false
	e.away(j)
	j.free()
	e.release(j)
	e.stats.running.Store(int64(len(e.running)))
}

// finish ends a request that is no longer running.
func (e *Engine) finish(j *job, err error) {
	now := time.Now()
	u := &j.stream.usage
	if !j.began.IsZero() {
		u.Prompt, u.Cached = len(j.req.Prompt), j.stream.Cached()
		u.Queued, u.Prefill = j.began.Sub(j.arrived), now.Sub(j.began)
		if !j.isRead.IsZero() {
			u.Prefill, u.Decoding = j.isRead.Sub(j.began), now.Sub(j.isRead)
		}
		u.Generated, u.Reasoning, u.Drafted, u.Accepted = j.drawn(), j.reasoned(), j.drafted, j.accepted
	}
	e.stats.ended(j, err)
	e.account.Give(j.held)
	j.stream.end(err)
}

// preempt takes the cache away from the last request admitted, to be recomputed later.
// It never takes that of the first, and reports false if there is no other.
func (e *Engine) preempt() bool {
	last := len(e.running) - 1
	for last > 0 && (e.running[last].load != nil || e.running[last].write != nil) {
		last-- // its bytes would not be freed
	}
	if last < 1 {
		return false
	}
	j := e.running[last]
	e.leave(j)
	j.preempted = true
	e.stats.preempted.Add(1)
	e.mu.Lock()
	e.queue.pushFront(j)
	e.mu.Unlock()
	return true
}

// fail ends a running request with an error, which is ErrClosed if the engine was
// closed: that is then why it failed.
func (e *Engine) fail(j *job, err error) {
	if e.ctx.Err() != nil {
		err = ErrClosed
	}
	e.leave(j)
	e.finish(j, err)
}

// counters are what Stats reports; they may be read at any time.
type counters struct {
	waiting, running, reserved, cached atomic.Int64
	stored, loaded                     atomic.Int64
	peak, saved, evicted               atomic.Int64
	promptTokens, cachedTokens         atomic.Int64
	generated, preempted               atomic.Int64
	stopped, limited                   atomic.Int64 // completed: stop and length
	cancelled, failed                  atomic.Int64
	steps                              atomic.Int64
	drafted, accepted                  atomic.Int64
}

// reasoned returns the tokens of reasoning of all answers so far.
func (j *job) reasoned() (n int) {
	for _, c := range j.choices {
		if c.parts != nil {
			n += c.parts.ReasoningTokens()
		}
	}
	return n
}

// drawn returns the tokens of all answers so far.
func (j *job) drawn() (n int) {
	for _, c := range j.choices {
		n += c.drawn
	}
	return n
}

// count counts the tokens of a request in progress.
func (j *job) count() {
	j.e.stats.tokens(j, Usage{Prompt: int(j.stream.reached.Load()), Cached: j.stream.Cached(), Generated: j.drawn()})
}

// tokens counts the tokens of a request up to those in u.
func (c *counters) tokens(j *job, u Usage) {
	c.promptTokens.Add(int64(u.Prompt - j.counted.Prompt))
	c.cachedTokens.Add(int64(u.Cached - j.counted.Cached))
	c.generated.Add(int64(u.Generated - j.counted.Generated))
	j.counted = u
}

// ended counts a request that has ended.
func (c *counters) ended(j *job, err error) {
	c.tokens(j, j.stream.usage)
	cause := context.Cause(j.ctx) // may be any error
	switch {
	case err == nil:
		echoed := j.req.PromptOnly && j.req.Echo // an answer of length 0; without the echo, none was asked for
		if echoed || slices.ContainsFunc(j.choices, func(c *choice) bool { return c.finish == model.FinishLength }) {
			c.limited.Add(1)
		} else {
			c.stopped.Add(1)
		}
	case cause != nil && errors.Is(err, cause) || errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed):
		c.cancelled.Add(1)
	default:
		c.failed.Add(1)
	}
}

// Stats are figures of an engine. Tokens are counted with each step; at the end of a
// request its [Usage] has been counted.
type Stats struct {
	Waiting, Running int64 // requests
	ReservedBytes    int64 // for caches of running requests
	PeakBytes        int64 // the most that was ever reserved
	SavedBytes       int64 // that the caches of running requests would need in addition if nothing were compressed
	PrefixCacheBytes int64 // of the prefix cache: KV caches, tokens and logits
	StoredBytes      int64 // of files in the store
	LoadedFiles      int64 // times that a stored file was loaded
	MaxBytes         int64 // the limit on ReservedBytes and PrefixCacheBytes together

	PromptTokens, CachedTokens, GeneratedTokens int64
	Completed, Cancelled, Failed, Preempted     int64 // requests
	ReachedLength                               int64 // completed requests with an answer that ended with [model.FinishLength], or of length 0
	Steps                                       int64
	EvictedEntries                              int64 // of prompts that were compressed
	Drafted, Accepted                           int64 // tokens that were computed ahead, and how many of these were right
}

// Stats returns the current figures without waiting for a step.
func (e *Engine) Stats() Stats {
	c := &e.stats
	limited := c.limited.Load()
	return Stats{
		Waiting: c.waiting.Load(), Running: c.running.Load(),
		ReservedBytes: c.reserved.Load(), PeakBytes: c.peak.Load(), SavedBytes: c.saved.Load(), MaxBytes: e.o.MaxBytes,
		PrefixCacheBytes: c.cached.Load(), StoredBytes: c.stored.Load(), LoadedFiles: c.loaded.Load(),
		PromptTokens: c.promptTokens.Load(), CachedTokens: c.cachedTokens.Load(), GeneratedTokens: c.generated.Load(),
		Completed: c.stopped.Load() + limited, Cancelled: c.cancelled.Load(), Failed: c.failed.Load(), Preempted: c.preempted.Load(),
		ReachedLength: limited,
		Steps:         c.steps.Load(), EvictedEntries: c.evicted.Load(),
		Drafted: c.drafted.Load(), Accepted: c.accepted.Load(),
	}
}
