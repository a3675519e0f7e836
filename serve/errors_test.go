package serve

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model/builtin"
)

// TestInternalErrors: clients get to know under which name the log has what went wrong,
// and nothing of it.
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

// TestInternalErrorsOfStreams: likewise for those that come in the middle.
func TestInternalErrorsOfStreams(t *testing.T) {
	var log strings.Builder
	r := httptest.NewRecorder()
	w := &statusWriter{ResponseWriter: r, log: slog.New(slog.NewTextHandler(&log, nil))}
	w.Header().Set("X-Request-Id", "mine")
	newEventStream(w).fail(asError(errors.New("write /secret/path"), 0))
	require.NotContains(t, r.Body.String(), "secret")
	require.Contains(t, r.Body.String(), "under the request mine")
	require.Contains(t, log.String(), `id=mine error="write /secret/path"`)
}
