// Package probe measures what a machine can do at best, so that a benchmark can
// say what fraction of it a program reaches: the bandwidth of reading memory,
// the rate of the multiply-adds of each instruction set, and how long a cache
// line takes from one core to another and back.
//
// A [Buffer] is read with vector loads, as one stream and as four with look-ahead, and
// the better way counts; a [Unit] repeats one instruction on
// registers with enough independent sums to hide its latency, [RoundTrip] plays
// ping-pong over two cache lines. Each takes about as long as it is told and a
// number of threads; nothing is pinned to a processor, since pinning a thread
// of the Go runtime pins those it starts later as well.
//
// amd64 and arm64 have assembly. Elsewhere, and with -tags purego, loops in Go stand
// in; their names say so, and what they measure is the Go compiler's loop and
// not the machine.
//
// Everything is safe for concurrent use, but measurements that run at the same
// time disturb each other. Virtual machines move between moods: measure right
// before and after what is to be compared.
package probe
