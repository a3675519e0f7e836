package chat

import (
	"errors"
	"fmt"
)

var (
	// ErrNoTemplate reports a checkpoint folder without a chat template, or
	// without one of the asked name. Callers fall back to plain text.
	ErrNoTemplate = errors.New("no chat template")

	// ErrLimit reports that a template went beyond one of its Limits.
	ErrLimit = errors.New("limit exceeded")

	// ErrUnsupported reports a feature of Jinja that this package does not
	// have. The error's text names it.
	ErrUnsupported = errors.New("not supported")
)

// Error is any failure of a template: a syntax error from Parse, or a failure
// while rendering. Err holds the cause for errors.Is and errors.As.
type Error struct {
	Template string // name given to Parse
	Line     int    // 1-based line of the template's source; 0 if there is none
	Err      error
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("chat template %s: %v", e.Template, e.Err)
	}
	return fmt.Sprintf("chat template %s: line %d: %v", e.Template, e.Line, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// RaisedError is the cause when a template called raise_exception: it refuses
// the conversation it was given. Message is the template's own text.
type RaisedError struct {
	Message string
}

func (e *RaisedError) Error() string { return "raised by the template: " + e.Message }

// failure carries an error up to Parse or Execute. Every operation of the
// language can fail, and nothing inside an expression handles failures, so they
// travel as panics of this one type, which never leave the package.
type failure struct{ err error }

func failf(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

// limitf fails with ErrLimit.
func limitf(format string, args ...any) {
	panic(failure{fmt.Errorf("%w: %s", ErrLimit, fmt.Sprintf(format, args...))})
}

// unsupportedf fails with ErrUnsupported.
func unsupportedf(format string, args ...any) {
	panic(failure{fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrUnsupported)})
}

// rescue turns a failure into an error for the named template. Use it deferred.
func rescue(name string, line *int, err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = &Error{Template: name, Line: *line, Err: p.err}
	default:
		panic(p)
	}
}
