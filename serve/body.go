package serve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxBodyTime is how long a request may take to arrive.
	maxBodyTime = 5 * time.Minute

	// lingerTime is for how long a client that was refused may go on sending its request:
	// many send all of it before they read, and a connection that is closed earlier takes the
	// refusal with it.
	lingerTime = 10 * time.Second
)

// requestBody is the body of a request. It bounds the time until all of it has arrived.
// After that the connection has no deadline: answers take as long as they take.
type requestBody struct {
	io.ReadCloser
	r     *http.Request
	conn  *http.ResponseController
	place connPlace
	ended func() // the wait for the client; nil before the first read

	patience time.Duration // after a refusal
	all      atomic.Bool   // everything has been read
}

// boundBody replaces the body of a request by a requestBody.
func (s *Server) boundBody(w http.ResponseWriter, r *http.Request) *requestBody {
	b := &requestBody{ReadCloser: r.Body, r: r, conn: http.NewResponseController(w), place: placeOf(r), patience: min(lingerTime, s.bodyTime)}
	if r.Body == http.NoBody {
		b.all.Store(true)
		return b
	}
	b.conn.SetReadDeadline(time.Now().Add(s.bodyTime))
	r.Body = b
	return b
}

func (b *requestBody) Read(p []byte) (int, error) {
	if b.ended == nil {
		b.ended = b.place.wait()
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.all.Store(true)
		b.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		b.ended()
	}
	return n, err
}

// finish ends the wait for the client, also of a body that was not read to its end: over HTTP/2
// its connection goes on.
func (b *requestBody) finish() {
	if b.ended != nil {
		b.ended()
	}
}

// linger reads and drops the rest of a request after its answer, at most the given number of
// bytes.
func (b *requestBody) linger(most int64) {
	if b.all.Load() || b.r.ProtoMajor != 1 || b.r.Header.Get("Expect") != "" { // a client that asks first has sent nothing
		return
	}
	if b.conn.Flush() != nil {
		return
	}
	defer b.place.wait()()
	b.conn.SetReadDeadline(time.Now().Add(b.patience))
	io.CopyN(io.Discard, b.ReadCloser, most)
}

// bodyGuard is the writer of answers. One that begins before all of the request was read
// ends the connection, and is sent without waiting for the rest, as net/http would. It is
// short: only refusals and answers to requests that need no body begin so early.
type bodyGuard struct {
	http.ResponseWriter
	body   *requestBody
	status int           // 0: the answer has not begun
	early  *bytes.Buffer // the answer so far, if it began before all of the request was read
}

func (w *bodyGuard) WriteHeader(status int) {
	if w.status == 0 {
		if w.status = status; !w.body.all.Load() {
			w.early = &bytes.Buffer{}
		}
	}
	if w.early == nil {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *bodyGuard) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.early != nil {
		return w.early.Write(p)
	}
	return w.ResponseWriter.Write(p)
}

// end sends an answer that began early, as a whole, so that clients need not wait for the
// end of the connection.
func (w *bodyGuard) end(most int64) {
	if w.early == nil {
		return
	}
	_ = w.body.conn.EnableFullDuplex() // HTTP/2 always is
	w.Header().Set("Connection", "close")
	w.Header().Set("Content-Length", strconv.Itoa(w.early.Len()))
	w.ResponseWriter.WriteHeader(w.status)
	w.ResponseWriter.Write(w.early.Bytes())
	w.body.linger(most)
}

// Unwrap is for http.ResponseController.
func (w *bodyGuard) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// body reads the object that a request consists of.
func body(r *http.Request) (*fields, error) {
	data, err := readBody(r)
	if err != nil {
		return nil, err
	}
	return bodyFields(r, data)
}

// readBody reads the body of a request as it comes.
func readBody(r *http.Request) ([]byte, error) {
	data, err := readCounted(r, r.Body, r.ContentLength)
	if err == nil {
		err = holdsOf(r.Context()).turn.Take(r.Context())
	}
	return data, err
}

// readCounted reads all of in, which is part of a request, and counts what it costs as it
// comes. The request has no turn afterwards: it may have to wait for the client. size is how
// long it is said to be, -1 if that is unknown.
func readCounted(r *http.Request, in io.Reader, size int64) ([]byte, error) {
	h := holdsOf(r.Context())
	c := h.charge
	room := 64 << 10 // at first: what is said has not come yet
	if size >= 0 && size < int64(room) {
		room = int(size) + 1
	}
	var data []byte
	for {
		if len(data) == cap(data) {
			if n := int(size) + 1; n > cap(data) {
				room = min(room, n)
			}
			if err := c.take(int64(room-cap(data))*bodyCost, forRequests); err != nil {
				return nil, err
			}
			if len(data) > 0 { // copying takes a while where there is much of it
				if err := h.turn.Take(r.Context()); err != nil {
					return nil, err
				}
			}
			data, room = append(make([]byte, 0, room), data...), 2*room
			h.turn.Give()
		}
		n, err := in.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return nil, bodyError(err)
		}
	}
}

// tooLarge refuses a request that says that it is longer than a limit, before any of it is
// read.
func tooLarge(r *http.Request, limit int64) error {
	if r.ContentLength > limit {
		return bodyError(&http.MaxBytesError{Limit: limit})
	}
	return nil
}

// bodyError says what is wrong with a body that could not be read.
func bodyError(err error) *apiError {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return &apiError{status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Message: fmt.Sprintf("read the body: found more than %d bytes", large.Limit)}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &apiError{status: http.StatusRequestTimeout, Type: "invalid_request_error", Message: "read the body: it took longer than allowed"}
	}
	return invalid("", "read the body: %s", strings.TrimPrefix(err.Error(), "http: "))
}

func bodyFields(r *http.Request, data []byte) (*fields, error) {
	ctx := r.Context()
	f, err := parseBody(ctx, data)
	if err != nil {
		return nil, err
	}
	f.ctx, f.size = ctx, len(data)
	f.charge(partCost * int64(f.parts))
	return f, f.failed()
}
