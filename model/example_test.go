package model_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
	"github.com/lukv/lukv/tokenizer"
)

const document = `Edgar works as a carpenter in Oakham. The old clock struck five, and everyone went home.
Rupert works as a baker in Ashford. Peter gave the silver telescope to Simon.
There are many ways to be wrong and only a few ways to be right. Judith returned to Westmere with a glad face.
Stella cooked apples for the whole family on Tuesday. The paper envelope stands in the post office.
In August, the river near Marlow was high and fast. In the end, people do what they enjoy and call it a plan.
A good question is often more useful than a quick answer. Hugo bought rice at the market and carried it home.`

// Read a document, halve its cache, and ask about it.
func Example() {
	ctx := context.Background()
	m, err := builtin.Open(ctx) // or model.Open(ctx, "path/to/checkpoint")
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	tok, err := m.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	s, err := m.NewSession(model.SessionOptions{
		Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	head, tail := builtin.Prompt(document, "In which town does Rupert work?", "Rupert works in")
	if err := s.Prefill(ctx, head.Encode(tok)); err != nil { // compresses
		log.Fatal(err)
	}
	fmt.Printf("removed %.0f %% of the cache\n", 100*s.Stats().Ratio)
	if err := s.Prefill(ctx, tail.Encode(tok)); err != nil {
		log.Fatal(err)
	}
	answer := tok.NewDecoder(true)
	for t, err := range s.Generate(ctx, model.Sampling{MaxTokens: 32}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(answer.Write(t.ID))
	}
	fmt.Println(answer.Flush())
	// Output:
	// removed 50 % of the cache
	//  Ashford.
}

// Streaming ends when the caller stops iterating or the context is done; the
// session can be used again in both cases.
func ExampleSession_Generate() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m, err := builtin.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	tok, err := m.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	s, err := m.NewSession(model.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if err := s.Prefill(ctx, tok.Encode("<s><|user|>"+document, tokenizer.EncodeOptions{})); err != nil {
		log.Fatal(err)
	}

	n := 0
	for _, err := range s.Generate(ctx, model.Sampling{IgnoreEOS: true}) {
		if errors.Is(err, context.Canceled) {
			fmt.Println("cancelled after", n, "tokens")
			break
		}
		if n++; n == 3 {
			cancel()
		}
	}
	before := s.Len()
	for range s.Generate(context.Background(), model.Sampling{IgnoreEOS: true, MaxTokens: 2}) {
	}
	fmt.Println("usable again:", s.Len() > before)
	// Output:
	// cancelled after 3 tokens
	// usable again: true
}

// Measure a profile, and let it divide the budget between the heads.
func Example_profile() {
	ctx := context.Background()
	m, err := builtin.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	// For ordinary checkpoints, use calibration.Narrative() or texts of your own.
	texts := []calibration.Text{{Context: document, Questions: []calibration.Question{
		{Question: "In which town does Rupert work?", AnswerPrefix: "Rupert works in"},
		{Question: "In which town does Edgar work?", AnswerPrefix: "Edgar works in"},
	}}}
	metric := lukv.MetricConfig{Name: "keydiff"}
	profile, err := calibration.Profile(ctx, m, texts, calibration.ProfileOptions{
		Options: calibration.Options{Prompt: builtin.Prompt},
		Metric:  metric,
	})
	if err != nil {
		log.Fatal(err)
	}

	s, err := m.NewSession(model.SessionOptions{Compression: &lukv.Policy{
		Metric: metric, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Profile: profile, Ratio: 0.5,
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	tok, err := m.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	head, _ := builtin.Prompt(document, "", "")
	if err := s.Prefill(ctx, head.Encode(tok)); err != nil {
		log.Fatal(err)
	}
	st := s.Stats()
	fmt.Printf("%d questions measured, %.0f %% removed, heads differ: %t\n", profile.Pairs, 100*st.Ratio,
		st.Layers[0].Entries[0] != st.Layers[1].Entries[0])
	// Output: 2 questions measured, 50 % removed, heads differ: true
}
