package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// call sends a request; a body that is not a string or nil is sent as JSON.
func (s *server) call(ctx context.Context, client *http.Client, key, method, path string, body any) (*http.Response, error) {
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case io.Reader:
		r = b
	case string:
		r = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, r)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	return client.Do(req)
}

// newClient returns a client with connections of its own.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

type object = map[string]any

// stream is a client that reads one answer after another. Of each it notes the mean time
// between tokens, since several may come at once.
type stream struct {
	server           *server
	gaps             []time.Duration // of answers
	each             []time.Duration // between two tokens
	longest          time.Duration   // between two tokens
	waited           time.Duration   // at most for a first token
	answers, refused int
}

func (c *stream) watch(ctx context.Context, length time.Duration) {
	client := newClient()
	for end := time.Now().Add(length); time.Now().Before(end) && ctx.Err() == nil; {
		if !c.one(ctx, client) {
			c.refused++
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// one reads an answer and reports whether it was complete.
func (c *stream) one(ctx context.Context, client *http.Client) bool {
	begin := time.Now()
	r, err := c.server.call(ctx, client, ordinaryKey, "POST", "/v1/completions", object{
		"model": "m", "prompt": "Once upon a time", "max_tokens": 48, "ignore_eos": true, "stream": true,
	})
	if err != nil {
		return false
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return false
	}
	var first, last time.Time
	tokens := 0
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		text := lines.Text()
		if text == "data: [DONE]" {
			c.answers++
			c.gaps = append(c.gaps, last.Sub(first)/time.Duration(max(1, tokens-1)))
			return true
		}
		if !strings.HasPrefix(text, "data: ") {
			continue
		}
		now := time.Now()
		if tokens++; tokens == 1 {
			c.waited, first = max(c.waited, now.Sub(begin)), now
		} else {
			c.each, c.longest = append(c.each, now.Sub(last)), max(c.longest, now.Sub(last))
		}
		last = now
	}
	if tokens == 0 {
		c.waited = max(c.waited, time.Since(begin))
	}
	return ctx.Err() != nil
}

// health asks whether the server is there.
type health struct {
	server          *server
	answers, failed int
	slowest         time.Duration
}

func (h *health) watch(ctx context.Context) {
	for ctx.Err() == nil {
		begin := time.Now()
		r, err := newClient().Get(h.server.base + "/health") // a new connection each time
		if err == nil {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
		if h.slowest = max(h.slowest, time.Since(begin)); err != nil || r.StatusCode != http.StatusOK {
			h.failed++
		} else {
			h.answers++
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// documents is a client that stores documents, deletes some, and must find the others.
type documents struct {
	server          *server
	stored, deleted int
	ids             []string
}

func (d *documents) watch(ctx context.Context) {
	client := newClient()
	for i := 0; ctx.Err() == nil; i++ {
		text := fmt.Sprintf("Document %d. ", i) + strings.Repeat(fmt.Sprintf("The number of box %d is %d. ", i, i*i), 20)
		if id := d.store(ctx, client, text); id != "" {
			d.stored++
			if i%4 == 3 {
				if r, err := d.server.call(ctx, client, documentKey, "DELETE", "/v1/documents/"+id, nil); err == nil {
					r.Body.Close()
					if r.StatusCode == http.StatusOK {
						d.deleted++
						id = ""
					}
				} else {
					id = "" // unknown whether it was deleted
				}
			}
			if id != "" {
				d.ids = append(d.ids, id)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
}

// store returns the id of a document that the server has acknowledged as ready, otherwise "".
func (d *documents) store(ctx context.Context, client *http.Client, text string) string {
	r, err := d.server.call(ctx, client, documentKey, "POST", "/v1/documents", object{"text": text, "kv_compression": object{"ratio": 0.5}})
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	var answer struct{ ID, Status string }
	if json.NewDecoder(r.Body).Decode(&answer) != nil || r.StatusCode >= 300 || answer.Status != "ready" {
		return ""
	}
	return answer.ID
}

// lost counts the documents about which the server cannot be asked any more.
func (d *documents) lost(ctx context.Context) (n int) {
	client := newClient()
	for _, id := range d.ids {
		r, err := d.server.call(ctx, client, documentKey, "POST", "/v1/chat/completions", object{
			"model": "m", "document": id, "messages": []object{{"role": "user", "content": "Which?"}}, "max_tokens": 1,
		})
		if err != nil {
			n++
			continue
		}
		if r.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(r.Body, 300))
			fmt.Printf("document %s: %d %s\n", id, r.StatusCode, text)
			n++
		}
		r.Body.Close()
	}
	return n
}
