package engine

import (
	"context"
	"fmt"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"github.com/lukv/lukv/model"
)

// Event is a piece of an answer: a token, or its end.
type Event struct {
	Choice int // 0 to Request.Choices-1; of an echo 0

	// Token is the next token; Echo says that it is one of the prompt. An event
	// without one (see HasToken) carries text that was held back, or the end.
	Token    model.Token
	HasToken bool
	Echo     bool

	// Text is what the token adds to the text: nothing while a character, or
	// what may become a stop text, is incomplete.
	Text string

	// Finish, if not model.FinishNone, says why the choice ended; it has no more
	// events.
	Finish model.FinishReason
}

// Usage counts the tokens of a request.
type Usage struct {
	Prompt    int // tokens of the prompt
	Cached    int // of these, those that were kept from an earlier request
	Generated int // over all choices, including those that ended answers

	// How long the request waited, how long its prompt was read, and how long it was
	// answered.
	Queued, Reading, Answering time.Duration
}

// CacheUse is what the cache of a request's prompt holds.
type CacheUse struct {
	Entries, FullEntries int64 // held, and without compression
	Bytes, FullBytes     int64
}

// Stream is the answer to a request as it comes. Close it, or read it to its end.
type Stream struct {
	id     string
	events chan Event
	done   chan struct{} // closed when the request is over; then err is set
	err    error
	cancel context.CancelFunc
	wake   func() // tells the engine that there is room in events again

	prompt  int          // tokens of it
	reached atomic.Int64 // of these, read by now
	cached  atomic.Int64 // of these, kept from an earlier request

	usage Usage    // set when the request is over
	cache CacheUse // likewise
}

// streamRoom is the number of events that wait for a reader before its answers
// pause.
const streamRoom = 128

// ID is the request's name.
func (s *Stream) ID() string { return s.id }

// Next returns the next event, io.EOF after the last, or the error of a request
// that failed. When ctx is done it returns the error of ctx; the request goes on.
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

// read lets answers go on that pause because nobody read them.
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

// Progress is the fraction of the prompt read so far, 0 to 1. It never decreases.
func (s *Stream) Progress() float64 {
	return float64(s.reached.Load()) / float64(s.prompt)
}

// Cached is the number of tokens of the prompt that were kept from an earlier request, as
// far as it is known: 0 while the request waits.
func (s *Stream) Cached() int { return int(s.cached.Load()) }

// Close cancels the request, if it is not over, and waits until its memory is
// freed. Closing twice is fine.
func (s *Stream) Close() {
	s.cancel()
	<-s.done
}

// Usage returns what the request cost. It is complete when the request is over.
func (s *Stream) Usage() Usage {
	<-s.done
	return s.usage
}

// Cache returns what the cache held once the prompt had been read; zero if it never
// was. It waits for the end of the request.
func (s *Stream) Cache() CacheUse {
	<-s.done
	return s.cache
}

// end makes the request over.
func (s *Stream) end(err error) {
	if err != nil {
		s.err = fmt.Errorf("request %s: %w", s.id, err)
	}
	s.cancel()
	close(s.done)
}
