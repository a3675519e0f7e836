// Package bench measures how fast models run on this machine, in absolute terms and
// as fractions of the machine's own limits.
//
// [Run] takes [Source]s, checkpoints or published shapes with random weights
// made in memory ([Shape]) or written to a file and mapped ([Written]), and
// measures prefill and decode over the cross product of the lists in [Options]:
// threads, precision, instruction set, cache type, depth, batch size, compression,
// busy processes; on the processor or on an accelerator. The result is a
// [Report], written as a table, Markdown, CSV or JSON; [Compare] tests whether
// two of them differ.
//
// # What is measured
//
// A prefill point is the time of one Session.Prefill of N tokens, including ranking
// and eviction if the session is empty and has a compression policy. A decode point
// is the time of N steps of Model.Step, one token for each of the batch's sessions
// per step, without sampling. Speed is in tokens per second of all sessions together.
// Depth is the number of entries in the cache beforehand: it is filled with random
// entries (Session.Fill), ragged if a policy compresses, so that a deep point costs
// its memory but not a prefill. Every repetition starts from that same state.
//
// Since the machine's speed changes, comparisons are measured in alternation: a
// compressing prefill with the same one without compression, decoding against busy
// processes (programs that call [Busy]) with decoding alone, on as many threads and
// on one.
//
// A start is the time from opening a mapped checkpoint to its first token, with the
// files in memory and, if asked for, after the system has dropped them.
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
// A fraction above 1 is a defect of the probe, not a feat.
//
// A repetition whose two probes differ by more than a tenth is disturbed. Disturbed
// ones are repeated, at most as often as repetitions were asked for; medians are
// taken over the undisturbed ones, and a point without any is flagged.
//
// # Accelerators
//
// With Options.Device the accelerator is opened once, for everything. First its
// operations are measured, each in lists that take tens of milliseconds: copying
// within its memory, products of one, few and many rows with bf16 weights, and
// attention of decoding and prefill over caches, in decoding with heads of different
// lengths; [DeviceReport] gives them as fractions of the copy's bandwidth and of the
// best product. Then the points follow: read is a fraction of the copy's bandwidth,
// probed before and after each repetition, and compute one of the best product.
//
// # Limits
//
// Memory figures come from Linux; elsewhere they are zero, and nothing is
// refused for lack of memory. A Run uses the whole machine: do not run two.
package bench
