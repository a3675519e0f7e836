package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model/builtin"
)

// TestInternalErrors: clients learn under which request the log has the error, and nothing
// else of it.
func TestInternalErrors(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	m, err := builtin.Open(t.Context())
	require.NoError(t, err)
	s := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, s.OpenStore(dir))
	require.NoError(t, s.Add("needle/llama", m, engine.Options{MaxBytes: 64 << 20}))
	ts := serveTest(t, s, m)
	var doc document
	ts.post(t, "/v1/documents", object{"text": "Some text."}, &doc)
	file := filepath.Join(dir, documentFile("", doc.ID))
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.MkdirAll(filepath.Join(file, "in the way"), 0o700))
	status, text, _ := ts.do(t, "DELETE", "/v1/documents/"+doc.ID, "", "X-Request-Id", "my-request")
	require.Equal(t, 500, status)
	require.NotContains(t, text, dir)
	require.Contains(t, text, "the log of the server has it under the request my-request")
	require.Contains(t, text, `"code":"internal_error"`)
	ts.end() // the log is complete
	require.Regexp(t, `msg="internal error" id=my-request error=.*`+doc.ID, log.String())
}

// TestInternalErrorsOfStreams: likewise for errors in the middle of a stream.
func TestInternalErrorsOfStreams(t *testing.T) {
	var log strings.Builder
	r := httptest.NewRecorder()
	w := &statusWriter{ResponseWriter: r, log: slog.New(slog.NewTextHandler(&log, nil))}
	w.Header().Set("X-Request-Id", "mine")
	out := newEventStream(w, requestOf(New(Options{}), ""))
	out.fail(asError(errors.New("write /secret/path"), 0))
	out.close()
	require.NotContains(t, r.Body.String(), "secret")
	require.Contains(t, r.Body.String(), "under the request mine")
	require.Contains(t, log.String(), `id=mine error="write /secret/path"`)
}

// TestPanics: one before the answer becomes an answer, one during it breaks it off; the
// log has both.
func TestPanics(t *testing.T) {
	var log strings.Builder
	s := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for pattern, begin := range map[string]bool{"GET /before": false, "GET /within": true} {
		s.mux.Handle(pattern, s.wrap(pattern, func(w http.ResponseWriter, r *http.Request) error {
			if begin {
				out := newEventStream(w, r)
				defer out.close()
				out.line("data: a piece")
			}
			panic("fault in " + pattern)
		}))
	}
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	resp, err := ts.Client().Get(ts.URL + "/before")
	require.NoError(t, err)
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 500, resp.StatusCode)
	require.NotContains(t, string(data), "fault")

	resp, err = ts.Client().Get(ts.URL + "/within")
	require.NoError(t, err)
	data, err = io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "data: a piece\n\n", string(data))
	ts.Close() // the log is complete
	for _, at := range []string{"before", "within"} {
		require.Contains(t, log.String(), "fault in GET /"+at)
	}
}

// cutFormat is a format whose stream is cut where at says.
type cutFormat struct {
	*chatFormat
	at  string
	cut func(out *eventStream)
}

func (f cutFormat) add(out *eventStream, e *answerEvent) {
	if f.chatFormat.add(out, e); f.at == "within" {
		f.cut(out)
	}
}

func (f cutFormat) end(w http.ResponseWriter, out *eventStream, sum *outcome) error {
	if f.at == "end" {
		f.cut(out)
	}
	return f.chatFormat.end(w, out, sum)
}

// TestCutStreams: half an answer does not look complete, whatever the connection; the log has
// what the client is not at fault for.
func TestCutStreams(t *testing.T) {
	var log strings.Builder
	ts := start(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, engine.Options{})
	cuts := map[string]func(out *eventStream){
		"slow":  func(out *eventStream) { out.err = errSlowClient },
		"wrong": func(out *eventStream) { out.send(math.NaN()) },
		"none":  func(*eventStream) {},
	}
	ts.s.mux.Handle("POST /cut", ts.s.wrap("POST /cut", func(w http.ResponseWriter, r *http.Request) error {
		f, err := body(r)
		if err != nil {
			return err
		}
		c, err := ts.s.chatRequest(r, f, false)
		if err != nil {
			return err
		}
		format := cutFormat{&chatFormat{c: c, begun: make([]bool, 1)}, r.FormValue("at"), cuts[r.FormValue("how")]}
		return ts.s.answer(w, r, c.answering(true, false), format)
	}))
	secure := httptest.NewUnstartedServer(ts.s.Handler())
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	for _, server := range []*httptest.Server{ts.Server, secure} {
		for how := range cuts {
			for _, at := range []string{"within", "end"} {
				resp, err := server.Client().Post(server.URL+"/cut?how="+how+"&at="+at, "application/json", strings.NewReader(mustJSON(t, ask("Hello", object{"max_tokens": 3}))))
				if err == nil { // otherwise it was cut before anything was sent
					var text []byte
					text, err = io.ReadAll(resp.Body)
					require.NoError(t, resp.Body.Close())
					require.Equal(t, how == "none", strings.Contains(string(text), "[DONE]"))
				}
				require.Equal(t, how == "none", err == nil, "%s %s: %v", how, at, err)
			}
		}
	}
	secure.Close()
	ts.end() // the log is complete
	require.Equal(t, 4, strings.Count(log.String(), `msg="internal error"`), log.String())
	require.Contains(t, log.String(), "unsupported value: NaN")
}

// TestFormOfRefusals: what is refused before it reaches an endpoint is refused in the form
// of the API that was called, too.
func TestFormOfRefusals(t *testing.T) {
	ts := start(t, Options{Keys: []string{"k"}, Hosts: []string{"127.0.0.1"}}, engine.Options{})
	for _, x := range []struct {
		status       int
		method, path string
		kind         string
		header       [2]string
	}{
		{405, "GET", "", "invalid_request_error", [2]string{}},
		{405, "DELETE", "/count_tokens", "invalid_request_error", [2]string{}},
		{404, "POST", "/batches", "not_found_error", [2]string{}},
		{403, "POST", "", "permission_error", [2]string{"Sec-Fetch-Site", "cross-site"}},
		{403, "POST", "/count_tokens", "permission_error", [2]string{"Host", "elsewhere.example"}},
		{401, "POST", "/count_tokens", "authentication_error", [2]string{}},
		{415, "POST", "", "invalid_request_error", [2]string{"Content-Type", "text/plain"}},
	} {
		header := []string{x.header[0], x.header[1]}
		if x.header[0] == "" {
			header = nil
		}
		if x.status == 415 {
			header = append(header, "X-Api-Key", "k")
		}
		status, text, h := ts.do(t, x.method, "/v1/messages"+x.path, "{}", header...)
		require.Equal(t, x.status, status, text)
		require.Equal(t, "application/json", h.Get("Content-Type"))
		var e struct {
			Type      string
			Error     map[string]string
			RequestID string `json:"request_id"`
		}
		decode(t, text, &e)
		require.Equal(t, "error", e.Type)
		require.Equal(t, x.kind, e.Error["type"])
		require.NotEmpty(t, e.Error["message"])
		require.Len(t, e.Error, 2)
		require.Equal(t, h.Get("Request-Id"), e.RequestID)
		require.Equal(t, x.status == 405, h.Get("Allow") == "POST")
	}
	status, text, _ := ts.do(t, "POST", "/v1/messagesx", "{}")
	require.Equal(t, 404, status)
	require.Contains(t, text, `"param":null`)
}

// requestOf returns a request of an owner as handlers get it.
func requestOf(s *Server, owner string) *http.Request {
	r := httptest.NewRequest("POST", "/", nil)
	return r.WithContext(context.WithValue(r.Context(), holdsKey{}, s.newHolds(owner)))
}
