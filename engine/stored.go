package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/lukv/lukv/model"
)

// load is a file being read for the requests that wait for it.
type load struct {
	file   *stored
	jobs   []*job
	cancel func() // when no job waits any more
	held   int64  // bytes reserved for requests that have gone away since

	asked *job // whose prompt is read to its end at the same time, nil if none's is
}

// write is a session being written to a file.
type write struct {
	file    *stored
	session *model.Session // its own
	job     *job           // that waits for it, nil if none does
	held    int64          // bytes reserved for it

	background bool // no request ever waited for it
}

// post hands fn to the loop to run.
func (e *Engine) post(fn func()) {
	e.mu.Lock()
	e.callbacks = append(e.callbacks, fn)
	e.mu.Unlock()
	e.poke()
}

// startLoad makes a request wait for a file to be loaded, of which it reuses n tokens. It
// reports false if there is no room for all that the file holds.
func (e *Engine) startLoad(j *job, f *stored, n int) bool {
	if e.o.MaxBytes > 0 && f.bytes > j.reserved && !e.reserve(j, f.bytes-j.reserved) {
		return false
	}
	e.disk.touch(f)
	if f.load == nil {
		ctx, cancel := context.WithCancel(context.Background()) // whoever asked first may leave before the others
		l := &load{file: f, cancel: cancel}
		var question []int32
		if e.readsBeside(j, f, n) {
			l.asked, question = j, j.req.Prompt[n:]
		}
		f.load = l
		e.pendingIO++
		o := j.sessionOptions()
		go func() {
			saved, asked, err := e.disk.read(ctx, f, e.m, o, question)
			e.post(func() { e.loaded(l, saved, asked, err) })
		}()
	}
	j.load = f.load
	j.load.jobs = append(j.load.jobs, j)
	return true
}

// readsBeside reports whether the rest of a prompt is read while the file with its
// first n tokens is loading: if the file has all that is compressed, the rest is short,
// nobody else waits for the processors, and the session can go back to the file's end,
// which others will ask for.
func (e *Engine) readsBeside(j *job, f *stored, n int) bool {
	rest := len(j.req.Prompt) - n
	return f.label == j.label && len(e.running) == 0 && n == len(f.tokens) && rest > 0 && rest <= e.chunk &&
		!j.req.Echo && !e.disk.windowed && !f.renumbered
}

// loaded gives the requests that wait for a file what [disk.read] returned.
func (e *Engine) loaded(l *load, saved, asked *model.Session, err error) {
	for _, s := range []*model.Session{saved, asked} {
		if s != nil {
			defer s.Close()
		}
	}
	l.cancel()
	e.pendingIO--
	if l.file.load == l { // otherwise it was cancelled
		l.file.load = nil
	}
	e.giveDetached(l.held)
	switch {
	case errors.Is(err, context.Canceled): // nobody waits any more
	case err != nil && passing(err):
		e.o.Log.Warn("stored prefix not read", "file", l.file.name, "error", err)
	case err != nil:
		if e.disk.files[l.file.name] == l.file { // not replaced by another since
			e.disk.drop(l.file)
			e.disk.damaged(l.file.name, err)
			e.stats.stored.Store(e.disk.bytes)
		}
	default:
		e.stats.loaded.Add(1)
	}
	if saved != nil {
		e.cache.add(l.file.label, l.file.context, l.file.tokens, saved, e.room())
		e.stats.cached.Store(e.cache.bytes)
	}
	for _, j := range l.jobs {
		j.load, j.tried = nil, true
		if more := j.reserved - j.need; more > 0 { // the file needed more
			j.reserved = j.need
			e.give(more)
		}
		if j == l.asked && asked != nil {
			if f, err := asked.Fork(); err == nil {
				j.begin(f, len(j.req.Prompt), len(l.file.tokens))
				continue
			}
		}
		if saved != nil {
			if n := j.usable(l.file.label, common(l.file.tokens, j.req.Prompt), len(l.file.tokens), saved.Logits() != nil); n > 0 {
				if f := forkAt(saved, n, len(l.file.tokens)); f != nil {
					j.begin(f, n, n)
					continue
				}
			}
		}
		if err := j.compute(); err != nil {
			e.fail(j, err)
		}
	}
}

// away detaches a departing request from its load or write in progress. The bytes in use
// there stay reserved until that is over.
func (e *Engine) away(j *job) {
	if l := j.load; l != nil {
		j.load = nil
		if i := slices.Index(l.jobs, j); i >= 0 {
			l.jobs = slices.Delete(l.jobs, i, i+1)
		}
		l.held += j.reserved
		e.detached += j.reserved
		j.reserved = 0
		if len(l.jobs) == 0 {
			l.file.load = nil // who comes now loads it again
			l.cancel()
		}
	}
	if w := j.write; w != nil {
		j.write, w.job = nil, nil
		w.held += j.reserved
		e.detached += j.reserved
		j.reserved = 0
	}
}

// give gives back reserved bytes.
func (e *Engine) give(n int64) {
	e.reserved -= n
	e.stats.reserved.Store(e.reserved)
}

// giveDetached gives back bytes that were reserved for a file which no request waits for.
func (e *Engine) giveDetached(n int64) {
	e.detached -= n
	e.give(n)
}

// waitForFiles waits until a load or a write is over, which may free bytes.
func (e *Engine) waitForFiles() {
	for before := e.pendingIO; e.pendingIO == before; {
		<-e.wake
		e.mu.Lock()
		e.runCallbacks()
		e.mu.Unlock()
	}
	e.poke()
}

// runCallbacks runs the callbacks. The caller holds the mutex.
func (e *Engine) runCallbacks() {
	for _, fn := range e.callbacks {
		fn()
	}
	e.callbacks = nil
}

// persist writes the cache of a prompt that has been read to disk, if it belongs there
// and is missing. It reports whether the request waits for that, as one with PromptOnly
// does. Other requests have compressed contexts, which cost more to compute and less to
// store, written in the background, one at a time; the rest is written when the engine
// is closed.
func (e *Engine) persist(j *job) bool {
	if e.disk == nil || !j.cacheable() {
		return false
	}
	has := e.disk.has(j.label, j.req.Prompt)
	s := j.session
	w := &write{}
	switch {
	case j.req.PromptOnly:
		if has == len(j.req.Prompt) {
			return false
		}
		w.job = j
	case j.req.Context == 0 || has >= j.req.Context || e.writing:
		return false
	default:
		bytes := s.Stats().CacheBytes
		if e.o.MaxBytes > 0 && e.reserved+e.cache.bytes+bytes > e.o.MaxBytes {
			return false
		}
		var err error
		if s, err = s.Fork(); err != nil {
			return false
		}
		w.held = bytes
	}
	f := e.toStore(j.label, j.req.Context, j.req.Prompt, s)
	if f == nil {
		if w.job == nil {
			s.Close()
		}
		return false
	}
	w.file, w.session = f, s
	if w.job != nil {
		j.session, j.write = nil, w
	} else {
		w.background, e.writing = true, true
		e.reserved += w.held
		e.detached += w.held
		e.stats.reserved.Store(e.reserved)
	}
	e.pendingIO++
	e.writes = append(e.writes, w)
	e.startWrites()
	return w.job != nil
}

// startWrites starts the writes for which the store has room beside those in progress, in
// order.
func (e *Engine) startWrites() {
	for len(e.writes) > 0 && e.disk.room(e.writes[0].file.bytes) {
		w := e.writes[0]
		e.writes = e.writes[1:]
		e.disk.pending += w.file.bytes
		go func() {
			err := e.disk.write(w.file, w.session)
			e.post(func() { e.written(w, err) })
		}()
	}
}

// toStore describes a session's file; nil if it is larger than the whole store.
func (e *Engine) toStore(label string, context int, tokens []int32, s *model.Session) *stored {
	size, err := s.SavedSize(label)
	if err != nil || e.disk.limit > 0 && size > e.disk.limit {
		e.o.Log.Info("prefix not stored", "tokens", len(tokens), "bytes", size, "limit", e.disk.limit, "error", err)
		return nil
	}
	return &stored{name: nameOf(label, tokens), label: label, tokens: tokens, context: context, bytes: size, renumbered: s.Len() != len(tokens)}
}

// written handles the end of a write, successful or not.
func (e *Engine) written(w *write, err error) {
	e.pendingIO--
	if w.background {
		e.writing = false
	}
	w.session.Close()
	e.giveDetached(w.held)
	e.disk.pending -= w.file.bytes
	e.store(w.file, err)
	e.startWrites()
	if j := w.job; j != nil {
		j.write = nil
		e.leave(j)
		e.finish(j, nil)
	}
}

// store adds a written file, for which there was room, to the index, replacing those that
// offer nothing more.
func (e *Engine) store(f *stored, err error) {
	if err != nil {
		e.o.Log.Warn("prefix not stored", "tokens", len(f.tokens), "bytes", f.bytes, "error", err)
		return
	}
	if tree := e.disk.trees[f.label]; tree != nil {
		for _, old := range tree.along(f.tokens) {
			if old.name != f.name && superseded(len(old.tokens), len(f.tokens), f.context, e.disk.windowed) {
				e.disk.remove(old)
			}
		}
	}
	e.disk.add(f)
	e.disk.touch(f)
	e.stats.stored.Store(e.disk.bytes)
}

// storeCached writes what is in memory but not on disk, as the engine ends. The most
// recently used is written last and stays longest.
func (e *Engine) storeCached() {
	if e.disk == nil {
		return
	}
	for at := e.cache.used.Front(); at != nil; at = at.Next() {
		en := at.Value.(*entry)
		if e.disk.has(en.label, en.tokens) == len(en.tokens) {
			continue
		}
		if f := e.toStore(en.label, en.context, en.tokens, en.session); f != nil && e.disk.room(f.bytes) {
			e.store(f, e.disk.write(f, en.session))
		}
	}
}

// StoredPrefix returns a name, for [ForgetStored], of what the store has of a request's
// prompt. The name stays valid after the engine is closed.
func (e *Engine) StoredPrefix(r Request) (string, error) {
	j, err := e.named(r)
	if err != nil {
		return "", err
	}
	return storedPrefix(folderOf(e.m), j.label, j.req.Prompt), nil
}

// named checks a request and computes its labels.
func (e *Engine) named(r Request) (*job, error) {
	if err := e.check(&r); err != nil {
		return nil, err
	}
	j := &job{e: e, req: r}
	return j, j.name()
}

// Forget removes a request's prompt, and all prompts that continue it, from the prefix cache
// and the store, under its policy and salt. Protected tokens, which have an entry of their
// own, stay. It does not wait for requests in progress, which may add the prompt again.
func (e *Engine) Forget(r Request) error {
	j, err := e.named(r)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	e.post(func() {
		defer close(done)
		e.cache.forget(j.label, r.Prompt)
		e.stats.cached.Store(e.cache.bytes)
		if e.disk != nil {
			e.disk.forget(j.label, r.Prompt)
			e.stats.stored.Store(e.disk.bytes)
		}
	})
	select {
	case <-done:
		return nil
	case <-e.stopped:
		return ErrClosed
	}
}
