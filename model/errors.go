package model

import (
	"errors"

	"github.com/lukv/lukv/model/arch"
)

// ErrUnsupported says that a checkpoint is of a kind that cannot run; see [arch.ErrUnsupported].
var ErrUnsupported = arch.ErrUnsupported

// Errors that callers branch on. They come wrapped, with what was attempted.
var (
	// ErrClosed is returned by every use of a closed model or session.
	ErrClosed = errors.New("closed")

	// ErrBusy is returned when a session is used while another call on it is in
	// progress: it belongs to one goroutine at a time. The call has done
	// nothing.
	ErrBusy = errors.New("in use by another call")

	// ErrContextFull says that tokens would not fit into the session's context.
	// The session is unchanged: shorten the input, or truncate the session.
	ErrContextFull = errors.New("context full")

	// ErrPrefilling says that a session can do nothing else until its prefill in
	// pieces is done or closed; see Session.StartPrefill.
	ErrPrefilling = errors.New("a prefill in pieces is not done")

	// ErrNotObserved says that a metric looks at queries of a span that have passed by
	// and cannot be computed again, for example because sliding windows have moved on, or
	// at queries of more than the span. The session is unchanged. Compress the span as it
	// is prefilled (Session.PrefillCompressed), or rank it by what is in the cache.
	ErrNotObserved = errors.New("queries have passed by")

	// ErrNoLogits says that there is nothing to sample from: the session has
	// not processed a token yet, or was truncated since.
	ErrNoLogits = errors.New("no logits: feed at least one token first")
)
