package serve

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/lukv/lukv/engine"
)

// account is the server's part of an engine.Account: what requests and answers in progress
// take outside of engines, bodies with everything that is read from them, collected answers,
// and what clients have not read yet. Answers take at most half, so that however slowly they
// are read, requests can still come in.
type account struct {
	all    *engine.Account
	shared func() bool // whether several owners share the limit

	mu   sync.Mutex
	used int64
	by   map[string]int64 // by owner
}

// mayTake reports whether an owner that holds own of a limit, of which used are taken, may
// take n more. If others share the limit, nobody may hold more than is then left: a single
// owner gets at most half, two get at most a third each, and there is always room for the
// next.
func mayTake(own, used, n, limit int64, shared bool) bool {
	left := limit - used - n
	return left >= 0 && (!shared || own+n <= left)
}

// charge is what a request has taken of the account.
type charge struct {
	a     *account
	owner string

	mu    sync.Mutex
	bytes int64
}

// take counts n more bytes, of at most 1/part of the account.
func (c *charge) take(n, part int64) error {
	a := c.a
	a.mu.Lock()
	defer a.mu.Unlock()
	limit, own := a.all.Limit()/part, a.by[c.owner]
	if shared := a.shared(); !mayTake(own, a.used, n, limit, shared) {
		return a.refuse(own, n, limit, shared && a.used+n <= limit)
	}
	if a.all.Take(n) != nil {
		return a.refuse(own, n, limit, false)
	}
	a.used += n
	a.by[c.owner] = own + n
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += n
	return nil
}

// refuse returns the error of a request that needs n more bytes of a limit; share says that
// only its owner has taken too much.
func (a *account) refuse(own, n, limit int64, share bool) *apiError {
	e := &apiError{retry: 2, Code: "memory_limit"}
	if share {
		e.status, e.Type = http.StatusTooManyRequests, "rate_limit_error"
		e.Message = fmt.Sprintf("hold %d more bytes for a request: the requests of this API key hold %d, those of all keys %d of %d", n, own, a.all.Used(), limit)
		return e
	}
	e.status, e.Type = http.StatusServiceUnavailable, "server_error"
	e.Message = fmt.Sprintf("hold %d more bytes for a request: requests in progress hold %d, the limit is %d", n, a.all.Used(), limit)
	return e
}

// give gives bytes back.
func (c *charge) give(n int64) {
	c.mu.Lock()
	n = min(n, c.bytes)
	c.bytes -= n
	c.mu.Unlock()
	a := c.a
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all.Give(n)
	a.used -= n
	if a.by[c.owner] -= n; a.by[c.owner] == 0 {
		delete(a.by, c.owner)
	}
}

// end gives everything back.
func (c *charge) end() {
	c.mu.Lock()
	n := c.bytes
	c.mu.Unlock()
	c.give(n)
}

// The parts of the account that take takes from: requests may use all of it, answers half.
const (
	forRequests = 1
	forAnswers  = 2
)

// bodyCost is how many bytes a request takes for each byte of its body: the body, the texts
// in it, the prompt that is made of them, and its tokens.
const bodyCost = 6

// partCost is how many bytes a request takes for each object and array in it: the map of its
// values and the values made of it.
const partCost = 512

// countAnswer counts n bytes of an answer to a request until it is written.
func countAnswer(r *http.Request, n int) error {
	return holdsOf(r.Context()).charge.take(int64(n), forAnswers)
}

// escapeCost is how many bytes a text takes in JSON, at most, for each of its own.
const escapeCost = 6
