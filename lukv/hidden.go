package lukv

// HiddenStates are the inputs of a layer's attention for consecutive tokens: the
// residual stream after the layer's input norm, from which queries, keys and values
// are made. Tokens that are missing were fed earlier: before the span being
// compressed, or before the last ones that a metric asked for.
type HiddenStates struct {
	From int       // position of the first token
	Dim  int       // values per token
	Rows []float32 // [tokens][Dim]
}

// Len returns the number of tokens.
func (s *HiddenStates) Len() int { return len(s.Rows) / s.Dim }

// At returns the state of the token at a position, [Dim], or nil if it is missing.
func (s *HiddenStates) At(position int) []float32 {
	i := position - s.From
	if i < 0 || i >= s.Len() {
		return nil
	}
	return s.Rows[i*s.Dim : (i+1)*s.Dim]
}
