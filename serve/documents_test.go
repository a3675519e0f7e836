package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/builtin"
)

// TestDocumentsSurvive: documents are there when the server is started again, and answer
// with the same bits without being read again; a damaged one affects only itself.
func TestDocumentsSurvive(t *testing.T) {
	profile, err := builtin.Profile(lukv.MetricConfig{Name: "keydiff"})
	require.NoError(t, err)
	dir := t.TempDir()
	var ts *testServer
	begin := func(profiles map[string]*lukv.Profile) {
		m, err := builtin.Open(context.Background())
		require.NoError(t, err)
		s := New(Options{Profiles: profiles})
		require.NoError(t, s.OpenStore(filepath.Join(dir, "documents")))
		require.NoError(t, s.Add("needle/llama", m, engine.Options{MaxBytes: 64 << 20, Store: filepath.Join(dir, "prefixes")}))
		ts = serveTest(t, s, m)
	}
	all := map[string]*lukv.Profile{"keydiff": profile}
	begin(all)
	text := sample(1)
	uploads := map[string]object{
		"with a profile": {"ratio": 0.5, "metric": object{"name": "keydiff"}, "allocator": object{"name": "lukv"}, "profile": "keydiff"},
		"without":        {"ratio": 0.3, "metric": "snapkv"},
		"uncompressed":   nil,
		"in 8 bits":      {"ratio": 0.3, "metric": "snapkv", "cache_type": "int8"},
		"in 4 bits":      {"cache_type": "int4"},
	}
	docs := map[string]document{}
	answers := map[string]string{}
	answer := func(id string) (string, usage) {
		var got chatAnswer
		ts.post(t, "/v1/chat/completions", ask(text.Question, object{"document": id, "max_tokens": 12, "logprobs": true, "ignore_eos": true, "seed": 1}), &got)
		probs, err := json.Marshal(got.Choices[0].LogProbs)
		require.NoError(t, err)
		return *got.Choices[0].Message.Content + string(probs), *got.Usage
	}
	for name, policy := range uploads {
		body := object{"text": text.Context, "name": name, "cache_salt": "s"}
		if policy != nil {
			body["kv_compression"] = policy
		}
		var doc document
		ts.post(t, "/v1/documents", body, &doc)
		docs[name] = doc
		answers[name], _ = answer(doc.ID)
	}
	require.Less(t, docs["in 8 bits"].Cache.Bytes*10, docs["without"].Cache.Bytes*6)
	require.Less(t, docs["in 4 bits"].Cache.Bytes*10, docs["uncompressed"].Cache.Bytes*4)
	require.Len(t, docs, 5)
	get := func(path string) (int, string) {
		status, text, _ := ts.do(t, "GET", path, "")
		return status, text
	}

	ts.end()
	begin(all)
	for name, doc := range docs {
		status, text := get("/v1/documents/" + doc.ID)
		require.Equal(t, 200, status)
		var again document
		require.NoError(t, json.Unmarshal([]byte(text), &again))
		again.LastUsed = doc.LastUsed
		require.Equal(t, doc, again)
		got, u := answer(doc.ID)
		require.Equal(t, answers[name], got, name)
		require.GreaterOrEqual(t, u.Details.Cached, doc.Tokens, "%s was not read again", name)
	}
	// The same upload is the same document, and the requested policy is recognised.
	var again document
	ts.post(t, "/v1/documents", object{"text": text.Context, "cache_salt": "s", "kv_compression": uploads["with a profile"]}, &again)
	require.Equal(t, docs["with a profile"].ID, again.ID)
	ts.post(t, "/v1/chat/completions", ask("?", object{"document": again.ID, "max_tokens": 1, "kv_compression": uploads["with a profile"]}), &object{})

	// With another salt it is another document, as its cache is another.
	ts.post(t, "/v1/documents", object{"text": text.Context, "cache_salt": "other", "kv_compression": uploads["without"]}, &again)
	require.NotEqual(t, docs["without"].ID, again.ID)
	status, body, _ := ts.do(t, "DELETE", "/v1/documents/"+again.ID, "")
	require.Equal(t, 200, status, body)

	// Without its profile one document fails, without its file another.
	file := filepath.Join(dir, "documents", documentFile("", docs["without"].ID))
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	ts.end()
	require.NoError(t, os.WriteFile(file, data, 0o600))
	begin(nil)
	status, body = get("/v1/documents/" + docs["with a profile"].ID)
	require.Equal(t, 200, status)
	require.Contains(t, body, `"status":"failed"`)
	for id, want := range map[string]int{docs["with a profile"].ID: 409, docs["without"].ID: 404, docs["uncompressed"].ID: 200} {
		q, err := json.Marshal(ask("?", object{"document": id, "max_tokens": 1}))
		require.NoError(t, err)
		status, body, _ := ts.do(t, "POST", "/v1/chat/completions", string(q))
		require.Equal(t, want, status, body)
		status, body = get("/v1/documents/" + id + "/kept")
		require.Equal(t, want, status, body)
	}
	require.FileExists(t, file+".damaged")
	require.NoFileExists(t, file)
	ts.s.SetProfiles(all)
	got, u := answer(docs["with a profile"].ID)
	require.Equal(t, answers["with a profile"], got, "it is there again with its profile")
	require.GreaterOrEqual(t, u.Details.Cached, docs["with a profile"].Tokens)

	// What is deleted is gone, also from disk.
	before, err := filepath.Glob(filepath.Join(dir, "prefixes", "*", "*.session"))
	require.NoError(t, err)
	for _, name := range []string{"with a profile", "uncompressed", "in 8 bits", "in 4 bits"} {
		status, body, _ := ts.do(t, "DELETE", "/v1/documents/"+docs[name].ID, "")
		require.Equal(t, 200, status, body)
		require.NoFileExists(t, filepath.Join(dir, "documents", documentFile("", docs[name].ID)))
	}
	after, err := filepath.Glob(filepath.Join(dir, "prefixes", "*", "*.session"))
	require.NoError(t, err)
	require.Less(t, len(after), len(before))
	ts.end()
	begin(all)
	_, body = get("/v1/documents")
	require.Contains(t, body, `"data":[]`)
}

// lockedWriter checks at every write whether others can lock the documents.
type lockedWriter struct {
	*httptest.ResponseRecorder
	docs *documents
	held bool
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	if w.held = w.held || !w.docs.mu.TryLock(); !w.held {
		w.docs.mu.Unlock()
	}
	return w.ResponseRecorder.Write(p)
}

// TestDocumentsBound: a client that does not read holds up nobody else, and texts take no
// more memory than allowed.
func TestDocumentsBound(t *testing.T) {
	s := New(Options{})
	d := &s.docs
	d.add(&document{ID: "a", text: "some text"})
	w := &lockedWriter{ResponseRecorder: httptest.NewRecorder(), docs: d}
	require.NoError(t, s.listDocuments(w, requestOf(s, "")))
	require.Contains(t, w.Body.String(), `"id":"a"`)
	require.False(t, w.held)

	d.add(&document{ID: "a", text: "again"})
	require.EqualValues(t, len("again"), d.bytes)
	require.Len(t, d.order, 1)
	d.hold("", 0, d.limit-d.held.bytes)
	room := func(doc *document) error {
		leave, err := d.reserve(doc)
		if err == nil {
			leave()
			leave() // has no further effect
		}
		return err
	}
	tooMuch := fmt.Sprintf("expected at most %d", d.limit)
	require.NoError(t, room(&document{ID: "a", text: "again"}), "it is there already")
	require.ErrorContains(t, room(&document{ID: "a", text: "again", Name: "x"}), tooMuch, "with a longer name")
	for _, doc := range []document{{text: "x"}, {Name: "x"}, {System: "x"}, {salt: "x"}} { // all that a client can make long
		require.ErrorContains(t, room(&doc), tooMuch)
	}
	d.drop(docKey{"", "a"})
	require.NoError(t, room(&document{ID: "b", text: "x"}))

	// What others are uploading counts until they give up.
	several := false
	fresh := func(limit int64) *documents {
		d := newDocuments(limit, func() bool { return several })
		return &d
	}
	d = fresh(3)
	leave, err := d.reserve(&document{ID: "a", text: "xy"})
	require.NoError(t, err)
	require.ErrorContains(t, room(&document{ID: "b", text: "xx"}), "would have 4 bytes, expected at most 3")
	leave()
	require.NoError(t, room(&document{ID: "b", text: "xx"}))

	// However small they are, and whoever they belong to, there is a largest number; of
	// several owners none may have more than is left for others.
	fill := func(owner string) (n int) {
		for ; n <= maxDocuments; n++ {
			if _, err := d.reserve(&document{ID: strconv.Itoa(n), owner: owner, text: "x"}); err != nil {
				require.ErrorContains(t, err, "expected fewer than 10000")
				break
			}
		}
		return n
	}
	d = fresh(1 << 20)
	require.Equal(t, maxDocuments, fill("a"))
	require.Zero(t, fill("b"))
	several = true
	d = fresh(1 << 20)
	require.Equal(t, maxDocuments/2, fill("a"))
	require.Equal(t, maxDocuments/4, fill("b"))
	require.Equal(t, maxDocuments/8, fill("c"))
	d = fresh(8)
	_, err = d.reserve(&document{ID: "a", owner: "a", text: "xxxxx"})
	require.ErrorContains(t, err, "of this API key")
	_, err = d.reserve(&document{ID: "a", owner: "a", text: "xxxx"})
	require.NoError(t, err)
	_, err = d.reserve(&document{ID: "a", owner: "b", text: "xx"})
	require.NoError(t, err)
}

// TestUploadAndDelete: a document that is uploaded and deleted at the same time is
// afterwards there, with its file, or neither is.
func TestUploadAndDelete(t *testing.T) {
	dir := t.TempDir()
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	require.NoError(t, ts.s.OpenStore(dir))
	body := mustJSON(t, object{"text": "a text", "kv_compression": object{"ratio": 0.5, "metric": "knorm"}})
	var doc document
	ts.post(t, "/v1/documents", json.RawMessage(body), &doc)
	at := docKey{"", doc.ID}
	for range 100 {
		var wg sync.WaitGroup
		for _, path := range []string{"/v1/documents", "/v1/documents?wait=false"} {
			wg.Go(func() { ts.do(t, "POST", path, body) })
			wg.Go(func() { ts.do(t, "DELETE", "/v1/documents/"+doc.ID, "") })
		}
		wg.Wait()
		ts.s.later.Wait()
		ts.s.docs.mu.Lock()
		known := ts.s.docs.byID[at] != nil
		ts.s.docs.mu.Unlock()
		_, err := os.Stat(filepath.Join(dir, documentFile("", doc.ID)))
		require.Equal(t, known, err == nil, "the file: %v", err)
	}
}

// TestStoreInUse: a second server does not start on a folder of documents, also when it
// loads models on demand, until the first one has ended.
func TestStoreInUse(t *testing.T) {
	dir := t.TempDir()
	first := New(Options{})
	require.NoError(t, first.OpenStore(dir))
	second, _ := onDemand(t, Options{}, engine.Options{}, "a")
	require.ErrorContains(t, second.s.OpenStore(dir), "in use by another server")
	require.NoError(t, first.Drain(context.Background()))
	require.NoError(t, second.s.OpenStore(dir))
}

// deadlineWriter records the deadline of its answer.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.until = t
	return nil
}

// TestAnswersHaveATime: nobody holds a connection, or a model, forever by not reading the
// answer.
func TestAnswersHaveATime(t *testing.T) {
	h := New(Options{}).Handler()
	for _, path := range []string{"/v1/models", "/v1/models/none", "/none", "/", "/metrics", "/health", "/ready", "/version"} {
		w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		require.WithinDuration(t, time.Now().Add(maxAnswerTime), w.until, time.Minute, path)
	}
}

// TestDocumentSaysItsSystem: questions about a document must repeat its system message, so
// clients must be able to find it out, also after a restart.
func TestDocumentSaysItsSystem(t *testing.T) {
	dir := t.TempDir()
	for restart := range 2 {
		ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
		require.NoError(t, ts.s.OpenStore(dir))
		var doc struct{ ID, System string }
		ts.post(t, "/v1/documents", object{"text": sample(0).Context, "system": "Be brief."}, &doc)
		require.Equal(t, "Be brief.", doc.System)
		_, text, _ := ts.do(t, "GET", "/v1/documents/"+doc.ID, "")
		doc.System = ""
		decode(t, text, &doc)
		require.Equal(t, "Be brief.", doc.System, restart)
		var answer object
		ts.post(t, "/v1/chat/completions", ask("?", object{
			"document": doc.ID, "max_tokens": 1,
			"messages": []object{{"role": "system", "content": doc.System}, {"role": "user", "content": "?"}},
		}), &answer)
		var plain struct{ ID, System string } // also if the template leaves out system messages
		ts.post(t, "/v1/documents", object{"text": sample(0).Context}, &plain)
		require.NotEqual(t, doc.ID, plain.ID)
		require.Empty(t, plain.System)
		ts.end()
	}
}

// FuzzDocument: whatever a document's file holds is either read or refused.
func FuzzDocument(f *testing.F) {
	dir := f.TempDir()
	d := &documents{dir: dir}
	doc := &document{ID: "doc_000000000000000000000000", Tokens: 3, Policy: &lukv.Policy{Ratio: 0.5}, Cache: &cacheUse{}, text: "text", System: "s"}
	require.NoError(f, d.save(doc))
	data, err := os.ReadFile(filepath.Join(dir, documentFile("", doc.ID)))
	require.NoError(f, err)
	f.Add(data)
	f.Add(data[:len(data)/2])
	f.Add([]byte(documentHead + "\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		saved, err := parseDocument(data)
		if err != nil {
			return
		}
		require.NotEmpty(t, saved.Text)
		require.NotNil(t, saved.Document.Policy)
	})
}

// TestProtectedMessages: what precedes a context is not compressed with it, and is shared
// by questions about other contexts.
func TestProtectedMessages(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	s := sample(0)
	r := object{
		"messages": []object{
			{"role": "assistant", "content": strings.Repeat("I answer in one word. ", 10)},
			{"role": "user", "content": s.Question},
		},
		"model": "needle/llama", "context": s.Context, "max_tokens": 2, "kv_compression": object{"ratio": 0.5, "metric": "keydiff"},
	}
	var once, twice chatAnswer
	ts.post(t, "/v1/chat/completions", r, &once)
	require.Zero(t, once.Usage.Details.Cached)
	r["context"] = "So. " + s.Context + " " + s.Context
	ts.post(t, "/v1/chat/completions", r, &twice)
	require.Greater(t, twice.Usage.Details.Cached, 30)
	removed := func(a *chatAnswer) float64 { return float64(a.Cache.FullEntries - a.Cache.Entries) }
	require.InDelta(t, 2, removed(&twice)/removed(&once), 0.05, "half of the context, and nothing else")
}

// upload sends a form of alternating names and values; a name with a colon and a file name
// is a file.
func (ts *testServer) upload(t *testing.T, path string, parts ...string) (int, string) {
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for i := 0; i < len(parts); i += 2 {
		name, file, is := strings.Cut(parts[i], ":")
		begin := func() (io.Writer, error) { return w.CreateFormField(name) }
		if is {
			begin = func() (io.Writer, error) { return w.CreateFormFile(name, file) }
		}
		part, err := begin()
		require.NoError(t, err)
		io.WriteString(part, parts[i+1])
	}
	require.NoError(t, w.Close())
	resp, err := ts.Client().Post(ts.URL+path, w.FormDataContentType(), &form)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// TestUpload: a file is the same document as its text, and is named after it.
func TestUpload(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	text := sample(1).Context
	var doc, again document
	ts.post(t, "/v1/documents", object{"text": text, "kv_compression": object{"ratio": 0.5, "metric": "keydiff"}}, &doc)
	policy := `{"ratio": 0.5, "metric": "keydiff"}`
	status, answer := ts.upload(t, "/v1/documents", "kv_compression", policy, "purpose", "assistants", `file:C:\books\a book.txt`, "\ufeff"+text)
	require.Equal(t, 200, status, answer)
	require.NoError(t, json.Unmarshal([]byte(answer), &again))
	require.Equal(t, doc.ID, again.ID)
	status, answer = ts.upload(t, "/v1/documents", "file:/home/a book.txt", text)
	require.Equal(t, 201, status, answer)
	require.Contains(t, answer, `"name":"a book.txt"`)
	status, answer = ts.upload(t, "/v1/documents", "name", "mine", "file:b.txt", text+" The end.")
	require.Equal(t, 201, status, answer)
	require.Contains(t, answer, `"name":"mine"`)

	many := []string{}
	for range maxFormParts + 1 {
		many = append(many, "x"+strconv.Itoa(len(many)), "")
	}
	for want, parts := range map[string][]string{
		"text is missing|text: missing":    {"name", "x"},
		"file occurs twice":                {"text", "a", "file:b", "b"},
		"file: expected a text in UTF-8":   {"file:b", "\xff"},
		"kv_compression: expected JSON":    {"file:b", "b", "kv_compression", "{"},
		"more than 32 parts":               many,
		"the model \\\\\"x\\\\\" does not": {"file:b", "b", "model", "x"},
	} {
		status, answer := ts.upload(t, "/v1/documents", parts...)
		require.GreaterOrEqual(t, status, 400)
		require.Less(t, status, 500)
		require.Regexp(t, want, answer)
	}
	status, answer = ts.upload(t, "/v1/completions", "prompt", "x")
	require.Equal(t, 415, status, answer)
	for _, body := range []string{"", "--x\r\n", "--x\r\nContent-Disposition: form-data; name=\"text\"\r\n\r\nabc"} {
		resp, err := ts.Client().Post(ts.URL+"/v1/documents", "multipart/form-data; boundary=x", strings.NewReader(body))
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, 400, resp.StatusCode, body)
	}
}

// TestDocumentsLater: with wait=false the id comes at once, and the document once it has
// been read.
func TestDocumentsLater(t *testing.T) {
	m, err := builtin.Open(context.Background())
	require.NoError(t, err)
	dir := t.TempDir()
	s := New(Options{})
	require.NoError(t, s.OpenStore(dir))
	require.NoError(t, s.Add("needle/llama", m, engine.Options{MaxBytes: 4 << 20}))
	ts := serveTest(t, s, m)
	text := sample(1)
	put := func(text, query string, want int) (doc document) {
		status, answer, _ := ts.do(t, "POST", "/v1/documents"+query, mustJSON(t, object{"text": text, "kv_compression": object{"ratio": 0.5, "metric": "keydiff"}}))
		require.Equal(t, want, status, answer)
		json.Unmarshal([]byte(answer), &doc)
		return doc
	}
	get := func(id string) (doc document) {
		status, answer, _ := ts.do(t, "GET", "/v1/documents/"+id, "")
		require.Equal(t, 200, status, answer)
		require.NoError(t, json.Unmarshal([]byte(answer), &doc))
		return doc
	}
	put(text.Context, "?wait=maybe", 400)
	doc := put(text.Context, "?wait=false", 202)
	require.Equal(t, "processing", doc.Status)
	require.NotZero(t, doc.Tokens)
	for before := -1.0; doc.Status == "processing"; doc = get(doc.ID) {
		require.GreaterOrEqual(t, *doc.Progress, max(0, before))
		require.LessOrEqual(t, *doc.Progress, 1.0)
		before = *doc.Progress
		runtime.Gosched()
	}
	require.Nil(t, doc.Progress)
	require.Equal(t, "ready", doc.Status)
	require.NotZero(t, doc.Cache.Entries)
	require.FileExists(t, filepath.Join(dir, documentFile("", doc.ID)))
	require.Equal(t, doc.ID, put(text.Context, "?wait=false", 200).ID, "it is there")
	require.Equal(t, doc.ID, put(text.Context, "", 200).ID)
	ts.post(t, "/v1/chat/completions", ask("?", object{"document": doc.ID, "max_tokens": 1}), &object{})

	// What cannot be read is refused at once.
	put(strings.Repeat("many words ", 2000), "?wait=false", 400)

	// What is deleted while it is read does not come back, what fails says why, and what
	// was uploaded again is left alone.
	id := "doc_000000000000000000000000"
	file := filepath.Join(dir, documentFile("", id))
	process := func() (doc, pending *document) {
		doc = &document{ID: id, Object: "document", Model: "needle/llama", Status: "ready", Policy: &lukv.Policy{}, Cache: &cacheUse{}, text: "text"}
		p := *doc
		p.Status, p.progress = "processing", func() float64 { return 0.25 }
		s.docs.mu.Lock()
		s.docs.add(&p)
		s.docs.mu.Unlock()
		return doc, &p
	}
	made, pending := process()
	require.Equal(t, 0.25, *get(id).Progress)
	_, list, _ := ts.do(t, "GET", "/v1/documents", "")
	require.Contains(t, list, `"progress":0.25`)
	status, answer, header := ts.do(t, "POST", "/v1/chat/completions", mustJSON(t, ask("?", object{"document": id})))
	require.Equal(t, 409, status)
	require.Contains(t, answer, "document_processing")
	require.NotEmpty(t, header.Get("Retry-After"))
	status, _, _ = ts.do(t, "DELETE", "/v1/documents/"+id, "")
	require.Equal(t, 200, status)
	s.settle(made, pending, nil)
	require.NoFileExists(t, file)
	status, _, _ = ts.do(t, "GET", "/v1/documents/"+id, "")
	require.Equal(t, 404, status)

	made, pending = process()
	s.settle(made, pending, errors.New("write /secret/path: no space"))
	require.Equal(t, "an internal error; the log of the server has it under the document", get(id).Error)
	made, pending = process()
	s.settle(made, pending, invalid("", "no room"))
	require.Equal(t, "no room", get(id).Error)
	status, answer, _ = ts.do(t, "POST", "/v1/chat/completions", mustJSON(t, ask("?", object{"document": id})))
	require.Equal(t, 409, status)
	require.Contains(t, answer, "no room")

	made, pending = process()
	process()
	s.settle(made, pending, errors.New("cancelled"))
	require.Equal(t, "processing", get(id).Status)
}

// TestKeepTurns: the turns before the last ones are compressed, the rest of a
// conversation is not, and a ratio of 0 changes nothing.
func TestKeepTurns(t *testing.T) {
	ts := start(t, Options{}, engine.Options{MaxBytes: 64 << 20})
	var messages []object
	for i := range 5 {
		if i > 0 {
			messages = append(messages, object{"role": "assistant", "content": sample(i).Answers[0]})
		}
		messages = append(messages, object{"role": "user", "content": strings.Repeat(sample(i).Question+" ", 6)})
	}
	say := func(messages []object, policy object) (string, *cacheUse) {
		body := object{"model": "needle/llama", "messages": messages, "max_tokens": 8, "ignore_eos": true, "temperature": 0, "logprobs": true}
		if policy != nil {
			body["kv_compression"] = policy
		}
		var got chatAnswer
		ts.post(t, "/v1/chat/completions", body, &got)
		return *got.Choices[0].Message.Content + mustJSON(t, got.Choices[0].LogProbs), got.Cache
	}
	plain, none := say(messages, nil)
	require.Nil(t, none)
	same, whole := say(messages, object{"ratio": 0, "keep_turns": 2})
	require.Equal(t, plain, same)
	require.Equal(t, whole.FullEntries, whole.Entries)
	other, cut := say(messages, object{"ratio": 0.5, "metric": "knorm", "keep_turns": 2})
	require.NotEqual(t, plain, other)
	require.Equal(t, whole.FullEntries, cut.FullEntries)
	require.Less(t, cut.Entries, whole.Entries)
	require.Greater(t, cut.Entries, whole.Entries/2, "the last turns stay")
	_, more := say(messages, object{"ratio": 0.5, "metric": "knorm", "keep_turns": 3})
	require.Greater(t, more.Entries, cut.Entries)
	_, none = say(messages, object{"ratio": 0.5, "keep_turns": 4})
	require.Nil(t, none, "nothing is older")

	for path, bodies := range map[string][]string{
		"/v1/chat/completions": {
			mustJSON(t, ask("?", object{"context": "some text", "kv_compression": object{"ratio": 0.5, "keep_turns": 1}})),
			mustJSON(t, ask("?", object{"kv_compression": object{"ratio": 0.5, "keep_turns": 0}})),
			mustJSON(t, ask("?", object{"kv_compression": object{"ratio": 0.5, "keep_turns": "1"}})),
		},
		"/v1/completions": {`{"model":"needle/llama","prompt":"x","context":"some text","kv_compression":{"ratio":0.5,"keep_turns":1}}`},
		"/v1/documents":   {`{"text":"some text","kv_compression":{"ratio":0.5,"keep_turns":1}}`},
	} {
		for _, body := range bodies {
			status, text, _ := ts.do(t, "POST", path, body)
			require.Equal(t, 400, status, text)
			require.Contains(t, text, "keep_turns")
		}
	}
}

// TestNoPlaceForDocument: a template that rewrites texts cannot have a document read before
// the question, and the error says so.
func TestNoPlaceForDocument(t *testing.T) {
	ts := family(t, `{{ bos_token }}{% for m in messages %}{{ m.content | upper }}{% endfor %}`, "<x>")
	for path, body := range map[string]object{
		"/v1/documents":        {"text": "some text"},
		"/v1/chat/completions": ask("?", object{"context": "some text"}),
	} {
		status, text, _ := ts.do(t, "POST", path, mustJSON(t, body))
		require.Equal(t, 400, status, text)
		require.Contains(t, text, "the chat template changes its text")
	}
}
