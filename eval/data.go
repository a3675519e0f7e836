package eval

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/internal/inputfile"
)

// DataFile is a file that items were read from.
type DataFile struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Items  int    `json:"items"`
	Data   string `json:"data,omitempty"` // [Item].Data of its items
}

// DataOptions say how data is read.
type DataOptions struct {
	// Skipped, if not nil, is called for every data file of a folder or zip file that is
	// left out, with the reason.
	Skipped func(name, why string)

	LongBench *LongBench // nil: the default

	// Extended reads LongBench-E's files, <dataset>_e.jsonl, from folders and
	// zip files instead of LongBench's.
	Extended bool
}

// maxData bounds the total size of the files that one call of ReadData reads.
const maxData = 4 << 30

// ReadData reads items from a file as [ReadItems] does, or from a folder or zip file
// with LongBench's <dataset>.jsonl, InfiniteBench's <task>.jsonl or RULER's
// <task>/validation.jsonl at any depth; other files there are ignored. Files are read in
// order of name.
func ReadData(name string, o DataOptions) ([]Item, []DataFile, error) {
	room := int64(maxData)
	info, err := os.Stat(name)
	if err != nil {
		return nil, nil, fmt.Errorf("read data: %w", err)
	}
	if info.IsDir() {
		return readTree(inputfile.Dir(name), name, &room, o)
	}
	if info.Mode().IsRegular() && strings.EqualFold(filepath.Ext(name), ".zip") {
		z, err := zip.OpenReader(name)
		if err != nil {
			return nil, nil, fmt.Errorf("read data %s: %w", name, err)
		}
		defer z.Close()
		return readTree(z, name, &room, o)
	}
	return readFile(inputfile.Dir(filepath.Dir(name)), filepath.Base(name), name, &room, o)
}

// readTree reads all data files in a folder, room bytes at most, and leaves in
// room what remains.
func readTree(dir fs.FS, name string, room *int64, o DataOptions) (items []Item, files []DataFile, err error) {
	err = fs.WalkDir(dir, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch {
		case scoring.CheckTask(strings.TrimSuffix(path.Base(p), ".jsonl")) != nil && strings.HasSuffix(p, ".jsonl"):
			if o.Skipped != nil {
				o.Skipped(filepath.Join(name, p), "the measures of LongBench's Chinese datasets are not available")
			}
			return nil
		case longbenchName(p):
			if extended := strings.HasSuffix(p, "_e.jsonl"); extended != o.Extended {
				return nil
			}
		case !infiniteName(p) && path.Base(p) != "validation.jsonl":
			return nil
		}
		more, file, err := readFile(dir, p, filepath.Join(name, p), room, o)
		items, files = append(items, more...), append(files, file...)
		return err
	})
	if err == nil && len(items) == 0 {
		err = errors.New("none of LongBench's <dataset>.jsonl, InfiniteBench's <task>.jsonl and RULER's <task>/validation.jsonl is in it")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read data %s: %w", name, err)
	}
	return items, files, nil
}

// readFile reads a file of less than room bytes and subtracts its size from room.
func readFile(dir fs.FS, name, full string, room *int64, o DataOptions) ([]Item, []DataFile, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	sum := sha256.New()
	limited := &io.LimitedReader{R: io.TeeReader(f, sum), N: *room}
	items, err := readItems(limited, full, o.LongBench)
	if limited.N == 0 {
		return nil, nil, fmt.Errorf("read %s: more than the %d bytes that are left for it", full, *room)
	}
	if err != nil {
		return nil, nil, err
	}
	*room = limited.N
	return items, []DataFile{{filepath.Base(name), hex.EncodeToString(sum.Sum(nil)), len(items), items[0].Data}}, nil
}
