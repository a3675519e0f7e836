package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

// Lookup is the gain of lookup decoding on a set of prompts. Each is answered with and
// without it, in alternating order, and the answers are the same.
type Lookup struct {
	Model     string `json:"model"`
	Weights   string `json:"weights"` // element type
	Threads   int    `json:"threads"`
	Precision string `json:"precision"`
	CPU       string `json:"cpu"`
	Device    string `json:"device,omitempty"` // name of the accelerator
	Set       string `json:"set"`              // LookupQuote, LookupAnswer or LookupFree
	Items     int    `json:"items"`

	// Faster is the median over the items of the ratio of the speeds with and without
	// lookup, Low and High are its quartiles; Speed and Plain are the median speeds with
	// and without, in tokens per second.
	Faster float64 `json:"faster"`
	Low    float64 `json:"low_quartile"`
	High   float64 `json:"high_quartile"`
	Speed  float64 `json:"tokens_per_second"`
	Plain  float64 `json:"plain_tokens_per_second"`

	Drafted  float64 `json:"drafted_per_token"`
	Accepted float64 `json:"accepted_per_token"`
}

// Sets of prompts. Their documents are the contexts of the embedded model's samples, each
// of 256 to 2,048 of its tokens.
const (
	LookupQuote  = "quote"  // a document and the beginning of a passage from it, greedy, 64 tokens
	LookupAnswer = "answer" // the embedded model's own questions, greedy, up to 64 tokens
	LookupFree   = "free"   // a document, drawn at a temperature of 4, where nothing repeats
)

// lookupTokens is the length of an answer, lookupBegin the number of tokens of a passage
// that a prompt of LookupQuote ends with.
const lookupTokens, lookupBegin = 64, 24

// lookup measures all sets on a checkpoint.
func (s *settings) lookup(ctx context.Context, name string) (any, error) {
	m, tok, release, err := s.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer release()
	sets := []string{LookupQuote, LookupFree}
	if name == builtin.Name {
		sets = []string{LookupQuote, LookupAnswer, LookupFree}
	}
	var out []Lookup
	for _, set := range sets {
		x := Lookup{
			Model: name, Weights: m.Config().Type.String(), Threads: m.Threads(), Precision: string(m.Precision()), CPU: m.CPU().String(),
			Set: set, Items: s.items,
		}
		if dev := m.Device(); dev != nil {
			x.Device = dev.Info().Name
		}
		if err := s.lookupSet(ctx, m, tok, &x); err != nil {
			return nil, fmt.Errorf("lookup decoding of %s, set %s: %w", name, set, err)
		}
		out = append(out, x)
	}
	return out, nil
}

func (s *settings) lookupSet(ctx context.Context, m *model.Model, tok *tokenizer.Tokenizer, x *Lookup) error {
	samples := builtin.Samples()
	var faster, speeds, plain []float64
	var drafted, accepted, tokens int
	for i := range x.Items {
		s.progress(fmt.Sprintf("set %s, item %d of %d", x.Set, i+1, x.Items))
		// A stride, since neighbouring samples are of the same task.
		prompt, o := lookupItem(tok, x.Model, x.Set, samples[i*37%len(samples)])
		o.Seed = uint64(i)
		var with, without answer
		for turn := range 2 {
			lookup := (i+turn)%2 == 0
			a, err := answerOf(ctx, m, prompt, o, lookup)
			if err != nil {
				return err
			}
			if lookup {
				with = a
			} else {
				without = a
			}
		}
		if !slices.Equal(with.tokens, without.tokens) {
			return fmt.Errorf("item %d: the answer differs from that without: found %v, expected %v", i, with.tokens, without.tokens)
		}
		n := float64(len(with.tokens))
		speeds, plain = append(speeds, n/with.seconds), append(plain, n/without.seconds)
		faster = append(faster, without.seconds/with.seconds)
		drafted, accepted, tokens = drafted+with.drafted, accepted+with.accepted, tokens+len(with.tokens)
	}
	slices.Sort(faster)
	x.Faster, x.Low, x.High = bench.Median(faster), faster[len(faster)/4], faster[len(faster)-1-len(faster)/4]
	x.Speed, x.Plain = bench.Median(speeds), bench.Median(plain)
	x.Drafted, x.Accepted = float64(drafted)/float64(tokens), float64(accepted)/float64(tokens)
	return nil
}

// lookupItem returns the prompt of an item, framed for the embedded model or as plain
// text for others, and how to sample its answer.
func lookupItem(tok *tokenizer.Tokenizer, name, set string, s builtin.Sample) ([]int32, model.Sampling) {
	o := model.Sampling{MaxTokens: lookupTokens, IgnoreEOS: true}
	text, plain := s.Context, tokenizer.EncodeOptions{AddSpecial: true}
	if name == builtin.Name {
		text, plain = "<s><|user|>"+text, tokenizer.EncodeOptions{}
	}
	switch set {
	case LookupAnswer:
		o.IgnoreEOS = false
		return tok.Encode(text+"\n\n"+s.Question+"<|assistant|>"+s.AnswerPrefix, tokenizer.EncodeOptions{}), o
	case LookupFree:
		o.Temperature = 4
		return tok.Encode(text, plain), o
	}
	head := tok.Encode(text, plain)
	begin := len(head) / 3
	return slices.Concat(head, head[begin:min(len(head), begin+lookupBegin)]), o
}

// answer holds the tokens that a session generated and the time that it took.
type answer struct {
	tokens            []int32
	seconds           float64
	drafted, accepted int
}

func answerOf(ctx context.Context, m *model.Model, prompt []int32, o model.Sampling, lookup bool) (a answer, err error) {
	s, err := m.NewSession(model.SessionOptions{Lookup: lookup})
	if err != nil {
		return a, err
	}
	defer s.Close()
	if err := s.Prefill(ctx, prompt); err != nil {
		return a, err
	}
	begin := time.Now()
	for t, err := range s.Generate(ctx, o) {
		if err != nil {
			return a, err
		}
		a.tokens = append(a.tokens, t.ID)
	}
	a.seconds = time.Since(begin).Seconds()
	st := s.Stats()
	a.drafted, a.accepted = st.Drafted, st.Accepted
	return a, nil
}
