package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/builtin"
)

// start runs the service and returns its address and a function that stops it.
func start(t *testing.T, maxBytes int64) (url string, stop func() error) {
	m, err := open(context.Background(), "")
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l, m, maxBytes, 0.5) }()
	var once sync.Once
	stop = func() (err error) {
		once.Do(func() {
			cancel()
			err = errors.Join(<-done, m.Close())
		})
		return err
	}
	t.Cleanup(func() { stop() })
	return "http://" + l.Addr().String(), stop
}

func send(t *testing.T, ctx context.Context, method, url, body string) (int, string) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func TestService(t *testing.T) {
	ctx := context.Background()
	url, stop := start(t, 64<<20)
	var documents []builtin.Sample
	for _, s := range builtin.Samples() {
		if len(s.Context) < 1500 && len(documents) < 8 {
			documents = append(documents, s)
		}
	}
	require.Len(t, documents, 8)
	var wg sync.WaitGroup
	for i, d := range documents {
		wg.Go(func() {
			status, text := send(t, ctx, "PUT", fmt.Sprintf("%s/documents/%d", url, i), d.Context)
			if status != http.StatusCreated {
				t.Errorf("document %d: %d %s", i, status, text)
			}
		})
	}
	wg.Wait()
	// Everybody asks at once; the same question gets the same answer.
	answers := make([]string, 16)
	for i := range answers {
		wg.Go(func() {
			d := documents[i%8]
			_, answers[i] = send(t, ctx, "POST", fmt.Sprintf("%s/documents/%d/ask", url, i%8), d.Question)
		})
	}
	wg.Wait()
	right := 0
	for i := range 8 {
		require.Equal(t, answers[i], answers[i+8])
		if strings.Contains(answers[i], documents[i].Answers[0]) {
			right++
		}
	}
	require.GreaterOrEqual(t, right, 4, "%q", answers)

	// A client that disconnects leaves nothing behind.
	gone, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	send(t, gone, "POST", url+"/documents/0/ask", documents[0].Question)
	require.Eventually(t, func() bool {
		_, text := send(t, ctx, "GET", url+"/stats", "")
		return strings.Contains(text, "Running:0 ReservedBytes:0")
	}, 20*time.Second, 20*time.Millisecond)

	status, _ := send(t, ctx, "DELETE", url+"/documents/0", "")
	require.Equal(t, http.StatusNoContent, status)
	status, _ = send(t, ctx, "POST", url+"/documents/0/ask", "?")
	require.Equal(t, http.StatusNotFound, status)
	require.NoError(t, stop())
}

func TestServiceLimit(t *testing.T) {
	url, _ := start(t, 200<<10)
	status, text := send(t, context.Background(), "PUT", url+"/documents/a", builtin.Samples()[0].Context)
	require.Equal(t, http.StatusInsufficientStorage, status)
	require.Contains(t, text, "the limit is 204800")
}
