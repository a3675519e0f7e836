package grammar

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lukv/lukv/internal/turns"
)

// Work is counted in places of an automaton, and edges of theirs, that are looked at or
// made; a unit takes about a tenth of a microsecond. It is charged before it is done, and
// what has been remembered costs as much as what has not: whether an answer stays within
// its bounds does not depend on other requests.
const (
	maxCompileWork = 1 << 24
	maxWork        = 1 << 19 // of one call of Bytes, Token or Mask

	// A request may cause requestWork, and choiceWork more for each of its choices.
	requestWork = 1 << 28
	choiceWork  = 1 << 22

	// quantum is the work after which a computation looks whether its turn is over.
	quantum = 1 << 11
)

var (
	// ErrAmbiguous says that there are too many ways to read a text.
	ErrAmbiguous = errors.New("there are too many ways to read what was written")

	// ErrBudget says that the masks of a request have taken all of its work.
	ErrBudget = errors.New("the format takes too much work to follow")
)

// Budget is the work that the answers to one request may still cause. It is safe for
// concurrent use; nil is without a bound.
type Budget struct{ left atomic.Int64 }

// NewBudget returns the budget of a request with the given number of choices.
func NewBudget(choices int) *Budget {
	b := new(Budget)
	b.left.Store(requestWork + int64(choices)*choiceWork)
	return b
}

// take takes work from the budget.
func (b *Budget) take(n int) error {
	if b != nil && b.left.Add(-int64(n)) < 0 {
		return ErrBudget
	}
	return nil
}

// meter counts the work of a computation in progress, which has a turn.
type meter struct {
	ctx         context.Context
	turn        *turns.Turn
	done, limit int
	pending     int   // since the turn was checked
	over        error // what more work than the limit is
}

// begin waits for a turn. The caller ends it.
func begin(ctx context.Context, limit int, over error) (*meter, error) {
	turn, err := turns.Begin(ctx)
	if err != nil {
		return nil, cancelled(err)
	}
	return &meter{ctx: ctx, turn: turn, limit: limit, over: over}, nil
}

func (m *meter) end() { m.turn.End() }

// look charges n units, before they are done.
func (m *meter) look(n int) error {
	if m.done += n; m.done > m.limit {
		return m.over
	}
	if m.pending += n; m.pending >= quantum {
		m.pending = 0
		return cancelled(m.turn.Check(m.ctx))
	}
	return nil
}

// cancelled says where a computation was cancelled.
func cancelled(err error) error {
	if err != nil {
		return fmt.Errorf("grammar: %w", err)
	}
	return nil
}
