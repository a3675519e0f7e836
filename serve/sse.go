package serve

import (
	"context"
	"errors"
	"io"
	"iter"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lukv/lukv/engine"
)

// requestContext says who asks.
type requestContext struct {
	ctx context.Context
	id  string
	key string
}

func contextOf(r *http.Request) requestContext {
	return requestContext{ctx: r.Context(), id: name(r), key: key(r)}
}

const (
	pingEvery     = 15 * time.Second       // while a long prompt is read: keeps proxies awake
	progressEvery = 500 * time.Millisecond // if a client wants to see it
	writeTimeout  = 30 * time.Second       // for what is written at once, and for all waits of a stream for memory
)

// eventStream writes server-sent events. Events that a client has not read wait in memory, so
// that a slow client does not keep its request in the engine.
type eventStream struct {
	w      http.ResponseWriter
	out    *http.ResponseController
	place  connPlace
	charge *charge
	prefix string // precedes chunks
	after  string // follows them
	bare   bool   // lines of JSON alone
	err    error  // why the stream ended; what is sent after it is dropped

	progress func() // writes the progress of the prompt, until the answer begins; nil: pings instead

	// held is for how long memory for events was missing, in all: a client that reads a little
	// every now and then must not keep its place in the engine.
	held time.Duration

	mu      sync.Mutex
	waiting [][]byte // not yet written, in pieces of about maxWrite bytes
	size    int64    // bytes of waiting, and of what is being written
	counted int64    // of these, in the account
	failed  error    // of writing
	ended   bool     // nothing more will be sent
	sent    chan struct{}
	written chan struct{}
	over    chan struct{} // closed when everything has been written
}

const (
	// freeEvents is how much of each stream waits without being counted: a client that
	// reads at once is not held up by those that do not.
	freeEvents = 64 << 10

	// maxWrite is about how much is written at once, for which a client has writeTimeout.
	maxWrite = 64 << 10
)

// errSlowClient ends a stream whose client reads too slowly.
var errSlowClient = errors.New("the client reads too slowly")

func newEventStream(w http.ResponseWriter, r *http.Request) *eventStream {
	return newStream(w, r, "text/event-stream", "\n\n")
}

// newLineStream returns a stream of lines of JSON instead of events.
func newLineStream(w http.ResponseWriter, r *http.Request) *eventStream {
	s := newStream(w, r, "application/x-ndjson", "\n")
	s.bare = true
	return s
}

func newStream(w http.ResponseWriter, r *http.Request, kind, after string) *eventStream {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	s := &eventStream{
		w: w, after: after, out: http.NewResponseController(w), place: placeOf(r), charge: holdsOf(r.Context()).charge,
		sent: make(chan struct{}, 1), written: make(chan struct{}, 1), over: make(chan struct{}),
	}
	go s.write()
	return s
}

// write writes events until the end of the stream.
func (s *eventStream) write() {
	defer close(s.over)
	for {
		text, more := s.next()
		if !more {
			return
		}
		if text == nil {
			<-s.sent
			continue
		}
		s.out.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := s.w.Write(text)
		if err == nil {
			err = s.out.Flush()
		}
		s.note(int64(len(text)), err)
	}
}

// next returns the next text to be written, nil if there is none yet. It reports false if
// there will be none.
func (s *eventStream) next() (text []byte, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || len(s.waiting) == 0 {
		return nil, s.failed == nil && !s.ended
	}
	text = s.waiting[0]
	s.waiting = s.waiting[1:]
	return text, true
}

// note notes that n bytes have been written, or why not.
func (s *eventStream) note(n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size -= n; err != nil {
		s.failed, s.waiting, s.size = err, nil, 0
	}
	s.charge.give(s.counted - min(s.counted, s.size))
	s.counted = min(s.counted, s.size)
	notify(s.written)
}

// notify wakes who waits for c, or the next one to do so.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// line sends a line and what follows it. If there is no memory for them, it waits until the
// client has read some of what was sent before, but not for long: meanwhile the request
// keeps its place in the engine.
func (s *eventStream) line(text string) {
	for s.err == nil && !s.put(text) {
		began := time.Now()
		select {
		case <-s.written:
		case <-time.After(max(0, writeTimeout-s.held)):
		}
		if s.held += time.Since(began); s.held >= writeTimeout {
			s.err = errSlowClient
		}
	}
	notify(s.sent)
}

// put adds a line and what follows it to what is to be written, if there is memory for them.
func (s *eventStream) put(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int64(len(text) + len(s.after))
	switch {
	case s.failed != nil:
		s.err = s.failed
		return false
	case s.size == 0 || s.size+n <= freeEvents:
	case s.charge.take(n, forAnswers) != nil:
		return false
	default:
		s.counted += n
	}
	s.size += n
	last := len(s.waiting) - 1
	if last < 0 || int64(len(s.waiting[last]))+n > maxWrite {
		s.waiting = append(s.waiting, nil)
		last++
	}
	s.waiting[last] = append(append(s.waiting[last], text...), s.after...)
	return true
}

// close ends the stream and waits until the client has read it, as long as for any answer. It
// returns why the stream was cut, nil if it is whole, and may be called again.
func (s *eventStream) close() error {
	s.mu.Lock()
	s.ended = true
	if s.err != nil {
		s.failed = s.err
	}
	s.mu.Unlock()
	notify(s.sent)
	defer s.place.wait()()
	select {
	case <-s.over:
	case <-time.After(maxAnswerTime):
		s.mu.Lock()
		s.failed = errSlowClient
		s.mu.Unlock()
		s.out.SetWriteDeadline(time.Now())
		<-s.over
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// send writes a chunk.
func (s *eventStream) send(v any) {
	text := strings.Builder{}
	if !s.bare {
		text.WriteString(s.prefix + "data: ")
	}
	if err := encode(&text, v); err != nil {
		s.err = asError(err, 0).report(s.w)
		return
	}
	s.line(strings.TrimSuffix(text.String(), "\n"))
}

// fail ends the stream with an error, without [DONE].
func (s *eventStream) fail(e *apiError) { s.send(map[string]any{"error": e.report(s.w)}) }

func (s *eventStream) done() { s.line("data: [DONE]") }

// events yields the events of an answer and sends pings to the client in
// between.
func (s *eventStream) events(a *engine.Stream) iter.Seq2[engine.Event, error] {
	return func(yield func(engine.Event, error) bool) {
		for s.err == nil {
			wait := pingEvery
			if s.progress != nil {
				wait = progressEvery
			}
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			e, err := a.Next(ctx)
			cancel()
			switch {
			case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
				switch {
				case s.progress != nil:
					s.progress()
				case !s.bare:
					s.line(": ping")
				}
				continue
			case err == io.EOF:
				return
			}
			s.progress = nil
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// promptProgress is how much of a prompt has been read, in tokens.
type promptProgress struct {
	Total     int   `json:"total"`
	Cache     int   `json:"cache"`     // kept from an earlier request
	Processed int   `json:"processed"` // including these
	Time      int64 `json:"time_ms"`   // since the request
}

func newProgress(a *engine.Stream, total int, started time.Time) *promptProgress {
	return &promptProgress{
		Total: total, Cache: a.Cached(), Processed: int(math.Round(a.Progress() * float64(total))),
		Time: time.Since(started).Milliseconds(),
	}
}
