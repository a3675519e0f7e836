package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// snapshot lists the files of a repository at one commit.
type snapshot struct {
	Ref    Ref
	Commit string       // hash, 40 or 64 hexadecimal digits
	Files  []remoteFile // all files of the repository, in the hub's order
}

// remoteFile is one file of a snapshot.
type remoteFile struct {
	Name string // slash-separated, as the hub lists it: not checked, see Pull
	Size int64  // bytes; -1: not listed
	Hash string // sha256 or git blob id, the blob's name in the cache; "": not listed
}

const (
	maxListing = 64 << 20 // bytes in an API answer
	maxFiles   = 100_000
	maxSize    = 1 << 50
)

// resolve asks the hub for the commit of a revision and its files.
func (c *Client) resolve(ctx context.Context, ref Ref, waiting func(what string)) (*snapshot, error) {
	if err := ref.check(); err != nil {
		return nil, err
	}
	var s *snapshot
	path := "/api/models/" + ref.Repo() + "/revision/" + url.PathEscape(ref.revision()) + "?blobs=true"
	err := c.retry(ctx, waiting, func() (bool, error) {
		limit := 10 * c.stallAfter() // a listing arrives at once, if at all
		ctx, stop := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the hub's answer is not complete after %v", limit))
		defer stop()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		resp, err := c.send(ctx, http.MethodGet, path, 0)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		body := c.lively(resp.Body, cancel)
		defer body.stop()
		data, err := io.ReadAll(io.LimitReader(body, maxListing+1))
		if err != nil {
			return false, passing(ctx, fmt.Errorf("read the hub's answer: %w", err))
		}
		if len(data) > maxListing {
			return false, fmt.Errorf("the hub's answer is longer than %d bytes", maxListing)
		}
		s, err = parseSnapshot(data)
		return false, err
	})
	if err != nil {
		return nil, err
	}
	s.Ref = ref
	return s, nil
}

// parseSnapshot reads the hub's description of a model at a revision.
func parseSnapshot(data []byte) (*snapshot, error) {
	var in struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("the hub's answer is not the JSON expected: %w", err)
	}
	if !isHex(in.SHA, 40) && !isHex(in.SHA, 64) {
		return nil, fmt.Errorf("the hub's answer has the commit %.80q, expected 40 or 64 hexadecimal digits", in.SHA)
	}
	if len(in.Siblings) > maxFiles {
		return nil, fmt.Errorf("the hub's answer lists %d files, expected at most %d", len(in.Siblings), maxFiles)
	}
	s := &snapshot{Commit: in.SHA}
	for _, e := range in.Siblings {
		f := remoteFile{Name: e.Name, Size: -1, Hash: e.BlobID}
		size := e.Size
		if e.LFS != nil {
			f.Hash = e.LFS.SHA256
			if e.LFS.Size != nil {
				size = e.LFS.Size
			}
			if !isHex(f.Hash, 64) {
				return nil, fmt.Errorf("the hub's answer has the sha256 %.80q for %.200q, expected 64 hexadecimal digits", f.Hash, e.Name)
			}
		} else if f.Hash != "" && !isHex(f.Hash, 40) && !isHex(f.Hash, 64) {
			return nil, fmt.Errorf("the hub's answer has the blob %.80q for %.200q, expected 40 or 64 hexadecimal digits", f.Hash, e.Name)
		}
		if size != nil {
			if f.Size = *size; f.Size < 0 || f.Size > maxSize {
				return nil, fmt.Errorf("the hub's answer has the size %d for %.200q", f.Size, e.Name)
			}
		}
		s.Files = append(s.Files, f)
	}
	return s, nil
}

// fileURL is the address of a file's contents, below the endpoint.
func (s *snapshot) fileURL(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return "/" + s.Ref.Repo() + "/resolve/" + s.Commit + "/" + strings.Join(parts, "/")
}

// describe asks for a file's size and hash where the listing lacks them.
func (c *Client) describe(ctx context.Context, s *snapshot, f *remoteFile, waiting func(what string)) error {
	return c.retry(ctx, waiting, func() (bool, error) {
		resp, err := c.send(ctx, http.MethodHead, s.fileURL(f.Name), 0)
		if err != nil {
			return false, err
		}
		resp.Body.Close()
		h := resp.Header
		if got := h.Get("X-Repo-Commit"); got != "" && got != s.Commit {
			return false, fmt.Errorf("the hub answers for the commit %.80q, expected %s", got, s.Commit)
		}
		redirected := resp.StatusCode >= 300
		hash, size := h.Get("X-Linked-Etag"), h.Get("X-Linked-Size")
		if hash == "" {
			hash = h.Get("ETag")
		}
		if size == "" && !redirected {
			size = h.Get("Content-Length")
		}
		hash = strings.Trim(strings.TrimPrefix(hash, "W/"), `"`)
		if !isBlobName(hash) {
			return false, fmt.Errorf("the hub gives the ETag %.80q, expected a hash or other plain name", hash)
		}
		f.Hash = hash
		if size != "" && f.Size < 0 {
			n, err := strconv.ParseInt(size, 10, 64)
			if err != nil || n < 0 || n > maxSize {
				return false, fmt.Errorf("the hub gives the size %.80q", size)
			}
			f.Size = n
		}
		return false, nil
	})
}

// isBlobName accepts names that are safe for files, since a mirror may send any ETag.
func isBlobName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '_') {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 128
}
