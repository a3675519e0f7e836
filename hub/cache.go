package hub

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
)

// Find returns the folder of a cached model, or its GGUF file, given its name in the form
// that ParseRef reads, in the cache that the environment names. It does not use the
// network.
func Find(name string) (path string, err error) {
	ref, err := ParseRef(name)
	if err != nil {
		return "", err
	}
	c, err := New()
	if err != nil {
		return "", err
	}
	return c.Find(ref)
}

// Find returns the snapshot folder of a cached model: that of the commit to which the
// revision referred when it was last pulled. With a tag, and if the folder has GGUF files
// only, it returns a GGUF file, of several parts the first. It does
// not use the network. A name that is not cached gives ErrNotCached.
func (c *Client) Find(ref Ref) (path string, err error) {
	dir, file, err := c.find(ref)
	if err != nil {
		return "", err
	}
	if file != "" {
		return file, nil
	}
	return dir, nil
}

// find returns the snapshot folder and, if a GGUF file is asked for, that file.
func (c *Client) find(ref Ref) (dir, file string, err error) {
	for _, cache := range c.caches(ref) {
		if dir, err = c.snapshotDir(cache, ref); err == nil {
			file, err = FolderGGUF(dir, ref.Tag)
			if err != nil {
				err = fmt.Errorf("find %s in %s: %w: %w", ref, dir, ErrNotCached, err)
			}
		}
		if !errors.Is(err, ErrNotCached) {
			break
		}
	}
	return dir, file, err
}

// caches returns the folders in which a model may be, most likely first.
func (c *Client) caches(ref Ref) []string {
	switch {
	case c.GGUFDir == "" || c.GGUFDir == c.CacheDir:
		return []string{c.CacheDir}
	case ref.Tag != "":
		return []string{c.GGUFDir, c.CacheDir}
	}
	return []string{c.CacheDir, c.GGUFDir}
}

// snapshotDir returns the snapshot folder of a model in one of the caches.
func (c *Client) snapshotDir(cache string, ref Ref) (dir string, err error) {
	if err := ref.check(); err != nil {
		return "", err
	}
	r := repoIn(cache, ref)
	commit := ref.revision()
	text, err := inputfile.Read(r.ref(commit), maxTextFile)
	switch {
	case err == nil:
		commit = strings.TrimSpace(string(text))
		if !isHex(commit, 40) && !isHex(commit, 64) {
			return "", fmt.Errorf("find %s: %s holds %.80q, expected a commit", ref, r.ref(ref.revision()), commit)
		}
	case isHex(commit, 40) || isHex(commit, 64):
	case ref.Tag != "" && ref.Revision == "" && r.anyCommit() != "":
		commit = r.anyCommit() // as llama.cpp does
	case errors.Is(err, fs.ErrNotExist) || isNoFile(r.ref(commit)):
		return "", fmt.Errorf("find %s in %s: %w%s", ref, cache, ErrNotCached, r.others())
	default:
		return "", fmt.Errorf("find %s: %w", ref, err)
	}
	dir = r.snapshot(commit)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", fmt.Errorf("find %s: commit %s: %w%s", ref, commit, ErrNotCached, r.others())
	}
	return dir, nil
}

// isNoFile reports whether path is a folder, as refs/refs is for refs/pr/1.
func isNoFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// repo is a repository's folder in the cache.
type repo struct {
	dir   string
	locks string
}

// anyCommit returns the commit of some revision that is cached, "" if there is none.
func (r repo) anyCommit() string {
	commit := ""
	filepath.WalkDir(filepath.Join(r.dir, "refs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if text, err := inputfile.Read(path, maxTextFile); err == nil && commit == "" {
			if s := strings.TrimSpace(string(text)); isHex(s, 40) || isHex(s, 64) {
				commit = s
			}
		}
		return nil
	})
	return commit
}

func (c *Client) repo(ref Ref) repo { return repoIn(c.CacheDir, ref) }

func repoIn(cache string, ref Ref) repo {
	name := "models--" + ref.Owner + "--" + ref.Name
	return repo{
		dir:   filepath.Join(cache, name),
		locks: filepath.Join(cache, ".locks", name),
	}
}

func (r repo) blob(hash string) string       { return filepath.Join(r.dir, "blobs", hash) }
func (r repo) lock(hash string) string       { return filepath.Join(r.locks, hash+".lock") }
func (r repo) snapshot(commit string) string { return filepath.Join(r.dir, "snapshots", commit) }
func (r repo) ref(revision string) string {
	return filepath.Join(r.dir, "refs", filepath.FromSlash(revision))
}

// others names the revisions that are cached, for messages.
func (r repo) others() string {
	var list []string
	root := filepath.Join(r.dir, "refs")
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if name, err := filepath.Rel(root, path); err == nil {
				list = append(list, filepath.ToSlash(name))
			}
		}
		return nil
	})
	if list == nil {
		return ""
	}
	slices.Sort(list)
	return " (cached revisions: " + strings.Join(list, ", ") + ")"
}

// writeRef atomically records the commit to which a revision refers.
func (r repo) writeRef(revision, commit string) error {
	path := r.ref(revision)
	if old, err := inputfile.Read(path, maxTextFile); err == nil && string(old) == commit {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return atomicfile.Write(path, 0o644, func(w io.Writer) error {
		_, err := io.WriteString(w, commit)
		return err
	})
}

// link makes a snapshot's file from a blob: a relative symbolic link, so that
// the cache can be moved, or a hard link or copy where the system has no
// symbolic links.
func (r repo) link(commit, name, hash string) error {
	blob, path := r.blob(hash), filepath.Join(r.snapshot(commit), filepath.FromSlash(name))
	dir := filepath.Dir(path)
	want, err := os.Stat(blob)
	if err != nil {
		return err
	}
	if have, err := os.Stat(path); err == nil && (os.SameFile(have, want) || have.Mode().IsRegular() && have.Size() == want.Size() && !isLink(path)) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	target, err := filepath.Rel(dir, blob)
	if err != nil {
		return err
	}
	// A fresh folder gives a free name for the link, which then replaces path.
	tmp, err := os.MkdirTemp(dir, ".tmp-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	new := filepath.Join(tmp, "link")
	// The target is relative to where the link will be.
	if os.Symlink(target, new) != nil && os.Link(blob, new) != nil {
		if err := copyFile(new, blob); err != nil {
			return err
		}
	}
	return os.Rename(new, path)
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

func copyFile(to, from string) error {
	src, err := inputfile.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}
