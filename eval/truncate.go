package eval

// Truncate says which part of a context that is too long is kept.
type Truncate string

const (
	TruncateError  Truncate = ""       // none: the item fails
	TruncateHead   Truncate = "head"   // its beginning (kvpress)
	TruncateMiddle Truncate = "middle" // both ends, half each (LongBench)
)

// cut shortens the tokens of a context to limit. If the question and the longest answer
// leave no room for the context, it stays whole: either it fits all the same, with less
// room for the answer, or the item fails.
func (t Truncate) cut(context []int32, limit int) []int32 {
	if t == TruncateError || limit < 1 || len(context) <= limit {
		return context
	}
	if t == TruncateHead {
		return context[:limit]
	}
	out := make([]int32, 0, limit)
	out = append(out, context[:limit/2]...)
	return append(out, context[len(context)-(limit-limit/2):]...)
}

// cutGroup is a group of items whose contexts are cut alike.
type cutGroup struct {
	items     []int
	head      []int32 // the tokens of the context that are kept
	truncated int     // how many are not
}

// cut cuts the context of a group of items to what fits with the question and answer of
// each, so that the kept items do not depend on other questions.
func (r *runner) cut(group []int) []cutGroup {
	head, _ := r.parts(group[0])
	if r.o.Truncate == TruncateError {
		return []cutGroup{{items: group, head: head}}
	}
	limit := r.m.Config().MaxPositions
	if n := r.o.Session.MaxTokens; n > 0 {
		limit = n
	}
	var out []cutGroup
	at := map[int]int{}
	for _, i := range group {
		_, tail := r.parts(i)
		cut := r.o.Truncate.cut(head, limit-len(tail)-r.answerTokens(i))
		g, ok := at[len(cut)]
		if !ok {
			g = len(out)
			at[len(cut)] = g
			out = append(out, cutGroup{head: cut, truncated: len(head) - len(cut)})
		}
		out[g].items = append(out[g].items, i)
	}
	return out
}

// answerTokens is the maximum length of an item's answer.
func (r *runner) answerTokens(i int) int {
	if n := r.items[i].MaxNewTokens; n > 0 {
		return n
	}
	return r.o.MaxNewTokens
}
