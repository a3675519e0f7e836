package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// maxLoadWaiters bounds the requests that wait for one model to be loaded.
const maxLoadWaiters = 256

// models are the models of a server. The mutex is never held while a model is opened,
// closed or computing.
type models struct {
	ctx    context.Context // for loading
	cancel context.CancelFunc
	log    *slog.Logger
	limit  int64         // bytes of all loaded models
	idle   time.Duration // after which an unused model is unloaded, 0: never

	mu      sync.Mutex
	byID    map[string]*slot
	order   []*slot       // as they were added: the first answers if no model is named
	bytes   int64         // of what is loaded or being loaded
	changed chan struct{} // closed and replaced when a model was released or unloaded
	closing bool
}

// slot is a model that the server knows, loaded or not.
type slot struct {
	id      string
	created int64
	open    func(context.Context) (*model.Model, error) // nil: always loaded, closed by the caller of Add
	engine  engine.Options
	metrics metrics

	// Under the mutex of models:
	loaded  *served
	leaving *served       // being unloaded
	busy    chan struct{} // closed when loading or unloading is over; nil: neither
	err     error         // of the last load
	holds   int           // requests that use it
	waiting int           // requests that wait for it
	used    time.Time     // when the last hold ended, or it was loaded
	timer   *time.Timer   // started then
	bytes   int64         // of weights plus the limit on caches; 0 before the first load
	maxLen  int           // 0 before the first load
	block   cacheBlock
	past    engine.Stats // counters of earlier engines
}

// served is a loaded model with its engine, tokenizer and format.
type served struct {
	id      string
	m       *model.Model
	e       *engine.Engine
	tok     *tokenizer.Tokenizer
	format  *dialog.Format
	date    time.Time // of format
	metrics *metrics

	syntax *structured.Syntax
}

func newServed(sl *slot, m *model.Model) (*served, error) {
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	now := time.Now().Truncate(time.Second)
	format, err := dialog.NewFormat(m, now)
	if err != nil {
		return nil, err
	}
	syntax, err := structured.NewSyntax(m, format)
	if err != nil {
		return nil, err
	}
	e, err := engine.New(m, sl.engine)
	if err != nil {
		return nil, err
	}
	return &served{id: sl.id, m: m, e: e, tok: tok, format: format, date: now, metrics: &sl.metrics, syntax: syntax}, nil
}

// Add serves a model under an id, with an engine of the given options. The caller
// closes the model after Drain.
func (s *Server) Add(id string, m *model.Model, o engine.Options) error {
	sl := &slot{id: id, engine: o}
	v, err := newServed(sl, m)
	if err != nil {
		return fmt.Errorf("serve model %s: %w", id, err)
	}
	sl.loaded = v
	if err := sl.size(v); err != nil {
		v.e.Close()
		return fmt.Errorf("serve model %s: %w", id, err)
	}
	if err := s.models.add(sl); err != nil {
		v.e.Close()
		return err
	}
	return nil
}

// AddOnDemand serves a model that is opened when a request names it, and closed when
// none has used it for [Options.UnloadAfter] or its memory is needed for another
// ([Options.MaxModelBytes]). Requests wait until it is open. The server closes the
// model that open returns.
func (s *Server) AddOnDemand(id string, open func(context.Context) (*model.Model, error), o engine.Options) error {
	return s.models.add(&slot{id: id, open: open, engine: o})
}

func (ms *models) add(sl *slot) error {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.byID[sl.id] != nil {
		return fmt.Errorf("serve model %s: there is one of this name", sl.id)
	}
	sl.created = time.Now().Unix()
	if sl.loaded != nil {
		ms.bytes += sl.bytes
	}
	ms.byID[sl.id] = sl
	ms.order = append(ms.order, sl)
	return nil
}

// size records what a loaded model takes.
func (sl *slot) size(v *served) error {
	sl.bytes, sl.maxLen = v.m.WeightBytes()+sl.engine.MaxBytes, v.e.MaxTokens()
	var err error
	sl.block, err = newCacheBlock(v.m, sl.engine)
	return err
}

// cacheBlock is what vLLM calls a block: a page of every head of every layer.
type cacheBlock struct{ entries, count int64 }

// newCacheBlock finds the entries of a page, and how many blocks the limit on caches
// has room for; 0 without a limit.
func newCacheBlock(m *model.Model, o engine.Options) (b cacheBlock, err error) {
	so := model.SessionOptions{CacheType: o.CacheType, CacheValues: o.CacheValues, PageEntries: o.PageEntries}
	one, err := m.CacheEstimate(so, model.Lengths{Rest: 1})
	for b.entries = 16; err == nil && 2*b.entries <= int64(m.Config().MaxPositions); b.entries *= 2 {
		var need model.CacheEstimate
		if need, err = m.CacheEstimate(so, model.Lengths{Rest: int(2 * b.entries)}); need.Held > one.Held {
			break
		}
	}
	if o.MaxBytes > 0 && err == nil {
		b.count = o.MaxBytes / one.Held
	}
	return b, err
}

// list returns the models in order.
func (ms *models) list() []*slot {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.order[:len(ms.order):len(ms.order)]
}

// find returns the slot of an id, or of the first model if the id is empty; nil if
// there is none.
func (ms *models) find(id string) *slot {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if id == "" && len(ms.order) > 0 {
		return ms.order[0]
	}
	return ms.byID[id]
}

// notify wakes those who wait for a change. The caller holds the mutex.
func (ms *models) notify() {
	close(ms.changed)
	ms.changed = make(chan struct{})
}

// acquire returns a loaded model, which stays loaded until release is called.
func (ms *models) acquire(ctx context.Context, sl *slot) (v *served, release func(), err error) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for sl.loaded == nil || sl.busy != nil {
		switch {
		case ms.closing:
			return nil, nil, engine.ErrClosed
		case sl.waiting >= maxLoadWaiters:
			return nil, nil, fmt.Errorf("%w: %d requests wait for the model %s to be loaded", engine.ErrQueueFull, sl.waiting, sl.id)
		case sl.busy == nil:
			sl.busy, sl.err = make(chan struct{}), nil
			go ms.load(sl)
		}
		wait := sl.busy
		sl.waiting++
		ms.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		ms.mu.Lock()
		sl.waiting--
		switch {
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case sl.err != nil && sl.busy == nil:
			return nil, nil, sl.err
		}
	}
	sl.holds++
	return sl.loaded, sync.OnceFunc(func() { ms.release(sl) }), nil
}

// release ends a hold. The last one starts the timer that unloads the model.
func (ms *models) release(sl *slot) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	sl.holds--
	if sl.holds > 0 {
		return
	}
	ms.notify()
	ms.rest(sl)
}

// rest starts the timer that unloads an unused model. The caller holds the mutex.
func (ms *models) rest(sl *slot) {
	sl.used = time.Now()
	switch {
	case ms.idle <= 0 || sl.open == nil:
	case sl.timer == nil:
		sl.timer = time.AfterFunc(ms.idle, func() { ms.unloadIdle(sl) })
	default:
		sl.timer.Reset(ms.idle)
	}
}

func (ms *models) unloadIdle(sl *slot) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	switch {
	case sl.holds > 0:
	case sl.waiting > 0: // it was loaded for them
		ms.rest(sl)
	case time.Since(sl.used) >= ms.idle:
		ms.unload(sl)
	}
}

// whileUnloaded calls do while the model is not open, and keeps it from being opened
// meanwhile. It reports false, and does nothing, if the model is open, or being opened
// or closed.
func (ms *models) whileUnloaded(sl *slot, do func()) bool {
	ms.mu.Lock()
	if sl.loaded != nil || sl.busy != nil || ms.closing {
		ms.mu.Unlock()
		return false
	}
	sl.busy, sl.err = make(chan struct{}), nil
	ms.mu.Unlock()
	defer func() {
		ms.mu.Lock()
		defer ms.mu.Unlock()
		close(sl.busy)
		sl.busy = nil
		ms.notify()
	}()
	do()
	return true
}

// load opens a model, making room for it, and closes sl.busy at the end.
func (ms *models) load(sl *slot) {
	v, err := ms.loadInto(sl)
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if err != nil {
		ms.log.Error("load model", "model", sl.id, "error", err)
		sl.err = err
	} else {
		ms.log.Info("model loaded", "model", sl.id, "bytes", sl.bytes)
		sl.loaded = v
		ms.rest(sl) // those that waited for it may be gone
	}
	close(sl.busy)
	sl.busy = nil
	ms.notify()
}

func (ms *models) loadInto(sl *slot) (*served, error) {
	// If the size is known from an earlier load, room is made first.
	known := sl.bytes
	if err := ms.reserve(known); err != nil {
		return nil, err
	}
	m, err := sl.open(ms.ctx)
	if err != nil {
		ms.giveBack(known)
		return nil, err
	}
	v, err := newServed(sl, m)
	if err == nil {
		ms.mu.Lock()
		err = sl.size(v)
		ms.mu.Unlock()
		if more := sl.bytes - known; more != 0 && err == nil {
			err = ms.reserve(more)
		}
		if err != nil {
			v.e.Close()
		}
	}
	if err != nil {
		ms.giveBack(known)
		return nil, errors.Join(err, m.Close())
	}
	return v, nil
}

// reserve takes n bytes of the limit. If necessary, it unloads models that nobody uses,
// the least recently used first, and waits for those in use.
func (ms *models) reserve(n int64) error {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for ms.bytes+n > ms.limit {
		var oldest *slot
		fixed := int64(0) // bytes that will never be freed
		for _, sl := range ms.order {
			switch {
			case sl.open == nil:
				fixed += sl.bytes
			case sl.loaded != nil && sl.holds == 0 && sl.waiting == 0 && sl.busy == nil && (oldest == nil || sl.used.Before(oldest.used)):
				oldest = sl
			}
		}
		if fixed+n > ms.limit {
			return &modelSizeError{needed: n, limit: ms.limit - fixed}
		}
		if oldest != nil {
			ms.unload(oldest)
		}
		changed := ms.changed
		ms.mu.Unlock()
		select {
		case <-changed:
		case <-ms.ctx.Done():
		}
		ms.mu.Lock()
		if ms.ctx.Err() != nil {
			return engine.ErrClosed
		}
	}
	ms.bytes += n
	return nil
}

func (ms *models) giveBack(n int64) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.bytes -= n
	ms.notify()
}

// modelSizeError says that a model can never be loaded.
type modelSizeError struct{ needed, limit int64 }

func (e *modelSizeError) Error() string {
	return fmt.Sprintf("its weights and caches take up to %d bytes, the limit for models is %d", e.needed, e.limit)
}

// unload unloads a model that nobody uses. The caller holds the mutex; what takes time
// is done without it.
func (ms *models) unload(sl *slot) {
	if sl.loaded == nil || sl.busy != nil || sl.open == nil {
		return
	}
	v := sl.loaded
	sl.loaded, sl.leaving, sl.busy = nil, v, make(chan struct{})
	go func() {
		v.e.Close()
		past := v.e.Stats()
		v.m.Close()
		ms.mu.Lock()
		defer ms.mu.Unlock()
		sl.past, sl.leaving = withPast(past, sl.past), nil
		ms.bytes -= sl.bytes
		ms.log.Info("model unloaded", "model", sl.id)
		close(sl.busy)
		sl.busy = nil
		ms.notify()
	}()
}

// stats returns the figures of a model over all engines it has had.
func (ms *models) stats(sl *slot) (st engine.Stats, loaded bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	switch {
	case sl.loaded != nil:
		return withPast(sl.loaded.e.Stats(), sl.past), true
	case sl.leaving != nil: // counters never go back
		return withPast(sl.leaving.e.Stats(), sl.past), false
	}
	return withPast(engine.Stats{}, sl.past), false
}

func (ms *models) blockOf(sl *slot) cacheBlock {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return sl.block
}

// withPast adds the counts of earlier engines.
func withPast(st, past engine.Stats) engine.Stats {
	st.PromptTokens += past.PromptTokens
	st.CachedTokens += past.CachedTokens
	st.GeneratedTokens += past.GeneratedTokens
	st.Completed += past.Completed
	st.ReachedLength += past.ReachedLength
	st.Cancelled += past.Cancelled
	st.Failed += past.Failed
	st.Preempted += past.Preempted
	st.Steps += past.Steps
	st.EvictedEntries += past.EvictedEntries
	st.Drafted += past.Drafted
	st.Accepted += past.Accepted
	st.LoadedFiles += past.LoadedFiles
	st.PeakBytes = max(st.PeakBytes, past.PeakBytes)
	return st
}

// drain ends all engines as engine.Drain does, and closes the models that were opened
// on demand.
func (ms *models) drain(ctx context.Context) error {
	ms.mu.Lock()
	ms.closing = true
	order := ms.order
	ms.mu.Unlock()
	ms.cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(order))
	for i, sl := range order {
		wg.Go(func() {
			ms.mu.Lock()
			for sl.busy != nil {
				busy := sl.busy
				ms.mu.Unlock()
				<-busy
				ms.mu.Lock()
			}
			v := sl.loaded
			ms.mu.Unlock()
			if v == nil {
				return
			}
			errs[i] = v.e.Drain(ctx)
			ms.mu.Lock()
			ms.unload(sl)
			busy := sl.busy
			ms.mu.Unlock()
			if busy != nil {
				<-busy
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// holds are the models and the memory that a request uses until it is over.
type holds struct {
	charge *charge
	turn   *turns.Turn // for what is done before its answer begins

	mu       sync.Mutex
	releases []func()
	maxLen   int
	model    string           // the last one's name
	streams  []*engine.Stream // whose usage is logged
}

type holdsKey struct{}

// newHolds returns the holds of a request of an owner.
func (s *Server) newHolds(owner string) *holds {
	return &holds{charge: &charge{a: &s.account, owner: owner}, turn: turns.New(owner)}
}

func holdsOf(ctx context.Context) *holds { return ctx.Value(holdsKey{}).(*holds) }

// end releases the models. It returns what to log about the request.
func (h *holds) end() []any {
	h.turn.Give()
	h.mu.Lock()
	defer h.mu.Unlock()
	var sum usage
	for _, s := range h.streams {
		s.Close()
		sum.add(s.Usage())
	}
	for _, release := range h.releases {
		release()
	}
	h.releases = nil
	h.charge.end()
	if h.model == "" {
		return nil
	}
	out := []any{"model", h.model}
	if len(h.streams) > 0 {
		out = append(out, "prompt_tokens", sum.Prompt, "cached_tokens", sum.Details.Cached, "completion_tokens", sum.Completion)
	}
	return out
}

// served returns a model for the request of ctx, which stays loaded as long as the
// request lasts.
func (s *Server) served(ctx context.Context, id string) (*served, error) {
	sl := s.models.find(id)
	if sl == nil {
		return nil, notFound("model_not_found", "the model %q does not exist", id)
	}
	h := holdsOf(ctx)
	had := h.turn.Give() // others need not wait for the model
	v, release, err := s.models.acquire(ctx, sl)
	if err != nil {
		return nil, loadError(id, err)
	}
	h.mu.Lock()
	h.releases, h.maxLen, h.model = append(h.releases, release), v.e.MaxTokens(), v.id
	h.mu.Unlock()
	if had {
		err = h.turn.Take(ctx)
	}
	return v, err
}

// loadError returns what clients are told about a model that was not loaded: not where
// its files are.
func loadError(id string, err error) error {
	var size *modelSizeError
	switch {
	case errors.As(err, &size):
		return &apiError{status: http.StatusInsufficientStorage, Type: "invalid_request_error", Code: "model_too_large", Message: fmt.Sprintf("load the model %s: %v", id, size)}
	case errors.Is(err, engine.ErrClosed) || errors.Is(err, engine.ErrQueueFull) || errors.Is(err, context.Canceled):
		return err
	}
	return &apiError{status: http.StatusInternalServerError, Type: "server_error", Code: "model_not_loaded", Message: fmt.Sprintf("the model %s could not be loaded; the log of the server says why", id)}
}

// model returns the model that a request names, which stays loaded as long as the
// request lasts.
func (s *Server) model(f *fields, required bool) (*served, error) {
	id := f.str("model")
	if f.err != nil {
		return nil, f.err
	}
	if id == "" && required {
		return nil, invalid("model", "model is missing")
	}
	return s.served(f.ctx, id)
}

// modelEntry is a model in a list.
type modelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	MaxLen  int    `json:"max_model_len,omitempty"` // unknown until it is first loaded
	Loaded  bool   `json:"loaded"`
}

func (ms *models) entry(sl *slot) modelEntry {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return modelEntry{ID: sl.id, Object: "model", Created: sl.created, OwnedBy: "lukv", MaxLen: sl.maxLen, Loaded: sl.loaded != nil}
}

func (s *Server) listModels(w http.ResponseWriter, _ *http.Request) error {
	list := []modelEntry{}
	for _, sl := range s.models.list() {
		list = append(list, s.models.entry(sl))
	}
	return writeJSON(w, map[string]any{"object": "list", "data": list})
}

func (s *Server) getModel(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	sl := s.models.find(id)
	if sl == nil || id == "" {
		return notFound("model_not_found", "the model %q does not exist", id)
	}
	return writeJSON(w, s.models.entry(sl))
}

// newModels returns an empty registry.
func newModels(o Options) *models {
	ms := &models{log: o.Log, limit: o.MaxModelBytes, idle: o.UnloadAfter, byID: map[string]*slot{}, changed: make(chan struct{})}
	if ms.limit <= 0 {
		ms.limit = math.MaxInt64
	}
	ms.ctx, ms.cancel = context.WithCancel(context.Background())
	return ms
}
