package chat

import (
	"errors"
	"fmt"

	"github.com/lukv/lukv/internal/jinja"
)

var (
	// ErrNoTemplate reports a checkpoint folder without a chat template, or
	// without one of the requested name. Callers fall back to plain text.
	ErrNoTemplate = errors.New("no chat template")

	// ErrLimit reports that a template exceeded one of its Limits.
	ErrLimit = jinja.ErrLimit

	// ErrUnsupported reports a feature of Jinja that is not supported here. The
	// error's text names it.
	ErrUnsupported = jinja.ErrUnsupported
)

// Error is any failure of a template: what Parse found wrong or refused, or a
// failure while rendering. Err holds the cause for errors.Is and errors.As.
type Error struct {
	Template     string // name given to Parse
	Line, Column int    // 1-based position in the source, the column in characters; 0 if there is none
	Err          error
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("chat template %s: %v", e.Template, e.Err)
	}
	return fmt.Sprintf("chat template %s: line %d, column %d: %v", e.Template, e.Line, e.Column, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// RaisedError is the cause when a template calls raise_exception: it refuses
// the conversation it was given. Message is the template's own text.
type RaisedError struct {
	Message string
}

func (e *RaisedError) Error() string { return "raised by the template: " + e.Message }

// public turns the errors of the language into those of this package.
func public(err error) error {
	var e *jinja.Error
	if !errors.As(err, &e) {
		return err
	}
	cause := e.Err
	if raised, ok := cause.(*jinja.RaisedError); ok {
		cause = &RaisedError{Message: raised.Message}
	}
	return &Error{Template: e.Template, Line: e.Line, Column: e.Column, Err: cause}
}
