package structured

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/lukv/lukv/internal/grammar"
)

// Mask says which tokens may come next in a choice, one bit each, given the answer's tokens so
// far; nil: all may. io.EOF says that the answer ends. It is a function of its arguments
// alone, called for growing answers by one goroutine at a time.
type Mask func(ctx context.Context, choice int, answer []int32) ([]uint64, error)

// constraint says which tokens may come next in the answers to one request.
type constraint struct {
	size    int
	budget  *grammar.Budget
	ends    []int32 // tokens that end an answer
	choices []place

	// first, if not -1, is a token with which an answer may also begin; after is the
	// grammar of the rest.
	first int32
	after *grammar.Grammar
}

// place is how far an answer has been read.
type place struct {
	read  int // tokens
	g     *grammar.Grammar
	state *grammar.State
	calls callStart
}

// constrain returns the mask of answers that follow a format. calls, if not nil, says where
// it begins; until then, anything may come.
func (c *Compiler) constrain(ctx context.Context, f Format, calls *Tools, choices int, ends []int32) (Mask, error) {
	g, err := c.grammar(ctx, f)
	if err != nil {
		return nil, err
	}
	k := &constraint{size: c.m.Config().Vocab, budget: grammar.NewBudget(choices), ends: ends, choices: make([]place, choices), first: -1}
	if f.first != nil {
		k.first = f.firstToken
		if k.after, err = c.grammar(ctx, *f.first); err != nil {
			return nil, err
		}
	}
	for i := range k.choices {
		if k.choices[i].g = g; calls == nil {
			k.choices[i].state = g.Start()
		} else {
			k.choices[i].calls = callStart{t: calls, g: g, tok: c.tok}
		}
	}
	if calls == nil {
		return k.mask, nil
	}
	return k.maskCalls, nil
}

// mask is the Mask that allows what continues the answer so far.
func (c *constraint) mask(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
	p := &c.choices[choice]
	for ; p.read < len(answer); p.read++ {
		if p.read == 0 && answer[0] == c.first {
			p.g, p.state = c.after, c.after.Start()
			continue
		}
		next, err := p.g.Token(ctx, c.budget, p.state, answer[p.read])
		if err != nil {
			return nil, formatError(ctx, err)
		}
		if next == nil {
			return nil, fmt.Errorf("token %d came, which the format does not allow", answer[p.read])
		}
		p.state = next
	}
	mask, err := c.next(ctx, p.g, p.state)
	if len(answer) == 0 && c.first >= 0 && err == nil {
		mask = slices.Clone(mask)
		mask[c.first>>6] |= 1 << (c.first & 63)
	}
	return mask, err
}

var errNoToken = errors.New("none of the model's tokens continues it")

// next returns the mask of a state, or io.EOF if the text can only end.
func (c *constraint) next(ctx context.Context, g *grammar.Grammar, s *grammar.State) ([]uint64, error) {
	mask, some, err := g.Mask(ctx, c.budget, s)
	switch {
	case err != nil:
		return nil, formatError(ctx, err)
	case !some && s.MayEnd():
		return nil, io.EOF
	case !some:
		return nil, formatError(ctx, errNoToken)
	case s.MayEnd():
		mask = slices.Clone(mask)
		for _, id := range c.ends {
			mask[id>>6] |= 1 << (id & 63)
		}
	}
	return mask, nil
}

// maskCalls is mask for answers in which calls may begin later.
func (c *constraint) maskCalls(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
	p := &c.choices[choice]
	for ; p.read < len(answer) && p.state == nil; p.read++ {
		var err error
		if p.state, err = p.calls.token(ctx, c.budget, answer[p.read]); err != nil {
			return nil, formatError(ctx, err)
		}
	}
	if p.state != nil {
		return c.mask(ctx, choice, answer)
	}
	if t := p.calls.t; t.must { // the answer begins with a token that is not text
		mask := make([]uint64, (c.size+63)/64)
		mask[t.first>>6] |= 1 << (t.first & 63)
		return mask, nil
	}
	return nil, nil
}
