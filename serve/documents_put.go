package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/lukv"
)

// putPattern is the endpoint that also takes forms.
const putPattern = "POST /v1/documents"

// maxName bounds the bytes of a document's name, which every list of documents repeats.
const maxName = 1 << 10

// maxFormParts bounds the parts of a form.
const maxFormParts = 32

// documentBody reads an upload: a JSON object, or a form whose parts have the same
// names, in which the text may be a file.
func documentBody(r *http.Request) (*fields, error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return body(r)
	}
	values := map[string]any{}
	form := multipart.NewReader(r.Body, params["boundary"])
	for n := 0; ; n++ {
		part, err := form.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, bodyError(err)
		}
		data, err := readCounted(r, part, -1)
		if err != nil {
			return nil, err
		}
		name := part.FormName()
		key := name
		if name == "file" {
			key = "text"
			data = bytes.TrimPrefix(data, []byte("\ufeff")) // a byte order mark is not part of a file's text
			if file := path.Base(strings.ReplaceAll(part.FileName(), `\`, "/")); part.FileName() != "" && values["name"] == nil {
				values["name"] = file
			}
		}
		_, twice := values[key]
		switch {
		case n == maxFormParts:
			return nil, invalid("", "read the form: found more than %d parts", maxFormParts)
		case twice && key != "name":
			return nil, invalid(name, "%s occurs twice", name)
		case !utf8.Valid(data):
			return nil, invalid(name, "%s: expected a text in UTF-8", name)
		case key == "kv_compression" && !json.Valid(data):
			return nil, invalid(name, "%s: expected JSON", name)
		case key == "kv_compression":
			values[key] = json.RawMessage(data)
		default:
			values[key] = string(data)
		}
	}
	io.Copy(io.Discard, r.Body) // what follows the last part
	if err := holdsOf(r.Context()).turn.Take(r.Context()); err != nil {
		return nil, err
	}
	data, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	return bodyFields(r, data)
}

// putDocument reads a text and compresses it. The same content gets the same id. With
// wait=false the request is answered as soon as it is known that there is room, and the
// text is read afterwards.
func (s *Server) putDocument(w http.ResponseWriter, r *http.Request) error {
	wait := r.URL.Query().Get("wait")
	if wait != "" && wait != "true" && wait != "false" {
		return invalid("wait", "found %.20q, expected true or false", wait)
	}
	f, err := documentBody(r)
	if err != nil {
		return err
	}
	v, err := s.model(f, false)
	if err != nil {
		return err
	}
	doc, q, err := s.newDocument(r, f, v, wait == "false")
	if err != nil {
		return err
	}
	leave, err := s.docs.reserve(doc)
	if err != nil {
		return err
	}
	defer leave()
	var status int
	if wait == "false" {
		doc, status, err = s.readLater(r, doc, q)
	} else if err = s.readNow(r, v, doc, q); err == nil {
		doc, status, err = s.remember(doc)
	}
	if err != nil {
		return err
	}
	if err := countAnswer(r, doc.answerBytes()); err != nil {
		return err
	}
	answer := *doc
	answer.Policy = shown(doc.policy)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return writeJSON(w, answer)
}

// newDocument returns the document that a request describes, and the request that reads
// it.
func (s *Server) newDocument(r *http.Request, f *fields, v *served, later bool) (*document, engine.Request, error) {
	var none engine.Request
	doc := &document{
		Object: "document", Created: time.Now().Unix(), LastUsed: time.Now().Unix(), Model: v.id, Status: "ready",
		Name: f.str("name"), owner: s.owner(r), text: strings.TrimSpace(f.str("text")), System: f.str("system"), salt: f.str("cache_salt"),
		policy: s.compression(f, v, lossFields...), date: v.date,
	}
	ask := lossRequestOf(f)
	switch {
	case !f.has("text"):
		f.fail("text", "missing")
	case doc.text == "":
		f.fail("text", "found an empty text")
	case len(doc.Name) > maxName:
		f.fail("name", "found %d bytes, expected at most %d", len(doc.Name), maxName)
	}
	if f.err != nil {
		return nil, none, f.err
	}
	if doc.policy == nil {
		if doc.policy = s.fitting(v, s.o.Compression); doc.policy == nil {
			doc.policy = &lukv.Policy{}
		}
	}
	q, err := s.requestFor(r, v, doc, ask, later)
	if err != nil {
		return nil, none, err
	}
	doc.Policy = doc.policy
	doc.Tokens = q.Context
	if later {
		doc.ask = ask
	}
	key := fmt.Appendf(nil, "%s\x00%v\x00%s", v.m.ID(), q.Prompt, doc.policy)
	if doc.System != "" { // some templates leave it out, but questions must repeat it all the same
		key = fmt.Appendf(key, "\x00system\x00%s", doc.System)
	}
	if doc.salt != "" {
		key = fmt.Appendf(key, "\x00%s", doc.salt)
	}
	if doc.ask.chooses { // its ratio is not known yet
		key = fmt.Appendf(key, "\x00max_loss\x00%v", doc.ask.bound)
	}
	if doc.stored, err = v.e.StoredPrefix(s.salted(contextOf(r), q)); err != nil {
		return nil, none, invalid("", "%v", err)
	}
	sum := sha256.Sum256(key)
	doc.ID = "doc_" + hex.EncodeToString(sum[:12])
	return doc, q, nil
}

// requestFor returns the request that reads a document. If the upload asks for its loss and
// waits, it is measured first, which may choose the policy's ratio.
func (s *Server) requestFor(r *http.Request, v *served, doc *document, ask lossRequest, later bool) (engine.Request, error) {
	if ask.chooses {
		doc.policy.Ratio = unchosenRatio
	}
	q, err := doc.request(r.Context(), v)
	if err != nil {
		return q, aboutText(err, v.e.MaxTokens(), "text")
	}
	if !ask.asked() || later {
		return q, nil
	}
	return s.measureDocument(r, v, doc, q, ask, nil)
}

// measureDocument measures the loss of a document, which may choose its policy's ratio, and
// returns the request that then reads it.
func (s *Server) measureDocument(r *http.Request, v *served, doc *document, q engine.Request, ask lossRequest, watch func(*engine.Stream)) (engine.Request, error) {
	loss, policy, err := s.chooseCompression(r, v, q, doc.policy, ask, watch)
	if err != nil {
		return q, err
	}
	doc.loss, doc.policy = newEstimatedLoss(loss), policy
	return doc.request(r.Context(), v)
}

// readNow reads a document.
func (s *Server) readNow(r *http.Request, v *served, doc *document, q engine.Request) error {
	stream, err := s.read(r, v, q)
	if err == nil {
		doc.Cache = newCacheUse(stream.Cache(), doc.policy, doc.ID)
		doc.Cache.Loss = doc.loss
	}
	return err
}

// remember adds a document that has been read to the server's, and saves it if they are
// kept on disk. It returns the older one with the same contents if there is one.
func (s *Server) remember(doc *document) (*document, int, error) {
	if old, err := s.docs.find(doc.owner, doc.ID); err == nil && old.Status == "ready" && (doc.loss == nil || old.Cache.Loss != nil) {
		return old, http.StatusOK, nil
	}
	own := *doc // its LastUsed will change
	if err := s.docs.put(&own, func(*document) bool { return false }); err != nil {
		s.o.Log.Error("document not stored", "document", doc.ID, "error", err)
		return nil, 0, &apiError{status: http.StatusInsufficientStorage, Type: "server_error", Code: "not_stored", Message: "the document could not be stored; the log of the server says why"}
	}
	return doc, http.StatusCreated, nil
}

// readLater has a document read after the request that uploads it is answered. It
// returns the document in its current state.
func (s *Server) readLater(r *http.Request, doc *document, q engine.Request) (*document, int, error) {
	if old, err := s.docs.find(doc.owner, doc.ID); err == nil && old.Status != "failed" && (old.Cache == nil || old.Cache.Loss != nil || !doc.ask.asked()) {
		if old.Status == "processing" {
			return old, http.StatusAccepted, nil
		}
		return old, http.StatusOK, nil
	}
	holdsOf(r.Context()).turn.Give() // it goes on elsewhere
	used := s.newHolds(s.owner(r))
	ctx, cancel := context.WithCancel(context.WithValue(turns.Apart(context.WithoutCancel(r.Context())), holdsKey{}, used))
	r = r.WithContext(ctx)
	work := &reading{s: s, r: r, doc: doc}
	if err := work.begin(q); err != nil {
		used.end()
		cancel()
		return nil, 0, err
	}
	pending := *doc
	pending.Status, pending.cancel, pending.progress = "processing", cancel, work.progress
	if doc.ask.chooses { // nothing to show yet
		pending.policy = &lukv.Policy{}
	}
	s.docs.mu.Lock()
	s.docs.add(&pending)
	answer := pending.now()
	s.docs.mu.Unlock()
	s.later.Go(func() {
		defer cancel()
		defer used.end()
		s.settle(doc, &pending, work.finish(q))
	})
	return &answer, http.StatusAccepted, nil
}

// reading is a document that is read after its upload was answered, with its own hold on the
// model: at once, or after its loss was measured.
type reading struct {
	s   *Server
	r   *http.Request
	doc *document
	v   *served

	stage atomic.Pointer[readingStage]
}

// readingStage is a request in progress; of a document whose loss is measured it is the
// first, which measures, or the last.
type readingStage struct {
	stream *engine.Stream
	last   bool
}

// begin submits the request that reads the document, unless its loss is measured first.
func (w *reading) begin(q engine.Request) (err error) {
	if w.v, err = w.s.served(w.r.Context(), w.doc.Model); err != nil || w.doc.ask.asked() {
		return err
	}
	return w.submit(q)
}

func (w *reading) submit(q engine.Request) error {
	stream, err := w.s.submit(contextOf(w.r), w.v, q)
	if err != nil {
		return asError(err, w.v.e.MaxTokens())
	}
	w.stage.Store(&readingStage{stream, true})
	return nil
}

// progress returns how much of the document has been read, 0 to 1.
func (w *reading) progress() float64 {
	at := w.stage.Load()
	switch {
	case at == nil:
		return 0
	case !w.doc.ask.asked():
		return at.stream.Progress()
	case at.last:
		return 0.5 + at.stream.Progress()/2
	}
	return at.stream.Progress() / 2
}

// finish waits until the document has been read.
func (w *reading) finish(q engine.Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(p)
		}
	}()
	doc := w.doc
	if doc.ask.asked() {
		measures := func(stream *engine.Stream) { w.stage.Store(&readingStage{stream: stream}) }
		if q, err = w.s.measureDocument(w.r, w.v, doc, q, doc.ask, measures); err != nil {
			return err
		}
		doc.Policy = doc.policy
		if doc.stored, err = w.v.e.StoredPrefix(w.s.salted(contextOf(w.r), q)); err != nil {
			return err
		}
		if err := w.submit(q); err != nil {
			return err
		}
	}
	stream := w.stage.Load().stream
	if err = readAll(stream, w.v); err == nil {
		doc.Cache = newCacheUse(stream.Cache(), doc.policy, doc.ID)
		doc.Cache.Loss = doc.loss
	}
	return err
}

// settle stores a document that was processed in the background, or records why it was
// not. One that has been deleted meanwhile, or uploaded again, is left alone.
func (s *Server) settle(doc, pending *document, err error) {
	if err == nil {
		if err = s.docs.put(doc, func(now *document) bool { return now != pending }); err == nil {
			return
		}
		err = fmt.Errorf("store document: %w", err)
	}
	why := asError(err, 0)
	if why.cause != nil {
		err = why.cause
		why.Message += "; the log of the server has it under the document"
	}
	s.docs.mu.Lock()
	if s.docs.byID[docKey{doc.owner, doc.ID}] == pending {
		pending.Status, pending.Error = "failed", why.Message
	}
	s.docs.mu.Unlock()
	s.o.Log.Warn("document not processed", "document", doc.ID, "error", err)
}
