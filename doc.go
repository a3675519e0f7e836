// Package lukv is the root of a transformer runtime in pure Go that shrinks the
// key/value cache. It holds no code; the packages below it do:
//
//   - model runs checkpoints of Llama and its many relatives. It is the entry point
//     for programs that embed a language model: open a checkpoint, make a session,
//     prefill a context (which compresses its cache if asked to), generate.
//     model/builtin is a small embedded model, model/calibration measures profiles.
//   - lukv decides what stays in a cache: metrics rank entries, allocators divide
//     the budget among heads, profiles hold what LU-KV has measured. Plain arrays go
//     in, budgets and kept sets come out.
//   - kvcache is the ragged cache itself: pages, per-head lengths, eviction, fork,
//     save and load.
//   - serve answers over HTTP, in the form of the OpenAI API.
//   - engine answers many requests on one model as one batch; dialog turns messages
//     into tokens and back.
//   - dialog/structured makes answers follow a JSON Schema, a Go type or a regular expression,
//     and tells calls of tools and reasoning from text.
//   - tokenizer reads the three published vocabulary formats; tokenizer/chat renders
//     chat templates.
//   - eval asks questions about compressed contexts and scores the answers.
//   - hub finds and downloads checkpoints.
//   - kernels defines the operations and their arithmetic contract and implements them
//     for the processor; kernels/vulkan, imported blank, brings accelerators.
//   - safetensors and tensor are the file format and the element types.
//
// A session with four fifths of its context's cache removed:
//
//	m, err := model.Open(ctx, "path/to/checkpoint")
//	s, err := m.NewSession(model.SessionOptions{Compression: &lukv.Policy{Ratio: 0.8}})
//	err = s.Prefill(ctx, contextTokens)  // compressed, layer by layer
//	err = s.Prefill(ctx, questionTokens) // appended; never evicted
//	for token, err := range s.Generate(ctx, model.Sampling{MaxTokens: 200}) { … }
//
// The command is cmd/lukv, and package command for programs with metrics of their own;
// "go run ./cmd/lukv demo" shows it on the embedded model.
// The documentation is in the folder docs: promises (what every part guarantees, and
// the tests that hold it to that), architecture, specification, formats, security and
// glossary.
package lukv
