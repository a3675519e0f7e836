package command

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// replicas are servers and a stand-in for a router, which sends prompts that begin alike
// to the same server and checks every few milliseconds which servers are ready.
type replicas struct {
	mu    sync.Mutex
	urls  []string
	ready []bool
}

func (r *replicas) watch(ctx context.Context) {
	for ctx.Err() == nil {
		for i, url := range r.urls {
			resp, err := http.Get(url + "/ready")
			ok := err == nil && resp.StatusCode == 200
			if err == nil {
				resp.Body.Close()
			}
			r.mu.Lock()
			r.ready[i] = ok
			r.mu.Unlock()
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// pick returns the server for a prefix: its own if that is ready, else another.
func (r *replicas) pick(prefix string) (int, string) {
	h := fnv.New32a()
	io.WriteString(h, prefix)
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.urls {
		if i := (int(h.Sum32()) + k) % len(r.urls); r.ready[i] {
			return i, r.urls[i]
		}
	}
	return -1, ""
}

// TestRollingRestart stops one of two replicas while requests keep coming: none fails,
// streams in progress end as if nothing had happened, and the answers are the same
// before, during and after.
func TestRollingRestart(t *testing.T) {
	start := func() (string, func() string) {
		return startServe(t, "m=builtin", "--grace", "3s", "--max-cache", "64MiB", "--threads", "1")
	}
	one, stopOne := start()
	two, stopTwo := start()
	r := &replicas{urls: []string{one, two}, ready: []bool{true, true}}
	ctx, cancel := context.WithCancel(t.Context())
	var background sync.WaitGroup
	background.Go(func() { r.watch(ctx) })

	// Two prefixes, each with a replica of its own.
	prefixes := []string{}
	for n := 0; len(prefixes) < 2; n++ {
		text := fmt.Sprintf("Conversation number %d.", n)
		if at, _ := r.pick(text); at == len(prefixes) {
			prefixes = append(prefixes, text)
		}
	}
	var mu sync.Mutex
	first, served, stopped := map[string]string{}, map[string]int{}, false
	after := 0
	clients, done := sync.WaitGroup{}, make(chan struct{})
	for i := range 4 {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-time.After(25 * time.Millisecond):
				}
				prompt := prefixes[i%2]
				mu.Lock()
				was := stopped
				mu.Unlock()
				at, url := r.pick(prompt)
				body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}],"max_tokens":24,"ignore_eos":true,"temperature":0,"stream":true}`, prompt)
				resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
				if err != nil {
					t.Errorf("replica %d: %v", at, err)
					return
				}
				data, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 || !bytes.HasSuffix(data, []byte("data: [DONE]\n\n")) {
					t.Errorf("replica %d: %d %v %s", at, resp.StatusCode, err, data)
					return
				}
				text := contents(data)
				mu.Lock()
				if first[prompt] == "" {
					first[prompt] = text
				}
				if first[prompt] != text {
					t.Errorf("replica %d answers %q, before it was %q", at, text, first[prompt])
				}
				served[fmt.Sprint(prompt, at)]++
				if was {
					after++
				}
				mu.Unlock()
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(first)
	}
	for count() < 2 {
		time.Sleep(time.Millisecond)
	}
	mu.Lock()
	for i, p := range prefixes {
		require.Zero(t, served[fmt.Sprint(p, 1-i)], "the same prefix goes to the same replica")
	}
	mu.Unlock()
	stopOne()
	mu.Lock()
	stopped = true
	mu.Unlock()
	for answered := 0; answered < 4 && !t.Failed(); {
		time.Sleep(time.Millisecond)
		mu.Lock()
		answered = after
		mu.Unlock()
	}
	close(done)
	clients.Wait()
	require.Positive(t, served[fmt.Sprint(prefixes[0], 1)], "the other replica takes over")
	cancel()
	background.Wait()
	stopTwo()
}

// contents joins the pieces of text in a stream, leaving out ids and times.
func contents(stream []byte) string {
	var out strings.Builder
	for line := range bytes.Lines(stream) {
		if _, rest, ok := bytes.Cut(line, []byte(`"content":"`)); ok {
			text, _, _ := bytes.Cut(rest, []byte(`"},`))
			out.Write(text)
		}
	}
	return out.String()
}
