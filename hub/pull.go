package hub

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/lukv/lukv/internal/inputfile"
)

// PullOptions say what to download. The zero value is what this module needs:
// config, tokenizer, chat template and safetensors weights.
type PullOptions struct {
	// Include, if not empty, replaces the default choice and that by a tag. Each element is a
	// pattern of path.Match for a whole name or its last element, or the name of
	// a folder followed by a slash.
	Include []string

	// Exclude removes files from the choice; patterns are as in Include.
	Exclude []string

	// Parallel is the number of files downloaded at once; the default is 4.
	Parallel int

	// Verify compares cached contents with their hashes and fetches those that
	// differ again. Without it, only sizes are compared. Offline, a difference is
	// an error.
	Verify bool

	// Progress, if not nil, is called as bytes arrive, files are finished and
	// waits begin and end, from one goroutine at a time. It should return
	// quickly.
	Progress func(Progress)
}

// Progress is how far a pull has come. Bytes that were on disk before count as
// done.
type Progress struct {
	File        string // the file that progressed
	FileBytes   int64
	FileSize    int64 // -1: unknown
	Bytes       int64 // of all files
	Fetched     int64 // bytes received over the network, dropped ones included
	Size        int64 // of all files whose size is known
	Done, Files int   // files finished, files in all

	// Waiting gives the reason for a long wait: a hub that asks to try again
	// later, or another process that is fetching the same file. "": bytes are
	// moving.
	Waiting string
}

// Pulled is the outcome of a pull.
type Pulled struct {
	Ref     Ref          `json:"-"`
	Repo    string       `json:"repo"`
	Commit  string       `json:"commit"`
	Dir     string       `json:"dir"`   // the snapshot's folder
	Model   string       `json:"model"` // what [Find] returns: Dir, or the GGUF file in it
	Fetched int64        `json:"fetched_bytes"`
	Size    int64        `json:"bytes"`
	Files   []PulledFile `json:"files"`
}

// PulledFile is one file of a pull.
type PulledFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"bytes"`
	Hash   string `json:"hash"`
	Cached bool   `json:"cached"` // it was already complete

	// Damaged reports that the cached content had the wrong hash and was fetched again.
	Damaged bool `json:"damaged,omitempty"`
}

// Pull downloads a model into the cache and returns its folder. What is already
// there is not fetched again, and what an earlier call left unfinished is
// continued. When ctx is done, it returns soon; what has arrived is kept for
// the next call. Offline, it returns what is cached.
func (c *Client) Pull(ctx context.Context, ref Ref, o PullOptions) (*Pulled, error) {
	if c.Offline {
		dir, file, err := c.find(ref)
		if err != nil {
			return nil, fmt.Errorf("pull %s offline (HF_HUB_OFFLINE is set): %w", ref, err)
		}
		p := &Pulled{Ref: ref, Repo: ref.Repo(), Commit: filepath.Base(dir), Dir: dir, Model: cmp.Or(file, dir)}
		if err := p.list(); err != nil {
			return nil, fmt.Errorf("pull %s offline: %w", ref, err)
		}
		if o.Verify {
			if err := p.verify(ctx); err != nil {
				return nil, fmt.Errorf("verify %s: %w", ref, err)
			}
		}
		return p, nil
	}
	p, err := c.pull(ctx, ref, o)
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	return p, nil
}

// list fills in the files of a snapshot without asking the hub.
func (p *Pulled) list() error {
	return filepath.WalkDir(p.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(p.Dir, path)
		if err != nil {
			return err
		}
		f := PulledFile{Name: filepath.ToSlash(name), Cached: true}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		f.Size = info.Size()
		if target, err := os.Readlink(path); err == nil {
			f.Hash = filepath.Base(target)
		}
		p.Size += f.Size
		p.Files = append(p.Files, f)
		return nil
	})
}

// verify compares the files with their hashes, where these are known.
func (p *Pulled) verify(ctx context.Context) error {
	var errs []error
	for _, f := range p.Files {
		path := filepath.Join(p.Dir, filepath.FromSlash(f.Name))
		ok, err := hashes(ctx, path, &remoteFile{Name: f.Name, Size: f.Size, Hash: f.Hash})
		if err != nil {
			return err
		}
		if !ok {
			errs = append(errs, fmt.Errorf("%s: its content does not have the hash %s: pull it again with the network", f.Name, f.Hash))
		}
	}
	return errors.Join(errs...)
}

// hashes compares a file with the hash of f. A name that is not a hash, from a
// mirror that has none, says nothing about the content.
func hashes(ctx context.Context, path string, f *remoteFile) (bool, error) {
	sum := newSum(f)
	if sum == nil {
		return true, nil
	}
	in, err := inputfile.Open(path)
	if err != nil {
		return false, err
	}
	defer in.Close()
	if _, err := io.Copy(sum, interruptible{ctx, in}); err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)) == f.Hash, nil
}

func (c *Client) pull(ctx context.Context, ref Ref, o PullOptions) (*Pulled, error) {
	j := &job{c: c, o: &o, repo: c.repo(ref), fresh: map[string]bool{}, verified: map[string]bool{}}
	s, err := c.resolve(ctx, ref, j.waiting)
	if err != nil {
		return nil, err
	}
	j.s = s
	gguf := s.wantsGGUF(&o)
	if gguf && c.GGUFDir != "" {
		j.repo = repoIn(c.GGUFDir, ref)
	}
	var index []byte
	if needsIndex(s, &o) {
		if index, err = j.index(ctx); err != nil {
			return nil, err
		}
	}
	files, err := choose(s, &o, index)
	if err != nil {
		return nil, err
	}
	if err := j.all(ctx, files); err != nil {
		return nil, err
	}
	if rev := ref.revision(); rev != s.Commit {
		if err := j.repo.writeRef(rev, s.Commit); err != nil {
			return nil, fmt.Errorf("note the commit of %q: %w", rev, err)
		}
	}
	p := &Pulled{Ref: ref, Repo: ref.Repo(), Commit: s.Commit, Dir: j.repo.snapshot(s.Commit), Fetched: j.fetched, Files: j.files}
	p.Model = p.Dir
	if gguf {
		names, err := selectGGUF(s.names(), ref.Tag)
		if err != nil {
			return nil, err
		}
		p.Model = filepath.Join(p.Dir, filepath.FromSlash(names[0]))
	}
	for _, f := range p.Files {
		p.Size += f.Size
	}
	return p, nil
}

// job is one pull.
type job struct {
	c    *Client
	s    *snapshot
	o    *PullOptions
	repo repo

	mu       sync.Mutex
	state    Progress
	fetched  int64
	fresh    map[string]bool // hashes of contents that this pull has fetched
	verified map[string]bool // by hash of the contents that it has compared, whether they were right
	files    []PulledFile    // in the order of the listing
}

// index fetches the weights' index, which says what else is needed.
func (j *job) index(ctx context.Context) ([]byte, error) {
	f := j.s.file(weightsIndex)
	if err := j.one(ctx, f, new(PulledFile)); err != nil {
		return nil, err
	}
	if f.Size > maxIndex {
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d", weightsIndex, f.Size, maxIndex)
	}
	return inputfile.Read(j.repo.blob(f.Hash), maxIndex)
}

// all fetches files, several at once. The first failure cancels the others.
func (j *job) all(ctx context.Context, files []*remoteFile) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j.files = make([]PulledFile, len(files))
	j.state = Progress{Files: len(files)}
	for _, f := range files {
		j.state.Size += max(0, f.Size)
	}
	places := j.o.Parallel
	if places < 1 {
		places = 4
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(places, len(files)) {
		wg.Go(func() {
			for i := range next {
				if err := j.one(ctx, files[i], &j.files[i]); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for i := range files {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// waiting reports the beginning of a wait, or with "" its end.
func (j *job) waiting(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Waiting = what
	if j.o.Progress != nil {
		j.o.Progress(j.state)
	}
}

// report reports n more bytes of a file (negative: bytes that were dropped).
func (j *job) report(f *remoteFile, at *int64, n int64, done bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	*at += n
	p := &j.state
	p.File, p.FileBytes, p.FileSize, p.Waiting = f.Name, *at, f.Size, ""
	p.Fetched = j.fetched
	p.Bytes += n
	p.Size = max(p.Size, p.Bytes)
	if done {
		p.Done++
	}
	if j.o.Progress != nil && p.Files > 0 {
		j.o.Progress(*p)
	}
}

// one makes sure that the snapshot has the file.
func (j *job) one(ctx context.Context, f *remoteFile, result *PulledFile) error {
	if err := j.fetch(ctx, f, result); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return nil
}

func (j *job) fetch(ctx context.Context, f *remoteFile, result *PulledFile) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if f.Hash == "" || f.Size < 0 {
		known := max(0, f.Size)
		if err := j.c.describe(ctx, j.s, f, j.waiting); err != nil {
			return err
		}
		j.mu.Lock()
		j.state.Size += max(0, f.Size) - known
		j.mu.Unlock()
	}
	var at int64
	there, err := j.whole(ctx, f)
	if err != nil {
		return err
	}
	if !there {
		release, err := acquire(ctx, j.repo.lock(f.Hash), j.waiting)
		if err != nil {
			return err
		}
		defer release()
		// Another process may have fetched it in the meantime.
		if there, err = j.whole(ctx, f); err != nil {
			return err
		}
		if !there {
			if err := j.download(ctx, f, &at); err != nil {
				return err
			}
		}
	}
	if err := j.repo.link(j.s.Commit, f.Name, f.Hash); err != nil {
		return err
	}
	if info, err := os.Stat(j.repo.blob(f.Hash)); err == nil {
		f.Size = info.Size()
	}
	j.mu.Lock()
	if !there {
		j.fresh[f.Hash] = true
	}
	// Another file of this pull, or the index, may already have had this content
	// fetched: what was found then counts.
	right, known := j.verified[f.Hash]
	*result = PulledFile{Name: f.Name, Size: f.Size, Hash: f.Hash, Cached: !j.fresh[f.Hash], Damaged: known && !right}
	j.mu.Unlock()
	j.report(f, &at, f.Size-at, true)
	return nil
}

// whole reports whether the cache has the content. Content of the wrong size
// does not count, nor, under Verify, content with the wrong hash, which
// j.verified then records.
func (j *job) whole(ctx context.Context, f *remoteFile) (bool, error) {
	blob := j.repo.blob(f.Hash)
	info, err := os.Stat(blob)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() || f.Size >= 0 && info.Size() != f.Size {
		return false, nil
	}
	if !j.o.Verify {
		return true, nil
	}
	j.mu.Lock()
	right, known := j.verified[f.Hash]
	known = known || j.fresh[f.Hash]
	right = right || j.fresh[f.Hash]
	j.mu.Unlock()
	if !known {
		if right, err = hashes(ctx, blob, &remoteFile{Name: f.Name, Size: info.Size(), Hash: f.Hash}); err != nil {
			return false, err
		}
		j.mu.Lock()
		j.verified[f.Hash] = right
		j.mu.Unlock()
	}
	return right, nil
}

// download fetches content into its .incomplete file, checks it and gives it its
// name. The caller holds the lock.
func (j *job) download(ctx context.Context, f *remoteFile, at *int64) error {
	blob := j.repo.blob(f.Hash)
	if err := os.MkdirAll(filepath.Dir(blob), 0o777); err != nil {
		return err
	}
	p := &part{j: j, f: f, at: at}
	var err error
	if p.out, err = os.OpenFile(blob+".incomplete", os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return err
	}
	defer p.out.Close()
	if err := p.resume(ctx); err != nil {
		return err
	}
	for first := true; ; first = false {
		if err := j.c.retry(ctx, j.waiting, func() (bool, error) { return p.transfer(ctx) }); err != nil {
			return err
		}
		err := p.check()
		if err == nil {
			break
		}
		// What an earlier call left may have been wrong: try once more, from the start.
		if e := p.reset(); e != nil || !first {
			p.out.Close()
			os.Remove(p.out.Name())
			return errors.Join(err, e)
		}
	}
	if err := errors.Join(p.out.Sync(), p.out.Close()); err != nil {
		return err
	}
	return os.Rename(p.out.Name(), blob)
}

// get opens the content's bytes from offset on and returns where they actually
// start: at offset or, if the server does not support ranges, at 0.
func (j *job) get(ctx context.Context, f *remoteFile, offset int64) (body io.ReadCloser, start int64, err error) {
	resp, err := j.c.send(ctx, http.MethodGet, j.s.fileURL(f.Name), offset)
	if err != nil {
		return nil, 0, err
	}
	start, size, err := extent(resp, offset)
	if err == nil && size >= 0 && f.Size >= 0 && size != f.Size {
		err = fmt.Errorf("the server has %d bytes, the hub lists %d", size, f.Size)
	}
	if err != nil {
		resp.Body.Close()
		return nil, 0, &rangeError{err, -1}
	}
	return resp.Body, start, nil
}
