package command

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestServe runs the server on the embedded model, asks, and lets it drain.
func TestServe(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("# ours\nsecret\n"), 0o600))
	url, stop := startServe(t, "small=builtin", "--key-file", keys, "--max-cache", "16MiB", "--max-memory", "1GiB", "--log-format", "json")
	q, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(`{"model":"small","messages":[{"role":"user","content":"hello"}],"max_tokens":3}`))
	require.NoError(t, err)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Authorization", "Bearer secret")
	resp, err := http.DefaultClient.Do(q)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode, string(text))
	require.Contains(t, string(text), `"finish_reason":`)
	log := stop()
	require.NotContains(t, log, "hello")
	require.NotContains(t, log, "secret")
	var line struct {
		Msg, Model, Endpoint string
		Status               int
		Completion           int `json:"completion_tokens"`
	}
	for text := range strings.Lines(log) {
		if strings.Contains(text, `"msg":"request"`) {
			require.NoError(t, json.Unmarshal([]byte(text), &line), text)
		}
	}
	require.Equal(t, "POST /v1/chat/completions", line.Endpoint)
	require.Equal(t, "small", line.Model)
	require.Equal(t, 200, line.Status)
	require.Equal(t, 3, line.Completion)
}

// startServe runs the server on a loopback address and returns its URL. stop ends the
// server and returns the log.
func startServe(t *testing.T, args ...string) (url string, stop func() string) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r, w := io.Pipe()
	var log bytes.Buffer
	done := make(chan int, 1)
	args = append([]string{"serve", "--listen", "127.0.0.1:0", "--grace", "0s"}, args...)
	go func() {
		done <- run(ctx, args, strings.NewReader(""), w, &log)
		w.Close()
	}()
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	if strings.HasPrefix(line, "KV events") {
		line, err = lines.ReadString('\n')
		require.NoError(t, err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "listening on ")), func() string {
		cancel()
		require.Equal(t, exitOK, <-done, log.String())
		return log.String()
	}
}

// TestServeDrain: answers that are not done in time end with an error, requests that have
// not come with their connection, and the server ends as it should all the same.
func TestServeDrain(t *testing.T) {
	url, stop := startServe(t, "builtin", "--drain", "1ms")
	half, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer half.Close()
	io.WriteString(half, "POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(
		`{"model":"builtin","prompt":"hello","max_tokens":2000,"ignore_eos":true,"n":64,"stream":true}`))
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = resp.Body.Read(make([]byte, 1)) // it has begun
	require.NoError(t, err)
	stop()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "shutting down")
	require.NotContains(t, string(text), "[DONE]")
}

// TestServeDefaults: as typed, the second question about a document finds it in the cache, and
// the log begins with the limits.
func TestServeDefaults(t *testing.T) {
	url, stop := startServe(t, "builtin")
	post := func(path, body string) (out map[string]any) {
		resp, err := http.Post(url+path, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&out))
		require.Nil(t, out["error"])
		return out
	}
	doc := post("/v1/documents", `{"text":"The key to the cellar hangs behind the blue door of the old mill. Nobody has used it for years.","kv_compression":{"ratio":0.5}}`)
	require.Greater(t, doc["tokens"], 16.0)
	for _, question := range []string{"Where is the key?", "Who used it?"} {
		answer := post("/v1/chat/completions", fmt.Sprintf(`{"model":"builtin","document":%q,"messages":[{"role":"user","content":%q}],"max_tokens":2}`, doc["id"], question))
		details := answer["usage"].(map[string]any)["prompt_tokens_details"].(map[string]any)
		require.GreaterOrEqual(t, details["cached_tokens"], doc["tokens"], question)
		require.Greater(t, details["evicted_tokens"], 0.0)
		timings := answer["timings"].(map[string]any)
		require.Equal(t, details["cached_tokens"], timings["cache_n"])
		require.Equal(t, 2.0, timings["predicted_n"])
	}
	log := stop()
	require.Regexp(t, `(?m)\A.*model ready.* model=builtin .*max_cache=.* context=2048 answer=2048 running=64 `, log)
}

// TestServeKVEvents: the tokens of prompts are not exposed to other machines by accident.
func TestServeKVEvents(t *testing.T) {
	for _, flags := range [][]string{
		{"--kv-events", ":5557"}, {"--kv-events", "5557"}, {"--kv-events", "127.0.0.1:0", "--kv-events-replay", "0.0.0.0:5558"},
	} {
		var log strings.Builder
		args := append([]string{"serve", "builtin", "--max-cache", "16MiB"}, flags...)
		require.Equal(t, exitUsage, run(t.Context(), args, strings.NewReader(""), io.Discard, &log), flags)
		require.Contains(t, log.String(), "--kv-events")
	}
	url, stop := startServe(t, "builtin", "--max-cache", "16MiB", "--kv-events", "127.0.0.1:0", "--kv-events-replay", "127.0.0.1:0")
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"builtin","prompt":"hello","max_tokens":1}`))
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode)
	stop()
}

// TestServeConnections: a connection beyond the limit takes the place of one that waits for
// its client.
func TestServeConnections(t *testing.T) {
	url, stop := startServe(t, "builtin", "--max-connections", "1")
	first, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer first.Close()
	io.WriteString(first, "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	_, err = first.Read(make([]byte, 1))
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Get(url + "/health")
	require.NoError(t, err)
	resp.Body.Close()
	_, err = io.Copy(io.Discard, first)
	require.NoError(t, err, "it has ended")
	client.CloseIdleConnections()
	stop()
}

// TestUnusedConnections: shutdown does not wait for connections that never carried a
// request.
func TestUnusedConnections(t *testing.T) {
	url, stop := startServe(t, "builtin")
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	resp, err := http.Get(url + "/health") // it is accepted after the other
	require.NoError(t, err)
	resp.Body.Close()
	stop()
}

// writePair writes a certificate for 127.0.0.1 and its key to files, and returns the
// certificate.
func writePair(t *testing.T, certFile, keyFile string) *x509.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	parsed, err := x509.ParseCertificate(cert)
	require.NoError(t, err)
	return parsed
}

// TestServeTLS: with a certificate, the server speaks only HTTPS.
func TestServeTLS(t *testing.T) {
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	parsed := writePair(t, cert, key)
	url, stop := startServe(t, "builtin", "--tls-cert", cert, "--tls-key", key)
	require.True(t, strings.HasPrefix(url, "https://"), url)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(url + "/ready")
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode)
	resp, err = http.Get("http" + strings.TrimPrefix(url, "https") + "/ready")
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 400, resp.StatusCode)
	stop()
}

func TestServeUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"can be reached from other machines": {"serve", "builtin", "--listen", "0.0.0.0:0"},
		"--listen":                           {"serve", "builtin", "--listen", "nothing"},
		"both or none":                       {"serve", "builtin", "--tls-cert", "x"},
		"--kv-compression":                   {"serve", "builtin", "--kv-compression", "{"},
		"one of this name":                   {"serve", "builtin", "builtin", "--listen", "127.0.0.1:0"},
		"one of this name ":                  {"serve", "builtin", "builtin", "--listen", "127.0.0.1:0", "--unload-after", "1m"},
		"--max-connections":                  {"serve", "builtin", "--max-connections", "0"},
		"--max-running: found 0":             {"serve", "builtin", "--max-running", "0", "--unload-after", "1m"},
		"expected 1 to 4096":                 {"serve", "builtin", "--max-running", "4097"},
		"--max-queue: found 0":               {"serve", "builtin", "--max-queue", "0"},
		"--max-body":                         {"serve", "builtin", "--max-body", "0"},
		"--latency":                          {"serve", "builtin", "--latency", "0"},
		"--grace and --drain":                {"serve", "builtin", "--drain=-1s"},
		"--max-answer: found 0":              {"serve", "builtin", "--max-answer", "0"},
		"--answer-time":                      {"serve", "builtin", "--answer-time=-1s"},
		"expected MODEL or NAME=MODEL":       {"serve", "=builtin"},
		"--max-memory needs --max-cache":     {"serve", "builtin", "--max-memory", "1GiB"},
		"--unload-after":                     {"serve", "builtin", "--unload-after", "-1m"},
		"open store of documents":            {"serve", "builtin", "--store", os.DevNull},
		"no/such":                            {"serve", "builtin", "no/such", "--unload-after", "1m", "--listen", "127.0.0.1:0"},
		"read API keys":                      {"serve", "builtin", "--key-file", os.DevNull},
	} {
		var out, log bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(""), &out, &log)
		require.NotEqual(t, exitOK, code, want)
		require.Contains(t, log.String(), strings.TrimSpace(want))
		if strings.HasPrefix(want, "--max") { // before any model is loaded
			require.Equal(t, exitUsage, code, want)
		}
	}
}

// An address in use is reported before models are loaded.
func TestServeAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	fails(t, exitFailed, "listen: listen tcp "+l.Addr().String(), "serve", "no/such", "--listen", l.Addr().String())
}

// Profiles of the same name are refused, since requests could not tell them apart.
func TestServeProfileNames(t *testing.T) {
	profile := builtinProfileFile(t)
	fails(t, exitUsage, "another one called snapkv", "serve", "builtin", "--profile", profile, "--profile", builtinProfileFile(t))
}

// TestNamed: a name is what precedes the first equals sign, unless the whole is a path.
func TestNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, dir := range []string{"a=b", "plain", "with=two=signs"} {
		require.NoError(t, os.Mkdir(dir, 0o700))
	}
	require.NoError(t, os.WriteFile("m=1.gguf", nil, 0o600))
	wd, err := os.Getwd()
	require.NoError(t, err)
	for at, want := range map[string][2]string{
		"a=b": {"a=b", "a=b"}, "./a=b": {"./a=b", "./a=b"}, "m=1.gguf": {"m=1.gguf", "m=1.gguf"},
		filepath.Join(wd, "with=two=signs"): {filepath.Join(wd, "with=two=signs"), filepath.Join(wd, "with=two=signs")},
		"n=a=b":                             {"n", "a=b"}, "n=with=two=signs": {"n", "with=two=signs"}, "n=plain": {"n", "plain"}, "plain": {"plain", "plain"},
		"n=owner/name": {"n", "owner/name"}, "n=": {"n", ""}, "=plain": {"", "plain"},
	} {
		id, name := named(at)
		require.Equal(t, want, [2]string{id, name}, at)
	}
}

// TestKeyFileWithoutKeys: a file without keys is refused even if the environment has one, so that
// emptying the file by mistake locks nobody out.
func TestKeyFileWithoutKeys(t *testing.T) {
	t.Setenv("LUKV_API_KEY", "of-the-environment")
	c := serveCmd{KeyFile: filepath.Join(t.TempDir(), "keys")}
	require.NoError(t, os.WriteFile(c.KeyFile, []byte("# none\n"), 0o600))
	_, err := c.keys()
	require.ErrorContains(t, err, "has none")
	require.NoError(t, os.WriteFile(c.KeyFile, []byte("of-the-file\n"), 0o600))
	keys, err := c.keys()
	require.NoError(t, err)
	require.Equal(t, []string{"of-the-environment", "of-the-file"}, keys)
}
