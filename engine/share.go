package engine

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/model"
)

// share divides the steps between clients that decode at the same time, so that one with few
// answers is not slowed down by another's many: its answers take turns, and its prompts, with
// its work beside the steps, take half of the time at most.
type share struct {
	step  int64 // number of this step
	times line  // of passes without prompts, by rows

	prompts map[string]int64 // the last steps with prompts, of clients that had some lately

	// Scratch.
	clients []clientRows // of this step's answers
	counts  []int
	order   []int // of parts, longest left out first
}

// clientRows are the rows of a client's answers in a step.
type clientRows struct {
	name string
	rows int // asked for
	left int // still to be given
}

const (
	// leastRows of answers fit into every step, however long they take.
	leastRows = 2

	// mostTime is how long a step with answers of several clients may take, in passes with
	// a single row, unless the clients have as many each.
	mostTime = 1.25
)

// limit returns how many rows of answers a step takes.
func (s *share) limit() int {
	base, perRow, ok := s.times.fit()
	switch {
	case !ok:
		return leastRows
	case perRow <= 0:
		return math.MaxInt
	}
	rows := (mostTime*(base+perRow) - base) / perRow
	return max(leastRows, int(min(rows, math.MaxInt32)))
}

// promptsWait reports whether the prompts of a client are left out of this step, in favour of
// others' answers.
func (s *share) promptsWait(client string) bool { return s.othersAnswer(client) && turns.Owes(client) }

// othersAnswer reports whether answers of other clients are in this step.
func (s *share) othersAnswer(client string) bool {
	return slices.ContainsFunc(s.clients, func(c clientRows) bool { return c.name != client })
}

// owedAfter returns the share of the time of a step with prompts of these requests that passes
// without prompts have after it.
func (s *share) owedAfter(prompts ...*job) float64 {
	owed := 0.
	for _, j := range prompts {
		switch {
		case s.othersAnswer(j.req.Client):
			return othersShare
		case len(j.req.Prompt) >= longPrompt:
			owed = answersShare
		}
	}
	return owed
}

// promptTurn records that a piece of a prompt is in this step.
func (s *share) promptTurn(j *job) {
	const lately = 1000 // steps
	if s.prompts == nil {
		s.prompts = map[string]int64{}
	}
	j.turn, s.prompts[j.req.Client] = s.step, s.step
	maps.DeleteFunc(s.prompts, func(_ string, turn int64) bool { return turn < s.step-lately })
}

// promptsInTurn returns the requests whose prompts are read: clients that have waited longest
// come first, and of each the prompts that have.
func (e *Engine) promptsInTurn() []*job {
	e.reading = e.reading[:0]
	for _, j := range e.running {
		if j.session != nil {
			e.reading = append(e.reading, j)
		}
	}
	slices.SortStableFunc(e.reading, func(a, b *job) int {
		return cmp.Or(cmp.Compare(e.share.prompts[a.req.Client], e.share.prompts[b.req.Client]), cmp.Compare(a.turn, b.turn))
	})
	return e.reading
}

// line is a straight line through points, of which newer ones count more.
type line struct{ n, x, y, xx, xy float64 }

func (l *line) add(x, y float64) {
	const keep = 31. / 32
	l.n, l.x, l.y = keep*l.n+1, keep*l.x+x, keep*l.y+y
	l.xx, l.xy = keep*l.xx+x*x, keep*l.xy+x*y
}

// fit returns the line y = base + slope·x with the least squares; ok is false if all x are nearly
// the same.
func (l *line) fit() (base, slope float64, ok bool) {
	if l.n == 0 {
		return 0, 0, false
	}
	x, y := l.x/l.n, l.y/l.n
	variance := l.xx/l.n - x*x
	if variance < 0.25 {
		return 0, 0, false
	}
	slope = (l.xy/l.n - x*y) / variance
	return y - slope*x, slope, true
}

// level returns the most rows that each client gets so that all fit into the limit, but no
// fewer than the client in the middle asks for: clients that ask for the same are not made to
// take turns, which would help none of them. It returns 0 if every client gets its rows.
func (s *share) level() int {
	s.counts = s.counts[:0]
	for _, c := range s.clients {
		s.counts = append(s.counts, c.rows)
	}
	slices.Sort(s.counts)
	left := s.limit()
	for i, n := range s.counts {
		equal := left / (len(s.counts) - i)
		if n > equal {
			level := max(1, equal, s.counts[(len(s.counts)-1)/2])
			if level >= s.counts[len(s.counts)-1] {
				return 0
			}
			return level
		}
		left -= n
	}
	return 0
}

// client returns the entry of a client.
func (s *share) client(name string) *clientRows {
	for i := range s.clients {
		if s.clients[i].name == name {
			return &s.clients[i]
		}
	}
	s.clients = append(s.clients, clientRows{name: name})
	return &s.clients[len(s.clients)-1]
}

// shareStep leaves those parts of the step out, all of which are of answers, that are more than
// the share of their client, and returns the rows of the others.
func (e *Engine) shareStep() int {
	s := &e.share
	s.step++
	s.clients = s.clients[:0]
	for i, j := range e.owners {
		s.client(j.req.Client).rows += answerRows(e.parts[i])
	}
	level := s.level()
	if level > 0 {
		e.takeTurns(level)
	}
	rows, n := 0, 0
	for i, c := range e.decoding {
		if level > 0 && c.step != s.step {
			continue
		}
		c.step = s.step
		e.parts[n], e.owners[n] = e.parts[i], e.owners[i]
		rows += answerRows(e.parts[n])
		if len(c.answer)-c.fed > 1 { // of those, and not of prefills, replays are parts by now
			e.replayed++
		}
		n++
	}
	e.parts, e.owners = e.parts[:n], e.owners[:n]
	return rows
}

// noteStep records how long a pass took, which began with so many parts of answers, and the rest
// of which took so many tokens of prompts.
func (e *Engine) noteStep(took time.Duration, rows, answers, taken int) {
	if taken == 0 {
		e.share.times.add(float64(rows), took.Seconds())
		return
	}
	each := max(0, took-time.Duration(e.pace.decode*float64(time.Second))) / time.Duration(taken)
	for i, p := range e.parts[answers:] {
		turns.Charge(e.owners[answers+i].req.Client, time.Duration(p.N)*each)
	}
}

// takeTurns marks the answers that are in this step: of each client those that have been left
// out for the longest time, until there are level rows.
func (e *Engine) takeTurns(level int) {
	s := &e.share
	for i := range s.clients {
		s.clients[i].left = level
	}
	s.order = s.order[:0]
	for i := range e.parts {
		s.order = append(s.order, i)
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(e.decoding[a].step, e.decoding[b].step) })
	for _, i := range s.order {
		c := s.client(e.owners[i].req.Client)
		if c.left > 0 {
			e.decoding[i].step = s.step
		}
		c.left -= answerRows(e.parts[i])
	}
}

// answerRows returns the rows of a part that continues an answer.
func answerRows(p model.Part) int { return 1 + p.Drafts }
