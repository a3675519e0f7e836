// Command service is a small service built on package engine: documents are uploaded and
// compressed once, then asked about many times.
//
//	service -model DIR -max-bytes 2147483648
//	curl -T book.txt localhost:8000/documents/book
//	curl -d 'Who is the narrator?' localhost:8000/documents/book/ask
//	curl -d 'Is it fiction?' 'localhost:8000/documents/book/ask?label=yes&label=no'
//	curl -d 'Name a place, and what happens there.' localhost:8000/documents/book/place
//
// It handles only HTTP; batching, memory, cancellation and shared caches are the engine's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/serve"
	"github.com/lukv/lukv/tokenizer/chat"
)

func main() {
	dir := flag.String("model", "", "checkpoint folder")
	addr := flag.String("listen", "127.0.0.1:8000", "address")
	maxBytes := flag.Int64("max-bytes", 1<<30, "memory for caches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	m, err := model.Open(ctx, *dir)
	if err != nil {
		log.Fatal(err)
	}
	s, err := newService(m, *maxBytes)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: *addr, Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	go func() { log.Print(server.ListenAndServe()); stop() }()
	<-ctx.Done() // answers in progress have 10 seconds to finish
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	log.Print(errors.Join(server.Shutdown(grace), s.e.Close(), m.Close()))
}

// service holds documents and the engine that reads them.
type service struct {
	m         *model.Model
	e         *engine.Engine
	format    *dialog.Format
	policy    *lukv.Policy
	documents sync.Map // texts, by name
}

func newService(m *model.Model, maxBytes int64) (*service, error) {
	format, err := dialog.NewFormat(m, time.Now())
	if err != nil {
		return nil, err
	}
	e, err := engine.New(m, engine.Options{MaxBytes: maxBytes, DefaultAnswer: 1024})
	return &service{m: m, e: e, format: format, policy: &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.8}}, err
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("PUT /documents/{name}", serve.Handler(s.put))
	mux.Handle("POST /documents/{name}/ask", serve.Handler(s.ask))
	mux.Handle("POST /documents/{name}/place", serve.Handler(s.place))
	mux.HandleFunc("DELETE /documents/{name}", func(_ http.ResponseWriter, r *http.Request) { s.documents.Delete(r.PathValue("name")) })
	return mux
}

// request returns a request for the answer to a question about a document.
func (s *service) request(r *http.Request, document, question string) (engine.Request, error) {
	in := chat.Input{Messages: []*chat.Object{chat.NewMessage("user", question)}, AddGenerationPrompt: true}
	prompt, front, n, err := s.format.SplitTokens(r.Context(), in, document, s.e.MaxTokens())
	return engine.Request{
		Client: r.RemoteAddr, Prompt: prompt, Context: n, Protected: dialog.Protected(s.m, s.policy, front, prompt[:n]),
		Policy: s.policy, Sampling: s.m.DefaultSampling(),
	}, err
}

// put reads a document and compresses it, so that questions find it ready.
func (s *service) put(w http.ResponseWriter, r *http.Request) error {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<20))
	if err != nil {
		return err
	}
	q, err := s.request(r, string(text), "")
	if err != nil {
		return err
	}
	q.Prompt, q.PromptOnly = q.Prompt[:q.Context], true
	stream, err := s.e.Submit(r.Context(), q)
	if err != nil {
		return err
	}
	for _, err := range stream.Events() { // there are none but an error
		return err
	}
	s.documents.Store(r.PathValue("name"), string(text))
	return json.NewEncoder(w).Encode(stream.Cache())
}

// question returns a request for the answer to the question in the body.
func (s *service) question(w http.ResponseWriter, r *http.Request) (engine.Request, error) {
	document, ok := s.documents.Load(r.PathValue("name"))
	if !ok {
		return engine.Request{}, serve.NotFound("document %q", r.PathValue("name"))
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return engine.Request{}, err
	}
	return s.request(r, document.(string), string(text))
}

// ask streams an answer, which is one of the labels in the query if there are any. If the
// client leaves, the answer ends and its memory is released.
func (s *service) ask(w http.ResponseWriter, r *http.Request) error {
	q, err := s.question(w, r)
	if err != nil {
		return err
	}
	if labels := r.URL.Query()["label"]; labels != nil {
		q.Format = structured.Choice(labels...)
	}
	return serve.StreamEvents(w, r, s.e, q, func(e engine.Event) any { return map[string]string{"text": e.Text} })
}

// place answers with JSON.
func (s *service) place(w http.ResponseWriter, r *http.Request) error {
	q, err := s.question(w, r)
	if err != nil {
		return err
	}
	type place struct {
		Name  string `json:"name" jsonschema:"maxLength=20"`
		Event string `json:"event" jsonschema:"enum=arrival,enum=departure,enum=meeting,enum=other"`
	}
	q.Sampling.MaxTokens = 0 // whatever the checkpoint recommends: it has to be whole
	answer, err := engine.Ask[place](r.Context(), s.e, q)
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(answer)
}
