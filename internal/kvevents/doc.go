// Package kvevents tells routers which blocks of prompts a server has in its cache, in
// the form of vLLM's KV events: batches in MessagePack over a ZeroMQ PUB socket, in three
// frames (topic, sequence number of 8 bytes, batch), and a ROUTER socket that sends
// earlier batches again.
//
// # Main types
//
// A [Publisher] listens. [Publisher.Model] returns where a model's engine reports the
// prompts that it keeps; from them the publisher knows how many prompts hold each block,
// and announces the first and the last. Reporting never waits: what is reported lies in a
// queue of bounded length until a goroutine of the publisher has taken it. When the queue
// is full all that was announced is taken back (AllBlocksCleared): routers then know less
// than there is, never more.
//
// # Why the protocol is written out here
//
// What is needed of ZeroMQ's protocol, ZMTP 3.0, is a greeting, a handshake and frames.
// Libraries in pure Go believe lengths that a peer claims, and hold up all subscribers
// for the slowest one; here frames from outside are bounded, and a subscriber that reads
// too slowly loses batches, which it sees by their numbers.
//
// # Limits
//
// Addresses of TCP alone, which the server binds; no authentication (mechanism NULL).
package kvevents
