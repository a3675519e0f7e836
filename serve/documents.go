package serve

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tokenizer/chat"
)

// documents are the texts that questions are asked about: read and compressed once,
// their caches kept by the engine as long as there is room. A cache that had to go is
// made again when somebody asks, to the same bits.
type documents struct {
	mu    sync.Mutex
	byID  map[string]*document
	order []string
}

// maxDocuments bounds what a server remembers.
const maxDocuments = 10000

// document is a stored text.
type document struct {
	ID       string       `json:"id"`
	Object   string       `json:"object"`
	Created  int64        `json:"created_at"`
	Model    string       `json:"model"`
	Name     string       `json:"name,omitempty"`
	Status   string       `json:"status"`
	Tokens   int          `json:"tokens"`
	Policy   *lukv.Policy `json:"kv_compression"`
	Cache    *cacheUse    `json:"kv_cache"`
	LastUsed int64        `json:"last_used_at"`

	text, system string
	policy       *lukv.Policy
}

// get returns a document for a question with a model, and notes that it was used.
func (d *documents) get(id string, v *served) (*document, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	doc := d.byID[id]
	if doc == nil || doc.Model != v.id {
		return nil, notFound("document_not_found", "there is no document %q for the model %q", id, v.id)
	}
	doc.LastUsed = time.Now().Unix()
	c := *doc
	return &c, nil
}

// putDocument reads a text and compresses it. The same content gets the same id.
func (s *Server) putDocument(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	v, err := s.model(f, false)
	if err != nil {
		return err
	}
	doc := &document{
		Object: "document", Created: time.Now().Unix(), LastUsed: time.Now().Unix(), Model: v.id, Status: "ready",
		Name: f.str("name"), text: strings.TrimSpace(f.str("text")), system: f.str("system"), policy: s.compression(f),
	}
	if !f.has("text") || doc.text == "" {
		f.fail("text", "missing")
	}
	if f.err != nil {
		return f.err
	}
	if doc.policy == nil {
		if doc.policy = s.o.Compression; doc.policy == nil {
			doc.policy = &lukv.Policy{}
		}
	}
	doc.Policy = doc.policy
	q := engine.Request{Policy: doc.policy, PromptOnly: true, Salt: f.str("cache_salt")}
	in := chat.Input{AddGenerationPrompt: true}
	if doc.system != "" {
		in.Messages = append(in.Messages, chat.NewMessage("system", doc.system))
	}
	in.Messages = append(in.Messages, chat.NewMessage("user", ""))
	tokens, n, err := v.format.SplitTokens(r.Context(), in, doc.text, v.e.MaxTokens())
	if err != nil {
		return err
	}
	q.Prompt, q.Context, doc.Tokens = tokens[:n], n, n
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%v\x00%s", v.m.ID(), q.Prompt, doc.policy))
	doc.ID = "doc_" + hex.EncodeToString(sum[:12])

	stream, err := s.submit(contextOf(r), v, q)
	if err != nil {
		return asError(err, v.e.MaxTokens())
	}
	for _, err := range stream.Events() {
		if err != nil {
			return asError(err, v.e.MaxTokens())
		}
	}
	doc.Cache = newCacheUse(stream.Cache(), doc.ID)
	s.docs.mu.Lock()
	defer s.docs.mu.Unlock()
	status := http.StatusOK
	if old := s.docs.byID[doc.ID]; old != nil {
		doc = old
	} else {
		if len(s.docs.order) >= maxDocuments {
			return &apiError{status: http.StatusInsufficientStorage, Type: "invalid_request_error", Message: fmt.Sprintf("there are %d documents already", maxDocuments)}
		}
		s.docs.byID[doc.ID] = doc
		s.docs.order = append(s.docs.order, doc.ID)
		status = http.StatusCreated
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return writeJSON(w, doc)
}

func (s *Server) listDocuments(w http.ResponseWriter, _ *http.Request) error {
	s.docs.mu.Lock()
	defer s.docs.mu.Unlock()
	list := []*document{}
	for _, id := range s.docs.order {
		list = append(list, s.docs.byID[id])
	}
	return writeJSON(w, map[string]any{"object": "list", "data": list})
}

func (s *Server) getDocument(w http.ResponseWriter, r *http.Request) error {
	s.docs.mu.Lock()
	defer s.docs.mu.Unlock()
	doc := s.docs.byID[r.PathValue("id")]
	if doc == nil {
		return notFound("document_not_found", "there is no document %q", r.PathValue("id"))
	}
	return writeJSON(w, doc)
}

func (s *Server) deleteDocument(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	s.docs.mu.Lock()
	defer s.docs.mu.Unlock()
	if s.docs.byID[id] == nil {
		return notFound("document_not_found", "there is no document %q", id)
	}
	delete(s.docs.byID, id)
	s.docs.order = slices.DeleteFunc(s.docs.order, func(x string) bool { return x == id })
	return writeJSON(w, map[string]any{"id": id, "object": "document", "deleted": true})
}
