// Package testctx makes contexts for tests.
package testctx

import (
	"context"
	"sync/atomic"
)

// A Context is done when its error has been asked for a number of times, so that a
// test can cancel work at each of the places that look.
type Context struct {
	context.Context
	after int64
	looks atomic.Int64
}

// DoneAfter returns a context whose Err is nil for the given number of times.
func DoneAfter(parent context.Context, looks int) *Context {
	return &Context{Context: parent, after: int64(looks)}
}

// Err is context.Canceled when it has been asked for often enough.
func (c *Context) Err() error {
	if c.looks.Add(1) > c.after {
		return context.Canceled
	}
	return c.Context.Err()
}

// Looks is the number of times that Err was called.
func (c *Context) Looks() int { return int(c.looks.Load()) }
