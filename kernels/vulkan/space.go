//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import "slices"

// space hands out ranges of [0, size), first fit, and merges neighbours that are
// given back. The zero space is empty.
type space struct {
	free []span // ascending, never adjacent
	used uint64
}

type span struct{ off, size uint64 }

func newSpace(size uint64) *space { return &space{free: []span{{0, size}}} }

// take allocates size units at a multiple of align, which is a power of two, and
// returns their offset.
func (s *space) take(size, align uint64) (uint64, bool) {
	for i, f := range s.free {
		off := (f.off + align - 1) &^ (align - 1)
		pad := off - f.off
		if pad > f.size || f.size-pad < size {
			continue
		}
		rest := span{off + size, f.size - pad - size}
		switch {
		case pad > 0 && rest.size > 0:
			s.free[i].size = pad
			s.free = slices.Insert(s.free, i+1, rest)
		case pad > 0:
			s.free[i].size = pad
		case rest.size > 0:
			s.free[i] = rest
		default:
			s.free = slices.Delete(s.free, i, i+1)
		}
		s.used += size
		return off, true
	}
	return 0, false
}

// give takes back a range that take handed out.
func (s *space) give(off, size uint64) {
	i, _ := slices.BinarySearchFunc(s.free, off, func(f span, off uint64) int {
		if f.off < off {
			return -1
		}
		return 1
	})
	s.free = slices.Insert(s.free, i, span{off, size})
	s.used -= size
	if i+1 < len(s.free) && off+size == s.free[i+1].off {
		s.free[i].size += s.free[i+1].size
		s.free = slices.Delete(s.free, i+1, i+2)
	}
	if i > 0 && s.free[i-1].off+s.free[i-1].size == off {
		s.free[i-1].size += s.free[i].size
		s.free = slices.Delete(s.free, i, i+1)
	}
}

// largest returns the size of the longest free range.
func (s *space) largest() uint64 {
	var n uint64
	for _, f := range s.free {
		n = max(n, f.size)
	}
	return n
}
