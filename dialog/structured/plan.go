package structured

import (
	"context"

	"github.com/lukv/lukv/model"
)

// Output is what the answers to a request must follow, and how they are read. The zero value
// allows anything and reads everything as text.
type Output struct {
	Format    Format     // of the text after the reasoning; with tools, of answers without calls
	Tools     *Tools     // that may be called; nil: none
	Reasoning *Reasoning // with which answers begin; nil: none is expected
}

// Plan is how the answers to one request are constrained and read.
type Plan struct {
	Mask Mask // nil: any token may come
	o    Output
}

// Plan returns the plan of a request for a number of answers drawn in the given way. A format
// that cannot be compiled is a [FormatError].
func (c *Compiler) Plan(ctx context.Context, o Output, s *model.Sampling, choices int) (*Plan, error) {
	p := &Plan{o: o}
	like := o.Format
	var begin *Tools // says where the format begins; nil: with the answer
	switch t := o.Tools; {
	case t == nil:
	case !t.o.Required && !like.IsZero():
		like = t.orFormat(ctx, c, like)
	default: // if a call has to be made, the format of text does not matter
		if like = t.format(ctx, c); !t.o.Required || t.must {
			begin = t
		}
	}
	if like.IsZero() && (o.Reasoning == nil || o.Reasoning.budget < 0) {
		return p, nil
	}
	var ends []int32 // tokens that end an answer
	for id := range int32(c.m.Config().Vocab) {
		if c.m.Ends(id, s) {
			ends = append(ends, id)
		}
	}
	if !like.IsZero() {
		var err error
		if p.Mask, err = c.constrain(ctx, like, begin, choices, ends); err != nil {
			return nil, formatError(ctx, err)
		}
	}
	p.Mask = o.Reasoning.before(p.Mask, ends, c.m.Config().Vocab, choices)
	return p, nil
}

// ShowSpecial reports whether the answers' text must have special tokens in it for readers to
// find the marks.
func (p *Plan) ShowSpecial() bool {
	return p.o.Tools != nil || p.o.Reasoning != nil && p.o.Reasoning.special
}

// Splits reports whether answers consist of more than text.
func (p *Plan) Splits() bool { return p.o.Tools != nil || p.o.Reasoning != nil }

// Piece is a piece of an answer.
type Piece struct {
	Reasoning   string
	InReasoning bool   // what was read last belongs to the reasoning
	Text        string // follows the reasoning
	Calls       []Call
}

// Reader splits one answer into pieces as it comes.
type Reader struct {
	reasoning *reasoningReader
	calls     *callReader
}

// NewReader returns a reader of one answer.
func (p *Plan) NewReader() *Reader {
	r := &Reader{reasoning: p.o.Reasoning.newReader(!p.o.Format.IsZero())}
	if p.o.Tools != nil {
		r.calls = &callReader{t: p.o.Tools}
	}
	return r
}

// Add takes the next piece of the answer's text, which is that of a token or was held back;
// last is set at the end. It returns what is certain by now.
func (r *Reader) Add(text string, token, last bool) Piece {
	p := Piece{Text: text}
	if r.reasoning != nil {
		p.Reasoning, p.Text = r.reasoning.add(text, token, last)
		p.InReasoning = r.reasoning.stage != inAnswer
	}
	if r.calls != nil {
		p.Text, p.Calls = r.calls.add(p.Text, last)
	}
	return p
}

// ReasoningTokens returns the number of tokens of the reasoning so far, with its marks.
func (r *Reader) ReasoningTokens() int {
	if r.reasoning == nil {
		return 0
	}
	return r.reasoning.tokens
}

// Called reports whether the answer has calls and none of them is cut within its arguments.
func (r *Reader) Called() bool {
	return r.calls != nil && r.calls.calls > 0 && r.calls.stage != inArguments
}
