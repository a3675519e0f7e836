package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const (
	maxTries   = 6                // failures in a row before giving up
	maxBackoff = 30 * time.Second // between tries, unless the hub asks for longer
	maxAsked   = 10 * time.Minute // the longest wait that a hub may ask for
	stallLimit = time.Minute      // an answer fails after this long without a byte
	sayWait    = 2 * time.Second  // waits of at least this long are reported
)

// defaultTransport bounds everything but the transfer itself, which stall bounds.
var defaultTransport http.RoundTripper = &http.Transport{
	Proxy:                 http.ProxyFromEnvironment,
	DialContext:           (&net.Dialer{Timeout: 20 * time.Second}).DialContext,
	ForceAttemptHTTP2:     true,
	TLSHandshakeTimeout:   20 * time.Second,
	ResponseHeaderTimeout: 40 * time.Second,
	IdleConnTimeout:       90 * time.Second,
	MaxIdleConnsPerHost:   16,
}

// temporary is a failure that the next try may not meet.
type temporary struct {
	err   error
	after time.Duration // the wait that the hub asked for
}

func (t *temporary) Error() string { return t.err.Error() }
func (t *temporary) Unwrap() error { return t.err }

// passing marks a network failure as temporary unless ctx caused it.
func passing(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &temporary{err: err}
}

// retry calls try until it succeeds, fails for good, or has failed maxTries times
// in a row without getting anywhere. Unless waiting is nil, it is told the reason
// for a long wait between two tries, and "" at the end of the wait.
func (c *Client) retry(ctx context.Context, waiting func(what string), try func() (moved bool, err error)) error {
	for n := 1; ; n++ {
		moved, err := try()
		var t *temporary
		if !errors.As(err, &t) {
			return err
		}
		if moved {
			n = 1
		}
		if n == maxTries {
			return fmt.Errorf("%w (%d tries)", err, n)
		}
		if t.after > maxAsked {
			return fmt.Errorf("%w (the hub asks to wait for %v)", err, t.after)
		}
		// Half of the wait is random, so that clients that failed together do not
		// retry together.
		wait := min(maxBackoff, time.Second<<(n-1))
		wait = wait/2 + rand.N(wait/2)
		sleep := c.sleep
		if sleep == nil {
			sleep = sleepReally
		}
		wait = max(wait, t.after)
		say := waiting != nil && wait >= sayWait
		if say {
			waiting(fmt.Sprintf("%v; next try in %v", err, wait.Round(time.Second)))
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		if say {
			waiting("")
		}
	}
}

// stallAfter is the time without a byte after which an answer has failed.
func (c *Client) stallAfter() time.Duration {
	if c.stall != 0 {
		return c.stall
	}
	return stallLimit
}

// A lively reads an answer and cancels its request when no byte has arrived for
// a while. The clock stops while nobody reads.
type lively struct {
	body  io.Reader
	limit time.Duration
	timer *time.Timer
}

// lively watches the answer to a request with the context that cancel ends. The
// caller must stop it.
func (c *Client) lively(body io.Reader, cancel context.CancelCauseFunc) *lively {
	limit := c.stallAfter()
	l := &lively{body: body, limit: limit}
	l.timer = time.AfterFunc(limit, func() {
		cancel(&temporary{err: fmt.Errorf("no bytes came for %v", limit)})
	})
	return l
}

func (l *lively) Read(b []byte) (int, error) {
	l.timer.Reset(l.limit)
	n, err := l.body.Read(b)
	l.timer.Stop()
	return n, err
}

func (l *lively) stop() { l.timer.Stop() }

func sleepReally(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send makes one request to the endpoint, for the bytes from offset on. The
// answer is a success, or, for HEAD, a redirect to another host. The caller closes
// its body.
func (c *Client) send(ctx context.Context, method, path string, offset int64) (*http.Response, error) {
	base, err := c.endpoint()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(base.String(), "/")+path, nil)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", path, err)
	}
	req.Header.Set("User-Agent", first(c.UserAgent, "lukv"))
	// Without this, Go would ask for gzip, and lengths and ranges would be those of
	// the compressed form.
	req.Header.Set("Accept-Encoding", "identity")
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	client := http.Client{Transport: c.Transport, CheckRedirect: checkRedirect}
	if client.Transport == nil {
		client.Transport = defaultTransport
	}
	resp, err := client.Do(req)
	if err != nil {
		// The address in a *url.Error may be signed, so it stays out of messages.
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		if len(err.Error()) > 500 { // a server's senseless answer, quoted
			err = errors.New(plain(err.Error()))
		}
		err = fmt.Errorf("ask %s: %w", base.Host, err)
		if errors.Is(err, errRedirect) {
			return nil, err
		}
		return nil, passing(ctx, err)
	}
	if resp.StatusCode < 300 || method == http.MethodHead && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		return resp, nil
	}
	defer resp.Body.Close()
	io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be reused
	return nil, c.refused(resp)
}

var errRedirect = errors.New("redirect refused")

// checkRedirect keeps the token on the host it was meant for: any other port,
// scheme or subdomain is another host. A HEAD request stops at another host: the
// hub knows a file's hash; its storage does not.
func checkRedirect(req *http.Request, via []*http.Request) error {
	from := via[0].URL
	if len(via) > 10 {
		return fmt.Errorf("%w: more than 10 in a row", errRedirect)
	}
	if req.URL.Scheme != "https" && (req.URL.Scheme != "http" || from.Scheme == "https") {
		return fmt.Errorf("%w: from %s to %s", errRedirect, from.Scheme, req.URL.Scheme)
	}
	for _, r := range append(via[1:len(via):len(via)], req) {
		if r.URL.Scheme == from.Scheme && r.URL.Host == from.Host {
			continue
		}
		if req.Method == http.MethodHead {
			return http.ErrUseLastResponse
		}
		req.Header.Del("Authorization")
	}
	return nil
}

// refused is the error for an answer that is not a success.
func (c *Client) refused(resp *http.Response) error {
	what := "status " + strconv.Itoa(resp.StatusCode)
	if t := http.StatusText(resp.StatusCode); t != "" {
		what += " (" + strings.ToLower(t) + ")"
	}
	if m := plain(resp.Header.Get("X-Error-Message")); m != "" {
		what += ": " + m
	}
	err := fmt.Errorf("%s answers %s", resp.Request.URL.Host, what)
	hint := "set HF_TOKEN if it is private"
	if c.Token != "" {
		hint = "the token may be wrong, or the repository's conditions not accepted"
	}
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		if code == http.StatusForbidden && resp.Request.URL.Host != c.host() {
			// A signed address that has expired: the next try gets a new one.
			return &temporary{err: err}
		}
		return fmt.Errorf("%w: %w (%s)", ErrAccess, err, hint)
	case code == http.StatusNotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case code == http.StatusRequestedRangeNotSatisfiable:
		return &rangeError{err: err, size: unsatisfied(resp.Header.Get("Content-Range"))}
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500 && code != http.StatusNotImplemented:
		return &temporary{err: err, after: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	}
	return err
}

func (c *Client) host() string {
	u, err := c.endpoint()
	if err != nil {
		return ""
	}
	return u.Host
}

// retryAfter reads either form of the header, seconds or a date.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// plain makes a server's text fit for a terminal message.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 200 {
		s = string(r[:200]) + "…"
	}
	return strings.TrimSpace(s)
}
