//go:build unix

package main

import (
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestServeReadsKeysAgain: on SIGHUP new keys are accepted and old ones no longer; a file
// without keys changes nothing.
func TestServeReadsKeysAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte("old\n"), 0o600))
	hup := make(chan os.Signal, 2) // no signal is left for the time behind the server
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
