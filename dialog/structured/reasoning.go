package structured

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"unicode"

	"github.com/lukv/lukv/tokenizer"
)

// Reasoning says how the answers to one request begin. Formats and calls apply to the text
// after it.
type Reasoning struct {
	tok        *tokenizer.Tokenizer
	begin, end int32 // the marks' tokens, -1 for a mark of several
	opened     bool  // the prompt ends with the first mark
	special    bool  // a mark is a special token
	budget     int   // tokens after which it is ended; -1: never
}

// ErrNoBudget says that a limit on reasoning cannot be kept.
var ErrNoBudget = errors.New("the model writes " + thinkEnd + " as several tokens")

// Reasoning returns how the answers to a prompt begin; nil: with the answer itself, as the
// template does not know reasoning or the prompt says not to reason. After limit tokens of
// reasoning, if limit is not negative, the mark that ends it comes; [ErrNoBudget] says that it
// cannot be forced.
func (s *Syntax) Reasoning(prompt []int32, limit int) (*Reasoning, error) {
	if !s.Reasons() {
		return nil, nil
	}
	t := &Reasoning{tok: s.tok, begin: -1, end: -1, budget: -1}
	if id, ok := s.tok.ID(thinkBegin); ok {
		t.begin = id
	}
	if id, ok := s.tok.ID(thinkEnd); ok {
		t.end, t.budget = id, max(-1, limit)
	} else if limit >= 0 {
		return nil, ErrNoBudget
	}
	var tail []byte
	for _, id := range prompt[max(0, len(prompt)-16):] {
		tail = append(tail, s.tok.TokenBytes(id)...)
	}
	switch tail = bytes.TrimSpace(tail); {
	case bytes.HasSuffix(tail, []byte(thinkEnd)): // it was told not to think
		return nil, nil
	case bytes.HasSuffix(tail, []byte(thinkBegin)):
		t.opened = true
	}
	for _, id := range []int32{t.begin, t.end} {
		t.special = t.special || id >= 0 && s.tok.IsSpecial(id)
	}
	return t, nil
}

// before returns the mask of answers that begin with the reasoning, if there is any, and go on
// as after allows.
func (t *Reasoning) before(after Mask, ends []int32, vocab, choices int) Mask {
	if t == nil || after == nil && t.budget < 0 {
		return after
	}
	m := &reasoningMask{Reasoning: t, after: after, size: vocab, ends: ends, choices: make([]reasoningPlace, choices)}
	return m.mask
}

// reasoningMask allows anything during the reasoning, except for the end of the answer.
type reasoningMask struct {
	*Reasoning
	after   Mask // nil: anything
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
		return m.rest(ctx, choice, answer[p.read:])
	}
	mask := make([]uint64, (m.size+63)/64)
	set := func(id int32, on bool) {
		if mask[id>>6] |= 1 << (id & 63); !on {
			mask[id>>6] &^= 1 << (id & 63)
		}
	}
	switch {
	case len(answer) == 0 && !m.opened: // reasoning begins, or the answer
		first, err := m.rest(ctx, choice, answer)
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

// rest returns the mask of what follows the reasoning.
func (m *reasoningMask) rest(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
	if m.after == nil {
		return nil, nil
	}
	return m.after(ctx, choice, answer)
}

// reasoningReader splits an answer into reasoning and text, as it comes, without the white
// space around the reasoning; that of a format, which follows at once, is part of the text.
type reasoningReader struct {
	stage     reasoningStage
	formatted bool
	buf       string // still undecided
	begun     bool   // some of the reasoning has come
	tokens    int    // of the reasoning
}

type reasoningStage int

const (
	beforeReasoning reasoningStage = iota // the mark may still come
	inReasoning
	afterReasoning // nothing of the text has come
	inAnswer
)

// newReader returns a reader for one choice, whose text may have a format; nil if answers begin
// without reasoning.
func (t *Reasoning) newReader(formatted bool) *reasoningReader {
	if t == nil {
		return nil
	}
	r := &reasoningReader{formatted: formatted}
	if t.opened {
		r.stage = inReasoning
	}
	return r
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
		if !r.formatted {
			r.buf = strings.TrimLeftFunc(r.buf, unicode.IsSpace)
		}
		if r.buf != "" {
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
