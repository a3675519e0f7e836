package model

// tokenBlock is how many bytes a session takes for tokens from the memory of all
// sessions at a time.
const tokenBlock = 4096

// takeTokens charges the memory of all sessions for n more tokens, the logits, with
// the first tokens, and what drafts take. free gives it back.
func (s *Session) takeTokens(n int) error {
	if s.m.memory == nil {
		return nil
	}
	need := 4*int64(s.m.cfg.Vocab+len(s.tokens)+n+len(s.ahead.room)) + s.lookup.Bytes()
	if s.opts.ProbeLoss != nil {
		need += 8 * int64(len(s.tokens)+n)
	}
	if need <= s.charged {
		return nil
	}
	more := (need - s.charged + tokenBlock - 1) / tokenBlock * tokenBlock
	if err := s.m.memory.Take(more); err != nil {
		return err
	}
	s.charged += more
	return nil
}

// giveTokens gives back what takeTokens charged.
func (s *Session) giveTokens() {
	if s.m.memory != nil {
		s.m.memory.Give(s.charged)
		s.charged = 0
	}
}
