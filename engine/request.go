package engine

import (
	"errors"
	"fmt"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// Request is a prompt to be continued.
type Request struct {
	// ID names the request in errors; empty: the engine numbers it.
	ID string

	// Client names whose request it is: in the queue, clients take turns.
	Client string

	// Prompt is the text so far, at least one token.
	Prompt []int32

	// Policy, if not nil, compresses the first Context tokens of the prompt before
	// the others are read; 0 < Context <= len(Prompt). What comes after them is
	// not evicted, unless the policy compresses while decoding.
	//
	// Of these the first Protected, such as a system prompt, stay as they are, and the
	// policy applies to the tokens between: see model.Session.PrefillCompressed, which
	// says which policies allow this. Protected < Context.
	Policy    *lukv.Policy
	Context   int
	Protected int

	// Sampling says how tokens are drawn. MaxTokens 0 is the rest of the model's
	// context. YieldEnd hands out the token that ends the answer.
	Sampling model.Sampling

	// Choices is the number of answers, each with a random stream of its own;
	// default 1, at most 128. The prompt is read once.
	Choices int

	// Stop lists texts that end an answer; they are part of it only with KeepStop.
	Stop     []string
	KeepStop bool

	// ShowSpecial leaves special tokens in the text of answers.
	ShowSpecial bool

	// Mask, if not nil, is asked before each token of a choice which tokens may be
	// drawn (see model.Sampler.Next), given the answer's tokens so far. It is called
	// from one goroutine at a time for each choice. io.EOF ends the choice, as a token
	// that ends answers would; another error ends the request.
	Mask func(choice int, answer []int32) ([]uint64, error)

	// Echo hands out the tokens of the prompt from the first after the compressed
	// context on, each with what Sampling asks of log-probabilities, before those of
	// the answer. The first has no log-probability, as nothing precedes it.
	Echo bool

	// PromptOnly reads the prompt, keeps it and generates nothing.
	PromptOnly bool

	// Inspect, if not nil, is called once with the session that has read the prompt,
	// before the first token is drawn. All answers wait for it: it looks at the cache,
	// changes nothing and keeps nothing.
	Inspect func(*model.Session)

	// Salt separates what is kept of this request's prompt from that of requests
	// with another salt: nothing is shared between them, so that nobody learns
	// from the timing of an answer what others asked.
	Salt string
}

// maxChoices bounds Request.Choices.
const maxChoices = 128

// Errors that callers branch on.
var (
	// ErrClosed says that the engine is closed or draining.
	ErrClosed = errors.New("engine is closed")

	// ErrQueueFull says that too many requests are waiting already. Try again
	// later.
	ErrQueueFull = errors.New("queue is full")
)

// TooLargeError says that a request cannot be served, however long it waits.
type TooLargeError struct {
	Needed, Limit int64 // bytes of cache

	// Ratio is the share of the context that has to be removed for the request
	// to fit, with the request's own metric and allocator; 0 if none is enough.
	Ratio float64
}

func (e *TooLargeError) Error() string {
	text := fmt.Sprintf("needs up to %d bytes of cache, the limit is %d", e.Needed, e.Limit)
	if e.Ratio > 0 {
		text += fmt.Sprintf("; with a compression ratio of %.2f it would fit", e.Ratio)
	}
	return text
}

// check reports the first thing in a request that makes no sense, and writes
// defaults out.
func (e *Engine) check(r *Request) error {
	c := e.m.Config()
	if r.Choices == 0 {
		r.Choices = 1
	}
	switch {
	case len(r.Prompt) == 0:
		return errors.New("the prompt is empty")
	case r.Choices < 0 || r.Choices > maxChoices:
		return fmt.Errorf("%d choices, want 1 to %d", r.Choices, maxChoices)
	case r.Policy == nil && r.Context != 0:
		return fmt.Errorf("a context of %d tokens without a policy to compress it", r.Context)
	case r.Protected != 0 && (r.Protected < 0 || r.Protected >= r.Context):
		return fmt.Errorf("%d protected tokens, want 0 or more and less than the %d of the context", r.Protected, r.Context)
	case r.Policy != nil && (r.Context < 1 || r.Context > len(r.Prompt)):
		return fmt.Errorf("a context of %d tokens, want 1 to %d, those of the prompt", r.Context, len(r.Prompt))
	case len(r.Prompt) > e.o.MaxTokens || r.Sampling.MaxTokens > e.o.MaxTokens-len(r.Prompt):
		return fmt.Errorf("%w: %d tokens of prompt and %d of answer, there is room for %d",
			model.ErrContextFull, len(r.Prompt), r.Sampling.MaxTokens, e.o.MaxTokens)
	}
	for i, t := range r.Prompt {
		if t < 0 || int(t) >= c.Vocab {
			return fmt.Errorf("token %d of the prompt is %d, want 0 to %d", i, t, c.Vocab-1)
		}
	}
	for id := range r.Sampling.LogitBias {
		if int(id) >= c.Vocab {
			return fmt.Errorf("a logit bias of token %d, want 0 to %d", id, c.Vocab-1)
		}
	}
	if e.tok == nil && len(r.Stop) > 0 {
		return errors.New("stop texts, but the model has no tokenizer")
	}
	if err := dialog.CheckStops(r.Stop); err != nil {
		return fmt.Errorf("stop text: %w", err)
	}
	return r.Sampling.Validate()
}

// answerTokens is the most that an answer may have.
func (e *Engine) answerTokens(r *Request) int {
	if n := r.Sampling.MaxTokens; n > 0 {
		return n
	}
	return e.o.MaxTokens - len(r.Prompt)
}
