package soak

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/hub"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/serve"
)

var kills = flag.Int("kills", 3, "how often writers are killed")

// childEnv, if set, makes the test program write in that folder until it is killed.
const childEnv = "LUKV_SOAK_CHILD"

func TestMain(m *testing.M) {
	flag.Parse()
	if dir := os.Getenv(childEnv); dir != "" {
		w, err := newWriters(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("begun")
		for {
			if err := w.one(rand.IntN(6)); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

// writers writes every kind of file that the program writes, each to its place in a
// folder, over what is there.
type writers struct {
	dir      string
	m        *model.Model
	sessions [2]*model.Session
	builders [2]*lukv.ProfileBuilder
	profiles [2]*lukv.Profile
	log      *eval.Log[eval.Answer]
	server   *serve.Server
	n        int
}

func newWriters(dir string) (*writers, error) {
	ctx := context.Background()
	m, err := builtin.Open(ctx, model.WithThreads(1))
	if err != nil {
		return nil, err
	}
	w := &writers{dir: dir, m: m}
	for i := range w.sessions {
		if w.sessions[i], err = m.NewSession(model.SessionOptions{}); err != nil {
			return nil, err
		}
		if err := w.sessions[i].Prefill(ctx, prompt(i)); err != nil {
			return nil, err
		}
		id := lukv.DefaultProfileIdentity()
		id.Model, id.Metric = "m", lukv.MetricConfig{Name: "keydiff"}
		if w.builders[i], err = lukv.NewProfileBuilder(id, 1, 2, nil); err != nil {
			return nil, err
		}
		entries := make([]float32, 40+20*i)
		for t := range entries {
			entries[t] = float32(t*7919%100) + 1
		}
		values := [][][]float32{{entries, entries}}
		if _, err := w.builders[i].Add(ctx, 0, values, values); err != nil {
			return nil, err
		}
		if w.profiles[i], err = w.builders[i].Profile(); err != nil {
			return nil, err
		}
	}
	if w.log, err = eval.OpenLog[eval.Answer](filepath.Join(dir, "answers"), "h", nil); err != nil {
		return nil, err
	}
	w.server, err = openServer(dir, m, slog.New(slog.DiscardHandler))
	return w, err
}

// prompt returns the prompt of session i.
func prompt(i int) []int32 {
	ids := make([]int32, 20+30*i)
	for t := range ids {
		ids[t] = int32(100 + t*31%700)
	}
	return ids
}

func openServer(dir string, m *model.Model, log *slog.Logger) (*serve.Server, error) {
	s := serve.New(serve.Options{Log: log})
	if err := s.OpenStore(filepath.Join(dir, "documents")); err != nil {
		return nil, err
	}
	return s, s.Add("m", m, engine.Options{MaxBytes: 64 << 20, Store: filepath.Join(dir, "prefixes"), Log: log})
}

// one writes one kind of file, of six.
func (w *writers) one(way int) error {
	w.n++
	i := w.n % 2
	path := func(name string) string { return filepath.Join(w.dir, name) }
	switch way {
	case 0:
		return w.sessions[i].Save(context.Background(), path("session"))
	case 1:
		return w.profiles[i].Save(path("profile"))
	case 2:
		return w.builders[i].SaveState(path("state"))
	case 3:
		item := len(w.log.Outcomes())
		return w.log.Add(eval.Answer{Item: item, Task: "t", Method: "m", Prediction: strings.Repeat("answer ", 1+item%50)})
	case 4:
		text := strings.Repeat(fmt.Sprintf("The number of place %d is %d. ", w.n%30, w.n%30*7919), 3)
		body, err := json.Marshal(map[string]any{"text": text, "kv_compression": map[string]any{"ratio": 0.5, "metric": "keydiff"}})
		if err != nil {
			return err
		}
		r := httptest.NewRequest("POST", "/v1/documents", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		answer := httptest.NewRecorder()
		w.server.Handler().ServeHTTP(answer, r)
		if answer.Code != http.StatusCreated && answer.Code != http.StatusOK {
			return fmt.Errorf("document: %d %s", answer.Code, answer.Body)
		}
		return nil
	default:
		if w.n%3 == 0 {
			if err := os.RemoveAll(path("hub")); err != nil {
				return err
			}
		}
		_, err := pull(path("hub"))
		return err
	}
}

// hubFile is the weights file on the hub.
var hubFile = bytes.Repeat([]byte("weights "), 1<<17)

const hubCommit = "89abcdef0123456789abcdef0123456789abcdef"

// aHub answers as a hub with one small model does.
type aHub struct{}

func (aHub) RoundTrip(r *http.Request) (*http.Response, error) {
	config := []byte(`{"model_type":"llama"}`)
	blob := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(config), config))
	sum := sha256.Sum256(hubFile)
	answer := httptest.NewRecorder()
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/models/"):
		json.NewEncoder(answer).Encode(map[string]any{"sha": hubCommit, "siblings": []any{
			map[string]any{"rfilename": "config.json", "size": len(config), "blobId": hex.EncodeToString(blob[:])},
			map[string]any{"rfilename": "model.safetensors", "size": len(hubFile), "lfs": map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(hubFile)}},
		}})
	case strings.HasSuffix(r.URL.Path, "/config.json"):
		http.ServeContent(answer, r, "config.json", time.Time{}, bytes.NewReader(config))
	default:
		http.ServeContent(answer, r, "model.safetensors", time.Time{}, bytes.NewReader(hubFile))
	}
	answer.Header().Set("X-Repo-Commit", hubCommit)
	resp := answer.Result()
	resp.Request = r
	return resp, nil
}

// pull fetches the model into a cache and returns its folder.
func pull(cache string) (string, error) {
	c := &hub.Client{Endpoint: "http://hub.test", CacheDir: cache, Transport: aHub{}}
	p, err := c.Pull(context.Background(), hub.Ref{Owner: "test", Name: "model"}, hub.PullOptions{})
	if err != nil {
		return "", err
	}
	return p.Dir, nil
}

// TestKilled kills, at random moments, a program that writes every kind of file: a file
// with its final name is complete and one of those written, answers are never lost,
// nothing in a store is damaged, and the next program can go on writing.
func TestKilled(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	want, err := newWriters(t.TempDir())
	require.NoError(t, err)
	answers := 0
	for n := range *kills {
		child := exec.Command(program, "-test.run=^$")
		child.Env = append(os.Environ(), childEnv+"="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			child.Process.Kill()
			child.Wait()
		}
		require.NoError(t, err, "kill %d: the next program does not begin", n)
		require.Equal(t, "begun\n", line)
		time.Sleep(time.Duration(rand.IntN(100_000)) * time.Microsecond)
		require.NoError(t, child.Process.Kill())
		child.Wait()
		answers = checkWritten(t, dir, want, answers)
	}
	t.Logf("%d kills, %d answers", *kills, answers)
}

// checkWritten checks what a folder holds after a kill, and returns the number of answers.
func checkWritten(t *testing.T, dir string, want *writers, answers int) int {
	path := func(name string) string { return filepath.Join(dir, name) }
	s, err := want.m.LoadSession(t.Context(), path("session"), model.SessionOptions{})
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
		which := 0
		if s.Len() > len(prompt(0)) {
			which = 1
		}
		require.Equal(t, prompt(which), s.Tokens())
		require.Equal(t, bits(want.sessions[which].Logits()), bits(s.Logits()))
		require.NoError(t, s.Close())
	}
	digest := func(p *lukv.Profile) string {
		d, err := p.Digest()
		require.NoError(t, err)
		return d
	}
	p, err := lukv.LoadProfile(path("profile"))
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
		require.Contains(t, []string{digest(want.profiles[0]), digest(want.profiles[1])}, digest(p))
	}
	b, err := lukv.NewProfileBuilder(want.builders[0].Identity(), 1, 2, nil)
	require.NoError(t, err)
	if err := b.LoadState(path("state")); !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
		require.Equal(t, 1, b.Pairs())
	}

	log, err := eval.OpenLog[eval.Answer](path("answers"), "h", nil)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(log.Outcomes()), answers)
	for i, a := range log.Outcomes() {
		require.Equal(t, i, a.Item)
		require.Equal(t, strings.Repeat("answer ", 1+i%50), a.Prediction)
	}
	answers = len(log.Outcomes())
	require.NoError(t, log.Close())

	var said bytes.Buffer
	m, err := builtin.Open(t.Context(), model.WithThreads(1))
	require.NoError(t, err)
	server, err := openServer(dir, m, slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn})))
	require.NoError(t, err)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	server.Drain(done)
	require.NoError(t, m.Close())
	require.Empty(t, said.String(), "files of the stores that are damaged")

	folder, err := pull(path("hub"))
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(folder, "model.safetensors"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(hubFile, got))
	return answers
}
