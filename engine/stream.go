package engine

import (
	"context"
	"fmt"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/model"
)

// Event is a piece of an answer: a token, or its end.
type Event struct {
	Choice int // 0 to Request.Choices-1; 0 for an echo

	// Token is the next token; Echo says that it is one of the prompt. An event
	// without a token (see HasToken) carries text that was held back, or the end.
	Token    model.Token
	HasToken bool
	Echo     bool

	// Text is what the token adds to the text: nothing while a character, or
	// what may become a stop text, is incomplete.
	Text string

	// Reasoning is what it adds to the reasoning that precedes the text, and Calls to calls
	// of tools, of requests with Reasoning and Tools. InReasoning says that the reasoning is
	// not over.
	Reasoning   string
	InReasoning bool
	Calls       []structured.Call

	// Finish, if not model.FinishNone, says why the choice ended; it then has no more
	// events. Stop is the stop text that ended it, empty if none did.
	Finish model.FinishReason
	Stop   string
}

// FinishCalls says that an answer ended with calls of tools, all of them complete.
const FinishCalls model.FinishReason = "tool_calls"

// Usage counts the tokens of a request.
type Usage struct {
	Prompt    int // tokens of the prompt
	Cached    int // of these, found in the prefix cache
	Evicted   int // entries that compression removed from the cache, in tokens of the prompt: the mean over heads
	Generated int // over all choices, including those that ended answers
	Reasoning int // of these, those of the reasoning with its marks
	Drafted   int // tokens computed ahead, over all choices
	Accepted  int // of these, those that were right

	// How long the request waited, and how long its prefill and its decoding took.
	Queued, Prefill, Decoding time.Duration
}

// CacheUse is the size of the KV cache of a request's prompt.
type CacheUse struct {
	Entries, FullEntries int64 // held, and without compression
	Bytes, FullBytes     int64
}

// Stream is the answer to a request as it comes. Close it, or read it to its end.
type Stream struct {
	id     string
	events chan Event
	done   chan struct{} // closed when the request is over, after err is set
	err    error
	cancel context.CancelFunc
	wake   func() // tells the engine that there is room in events again

	prompt  int          // in tokens
	reached atomic.Int64 // of these, read so far
	cached  atomic.Int64 // of these, found in the prefix cache

	usage Usage    // set when the request is over
	cache CacheUse // likewise
}

// streamRoom is the number of unread events at which a request's answers pause.
const streamRoom = 128

// ID returns the request's name.
func (s *Stream) ID() string { return s.id }

// Next returns the next event, io.EOF after the last, or the error of a request that
// failed. When ctx is done it returns the cause; the request continues.
func (s *Stream) Next(ctx context.Context) (Event, error) {
	select {
	case e := <-s.events:
		s.read()
		return e, nil
	default:
	}
	select {
	case e := <-s.events:
		s.read()
		return e, nil
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	case <-s.done:
	}
	select {
	case e := <-s.events: // sent before the end
		return e, nil
	default:
	}
	if s.err != nil {
		return Event{}, s.err
	}
	return Event{}, io.EOF
}

// read wakes answers that paused because their events were not read.
func (s *Stream) read() {
	if len(s.events) == streamRoom/2 {
		s.wake()
	}
}

// Events returns all events; an error comes with the last pair. Leaving the loop
// early cancels the request.
func (s *Stream) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		defer s.Close()
		for {
			e, err := s.Next(context.Background())
			if err == io.EOF {
				return
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Progress returns the fraction of the prompt that has been prefilled, 0 to 1. It never
// decreases.
func (s *Stream) Progress() float64 {
	return float64(s.reached.Load()) / float64(s.prompt)
}

// Cached returns the number of prompt tokens that were found in the prefix cache; 0 while
// the request waits.
func (s *Stream) Cached() int { return int(s.cached.Load()) }

// Close cancels the request, if it is not over, and waits until its memory is
// freed. Closing twice is fine.
func (s *Stream) Close() {
	s.cancel()
	<-s.done
}

// Usage waits for the end of the request and returns what it cost.
func (s *Stream) Usage() Usage {
	<-s.done
	return s.usage
}

// Cache returns the size of the KV cache after the prefill, zero if it was not completed. It
// waits for the end of the request.
func (s *Stream) Cache() CacheUse {
	<-s.done
	return s.cache
}

// end marks the request as over.
func (s *Stream) end(err error) {
	if err != nil {
		s.err = fmt.Errorf("request %s: %w", s.id, err)
	}
	s.cancel()
	close(s.done)
}
