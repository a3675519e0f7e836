package serve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer/chat"
)

// documents are the texts that questions are asked about. They are read and compressed
// once, and the engine keeps their caches as long as there is room. A cache that had to go
// is recomputed to the same bits when it is needed. Every API key has its own documents.
type documents struct {
	dir    string   // of their files, "" for none
	lock   *os.File // of the folder, held until the server ends
	limit  int64    // bytes of all texts, names and system messages
	shared func() bool

	// files is held while a document's file and its entry change together. Whoever holds
	// it may take mu, which is never held while a file is written.
	files sync.Mutex

	mu    sync.Mutex
	byID  map[docKey]*document
	order []docKey
	bytes int64 // of their texts

	// Of those known, and those still being read by the requests that upload them.
	held   holding
	heldBy map[string]*holding // by owner
}

// holding is how much documents take of what is bounded.
type holding struct {
	n     int
	bytes int64
}

// newDocuments returns an empty collection for which there is as much room as for all
// requests.
func newDocuments(limit int64, shared func() bool) documents {
	return documents{limit: min(limit, maxDocumentBytes), shared: shared, byID: map[docKey]*document{}, heldBy: map[string]*holding{}}
}

// hold counts more of an owner. The caller holds the mutex, here and in add and drop.
func (d *documents) hold(owner string, n int, bytes int64) {
	by := d.heldBy[owner]
	if by == nil {
		by = &holding{}
		d.heldBy[owner] = by
	}
	by.n += n
	by.bytes += bytes
	d.held.n += n
	d.held.bytes += bytes
	if by.n == 0 && by.bytes == 0 {
		delete(d.heldBy, owner)
	}
}

// add adds a document or replaces an older one.
func (d *documents) add(doc *document) {
	at := docKey{doc.owner, doc.ID}
	size, more := doc.size(), 1
	if old := d.byID[at]; old != nil {
		size, more = size-old.size(), 0
	} else {
		d.order = append(d.order, at)
	}
	d.byID[at] = doc
	d.bytes += size
	d.hold(at.owner, more, size)
}

// drop drops a document if there is one.
func (d *documents) drop(at docKey) {
	old := d.byID[at]
	if old == nil {
		return
	}
	d.bytes -= old.size()
	d.hold(at.owner, -1, -old.size())
	delete(d.byID, at)
	d.order = slices.DeleteFunc(d.order, func(x docKey) bool { return x == at })
}

// reserve holds room for a document until it is added or given up; leave must then be
// called, and may be called again. It refuses a document for which there is no room.
func (d *documents) reserve(doc *document) (leave func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	size, more := doc.size(), 1
	if old := d.byID[docKey{doc.owner, doc.ID}]; old != nil { // which it replaces
		size, more = max(0, size-old.size()), 0
	}
	var own holding
	if by := d.heldBy[doc.owner]; by != nil {
		own = *by
	}
	shared, refused := d.shared(), ""
	share := "" // of what an owner may have
	if shared {
		share = fmt.Sprintf(" (%d documents with %d bytes of this API key, which may not take more than it leaves for others)", own.n, own.bytes)
	}
	switch {
	case more > 0 && !mayTake(int64(own.n), int64(d.held.n), 1, maxDocuments, shared):
		refused = fmt.Sprintf("store a document: found %d already, expected fewer than %d%s", d.held.n, maxDocuments, share)
	case size > 0 && !mayTake(own.bytes, d.held.bytes, size, d.limit, shared):
		refused = fmt.Sprintf("store a document: all documents, with their names and system messages, would have %d bytes, expected at most %d%s", d.held.bytes+size, d.limit, share)
	}
	if refused != "" {
		return nil, &apiError{status: http.StatusInsufficientStorage, Type: "invalid_request_error", Message: refused}
	}
	d.hold(doc.owner, more, size)
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.hold(doc.owner, -more, -size)
	}), nil
}

// sort puts documents that were read from files in order of creation.
func (d *documents) sort() {
	slices.SortStableFunc(d.order, func(a, b docKey) int { return cmp.Compare(d.byID[a].Created, d.byID[b].Created) })
}

// docKey names a document: the same content of two owners is two documents.
type docKey struct{ owner, id string }

// owner returns the owner of what a request takes and of the documents that it is about: a
// digest of the API key. A server without keys takes requests with any, as many clients always
// send one, so that it tells no client from another.
func (s *Server) owner(r *http.Request) string { return s.ownerOf(key(r)) }

func (s *Server) ownerOf(key string) string {
	if key == "" || len(*s.keys.Load()) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:12])
}

// Limits on what a server remembers.
const (
	maxDocuments     = 10000
	maxDocumentBytes = 2 << 30 // of texts, names and system messages
)

// document is a stored text.
type document struct {
	ID       string       `json:"id"`
	Object   string       `json:"object"`
	Created  int64        `json:"created_at"`
	Model    string       `json:"model"`
	Name     string       `json:"name,omitempty"`
	System   string       `json:"system,omitempty"` // the message before it, which questions must have, too
	Status   string       `json:"status"`
	Tokens   int          `json:"tokens"`
	Policy   *lukv.Policy `json:"kv_compression"`
	Cache    *cacheUse    `json:"kv_cache"`
	LastUsed int64        `json:"last_used_at"`
	Error    string       `json:"error,omitempty"` // why it failed

	// Progress is how much of it has been read, 0 to 1, while it is processed.
	Progress *float64 `json:"progress,omitempty"`

	owner, text, salt string
	stored            string // names its cache, see [engine.Engine.StoredPrefix]
	policy            *lukv.Policy
	loss              *estimatedLoss     // measured by the upload, nil if nobody asked; later in Cache
	ask               lossRequest        // of an upload that does not wait: measured before the document is read
	date              time.Time          // for the template, so that the prompt never changes
	cancel            context.CancelFunc // ends its processing
	progress          func() float64     // of its processing
}

// size returns the bytes of everything whose length is up to the client.
func (d *document) size() int64 {
	return int64(len(d.text) + len(d.System) + len(d.Name) + len(d.salt) + d.policyBytes())
}

// policyBytes returns the bytes of the policy.
func (d *document) policyBytes() int {
	if d.policy == nil {
		return 0
	}
	return len(d.policy.String())
}

// documentCost is how many bytes a copy of a document takes without its texts.
const documentCost = 1 << 10

// answerBytes returns the most that the document takes in an answer until it is written.
func (d *document) answerBytes() int {
	return documentCost + escapeCost*(len(d.System)+len(d.Name)+d.policyBytes())
}

// now returns a copy of the document in its current state. The caller holds the mutex.
func (d *document) now() document {
	c := *d
	c.Policy = shown(d.policy)
	if c.Status == "processing" && c.progress != nil {
		p := math.Floor(1000*c.progress()) / 1000
		c.Progress = &p
	}
	return c
}

// shown returns a policy as answers show it, with every parameter written out; nil for one
// that compresses nothing and names no cache type.
func shown(p *lukv.Policy) *lukv.Policy {
	if p == nil || !p.Enabled() && p.CacheType == "" {
		return nil
	}
	out := *p
	out.Metric, out.Allocator = p.Methods()
	if metric, err := lukv.NewMetric(out.Metric); err == nil {
		out.Metric = lukv.MetricConfigOf(metric)
	}
	if allocator, err := lukv.NewAllocator(out.Allocator, p.Profile); err == nil {
		out.Allocator = lukv.AllocatorConfigOf(allocator)
	}
	return &out
}

// samePolicy refuses a policy other than that of the document; nil matches any.
func (d *document) samePolicy(p *lukv.Policy) error {
	if p == nil || p.String() == d.policy.String() {
		return nil
	}
	was := "it was not compressed"
	if with := shown(d.policy); with != nil {
		was = "it was compressed with " + with.String()
	}
	return invalid("kv_compression", "the document has another policy: %s", was)
}

// find returns a copy of a document and notes that it was used.
func (d *documents) find(owner, id string) (*document, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	doc := d.byID[docKey{owner, id}]
	if doc == nil {
		return nil, notFound("document_not_found", "document %q not found", id)
	}
	doc.LastUsed = time.Now().Unix()
	c := doc.now()
	return &c, nil
}

// of returns copies of an owner's documents, since writing them may take as long as the
// client likes.
func (d *documents) of(owner string) []document {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := []document{}
	for _, at := range d.order {
		if at.owner == owner {
			list = append(list, d.byID[at].now())
		}
	}
	return list
}

// get returns a document for a question to a model.
func (d *documents) get(owner, id string, v *served) (*document, error) {
	doc, err := d.find(owner, id)
	if err == nil && doc.Model != v.id {
		return nil, notFound("document_not_found", "document %q of the model %q not found", id, v.id)
	}
	if err != nil {
		return nil, err
	}
	switch doc.Status {
	case "failed":
		return nil, &apiError{status: http.StatusConflict, Type: "invalid_request_error", Code: "document_failed", Message: "processing the document failed: " + doc.Error}
	case "processing":
		return nil, &apiError{status: http.StatusConflict, retry: 1, Type: "invalid_request_error", Code: "document_processing", Message: "the document is still being processed"}
	}
	return doc, nil
}

// request returns the request that reads the document, as far as its cache is not kept, and
// does nothing else.
func (d *document) request(ctx context.Context, v *served) (engine.Request, error) {
	turn, err := turns.Begin(ctx)
	if err != nil {
		return engine.Request{}, err
	}
	defer turn.End()
	ctx = turn.Use(ctx)
	in := chat.Input{AddGenerationPrompt: true}
	if d.System != "" {
		in.Messages = append(in.Messages, chat.NewMessage("system", d.System))
	}
	in.Messages = append(in.Messages, chat.NewMessage("user", ""))
	tokens, front, n, err := v.format.At(d.date).SplitTokens(ctx, in, d.text, v.e.MaxTokens())
	if err != nil {
		return engine.Request{}, err
	}
	return engine.Request{
		Prompt: tokens[:n], Context: n, Protected: dialog.Protected(v.m, d.policy, front, tokens[:n]), Policy: d.policy, PromptOnly: true, Salt: d.salt,
	}, nil
}

// read runs a request from [document.request].
func (s *Server) read(r *http.Request, v *served, q engine.Request) (*engine.Stream, error) {
	stream, err := s.submit(contextOf(r), v, q)
	if err != nil {
		return nil, asError(err, v.e.MaxTokens())
	}
	return stream, readAll(stream, v)
}

func readAll(stream *engine.Stream, v *served) error {
	for _, err := range stream.Events() {
		if err != nil {
			return asError(err, v.e.MaxTokens())
		}
	}
	return nil
}

func (s *Server) listDocuments(w http.ResponseWriter, r *http.Request) error {
	list, most := s.docs.of(s.owner(r)), 0
	for i := range list {
		most = max(most, list[i].answerBytes())
	}
	if err := countAnswer(r, most+len(list)*documentCost); err != nil {
		return err
	}
	return writeList(w, map[string]any{"object": "list", "data": []document{}}, "data", list)
}

func (s *Server) getDocument(w http.ResponseWriter, r *http.Request) error {
	doc, err := s.docs.find(s.owner(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := countAnswer(r, doc.answerBytes()); err != nil {
		return err
	}
	return writeJSON(w, doc)
}

// deleteDocument forgets a document, its file, and its cache.
func (s *Server) deleteDocument(w http.ResponseWriter, r *http.Request) error {
	at := docKey{s.owner(r), r.PathValue("id")}
	doc, err := s.docs.remove(at)
	if err != nil {
		return err
	}
	if doc.cancel != nil {
		doc.cancel()
	}
	if err := s.forget(r, doc); err != nil {
		s.o.Log.Warn("the cache of a deleted document is still there", "document", at.id, "error", err)
	}
	return writeJSON(w, map[string]any{"id": at.id, "object": "document", "deleted": true})
}

// forget forgets the cache of a document. It does not open a model for that,
// unless the document is from an older server, which did not record where its cache is.
func (s *Server) forget(r *http.Request, doc *document) error {
	if sl := s.models.find(doc.Model); sl != nil && doc.stored != "" {
		var err error
		if s.models.whileUnloaded(sl, func() {
			if sl.engine.Store != "" {
				err = engine.ForgetStored(sl.engine.Store, doc.stored)
			}
		}) {
			return err
		}
	}
	v, err := s.served(r.Context(), doc.Model)
	if err != nil {
		return err
	}
	q, err := doc.request(r.Context(), v)
	if err != nil {
		return err
	}
	return v.e.Forget(s.salted(contextOf(r), q))
}

// keptEntries are the entries in the cache of a document, head by head.
type keptEntries struct {
	Object   string  `json:"object"`
	Document string  `json:"document"`
	Layers   int     `json:"layers"`
	Heads    int     `json:"heads"` // KV heads
	Tokens   int     `json:"tokens"`
	Kept     [][]int `json:"kept"` // [Layers][Heads] entries

	// Of one head, if it was asked for.
	Layer     *int    `json:"layer,omitempty"`
	Head      *int    `json:"head,omitempty"`
	Positions []int32 `json:"positions,omitempty"` // ascending
}

// keptOfDocument returns how many entries every head kept and, if asked, the positions in
// one head.
func (s *Server) keptOfDocument(w http.ResponseWriter, r *http.Request) error {
	doc, err := s.docs.find(s.owner(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	v, err := s.served(r.Context(), doc.Model)
	if err == nil {
		doc, err = s.docs.get(doc.owner, doc.ID, v)
	}
	if err != nil {
		return err
	}
	c := v.m.Config()
	out := keptEntries{Object: "document.kept", Document: doc.ID, Layers: c.Layers, Heads: c.KVHeads, Tokens: doc.Tokens}
	if out.Layer, err = queryInt(r, "layer", c.Layers); err == nil {
		out.Head, err = queryInt(r, "head", c.KVHeads)
	}
	switch {
	case err != nil:
		return err
	case (out.Layer == nil) != (out.Head == nil):
		return invalid("layer", "layer and head: both or none")
	}
	q, err := doc.request(r.Context(), v)
	if err != nil {
		return err
	}
	q.Inspect = func(session *model.Session) {
		for _, l := range session.Stats().Layers {
			out.Kept = append(out.Kept, l.Entries)
		}
		if out.Layer != nil {
			out.Positions = session.Cache().Positions(*out.Layer, *out.Head, nil)
		}
	}
	if _, err := s.read(r, v, q); err != nil {
		return err
	}
	return writeJSON(w, out)
}

// queryInt reads a number below n from the request's query; nil if it is absent.
func queryInt(r *http.Request, name string, n int) (*int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return nil, nil
	}
	i, err := strconv.Atoi(text)
	if err != nil || i < 0 || i >= n {
		return nil, invalid(name, "found %.20q, expected 0 to %d", text, n-1)
	}
	return &i, nil
}
