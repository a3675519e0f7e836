package tokenizer

// A matcher finds the matches of a Split or Replace pattern in time proportional to
// the text.
type matcher interface {
	// find appends the matches in text, left to right, until the call that s belongs
	// to has to end. An empty match where the previous match ends does not count.
	find(s *scratch, dst []piece, text string) []piece
}

// newMatcher compiles a pattern of tokenizer.json or tekken.json: one that
// has a hand-written scanner, or any other that can be matched in linear
// time.
func newMatcher(text string) (matcher, error) {
	if f, ok := knownPatterns[text]; ok {
		return f(), nil
	}
	return compilePattern(text)
}
