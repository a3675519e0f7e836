package gguf

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// A model in several files: PREFIX-00001-of-00003.gguf and so on, each a complete
// GGUF file with the keys split.no (from 0), split.count and split.tensors.count (of
// all files together). Other keys are only in the first file; tensors are not divided.

const (
	splitNo      = "split.no"
	splitCount   = "split.count"
	splitTensors = "split.tensors.count"
	maxParts     = 1 << 10
)

var partPattern = regexp.MustCompile(`^(.*-)(\d{5})(-of-(\d{5})\.gguf)$`)

// partNumber divides the path of a file of several into what comes before and after its
// number, which counts from 1, and returns the number of files. ok is false if the path
// is not that of such a file.
func partNumber(path string) (before, after string, number, count int, ok bool) {
	m := partPattern.FindStringSubmatch(path)
	if m == nil {
		return "", "", 0, 0, false
	}
	number, _ = strconv.Atoi(m[2])
	count, _ = strconv.Atoi(m[4])
	return m[1], m[3], number, count, true
}

// openOthers opens the files after the first and takes over their tensors.
func (f *File) openOthers() error {
	if !f.Has(splitCount) {
		return nil
	}
	count, err := f.splitKey(splitCount, 1, maxParts)
	if err != nil || count == 1 {
		return err
	}
	no, err := f.splitKey(splitNo, 0, count-1)
	if err != nil {
		return err
	}
	if no != 0 {
		return fmt.Errorf("part %d of %d: open the first part, which finds the others", no+1, count)
	}
	before, after, number, named, ok := partNumber(f.parts[0])
	if !ok || number != 1 || named != count {
		return fmt.Errorf("key %q: first of %d files, expected a name that ends in -00001-of-%05d.gguf", splitCount, count, count)
	}
	total := len(f.tensors)
	if f.Has(splitTensors) {
		if total, err = f.splitKey(splitTensors, len(f.tensors), maxCount); err != nil {
			return err
		}
	}
	for i := 1; i < count; i++ {
		if err := f.openOther(fmt.Sprintf("%s%05d%s", before, i+1, after), i, count); err != nil {
			return err
		}
	}
	if f.Has(splitTensors) && len(f.tensors) != total {
		return fmt.Errorf("key %q: %d tensors, but the %d files have %d", splitTensors, total, count, len(f.tensors))
	}
	return nil
}

// openOther opens part no of count and takes over its tensors.
func (f *File) openOther(path string, no, count int) error {
	p, err := openPart(path)
	if err != nil {
		return fmt.Errorf("part %d of %d: %w", no+1, count, err)
	}
	if err := f.take(p, no, count); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", path, err), p.Close())
	}
	return nil
}

func (f *File) take(p *File, no, count int) error {
	for key, want := range map[string]int{splitCount: count, splitNo: no} {
		n, err := p.splitKey(key, 0, maxParts)
		if err != nil {
			return err
		}
		if n != want {
			return fmt.Errorf("key %q: found %d, expected %d", key, n, want)
		}
	}
	for _, t := range p.tensors {
		if f.byName[t.Name] != nil {
			return fmt.Errorf("tensor %q is also in %s", t.Name, f.byName[t.Name].File)
		}
	}
	for _, t := range p.tensors {
		f.tensors = append(f.tensors, t)
		f.byName[t.Name] = t
	}
	f.parts = append(f.parts, p.parts...)
	f.mappings = append(f.mappings, p.mappings...)
	return nil
}

// splitKey returns an integer from least to most.
func (f *File) splitKey(key string, least, most int) (int, error) {
	n, err := f.Uint(key)
	if err != nil {
		return 0, err
	}
	if n < uint64(least) || n > uint64(most) {
		return 0, fmt.Errorf("key %q: found %d, expected %d to %d", key, n, least, most)
	}
	return int(n), nil
}
