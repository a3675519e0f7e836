package grammar

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
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

	// quantum is the work after which a computation lets others take their turn.
	quantum = 1 << 13
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

// turns holds a token for each computation that may go on: half of the processors, the
// others are left for models. Those that wait take turns in the order in which they came.
var turns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// meter counts the work of a computation in progress, which has a turn.
type meter struct {
	ctx         context.Context
	done, limit int
	pending     int   // since the turn began
	over        error // what more work than the limit is
}

// begin waits for a turn. The caller ends it.
func begin(ctx context.Context, limit int, over error) (*meter, error) {
	m := &meter{ctx: ctx, limit: limit, over: over}
	return m, m.wait()
}

func (m *meter) wait() error {
	err := acquire(m.ctx, turns)
	if err != nil {
		m.pending = -1 // without a turn
	}
	return err
}

// acquire puts a value into a channel that bounds something, unless ctx is done.
func acquire(ctx context.Context, room chan<- struct{}) error {
	select {
	case <-ctx.Done():
	default:
		select {
		case room <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("grammar: %w", context.Cause(ctx))
}

// look charges n units, before they are done.
func (m *meter) look(n int) error {
	if m.done += n; m.done > m.limit {
		return m.over
	}
	if m.pending < 0 {
		return context.Cause(m.ctx)
	}
	if m.pending += n; m.pending >= quantum {
		<-turns
		m.pending = 0
		runtime.Gosched() // a step of an engine waits for each of its goroutines, this for nothing
		return m.wait()
	}
	return nil
}

// end gives the turn to the next.
func (m *meter) end() {
	if m.pending >= 0 {
		<-turns
	}
}
