package command

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/serve"
)

// reloader rereads the files that may change while the server runs: API keys, the
// certificate and its key, profiles. What cannot be read stays as it was.
type reloader struct {
	c    *serveCmd
	s    *serve.Server
	log  *slog.Logger // may be nil
	pair atomic.Pointer[tls.Certificate]
}

// onHangup reloads on every SIGHUP, until the function that it returns is called. Without
// such files the signal ends the server, as it does other commands.
func (r *reloader) onHangup() (stop func()) {
	if r.c.KeyFile == "" && r.c.TLSCert == "" && len(r.c.Profile) == 0 {
		return func() {}
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	hup, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-hup:
				r.reload()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(hup)
		close(done)
	}
}

func (r *reloader) reload() {
	for _, x := range []struct {
		what  string
		given bool
		read  func() error
	}{
		{"API keys", r.c.KeyFile != "", r.keys},
		{"certificate", r.c.TLSCert != "", r.certificate},
		{"profiles", len(r.c.Profile) > 0, r.profiles},
	} {
		if !x.given {
			continue
		}
		if err := x.read(); err != nil {
			r.log.Error(x.what+" unchanged", "error", err)
		} else {
			r.log.Info(x.what + " reloaded")
		}
	}
}

func (r *reloader) keys() error {
	keys, err := r.c.keys()
	if err == nil {
		r.s.SetKeys(keys)
	}
	return err
}

func (r *reloader) profiles() error {
	profiles, err := r.c.profiles()
	if err == nil {
		r.s.SetProfiles(profiles)
	}
	return err
}

func (r *reloader) certificate() error {
	pair, err := r.c.certificate()
	if err == nil {
		r.pair.Store(&pair)
	}
	return err
}

// current returns the certificate for new connections.
func (r *reloader) current(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.pair.Load(), nil }

// keys reads the API keys.
func (c *serveCmd) keys() ([]string, error) {
	var keys, own []string
	if k := os.Getenv("LUKV_API_KEY"); k != "" {
		own = append(own, k)
	}
	if c.KeyFile == "" {
		return own, nil
	}
	const limit = 1 << 20
	data, err := inputfile.Read(c.KeyFile, limit)
	if err != nil {
		return nil, fmt.Errorf("read API keys: %w", err)
	}
	for line := range strings.Lines(string(unmarked(data))) {
		if k := strings.TrimSpace(line); k != "" && !strings.HasPrefix(k, "#") {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("read API keys: %s has none", c.KeyFile)
	}
	return append(own, keys...), nil
}

// profiles reads the profiles that requests may name, including those of the embedded
// model if it is served.
func (c *serveCmd) profiles() (map[string]*lukv.Profile, error) {
	profiles := map[string]*lukv.Profile{}
	for _, path := range c.Profile {
		if filepath.Base(path) == builtinOutputErrors {
			return nil, usage("--profile %s: found the name of an embedded profile, expected a file; those of the embedded model are served with it, as %s-METRIC", builtinOutputErrors, builtin.Name)
		}
		p, err := lukv.LoadProfile(path)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		if profiles[name] != nil {
			return nil, usage("--profile %s: there is another one called %s, which is its name in requests", path, name)
		}
		profiles[name] = p
	}
	return profiles, c.addBuiltinProfiles(profiles)
}

// addBuiltinProfiles adds the profiles of the embedded model if it is served.
func (c *serveCmd) addBuiltinProfiles(profiles map[string]*lukv.Profile) error {
	if !slices.ContainsFunc(c.Models, func(at string) bool { _, name := named(at); return name == builtin.Name }) {
		return nil
	}
	for _, metric := range append(lukv.Metrics(), "learned") {
		p, err := builtin.Profile(lukv.MetricConfig{Name: metric})
		if err != nil {
			return err
		}
		if p != nil {
			profiles[builtin.Name+"-"+metric] = p
		}
	}
	return nil
}

// certificate reads the certificate and key for HTTPS.
func (c *serveCmd) certificate() (pair tls.Certificate, err error) {
	const limit = 1 << 20
	cert, err := inputfile.Read(c.TLSCert, limit)
	if err != nil {
		return pair, fmt.Errorf("read certificate: %w", err)
	}
	key, err := inputfile.Read(c.TLSKey, limit)
	if err != nil {
		return pair, fmt.Errorf("read key: %w", err)
	}
	if pair, err = tls.X509KeyPair(cert, key); err != nil {
		return pair, fmt.Errorf("certificate %s with key %s: %w", c.TLSCert, c.TLSKey, err)
	}
	return pair, nil
}
