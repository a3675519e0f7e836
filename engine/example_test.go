package engine_test

import (
	"context"
	"fmt"
	"log"
	"slices"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

const document = `Edgar works as a carpenter in Oakham. The old clock struck five, and everyone went home.
Rupert works as a baker in Ashford. Peter gave the silver telescope to Simon.
There are many ways to be wrong and only a few ways to be right. Judith returned to Westmere with a glad face.
Stella cooked apples for the whole family on Tuesday. The paper envelope stands in the post office.
In August, the river near Marlow was high and fast. In the end, people do what they enjoy and call it a plan.
A good question is often more useful than a quick answer. Hugo bought rice at the market and carried it home.`

// Two clients ask about a document, which is read and compressed once. A service, with
// documents and streams over HTTP, is examples/service.
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
	e, err := engine.New(m, engine.Options{MaxBytes: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	head, tail := builtin.Prompt(document, "In which town does Rupert work?", "Rupert works in")
	shared := head.Encode(tok) // is compressed, and the same for every question
	for _, client := range []string{"the first", "the second"} {
		stream, err := e.Submit(ctx, engine.Request{
			Client:   client,
			Prompt:   slices.Concat(shared, tail.Encode(tok)),
			Context:  len(shared),
			Policy:   &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5},
			Sampling: model.Sampling{MaxTokens: 32},
		})
		if err != nil { // the queue is full, or the request can never fit
			log.Fatal(err)
		}
		fmt.Printf("%s: Rupert works in", client)
		for event, err := range stream.Events() {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(event.Text)
		}
		fmt.Printf(" (%d of %d tokens had been read)\n", stream.Usage().Cached, stream.Usage().Prompt)
	}
	// Output:
	// the first: Rupert works in Ashford. (0 of 149 tokens had been read)
	// the second: Rupert works in Ashford. (149 of 149 tokens had been read)
}
