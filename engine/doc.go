// Package engine answers many requests to one model at once. It owns their sessions and
// runs them as one batch, so that the weights are read once per step for all of them. A
// service built on it needs no scheduling, sampling or memory accounting of its own.
//
//	e, err := engine.New(m, engine.Options{MaxBytes: 8 << 30})
//	defer e.Close()
//	stream, err := e.Submit(ctx, engine.Request{Prompt: tokens, Sampling: m.DefaultSampling()})
//	for event, err := range stream.Events() {
//		// write(event.Text)
//	}
//
// # Steps
//
// One goroutine works in steps. A step is a pass over the weights in which every
// answer in progress takes its next token and prompts take a chunk. The chunk has as
// many tokens as fit into the time that may pass between two tokens of an answer
// ([Options.Latency]), but at least a few, so that prompts never starve. A prompt that a
// policy compresses is computed layer by layer and advances between the passes, under
// the same limit, as is what recomputes an answer that lost its cache (see below). Tokens
// are drawn for all answers of a step in parallel.
//
// # Lookup decoding
//
// With [Options.Lookup], a step computes not only the next token of an answer but also
// drafts of those after it: the tokens that followed an earlier occurrence of its last
// ones. Drafts that are then drawn cost no further step, so an answer that quotes gets
// several tokens in one.
//
// # Memory
//
// The most memory that a request can take follows from its lengths and its policy (see
// model.CacheNeed). It is admitted when that much fits into [Options.MaxBytes] alongside
// all others. A request that can never fit is refused at once with the numbers
// ([TooLargeError]); one that does not fit yet waits in a queue that is bounded and fair
// between clients. An answer without a bound on its length takes room as it grows; if
// there is none left, the last request admitted gives up its cache and is recomputed
// later.
//
// # Prefixes
//
// Sessions of finished prompts are kept as long as there is room and serve requests that
// begin with the same tokens and have the same policy ([Options.PrefixCacheBytes];
// [Options.OnPrefix] is told of each). With [Options.Store] they are also kept in files,
// for the next engine on the same model; the prompt of a request with
// [Request.PromptOnly] is on disk when the request ends. Files have checksums and appear
// only when they are complete; a damaged one is removed and recomputed.
//
// # The promise
//
// An answer is a function of request, model and seed alone, to the bit: it does
// not depend on neighbours, order of arrival, preemption or what was kept. This
// follows from the model's promise that the bits of logits do not depend on how
// tokens are grouped into passes, and from giving every choice its own random stream.
//
// # Concurrency
//
// An Engine may be used by any number of goroutines. A [Stream] belongs to one at a
// time. A slow reader holds up only its own answer. The model must outlive the engine.
// Others may use it too, but their use is not accounted for.
package engine
