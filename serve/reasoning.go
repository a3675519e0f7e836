package serve

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"unicode"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// Marks between which models write their reasoning before they answer: those of Qwen3,
// DeepSeek-R1 and models distilled from it.
const (
	thinkBegin = "<think>"
	thinkEnd   = "</think>"
)

// findReasoning reports whether a template knows the marks: it leaves out earlier
// reasoning, or begins it.
func findReasoning(format *dialog.Format) bool {
	p, err := format.Render(context.Background(), chat.Input{
		Messages: []*chat.Object{
			chat.NewMessage("user", "x"),
			chat.NewMessage("assistant", thinkBegin+"\nlukv_reasoning\n"+thinkEnd+"\n\nlukv_answer"),
			chat.NewMessage("user", "y"),
		},
		AddGenerationPrompt: true,
	})
	if err != nil {
		return false
	}
	left := strings.Contains(p.Text, "lukv_answer") && !strings.Contains(p.Text, "lukv_reasoning")
	return left || strings.HasSuffix(strings.TrimSpace(p.Text), thinkBegin)
}

// reasoning says how the answers to one request begin; nil: with the answer itself.
type reasoning struct {
	tok        *tokenizer.Tokenizer
	begin, end int32 // the marks' tokens, -1 for a mark of several
	opened     bool  // the prompt ends with the first mark
	hidden     bool  // the client does not want to see it
	budget     int   // tokens after which it is ended; -1: never
}

// reasons determines how the answers begin, once the prompt is known. It makes formats
// and calls apply to the text after the reasoning.
func (c *chatRequest) reasons(hidden bool, budget int) error {
	v := c.v
	if c.continues || !v.reasons() {
		return nil
	}
	t := &reasoning{tok: v.tok, begin: -1, end: -1, hidden: hidden, budget: -1}
	if id, ok := v.tok.ID(thinkBegin); ok {
		t.begin = id
	}
	if id, ok := v.tok.ID(thinkEnd); ok {
		t.end, t.budget = id, budget
	} else if budget >= 0 {
		return invalid("thinking_token_budget", "thinking_token_budget: not supported by the model %s, which writes %s as several tokens", v.id, thinkEnd)
	}
	var tail []byte
	for _, id := range c.q.Prompt[max(0, len(c.q.Prompt)-16):] {
		tail = append(tail, v.tok.TokenBytes(id)...)
	}
	switch tail = bytes.TrimSpace(tail); {
	case bytes.HasSuffix(tail, []byte(thinkEnd)): // it was told not to think
		return nil
	case bytes.HasSuffix(tail, []byte(thinkBegin)):
		t.opened = true
	}
	for _, id := range []int32{t.begin, t.end} {
		c.q.ShowSpecial = c.q.ShowSpecial || id >= 0 && v.tok.IsSpecial(id)
	}
	c.reasoning = t
	if c.q.Mask != nil || t.budget >= 0 {
		m := &reasoningMask{reasoning: t, after: c.q.Mask, size: v.m.Config().Vocab, choices: make([]reasoningPlace, c.q.Choices)}
		if m.after == nil {
			m.after = func(context.Context, int, []int32) ([]uint64, error) { return nil, nil }
		}
		for id := range int32(m.size) {
			if v.m.Ends(id, &c.q.Sampling) {
				m.ends = append(m.ends, id)
			}
		}
		c.q.Mask = m.mask
	}
	return nil
}

// reasoningMask allows anything during the reasoning, except for the end of the answer.
type reasoningMask struct {
	*reasoning
	after   func(ctx context.Context, choice int, answer []int32) ([]uint64, error)
	size    int
	ends    []int32
	choices []reasoningPlace
}

// reasoningPlace is how far an answer has been read.
type reasoningPlace struct {
	read int    // tokens
	text []byte // the end of their text
	over bool   // the answer itself begins at read
}

func (m *reasoningMask) mask(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
	p := &m.choices[choice]
	for ; p.read < len(answer) && !p.over; p.read++ {
		if p.read == 0 && !m.opened && answer[0] != m.begin {
			p.over = true
			break
		}
		p.text = append(p.text, m.tok.TokenBytes(answer[p.read])...)
		p.over = bytes.Contains(p.text, []byte(thinkEnd))
		p.text = p.text[max(0, len(p.text)-len(thinkEnd)+1):]
	}
	if p.over {
		return m.after(ctx, choice, answer[p.read:])
	}
	mask := make([]uint64, (m.size+63)/64)
	set := func(id int32, on bool) {
		if mask[id>>6] |= 1 << (id & 63); !on {
			mask[id>>6] &^= 1 << (id & 63)
		}
	}
	switch {
	case len(answer) == 0 && !m.opened: // reasoning begins, or the answer
		first, err := m.after(ctx, choice, answer)
		if first == nil || err != nil || m.begin < 0 {
			return first, err
		}
		copy(mask, first)
		set(m.begin, true)
	case m.budget >= 0 && p.read >= m.budget:
		set(m.end, true)
	default:
		for i := range mask {
			mask[i] = ^uint64(0)
		}
		for _, id := range m.ends {
			set(id, false)
		}
	}
	return mask, nil
}

// reasoningReader splits an answer into reasoning and text, as it comes, without the white
// space around the reasoning.
type reasoningReader struct {
	stage  reasoningStage
	buf    string // still undecided
	begun  bool   // some of the reasoning has come
	tokens int    // of the reasoning
}

type reasoningStage int

const (
	beforeReasoning reasoningStage = iota // the mark may still come
	inReasoning
	afterReasoning // white space is dropped
	inAnswer
)

// newReader returns a reader for one choice; nil if answers begin without reasoning.
func (t *reasoning) newReader() *reasoningReader {
	switch {
	case t == nil:
		return nil
	case t.opened:
		return &reasoningReader{stage: inReasoning}
	}
	return &reasoningReader{}
}

// add takes the next piece of the answer; last is set at the end.
func (r *reasoningReader) add(text string, token, last bool) (reasoning, answer string) {
	r.buf += text
	if r.stage == beforeReasoning {
		rest := strings.TrimLeftFunc(r.buf, unicode.IsSpace)
		switch {
		case strings.HasPrefix(rest, thinkBegin):
			r.buf, r.stage = rest[len(thinkBegin):], inReasoning
		case last || !strings.HasPrefix(thinkBegin, rest):
			r.stage = inAnswer
		}
	}
	if token && r.stage <= inReasoning {
		r.tokens++
	}
	if r.stage == inReasoning {
		reasoning = r.reasoning(last)
	}
	if r.stage == afterReasoning {
		if r.buf = strings.TrimLeftFunc(r.buf, unicode.IsSpace); r.buf != "" {
			r.stage = inAnswer
		}
	}
	if r.stage == inAnswer {
		answer, r.buf = r.buf, ""
	}
	return reasoning, answer
}

// reasoning returns the text that certainly belongs to the reasoning.
func (r *reasoningReader) reasoning(last bool) string {
	if !r.begun {
		r.buf = strings.TrimLeftFunc(r.buf, unicode.IsSpace)
	}
	end := len(r.buf)
	if before, after, ok := strings.Cut(r.buf, thinkEnd); ok {
		r.buf, r.stage, end = before+after, afterReasoning, len(before)
	} else if !last {
		for n := min(len(thinkEnd)-1, end); n > 0; n-- { // a part of the mark
			if strings.HasSuffix(r.buf, thinkEnd[:n]) {
				end -= n
				break
			}
		}
	}
	out := strings.TrimRightFunc(r.buf[:end], unicode.IsSpace)
	if r.stage == inReasoning && !last {
		end = len(out)
	}
	r.buf = r.buf[end:]
	r.begun = r.begun || out != ""
	return out
}

// thinkingBudget reads the field thinking of the Anthropic API: whether the model is to
// think, nil if it does not say, and for how many tokens.
func thinkingBudget(f *fields) (on *bool, budget int) {
	o := f.object("thinking")
	if o == nil {
		return nil, 0
	}
	t := o.str("type")
	if !slices.Contains([]string{"enabled", "adaptive", "disabled"}, t) {
		o.fail("type", "%q is unknown, expected enabled, adaptive or disabled", t)
	}
	if o.has("budget_tokens") {
		if budget = o.integer("budget_tokens", 0, 1, 1<<31-1); t != "enabled" {
			o.fail("budget_tokens", "needs the type enabled")
		}
	}
	f.adopt(o)
	yes := t != "disabled"
	return &yes, budget
}
