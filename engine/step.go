package engine

import (
	"errors"
	"io"
	"math"
	"slices"
	"time"

	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model"
)

// step computes a token of every answer, or of each client's share of them, and pieces of
// prompts. It reports false if there was nothing to do.
func (e *Engine) step() bool {
	e.gather()
	rows := e.shareStep()
	answers := len(e.parts)
	budget := e.pace.tokens(answers)
	if budget > 0 {
		budget = max(e.pace.least(), budget-e.addReplays(budget))
	}
	layered, taken := e.addPrompts(budget)
	taken += e.replayed
	if len(e.parts) == 0 && layered == nil {
		return e.drawAll()
	}
	if len(e.parts) > 0 {
		start := time.Now()
		if err := e.m.Pass(e.ctx, e.parts); err != nil {
			e.blame(err)
			return true
		}
		took := time.Since(start)
		e.pace.measured(took, taken, answers, e.share.owedAfter(e.owners[answers:]...))
		e.noteStep(took, rows, answers, taken)
		e.stats.steps.Add(1)
	}
	if layered != nil {
		e.advance(layered, budget)
	}
	e.passed()
	e.drawAll()
	return true
}

// gather collects the answers that can continue.
func (e *Engine) gather() {
	for again := true; again; {
		again = false
		e.parts, e.owners, e.decoding, e.replays, e.replayed = e.parts[:0], e.owners[:0], e.decoding[:0], e.replays[:0], 0
		for _, j := range e.running {
			e.noteReading(j)
			if j.session == nil && e.rejoin(j) && !j.over() && j.room() > 0 && !e.gatherJob(j) {
				again = true // a request lost its cache or failed: start over
				break
			}
		}
	}
}

// gatherJob collects the answers of one request. It reports false if the running
// requests have changed.
func (e *Engine) gatherJob(j *job) bool {
	if longest := j.longest(); longest >= j.covered && j.covered < j.answerTokens && !e.grow(j) {
		return false
	}
	for _, c := range j.choices {
		if c.done || c.session == nil {
			continue
		}
		left := len(c.answer) - c.fed
		switch {
		case left == 1 && c.fill == nil:
			p := model.Part{Session: c.session, Token: c.answer[c.fed], Drafts: e.drafts(c)}
			if j.req.Draft != nil {
				p.Sampler = c.sampler
			}
			e.add(j, p)
			e.decoding = append(e.decoding, c)
		case left > 0 && c.fill == nil && j.countsPasses():
			e.add(j, model.Part{Session: c.session, Token: c.answer[c.fed]})
			e.decoding = append(e.decoding, c)
		case left > 0:
			if c.fill == nil {
				var err error
				if c.fill, err = c.session.StartPrefill(c.answer[c.fed:], nil); err != nil {
					e.fail(j, err)
					return false
				}
			}
			e.replays = append(e.replays, c)
		}
	}
	return true
}

// addReplays adds pieces of answers that are recomputed to the pass, n tokens at most, and
// returns how many there are.
func (e *Engine) addReplays(n int) (taken int) {
	for _, c := range e.replays {
		if piece := min(n-taken, c.fill.Remaining()); piece > 0 {
			e.add(c.j, model.Part{Session: c.session, Prefill: c.fill, N: piece})
			taken += piece
		}
	}
	e.replayed += taken
	return taken
}

// countsPasses reports whether the request compresses while decoding, on a schedule
// that counts passes. An answer that lost its cache is then recomputed as it was
// before, one token per pass.
func (j *job) countsPasses() bool { return j.req.Policy != nil && j.req.Policy.Decode.Enabled() }

// draftRows bounds the rows of answers in a step that includes drafts: with more, a
// draft takes as long as the token that it may save.
const draftRows = 16

// drafts returns the number of tokens that may be computed ahead for an answer: within
// what is reserved for it, and without its last token, which is never fed.
func (e *Engine) drafts(c *choice) int {
	most := c.j.mostDrafts()
	if most == 0 {
		return 0
	}
	width, answer := e.width(), len(c.answer)
	return max(0, min(most, (draftRows-width)/width, c.j.covered-answer, c.j.answerTokens-answer-1))
}

// longest returns the length of the longest answer in progress.
func (j *job) longest() int {
	n := 0
	for _, c := range j.choices {
		if !c.done {
			n = max(n, len(c.answer))
		}
	}
	return n
}

// grow reserves room for longer answers, at the cost of later requests. It reports
// false if the running requests have changed.
func (e *Engine) grow(j *job) bool {
	if e.reserve(j, j.step) {
		j.covered = min(j.answerTokens, j.covered+growTokens)
		j.need += j.step
		if err := j.measureStep(); err != nil {
			e.fail(j, err)
			return false
		}
		return true
	}
	switch {
	case e.preempt():
	case e.pendingIO > 0:
		e.waitForFiles()
	default:
		e.fail(j, &TooLargeError{Needed: j.reserved + j.step, Limit: e.o.MaxBytes})
	}
	return false
}

func (e *Engine) add(j *job, p model.Part) {
	e.parts = append(e.parts, p)
	e.owners = append(e.owners, j)
}

// addPrompts adds pieces of prompts to the pass, at most n tokens in all; clients take turns,
// and the prompts of each do; where n is 0, short ones of quickTokens. A prompt that is computed
// layer by layer is returned instead, to be advanced separately. taken is the number of tokens
// added.
func (e *Engine) addPrompts(n int) (layered *job, taken int) {
	for _, j := range e.promptsInTurn() {
		read, err := j.next()
		if err != nil {
			e.fail(j, err)
			continue
		}
		if read {
			e.read(j)
			continue
		}
		if e.share.promptsWait(j.req.Client) || layered != nil {
			continue
		}
		if j.fill.Layered() {
			if taken == 0 && n > 0 {
				layered = j
				e.share.promptTurn(j)
			}
			continue
		}
		piece := min(n-taken, j.fill.Remaining(), e.chunk)
		if n == 0 && j.quick(quickTokens-taken) {
			piece = j.fill.Remaining()
		}
		if j.req.Echo {
			piece = min(piece, j.room(), echoRows)
		}
		if piece > 0 {
			e.add(j, model.Part{Session: j.session, Prefill: j.fill, N: piece})
			taken += piece
			e.share.promptTurn(j)
		}
	}
	return layered, taken
}

// quickTokens of short prompts fit into a step that answers are owed: it takes little longer for
// them.
const quickTokens = 32

// quick reports whether what is left of a prompt may be read in any step, as at most n tokens.
func (j *job) quick(n int) bool {
	return j.fill.Remaining() <= n && !j.req.Echo && !turns.Owes(j.req.Client)
}

// echoRows bounds the rows of an echo in a step, as all their logits are needed.
const echoRows = 16

// advance computes a piece of a prompt that is computed layer by layer.
func (e *Engine) advance(j *job, n int) {
	start, before := time.Now(), j.fill.Remaining()
	if err := j.fill.Advance(e.ctx, n); err != nil {
		e.fail(j, err)
		return
	}
	took := time.Since(start)
	e.pace.measured(took, max(1, before-j.fill.Remaining()), 0, e.share.owedAfter(j))
	turns.Charge(j.req.Client, took)
}

// blame ends the request that made a pass fail, or all of them if the model or its device
// can no longer compute.
func (e *Engine) blame(err error) {
	var at *model.PartError
	switch {
	case errors.As(err, &at):
		e.fail(e.owners[at.Part], at.Err)
		e.drawAll() // for those whose prompt was read before the pass
		return
	case e.ctx.Err() != nil || errors.Is(err, kernels.ErrDeviceLost):
		for _, j := range slices.Clone(e.running) {
			e.fail(j, err)
		}
		return
	}
	// Run each by itself, so that only the one to blame fails.
	parts, owners := slices.Clone(e.parts), slices.Clone(e.owners)
	for i := range parts {
		if !slices.Contains(e.running, owners[i]) {
			continue
		}
		if err := e.m.Pass(e.ctx, parts[i:i+1]); err != nil {
			e.fail(owners[i], err)
		}
	}
	e.passed()
	e.drawAll()
}

// passed handles the results of a pass: answers whose last token was fed are ready for
// the next one, and prompts may be finished.
func (e *Engine) passed() {
	e.each = append(e.each[:0], e.running...)
	for _, j := range e.each {
		if j.session != nil {
			j.progressed()
			if read, err := j.next(); err != nil {
				e.fail(j, err)
			} else if read {
				e.read(j)
			}
			continue
		}
		for _, c := range j.choices {
			if !c.done && c.session != nil && c.took() {
				e.draws = append(e.draws, c)
			}
		}
	}
}

// progressed tells the stream how much of the prompt has been read. A request that lost its
// cache and begins again does not go back.
func (j *job) progressed() {
	at := j.at
	if j.fill != nil {
		at -= j.fill.Remaining()
	}
	j.stream.reached.Store(max(j.stream.reached.Load(), int64(at)))
	j.count()
}

// took updates the choice after a pass, and reports whether the pass fed the answer's
// last token to the session.
func (c *choice) took() bool {
	before := c.fed
	switch {
	case c.fill != nil && c.fill.Done():
		c.fill, c.fed = nil, len(c.answer)
	case c.fill == nil:
		c.fed = c.session.Len() - c.base
	}
	return c.fed > before && c.fed == len(c.answer)
}

// read continues a request whose prompt has been read: the prompt is kept, and the
// answers begin.
func (e *Engine) read(j *job) {
	st := j.session.Stats()
	j.progressed()
	if j.isRead.IsZero() {
		j.isRead = time.Now()
		if j.cached < j.req.Context { // otherwise an earlier request has counted them
			e.stats.evicted.Add(st.FullEntries - st.Entries)
		}
		if j.req.Inspect != nil {
			j.req.Inspect(j.session)
		}
	}
	j.saved = st.FullBytes - st.CacheBytes
	e.stats.saved.Add(j.saved)
	if st.FullEntries > 0 {
		lost := float64(st.FullEntries-st.Entries) / float64(st.FullEntries)
		j.stream.usage.Evicted = int(math.Round(lost * float64(len(j.req.Prompt))))
	}
	j.stream.cache = CacheUse{Entries: st.Entries, FullEntries: st.FullEntries, Bytes: st.CacheBytes, FullBytes: st.FullBytes}
	e.cache.keep(j, e.room())
	e.stats.cached.Store(e.cache.bytes)
	if e.persist(j) {
		return
	}
	if j.req.PromptOnly {
		e.leave(j)
		e.finish(j, nil)
		return
	}
	if err := j.fork(); err != nil {
		e.fail(j, err)
		return
	}
	for _, c := range j.choices {
		switch {
		case c.done:
		case len(c.answer) == 0:
			e.draws = append(e.draws, c)
		default: // it lost its cache: the next step feeds it again, even if this one does nothing else
			e.poke()
		}
	}
}

// drawAll draws the next tokens of every answer that is ready, in parallel, and sends
// the events. It reports whether there were any.
func (e *Engine) drawAll() bool {
	ready, rest := e.ready[:0], e.draws[:0]
	for _, c := range e.draws {
		if c.ready() {
			ready = append(ready, c)
		} else {
			rest = append(rest, c)
		}
	}
	e.ready, e.draws = ready, rest
	if n := len(ready); n > 1 {
		e.m.Parallel(n, e.drawReady)
	} else if n == 1 {
		ready[0].draw()
	}
	for _, c := range ready {
		j := c.j
		if !slices.Contains(e.running, j) {
			continue // another choice of it failed
		}
		for _, event := range c.events {
			j.stream.events <- event
		}
		switch {
		case c.err != nil:
			e.fail(j, c.err)
		case c.done:
			c.free()
		case c.again:
			c.again = false
			e.draws = append(e.draws, c)
			c.askMask()
		default:
			c.askMask()
		}
	}
	for _, c := range ready {
		c.j.count()
		if c.j.over() && slices.Contains(e.running, c.j) {
			e.leave(c.j)
			e.finish(c.j, nil)
		}
	}
	drew := len(ready) > 0
	clear(ready) // they would keep requests alive
	return drew
}

// ready reports whether the next token of an answer, whose logits are there, can be drawn:
// its mask is there, and events are read.
func (c *choice) ready() bool {
	return (c.maskState == maskReady || !c.masked()) && c.j.room() > 0
}

// draw draws the next token, and those after it that the step has computed ahead. Each of
// these has to wait for its mask, if there is one.
func (c *choice) draw() {
	c.events = c.events[:0]
	for c.drawPart() && c.session.Follow(c.answer[len(c.answer)-1]) {
		c.fed++
		if c.again = c.masked(); c.again {
			return
		}
	}
}

// drawPart is drawOne; the event says which part of the answer it belongs to.
func (c *choice) drawPart() bool {
	n := len(c.events)
	more := c.drawOne()
	if c.parts == nil || len(c.events) == n {
		return more
	}
	e := &c.events[n]
	p := c.parts.Add(e.Text, e.HasToken, e.Finish != model.FinishNone)
	e.Reasoning, e.InReasoning, e.Text, e.Calls = p.Reasoning, p.InReasoning, p.Text, p.Calls
	if e.Finish == model.FinishStop && c.parts.Called() { // nobody should execute a call that a stop text has cut
		e.Finish = FinishCalls
	}
	return more
}

// drawOne draws a token and adds its event. It reports whether the answer continues.
func (c *choice) drawOne() bool {
	j := c.j
	o := &j.req.Sampling
	if j.answerTokens == 0 { // the prompt fills the context
		c.events = append(c.events, Event{Choice: c.index})
		c.end(&c.events[0], model.FinishLength)
		return false
	}
	var mask []uint64
	if j.req.Mask != nil {
		mask, c.err = c.mask, c.maskErr
		c.mask, c.maskErr, c.maskState = nil, nil, maskNone
		if c.err == io.EOF {
			c.err, c.events = nil, append(c.events, Event{Choice: c.index})
			c.end(&c.events[len(c.events)-1], model.FinishStop)
			return false
		}
		if c.err != nil {
			return false
		}
	}
	logits := c.session.Logits()
	id, err := c.sampler.Next(logits, mask)
	if err != nil {
		c.err = err
		return false
	}
	c.sampler.Accept(id)
	c.drawn++
	c.events = append(c.events, Event{Choice: c.index})
	event := &c.events[len(c.events)-1]
	ends := j.e.m.Ends(id, o)
	if !ends || o.YieldEnd {
		t := c.sampler.Describe(logits, id)
		t.Top = slices.Clone(t.Top)
		event.Token, event.HasToken = t, true
	}
	if ends {
		c.end(event, model.FinishStop)
		return false
	}
	c.answer = append(c.answer, id)
	stopped := false
	if c.text != nil {
		event.Text, stopped = c.text.Token(id)
	}
	if stopped {
		c.end(event, model.FinishStop)
	} else if len(c.answer) >= j.answerTokens || j.late() {
		c.end(event, model.FinishLength)
	}
	return !c.done
}

// late reports whether the answers have taken all the time that they may take.
func (j *job) late() bool {
	return j.e.o.AnswerTime > 0 && time.Since(j.isRead) >= j.e.o.AnswerTime
}

// end ends the answer, with any text that was held back.
func (c *choice) end(event *Event, why model.FinishReason) {
	c.done, c.finish = true, why
	if c.text != nil {
		event.Text += c.text.End()
		event.Stop = c.text.StopText()
	}
	event.Finish = why
}
