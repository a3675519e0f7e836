package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/kvevents"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/serve"
)

type serveCmd struct {
	requests *engine.Account // see account

	Models []string `arg:"" name:"model" help:"Checkpoint folders, GGUF files, names of models fetched by lukv pull, or builtin; NAME=MODEL serves a model under another name."`

	Listen      string         `group:"listen" default:"127.0.0.1:8000" placeholder:"ADDRESS" help:"Listen on this address (default ${default}: this machine only)."`
	KeyFile     string         `group:"listen" type:"path" placeholder:"FILE" help:"Accept the API keys in FILE, one per line, and that in LUKV_API_KEY. SIGHUP reloads this file and those of --tls-cert, --tls-key and --profile."`
	Insecure    bool           `group:"listen" help:"Listen on addresses other than this machine's without an API key."`
	Host        []string       `group:"listen" placeholder:"NAME" help:"Accept requests for this host name (default: this machine's names if the server listens only there, otherwise all names). May be repeated."`
	CORSOrigin  []string       `group:"listen" name:"cors-origin" placeholder:"ORIGIN" help:"Allow web pages of this origin, such as https://chat.example (default: only the server's own page). May be repeated."`
	TLSCert     string         `group:"listen" type:"path" placeholder:"FILE" help:"Serve HTTPS with this certificate."`
	TLSKey      string         `group:"listen" type:"path" placeholder:"FILE" help:"Read the certificate's key from FILE."`
	MaxBody     byteSize       `group:"limits" default:"32MiB" placeholder:"SIZE" help:"Refuse request bodies of more than SIZE (default ${default})."`
	MaxConns    int            `group:"limits" name:"max-connections" default:"1024" placeholder:"N" help:"Accept at most N connections at once (default ${default}); further connections replace those that wait for their clients."`
	MaxRequests byteSize       `group:"limits" name:"max-request-memory" placeholder:"SIZE" help:"Limit the memory of all requests and answers in progress, without caches, to SIZE (default: a quarter of the memory available at the start); refuse further requests with status 503."`
	MaxRunning  int            `group:"limits" default:"64" placeholder:"N" help:"Decode at most N answers at once (default ${default}), and an eighth more for an API key of which nothing runs."`
	MaxQueue    int            `group:"limits" default:"256" placeholder:"N" help:"Let at most N requests wait (default ${default}); refuse further requests with status 429."`
	Latency     *time.Duration `group:"limits" placeholder:"TIME" help:"Aim for this time between tokens of an answer during the prefill of other prompts (default 100ms, or where that is longer the time of a step with as many tokens of prompts as take eight passes without, 128 at most). Less makes streams smoother and all answers together slower."`
	MaxAnswer   *int           `group:"limits" placeholder:"N" help:"End answers after N tokens, whatever requests ask for (default: 4096 for requests that set no limit, none for others)."`
	AnswerTime  time.Duration  `group:"limits" placeholder:"TIME" help:"End answers after this time of decoding (default: no limit)."`
	Lookup      bool           `group:"served" help:"Compute several tokens at once where an answer quotes its prompt; the answers are the same."`
	Grace       time.Duration  `group:"limits" default:"1s" placeholder:"TIME" help:"After SIGTERM, accept requests for this time while /ready fails, so that routers can react (default ${default})."`
	Drain       time.Duration  `group:"limits" default:"25s" placeholder:"TIME" help:"Then allow this time for answers in progress (default ${default})."`
	LogFormat   string         `group:"listen" enum:"text,json" default:"text" help:"Set the form of the log, which has one line per request without its contents: ${enum}."`
	UnloadAfter time.Duration  `group:"served" placeholder:"TIME" help:"Load models on demand, and unload a model that is unused for this time."`
	MaxMemory   byteSize       `group:"served" placeholder:"SIZE" help:"Load models on demand, and unload the least recently used so that weights and caches of all models take at most SIZE. Needs --max-cache."`
	Profile     []string       `group:"served" type:"path" placeholder:"FILE" help:"Load a profile that kv_compression may name, by its file name without extension. May be repeated."`
	Compress    string         `group:"served" name:"kv-compression" placeholder:"JSON" help:"Set the policy, as JSON, for contexts and documents of requests without a policy."`

	KVEvents       string `group:"events" name:"kv-events" placeholder:"ADDRESS" help:"Publish the cached prompts at this address, for routers: vLLM's KV events over ZeroMQ."`
	KVEventsReplay string `group:"events" name:"kv-events-replay" placeholder:"ADDRESS" help:"Replay recent events at this address, for late subscribers."`
	KVEventsName   string `group:"events" name:"kv-events-name" placeholder:"NAME" help:"Publish events under this address and port, by which the router knows the server (default: those of --listen)."`

	Store      string   `group:"kept" type:"path" placeholder:"FOLDER" help:"Keep documents and caches of prompts in FOLDER across restarts."`
	StoreBytes byteSize `group:"kept" placeholder:"SIZE" help:"Limit the stored caches of a model to SIZE and remove the least recently used (default: no limit)."`

	runtimeFlags
	verifyFlag
}

func (serveCmd) Help() string {
	return `Answers over HTTP as the OpenAI API does: /v1/chat/completions, /v1/responses, /v1/completions, /v1/embeddings, /v1/models; as Anthropic's: /v1/messages; as ollama's: /api/chat, /api/generate and others; with /tokenize, /detokenize, /health, /ready and /metrics as in vLLM. Requests run together as one batch; an answer does not depend on its neighbours, to the bit.

A request's "context", or a text uploaded with POST /v1/documents and named as "document", precedes the first message; "kv_compression", a policy as JSON, compresses its cache before the question is processed. --max-cache bounds the caches of all requests of a model together, those kept from earlier requests included; a request that can never fit is refused with the numbers. The log begins with each model and its limits. With --store, documents and their caches survive a restart, after a crash too.

With --kv-events, routers that subscribe know the blocks of prompts in the cache, and send requests that begin alike to the server that has them. The events hold the tokens of prompts and are for everybody who reaches the address.

Several models are all loaded at the start, or, with --unload-after or --max-memory, when they are asked for. In a browser the address shows a page: conversations, a document read and compressed, answers beside those of the full cache, and what each head kept.

Examples:

  lukv serve builtin

  lukv serve Qwen/Qwen2.5-0.5B-Instruct

  lukv serve small=Qwen/Qwen2.5-0.5B-Instruct models/llama --kv-compression '{"ratio":0.8,"metric":{"name":"keydiff"}}'

  lukv serve models/llama --max-cache 8GiB --store ~/.local/state/lukv --store-bytes 100GiB

  lukv serve models/small models/large --unload-after 10m --max-memory 24GiB --max-cache 4GiB

  lukv serve models/llama --max-cache 8GiB --kv-events 127.0.0.1:5557 --kv-events-replay 127.0.0.1:5558

  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"builtin","messages":[{"role":"user","content":"Hello"}]}'

  curl localhost:8000/v1/documents -H 'Content-Type: application/json' -d '{"text":"…","kv_compression":{"ratio":0.8}}'`
}

func (c *serveCmd) Run(e *env) error {
	keys, err := c.keys()
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return usage("--listen: %w", err)
	}
	local := isLocal(host)
	if !local && len(keys) == 0 && !c.Insecure {
		return usage("--listen %s can be reached from other machines: give API keys, or --insecure", c.Listen)
	}
	for flag, at := range map[string]string{"--kv-events": c.KVEvents, "--kv-events-replay": c.KVEventsReplay} {
		switch host, _, err := net.SplitHostPort(at); {
		case at == "":
		case err != nil:
			return usage("%s: %w", flag, err)
		case !isLocal(host) && !c.Insecure:
			return usage("%s %s can be reached from other machines, which would learn the tokens of all prompts; --insecure allows it", flag, at)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return usage("--tls-cert and --tls-key: both or none")
	}
	if err := c.check(); err != nil {
		return err
	}
	for _, origin := range c.CORSOrigin {
		if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil {
			return usage("--cors-origin: found %q, expected an origin such as https://chat.example or http://localhost:3000", origin)
		}
	}
	o := serve.Options{
		Keys: keys, Hosts: c.Host, Origins: c.CORSOrigin, MaxBody: int64(c.MaxBody), Requests: c.account(), Version: readVersion().Version,
		UnloadAfter: c.UnloadAfter, MaxModelBytes: int64(c.MaxMemory),
	}
	if local && len(o.Hosts) == 0 {
		o.Hosts = []string{"localhost", "127.0.0.1", "::1", host}
	}
	if !e.quiet {
		o.Log = slog.New(slog.NewTextHandler(e.err, nil))
		if c.LogFormat == "json" {
			o.Log = slog.New(slog.NewJSONHandler(e.err, nil))
		}
	}
	if o.Profiles, err = c.profiles(); err != nil {
		return err
	}
	if c.Compress != "" {
		if o.Compression, err = lukv.ParsePolicy([]byte(c.Compress)); err != nil {
			return usage("--kv-compression: %w", err)
		}
	}
	s := serve.New(o)
	if c.Store != "" {
		if err := s.OpenStore(filepath.Join(c.Store, "documents")); err != nil {
			return err
		}
	}
	events, err := c.publish(e, o.Log)
	if err != nil {
		return err
	}
	if events != nil {
		defer events.Close()
	}
	again := &reloader{c: c, s: s, log: o.Log}
	if c.TLSCert != "" {
		if err := again.certificate(); err != nil {
			return err
		}
	}
	if err := c.tryAddress(); err != nil {
		return err
	}
	models, err := c.open(e, s, events, o.Log)
	defer func() {
		for _, m := range models {
			m.Close()
		}
	}()
	if err != nil {
		return err
	}
	defer again.onHangup()()
	return c.listen(e, s, again, o.Log)
}

// check reports numbers out of range, 0 included where it would mean the default, and
// models without a name.
func (c *serveCmd) check() error {
	switch {
	case c.MaxConns < 1 || c.MaxConns > maxConnections:
		return usage("--max-connections: found %d, expected 1 to %d", c.MaxConns, maxConnections)
	case c.MaxRunning < 1 || c.MaxRunning > engine.MostRunning:
		return usage("--max-running: found %d, expected 1 to %d", c.MaxRunning, engine.MostRunning)
	case c.MaxQueue < 1:
		return usage("--max-queue: found %d, expected at least 1", c.MaxQueue)
	case c.MaxBody == 0:
		return usage("--max-body: found 0, expected more")
	case c.Latency != nil && *c.Latency <= 0:
		return usage("--latency: found %v, expected more than 0", *c.Latency)
	case c.MaxAnswer != nil && *c.MaxAnswer < 1:
		return usage("--max-answer: found %d, expected at least 1", *c.MaxAnswer)
	case c.AnswerTime < 0:
		return usage("--answer-time: found %v, expected 0 or more", c.AnswerTime)
	case c.Grace < 0 || c.Drain < 0:
		return usage("--grace and --drain: found %v and %v, expected 0 or more", c.Grace, c.Drain)
	case c.UnloadAfter < 0:
		return usage("--unload-after: found %v, expected 0 or more", c.UnloadAfter)
	case c.MaxMemory > 0 && c.MaxCache == 0:
		return usage("--max-memory needs --max-cache: caches without a limit cannot be counted")
	}
	for _, at := range c.Models {
		if id, name := named(at); id == "" || name == "" {
			return usage("model %q: expected MODEL or NAME=MODEL", at)
		}
	}
	return nil
}

// isLocal reports whether host is localhost or a loopback address.
func isLocal(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// named splits NAME=MODEL; without NAME, a model is served under its own name. A path that
// exists is one, whatever its name holds.
func named(at string) (id, name string) {
	if _, err := os.Stat(at); err == nil {
		return at, at
	}
	id, name, ok := strings.Cut(at, "=")
	if !ok {
		return at, at
	}
	return id, name
}

// publish starts publishing KV events, if the flags ask for it.
func (c *serveCmd) publish(e *env, log *slog.Logger) (*kvevents.Publisher, error) {
	if c.KVEvents == "" {
		return nil, nil
	}
	o := kvevents.Options{Events: c.KVEvents, Replay: c.KVEventsReplay, Name: cmp.Or(c.KVEventsName, c.Listen), Log: log}
	p, err := kvevents.Listen(o)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(e.out, "KV events on tcp://%s", p.Addr())
	if at := p.ReplayAddr(); at != nil {
		fmt.Fprintf(e.out, ", replayed on tcp://%s", at)
	}
	fmt.Fprintln(e.out)
	return p, nil
}

// reportTo returns the callback that announces the prompts that an engine keeps. Prompts
// with a compressed context are not announced: they cannot serve requests for the same
// tokens alone.
func reportTo(m *kvevents.Model) func(engine.PrefixEvent) {
	return func(p engine.PrefixEvent) {
		if p.Context == 0 {
			m.Report(p.Label, p.Tokens, p.Cached)
		}
	}
}

// account returns the account of the server and of all its engines.
func (c *serveCmd) account() *engine.Account {
	if c.requests == nil {
		c.requests = engine.ProcessAccount()
		if c.MaxRequests > 0 {
			c.requests = engine.NewAccount(int64(c.MaxRequests))
		}
	}
	return c.requests
}

// load opens a model, and reads all of its weights if --verify is given.
func (c *serveCmd) load(e *env, name string) (*model.Model, error) {
	m, err := c.runtimeFlags.open(e, name)
	if err != nil {
		return nil, err
	}
	if err := c.verify(e, m); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// tryAddress fails where the server could not listen: better before models are loaded than after.
func (c *serveCmd) tryAddress() error {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return l.Close()
}

// listen serves until the context is done, then lets answers in progress finish.
func (c *serveCmd) listen(e *env, s *serve.Server, again *reloader, log *slog.Logger) error {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	scheme := "http"
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 120 * time.Second, MaxHeaderBytes: 64 << 10}
	l = s.Limit(server, l, c.MaxConns)
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	if log != nil {
		server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	}
	unused := &unusedConns{conns: map[net.Conn]struct{}{}}
	server.ConnState = unused.note
	server.RegisterOnShutdown(unused.close)
	if c.TLSCert != "" {
		server.TLSConfig = &tls.Config{GetCertificate: again.current, MinVersion: tls.VersionTLS12}
		scheme = "https"
	}
	fmt.Fprintf(e.out, "listening on %s://%s\n", scheme, l.Addr())
	failed := make(chan error, 1)
	go func() {
		if scheme == "https" {
			failed <- server.ServeTLS(l, "", "")
		} else {
			failed <- server.Serve(l)
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-e.ctx.Done():
	}
	s.NotReady()
	select {
	case err := <-failed:
		return err
	case <-time.After(c.Grace):
	}
	drain, cancel := context.WithTimeout(context.Background(), c.Drain)
	defer cancel()
	err = s.Drain(drain)
	over, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	stuck := server.Shutdown(over)
	if stuck != nil {
		server.Close()
	}
	for _, err := range []error{err, stuck} {
		// Answers that took too long have ended with an error, and requests that did not
		// come in time with their connection, as they should.
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("shut down: %w", err)
		}
	}
	return nil
}

// unusedConns are connections that have not carried a request. Clients open some in
// advance; shutdown does not wait for them.
type unusedConns struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func (u *unusedConns) note(c net.Conn, s http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s == http.StateNew {
		u.conns[c] = struct{}{}
	} else {
		delete(u.conns, c)
	}
}

func (u *unusedConns) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.conns {
		c.Close()
	}
}

// maxConnections bounds --max-connections.
const maxConnections = 1 << 20
