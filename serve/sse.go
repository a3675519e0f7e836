package serve

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/lukv/lukv/engine"
)

// requestContext is who asks.
type requestContext struct {
	ctx context.Context
	id  string
	key string
}

func contextOf(r *http.Request) requestContext {
	return requestContext{ctx: r.Context(), id: name(r), key: key(r)}
}

const (
	pingEvery    = 15 * time.Second // while a long prompt is read: keeps proxies awake
	writeTimeout = 30 * time.Second // for an event to a reader who does not read
)

// eventStream writes server-sent events.
type eventStream struct {
	w      http.ResponseWriter
	out    *http.ResponseController
	prefix string // in front of chunks
	err    error
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

// events yields the events of an answer, with pings to the reader in between.
func (s *eventStream) events(a *engine.Stream) iter.Seq2[engine.Event, error] {
	return func(yield func(engine.Event, error) bool) {
		for s.err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), pingEvery)
			e, err := a.Next(ctx)
			cancel()
			switch {
			case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
				s.line(": ping")
				continue
			case err == io.EOF:
				return
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}
