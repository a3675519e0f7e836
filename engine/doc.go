// Package engine decodes many requests to one model at once. It owns their sessions and
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
// One goroutine works in steps. A step is a pass over the weights in which every answer in
// progress takes its next token and prompts take a chunk. The chunk has as many tokens as
// fit into the time that may pass between two tokens of an answer ([Options.Latency]), but
// at least a few, so that prompts never starve; without answers it takes a second. While a long prompt is read, some passes
// are for answers alone. A prompt that a policy compresses is computed layer by layer and
// advances between the passes, under the same limit, as does the recomputation of an answer
// that lost its cache (see below). Tokens are drawn for all answers of a step in parallel.
//
// Clients ([Request.Client]) share the steps: where one with all answers would take half as
// long again as one with a single answer, clients with many take turns among them, so that
// those with few are not slowed down; and the prompts of a client take at most half of the
// time while others decode.
//
// Masks ([Request.Mask]) are computed beside the steps: a goroutine of the request computes
// the mask for the next token during the pass for the last one. If it takes longer than the
// pass, only the answers of this request wait for it.
//
// # Structured output
//
// [Request.Format] makes answers follow a JSON Schema, a Go type, a regular expression or one
// of some texts, and [Ask] decodes an answer into a type. With [Request.Tools] and
// [Request.Reasoning], events tell calls of tools and reasoning from text. See package
// dialog/structured.
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
// The most cache that a request can take follows from its lengths and its policy (see
// model.CacheEstimate). It is admitted when that much fits into [Options.MaxBytes] alongside
// all others. A request that can never fit is refused at once with the numbers
// ([TooLargeError]); one that does not fit yet waits in a queue that is bounded and fair
// between clients. An answer without a bound on its length takes room as it grows; if none
// is left, the last request admitted gives up its cache and is recomputed later. A request
// whose events are read more slowly than they are computed yields its places to those who
// wait for them, and gives up its cache to those who wait for bytes.
//
// The other memory of requests (prompts, answers, logits, samplers, unread events) has a
// bound of its own ([Options.Requests], [MemoryError]), which is checked by Submit.
//
// # Prefixes
//
// Sessions stay in the prefix cache after their prefill as long as there is room, and serve
// requests that begin with the same tokens and have the same policy
// ([Options.PrefixCacheBytes]; [Options.OnPrefix] is told of each). With [Options.Store]
// they also go to files, for the next engine on the same model; the prompt of a request with
// [Request.PromptOnly] is on disk when the request ends. Files have checksums and appear
// only when they are complete; a damaged one is removed and recomputed.
//
// # The promise
//
// An answer is a function of request, model and seed alone, to the bit: it does not depend
// on neighbours, order of arrival, preemption or the prefix cache. This follows from the
// model's promise that the bits of logits do not depend on how tokens are grouped into
// passes, and from giving every choice its own random stream.
//
// # Concurrency
//
// An Engine may be used by any number of goroutines. A [Stream] belongs to one at a
// time. A slow reader delays only its own answer. The model must outlive the engine.
// Others may use the model, too, but their use is not accounted for.
package engine
