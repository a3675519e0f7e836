package engine

import (
	"errors"
	"fmt"

	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// Request is a prompt to be continued.
type Request struct {
	// ID names the request in errors; if empty, the engine numbers it.
	ID string

	// Client names the client whose request it is; clients take turns in the queue and share
	// the steps.
	Client string

	// Prompt is the text so far, at least one token. The engine keeps a copy.
	Prompt []int32

	// Policy, if not nil, compresses the first Context tokens of the prompt before the
	// prefill of the others; 0 < Context <= len(Prompt). Entries of later tokens are not
	// evicted, unless the policy compresses while decoding.
	//
	// The first Protected tokens of the context, such as a system prompt, are not
	// compressed, and the policy applies to those after them: see
	// model.Session.PrefillCompressed, which says which policies allow this. Protected
	// < Context.
	Policy    *lukv.Policy
	Context   int
	Protected int

	// Draft, if not nil, lets a compressed copy of the cache draft the answers, which do not
	// change by a bit: see model.Session.DraftCompressed. The cache itself stays whole, so
	// Policy is nil or one that compresses nothing.
	Draft *Draft

	// Sampling says how tokens are drawn. MaxTokens 0 means
	// Options.DefaultAnswer; Options.MaxAnswer bounds it. YieldEnd includes the token that ends the answer in the
	// events.
	Sampling model.Sampling

	// Choices is the number of answers, each with its own random stream; default 1,
	// at most 128. They share one prefill.
	Choices int

	// Stop lists texts that end an answer, at most 64 KiB together; they are part of it only
	// with KeepStop.
	Stop     []string
	KeepStop bool

	// ShowSpecial includes special tokens in the text of answers.
	ShowSpecial bool

	// Continues says that answers go on from the text of the prompt: a blank that a
	// vocabulary in the style of SentencePiece has before their first word is kept, as it is
	// with a Mask, which says what texts are allowed.
	Continues bool

	// Format is the set of texts that an answer may be: a JSON Schema, a Go type, a regular
	// expression, or some texts; by default any. Tools, if not nil, are the functions that it
	// may call, which the prompt must show (see structured.Tools.Show). Reasoning, if not nil,
	// says how answers begin; the format and the calls come after it. Each event then says
	// which part of the answer it belongs to.
	Format    structured.Format
	Tools     *structured.Tools
	Reasoning *structured.Reasoning

	// Mask, if not nil, is asked before each token of a choice which tokens may be
	// drawn (see sampling.Sampler.Next), given the answer's tokens so far. It must be a
	// function of these alone. It is called from one goroutine at a time, beside the
	// computation of other answers, which do not wait for it; ctx ends with the request.
	// io.EOF ends the choice, as a token that ends answers would; any other error ends the
	// request. With a format, tools or reasoning, tokens must be allowed by both.
	Mask structured.Mask

	// Echo returns the tokens of the prompt that follow the compressed context, before
	// those of the answer, each with the log-probabilities that Sampling asks for. The
	// first of them has none.
	Echo bool

	// PromptOnly prefills the prompt, adds it to the prefix cache and generates nothing.
	PromptOnly bool

	// ProbeLoss keeps the first readings of the prompt for Inspect, see
	// model.SessionOptions: logits are computed for all of its tokens that are not
	// in the prefix cache. Twice the room is reserved, so that a fork can be compressed
	// while the request runs.
	ProbeLoss bool

	// Hidden, if not nil, gets the hidden state after the last norm of every token i of the
	// prompt, in order, valid during the call (see [Engine.Embed]). It needs PromptOnly and no
	// policy; the prefix cache is not used. After a request has lost its cache to others it
	// begins again with token 0. The answers of all requests wait for it.
	Hidden func(i int, state []float32)

	// Inspect, if not nil, is called once with the session after the prefill, before the
	// first token is drawn. The answers of all requests wait for it. It may look at the
	// cache, but must not change or retain anything.
	Inspect func(*model.Session)

	// Salt separates this request's entries of the prefix cache from those of requests
	// with another salt, so that nobody learns from the timing of an answer which prompts
	// others have sent.
	Salt string
}

// maxChoices bounds Request.Choices.
const maxChoices = 128

// Errors that callers branch on.
var (
	// ErrClosed says that the engine is closed or draining.
	ErrClosed = errors.New("engine is closed")

	// ErrQueueFull says that too many requests are already waiting. Try again
	// later.
	ErrQueueFull = errors.New("queue is full")
)

// TooLargeError says that a request cannot be served, however long it waits.
type TooLargeError struct {
	Needed, Limit int64 // bytes of cache

	// Ratio is the smallest compression ratio, in hundredths, at which the request
	// would fit, with its own metric and allocator; 0 if no ratio is enough.
	Ratio float64
}

func (e *TooLargeError) Error() string {
	text := fmt.Sprintf("needs up to %d bytes of cache, the limit is %d", e.Needed, e.Limit)
	if e.Ratio > 0 {
		text += fmt.Sprintf("; with a compression ratio of %.2f it would fit", e.Ratio)
	}
	return text
}

// check reports the first thing wrong with a request, and fills in defaults.
func (e *Engine) check(r *Request) error {
	c := e.m.Config()
	if r.Choices == 0 {
		r.Choices = 1
	}
	switch {
	case len(r.Prompt) == 0:
		return errors.New("the prompt is empty")
	case r.Choices < 0 || r.Choices > maxChoices:
		return fmt.Errorf("%d choices, expected 1 to %d", r.Choices, maxChoices)
	case r.Policy == nil && r.Context != 0:
		return fmt.Errorf("a context of %d tokens without a policy to compress it", r.Context)
	case r.Protected != 0 && (r.Protected < 0 || r.Protected >= r.Context):
		return fmt.Errorf("%d protected tokens, expected 0 or more and less than the %d of the context", r.Protected, r.Context)
	case r.Policy != nil && (r.Context < 1 || r.Context > len(r.Prompt)):
		return fmt.Errorf("a context of %d tokens, expected 1 to %d, those of the prompt", r.Context, len(r.Prompt))
	case r.Hidden != nil && (!r.PromptOnly || r.Policy != nil || r.Echo):
		return errors.New("hidden states need PromptOnly, and neither a policy nor an echo")
	case len(r.Prompt) > e.o.MaxTokens || r.Sampling.MaxTokens > e.o.MaxTokens-len(r.Prompt):
		return fmt.Errorf("%w: %d tokens of prompt and %d of answer, there is room for %d",
			model.ErrContextFull, len(r.Prompt), r.Sampling.MaxTokens, e.o.MaxTokens)
	}
	for i, t := range r.Prompt {
		if t < 0 || int(t) >= c.Vocab {
			return fmt.Errorf("token %d of the prompt is %d, expected 0 to %d", i, t, c.Vocab-1)
		}
	}
	for id := range r.Sampling.LogitBias {
		if int(id) >= c.Vocab {
			return fmt.Errorf("a logit bias of token %d, expected 0 to %d", id, c.Vocab-1)
		}
	}
	if e.tok == nil && len(r.Stop) > 0 {
		return errors.New("stop texts, but the model has no tokenizer")
	}
	if err := r.Sampling.Validate(); err != nil {
		return err
	}
	return e.checkDraft(r)
}

// answerTokens returns the most tokens that an answer may have.
func (e *Engine) answerTokens(r *Request) int {
	if r.PromptOnly {
		return 0
	}
	n := r.Sampling.MaxTokens
	if n == 0 {
		if n = e.o.MaxTokens - len(r.Prompt); e.o.DefaultAnswer > 0 {
			n = min(n, e.o.DefaultAnswer)
		}
	}
	if e.o.MaxAnswer > 0 {
		n = min(n, e.o.MaxAnswer)
	}
	return n
}
