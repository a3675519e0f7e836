package hub

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRequests checks what every request carries and how many redirects it
// follows.
func TestRequests(t *testing.T) {
	var redirects atomic.Int32
	var header atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header.Store(r.Header.Clone())
		if redirects.Add(-1) >= 0 {
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	c := &Client{Endpoint: server.URL}
	ask := func(n int32) error {
		redirects.Store(n)
		resp, err := c.send(t.Context(), http.MethodGet, "/x", 0)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	require.NoError(t, ask(10))
	require.ErrorContains(t, ask(11), "more than 10 in a row")
	got := header.Load().(http.Header)
	assert.Equal(t, "lukv", got.Get("User-Agent"))
	assert.Equal(t, "identity", got.Get("Accept-Encoding"), "lengths and ranges are those of the content")
	assert.Empty(t, got.Get("Authorization"))
	assert.Empty(t, got.Get("Range"))
	c.UserAgent, c.Token = "mine/2", "hf_x"
	require.NoError(t, ask(0))
	got = header.Load().(http.Header)
	assert.Equal(t, "mine/2", got.Get("User-Agent"))
	assert.Equal(t, "Bearer hf_x", got.Get("Authorization"))

	// A long failure text is cut; others stay as they are.
	for n, want := range map[int]int{100: 100, 500: 500, 501: 201, 5000: 201} {
		c.Transport = failing(strings.Repeat("x", n))
		err := ask(0)
		require.Error(t, err)
		assert.Equal(t, want, strings.Count(err.Error(), "x")+strings.Count(err.Error(), "…"))
	}
}

// failing is a transport that fails with this text.
type failing string

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New(string(f)) }

func TestAccess(t *testing.T) {
	for _, tc := range []struct {
		code  int
		token string
		is    error
		text  string
	}{
		{401, "", ErrAccess, "set HF_TOKEN"},
		{401, "hf_secret", ErrAccess, "the token may be wrong"},
		{403, "hf_secret", ErrAccess, "conditions not accepted"},
		{404, "", ErrNotFound, "404"},
		{400, "", nil, "400 (bad request): No such  thing"},
	} {
		h := oneFile(t, 10)
		h.onAPI = func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("X-Error-Message", "No such\u202e thing"+strings.Repeat("!", 1000))
			w.WriteHeader(tc.code)
			return true
		}
		c := h.client()
		c.Token = tc.token
		_, err := c.Pull(t.Context(), ref, PullOptions{})
		require.Error(t, err)
		if tc.is != nil {
			require.ErrorIs(t, err, tc.is)
		}
		require.ErrorContains(t, err, tc.text)
		assert.NotContains(t, err.Error(), "\u202e")
		assert.NotContains(t, err.Error(), "hf_secret")
		assert.Less(t, len(err.Error()), 600)
		assert.Equal(t, 1, h.seen("hub"), "no second try")
	}
}

// TestRedirects checks who gets the token.
func TestRedirects(t *testing.T) {
	var tokens []string
	var mu sync.Mutex
	note := func(name string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		tokens = append(tokens, name+"="+r.Header.Get("Authorization"))
	}
	var a, b *httptest.Server
	a = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("a"+r.URL.Path, r)
		switch r.URL.Path {
		case "/1":
			http.Redirect(w, r, "/2", http.StatusFound)
		case "/2":
			http.Redirect(w, r, b.URL+"/3", http.StatusFound)
		}
	}))
	defer a.Close()
	b = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("b"+r.URL.Path, r)
		http.Redirect(w, r, a.URL+"/4", http.StatusFound)
	}))
	defer b.Close()
	c := &Client{Endpoint: a.URL, Token: "t"}
	resp, err := c.send(t.Context(), http.MethodGet, "/1", 0)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, []string{"a/1=Bearer t", "a/2=Bearer t", "b/3=", "a/4="}, tokens)

	tokens = nil
	resp, err = c.send(t.Context(), http.MethodHead, "/1", 0)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 302, resp.StatusCode)
	assert.Equal(t, []string{"a/1=Bearer t", "a/2=Bearer t"}, tokens)

	secure := httptest.NewTLSServer(http.RedirectHandler(a.URL+"/4", http.StatusFound))
	defer secure.Close()
	tokens = nil
	c = &Client{Endpoint: secure.URL, Token: "t", Transport: secure.Client().Transport}
	_, err = c.send(t.Context(), http.MethodGet, "/1", 0)
	require.ErrorContains(t, err, "redirect refused: from https to http")
	assert.Empty(t, tokens)
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Duration{
		"": 0, "x": 0, "-5": 0, "12": 12 * time.Second, "99999999999999999999": 0,
		"Fri, 02 Jan 2026 03:04:35 GMT": 30 * time.Second, "Thu, 01 Jan 2026 00:00:00 GMT": 0,
	} {
		assert.Equal(t, want, retryAfter(s, now), s)
	}
}

// A server's text in a message is one printable line of at most 200 characters.
func TestPlain(t *testing.T) {
	assert.Equal(t, "a b  [31mc", plain(" a\nb\r\x1b[31mc\t"))
	assert.Equal(t, strings.Repeat("é", 200), plain(strings.Repeat("é", 200)))
	assert.Equal(t, strings.Repeat("é", 200)+"…", plain(strings.Repeat("é", 201)))
}
