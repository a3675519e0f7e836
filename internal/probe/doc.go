// Package probe measures the peak performance of a machine, so that a benchmark can
// say what fraction of it a program reaches: the bandwidth of reading memory,
// the multiply-add rate of each instruction set, and how long a cache line takes
// from one core to another and back.
//
// A [Buffer] is read with vector loads, on amd64 both as one stream and as four with
// prefetching, and the best way counts; a [Unit] repeats one instruction on registers,
// with enough independent sums to hide its latency; [RoundTrip] plays ping-pong over
// two cache lines. Each takes a duration, which it roughly keeps to, and the first two
// a number of threads. Nothing is pinned to a processor, since pinning a thread of the
// Go runtime also pins those it starts later.
//
// amd64 and arm64 have assembly. Elsewhere, and with -tags purego, loops in Go take
// its place; their names say so, and they measure the Go compiler's loop rather than
// the machine.
//
// Everything is safe for concurrent use, but concurrent measurements disturb each
// other. The speed of virtual machines varies over time: measure right before and
// after the code to compare.
package probe
