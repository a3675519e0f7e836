package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lukv/lukv/internal/inputfile"
)

// Errors that callers branch on. They are wrapped with a description of the attempt.
var (
	// ErrNotFound reports that the hub has no such repository, revision or
	// file. Without a token, the hub says the same of private repositories.
	ErrNotFound = errors.New("not found on the hub")

	// ErrAccess reports that the hub refused: the token is missing or wrong,
	// or its user has not accepted the repository's conditions.
	ErrAccess = errors.New("access denied by the hub")

	// ErrNotCached reports that a name is not in the cache and must be pulled.
	ErrNotCached = errors.New("not in the cache")
)

// DefaultEndpoint is the hub used unless HF_ENDPOINT names another.
const DefaultEndpoint = "https://huggingface.co"

// Client talks to a hub and keeps a cache. Its fields must be set before its
// first use; New sets them from the environment.
type Client struct {
	// Endpoint is the hub's address; "" is DefaultEndpoint.
	Endpoint string

	// CacheDir holds the models--OWNER--NAME folders. It is created if needed.
	CacheDir string

	// GGUFDir is CacheDir for GGUF files; "" is CacheDir. Find looks in both.
	GGUFDir string

	// Token is sent to the endpoint's host; "" is none.
	Token string

	// Offline forbids the network: Pull then returns what is cached.
	Offline bool

	// UserAgent is sent with every request; "" is "lukv".
	UserAgent string

	// Transport makes the requests; nil is one with sensible time limits.
	Transport http.RoundTripper

	sleep func(ctx context.Context, d time.Duration) error // nil: sleepReally
	stall time.Duration                                    // 0: stallLimit
}

// New returns a client with settings from the environment, which the package
// documentation lists. It fails if there is neither a home folder nor a
// variable that names the cache, or if HF_ENDPOINT is not an address.
func New() (*Client, error) {
	home, err := expand(os.Getenv("HF_HOME"))
	if err != nil {
		return nil, err
	}
	cache, err := expand(first(os.Getenv("HF_HUB_CACHE"), os.Getenv("HUGGINGFACE_HUB_CACHE")))
	if err != nil {
		return nil, err
	}
	if home == "" {
		base, err := expand(first(os.Getenv("XDG_CACHE_HOME"), filepath.Join("~", ".cache")))
		switch {
		case err == nil:
			home = filepath.Join(base, "huggingface")
		case cache == "":
			return nil, err
		}
	}
	if cache == "" {
		cache = filepath.Join(home, "hub")
	}
	gguf, err := expand(first(os.Getenv("LLAMA_CACHE")))
	if err != nil {
		return nil, err
	}
	c := &Client{
		Endpoint: strings.TrimRight(first(os.Getenv("MODEL_ENDPOINT"), os.Getenv("HF_ENDPOINT"), DefaultEndpoint), "/"),
		CacheDir: cache,
		GGUFDir:  gguf,
		Offline:  isSet("HF_HUB_OFFLINE") || isSet("TRANSFORMERS_OFFLINE"),
	}
	if _, err := c.endpoint(); err != nil {
		return nil, err
	}
	if !isSet("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
		c.Token = first(os.Getenv("HF_TOKEN"), os.Getenv("HUGGING_FACE_HUB_TOKEN"))
		if c.Token == "" {
			if c.Token, err = readToken(home); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// maxTextFile bounds a file that holds an access token, or the commit of a revision.
const maxTextFile = 64 << 10

// readToken reads the file in which the Python tools keep a login; there need
// not be one.
func readToken(home string) (string, error) {
	path, err := expand(os.Getenv("HF_TOKEN_PATH"))
	if err != nil {
		return "", err
	}
	if path == "" {
		if home == "" {
			return "", nil
		}
		path = filepath.Join(home, "token")
	}
	text, err := inputfile.Read(path, maxTextFile)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read hub token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// expand replaces a leading ~ and environment variables, as the Python tools do.
func expand(path string) (string, error) {
	path = os.ExpandEnv(path)
	if path != "~" && !strings.HasPrefix(path, "~/") && !strings.HasPrefix(path, "~"+string(filepath.Separator)) {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the hub's cache: no home folder (set HF_HOME or HF_HUB_CACHE): %w", err)
	}
	return filepath.Join(home, path[1:]), nil
}

// first returns the first value that is not blank, trimmed.
func first(values ...string) string {
	for _, v := range values {
		if v = strings.TrimSpace(v); v != "" {
			return v
		}
	}
	return ""
}

func isSet(name string) bool {
	switch strings.ToLower(os.Getenv(name)) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

func (c *Client) endpoint() (*url.URL, error) {
	u, err := url.Parse(first(c.Endpoint, DefaultEndpoint))
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("hub endpoint %q (MODEL_ENDPOINT or HF_ENDPOINT): expected an http or https address", c.Endpoint)
	}
	return u, nil
}
