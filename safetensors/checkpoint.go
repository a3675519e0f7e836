package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/mapfile"
	"github.com/lukv/lukv/internal/strictjson"
	"github.com/lukv/lukv/tensor"
)

// Names of the files that OpenCheckpoint looks for in a model folder.
const (
	SingleName = "model.safetensors"
	IndexName  = "model.safetensors.index.json"
)

// Checkpoint is the set of tensors of one model, in one or several files.
type Checkpoint struct {
	files []*File          // by name
	where map[string]*File // tensor name to the file that holds it
	names []string         // sorted
}

// OpenCheckpoint opens the tensors of the model folder dir: the single file
// model.safetensors if there is one, otherwise by the index
// model.safetensors.index.json. The order is that of transformers, which does not
// remove an old index when it saves a checkpoint as one file in place of a sharded one.
// The index must assign each tensor to a shard inside the folder that actually
// contains it; tensors that the index does not name are not part of the checkpoint.
// The caller must close the Checkpoint.
func OpenCheckpoint(dir string) (*Checkpoint, error) {
	return openCheckpoint(folder{
		name: dir,
		path: func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) },
		open: Open,
		read: func(path string) ([]byte, error) {
			m, err := mapfile.Open(path)
			if err != nil {
				return nil, err
			}
			text := m.Bytes() // one byte past the limit is enough for it to be refused
			return bytes.Clone(text[:min(len(text), maxHeader+1)]), m.Close()
		},
	})
}

// OpenCheckpointFS is like OpenCheckpoint, but for a file system whose root is the
// model folder. The files are read into memory.
func OpenCheckpointFS(fsys fs.FS) (*Checkpoint, error) {
	read := func(name string) ([]byte, error) { return fs.ReadFile(fsys, name) }
	return openCheckpoint(folder{
		name: ".",
		path: func(name string) string { return name },
		open: func(name string) (*File, error) {
			data, err := read(name)
			if err != nil {
				return nil, fmt.Errorf("open safetensors: %w", err)
			}
			return Parse(name, data)
		},
		read: read,
	})
}

// folder is a model folder on disk or in a file system.
type folder struct {
	name string
	path func(name string) string // returns the path of a file in the folder
	open func(path string) (*File, error)
	read func(path string) ([]byte, error)
}

func openCheckpoint(dir folder) (*Checkpoint, error) {
	f, err := dir.open(dir.path(SingleName))
	if err == nil {
		return single(f), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	indexPath := dir.path(IndexName)
	text, err := dir.read(indexPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open checkpoint %q: found neither %s nor %s: %w", dir.name, SingleName, IndexName, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	return openShards(dir, indexPath, text)
}

func single(f *File) *Checkpoint {
	c := &Checkpoint{files: []*File{f}, where: make(map[string]*File, f.Len())}
	for name := range f.All() {
		c.where[name] = f
		c.names = append(c.names, name)
	}
	slices.Sort(c.names)
	return c
}

func openShards(dir folder, indexPath string, text []byte) (*Checkpoint, error) {
	index, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("checkpoint index %q: %w", indexPath, err)
	}
	c := &Checkpoint{where: make(map[string]*File, len(index))}
	shards := make(map[string]*File)
	for _, a := range index {
		f := shards[a.shard]
		if f == nil {
			if f, err = dir.open(dir.path(a.shard)); err != nil {
				return nil, errors.Join(fmt.Errorf("checkpoint index %q: shard %s: %w", indexPath, quote(a.shard), err), c.Close())
			}
			shards[a.shard] = f
			c.files = append(c.files, f)
		}
		if _, ok := f.Tensor(a.tensor); !ok {
			return nil, errors.Join(fmt.Errorf("checkpoint index %q: tensor %s is not in shard %q as the index says",
				indexPath, quote(a.tensor), f.Name()), c.Close())
		}
		c.where[a.tensor] = f
		c.names = append(c.names, a.tensor)
	}
	slices.Sort(c.names)
	slices.SortFunc(c.files, func(a, b *File) int { return strings.Compare(a.name, b.name) })
	return c, nil
}

// assignment is one entry of an index.
type assignment struct {
	tensor, shard string
}

// parseIndex returns the weight map of an index in file order, with the names of
// shards checked.
func parseIndex(text []byte) ([]assignment, error) {
	if len(text) > maxHeader {
		return nil, fmt.Errorf("it has more than %d bytes", maxHeader)
	}
	const key = "weight_map"
	var index []assignment
	found := false
	s := strictjson.NewScanner(text, maxDepth)
	err := s.Object("an object", func(field string) error {
		if field != key {
			return s.Skip()
		}
		found = true
		return s.Object(key+", an object", func(name string) error {
			shard, err := s.String("the shard of tensor " + quote(name))
			if err != nil {
				return err
			}
			if err := checkShardName(shard); err != nil {
				return fmt.Errorf("%s: tensor %s: shard name %s %w", key, quote(name), quote(shard), err)
			}
			index = append(index, assignment{strings.Clone(name), shard})
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("field %q is missing", key)
	}
	return index, s.End()
}

// checkShardName accepts names of files inside the folder, the same names on every
// system: a colon can mean a drive letter, a stream or a URL, and a backslash is a
// separator on some systems. Links in the folder are followed: the model hub's
// cache is built of them, and an index cannot create one.
func checkShardName(name string) error {
	switch {
	case strings.ContainsAny(name, "\\:\x00"):
		return errors.New("contains a backslash, a colon or a NUL character")
	case !fs.ValidPath(name) || name == "." || !filepath.IsLocal(filepath.FromSlash(name)):
		return errors.New("is not the plain path of a file inside the model folder")
	}
	return nil
}

// Tensor returns the tensor with the given name and the name of its file.
func (c *Checkpoint) Tensor(name string) (t tensor.Tensor, file string, ok bool) {
	f := c.where[name]
	if f == nil {
		return tensor.Tensor{}, "", false
	}
	t, ok = f.Tensor(name)
	return t, f.name, ok
}

// Names returns the names of all tensors, sorted. The caller may keep the slice.
func (c *Checkpoint) Names() []string { return slices.Clone(c.names) }

// All yields all names and tensors, sorted by name.
func (c *Checkpoint) All() iter.Seq2[string, tensor.Tensor] {
	return func(yield func(string, tensor.Tensor) bool) {
		for _, name := range c.names {
			t, _ := c.where[name].Tensor(name)
			if !yield(name, t) {
				return
			}
		}
	}
}

// Files returns the files that the checkpoint consists of. They belong to it
// and must not be closed separately.
func (c *Checkpoint) Files() []*File { return slices.Clone(c.files) }

// WillNeed asks the system to read ahead the first limit bytes of all files taken
// together, one file after another; it is a hint and returns at once.
func (c *Checkpoint) WillNeed(limit int64) {
	for _, f := range c.files {
		if f.mapping != nil {
			f.mapping.WillNeed(limit)
			limit -= f.mapping.Size()
		}
	}
}

// Close closes all files; no tensor may be used afterwards. Closing again does
// nothing.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
