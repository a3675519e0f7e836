package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/model"
)

// Ask returns the answer to a request as a T, see structured.Type, which replaces its Format.
// An answer that is not whole, such as one of too many tokens or one that calls a tool, is an
// error.
func Ask[T any](ctx context.Context, e *Engine, r Request) (T, error) {
	var out T
	r.Format, r.Choices, r.KeepStop = structured.Type[T](), 1, true
	stream, err := e.Submit(ctx, r)
	if err != nil {
		return out, err
	}
	var text strings.Builder
	var finish model.FinishReason
	for event, err := range stream.Events() {
		if err != nil {
			return out, err
		}
		if event.Echo {
			continue
		}
		text.WriteString(event.Text)
		finish = event.Finish
	}
	if finish != model.FinishStop {
		return out, fmt.Errorf("request %s: the answer is not a whole %T: it ended by %s after %d bytes", stream.ID(), out, finish, text.Len())
	}
	if err := json.Unmarshal([]byte(text.String()), &out); err != nil {
		return out, fmt.Errorf("request %s: decode the answer: %w", stream.ID(), err)
	}
	return out, nil
}

// plan makes the masks that a request's format, tools and reasoning need; nil if it has none.
func (e *Engine) plan(ctx context.Context, r *Request) (*structured.Plan, error) {
	o := structured.Output{Format: r.Format, Tools: r.Tools, Reasoning: r.Reasoning}
	if o.Format.IsZero() && o.Tools == nil && o.Reasoning == nil || r.PromptOnly {
		return nil, nil
	}
	if e.compiler == nil {
		return nil, errors.New("a format, tools or reasoning, but the model has no tokenizer")
	}
	p, err := e.compiler.Plan(ctx, o, &r.Sampling, r.Choices)
	if err != nil {
		return nil, err
	}
	r.Mask = both(p.Mask, r.Mask)
	r.ShowSpecial = r.ShowSpecial || p.ShowSpecial()
	return p, nil
}

// both returns the mask of tokens that two masks allow; nil is one that allows all. The end
// that one of them demands is the end.
func both(a, b structured.Mask) structured.Mask {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
		x, err := a(ctx, choice, answer)
		if err != nil {
			return nil, err
		}
		y, err := b(ctx, choice, answer)
		switch {
		case err != nil || x == nil:
			return y, err
		case y == nil:
			return x, nil
		}
		out := slices.Clone(x[:min(len(x), len(y))])
		for i := range out {
			out[i] &= y[i]
		}
		return out, nil
	}
}
