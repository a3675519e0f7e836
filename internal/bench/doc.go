// Package bench measures how fast models run on this machine, in absolute terms and
// as fractions of the machine's own limits.
//
// [Run] takes [Source]s, checkpoints or published shapes with random weights made in
// memory ([Shape]), and measures prefill and decoding over the cross product of the
// lists in [Options]: threads, precision, instruction set, cache type, depth, batch
// size and compression; on the processor or on an accelerator. The result is a
// [Report], written as a table, Markdown, CSV or JSON; [Compare] tests whether two
// reports differ. Experiments of the project's makers (operations of accelerators, a
// busy machine, the first token, drafting, sampling) are in scripts/bench-lab.
//
// # What is measured
//
// A prefill point is the time of one Session.Prefill of N tokens, including ranking
// and eviction if the session is empty and has a compression policy. A decode point
// is the time of N steps of Model.Step, one token for each of the batch's sessions
// per step, without sampling. Speed is in tokens per second of all sessions together.
// Depth is the number of entries in the cache beforehand: it is filled with random
// entries (Session.FillRandom), ragged if a policy compresses, so that a deep point costs
// its memory but not a prefill. Every repetition starts from that same state.
//
// Since the machine's speed changes, a compressing prefill is measured in alternation
// with the same prefill without compression.
//
// # Fractions of the machine
//
// Machines, virtual ones above all, change their speed from second to second.
// Package probe measures read bandwidth and multiply-add peak right before and
// right after each repetition, with the point's threads and instruction set; the
// repetition is divided by the mean of both:
//
//   - read: bytes read per second over read bandwidth. A step reads all weights
//     except an untied input embedding, and the keys and values of attention.
//   - compute: operations per second over the peak of the fastest multiply-add that
//     the arithmetic allows. Operations are 2 · parameters of the layers' matrices ·
//     tokens (in decoding, the output projection too), and those of attention.
//
// A fraction above 1 means that the probe underestimates the machine.
//
// A repetition whose two probes differ by more than a tenth is disturbed. Disturbed
// repetitions are repeated, at most Options.Reps times; medians are taken over the
// undisturbed repetitions, and a point without any is flagged.
//
// # Accelerators
//
// With Options.Device the accelerator is opened once, for all models. Its speed is not
// compared with its limits, which scripts/bench-lab measures.
//
// # Limits
//
// Memory figures come from Linux; elsewhere they are zero, and nothing is
// refused for lack of memory. A Run uses the whole machine; two at once disturb each other.
package bench
