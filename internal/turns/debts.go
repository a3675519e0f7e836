package turns

import (
	"maps"
	"time"
)

// debts are when owners will have left to others as much time as their work besides answers has
// taken: turns, each in its share of the processors, and steps of engines with their prompts.
type debts struct {
	until map[string]time.Duration
	swept time.Duration
}

// add records that an owner's work has taken some time of all processors, until now.
func (d *debts) add(owner string, took, now time.Duration) {
	if d.until == nil {
		d.until = map[string]time.Duration{}
	}
	d.until[owner] = max(d.until[owner], now) + took
	if now > d.swept+time.Second {
		maps.DeleteFunc(d.until, func(_ string, until time.Duration) bool { return until <= now })
		d.swept = now
	}
}

// Charge says that a step of an engine took some time longer for prompts of an owner.
func Charge(owner string, took time.Duration) { process.charge(owner, took) }

func (q *queue) charge(owner string, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.debts.add(owner, took, q.now())
}

// Owes reports whether prompts of an owner should wait for others' answers: turns and prompts
// of the owner have taken more than half of the time lately.
func Owes(owner string) bool { return process.owes(owner) }

func (q *queue) owes(owner string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.now() < q.debts.until[owner]
}
