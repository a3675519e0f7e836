package serve

import (
	"context"
	"errors"
	"io"
	"iter"
	"math"
	"net/http"
	"strings"
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
	writeTimeout  = 30 * time.Second       // for an event to a client that does not read
)

// eventStream writes server-sent events.
type eventStream struct {
	w      http.ResponseWriter
	out    *http.ResponseController
	prefix string // precedes chunks
	err    error

	progress func() // writes the progress of the prompt, until the answer begins; nil: pings instead
}

func newEventStream(w http.ResponseWriter) *eventStream {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return &eventStream{w: w, out: http.NewResponseController(w)}
}

func (s *eventStream) line(text string) {
	if s.err != nil {
		return
	}
	s.out.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, s.err = io.WriteString(s.w, text+"\n\n"); s.err == nil {
		s.err = s.out.Flush()
	}
}

// send writes a chunk.
func (s *eventStream) send(v any) {
	text := strings.Builder{}
	text.WriteString(s.prefix + "data: ")
	if err := encode(&text, v); err != nil {
		s.err = err
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
				if s.progress != nil {
					s.progress()
				} else {
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
