// Package bench measures how fast models run on this machine, and says what part
// of the machine's own limits that is.
//
// [Run] takes [Source]s, checkpoints or published shapes with random weights
// made in memory ([Shape]) or written to a file and mapped ([Written]), and
// measures prefill and decode over the cross product of what [Options] lists:
// threads, precision, instruction set, cache type, depth, batch size, compression,
// busy processes; on the processor or on an accelerator. The result is a
// [Report] for tables, Markdown, CSV and JSON; [Compare] tests whether two of
// them differ.
//
// # What is measured
//
// A prefill point is the time of one Session.Prefill of N tokens; on an empty
// session with a compression policy that includes ranking and eviction. A decode
// point is the time of N steps of Model.Step, one token for each of the batch's
// sessions per step, without sampling. Speed is in tokens per second of all sessions together.
// Depth is what the cache holds before: it is filled with random entries
// (Session.Fill), ragged where a policy compresses, so that a deep point costs
// its memory and not a prefill. Every repetition starts from that same state.
//
// What is to be compared is measured in turn, since the machine changes: a prefill
// that compresses beside the same one without, decoding against busy processes
// (programs that call [Busy]) beside decoding alone, on as many threads and on one.
//
// A start is the time from opening a mapped checkpoint to its first token, with the
// files in memory and, if asked for, after the system has let go of them.
//
// # Fractions of the machine
//
// Machines, virtual ones above all, change their speed from second to second.
// Package probe measures read bandwidth and multiply-add peak right before and
// right after each repetition, with the point's threads and instruction set; the
// mean of both is what the repetition is divided by:
//
//   - read: bytes per step over read bandwidth. The bytes are all weights but an
//     untied input embedding, and the keys and values that attention reads.
//   - compute: 2 · parameters of the layers' matrices · tokens (in decoding, the output
//     projection too), and attention's operations, over the peak of the fastest
//     multiply-add that the arithmetic allows.
//
// A fraction above 1 is a defect of the probe, not a feat.
//
// A repetition whose two probes differ by more than a tenth is disturbed. It is
// repeated, at most as often as repetitions were asked for; medians are taken over
// the undisturbed ones, and a point that has none is flagged.
//
// # Accelerators
//
// With Options.Device the accelerator is opened once, for everything. First its
// operations are measured, each in lists of tens of milliseconds: copying within its
// memory, products of one row, few and many rows with bf16 weights, attention
// of decoding and prefill over caches whose heads differ in length; [DeviceReport]
// has them as fractions of the copy's bandwidth and of the best product. Then the
// points: read is a fraction of the copy's bandwidth, probed before and after
// each repetition, compute of the best product.
//
// # Limits
//
// Memory figures come from Linux; elsewhere they are zero, and nothing is
// refused for lack of memory. A Run uses the whole machine: do not run two.
package bench
