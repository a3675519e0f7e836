package serve

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limit lets at most n connections of l be open at once. When more come, connections that
// wait for their clients are closed, the longest waiting first: those without a request,
// then those whose client has not finished sending its request, or reading its answer.
// Requests that are being computed stay. It sets server's ConnContext; the returned
// listener is to be given to server.
func (s *Server) Limit(server *http.Server, l net.Listener, n int) net.Listener {
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		return context.WithValue(ctx, connKey{}, c)
	}
	return &limitedListener{Listener: l, most: n, open: map[*limitedConn]struct{}{}, changed: make(chan struct{}, 1), patience: clientPatience}
}

// clientPatience is for how long a client may send its request, or read its answer, before
// others that wait for a connection get its place.
const clientPatience = 2 * time.Second

// limitedListener accepts connections while fewer than most are open.
type limitedListener struct {
	net.Listener
	most     int
	patience time.Duration
	changed  chan struct{} // a connection was closed, or waits for its client

	mu   sync.Mutex
	open map[*limitedConn]struct{}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	out := &limitedConn{Conn: c, l: l, since: time.Now()}
	for {
		l.mu.Lock()
		if len(l.open) < l.most || l.evict() {
			l.open[out] = struct{}{}
			l.mu.Unlock()
			return out, nil
		}
		l.mu.Unlock()
		select {
		case <-l.changed:
		case <-time.After(l.patience / 8):
		}
	}
}

// evict closes the connection that has waited for its client the longest, and reports
// whether there is one. The caller holds the mutex.
func (l *limitedListener) evict() bool {
	var oldest *limitedConn
	now := time.Now()
	for c := range l.open {
		switch {
		case c.requests > c.waiting, c.requests > 0 && now.Sub(c.since) < l.patience, now.Sub(c.since) < l.patience/8: // the end of an answer is on its way
		case oldest == nil, c.requests == 0 && oldest.requests > 0:
			oldest = c
		case c.requests > 0 && oldest.requests == 0:
		case c.since.Before(oldest.since):
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	delete(l.open, oldest)
	oldest.Conn.Close()
	return true
}

// note changes the state of a connection. If it now waits for its client, so may others
// for its place.
func (c *limitedConn) note(requests, waiting int) {
	c.l.mu.Lock()
	c.requests += requests
	c.waiting += waiting
	if waits := c.requests == c.waiting; waits {
		c.since = time.Now()
	}
	c.l.mu.Unlock()
	c.l.notify()
}

func (l *limitedListener) notify() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// limitedConn is a connection of a limitedListener.
type limitedConn struct {
	net.Conn
	l *limitedListener

	// Under the mutex of l:
	requests int       // in progress
	waiting  int       // of these, those that wait for the client
	since    time.Time // when all of them began to wait for the client
}

func (c *limitedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.open, c)
	c.l.mu.Unlock()
	c.l.notify()
	return c.Conn.Close()
}

type connKey struct{}

// connPlace is a request's place on its connection.
type connPlace struct{ c *limitedConn }

// placeOf returns the place of a request; without [Server.Limit], its methods do nothing.
func placeOf(r *http.Request) connPlace {
	c, _ := r.Context().Value(connKey{}).(*limitedConn)
	return connPlace{c}
}

// begin begins a request. The caller must call the function that it returns at its end.
func (p connPlace) begin() (end func()) { return p.change(1, 0) }

// wait begins to wait for the client, until the function that it returns is called.
func (p connPlace) wait() (end func()) { return p.change(0, 1) }

func (p connPlace) change(requests, waiting int) (end func()) {
	if p.c == nil {
		return func() {}
	}
	p.c.note(requests, waiting)
	return sync.OnceFunc(func() { p.c.note(-requests, -waiting) })
}
