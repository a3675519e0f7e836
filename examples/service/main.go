// Command service is a small service built on package engine: documents are uploaded
// and compressed once, then asked about many times; answers stream over HTTP.
//
//	service -model DIR -max-bytes 2147483648
//	curl -T book.txt localhost:8000/documents/book
//	curl -d 'Who is the narrator?' localhost:8000/documents/book/ask
//
// The service itself handles only HTTP. Batching, memory, cancellation and sharing a
// document's cache among its readers are left to the engine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

const (
	maxBody         = 16 << 20  // of a document or a question
	maxRequestBytes = 256 << 20 // of all requests together, besides their KV caches
)

func main() {
	dir := flag.String("model", "", "checkpoint folder (default: the embedded model)")
	addr := flag.String("listen", "127.0.0.1:8000", "address")
	maxBytes := flag.Int64("max-bytes", 1<<30, "memory for caches")
	ratio := flag.Float64("ratio", 0.8, "share of a document's cache that is removed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	m, err := open(ctx, *dir)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on http://%s", l.Addr())
	if err := serve(ctx, l, m, *maxBytes, *ratio); err != nil {
		log.Fatal(err)
	}
}

func open(ctx context.Context, dir string) (*model.Model, error) {
	if dir == "" {
		return builtin.Open(ctx)
	}
	return model.Open(ctx, dir)
}

// serve answers until ctx is done; answers in progress then have 10 seconds to finish.
func serve(ctx context.Context, l net.Listener, m *model.Model, maxBytes int64, ratio float64) error {
	s, err := newService(ctx, m, maxBytes, ratio)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /documents/{name}", s.put)
	mux.HandleFunc("DELETE /documents/{name}", s.remove)
	mux.HandleFunc("POST /documents/{name}/ask", s.ask)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%+v\n", s.e.Stats()) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(err, server.Shutdown(grace), s.e.Drain(grace))
}

// service holds documents and the engine that reads them.
type service struct {
	m       *model.Model
	e       *engine.Engine
	tok     *tokenizer.Tokenizer
	framing dialog.Framing
	policy  *lukv.Policy

	mu        sync.Mutex
	documents map[string][]int32 // the tokens of the prompt up to the question
}

func newService(ctx context.Context, m *model.Model, maxBytes int64, ratio float64) (*service, error) {
	s := &service{m: m, documents: map[string][]int32{}, policy: &lukv.Policy{
		Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: ratio,
	}}
	var err error
	if s.tok, err = m.Tokenizer(); err != nil {
		return nil, err
	}
	if s.framing, err = dialog.ChatFraming(ctx, m, time.Now()); err != nil {
		return nil, err
	}
	s.e, err = engine.New(m, engine.Options{MaxBytes: maxBytes, Requests: engine.NewAccount(maxRequestBytes)})
	return s, err
}

// encode returns the tokens of text between two parts of the prompt's framing. What
// users write never becomes a control token.
func (s *service) encode(ctx context.Context, before, text, after string) ([]int32, error) {
	data := []tokenizer.Span{{Start: len(before), End: len(before) + len(text)}}
	return s.tok.EncodeContext(ctx, before+text+after, s.m.Config().MaxPositions, tokenizer.EncodeOptions{Data: data})
}

// request returns a request whose prompt begins with a document.
func (s *service) request(r *http.Request, document, rest []int32) engine.Request {
	return engine.Request{
		Client: r.RemoteAddr, Prompt: append(document[:len(document):len(document)], rest...),
		Policy: s.policy, Context: len(document), Sampling: s.m.DefaultSampling(),
	}
}

// put reads a document and compresses it, so that questions find it ready.
func (s *service) put(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, err)
		return
	}
	tokens, err := s.encode(r.Context(), s.framing.Before, string(text), "")
	if err != nil {
		refuse(w, err)
		return
	}
	req := s.request(r, tokens, nil)
	req.PromptOnly = true
	stream, err := s.e.Submit(r.Context(), req)
	if err != nil {
		refuse(w, err)
		return
	}
	for _, err := range stream.Events() {
		if err != nil {
			refuse(w, err)
			return
		}
	}
	s.mu.Lock()
	s.documents[r.PathValue("name")] = tokens
	s.mu.Unlock()
	use := stream.Cache()
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "%d tokens, %d bytes of cache instead of %d\n", len(tokens), use.Bytes, use.FullBytes)
}

func (s *service) remove(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	delete(s.documents, r.PathValue("name"))
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// ask streams the answer to a question about a document. If the client disconnects,
// the answer ends and its memory is released.
func (s *service) ask(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	document, ok := s.documents[r.PathValue("name")]
	s.mu.Unlock()
	if !ok {
		http.Error(w, "no such document", http.StatusNotFound)
		return
	}
	question, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, err)
		return
	}
	rest, err := s.encode(r.Context(), s.framing.Between, string(question), s.framing.After)
	if err != nil {
		refuse(w, err)
		return
	}
	stream, err := s.e.Submit(r.Context(), s.request(r, document, rest))
	if err != nil {
		refuse(w, err)
		return
	}
	out := http.NewResponseController(w)
	for event, err := range stream.Events() {
		if err != nil {
			log.Print(err) // the header has been sent: all that is left is to stop
			return
		}
		if _, err := io.WriteString(w, event.Text); err != nil {
			return
		}
		out.Flush()
	}
}

// refuse responds with the status that fits an error.
func refuse(w http.ResponseWriter, err error) {
	var large *engine.TooLargeError
	status := http.StatusBadRequest
	switch {
	case errors.As(err, &large):
		status = http.StatusInsufficientStorage
	case errors.Is(err, engine.ErrQueueFull):
		status = http.StatusTooManyRequests
	case errors.Is(err, engine.ErrClosed):
		status = http.StatusServiceUnavailable
	}
	http.Error(w, err.Error(), status)
}
