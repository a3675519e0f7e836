// Package kvevents tells routers which blocks of prompts a server has in its cache, in
// the form of vLLM's KV events: batches in MessagePack over a ZeroMQ PUB socket, in three
// frames (topic, sequence number of 8 bytes, batch), and a ROUTER socket that resends
// earlier batches.
//
// # Main types
//
// A [Publisher] listens. [Publisher.Model] returns a [Model], to which the model's engine
// reports the prompts that it keeps; from them the publisher knows how many prompts hold
// each block, and announces when a block is first held and when it is last. Reporting
// never waits: reports lie in a queue of bounded length until a goroutine of the
// publisher takes them. When the queue is full, everything announced is taken back
// (AllBlocksCleared): routers then know less than there is, never more.
//
// # Why the protocol is written out here
//
// All that is needed of ZeroMQ's protocol, ZMTP 3.0, is a greeting, a handshake and
// frames. Libraries in pure Go trust the lengths that a peer claims, and hold up all
// subscribers for the slowest one; here incoming frames are bounded, and a subscriber
// that reads too slowly loses batches, which it can tell from their numbers.
//
// # Limits
//
// TCP addresses only, which the server binds; no authentication (mechanism NULL).
package kvevents
