package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// apiError is an error as clients see it: an object that always has all four keys.
type apiError struct {
	status  int
	retry   int // seconds after which a retry may succeed; 0: none will
	Message string
	Type    string
	Param   string
	Code    string

	cause error // of an internal error: only for the log
}

func (e *apiError) Error() string { return e.Message }

// orNull returns a text, or null if it is empty.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// MarshalJSON returns the value of the key "error".
func (e *apiError) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{
		"message": e.Message, "type": e.Type, "param": orNull(e.Param), "code": orNull(e.Code),
	})
}

// invalid returns the error of a mistake in a request; param names the field.
func invalid(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, Type: "invalid_request_error", Param: param, Message: fmt.Sprintf(format, args...)}
}

func notFound(code, format string, args ...any) *apiError {
	e := invalid("", format, args...)
	e.status, e.Code = http.StatusNotFound, code
	return e
}

// asError turns an error from the layers below into one for clients.
func asError(err error, limit int) *apiError {
	var api *apiError
	var large *engine.TooLargeError
	var memory *engine.MemoryError
	var long *tokenizer.TooLongError
	var format *structured.FormatError
	var raised *chat.RaisedError
	var template *chat.Error
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &long) || errors.Is(err, model.ErrContextFull):
		// Clients recognise these words.
		text := err.Error()
		if long != nil {
			text = fmt.Sprintf("a text of %d bytes has more", long.Bytes)
		}
		e := invalid("messages", "This model's maximum context length is %d tokens: %s", limit, text)
		e.Code = "context_length_exceeded"
		return e
	case errors.As(err, &large):
		return &apiError{status: http.StatusInsufficientStorage, Type: "invalid_request_error", Code: "cache_budget_exceeded", Message: err.Error()}
	case errors.As(err, &format):
		return invalid("response_format", "%v", format)
	case errors.As(err, &memory) && memory.InUse == 0:
		return &apiError{status: http.StatusBadRequest, Type: "invalid_request_error", Code: "memory_limit",
			Message: fmt.Sprintf("the answers asked for need up to %d bytes besides their KV caches, the limit is %d", memory.Needed, memory.Limit)}
	case errors.As(err, &memory):
		return &apiError{status: http.StatusServiceUnavailable, retry: 2, Type: "server_error", Code: "memory_limit", Message: err.Error()}
	case errors.Is(err, engine.ErrQueueFull):
		return &apiError{status: http.StatusTooManyRequests, retry: 2, Type: "rate_limit_error", Code: "queue_full", Message: err.Error()}
	case errors.Is(err, engine.ErrClosed):
		return &apiError{status: http.StatusServiceUnavailable, retry: 5, Type: "server_error", Code: "shutting_down", Message: "the server is shutting down"}
	case errors.As(err, &raised):
		return invalid("messages", "the chat template refuses the messages: %s", raised.Message)
	case errors.As(err, &template):
		return invalid("messages", "render the messages: %v", err)
	case errors.Is(err, dialog.ErrNoPlace):
		return invalid("context", "%v", err)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return &apiError{status: 499, Type: "server_error", Message: "the request was cancelled"}
	}
	return &apiError{status: http.StatusInternalServerError, Type: "server_error", Code: "internal_error", Message: "an internal error", cause: err}
}

// aboutText returns an error from reading a text; if the text is at fault, because it is
// too long or has no place in the prompt, the error names its field.
func aboutText(err error, limit int, param string) error {
	if bad := asError(err, limit); bad.Code == "context_length_exceeded" || errors.Is(err, dialog.ErrNoPlace) {
		bad.Param = param
		return bad
	}
	return err
}

// report writes the cause of an internal error, which may name files and memory, to the
// log. The error that it returns tells the client only where to find it there.
func (e *apiError) report(w http.ResponseWriter) *apiError {
	if e.cause == nil {
		return e
	}
	id := w.Header().Get("X-Request-Id")
	if out, ok := w.(*statusWriter); ok {
		out.log.Error("internal error", "id", id, "error", e.cause)
	}
	told := *e
	told.cause, told.Message = nil, fmt.Sprintf("%s; the log of the server has it under the request %s", e.Message, id)
	return &told
}

// write answers with the error.
func (e *apiError) write(w http.ResponseWriter) {
	e.head(w)
	w.WriteHeader(e.status)
	writeJSON(w, map[string]any{"error": e})
}

// writeError answers with the error in the form of the API that was called.
func writeError(w http.ResponseWriter, r *http.Request, e *apiError) {
	if p := r.URL.Path; p == "/v1/messages" || strings.HasPrefix(p, "/v1/messages/") {
		writeMessageError(w, e)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/api/") {
		writeOllamaError(w, e)
		return
	}
	e.write(w)
}

// head sets the headers of an error answer.
func (e *apiError) head(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(e.retry))
	} else {
		h.Set("X-Should-Retry", "false")
	}
}
