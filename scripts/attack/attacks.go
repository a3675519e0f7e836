package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// attacks are the kinds of hostile requests. Each function sends one round, and is called
// again until the time is over.
var attacks = map[string]func(context.Context, *attacker){
	"bodies":     bodies,
	"tokenize":   tokenize,
	"choices":    choices,
	"patterns":   patterns,
	"stops":      stops,
	"slow":       slow,
	"idle":       idle,
	"trickle":    trickle,
	"documents":  flood,
	"races":      races,
	"embeddings": embeddings,
	"prompts":    prompts,
	"losses":     losses,
}

// attacker sends the rounds of one kind.
type attacker struct {
	server *server
	client *http.Client
	name   string
	counts *counts
}

// attack starts all kinds, or those of only, beside each other until ctx is done.
func attack(ctx context.Context, s *server, wg *sync.WaitGroup, only string) *counts {
	c := &counts{byKind: map[string]map[string]int{}}
	for name, round := range attacks {
		if only != "" && !slices.Contains(strings.Split(only, ","), name) {
			continue
		}
		wg.Go(func() {
			a := &attacker{server: s, client: newClient(), name: name, counts: c}
			for ctx.Err() == nil {
				round(ctx, a)
			}
		})
	}
	return c
}

// counts are the answers to each kind by their status.
type counts struct {
	mu     sync.Mutex
	byKind map[string]map[string]int
}

func (c *counts) add(name, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKind[name] == nil {
		c.byKind[name] = map[string]int{}
	}
	c.byKind[name][what]++
}

func (c *counts) names() []string { return slices.Sorted(maps.Keys(c.byKind)) }

func (c *counts) of(name string) string {
	var out []string
	for _, what := range slices.Sorted(maps.Keys(c.byKind[name])) {
		out = append(out, fmt.Sprintf("%s: %d", what, c.byKind[name][what]))
	}
	return strings.Join(out, ", ")
}

// send sends a request, reads the whole answer and counts its status.
func (a *attacker) send(ctx context.Context, path string, body any) {
	r, err := a.server.call(ctx, a.client, attackKey, "POST", path, body)
	if err != nil {
		a.failed(ctx)
		return
	}
	_, err = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	if err != nil {
		a.failed(ctx)
		return
	}
	a.counts.add(a.name, fmt.Sprint(r.StatusCode))
	if r.StatusCode == http.StatusServiceUnavailable || r.StatusCode == http.StatusTooManyRequests {
		time.Sleep(20 * time.Millisecond) // this process must not be the load
	}
}

// failed counts a connection that broke off, unless the time is over.
func (a *attacker) failed(ctx context.Context) {
	if ctx.Err() == nil {
		a.counts.add(a.name, "broken off")
		time.Sleep(20 * time.Millisecond)
	}
}

// together calls f n times side by side.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// filler is n bytes of a JSON string.
func filler(n int) string { return strings.Repeat("lorem ipsum ", n/12+1)[:n] }

// bodies: 40 bodies of 16 MiB at once.
func bodies(ctx context.Context, a *attacker) {
	text := filler(16 << 20)
	together(40, func(int) {
		a.send(ctx, "/v1/chat/completions", io.MultiReader(strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"`), strings.NewReader(text), strings.NewReader(`"}]}`)))
	})
}

// tokenize: texts whose ids take many times their bytes.
func tokenize(ctx context.Context, a *attacker) {
	text := strings.Repeat("a1 ", 5<<20)
	together(8, func(int) {
		a.send(ctx, "/tokenize", io.MultiReader(strings.NewReader(`{"model":"m","return_token_strs":true,"prompt":"`), strings.NewReader(text), strings.NewReader(`"}`)))
	})
}

// choices: many answers that are collected, with alternatives for each token.
func choices(ctx context.Context, a *attacker) {
	together(8, func(int) {
		a.send(ctx, "/v1/chat/completions", object{"model": "m", "messages": []object{{"role": "user", "content": "Tell me."}},
			"n": 32, "logprobs": true, "top_logprobs": 20, "max_tokens": 1500, "ignore_eos": true})
	})
}

// isolated is a class of n characters, no two of them neighbours.
func isolated(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteRune(rune(0x4e00 + 2*i))
	}
	return b.String()
}

// patterns: schemas that take more to compile, or to follow, than to send.
func patterns(ctx context.Context, a *attacker) {
	together(6, func(i int) {
		pattern := []string{
			"^([" + isolated(10000) + "]?){1000}$",
			"^[" + isolated(2500) + "]*[a" + isolated(2) + "][" + isolated(2500) + "]{40}$",
			"^(" + strings.Repeat("(a|b|ab)*", 400) + ")*$",
			"^(a{1,1000}){1,1000}$",
			"^([" + isolated(3000) + "]{0,50}|a){200}$",
			"^(" + strings.Repeat("(x?", 500) + strings.Repeat(")", 500) + "){20}$",
		}[i]
		a.send(ctx, "/v1/chat/completions", object{"model": "m", "messages": []object{{"role": "user", "content": "x"}}, "n": 8, "max_tokens": 64,
			"response_format": object{"type": "json_schema", "json_schema": object{"name": fmt.Sprint("s", rand.IntN(1e9)), "strict": true, "schema": object{
				"type": "object", "properties": object{"v": object{"type": "string", "pattern": pattern}}, "required": []string{"v"}, "additionalProperties": false}}}})
	})
}

// stops: long stop texts that begin alike.
func stops(ctx context.Context, a *attacker) {
	var list []string
	for i := range 16 {
		list = append(list, strings.Repeat("a", 500)+string(rune('b'+i)))
	}
	together(4, func(int) {
		a.send(ctx, "/v1/completions", object{"model": "m", "prompt": strings.Repeat("a", 500), "stop": list, "max_tokens": 500, "n": 8, "ignore_eos": true})
	})
}

// slow: streams of many answers that are read slowly.
func slow(ctx context.Context, a *attacker) {
	together(4, func(int) {
		r, err := a.server.call(ctx, a.client, attackKey, "POST", "/v1/completions", object{"model": "m", "prompt": "Once", "n": 32, "max_tokens": 1000, "logprobs": 5, "ignore_eos": true, "stream": true})
		if err != nil {
			a.failed(ctx)
			return
		}
		defer r.Body.Close()
		a.counts.add(a.name, fmt.Sprint(r.StatusCode))
		for part := make([]byte, 4096); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			if _, err := r.Body.Read(part); err != nil {
				return
			}
		}
	})
}

// connect opens a connection of which nothing else is known.
func (a *attacker) connect() (net.Conn, error) {
	return net.DialTimeout("tcp", strings.TrimPrefix(a.server.base, "http://"), time.Second)
}

// idle: as many connections that say nothing as the server allows.
func idle(ctx context.Context, a *attacker) {
	var all []net.Conn
	defer func() {
		for _, c := range all {
			c.Close()
		}
	}()
	for range 1024 {
		c, err := a.connect()
		if err != nil {
			a.counts.add(a.name, "refused")
			break
		}
		all = append(all, c)
	}
	a.counts.add(a.name, "rounds")
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
	}
}

// trickle: bodies that come a byte at a time, after a key that is refused and after a good one.
func trickle(ctx context.Context, a *attacker) {
	together(64, func(i int) {
		c, err := a.connect()
		if err != nil {
			a.failed(ctx)
			return
		}
		defer c.Close()
		key := []string{"wrong", attackKey}[i%2]
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n", key)
		for range 100 {
			if _, err := c.Write([]byte(" ")); err != nil || ctx.Err() != nil {
				a.counts.add(a.name, "closed by the server")
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		a.counts.add(a.name, "still open after 10 s")
	})
}

// flood: many tiny documents.
func flood(ctx context.Context, a *attacker) {
	together(8, func(int) {
		a.send(ctx, "/v1/documents", object{"text": fmt.Sprintf("tiny %d", rand.Int64()), "wait": false})
	})
}

// races: the same document put in and deleted at the same time.
func races(ctx context.Context, a *attacker) {
	text := filler(2000)
	r, err := a.server.call(ctx, a.client, attackKey, "POST", "/v1/documents", object{"text": text})
	if err != nil {
		a.failed(ctx)
		return
	}
	var b bytes.Buffer
	io.Copy(&b, r.Body)
	r.Body.Close()
	_, rest, ok := strings.Cut(b.String(), `"id":"`)
	if !ok {
		a.counts.add(a.name, fmt.Sprint(r.StatusCode))
		time.Sleep(50 * time.Millisecond)
		return
	}
	id, _, _ := strings.Cut(rest, `"`)
	together(6, func(i int) {
		if i%2 == 0 {
			a.send(ctx, "/v1/documents", object{"text": text})
			return
		}
		if r, err := a.server.call(ctx, a.client, attackKey, "DELETE", "/v1/documents/"+id, nil); err == nil {
			r.Body.Close()
			a.counts.add(a.name, fmt.Sprint("delete ", r.StatusCode))
		}
	})
}

// embeddings: many texts in one request.
func embeddings(ctx context.Context, a *attacker) {
	var list []string
	for range 2048 {
		list = append(list, filler(2000))
	}
	together(2, func(int) { a.send(ctx, "/v1/embeddings", object{"model": "m", "input": list}) })
}

// prompts: the longest prompts that fit, by several clients.
func prompts(ctx context.Context, a *attacker) {
	together(8, func(i int) {
		a.send(ctx, "/v1/completions", object{"model": "m", "prompt": fmt.Sprint(i, rand.Int()) + filler(8000), "max_tokens": 16})
	})
}

// losses: documents of which the loss is to be measured at many ratios.
func losses(ctx context.Context, a *attacker) {
	together(8, func(int) {
		a.send(ctx, "/v1/documents", object{"text": fmt.Sprint(rand.Int64(), filler(4000)), "kv_compression": object{"max_loss": 0.05}})
	})
}
