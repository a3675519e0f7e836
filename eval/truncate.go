package eval

// Truncate says what part of a context that is too long is kept.
type Truncate string

const (
	TruncateError  Truncate = ""       // none: the item fails
	TruncateHead   Truncate = "head"   // its beginning (kvpress)
	TruncateMiddle Truncate = "middle" // both ends, half each (LongBench)
)

// cut shortens the tokens of a context to limit.
func (t Truncate) cut(context []int32, limit int) []int32 {
	limit = max(limit, 1)
	if t == TruncateError || len(context) <= limit {
		return context
	}
	if t == TruncateHead {
		return context[:limit]
	}
	out := make([]int32, 0, limit)
	out = append(out, context[:limit/2]...)
	return append(out, context[len(context)-(limit-limit/2):]...)
}

// context returns the tokens of the context that a group of items shares, cut to
// what fits, and how many were left out.
func (r *runner) context(group []int) (head []int32, truncated int) {
	head, _ = r.parts(group[0])
	if r.o.Truncate == TruncateError {
		return head, 0
	}
	limit := r.m.Config().MaxPositions
	if n := r.o.Session.MaxTokens; n > 0 {
		limit = n
	}
	behind := 0 // the longest question with its answer
	for _, i := range group {
		_, tail := r.parts(i)
		behind = max(behind, len(tail)+r.answerTokens(i))
	}
	cut := r.o.Truncate.cut(head, limit-behind)
	return cut, len(head) - len(cut)
}

// answerTokens is the length of an item's answer at most.
func (r *runner) answerTokens(i int) int {
	if n := r.items[i].MaxNewTokens; n > 0 {
		return n
	}
	return r.o.MaxNewTokens
}
