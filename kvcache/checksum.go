package kvcache

import (
	"crypto/sha256"
	"hash"
)

// checksum is the SHA-256 of pieces that are hashed, in order, beside whoever
// brings them, who meanwhile puts them where they belong: hashing takes longer
// than all else that is done with a saved cache. It begins with the first piece and
// has to be ended.
type checksum struct {
	size  int       // of a buffer
	part  []byte    // a buffer that Write fills
	sum   hash.Hash // nil: nothing was hashed yet
	full  chan []byte
	spare chan []byte // buffers that were hashed
	ended chan struct{}
}

// checksumBuffers is the number of buffers of a checksum: how far it may fall behind.
const checksumBuffers = 4

// begin has the pieces of full hashed.
func (s *checksum) begin() {
	s.sum, s.ended = sha256.New(), make(chan struct{})
	s.full, s.spare = make(chan []byte, checksumBuffers), make(chan []byte, checksumBuffers)
	for range checksumBuffers {
		s.spare <- nil // made when it is first taken
	}
	go func() {
		defer close(s.ended)
		for b := range s.full {
			s.sum.Write(b)
			s.spare <- b
		}
	}()
}

// buffer returns memory for a piece, [size]. It is the caller's until it is added, and
// must be before the next is asked for.
func (s *checksum) buffer() []byte {
	if s.sum == nil {
		s.begin()
	}
	s.flush()
	b := <-s.spare
	if b == nil {
		b = make([]byte, s.size)
	}
	return b[:s.size]
}

// add has the beginning of a buffer hashed. The caller may read it until it asks for
// another.
func (s *checksum) add(b []byte) { s.full <- b }

// Write adds a copy of b.
func (s *checksum) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if s.part == nil {
			s.part = s.buffer()[:0]
		}
		m := min(len(b), s.size-len(s.part))
		s.part, b = append(s.part, b[:m]...), b[m:]
		if len(s.part) == s.size {
			s.flush()
		}
	}
	return n, nil
}

// flush adds what Write holds.
func (s *checksum) flush() {
	if s.part != nil {
		s.add(s.part)
		s.part = nil
	}
}

// end waits until all is hashed and returns the sum, the same when it is called again.
func (s *checksum) end() []byte {
	if s.sum == nil {
		s.begin()
	}
	if s.full != nil {
		s.flush()
		close(s.full)
		<-s.ended
		s.full = nil
	}
	return s.sum.Sum(nil)
}
