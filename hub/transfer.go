package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// A rangeError reports that a server has no bytes from the offset on, or has
// answered with bytes that were not requested.
type rangeError struct {
	err  error
	size int64 // of the whole content, -1 if the server did not say
}

func (r *rangeError) Error() string { return r.err.Error() }
func (r *rangeError) Unwrap() error { return r.err }

// enough is how many bytes beyond the most so far count as getting somewhere.
// Otherwise, a server that breaks off after every few, or starts over from the
// first, would be asked forever.
const enough = 64 << 10

// part is content on its way to its .incomplete file.
type part struct {
	j   *job
	f   *remoteFile
	out *os.File
	at  *int64    // bytes in out, all of which sum has seen
	top int64     // the most that at has been
	sum hash.Hash // nil: nothing to check against, or not until the size is known
}

// newSum returns the kind of hash that f.Hash is, nil if it cannot be computed.
func newSum(f *remoteFile) hash.Hash {
	switch {
	case isHex(f.Hash, 64):
		return sha256.New()
	case isHex(f.Hash, 40) && f.Size >= 0:
		// A git blob id also covers the length, before the content.
		h := sha1.New()
		fmt.Fprintf(h, "blob %d\x00", f.Size)
		return h
	}
	return nil
}

// resume takes over what an earlier call left if the result can be checked.
func (p *part) resume(ctx context.Context) error {
	info, err := p.out.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", p.out.Name())
	}
	p.sum = newSum(p.f)
	if p.sum == nil || p.f.Size >= 0 && info.Size() > p.f.Size {
		return p.reset()
	}
	n, err := io.Copy(p.sum, interruptible{ctx, p.out})
	p.j.report(p.f, p.at, n, false)
	return err
}

// interruptible is a reader that fails once its context is done.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(b []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, context.Cause(i.ctx)
	}
	return i.r.Read(b)
}

// reset drops all bytes.
func (p *part) reset() error {
	p.j.report(p.f, p.at, -*p.at, false)
	p.sum = newSum(p.f)
	if _, err := p.out.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return p.out.Truncate(0)
}

// check compares the whole content with its hash.
func (p *part) check() error {
	if p.f.Size < 0 {
		p.f.Size = *p.at
		if p.sum == nil {
			if p.sum = newSum(p.f); p.sum != nil {
				if _, err := io.Copy(p.sum, io.NewSectionReader(p.out, 0, *p.at)); err != nil {
					return err
				}
			}
		}
	}
	if p.sum == nil {
		return nil
	}
	if got := hex.EncodeToString(p.sum.Sum(nil)); got != p.f.Hash {
		return fmt.Errorf("the content that came has the hash %s, expected %s", got, p.f.Hash)
	}
	return nil
}

// transfer asks once for the missing bytes. moved reports whether it got
// somewhere.
func (p *part) transfer(ctx context.Context) (moved bool, err error) {
	if p.f.Size >= 0 && *p.at == p.f.Size {
		return false, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	asked := *p.at
	body, start, err := p.j.get(ctx, p.f, asked)
	if err != nil {
		return false, p.fresh(asked, err)
	}
	defer body.Close()
	if start != *p.at {
		if err := p.reset(); err != nil {
			return false, err
		}
	}
	in := p.j.c.lively(body, cancel)
	defer in.stop()
	defer func() {
		moved = *p.at >= p.top+enough
		p.top = max(p.top, *p.at)
	}()
	buf := make([]byte, 256<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if e := p.write(buf[:n]); e != nil {
				return false, p.fresh(asked, e)
			}
		}
		switch {
		case err == nil:
		case err == io.EOF && p.f.Size >= 0 && *p.at < p.f.Size:
			err = fmt.Errorf("the server ends after %d of %d bytes", *p.at, p.f.Size)
			return false, &temporary{err: err}
		case err == io.EOF:
			return false, nil
		default:
			return false, passing(ctx, fmt.Errorf("after %d of %d bytes: %w", *p.at, p.f.Size, err))
		}
	}
}

// fresh decides how to go on after a senseless answer (a rangeError) to a request from
// offset asked on: as if nothing were missing, or with a next try from the first byte,
// or, if that was already requested, with an error. So no answer to a range can keep a
// download from finishing. Other errors are returned unchanged.
func (p *part) fresh(asked int64, err error) error {
	var r *rangeError
	if !errors.As(err, &r) || asked == 0 {
		return err
	}
	if r.size == *p.at {
		return nil
	}
	return &temporary{err: errors.Join(err, p.reset())}
}

func (p *part) write(b []byte) error {
	if p.f.Size >= 0 && *p.at+int64(len(b)) > p.f.Size {
		return &rangeError{fmt.Errorf("the server sends more than the %d bytes that the hub lists", p.f.Size), -1}
	}
	if _, err := p.out.Write(b); err != nil {
		return fmt.Errorf("%w (%d of %d bytes are there and will be continued)", err, *p.at, p.f.Size)
	}
	if p.sum != nil {
		p.sum.Write(b)
	}
	p.j.mu.Lock()
	p.j.fetched += int64(len(b))
	p.j.mu.Unlock()
	p.j.report(p.f, p.at, int64(len(b)), false)
	return nil
}

// unsatisfied reads the size from "bytes */SIZE", -1 if there is none.
func unsatisfied(s string) int64 {
	if n, err := strconv.ParseUint(strings.TrimPrefix(s, "bytes */"), 10, 62); err == nil {
		return int64(n)
	}
	return -1
}

// extent reads from an answer where its bytes begin and how many bytes the
// whole content has, -1 if it does not say.
func extent(resp *http.Response, asked int64) (start, size int64, err error) {
	switch resp.StatusCode {
	case http.StatusOK:
		return 0, resp.ContentLength, nil
	case http.StatusPartialContent:
		start, size, err = parseContentRange(resp.Header.Get("Content-Range"))
		if err == nil && start != asked {
			err = fmt.Errorf("the server sends bytes from %d on, expected from %d", start, asked)
		}
		return start, size, err
	}
	return 0, 0, fmt.Errorf("the server answers status %d, expected 200 or 206", resp.StatusCode)
}

// parseContentRange reads "bytes FIRST-LAST/SIZE", where SIZE may be "*".
func parseContentRange(s string) (start, size int64, err error) {
	span, total, ok := strings.Cut(strings.TrimPrefix(s, "bytes "), "/")
	from, to, ok2 := strings.Cut(span, "-")
	if ok && ok2 && strings.HasPrefix(s, "bytes ") {
		first, e1 := strconv.ParseUint(from, 10, 62)
		last, e2 := strconv.ParseUint(to, 10, 62)
		if total == "*" {
			total = strconv.FormatUint(last+1, 10)
			size = -1
		}
		all, e3 := strconv.ParseUint(total, 10, 62)
		if e1 == nil && e2 == nil && e3 == nil && first <= last && last < all {
			if size == 0 {
				size = int64(all)
			}
			return int64(first), size, nil
		}
	}
	return 0, 0, fmt.Errorf("the server sends the range %.80q, expected bytes FIRST-LAST/SIZE", s)
}
