//go:build unix

package command

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/builtin"
)

// TestServeReadsKeysAgain: after SIGHUP, new keys are accepted and old ones are not; a file
// without keys changes nothing.
func TestServeReadsKeysAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte("old\n"), 0o600))
	hup := make(chan os.Signal, 2) // so that no signal is left after the server has ended
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	url, stop := startServe(t, "builtin", "--key-file", file)
	status := func(key string) int {
		q, err := http.NewRequest("GET", url+"/v1/models", nil)
		require.NoError(t, err)
		q.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(q)
		require.NoError(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	require.Equal(t, 200, status("old"))
	require.NoError(t, os.WriteFile(file, []byte("new\nnewer\n"), 0o600))
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.Eventually(t, func() bool { return status("new") == 200 }, time.Minute, time.Millisecond)
	require.Equal(t, 401, status("old"))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	<-hup
	<-hup
	require.Equal(t, 200, status("newer"))
	http.DefaultClient.CloseIdleConnections()
	stop()
}

// TestServeReadsFilesAgain: after SIGHUP, connections get the new certificate, and requests
// may name the new profiles; damaged files change nothing.
func TestServeReadsFilesAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key, profile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "mine.json")
	first := writePair(t, cert, key)
	snapkv, err := os.ReadFile(builtinProfileFile(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(profile, snapkv, 0o600))
	hup := make(chan os.Signal, 2) // so that no signal is left after the server has ended
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	url, stop := startServe(t, "builtin", "--tls-cert", cert, "--tls-key", key, "--profile", profile)
	serial := func() string {
		c, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer c.Close()
		return string(c.ConnectionState().PeerCertificates[0].Signature)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	// status returns 200 if the current profile fits the metric, 400 if not.
	status := func(metric string) int {
		resp, err := client.Post(url+"/v1/documents", "application/json", strings.NewReader(
			`{"text":"Some text that is long enough.","kv_compression":{"ratio":0.5,"metric":"`+metric+`","allocator":"lukv","profile":"mine"}}`))
		require.NoError(t, err)
		resp.Body.Close()
		return resp.StatusCode / 100 * 100
	}
	require.Equal(t, string(first.Signature), serial())
	require.Equal(t, 200, status("snapkv"))
	require.Equal(t, 400, status("keydiff"))

	second := writePair(t, cert, key)
	keydiff, err := builtin.Profile(lukv.MetricConfig{Name: "keydiff"})
	require.NoError(t, err)
	var data bytes.Buffer
	require.NoError(t, keydiff.Write(&data))
	require.NoError(t, os.WriteFile(profile, data.Bytes(), 0o600))
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.Eventually(t, func() bool { return status("keydiff") == 200 }, time.Minute, time.Millisecond)
	require.Equal(t, string(second.Signature), serial(), "it is read before the profiles")
	require.Equal(t, 400, status("snapkv"))

	require.NoError(t, os.WriteFile(key, nil, 0o600))
	require.NoError(t, os.WriteFile(profile, nil, 0o600))
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	<-hup
	<-hup
	require.Equal(t, string(second.Signature), serial())
	require.Equal(t, 200, status("keydiff"))
	log := stop()
	require.Contains(t, log, "certificate reloaded")
}
