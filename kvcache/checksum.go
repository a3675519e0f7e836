package kvcache

import (
	"crypto/sha256"
	"hash"
)

// checksum computes the SHA-256 of a sequence of pieces. A goroutine hashes them while
// the caller stores them where they belong: neither takes much less time than the other.
// It starts with the first piece and must be ended.
type checksum struct {
	size  int       // of a buffer
	most  int       // how many buffers there may be: how far hashing may fall behind
	part  []byte    // a buffer that Write fills
	sum   hash.Hash // nil until begin
	full  chan []byte
	spare chan []byte // buffers that have been hashed
	made  int         // how many buffers there are
	ended chan struct{}
}

// begin starts the goroutine that hashes the pieces sent to full.
func (s *checksum) begin() {
	s.sum, s.ended = sha256.New(), make(chan struct{})
	s.full, s.spare = make(chan []byte, s.most), make(chan []byte, s.most)
	go func() {
		defer close(s.ended)
		for b := range s.full {
			s.sum.Write(b)
			s.spare <- b
		}
	}()
}

// buffer returns memory for a piece, [size]. It belongs to the caller, who must add it
// before calling buffer again.
func (s *checksum) buffer() []byte {
	if s.sum == nil {
		s.begin()
	}
	s.flush()
	if len(s.spare) == 0 && s.made < s.most {
		s.made++
		return make([]byte, s.size)
	}
	b := <-s.spare
	return b[:s.size]
}

// add queues b, the beginning of a buffer, to be hashed. The caller may read b until it
// calls buffer again.
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

// end waits until everything is hashed and returns the sum. It may be called again.
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
