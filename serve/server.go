package serve

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/lukv"
)

// Options configure a server. The zero value serves without keys.
type Options struct {
	// Keys are the accepted API keys. None: all requests are accepted.
	Keys []string

	// Hosts are the names under which browsers may reach the server, without port.
	// Requests for other names are refused, which keeps web pages from reaching a local
	// server under a name of their own. None: all names.
	Hosts []string

	// Origins are the origins of web pages, such as https://chat.example, that may use
	// the server from a browser (CORS). None: only pages of the server itself.
	Origins []string

	// MaxBody bounds the bytes of a request, default 32 MiB.
	MaxBody int64

	// Requests bounds the memory that all requests and answers in progress take; give the
	// same to the engines. The default is that of engines, [engine.ProcessAccount]. Where
	// there are several keys, none takes more than it leaves for others.
	Requests *engine.Account

	// Profiles are the profiles that kv_compression may name.
	Profiles map[string]*lukv.Profile

	// Compression applies to requests with a context or document that do not say how
	// to compress it; nil: it is not compressed.
	Compression *lukv.Policy

	// UnloadAfter is how long a model that was added on demand stays loaded without a
	// request; 0: until its memory is needed. MaxModelBytes bounds the weights and
	// caches (engine.Options.MaxBytes) of all loaded models together; 0: no bound.
	UnloadAfter   time.Duration
	MaxModelBytes int64

	// Version is what /version says.
	Version string

	// Log gets one line per request, without its contents; default none.
	Log *slog.Logger
}

// Server answers HTTP requests using engines. Create one with New, give it models
// with Add, serve its Handler, and end it with Drain.
type Server struct {
	o        Options
	keys     atomic.Pointer[[][sha256.Size]byte] // digests
	mux      *http.ServeMux
	patterns []string // of its endpoints
	started  time.Time
	notReady atomic.Bool
	draining atomic.Bool
	docs     documents
	models   *models
	profiles atomic.Pointer[profiles]
	losses   losses
	account  account
	bodyTime time.Duration
	later    sync.WaitGroup // work that continues after requests
}

// maxAnswerTime is how long a client may take to read what is left of an answer that is
// complete.
const maxAnswerTime = 5 * time.Minute

// New returns a server without models.
func New(o Options) *Server {
	if o.MaxBody <= 0 {
		o.MaxBody = 32 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, mux: http.NewServeMux(), started: time.Now(), models: newModels(o)}
	s.bodyTime = maxBodyTime
	s.account = account{all: cmp.Or(o.Requests, engine.ProcessAccount()), shared: s.severalKeys, by: map[string]int64{}}
	s.SetKeys(o.Keys)
	s.docs = newDocuments(s.account.all.Limit(), s.severalKeys)
	s.SetProfiles(o.Profiles)
	for pattern, h := range map[string]handler{
		"POST /v1/chat/completions":        s.chat,
		"POST /v1/completions":             s.completions,
		"POST /v1/chat/completions/render": s.renderChat,
		"POST /v1/completions/render":      s.renderText,
		"POST /v1/responses":               s.responses,
		"POST /v1/messages":                s.messages,
		"POST /v1/messages/count_tokens":   s.countTokens,
		"GET /v1/models":                   s.listModels,
		"GET /v1/models/{id...}":           s.getModel,
		"POST /tokenize":                   s.tokenize,
		"POST /detokenize":                 s.detokenize,
		"GET /tokenizer_info":              s.tokenizerInfo,
		putPattern:                         s.putDocument,
		"GET /v1/documents":                s.listDocuments,
		"GET /v1/documents/{id}":           s.getDocument,
		"DELETE /v1/documents/{id}":        s.deleteDocument,
		"GET /v1/documents/{id}/kept":      s.keptOfDocument,
		"GET /v1/documents/{id}/tokens":    s.documentTokens,
		"GET /v1/kv_compression":           s.compressions,
		"POST /v1/embeddings":              s.embeddings,
		"POST /api/chat":                   s.ollamaChat,
		"POST /api/generate":               s.ollamaGenerate,
		"POST /api/embed":                  s.ollamaEmbed,
		"POST /api/embeddings":             s.ollamaEmbedding,
		"POST /api/show":                   s.ollamaShow,
		"GET /api/tags":                    s.ollamaTags,
		"GET /api/ps":                      s.ollamaLoaded,
	} {
		s.route(pattern, s.wrap(pattern, h))
	}
	version := func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]string{"version": s.o.Version}) }
	for pattern, h := range map[string]http.HandlerFunc{ // without a key
		"GET /{$}":          servePage,
		"GET /health":       func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]string{"status": "ok"}) },
		"GET /ready":        s.ready,
		"GET /metrics":      s.writeMetrics,
		"GET /openapi.json": s.openAPI,
		"GET /version":      version,
		"GET /api/version":  version,
	} {
		s.route(pattern, h)
	}
	return s
}

// route adds an endpoint.
func (s *Server) route(pattern string, h http.Handler) {
	s.patterns = append(s.patterns, pattern)
	s.mux.Handle(pattern, h)
}

// severalKeys reports whether more than one key is accepted, so that what is bounded is
// shared between their owners.
func (s *Server) severalKeys() bool { return len(*s.keys.Load()) > 1 }

// SetKeys replaces [Options.Keys] for requests from now on.
func (s *Server) SetKeys(keys []string) {
	sums := make([][sha256.Size]byte, len(keys))
	for i, k := range keys {
		sums[i] = sha256.Sum256([]byte(k))
	}
	s.keys.Store(&sums)
}

// profiles are the profiles that kv_compression may name.
type profiles struct {
	byName  map[string]*lukv.Profile
	digests map[string]string // by name
}

// names returns the names, sorted.
func (p *profiles) names() []string { return append([]string{}, slices.Sorted(maps.Keys(p.byName))...) }

// metrics returns the names of the metrics that the profiles were made with, sorted.
func (p *profiles) metrics() []string {
	names := []string{}
	for _, x := range p.byName {
		names = append(names, x.Identity.Metric.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// of returns the profile with a digest, or nil.
func (p *profiles) of(digest string) *lukv.Profile {
	for name, d := range p.digests {
		if d == digest {
			return p.byName[name]
		}
	}
	return nil
}

// SetProfiles replaces [Options.Profiles] for requests from now on. Documents that were
// compressed with one that is no longer there keep it; those that failed because theirs
// was missing become available once it is there.
func (s *Server) SetProfiles(byName map[string]*lukv.Profile) {
	p := &profiles{byName: byName, digests: map[string]string{}}
	for name, x := range byName {
		p.digests[name], _ = x.Digest() // a profile that can be written has one
	}
	s.profiles.Store(p)
	s.docs.mu.Lock()
	defer s.docs.mu.Unlock()
	for _, doc := range s.docs.byID {
		if doc.Status == "failed" && doc.policy.ProfileDigest != "" && doc.policy.Profile == nil {
			with := *doc.policy
			if with.Profile = p.of(with.ProfileDigest); with.Profile != nil {
				doc.policy, doc.Policy, doc.Status, doc.Error = &with, &with, "ready", ""
			}
		}
	}
}

// Drain refuses new requests, waits for those in progress until ctx is done, and
// then cancels the rest.
func (s *Server) Drain(ctx context.Context) error {
	s.NotReady()
	s.draining.Store(true)
	err := s.models.drain(ctx)
	s.later.Wait()
	s.docs.close()
	return err
}

// NotReady makes /ready say that the server should get no more requests. It still
// answers them, as routers take a moment to notice.
func (s *Server) NotReady() { s.notReady.Store(true) }

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.notReady.Load() {
		(&apiError{status: http.StatusServiceUnavailable, retry: 5, Type: "server_error", Code: "shutting_down", Message: "the server is shutting down"}).write(w)
		return
	}
	writeJSON(w, map[string]string{"status": "ready"})
}

// Handler returns the server's endpoints together with the checks that guard them.
func (s *Server) Handler() http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeError(w, r, &apiError{status: http.StatusForbidden, Type: "permission_error", Message: fmt.Sprintf(
			"requests from pages of other sites are refused, here of %.200q; lukv serve --cors-origin allows the origin of a page", r.Header.Get("Origin"))})
	}))
	for _, origin := range s.o.Origins {
		cross.AddTrustedOrigin(origin) // an invalid one is one that no browser sends
	}
	guarded := cross.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.hostAllowed(r.Host) {
			writeError(w, r, &apiError{status: http.StatusForbidden, Type: "permission_error", Message: fmt.Sprintf("the host %q is not served", r.Host)})
			return
		}
		if _, pattern := s.mux.Handler(r); pattern == "" {
			s.noRoute(w, r)
			return
		}
		s.mux.ServeHTTP(w, r)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", requestID(r.Header.Get("X-Request-Id"))) // refusals have one, too
		defer placeOf(r).begin()()
		out := &bodyGuard{ResponseWriter: w, body: s.boundBody(w, r)}
		defer out.body.finish()
		if !s.shared(out, r) {
			guarded.ServeHTTP(out, r)
		}
		out.end(s.o.MaxBody)
	})
}

// shared lets pages of the configured origins use the server. It reports whether the
// request was a preflight request, which it has then answered.
func (s *Server) shared(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || !slices.Contains(s.o.Origins, origin) || !s.hostAllowed(r.Host) {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After, X-Should-Retry")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	if names := r.Header.Get("Access-Control-Request-Headers"); names != "" { // clients send many of their own
		h.Set("Access-Control-Allow-Headers", names)
	}
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

func (s *Server) hostAllowed(host string) bool {
	if len(s.o.Hosts) == 0 {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	for _, h := range s.o.Hosts {
		if strings.EqualFold(h, strings.Trim(host, "[]")) {
			return true
		}
	}
	return false
}

// noRoute answers with 404, or with 405 where another method would be served.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{"GET", "HEAD", "POST", "DELETE"} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := s.mux.Handler(other); pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		list := strings.Join(allowed, ", ")
		w.Header().Set("Allow", list)
		writeError(w, r, &apiError{status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Message: fmt.Sprintf("%s: found the method %[3]s, expected %[2]s", r.URL.Path, list, r.Method)})
		return
	}
	writeError(w, r, notFound("not_found", "%s not found", r.URL.Path))
}

// handler answers a request, or returns an error before it has written anything.
type handler func(w http.ResponseWriter, r *http.Request) error

// wrap checks the key, bounds the body, logs the request, and turns errors and panics
// into answers.
func (s *Server) wrap(pattern string, h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := w.Header().Get("X-Request-Id")
		used := s.newHolds(s.owner(r))
		out := &statusWriter{ResponseWriter: w, log: s.o.Log, turn: used.turn}
		r.Body = http.MaxBytesReader(out, r.Body, s.o.MaxBody)
		ctx := context.WithValue(context.WithValue(used.turn.Use(r.Context()), requestKey{}, id), holdsKey{}, used)
		out.ctx = ctx
		err := s.guarded(out, r.WithContext(ctx), h)
		reported := err != nil && out.status == 0
		if reported {
			writeError(out, r, asError(err, used.maxLen).report(out))
		}
		line := []any{"id", id, "endpoint", pattern, "status", out.status, "bytes", out.bytes, "time", time.Since(start).Round(time.Millisecond)}
		s.o.Log.Info("request", append(line, used.end()...)...)
		if err == nil || reported {
			return
		}
		var broken *panicError
		if errors.As(err, &broken) {
			s.o.Log.Error("internal error", "id", id, "error", broken)
		}
		panic(http.ErrAbortHandler) // half an answer must not look complete
	})
}

func (s *Server) guarded(w http.ResponseWriter, r *http.Request, h handler) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicked(v)
		}
	}()
	if err := s.authorise(r); err != nil {
		return err
	}
	if s.draining.Load() && r.Method == http.MethodPost {
		return engine.ErrClosed
	}
	if r.Method == http.MethodPost {
		kind, _, err := mime.ParseMediaType(contentType(r))
		if err != nil || kind != "application/json" && (kind != "multipart/form-data" || r.Pattern != putPattern) {
			return &apiError{status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Message: fmt.Sprintf("found the content type %.40q, expected application/json", r.Header.Get("Content-Type"))}
		}
		if err := tooLarge(r, s.o.MaxBody); err != nil {
			return err
		}
		if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
			return &apiError{status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Message: "found a compressed body, expected an uncompressed one"}
		}
	}
	return h(w, r)
}

// contentType returns the type of a request's body. Clients of ollama's API, and curl as its
// manual has it, name none or curl's default; pages of other sites, which could send the same
// without being asked, have been refused by then.
func contentType(r *http.Request) string {
	kind := r.Header.Get("Content-Type")
	if strings.HasPrefix(r.URL.Path, "/api/") && (kind == "" || kind == "application/x-www-form-urlencoded") {
		return "application/json"
	}
	return kind
}

// panicError is the error of a panic.
type panicError struct {
	value any
	stack []byte
}

func panicked(v any) error { return &panicError{v, debug.Stack()} }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

// authorise compares the key in constant time.
func (s *Server) authorise(r *http.Request) error {
	keys := *s.keys.Load()
	if len(keys) == 0 {
		return nil
	}
	sum := sha256.Sum256([]byte(key(r)))
	found := 0
	for _, k := range keys {
		found |= subtle.ConstantTimeCompare(sum[:], k[:])
	}
	if found == 0 {
		return &apiError{status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key", Message: "the API key is missing or wrong"}
	}
	return nil
}

// key returns the request's API key, from wherever clients of either API put it.
func key(r *http.Request) string {
	if k := r.Header.Get("X-Api-Key"); k != "" {
		return k
	}
	k := r.Header.Get("Authorization")
	if scheme, rest, ok := strings.Cut(k, " "); ok && strings.EqualFold(scheme, "Bearer") { // schemes are case-insensitive
		return rest
	}
	return k
}

type requestKey struct{}

// name returns the request's id.
func name(r *http.Request) string {
	id, _ := r.Context().Value(requestKey{}).(string)
	return id
}

// requestID returns the client's id if it is 1 to 128 visible ASCII characters, or else
// a new one.
func requestID(given string) string {
	ok := given != "" && len(given) <= 128
	for i := 0; i < len(given) && ok; i++ {
		ok = given[i] > ' ' && given[i] < 0x7f
	}
	if ok {
		return given
	}
	return "req-" + randomID()
}

func randomID() string {
	var b [12]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// statusWriter records the status and size of an answer.
type statusWriter struct {
	http.ResponseWriter
	log           *slog.Logger
	status, bytes int

	turn *turns.Turn // ends before the first byte; nil of a service with an engine of its own
	ctx  context.Context
}

// prepare waits for a turn to make the answer in, unless it has begun.
func (w *statusWriter) prepare() error {
	if w.status != 0 || w.turn == nil {
		return nil
	}
	return w.turn.Take(w.ctx)
}

func (w *statusWriter) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) begin(status int) {
	if w.status == 0 {
		if w.status = status; w.turn != nil {
			w.turn.Give()
		}
	}
}

func (w *statusWriter) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.bytes += n
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// boundTaking bounds the time in which a client must read an answer that is not a
// stream. A client that does not read would keep its connection, and its model loaded.
func boundTaking(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxAnswerTime)) // net/http lifts it after the answer
}

// writeJSON writes an answer.
func writeJSON(w http.ResponseWriter, v any) error {
	boundTaking(w)
	w.Header().Set("Content-Type", "application/json")
	if out, ok := w.(*statusWriter); ok {
		if err := out.prepare(); err != nil {
			return err
		}
	}
	return encode(w, v)
}

// pieceWriter writes an answer whose pieces are each made in a turn. Writing, which may wait
// for the client, needs none.
type pieceWriter struct {
	*bufio.Writer
	out *statusWriter
}

func newPieceWriter(w http.ResponseWriter) *pieceWriter {
	boundTaking(w)
	w.Header().Set("Content-Type", "application/json")
	out, _ := w.(*statusWriter)
	return &pieceWriter{bufio.NewWriterSize(betweenTurns{w, out}, 32<<10), out}
}

// betweenTurns writes without a turn.
type betweenTurns struct {
	http.ResponseWriter
	out *statusWriter
}

func (w betweenTurns) Write(p []byte) (int, error) {
	if w.out != nil && w.out.turn != nil {
		w.out.turn.Give()
	}
	return w.ResponseWriter.Write(p)
}

// piece begins a piece.
func (p *pieceWriter) piece() error {
	if p.out == nil || p.out.turn == nil {
		return nil
	}
	if err := p.out.turn.Take(p.out.ctx); err != nil {
		return err
	}
	return p.out.turn.Check(p.out.ctx)
}

// writeList writes an answer with a list of values under a key, under which the answer has
// an empty list. Its values are pieces: all at once might take long.
func writeList[T any](w http.ResponseWriter, answer any, key string, list []T) error {
	out := newPieceWriter(w)
	if err := out.piece(); err != nil {
		return err
	}
	var text strings.Builder
	if err := encode(&text, answer); err != nil {
		return err
	}
	mark := strconv.Quote(key) + ":["
	before, after, _ := strings.Cut(text.String(), mark) // not within a string, where quotes are escaped
	out.WriteString(before + mark)
	for i := range list {
		if err := out.piece(); err != nil {
			return err
		}
		if i > 0 {
			out.WriteByte(',')
		}
		if err := encode(unbroken{out.Writer}, list[i]); err != nil {
			return err
		}
	}
	out.WriteString(after)
	return out.Flush()
}

// encode writes JSON and a newline. Answers and streams encode the same text alike.
func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
