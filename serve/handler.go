package serve

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// Handler returns a handler for services with an engine of their own: an error that h
// returns before it has written anything becomes an answer in the form of the server's own
// endpoints, such as 400 for a wrong format, 404 for [NotFound], 413 for a large body, 429 for
// [engine.ErrQueueFull] and 507 for an [engine.TooLargeError]. The text of an error that is none
// of the client's goes to the log alone, and the client gets 500. An error that h returns later
// breaks the answer off.
func Handler(h func(w http.ResponseWriter, r *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := requestID(r.Header.Get("X-Request-Id"))
		w.Header().Set("X-Request-Id", id)
		out := &statusWriter{ResponseWriter: w, log: slog.Default()}
		err := h(out, r)
		switch {
		case err == nil:
		case out.status == 0:
			writeError(out, r, outsideError(err).report(out))
		default:
			slog.Warn("answer ended early", "id", id, "error", err)
			panic(http.ErrAbortHandler) // half an answer must not look complete
		}
	})
}

// outsideError returns the error of a service for its clients.
func outsideError(err error) *apiError {
	if errors.As(err, new(*http.MaxBytesError)) {
		return bodyError(err)
	}
	var long *tokenizer.TooLongError
	if errors.As(err, &long) {
		return asError(err, long.Limit)
	}
	if errors.Is(err, model.ErrContextFull) {
		e := invalid("", "%v", err)
		e.Code = "context_length_exceeded"
		return e
	}
	return asError(err, 0)
}

// NotFound returns an error that is answered with 404, see [Handler].
func NotFound(format string, args ...any) error {
	return notFound("not_found", format+" not found", args...)
}

// outside is the account of streams that do not belong to a server.
var outside = sync.OnceValue(func() *account {
	return &account{all: engine.ProcessAccount(), shared: func() bool { return false }, by: map[string]int64{}}
})

// StreamEvents answers a request with server-sent events: the result of value for each event of
// the engine's answer to q, as JSON (nil: none), and at the end [DONE]. Pings keep the connection
// alive while a long prompt is read. A client that leaves or does not read cancels q. An error
// before the first event is returned alone; later ones are sent, too, as
// {"error": {"message": ...}} without [DONE]. It is for services with an engine of their own.
func StreamEvents(w http.ResponseWriter, r *http.Request, e *engine.Engine, q engine.Request, value func(engine.Event) any) error {
	s, err := e.Submit(r.Context(), q)
	if err != nil {
		return err
	}
	defer s.Close()
	charge := &charge{a: outside()}
	defer charge.end()
	out := newEventStream(w, r.WithContext(context.WithValue(r.Context(), holdsKey{}, &holds{charge: charge})))
	defer out.close()
	for event, err := range out.events(s) {
		if err != nil {
			out.send(map[string]any{"error": map[string]string{"message": err.Error()}})
			return err
		}
		if v := value(event); v != nil {
			out.send(v)
		}
	}
	if out.err == nil {
		out.done()
	}
	return out.close()
}
