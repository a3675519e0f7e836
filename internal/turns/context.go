package turns

import "context"

type claimKey struct{}

// claim is what a context says.
type claim struct {
	owner string
	turn  *Turn // nil: the goroutine has none
}

func claimOf(ctx context.Context) claim {
	c, _ := ctx.Value(claimKey{}).(claim)
	return c
}

// Use returns a context for work of the claim's owner, on the goroutine that has the claim.
func (t *Turn) Use(ctx context.Context) context.Context {
	return context.WithValue(ctx, claimKey{}, claim{t.owner, t})
}

// Apart returns a context for work of the same owner on another goroutine.
func Apart(ctx context.Context) context.Context {
	if c := claimOf(ctx); c.turn != nil {
		return context.WithValue(ctx, claimKey{}, claim{owner: c.owner})
	}
	return ctx
}

// Of returns the claim whose turn the work of ctx has at the moment, nil if it has none.
func Of(ctx context.Context) *Turn {
	if t := claimOf(ctx).turn; t != nil && t.held {
		return t
	}
	return nil
}

// Check takes the place of looking at ctx.Err within long work, at least once in some
// tenths of a millisecond: it is [Turn.Check] of the turn that the work has, if any.
func Check(ctx context.Context) error {
	if t := Of(ctx); t != nil {
		return t.Check(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Begin returns the claim that the work of ctx has a turn of, or waits for one. The caller ends it.
func Begin(ctx context.Context) (*Turn, error) {
	t := begun(ctx)
	if err := t.Take(ctx); err != nil {
		t.End()
		return nil, err
	}
	return t, nil
}

// begun returns the claim for work of ctx, which End ends.
func begun(ctx context.Context) *Turn {
	t := Of(ctx)
	if t == nil {
		return process.claim(claimOf(ctx).owner)
	}
	t.within++
	return t
}

// End ends what Begin began: the turn, unless it was there before.
func (t *Turn) End() {
	if t.within > 0 {
		t.within--
		return
	}
	t.Give()
}
