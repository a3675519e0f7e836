package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/filelock"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/model"
)

// disk keeps sessions of prompts in files and removes the least recently used first. Each
// model has a folder of saved sessions, which are identified by their label and tokens.
// The index is rebuilt from the file headers when the engine starts. A disk belongs to the
// engine's loop, except for read and write, which run outside it.
type disk struct {
	dir          string
	lock         *os.File // held until the engine is closed
	limit, bytes int64    // limit 0: none
	pending      int64    // bytes of the files being written
	windowed     bool
	log          *slog.Logger
	trees        map[string]*radixTree[*stored] // by label
	files        map[string]*stored             // by name
}

// stored is a file of a saved session.
type stored struct {
	name, label string
	tokens      []int32
	context     int
	bytes       int64
	used        time.Time
	load        *load // in progress, nil if none
	renumbered  bool  // positions were made slots: a session cannot go back to its end
}

var prefixName = regexp.MustCompile(`^[0-9a-f]{32}\.session$`)

// openDisk finds the prefixes of a model in a folder. Damaged files are removed; this is a
// cache. It is an error if another engine uses the folder for the same model: each would
// remove files that the other counts on, and neither would keep to the bound.
func openDisk(dir string, limit int64, m *model.Model, log *slog.Logger) (*disk, error) {
	d := &disk{
		dir: filepath.Join(dir, folderOf(m)), limit: limit, log: log,
		trees: map[string]*radixTree[*stored]{}, files: map[string]*stored{},
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if d.lock, err = lockFolder(d.dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		d.lock.Close()
		return nil, err
	}
	var found []*stored
	for _, at := range entries {
		if !prefixName.MatchString(at.Name()) {
			continue
		}
		f, info, err := readHeader(d.dir, at.Name())
		if err == nil && info.Model != m.ID() {
			err = fmt.Errorf("it is of the model %q", info.Model)
		}
		if err != nil {
			if !passing(err) {
				d.damaged(at.Name(), err)
			} else {
				d.log.Warn("stored prefix not read", "file", at.Name(), "error", err)
			}
			continue
		}
		found = append(found, f)
	}
	slices.SortFunc(found, func(a, b *stored) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	for _, f := range found {
		d.add(f)
	}
	d.room(0)
	return d, nil
}

// folderOf returns the name of the folder with a model's files.
func folderOf(m *model.Model) string {
	sum := sha256.Sum256([]byte(m.ID()))
	return hex.EncodeToString(sum[:8])
}

// lockFolder keeps others from using a model's folder until the file is closed.
func lockFolder(dir string) (*os.File, error) {
	lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if free, err := filelock.Try(lock); err != nil || !free {
		lock.Close()
		if err == nil {
			err = fmt.Errorf("%s is in use by another engine on the same model; expected a folder for each", filepath.Dir(dir))
		}
		return nil, err
	}
	return lock, nil
}

// readHeader reads from its header what a file holds.
func readHeader(dir, name string) (*stored, *model.SessionInfo, error) {
	file, err := inputfile.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	info, err := model.ReadSessionInfo(name, file, st.Size())
	if err != nil {
		return nil, nil, err
	}
	f := &stored{name: name, label: info.Label, tokens: info.Tokens, context: info.ContextTokens, bytes: st.Size(), used: st.ModTime(), renumbered: info.Position != len(info.Tokens)}
	if !strings.HasPrefix(f.label, prefixFormat) || nameOf(f.label, f.tokens) != name {
		return nil, nil, fmt.Errorf("%d tokens under %q, which is not what the name says", len(f.tokens), f.label)
	}
	return f, info, nil
}

// storedPrefix describes in text what a store has of a prompt: its model's folder, its
// number of tokens, the name of a file of exactly these, and its label.
func storedPrefix(folder, label string, tokens []int32) string {
	return fmt.Sprintf("%s %d %s %s", folder, len(tokens), nameOf(label, tokens), label)
}

var storedPrefixForm = regexp.MustCompile(`^([0-9a-f]{16}) ([1-9][0-9]{0,8}) ([0-9a-f]{32}\.session) (` + prefixFormat + `[0-9a-f]{64})$`)

// ForgetStored is [Engine.Forget] for a store that no engine uses. prefix is what
// [Engine.StoredPrefix] returned for the request. A store in use is an error.
func ForgetStored(store, prefix string) error {
	if err := forgetStored(store, prefix); err != nil {
		return fmt.Errorf("forget stored prefix: %w", err)
	}
	return nil
}

func forgetStored(store, prefix string) error {
	form := storedPrefixForm.FindStringSubmatch(prefix)
	if form == nil {
		return fmt.Errorf("found %.200q, expected what an engine said", prefix)
	}
	n, err := strconv.Atoi(form[2])
	if err != nil {
		return err
	}
	dir, name, label := filepath.Join(store, form[1]), form[3], form[4]
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, at := range entries {
		if !prefixName.MatchString(at.Name()) {
			continue
		}
		f, _, err := readHeader(dir, at.Name())
		if err != nil || f.label != label || len(f.tokens) < n || nameOf(label, f.tokens[:n]) != name {
			continue // the next engine removes what is damaged
		}
		errs = append(errs, os.Remove(filepath.Join(dir, at.Name())))
	}
	return errors.Join(errs...)
}

// nameOf returns the name of a prefix's file.
func nameOf(label string, tokens []int32) string {
	h := sha256.New()
	io.WriteString(h, label)
	for _, t := range tokens {
		h.Write([]byte{byte(t), byte(t >> 8), byte(t >> 16), byte(t >> 24)})
	}
	return hex.EncodeToString(h.Sum(nil)[:16]) + ".session"
}

// passing reports whether an error in reading a file says nothing about the file: there is
// no memory for it, or the system cannot read it now.
func passing(err error) bool {
	var system syscall.Errno
	return errors.Is(err, kvcache.ErrFull) || errors.Is(err, kernels.ErrDeviceMemory) || errors.Is(err, kernels.ErrDeviceLost) ||
		errors.As(err, &system) && !errors.Is(err, fs.ErrNotExist)
}

// damaged removes a file that cannot be used.
func (d *disk) damaged(name string, why error) {
	d.log.Warn("stored prefix removed", "file", name, "error", why)
	if err := os.Remove(filepath.Join(d.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("stored prefix cannot be removed", "file", name, "error", err)
	}
}

// close lets other engines use the folder.
func (d *disk) close() {
	if d != nil {
		d.lock.Close()
	}
}

func (d *disk) add(f *stored) {
	if old := d.files[f.name]; old != nil {
		d.drop(old)
	}
	tree := d.trees[f.label]
	if tree == nil {
		tree = new(radixTree[*stored])
		d.trees[f.label] = tree
	}
	tree.put(f.tokens, f)
	d.files[f.name] = f
	d.bytes += f.bytes
}

// drop removes a file from the index.
func (d *disk) drop(f *stored) {
	if d.files[f.name] != f {
		return
	}
	delete(d.files, f.name)
	tree := d.trees[f.label]
	if tree.remove(f.tokens); len(tree.root.children) == 0 {
		delete(d.trees, f.label)
	}
	d.bytes -= f.bytes
}

func (d *disk) remove(f *stored) {
	d.drop(f)
	if err := os.Remove(filepath.Join(d.dir, f.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("stored prefix cannot be removed", "file", f.name, "error", err)
	}
}

// room removes the least recently used files until n more bytes fit beside those being
// written. It removes none and reports false if these leave too little.
func (d *disk) room(n int64) bool {
	n += d.pending
	switch {
	case d.limit == 0 || d.bytes+n <= d.limit:
		return true
	case n > d.limit:
		return false
	}
	for _, f := range slices.SortedFunc(maps.Values(d.files), func(a, b *stored) int { return a.used.Compare(b.used) }) {
		if d.bytes+n <= d.limit {
			break
		}
		d.remove(f)
	}
	return true
}

// find returns the file with the longest prefix of the request's prompt, and how many of
// its tokens the request can reuse; nil if it can reuse none.
func (d *disk) find(j *job) (*stored, int) {
	if f, n := d.findUnder(j, j.label); f != nil || j.front == "" {
		return f, n
	}
	return d.findUnder(j, j.front)
}

func (d *disk) findUnder(j *job, label string) (*stored, int) {
	tree := d.trees[label]
	if tree == nil {
		return nil, 0
	}
	n, alike, whole, within := tree.longest(j.req.Prompt)
	if !d.windowed {
		if n = j.usable(label, n, len(alike.tokens), true); n > 0 {
			return alike, n
		}
	}
	if whole >= 0 {
		if n = j.usable(label, whole, whole, true); n == whole {
			return within, n
		}
	}
	return nil, 0
}

// touch notes that a file was used.
func (d *disk) touch(f *stored) {
	f.used = time.Now()
	_ = os.Chtimes(filepath.Join(d.dir, f.name), f.used, f.used) // for the order after a restart
}

// has returns how many of the leading tokens a file can provide.
func (d *disk) has(label string, tokens []int32) int {
	tree := d.trees[label]
	if tree == nil {
		return 0
	}
	n, _, whole, _ := tree.longest(tokens)
	if d.windowed {
		return max(whole, 0)
	}
	return n
}

// forget removes the files of prompts that begin with the given tokens.
func (d *disk) forget(label string, tokens []int32) {
	if tree := d.trees[label]; tree != nil {
		for _, f := range tree.extensions(tokens) {
			d.remove(f)
		}
	}
}

// read loads a file and meanwhile prefills a question that follows it, if one is given. It
// returns the session as the file has it, and another after the question. The second is nil
// if only the prefill of the question failed, the first if the session after the question
// cannot be truncated. The caller closes both.
func (d *disk) read(ctx context.Context, f *stored, m *model.Model, o model.SessionOptions, question []int32) (saved, asked *model.Session, err error) {
	file, size, err := inputfile.OpenSized(filepath.Join(d.dir, f.name))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	var s *model.Session
	if len(question) == 0 {
		s, err = m.LoadSessionFrom(ctx, f.name, file, size, o)
	} else {
		s, err = m.LoadAndPrefill(ctx, f.name, file, size, o, question)
	}
	if s == nil {
		return nil, nil, err
	} // otherwise at most the question failed: its request prefills it again, and fails alone
	n, tokens := len(f.tokens), s.Tokens()
	if len(tokens) < n || !slices.Equal(tokens[:n], f.tokens) {
		s.Close()
		return nil, nil, errors.New("other tokens than before")
	}
	if len(tokens) == n {
		return s, nil, nil
	}
	return forkAt(s, n, len(tokens)), s, nil
}

// write saves a session as a file, which is on disk when write returns.
func (d *disk) write(f *stored, s *model.Session) error {
	return atomicfile.Write(filepath.Join(d.dir, f.name), 0o600, func(w io.Writer) error { return s.SaveTo(context.Background(), w, f.label) })
}
