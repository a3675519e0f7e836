package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// TestHandler: errors of services get the status that fits, and those that are none of the
// client's stay in the log.
func TestHandler(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int
		text   string
	}{
		{nil, 200, "fine"},
		{NotFound("document %q", "a"), 404, `document \"a\" not found`},
		{fmt.Errorf("request x: %w", engine.ErrQueueFull), 429, "queue_full"},
		{&engine.TooLargeError{Needed: 7, Limit: 5}, 507, "the limit is 5"},
		{&structured.FormatError{Err: errors.New("odd")}, 400, "the format of the answer: odd"},
		{&http.MaxBytesError{Limit: 9}, 413, "more than 9 bytes"},
		{fmt.Errorf("%w: 9 tokens", model.ErrContextFull), 400, "9 tokens"},
		{errors.New("/secret/path"), 500, "the log of the server"},
	} {
		w := httptest.NewRecorder()
		Handler(func(w http.ResponseWriter, _ *http.Request) error {
			if test.err == nil {
				io.WriteString(w, "fine")
			}
			return test.err
		}).ServeHTTP(w, httptest.NewRequest("POST", "/x", nil))
		require.Equal(t, test.status, w.Code, "%v", test.err)
		require.Contains(t, w.Body.String(), test.text)
		require.NotContains(t, w.Body.String(), "secret")
		require.NotEmpty(t, w.Header().Get("X-Request-Id"))
	}
}

// TestHandlerBreaksOff: an answer that ends with an error does not look complete.
func TestHandlerBreaksOff(t *testing.T) {
	ts := httptest.NewServer(Handler(func(w http.ResponseWriter, _ *http.Request) error {
		io.WriteString(w, "half")
		require.NoError(t, http.NewResponseController(w).Flush())
		return errors.New("no more")
	}))
	defer ts.Close()
	resp, err := ts.Client().Get(ts.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "half", string(text))
}

// TestStreamEvents: the answer comes as events, an error before it alone, and one within it as
// the last event.
func TestStreamEvents(t *testing.T) {
	m, err := builtin.Open(t.Context())
	require.NoError(t, err)
	e, err := engine.New(m, engine.Options{})
	require.NoError(t, err)
	defer m.Close()
	defer e.Close()
	stream := func(q engine.Request) (string, error) {
		w := httptest.NewRecorder()
		err := StreamEvents(w, httptest.NewRequest("POST", "/x", nil), e, q, func(e engine.Event) any {
			if e.Text == "" {
				return nil
			}
			return e.Text
		})
		return w.Body.String(), err
	}
	q := engine.Request{Prompt: []int32{1, 2, 3}, Format: structured.Choice("yes")}
	got, err := stream(q)
	require.NoError(t, err)
	text := ""
	for line := range strings.Lines(got) {
		if data, ok := strings.CutPrefix(line, "data: \""); ok {
			text += strings.TrimSuffix(data, "\"\n")
		}
	}
	require.Equal(t, "yes", text)
	require.True(t, strings.HasSuffix(got, "data: [DONE]\n\n"), got)

	got, err = stream(engine.Request{})
	require.ErrorContains(t, err, "the prompt is empty")
	require.Empty(t, got)
	q.Mask = func(context.Context, int, []int32) ([]uint64, error) { return nil, errors.New("no more") }
	got, err = stream(q)
	require.ErrorContains(t, err, "no more")
	require.Contains(t, got, `{"error":{"message":"`)
	require.NotContains(t, got, "[DONE]")
}
