// Package workers runs the parallel regions of the forward pass on a fixed set
// of goroutines.
//
// A [Pool] of n threads is n-1 helper goroutines plus whoever calls [Pool.Run].
// Run cuts its items into chunks, gives every worker an equal run of
// neighbouring chunks, and lets a worker that is done take chunks from the tails
// of the others, a few at a time towards the end. The caller waits only for chunks
// that a helper has begun: a helper that the operating system has descheduled costs
// nothing, since the others take its share. A task sees how the items were split
// only through the arguments of its calls; it must not let that affect results.
//
// # Waiting
//
// Regions of a decode step follow each other within microseconds, and waking a
// sleeping thread takes tens of them, so helpers spin between regions. They spin in
// short bursts, each a Go call at which the garbage collector can stop them, and
// yield to other goroutines and to other threads of the system every few
// microseconds: on a busy machine the thread they wait for may be waiting for this
// processor. A helper that has seen no region for a fifth of a millisecond blocks
// until the next one. Nothing is pinned to a processor.
//
// # Sharing
//
// A pool may be shared by any number of goroutines. One Run at a time has the
// helpers; a Run that finds them taken executes its task only on its own
// goroutine. While c calls are in progress only n-c helpers take part, so that a
// pool never keeps more than max(n, c) goroutines busy; [Pool.Lend] counts as a
// call. Helpers start with the first Run that can use them and end with [Pool.Close]; a
// pool that is dropped without Close leaks its helpers.
package workers
