package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// startTime limits how long a server may take to be ready, answerTime how long a request
// may take.
const (
	startTime  = 2 * time.Minute
	answerTime = 10 * time.Minute
)

// server is a server that answers /v1/completions on the loopback interface.
type server struct {
	command []string // PORT is replaced by a free port
	model   string   // name in requests
}

// serveLukv measures lukv serve.
func serveLukv(path string) func(task) (map[point]figure, error) {
	return func(t task) (map[point]figure, error) {
		return t.serve(server{model: "m", command: []string{
			path, "serve", "--quiet", "m=" + t.model, "--listen", "127.0.0.1:PORT", "--threads", strconv.Itoa(t.threads),
		}})
	}
}

// serveLlama measures llama-server, with a slot for every stream and without its cache of
// earlier prompts, since lukv serve has none without --max-cache.
func serveLlama(path string) func(task) (map[point]figure, error) {
	return func(t task) (map[point]figure, error) {
		slots, tokens := slices.Max(t.streams), (t.prompts[0]+t.answers[0]+64+255)/256*256
		n := strconv.Itoa(t.threads)
		return t.serve(server{model: "m", command: []string{
			path, "-m", t.gguf, "--host", "127.0.0.1", "--port", "PORT", "-t", n, "-tb", n, "-fa", "on",
			"-np", strconv.Itoa(slots), "-c", strconv.Itoa(slots * tokens), "--cache-ram", "0", "--no-webui",
		}})
	}
}

// serve starts a server, measures its answers, and stops it.
func (t task) serve(s server) (out map[point]figure, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	cmd := exec.Command(s.command[0])
	for _, arg := range s.command[1:] {
		cmd.Args = append(cmd.Args, strings.ReplaceAll(arg, "PORT", port))
	}
	log := &tail{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			cmd.Process.Kill()
			<-ended
		}
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", cmd, err, log)
		}
	}()
	url := "http://127.0.0.1:" + port
	if err := ready(url, ended); err != nil {
		return nil, err
	}
	c := client{url: url + "/v1/completions", model: s.model, http: &http.Client{Timeout: answerTime, Transport: &http.Transport{DisableKeepAlives: true}}}
	if err := c.ask(t.prompts[0], 4); err != nil { // warm up: reads all weights once
		return nil, err
	}
	out = map[point]figure{}
	for _, p := range t.points() {
		speed, err := c.together(p)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", p, err)
		}
		out[p] = figure{Speed: speed}
	}
	return out, nil
}

// ready waits until a server says that it is ready.
func ready(url string, ended chan error) error {
	for begin := time.Now(); time.Since(begin) < startTime; {
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("it ended before it was ready: %w", cmp.Or(err, io.EOF))
		case <-time.After(50 * time.Millisecond):
		}
		resp, err := http.Get(url + "/health")
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("it was not ready after %v", startTime)
}

// client requests completions.
type client struct {
	url, model string
	http       *http.Client
}

// together requests all streams of a point at once and returns the tokens of all answers
// per second, from the first request to the last token, which includes prefill.
func (c client) together(p point) (float64, error) {
	errs := make([]error, p.Streams)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = c.ask(p.Prompt, p.Answer) })
	}
	wg.Wait()
	return float64(p.Streams*p.Answer) / time.Since(begin).Seconds(), errors.Join(errs...)
}

// ask streams an answer of the given number of tokens to a prompt not used before.
func (c client) ask(prompt, answer int) error {
	tokens := make([]int, prompt)
	for i := range tokens {
		tokens[i] = 300 + rand.IntN(700) // ordinary tokens in every large vocabulary
	}
	body, err := json.Marshal(map[string]any{
		"model": c.model, "prompt": tokens, "max_tokens": answer, "ignore_eos": true, "temperature": 0,
		"stream": true, "stream_options": map[string]any{"include_usage": true}, "cache_prompt": false,
	})
	if err != nil {
		return err
	}
	resp, err := c.http.Post(c.url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	var chunk struct {
		Usage struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: {")); ok && bytes.Contains(data, []byte(`"usage"`)) {
			if err := json.Unmarshal(lines.Bytes()[len("data: "):], &chunk); err != nil {
				return err
			}
		}
	}
	if u := chunk.Usage; lines.Err() == nil && (u.Prompt != prompt || u.Completion != answer) {
		return fmt.Errorf("found %d tokens to a prompt of %d, expected %d to %d", u.Completion, u.Prompt, answer, prompt)
	}
	return lines.Err()
}

// tail keeps the end of a server's output.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-1000):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
