package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// servedChild is a server in a process of its own.
type servedChild struct {
	cmd *exec.Cmd
	url string
}

func startServer(t *testing.T, store string) *servedChild {
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program, "serve", "builtin", "--listen", "127.0.0.1:0", "--max-cache", "32MiB", "--store", store, "--store-bytes", "6MiB", "--device", "cpu")
	cmd.Env = append(os.Environ(), commandEnv+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &servedChild{cmd: cmd}
	t.Cleanup(c.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	c.url = strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	return c
}

// kill ends the process with SIGKILL.
func (c *servedChild) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// post sends a request and returns the status, 0 if there was no whole answer.
func (c *servedChild) post(path string, body io.Reader) (int, []byte) {
	resp, err := http.Post(c.url+path, "application/json", body)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, data
}

// ask asks about the document or text in fields. It returns the answer with its
// log-probabilities, "" if there was none, and the number of cached prompt tokens.
func (c *servedChild) ask(t *testing.T, fields map[string]any) (string, int) {
	fields["model"], fields["messages"] = "builtin", []map[string]string{{"role": "user", "content": "What is the magic number?"}}
	fields["max_tokens"], fields["temperature"], fields["ignore_eos"], fields["logprobs"] = 12, 0, true, true
	body, err := json.Marshal(fields)
	require.NoError(t, err)
	status, data := c.post("/v1/chat/completions", bytes.NewReader(body))
	if status == 0 {
		return "", 0
	}
	require.Equal(t, 200, status, string(data))
	var answer struct {
		Choices []json.RawMessage
		Usage   struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &answer))
	return string(answer.Choices[0]), answer.Usage.Details.Cached
}

// upload returns the text and policy of the nth document.
func upload(n int) map[string]any {
	var text strings.Builder
	for i := range 40 + n%7*4 {
		fmt.Fprintf(&text, "Line %d of %d says that the magic number is %d. ", i, n, (i+n)*7919%100000)
	}
	return map[string]any{"text": strings.TrimSpace(text.String()), "kv_compression": map[string]any{"ratio": 0.2 + 0.2*float64(n%4), "metric": []string{"keydiff", "snapkv"}[n%2]}}
}

// TestServeKilled kills a server at random moments, in the middle of uploads,
// compression and answers: documents that were acknowledged are there after a restart,
// and give answers with the same bits. LUKV_CRASH_ROUNDS sets how often.
func TestServeKilled(t *testing.T) {
	rounds := 2
	if v := os.Getenv("LUKV_CRASH_ROUNDS"); v != "" {
		var err error
		rounds, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	store := t.TempDir()
	var mu sync.Mutex
	acknowledged := map[string]int{} // uploads by the documents' ids
	answers := map[int]string{}
	check := func(n int, id, answer string) {
		mu.Lock()
		defer mu.Unlock()
		if answers[n] == "" {
			answers[n] = answer
		}
		if answer != "" && answers[n] != answer {
			t.Errorf("document %s: found %.300s, expected %.300s", id, answer, answers[n])
		}
	}
	cached := 0
	verify := func(c *servedChild) {
		for id, n := range acknowledged {
			answer, hits := c.ask(t, map[string]any{"document": id})
			require.NotEmpty(t, answer)
			check(n, id, answer)
			cached += hits
		}
	}
	for round := range rounds {
		c := startServer(t, store)
		if round > 0 {
			verify(c)
		}
		acks := make(chan struct{}, 4)
		var wg sync.WaitGroup
		ids := make([]string, 0, len(acknowledged))
		for id := range acknowledged {
			ids = append(ids, id)
		}
		for k := range 4 {
			n := 4*round + k
			wg.Go(func() {
				body, err := json.Marshal(upload(n))
				require.NoError(t, err)
				var r io.Reader = bytes.NewReader(body)
				if k == 3 { // the second half comes late
					half, w := io.Pipe()
					go func() {
						w.Write(body[:len(body)/2])
						time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
						w.Write(body[len(body)/2:])
						w.Close()
					}()
					r = half
				}
				status, data := c.post("/v1/documents", r)
				if status == 0 {
					return
				}
				var doc struct{ ID string }
				if err := json.Unmarshal(data, &doc); err != nil || status != http.StatusCreated {
					t.Errorf("upload %d: %d %s", n, status, data)
					return
				}
				mu.Lock()
				acknowledged[doc.ID] = n
				mu.Unlock()
				acks <- struct{}{}
				answer, _ := c.ask(t, map[string]any{"document": doc.ID})
				check(n, doc.ID, answer)
			})
		}
		for _, id := range ids[:min(len(ids), 3)] {
			wg.Go(func() {
				answer, _ := c.ask(t, map[string]any{"document": id})
				mu.Lock()
				n := acknowledged[id]
				mu.Unlock()
				check(n, id, answer)
			})
		}
		for range (round + 1) % 4 {
			<-acks
		}
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
		c.kill()
		wg.Wait()
		// Also damage a file, as a failing disk would.
		if files, _ := filepath.Glob(filepath.Join(store, "prefixes", "*", "*.session")); len(files) > 1 {
			require.NoError(t, os.Truncate(files[rand.IntN(len(files))], 2000))
		}
	}
	c := startServer(t, store)
	verify(c)
	for id, n := range acknowledged { // the text in the request, nothing cached
		more := upload(n)
		answer, hits := c.ask(t, map[string]any{"context": more["text"], "kv_compression": more["kv_compression"], "cache_salt": id})
		require.Zero(t, hits)
		check(n, id, answer)
	}
	left, err := filepath.Glob(filepath.Join(store, "documents", "*.damaged"))
	require.NoError(t, err)
	require.Empty(t, left, "no document was damaged")
	require.NotEmpty(t, acknowledged)
	if rounds > 4 { // in fewer, every file may have been damaged or cut off
		require.Positive(t, cached, "something came from the store")
	}
	t.Logf("%d documents acknowledged in %d rounds, %d tokens were cached", len(acknowledged), rounds, cached)
}
