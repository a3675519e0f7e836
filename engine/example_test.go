package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"slices"
	"strings"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer/chat"
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

// An answer as a Go value: however small the model is, it writes a Place.
func ExampleAsk() {
	ctx := context.Background()
	m, err := builtin.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	tok, err := m.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.New(m, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	type Place struct {
		Town string `json:"town" jsonschema:"enum=Oakham,enum=Ashford,enum=Marlow"`
	}
	head, tail := builtin.Prompt(document, "In which town does Rupert work?", "")
	place, err := engine.Ask[Place](ctx, e, engine.Request{Prompt: append(head.Encode(tok), tail.Encode(tok)...)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(slices.Contains([]string{"Oakham", "Ashford", "Marlow"}, place.Town))
	// Output: true
}

// Calls of tools, which stream as they are written.
func ExampleRequest_tools() {
	ctx := context.Background()
	m, err := builtin.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	format, err := dialog.NewFormat(m, time.Now())
	if err != nil {
		log.Fatal(err)
	}
	syntax, err := structured.NewSyntax(m, format)
	if err != nil {
		log.Fatal(err)
	}
	type arguments struct {
		Unit string `json:"unit" jsonschema:"enum=km,enum=miles"`
	}
	schema, err := structured.SchemaOf[arguments]()
	if err != nil {
		log.Fatal(err)
	}
	tools, err := syntax.Tools([]structured.Function{{Name: "distance", Description: "measures how far it is", Parameters: schema}}, structured.ToolOptions{Required: true})
	if err != nil {
		log.Fatal(err)
	}
	in := chat.Input{Messages: []*chat.Object{chat.NewMessage("user", "How far is it in km?")}, AddGenerationPrompt: true}
	if err := tools.Show(&in); err != nil {
		log.Fatal(err)
	}
	prompt, err := format.Tokens(ctx, in, m.Config().MaxPositions)
	if err != nil {
		log.Fatal(err)
	}
	reasoning, err := syntax.Reasoning(prompt, -1) // nil: this model does not reason
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.New(m, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	stream, err := e.Submit(ctx, engine.Request{Prompt: prompt, Tools: tools, Reasoning: reasoning})
	if err != nil {
		log.Fatal(err)
	}
	var text strings.Builder
	for event, err := range stream.Events() {
		if err != nil {
			log.Fatal(err)
		}
		for _, call := range event.Calls { // a piece of one
			fmt.Print(call.Name)
			text.WriteString(call.Arguments)
		}
	}
	var a arguments
	if err := json.Unmarshal([]byte(text.String()), &a); err != nil {
		log.Fatal(err)
	}
	fmt.Printf(" in %s\n", a.Unit)
	// Output: distance in miles
}
