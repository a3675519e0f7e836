// Package model runs transformer checkpoints. It is the entry point for
// programs that embed a language model.
//
//	m, err := model.Open(ctx, "path/to/checkpoint")
//	defer m.Close()
//	s, err := m.NewSession(model.SessionOptions{Compression: &lukv.Policy{Ratio: 0.8}})
//	defer s.Close()
//	err = s.Prefill(ctx, document)  // compresses per policy
//	err = s.Prefill(ctx, question)  // appends; never evicted
//	for tok, err := range s.Generate(ctx, model.Sampling{MaxTokens: 100}) { … }
//
// # Main types
//
// A [Model] is a loaded checkpoint of one of the families that README lists: a [Config],
// [Weights] that are views of mapped files, and the rotation. Each family is a file,
// family_*.go, that reads its keys, names its tensors and plans its layers.
// A [Session] is one sequence of tokens with its cache; it can be forked,
// truncated, saved and loaded. [Model.Step] computes many sessions in one pass
// over the weights. An [Observation] is a context with its full cache and what
// metrics saw of it; compressed sessions are derived from it, and a
// [Measurement] measures on it what profiles are built from.
// [Sampling] chooses tokens.
//
// # Compression
//
// The first prefill of a session with a policy runs layer by layer over the
// whole prompt: once a layer's attention is complete, its entries are scored and
// those beyond the budgets are evicted, so the cache peaks at the compressed
// total plus one whole layer (at the whole cache for allocators that need all
// scores). Meanwhile the hidden states of the prompt, 4·tokens·Hidden bytes, are
// held where the layers are computed. Without a policy, or with one that removes
// nothing, the prompt passes through all layers chunk by chunk. Layers with a
// sliding window are never compressed; they drop what has left their window.
//
// Any span can be compressed at any time: [Session.PrefillCompressed] feeds tokens
// and compresses them with a policy of their own, after a system prompt or a first
// document, and [Session.Compress] compresses tokens that are already there. Both
// give bit-identical sessions: prefill once, fork, and compress each fork in its
// own way. [Session.Keep] applies a choice made elsewhere.
//
// # Arithmetic
//
// Logits are bit-identical whatever the threads, chunks, batches and instruction
// set, and whether tokens come by prefill or one at a time; see package kernels.
// They do depend on [Precision] and on the cache's element type. Dynamic RoPE
// scaling is by definition an exception: its rotation depends on how a text is
// split into calls.
//
// # Devices
//
// With [WithDevice] the weights are copied to an accelerator and the forward pass
// runs there, over caches whose pages are there too; [WithDeviceLayers] leaves the
// last layers, their caches and the head to the processor. Results follow the
// device's arithmetic: they are bit-identical for any chunk and batch on one device
// and driver, and within rounding of the processor's. A checkpoint that mixes bf16
// with other weights keeps its activations in f32 on a device. The metrics snapkv,
// keydiff, knorm and expected_attention score a prefill on the device, and
// eviction moves pages there. What other metrics, compression while decoding and
// the oracle look at is read back and processed on the host, which gives the same
// results but takes longer. Saved sessions can be loaded on any device or none.
//
// When memory runs out the error is kernels.ErrDeviceMemory, and the session
// stays at its last token. After kernels.ErrDeviceLost close the model and open
// another.
//
// # Lifetime and concurrency
//
// A Model is safe for concurrent use and outlives its sessions' computations:
// Close waits for them. A Session belongs to one goroutine at a time, which is
// checked (ErrBusy); its Close cancels a call in progress and waits for it. Sessions
// run concurrently and share the model's workers. The caller closes both; closing
// twice is fine. A session that is not closed leaks its cache, which is outside
// the Go heap. Long calls take a context; after a cancellation, or a panic in a
// callback, the session is left at its last completed token and can be used again: a
// failed call has changed nothing beyond that. In steady state, decoding allocates
// nothing on the Go heap per token.
package model
