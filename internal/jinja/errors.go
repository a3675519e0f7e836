package jinja

import (
	"errors"
	"fmt"
)

var (
	// ErrLimit reports that a template exceeded one of its Limits.
	ErrLimit = errors.New("limit exceeded")

	// ErrUnsupported reports a feature of Jinja that this package does not
	// have. The error's text names it.
	ErrUnsupported = errors.New("not supported")
)

// Error is any failure of a template: what Parse found wrong or refused, or a
// failure while rendering.
type Error struct {
	Template     string // name given to Parse
	Line, Column int    // 1-based position in the source, the column in characters; 0 if there is none
	Err          error
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("template %s: %v", e.Template, e.Err)
	}
	return fmt.Sprintf("template %s: line %d, column %d: %v", e.Template, e.Line, e.Column, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// RaisedError is the cause when a template calls raise_exception: it refuses
// the input it was given. Message is the template's own text.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return "raised by the template: " + e.Message }

// pos is a position in a template's source; line and column count from 1.
type pos struct{ line, col int32 }

// failure carries an error up to Parse or Render. Every operation of the
// language can fail, and nothing inside an expression handles failures, so they
// propagate as panics of this one type, which never leave the package.
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

// rescue turns a failure into an error for the named template, at the position
// that at holds by then. It must be deferred.
func rescue(name string, at *pos, err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = &Error{Template: name, Line: int(at.line), Column: int(at.col), Err: p.err}
	default:
		panic(p)
	}
}
