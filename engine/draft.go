package engine

import (
	"errors"
	"fmt"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/drafting"
)

// Draft says how a compressed copy of a request's cache drafts its answers.
type Draft struct {
	// Policy compresses the tokens of Span, a part of the prompt, in the copy. Its metric may
	// look at keys, values and few of the last queries, as the copy is made after the prompt was read.
	Policy *lukv.Policy
	Span   model.Span

	// Tokens is the number of drafts in a step, at most drafting.MostDrafts; 0: as many as pay
	// by the time of steps and the share of drafts that were right, perhaps none.
	Tokens int
}

// mostDraftQueries bounds the queries that the metric of a draft may look at: they are
// computed again while the answers of all requests wait.
const mostDraftQueries = 256

// checkDraft reports a draft that the request cannot have.
func (e *Engine) checkDraft(r *Request) error {
	d := r.Draft
	if d == nil {
		return nil
	}
	switch {
	case r.Policy.Enabled():
		return errors.New("drafts and a policy that compresses, expected one of them")
	case r.PromptOnly:
		return errors.New("drafts of a prompt without an answer")
	case d.Policy == nil || !d.Policy.Enabled():
		return errors.New("drafts without a policy that compresses their cache")
	case d.Policy.CacheType != "":
		return fmt.Errorf("drafts with a cache of type %s, expected that of the engine", d.Policy.CacheType)
	case d.Span.From < 0 || d.Span.To <= d.Span.From || d.Span.To > len(r.Prompt):
		return fmt.Errorf("drafts with tokens %d to %d compressed, expected some of the %d of the prompt", d.Span.From, d.Span.To, len(r.Prompt))
	}
	ranking, _ := d.Policy.Methods()
	metric, err := lukv.NewMetric(ranking)
	if err != nil {
		return err
	}
	n := metric.Needs(d.Span.To, 0)
	if n.Window > mostDraftQueries || n.Stats || n.ColumnSums || n.Hidden > 0 || n.Repeat.Chunk > 0 {
		return fmt.Errorf("drafts by the metric %s, which reads the prompt again: expected one that looks at keys, values and at most %d queries", ranking.Name, mostDraftQueries)
	}
	// The rest depends on the model.
	s, err := e.m.NewSession(model.SessionOptions{CacheType: e.o.CacheType, CacheValues: e.o.CacheValues, PageEntries: e.o.PageEntries})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.DraftCompressed(e.ctx, model.Span{}, d.Policy, d.Tokens)
}

// draftBytes returns the most that the copies take with answers of the given number of
// tokens: that of the prompt, and for every further choice its answer and the pages that it
// shares with others no longer.
func (j *job) draftBytes(answer int) (int64, error) {
	r := &j.req
	d := r.Draft
	if d == nil {
		return 0, nil
	}
	o := j.policyOptions()
	o.Compression = d.Policy
	one, err := j.e.m.CacheEstimate(o, model.Lengths{Before: d.Span.From, Context: d.Span.To - d.Span.From, Rest: len(r.Prompt) - d.Span.To + answer})
	if err != nil || r.Choices == 1 {
		return one.Held, err
	}
	more, err := j.furtherChoice(answer)
	return one.Held + int64(r.Choices-1)*more, err
}

// furtherChoice returns what a choice takes that shares the prompt with another: its
// answer, and the last page of every head.
func (j *job) furtherChoice(answer int) (int64, error) {
	o := j.policyOptions().WithoutCompression()
	tail, err := j.e.m.CacheEstimate(o, model.Lengths{Rest: answer})
	if err != nil {
		return 0, err
	}
	page, err := j.e.m.CacheEstimate(o, model.Lengths{Rest: 1})
	return tail.Held + page.Held, err
}

// draft makes the copy that drafts, of the session that has read the prompt. The answers are
// the same without it, so a request whose copy cannot be made goes on.
func (j *job) draft() {
	d := j.req.Draft
	if d == nil {
		return
	}
	if err := j.session.DraftCompressed(j.e.ctx, d.Span, d.Policy, d.Tokens); err != nil && j.e.ctx.Err() == nil {
		j.e.o.Log.Warn("answers without drafts", "request", j.req.ID, "error", err)
	}
}

// mostDrafts returns the most tokens of an answer that a step computes ahead.
func (j *job) mostDrafts() int {
	switch {
	case j.req.Draft != nil:
		return drafting.MostDrafts
	case j.e.o.Lookup:
		return model.MaxDrafts
	}
	return 0
}

// countDrafts adds what became of the drafts of a session that is about to be closed.
func (c *choice) countDrafts() {
	j := c.j
	if j.mostDrafts() == 0 {
		return
	}
	st := c.session.Stats()
	j.drafted, j.accepted = j.drafted+st.Drafted, j.accepted+st.Accepted
	j.e.stats.drafted.Add(int64(st.Drafted))
	j.e.stats.accepted.Add(int64(st.Accepted))
}
