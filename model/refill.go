package model

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/kvcache"
)

// Where the frequencies of a rotation change with the length of the sequence (longrope),
// keys that were rotated for short sequences do not fit the queries of a long one, and the
// layers above have seen attention that would now be another. A session that crosses the
// length is computed anew, so that the bits depend on its tokens only and not on the calls
// that brought them.

// LongFrom returns the length above which sequences rotate otherwise, 0 if there is none.
func (m *Model) longFrom() int {
	for _, r := range m.net.Ropes {
		if n := r.LongFrom(); n > 0 {
			return n
		}
	}
	return 0
}

// refill prepares the session for tokens up to position end: its entries are computed
// anew if they were for a sequence on the other side of LongFrom. Entries that were evicted
// cannot come back, so a compressed session stays as it is.
func (s *Session) refill(ctx context.Context, end int) error {
	border := s.m.longFrom()
	if border == 0 {
		return nil
	}
	long := end > border
	if s.pos == 0 || long == s.long || len(s.tokens) != s.pos || s.lacking(Span{To: s.pos}) != nil {
		s.long = long
		return nil
	}
	fresh, err := kvcache.New(s.cacheOptions())
	if err != nil {
		return fmt.Errorf("compute %d tokens anew for a sequence of %d: %w", s.pos, end, err)
	}
	if err := s.m.feed(ctx, &Session{m: s.m, opts: s.opts, cache: fresh}, s.tokens, end); err != nil {
		fresh.Close()
		return fmt.Errorf("compute %d tokens anew for a sequence of %d: %w", s.pos, end, err)
	}
	old := s.cache
	s.cache, s.long = fresh, long
	return old.Close()
}

// feed computes tokens into the cache of an empty session that nobody else sees, for a
// sequence of seqLen tokens.
func (m *Model) feed(ctx context.Context, s *Session, tokens []int32, seqLen int) error {
	n := min(len(tokens), s.opts.ChunkTokens)
	r, err := m.runs.get(n, 1, s.page())
	if err != nil {
		return err
	}
	defer m.runs.put(r)
	defer r.WatchContext(ctx)()
	for s.pos < len(tokens) {
		r.reset()
		r.add(s, 0, min(n, len(tokens)-s.pos), seqLen, nil)
		if err := r.Forward(ctx, tokens[s.pos:s.pos+r.Rows()], false, nil); err != nil {
			return err
		}
		s.pos += r.Rows()
		s.dropWindows()
	}
	return s.cache.Err()
}
