package model

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/lukv/lukv/model/drafting"
	"github.com/lukv/lukv/model/sampling"
)

// Sampling says how tokens are chosen and when generation ends; see [sampling.Options].
type Sampling = sampling.Options

// Token is one generated token.
type Token = sampling.Token

// FinishReason says why a generation ended.
type FinishReason string

const (
	FinishNone   FinishReason = ""       // no generation has ended yet
	FinishStop   FinishReason = "stop"   // an end-of-sequence or stop token
	FinishLength FinishReason = "length" // MaxTokens or the end of the context
	FinishBreak  FinishReason = "break"  // the caller stopped iterating
	FinishError  FinishReason = "error"  // the last pair carried an error
)

// FinishReason returns why the session's last generation ended.
func (s *Session) FinishReason() FinishReason { return s.finish }

// Generate returns the tokens that continue the session. Each is chosen from
// the logits after its predecessor; the session must have logits (see Logits).
// The token that ends the sequence is not returned unless Sampling.YieldEnd asks
// for it.
//
// The last token returned is not in the cache yet; the next call of Generate,
// Prefill or Append feeds it, so that a conversation continues seamlessly. An
// error comes with the last pair; after a cancelled context the session is left
// at its last completed token.
//
// Generation allocates nothing per token in steady state.
func (s *Session) Generate(ctx context.Context, o Sampling) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		if err := s.generate(ctx, o, yield); err != nil {
			yield(Token{}, fmt.Errorf("generate: %w", err))
		}
	}
}

func (s *Session) generate(ctx context.Context, o Sampling, yield func(Token, error) bool) error {
	if err := s.startGenerating(ctx, &o); err != nil {
		return err
	}
	defer func() { s.quiet()() }() // drops drafts
	for n := 0; ; n++ {
		// Between tokens the session is free: the caller may use it, or close it, while
		// handling a token.
		t, over, err := s.generateOne(ctx, &o, n)
		switch {
		case err != nil:
			return err
		case over != FinishNone:
			if s.finish = over; over == FinishStop && o.YieldEnd {
				yield(t, nil)
			}
			return nil
		case !yield(t, nil):
			s.finish = FinishBreak
			return nil
		}
	}
}

// startGenerating prepares a generation.
func (s *Session) startGenerating(ctx context.Context, o *Sampling) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.finish = FinishError
	if err := s.ready(); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	if err := s.feedPending(ctx); err != nil {
		return err
	}
	if !s.hasLogits {
		return ErrNoLogits
	}
	if s.sampler == nil {
		var err error
		if s.sampler, err = s.m.NewSampler(*o, 0); err != nil {
			return err
		}
	} else if err := s.sampler.Reset(*o, 0); err != nil {
		return err
	}
	s.sampler.Start(s.tokens)
	s.generated = s.pos // nothing is pending
	return nil
}

// generateOne returns the n-th token of a generation, or why it is over, with the
// token that ended it if one did.
func (s *Session) generateOne(ctx context.Context, o *Sampling, n int) (t Token, over FinishReason, err error) {
	if err := s.enterAhead(); err != nil {
		return t, over, err
	}
	defer s.leave()
	if err := s.ready(); err != nil {
		return t, over, err
	}
	if s.pos+len(s.pending) != s.generated {
		return t, over, fmt.Errorf("%w: the session was changed while it generated", ErrBusy)
	}
	if o.MaxTokens > 0 && n == o.MaxTokens || s.generated >= s.opts.MaxTokens {
		return t, FinishLength, nil
	}
	if err := s.feedPending(ctx); err != nil {
		return t, over, err
	}
	id, err := s.sampler.Next(s.logits, nil)
	if err != nil {
		return t, over, err
	}
	s.sampler.Accept(id)
	if s.m.Ends(id, o) {
		over = FinishStop
		if !o.YieldEnd {
			return t, over, nil
		}
	} else {
		s.pending = append(s.pending, id)
		s.generated++
	}
	return s.sampler.Describe(s.logits, id), over, nil
}

// Ends reports whether a token ends a generation with options o.
func (m *Model) Ends(id int32, o *Sampling) bool {
	return !o.IgnoreEOS && slices.Contains(m.eos, id) || slices.Contains(o.Stop, id)
}

// feedPending feeds the token that was generated last, or follows it if it was a draft.
func (s *Session) feedPending(ctx context.Context) error {
	if len(s.pending) == 0 {
		return nil
	}
	if s.follow(s.pending[0]) {
		return nil
	}
	return s.append(ctx, s.pending[0], drafting.MostDrafts)
}

// NewSampler returns the sampler for answer number choice to a request.
func (m *Model) NewSampler(o Sampling, choice int) (*sampling.Sampler, error) {
	return sampling.New(m.net.CPU, m.cfg.Vocab, o, choice)
}

// DefaultSampling returns the settings that the checkpoint recommends in its
// generation_config.json: greedy where it does not ask for sampling.
func (m *Model) DefaultSampling() Sampling {
	g := m.cfg.Generation
	s := Sampling{RepetitionPenalty: g.RepetitionPenalty, MaxTokens: g.MaxNewTokens}
	if g.DoSample {
		s.Temperature, s.TopK, s.TopP, s.MinP = g.Temperature, g.TopK, g.TopP, g.MinP
	}
	return s
}
