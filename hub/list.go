package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lukv/lukv/internal/filelock"
)

// Cached is a model in the cache.
type Cached struct {
	Name     string    `json:"name"`  // OWNER/NAME
	Bytes    int64     `json:"bytes"` // of all revisions
	Modified time.Time `json:"modified"`
	Path     string    `json:"path"` // its folder
}

// List returns the models in the cache, by name. It does not use the network.
func (c *Client) List(ctx context.Context) ([]Cached, error) {
	var out []Cached
	for _, cache := range c.caches(Ref{}) {
		entries, err := os.ReadDir(cache)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the cache: %w", err)
		}
		for _, d := range entries {
			name, ok := strings.CutPrefix(d.Name(), "models--")
			owner, name, both := strings.Cut(name, "--")
			if !ok || !both || !d.IsDir() {
				continue
			}
			x := Cached{Name: owner + "/" + name, Path: filepath.Join(cache, d.Name())}
			if err := x.measure(ctx); err != nil {
				return nil, fmt.Errorf("list the cache: %s: %w", x.Path, err)
			}
			out = append(out, x)
		}
	}
	slices.SortStableFunc(out, func(a, b Cached) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// measure adds up the files of a model; links to them count nothing.
func (x *Cached) measure(ctx context.Context) error {
	return filepath.WalkDir(x.Path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		x.Bytes += info.Size()
		if info.ModTime().After(x.Modified) {
			x.Modified = info.ModTime()
		}
		return nil
	})
}

// Remove removes a model with all of its revisions from the cache, and returns what it was.
// A model that is being pulled, here or by another program, is left alone. One that is in
// use stays usable on systems where open files outlive their names.
func (c *Client) Remove(ctx context.Context, ref Ref) (Cached, error) {
	fail := func(err error) (Cached, error) { return Cached{}, fmt.Errorf("remove %s: %w", ref, err) }
	if ref.Revision != "" || ref.Tag != "" {
		return fail(errors.New("found a revision, expected OWNER/NAME: all revisions are removed"))
	}
	list, err := c.List(ctx)
	if err != nil {
		return fail(err)
	}
	at := slices.IndexFunc(list, func(x Cached) bool { return x.Name == ref.Repo() })
	if at < 0 {
		return fail(ErrNotCached)
	}
	x := list[at]
	release, err := lockAll(repoIn(filepath.Dir(x.Path), ref).locks)
	if err != nil {
		return fail(err)
	}
	defer release()
	// Renamed first, so that nobody finds half of it.
	gone := filepath.Join(filepath.Dir(x.Path), ".removed-"+filepath.Base(x.Path))
	if err := errors.Join(os.RemoveAll(gone), os.Rename(x.Path, gone), os.RemoveAll(gone)); err != nil {
		return fail(err)
	}
	return x, nil
}

// errBeingPulled says that a lock of a model is held.
var errBeingPulled = errors.New("it is being pulled")

// lockAll takes all locks in a folder, if nobody holds one.
func lockAll(dir string) (release func(), err error) {
	var files []*os.File
	release = func() {
		for _, f := range files {
			f.Close()
		}
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return release, nil
	}
	for _, d := range entries {
		path := filepath.Join(dir, d.Name())
		f, openErr := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(openErr, fs.ErrNotExist) {
			continue
		}
		if err = openErr; err != nil {
			break
		}
		files = append(files, f)
		ok, tryErr := filelock.Try(f)
		if err = tryErr; err == nil && !ok {
			err = errBeingPulled
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}
