package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lukv/lukv/model/builtin"
)

// start runs the service on the embedded model and returns its address.
func start(t *testing.T, maxBytes int64) (*service, string) {
	m, err := builtin.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s, err := newService(m, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.routes())
	t.Cleanup(func() {
		server.Close()
		s.e.Close()
		m.Close()
	})
	return s, server.URL
}

func send(t *testing.T, ctx context.Context, method, url, body string) (int, string) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// textOf returns the text of a stream of events, which must be whole.
func textOf(stream string) (text string, whole bool) {
	for line := range strings.Lines(stream) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		var event struct{ Text string }
		if data == "[DONE]" {
			whole = true
		} else if ok && json.Unmarshal([]byte(data), &event) == nil {
			text += event.Text
		}
	}
	return text, whole
}

func TestService(t *testing.T) {
	ctx := context.Background()
	s, url := start(t, 64<<20)
	var documents []builtin.Sample
	for _, d := range builtin.Samples() {
		if len(d.Context) < 1500 && len(documents) < 8 {
			documents = append(documents, d)
		}
	}
	var wg sync.WaitGroup
	for i, d := range documents {
		wg.Go(func() {
			status, text := send(t, ctx, "PUT", fmt.Sprintf("%s/documents/%d", url, i), d.Context)
			var use struct{ Entries, FullEntries int }
			if err := json.Unmarshal([]byte(text), &use); status != http.StatusOK || err != nil || use.Entries*2 > use.FullEntries || use.Entries == 0 {
				t.Errorf("document %d: %d %s", i, status, text)
			}
		})
	}
	wg.Wait()
	// Everybody asks at once; the same question gets the same answer, read once.
	answers := make([]string, 2*len(documents))
	for i := range answers {
		wg.Go(func() {
			_, stream := send(t, ctx, "POST", fmt.Sprintf("%s/documents/%d/ask", url, i%8), documents[i%8].Question)
			whole := false
			if answers[i], whole = textOf(stream); !whole || answers[i] == "" {
				t.Errorf("document %d: %q", i%8, stream)
			}
		})
	}
	wg.Wait()
	for i := range documents {
		if answers[i] != answers[i+8] {
			t.Errorf("document %d: %q and %q", i, answers[i], answers[i+8])
		}
	}
	if st := s.e.Stats(); st.CachedTokens == 0 {
		t.Error("no document was found in the cache")
	}

	// Labels and structured answers are what they have to be.
	_, stream := send(t, ctx, "POST", url+"/documents/1/ask?label=yes&label=no", "Is it about a town?")
	if label, _ := textOf(stream); label != "yes" && label != "no" {
		t.Errorf("label %q of %q", label, stream)
	}
	status, text := send(t, ctx, "POST", url+"/documents/1/place", "Name a place.")
	var place struct{ Name, Event *string }
	if err := json.Unmarshal([]byte(text), &place); status != http.StatusOK || err != nil || place.Name == nil || place.Event == nil {
		t.Errorf("place: %d %s", status, text)
	}

	// A client that disconnects leaves nothing behind.
	gone, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	send(t, gone, "POST", url+"/documents/0/ask", documents[0].Question)
	for deadline := time.Now().Add(20 * time.Second); s.e.Stats().Running > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", s.e.Stats())
		}
	}

	if status, _ = send(t, ctx, "DELETE", url+"/documents/0", ""); status != http.StatusOK {
		t.Errorf("delete: %d", status)
	}
	if status, text = send(t, ctx, "POST", url+"/documents/0/ask", "?"); status != http.StatusNotFound {
		t.Errorf("a document that is gone: %d %s", status, text)
	}
}

// TestLimits: what does not fit is refused with the numbers.
func TestLimits(t *testing.T) {
	_, url := start(t, 200<<10)
	status, text := send(t, context.Background(), "PUT", url+"/documents/a", builtin.Samples()[0].Context)
	if status != http.StatusInsufficientStorage || !strings.Contains(text, "the limit is 204800") {
		t.Errorf("%d %s", status, text)
	}
	status, text = send(t, context.Background(), "PUT", url+"/documents/a", strings.Repeat("x y z ", 1<<16))
	if status != http.StatusBadRequest || !strings.Contains(text, "context_length_exceeded") {
		t.Errorf("%d %s", status, text)
	}
}
