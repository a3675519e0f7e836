package serve

import (
	"iter"
	"net/http"
	"time"

	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
)

// answerEvent is a piece of an answer: what every protocol's format is written from.
type answerEvent struct {
	prompt, choice int
	token          model.Token
	hasToken       bool   // otherwise it is text that was held back, or the end
	echo           bool   // the token is one of the prompt
	listed         string // its text there, in lists of tokens
	offset         int    // characters before the token, of a text completion with log-probabilities
	reasoning      string
	inReasoning    bool   // the token is part of the reasoning
	text           string // follows the reasoning
	calls          []structured.Call
	finish         string // why the choice ends; empty: it goes on
	stop           string // the stop text that ended it; empty: none did
}

func newAnswerEvent(prompt int, e engine.Event) answerEvent {
	return answerEvent{prompt: prompt, choice: e.Choice, token: e.Token, hasToken: e.HasToken, echo: e.Echo, text: e.Text, finish: string(e.Finish), stop: e.Stop,
		reasoning: e.Reasoning, inReasoning: e.InReasoning, calls: e.Calls}
}

// answerFormat writes an answer in the form of one protocol: as a stream, or whole if out
// is nil.
type answerFormat interface {
	begin(out *eventStream)
	add(out *eventStream, e *answerEvent)
	end(w http.ResponseWriter, out *eventStream, sum *outcome) error
	fail(out *eventStream, e *apiError) // ends a stream
}

// progressFormat is an answerFormat that can show how much of prompt k has been read.
type progressFormat interface {
	progress(out *eventStream, k int, p *promptProgress)
}

// outcome is what is known when all answers are complete.
type outcome struct {
	tokens engine.Usage // over all prompts
	usage  usage        // likewise, in OpenAI's form
	cache  *cacheUse    // nil: nothing was compressed
}

// answering is a request whose answer is to be written.
type answering struct {
	*sharedFields
	stream   bool
	lines    bool             // a stream of lines instead of events
	collects bool             // the format keeps all of the answer, even of a stream
	queries  []engine.Request // one for each prompt

	// events splits the events of prompt k as the protocol does.
	events func(k int, events iter.Seq2[engine.Event, error]) iter.Seq2[answerEvent, error]

	// error returns an error for clients.
	error func(err error) *apiError
}

// answer submits a request to its engine and writes the answer. It returns an error also of a
// stream that was cut.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, a *answering, format answerFormat) (err error) {
	started := time.Now()
	if err = s.settleLoss(r, a); err != nil {
		return err
	}
	streams, timers := make([]*engine.Stream, len(a.queries)), make([]*timing, len(a.queries))
	for k, q := range a.queries {
		if streams[k], err = s.submit(contextOf(r), a.v, q); err != nil {
			return a.error(err)
		}
		timers[k] = a.v.metrics.begin(started)
		defer timers[k].end(streams[k])
	}
	var out *eventStream
	if a.stream {
		if a.lines {
			out = newLineStream(w, r)
		} else {
			out = newEventStream(w, r)
		}
		defer func() {
			for k, timer := range timers { // the client has time, the engine has others to serve
				timer.end(streams[k])
			}
			if cut := out.close(); cut != nil {
				err = cut
			}
		}()
	}
	format.begin(out)
	sum := &outcome{}
	kept := collected{charge: holdsOf(r.Context()).charge}
	for k, stream := range streams {
		events := stream.Events()
		if out != nil {
			if f, ok := format.(progressFormat); ok && a.progress {
				out.progress = func() { f.progress(out, k, newProgress(stream, len(a.queries[k].Prompt), started)) }
			}
			events = out.events(stream)
		}
		for e, err := range a.events(k, events) {
			if err == nil && (out == nil || a.collects) {
				err = kept.add(&e)
			}
			switch {
			case err != nil && out == nil:
				return a.error(err)
			case err != nil:
				format.fail(out, a.error(err))
				return nil
			}
			if !e.echo {
				timers[k].event()
			}
			format.add(out, &e)
		}
		if out != nil && out.err != nil {
			return out.err
		}
		timers[k].end(stream)
		sum.add(stream, &a.queries[k], a.document, a.loss)
	}
	return format.end(w, out, sum)
}

// collected counts the memory of what is collected of an answer.
type collected struct {
	charge *charge
	bytes  int64 // not yet counted
}

// Bytes that a piece of an answer takes until it is written, and each of the
// log-probabilities in it: as values, and as JSON.
const (
	pieceCost = 128
	probCost  = 512
)

// add counts an event, in large steps, and refuses what there is no memory for.
func (c *collected) add(e *answerEvent) error {
	c.bytes += pieceCost + 4*int64(len(e.text)+len(e.reasoning))
	for _, d := range e.calls {
		c.bytes += 4 * int64(len(d.Arguments))
	}
	if e.token.LogProb != 0 || len(e.token.Top) > 0 {
		c.bytes += int64(1+len(e.token.Top)) * probCost
	}
	const step = 64 << 10
	if c.bytes < step {
		return nil
	}
	n := c.bytes
	c.bytes = 0
	return c.charge.take(n, forAnswers)
}

// add adds the tokens and the cache of a prompt whose answers are complete.
func (o *outcome) add(stream *engine.Stream, q *engine.Request, document string, loss *estimatedLoss) {
	u := stream.Usage()
	o.tokens.Prompt += u.Prompt
	o.tokens.Cached += u.Cached
	o.tokens.Evicted += u.Evicted
	o.tokens.Generated += u.Generated
	o.tokens.Reasoning += u.Reasoning
	o.tokens.Drafted += u.Drafted
	o.tokens.Accepted += u.Accepted
	o.tokens.Queued += u.Queued
	o.tokens.Prefill += u.Prefill
	o.tokens.Decoding += u.Decoding
	o.usage.add(u)
	if q.Policy == nil && q.Draft == nil {
		return
	}
	if o.cache == nil {
		o.cache = &cacheUse{Document: document, Loss: loss}
	}
	o.cache.add(stream.Cache(), q.Policy)
}
