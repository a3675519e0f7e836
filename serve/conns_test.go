package serve

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// limited serves with at most n connections, which are given up without patience.
func limited(t *testing.T, s *Server, n int, secure bool) (ts *httptest.Server, l *limitedListener) {
	ts = httptest.NewUnstartedServer(s.Handler())
	l = s.Limit(ts.Config, ts.Listener, n).(*limitedListener)
	l.patience = 40 * time.Millisecond
	ts.Listener = l
	ts.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		ts.EnableHTTP2 = true
		ts.StartTLS()
	} else {
		ts.Start()
	}
	t.Cleanup(ts.Close)
	return ts, l
}

// TestConnectionsComeBack: as many connections as are allowed that wait for their clients,
// whatever for, do not keep others out.
func TestConnectionsComeBack(t *testing.T) {
	const n = 4
	s := New(Options{Keys: []string{"k"}})
	for name, text := range map[string]string{
		"idle":             "",
		"kept alive":       "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
		"half a header":    "GET /health HTTP/1.1\r\nHost",
		"a refused key":    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
		"a slow body":      "POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
		"an endless body":  "POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"an endless form":  "POST /v1/documents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100\r\n\r\n--b",
		"a body of a GET":  "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
		"unknown endpoint": "POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			ts, l := limited(t, s, n, false)
			for range n {
				c, err := net.Dial("tcp", ts.Listener.Addr().String())
				require.NoError(t, err)
				defer c.Close()
				_, err = io.WriteString(c, text)
				require.NoError(t, err)
			}
			for range 2 * n {
				resp, err := (&http.Client{Transport: &http.Transport{}, Timeout: time.Minute}).Get(ts.URL + "/health")
				require.NoError(t, err)
				resp.Body.Close()
				require.Equal(t, 200, resp.StatusCode)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			require.LessOrEqual(t, len(l.open), n)
		})
	}
}

// TestWorkIsNotInterrupted: connections whose requests are being computed keep their places.
func TestWorkIsNotInterrupted(t *testing.T) {
	for _, secure := range []bool{false, true} {
		s := New(Options{})
		began, finish := make(chan struct{}), make(chan struct{})
		s.mux.Handle("GET /work", s.wrap("GET /work", func(w http.ResponseWriter, r *http.Request) error {
			began <- struct{}{}
			<-finish
			return writeJSON(w, "done")
		}))
		ts, _ := limited(t, s, 1, secure)
		client := ts.Client()
		answer := make(chan string, 1)
		go func() {
			resp, err := client.Get(ts.URL + "/work")
			if err != nil {
				answer <- err.Error()
				return
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			answer <- string(text)
		}()
		<-began
		other, err := net.Dial("tcp", ts.Listener.Addr().String())
		require.NoError(t, err)
		defer other.Close()
		time.Sleep(200 * time.Millisecond) // several times the patience
		close(finish)
		require.Equal(t, "\"done\"\n", <-answer)
	}
}

// TestRefusedBodiesDoNotWait: a request whose body was refused on the way, or whose answer was
// broken off, does not wait for its client once it has ended. Over HTTP/2 its connection goes on:
// it would seem to wait while it has requests that are being computed.
func TestRefusedBodiesDoNotWait(t *testing.T) {
	for _, path := range []string{"/tokenize", "/broken"} {
		s := New(Options{MaxBody: 1000})
		began, finish := make(chan struct{}), make(chan struct{})
		s.mux.Handle("GET /work", s.wrap("GET /work", func(w http.ResponseWriter, r *http.Request) error {
			close(began)
			<-finish
			return writeJSON(w, "done")
		}))
		s.mux.Handle("POST /broken", s.wrap("POST /broken", func(w http.ResponseWriter, r *http.Request) error {
			r.Body.Read(make([]byte, 1))
			w.WriteHeader(http.StatusOK)
			return errors.New("no more")
		}))
		ts, l := limited(t, s, 1, true)
		end := sync.OnceFunc(func() { close(finish) })
		t.Cleanup(end)
		answer := make(chan error, 1)
		go func() {
			resp, err := ts.Client().Get(ts.URL + "/work")
			if err == nil {
				err = resp.Body.Close()
			}
			answer <- err
		}()
		<-began
		resp, err := ts.Client().Post(ts.URL+path, "application/json", io.MultiReader(strings.NewReader(strings.Repeat("x", 2000)))) // of no stated length
		if path == "/tokenize" {
			require.NoError(t, err)
			require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
			require.Equal(t, 2, resp.ProtoMajor)
			require.NoError(t, resp.Body.Close())
		} else {
			require.Error(t, err)
		}
		requests, waiting := 2, 0
		for requests == 2 {
			l.mu.Lock()
			for c := range l.open {
				requests, waiting = c.requests, c.waiting
			}
			l.mu.Unlock()
		}
		require.Equal(t, 1, requests)
		require.Zero(t, waiting, path)
		end()
		require.NoError(t, <-answer)
	}
}

// TestRefusalsAreRead: a client that writes all of a long request before it reads gets the
// refusal; one that says beforehand that the request is too long gets it without sending.
func TestRefusalsAreRead(t *testing.T) {
	ts := start(t, Options{Keys: []string{"k"}, MaxBody: 64 << 20}, engine.Options{})
	body := bytes.Repeat([]byte("x"), 16<<20)
	for _, test := range []struct {
		head string
		want int
	}{
		{"POST /none HTTP/1.1", 404},
		{"PUT /v1/completions HTTP/1.1", 405},
		{"POST /v1/completions HTTP/1.1", 401},
		{"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Type: text/plain", 415},
		{"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\nSec-Fetch-Site: cross-site", 403},
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(ts.URL, "http://"))
		require.NoError(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "%s\r\nHost: x\r\nContent-Length: %d\r\n\r\n", test.head, len(body))
		require.NoError(t, err)
		_, err = c.Write(body)
		require.NoError(t, err, test.head)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err, test.head)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, test.want, resp.StatusCode, "%s: %s", test.head, text)
		require.True(t, resp.Close, "what follows is not another request")
	}
	for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(ts.URL, "http://"))
		require.NoError(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n%s\r\n", expect)
		require.NoError(t, err)
		line, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, "413")
	}
}
