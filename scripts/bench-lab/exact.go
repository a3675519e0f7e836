package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

// Exact says how often a compressed cache drafts right. The model continues after questions
// about the contexts of the embedded model's samples, each pass verifies up to four drafts
// (fewer before an end), and the answers are those of the whole cache.
type Exact struct {
	Model       string  `json:"model"`
	Metric      string  `json:"metric"` // under uniform budgets
	Ratio       float64 `json:"ratio"`  // removed
	Temperature float64 `json:"temperature"`
	Items       int     `json:"items"`
	Tokens      int     `json:"tokens"`                    // of all answers
	Right       float64 `json:"right"`                     // share of all drafts
	PerPass     float64 `json:"tokens_per_verifying_pass"` // at most five

	drafted, accepted, verified int
}

// exactDrafts is the number of drafts for each pass, exactTokens the most of an answer.
const exactDrafts, exactTokens = 4, 32

// exact measures metrics that need no profile, at several ratios, greedy and sampled.
func (s *settings) exact(ctx context.Context, name string) (any, error) {
	m, tok, release, err := s.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer release()
	var out []Exact
	for _, metric := range []string{"key_distance", "snapkv", "kvzip", "streaming_llm"} {
		for _, ratio := range []float64{0.5, 0.8, 0.9} {
			for _, temperature := range []float64{0, 1} {
				out = append(out, Exact{Model: name, Metric: metric, Ratio: ratio, Temperature: temperature, Items: s.items})
			}
		}
	}
	samples := builtin.Samples()
	for i := range s.items {
		s.progress(fmt.Sprintf("item %d of %d", i+1, s.items))
		head, tail := exactPrompt(tok, name, samples[i*37%len(samples)])
		if err := exactItem(ctx, m, head, tail, uint64(i), out); err != nil {
			return nil, fmt.Errorf("exact answers of %s, item %d: %w", name, i, err)
		}
	}
	for i := range out {
		x := &out[i]
		x.Right, x.PerPass = float64(x.accepted)/float64(x.drafted), 1+float64(x.accepted)/float64(x.verified)
	}
	return out, nil
}

// exactItem answers a question in every setting, from one prefill of its context.
func exactItem(ctx context.Context, m *model.Model, head, tail []int32, seed uint64, settings []Exact) error {
	s, err := m.NewSession(model.SessionOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Prefill(ctx, head); err != nil {
		return err
	}
	for i := range settings {
		x := &settings[i]
		o := model.Sampling{MaxTokens: exactTokens, Temperature: x.Temperature, Seed: seed}
		want, _, err := exactAnswer(ctx, s, tail, o, nil)
		if err != nil {
			return err
		}
		got, st, err := exactAnswer(ctx, s, tail, o, &lukv.Policy{Metric: lukv.MetricConfig{Name: x.Metric}, Ratio: x.Ratio})
		if err != nil {
			return fmt.Errorf("%s, %g removed: %w", x.Metric, x.Ratio, err)
		}
		if !slices.Equal(want, got) {
			return fmt.Errorf("%s, %g removed: the answer differs from that of the whole cache: found %v, expected %v", x.Metric, x.Ratio, got, want)
		}
		x.drafted, x.accepted, x.verified = x.drafted+st.Drafted, x.accepted+st.Accepted, x.verified+st.Verified
		x.Tokens += len(got)
	}
	return nil
}

// exactPrompt returns the tokens of a sample's context, and of what follows it, framed for
// the embedded model or as plain text for others.
func exactPrompt(tok *tokenizer.Tokenizer, name string, s builtin.Sample) (head, tail []int32) {
	if name == builtin.Name {
		return tok.Encode("<s><|user|>"+s.Context, tokenizer.EncodeOptions{}),
			tok.Encode("\n\n"+s.Question+"<|assistant|>"+s.AnswerPrefix, tokenizer.EncodeOptions{})
	}
	return tok.Encode(s.Context, tokenizer.EncodeOptions{AddSpecial: true}),
		tok.Encode("\n\n"+s.Question+"\n\n"+s.AnswerPrefix, tokenizer.EncodeOptions{})
}

// exactAnswer generates an answer on a fork of a session that holds the context, with drafts
// of a cache that a policy compresses unless it is nil.
func exactAnswer(ctx context.Context, of *model.Session, tail []int32, o model.Sampling, policy *lukv.Policy) ([]int32, model.SessionStats, error) {
	s, err := of.Fork()
	if err != nil {
		return nil, model.SessionStats{}, err
	}
	defer s.Close()
	if policy != nil {
		err = s.DraftCompressed(ctx, model.Span{To: of.Len()}, policy, exactDrafts)
	}
	if err == nil {
		err = s.Prefill(ctx, tail)
	}
	if err != nil {
		return nil, model.SessionStats{}, err
	}
	var out []int32
	for t, err := range s.Generate(ctx, o) {
		if err != nil {
			return nil, model.SessionStats{}, err
		}
		out = append(out, t.ID)
	}
	return out, s.Stats(), nil
}
