package engine

import (
	"context"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// evenly returns a mask that allows every token, as long as wait returns nil.
func evenly(m *model.Model, wait func(ctx context.Context, choice int, answer []int32) error) func(context.Context, int, []int32) ([]uint64, error) {
	all := slices.Repeat([]uint64{math.MaxUint64}, (m.Config().Vocab+63)/64)
	return func(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
		return all, wait(ctx, choice, answer)
	}
}

// until returns a mask that allows every token once released is closed.
func until(m *model.Model, released chan struct{}) func(context.Context, int, []int32) ([]uint64, error) {
	return evenly(m, func(ctx context.Context, _ int, _ []int32) error {
		select {
		case <-released:
		case <-ctx.Done():
		}
		return nil
	})
}

// TestMasksDelayOnlyTheirRequest: while the mask of one request is being computed, others are
// answered, and then it is, as if alone.
func TestMasksDelayOnlyTheirRequest(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	for name, test := range map[string]struct {
		o       Options
		choices int
		at      int // tokens of the answer that the slow mask follows
	}{
		"the first":        {Options{}, 1, 0},
		"in the middle":    {Options{}, 3, 4},
		"with drafts":      {Options{Lookup: true}, 2, 5},
		"several at once":  {Options{MaxRunning: 8}, 6, 2},
		"one at a time":    {Options{MaxRunning: 2, Latency: time.Millisecond}, 1, 1},
		"without a budget": {Options{MaxBytes: 64 << 20}, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, m, test.o)
			slow := Request{Prompt: tokens[0], Choices: test.choices, Sampling: model.Sampling{MaxTokens: 12, IgnoreEOS: true, LogProbs: true, Temperature: 1}}
			want := alone(t, m, slow)
			reached, released := make(chan struct{}), make(chan struct{})
			slow.Mask = evenly(m, func(ctx context.Context, choice int, answer []int32) error {
				if choice == 0 && len(answer) == test.at {
					close(reached)
					select {
					case <-released:
					case <-ctx.Done():
					}
				}
				return nil
			})
			s, err := e.Submit(within(t), slow)
			require.NoError(t, err)
			<-reached
			other := Request{Prompt: tokens[1], Sampling: model.Sampling{MaxTokens: 20, IgnoreEOS: true, LogProbs: true}}
			for range 2 {
				quick, err := e.Submit(within(t), other)
				require.NoError(t, err)
				require.True(t, equal(collect(t, quick, 1), alone(t, m, other)))
			}
			close(released)
			require.True(t, equal(collect(t, s, test.choices), want))
		})
	}
}

// TestMasksEndWithTheirRequest: the context of a mask ends with the request, with its client
// and with the engine.
func TestMasksEndWithTheirRequest(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	gone := errors.New("the client has left")
	for name, end := range map[string]func(e *Engine, s *Stream, cancel context.CancelCauseFunc){
		"the client": func(_ *Engine, _ *Stream, cancel context.CancelCauseFunc) { cancel(gone) },
		"the stream": func(_ *Engine, s *Stream, _ context.CancelCauseFunc) { s.Close() },
		"the engine": func(e *Engine, _ *Stream, _ context.CancelCauseFunc) { e.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, m, Options{})
			reached, ended := make(chan struct{}), make(chan error, 1)
			ctx, cancel := context.WithCancelCause(within(t))
			s, err := e.Submit(ctx, Request{Prompt: tokens[0], Mask: evenly(m, func(ctx context.Context, _ int, _ []int32) error {
				close(reached)
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			})})
			require.NoError(t, err)
			<-reached
			end(e, s, cancel)
			require.ErrorIs(t, <-ended, context.Canceled)
			_, err = s.Next(within(t))
			for err == nil {
				_, err = s.Next(within(t))
			}
			require.NoError(t, e.Close())
			require.Zero(t, e.Stats().ReservedBytes)
		})
	}
}

// TestSlowReaderGivesUpItsPlaces: a request whose events are not read gives its places and its bytes to those
// who wait, and its answer stays the same.
func TestSlowReaderGivesUpItsPlaces(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	long := slices.Concat(tokens[0], tokens[1], tokens[0])
	need, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: len(long) + 400})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		o    Options
		slow Request
	}{
		"places": {Options{MaxRunning: 4}, Request{Choices: 4, Prompt: tokens[0], Sampling: model.Sampling{MaxTokens: 100}}},
		"bytes":  {Options{MaxBytes: need.Peak * 5 / 4}, Request{Prompt: long, Sampling: model.Sampling{MaxTokens: 400}}},
		"drafts": {Options{MaxRunning: 1, Lookup: true}, Request{Prompt: long, Sampling: model.Sampling{MaxTokens: 300}}},
		"echo":   {Options{MaxRunning: 1}, Request{Prompt: long, Echo: true, Sampling: model.Sampling{MaxTokens: 3}}},
		"masks":  {Options{MaxRunning: 3}, Request{Choices: 3, Prompt: tokens[0], Mask: evenly(m, func(context.Context, int, []int32) error { return nil }), Sampling: model.Sampling{MaxTokens: 90}}},
		"decode": {Options{MaxRunning: 1}, Request{Prompt: long, Context: len(long) - 20, Policy: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 64, Interval: 8}}, Sampling: model.Sampling{MaxTokens: 200}}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, m, test.o)
			e.patience = time.Millisecond // nothing is submitted yet
			r := test.slow
			r.Sampling.IgnoreEOS, r.Sampling.LogProbs, r.Sampling.Temperature = true, true, 1
			slow, err := e.Submit(within(t), r)
			require.NoError(t, err)
			for len(slow.events) < streamRoom { // it pauses
				time.Sleep(time.Millisecond)
			}
			other := Request{Prompt: long[:len(long)-1], Sampling: model.Sampling{MaxTokens: 20, IgnoreEOS: true, LogProbs: true}}
			quick, err := e.Submit(within(t), other)
			require.NoError(t, err)
			require.True(t, equal(collect(t, quick, 1), alone(t, m, other)))
			if name == "bytes" || name == "echo" { // of the others, places suffice
				require.Positive(t, e.Stats().Preempted)
			} else {
				require.Zero(t, e.Stats().Preempted)
			}
			got, choices := collect(t, slow, max(1, r.Choices)), max(1, r.Choices)
			r.Mask = nil
			want := alone(t, m, r)
			for i := range choices {
				require.Equal(t, want.ids[i], got.ids[i])
				require.Equal(t, want.probs[i], got.probs[i])
			}
			require.NoError(t, e.Close())
			require.Zero(t, e.Stats().ReservedBytes)
		})
	}
}

// TestSlowlyRead: a request whose events are read all the time, but more slowly than they are
// computed, does not keep others waiting either, and takes turns with them.
func TestSlowlyRead(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	for name, bytes := range map[string]int64{"places": 0, "bytes": 1} {
		t.Run(name, func(t *testing.T) {
			r := Request{Prompt: tokens[0], Choices: 4, Sampling: model.Sampling{MaxTokens: 300, IgnoreEOS: true, Temperature: 1}}
			if bytes > 0 {
				need, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: len(tokens[0]) + 300})
				require.NoError(t, err)
				bytes = 5 * need.Peak
			}
			e := newEngine(t, m, Options{MaxRunning: 4, MaxBytes: bytes})
			e.patience = time.Millisecond
			slow, err := e.Submit(within(t), r)
			require.NoError(t, err)
			for len(slow.events) < streamRoom {
				time.Sleep(time.Millisecond)
			}
			var got []Event
			for range 3 {
				other := Request{Prompt: tokens[1], Sampling: model.Sampling{MaxTokens: 20, IgnoreEOS: true, LogProbs: true}}
				quick, err := e.Submit(within(t), other)
				require.NoError(t, err)
				for done := false; !done; { // one event at a time, so that it never waits for its reader for long
					event, err := slow.Next(within(t))
					require.NoError(t, err)
					got = append(got, event)
					select {
					case <-quick.done:
						done = true
					case <-time.After(time.Millisecond):
					}
				}
				require.Less(t, len(got), 4*300, "the other request waited for the whole answer")
				require.True(t, equal(collect(t, quick, 1), alone(t, m, other)))
			}
			want := alone(t, m, r)
			answers := make([][]int32, 4)
			for rest, err := range slow.Events() {
				require.NoError(t, err)
				got = append(got, rest)
			}
			for _, event := range got {
				if event.HasToken {
					answers[event.Choice] = append(answers[event.Choice], event.Token.ID)
				}
			}
			require.Equal(t, want.ids, answers)
		})
	}
}

// TestGuests: a client of whom nothing runs does not wait for the answers of another who has
// all places, and its share is bounded.
func TestGuests(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	e := newEngine(t, m, Options{MaxRunning: 8})
	released := make(chan struct{})
	held, err := e.Submit(within(t), Request{Client: "a", Prompt: tokens[0], Choices: 8, Mask: until(m, released), Sampling: model.Sampling{MaxTokens: 4, IgnoreEOS: true}})
	require.NoError(t, err)
	more, err := e.Submit(within(t), Request{Client: "a", Prompt: tokens[0], Choices: 8, Sampling: model.Sampling{MaxTokens: 4, IgnoreEOS: true}})
	require.NoError(t, err) // it is at the front of the queue
	other := Request{Client: "b", Prompt: tokens[1], Sampling: model.Sampling{MaxTokens: 20, IgnoreEOS: true, LogProbs: true}}
	quick, err := e.Submit(within(t), other)
	require.NoError(t, err)
	require.True(t, equal(collect(t, quick, 1), alone(t, m, other)))
	var waiting []*Stream
	for _, r := range []Request{{Client: "a"}, {Client: "b", Choices: 2}} { // has its places; asks for too many
		r.Prompt, r.Sampling = tokens[1], other.Sampling
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		waiting = append(waiting, s)
	}
	time.Sleep(20 * time.Millisecond)
	require.EqualValues(t, 3, e.Stats().Waiting)
	close(released)
	collect(t, held, 8)
	collect(t, more, 8)
	for i, s := range waiting {
		collect(t, s, i+1)
	}
}

// TestGuestsDoNotCount: a request that needs all places gets them although guests, which pass it,
// never end.
func TestGuestsDoNotCount(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	e := newEngine(t, m, Options{MaxRunning: 8})
	running := func(n, waiting int) {
		require.Eventually(t, func() bool { st := e.Stats(); return st.Running == int64(n) && st.Waiting == int64(waiting) }, time.Minute, time.Millisecond)
	}
	submit := func(client string, choices int, mask func(context.Context, int, []int32) ([]uint64, error)) *Stream {
		s, err := e.Submit(within(t), Request{Client: client, Prompt: tokens[0], Choices: choices, Mask: mask, Sampling: model.Sampling{MaxTokens: 4, IgnoreEOS: true}})
		require.NoError(t, err)
		return s
	}
	first, guest := make(chan struct{}), make(chan struct{})
	a := submit("a", 1, until(m, first))
	running(1, 0)
	all := submit("b", 8, nil)
	running(1, 1)
	c := submit("c", 1, until(m, guest))
	running(2, 1)
	close(first)
	collect(t, a, 1)
	collect(t, all, 8)
	running(1, 0)
	close(guest)
	collect(t, c, 1)
}

// TestGuestsPassWhoWaitsForRoom: a small request of another client does not wait for the room that
// a large one needs, unless both together need more than there is.
func TestGuestsPassWhoWaitsForRoom(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	large := Request{Client: "a", Prompt: tokens[0], Choices: 4, Sampling: model.Sampling{MaxTokens: 900, IgnoreEOS: true}}
	probe := newEngine(t, m, Options{})
	whole, err := probe.Submit(within(t), large)
	require.NoError(t, err)
	_, err = whole.Next(within(t))
	require.NoError(t, err)
	need := probe.Stats().ReservedBytes
	probe.Close()
	waiting := func(e *Engine, n int) {
		require.Eventually(t, func() bool { return int(e.Stats().Waiting) == n }, time.Minute, time.Millisecond)
		time.Sleep(20 * time.Millisecond)
		require.EqualValues(t, n, e.Stats().Waiting)
	}
	for _, test := range []struct {
		bytes  int64
		guests int // that run at once
	}{{need * 5 / 4, 1}, {need * 3 / 2, 1}, {need * 21 / 20, 0}} {
		e := newEngine(t, m, Options{MaxRunning: 64, MaxBytes: test.bytes})
		released := make(chan struct{})
		held := large
		held.Mask = until(m, released)
		ctx, cancel := context.WithCancel(within(t))
		for range 2 {
			_, err := e.Submit(ctx, held)
			require.NoError(t, err)
		}
		waiting(e, 1)
		small := Request{Client: "b", Prompt: tokens[1], Sampling: model.Sampling{MaxTokens: 20, IgnoreEOS: true, LogProbs: true}}
		s, err := e.Submit(within(t), small)
		require.NoError(t, err)
		if test.guests > 0 {
			require.True(t, equal(collect(t, s, 1), alone(t, m, small)))
		}
		waiting(e, 2-test.guests)
		for i := range 8 { // all guests together have an eighth
			other := held
			other.Client, other.Choices, other.Sampling.MaxTokens = string(rune('c'+i)), 1, 200
			_, err := e.Submit(ctx, other)
			require.NoError(t, err)
		}
		time.Sleep(50 * time.Millisecond)
		require.LessOrEqual(t, e.Stats().ReservedBytes, need+int64(test.guests)*test.bytes/8)
		cancel()
		if test.guests == 0 { // its turn comes
			require.True(t, equal(collect(t, s, 1), alone(t, m, small)))
		}
		close(released)
		e.Close()
	}
}

// TestSlowReaderAlone: where nobody waits, a request whose events are not read keeps its cache.
func TestSlowReaderAlone(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	e := newEngine(t, m, Options{MaxRunning: 1})
	e.patience = time.Nanosecond
	r := Request{Prompt: tokens[0], Sampling: model.Sampling{MaxTokens: 300, IgnoreEOS: true}}
	s, err := e.Submit(within(t), r)
	require.NoError(t, err)
	for len(s.events) < streamRoom {
		time.Sleep(time.Millisecond)
	}
	e.poke()
	collect(t, s, 1)
	require.Zero(t, e.Stats().Preempted)
}

// TestPlacesOfFinishedChoices: choices that have ended make room for others.
func TestPlacesOfFinishedChoices(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	e := newEngine(t, m, Options{MaxRunning: 4})
	released := make(chan struct{})
	slow, err := e.Submit(within(t), Request{
		Prompt: tokens[0], Choices: 4, Sampling: model.Sampling{MaxTokens: 20, IgnoreEOS: true},
		Stop: nil, Mask: func(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
			if choice > 0 {
				if len(answer) > 0 {
					return nil, io.EOF
				}
				return nil, nil
			}
			if len(answer) == 3 {
				select {
				case <-released:
				case <-ctx.Done():
				}
			}
			return nil, nil
		},
	})
	require.NoError(t, err)
	other := Request{Prompt: tokens[1], Choices: 3, Sampling: model.Sampling{MaxTokens: 5, IgnoreEOS: true, LogProbs: true}}
	quick, err := e.Submit(within(t), other)
	require.NoError(t, err)
	require.True(t, equal(collect(t, quick, 3), alone(t, m, other)))
	close(released)
	collect(t, slow, 4)
}

// TestRequestBytes: what requests take besides caches is counted from Submit to their end,
// and refused with numbers where there is no room.
func TestRequestBytes(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	few := model.Sampling{MaxTokens: 2, IgnoreEOS: true}
	e := newEngine(t, m, Options{Requests: NewAccount(1 << 20), MaxRunning: 1})
	released := make(chan struct{})
	first, err := e.Submit(within(t), Request{Prompt: tokens[0], Sampling: few, Mask: evenly(m, func(ctx context.Context, _ int, _ []int32) error {
		select {
		case <-released:
		case <-ctx.Done():
		}
		return nil
	})})
	require.NoError(t, err)
	var streams []*Stream
	var full *MemoryError
	for {
		s, err := e.Submit(within(t), Request{Prompt: tokens[0], Sampling: few})
		if err != nil {
			require.ErrorAs(t, err, &full)
			break
		}
		streams = append(streams, s)
	}
	require.Equal(t, int64(1<<20), full.Limit)
	require.Positive(t, full.InUse)
	require.LessOrEqual(t, full.InUse, full.Limit)
	require.Greater(t, full.InUse+full.Needed, full.Limit)
	require.ErrorContains(t, full, "requests in progress have")
	streams[0].Close() // a waiting request gives back what it took
	again, err := e.Submit(within(t), Request{Prompt: tokens[0], Sampling: few})
	require.NoError(t, err)
	close(released)
	for _, s := range append(streams[1:], first, again) {
		collect(t, s, 1)
	}
	for name, r := range map[string]Request{
		"choices":    {Prompt: tokens[0], Choices: 128, Sampling: model.Sampling{TopK: 3, FrequencyPenalty: 1, RepetitionPenalty: 1.1, Temperature: 1}},
		"stop texts": {Prompt: tokens[0], Stop: []string{strings.Repeat("a", 1<<16-10)}},
		"events":     {Prompt: tokens[0], Choices: 40, Sampling: model.Sampling{LogProbs: true, TopLogProbs: 1000}},
	} {
		_, err := e.Submit(within(t), r)
		require.ErrorAs(t, err, &full, name)
		require.Zero(t, full.InUse, name)
		require.Greater(t, full.Needed, full.Limit, name)
		require.ErrorContains(t, err, "the limit is 1048576", name)
	}
	// Refusals of other kinds take nothing.
	_, err = e.Submit(within(t), Request{Prompt: tokens[0], Stop: []string{""}})
	require.ErrorContains(t, err, "empty")
	_, err = e.Submit(within(t), Request{})
	require.ErrorContains(t, err, "the prompt is empty")
	require.NoError(t, e.Close())
	_, err = e.Submit(within(t), Request{Prompt: tokens[0]})
	require.ErrorIs(t, err, ErrClosed)
	require.Zero(t, e.account.Used())
}

// TestNothingPerToken: in steady state, tokens of answers allocate nothing on the Go heap,
// however many there are. A pass allocates once, in model.Pass.
func TestNothingPerToken(t *testing.T) {
	cfg := &model.Config{
		Arch: "llama", Layers: 1, Hidden: 32, Intermediate: 32, Heads: 2, KVHeads: 1, HeadDim: 16, Vocab: 50, MaxPositions: 4096,
		NormEps: 1e-5, Rope: arch.RopeConfig{Theta: 10000}, Windows: []int{0}, BOS: []int{1}, EOS: []int{2},
	}
	weights, err := weights.Random(t.Context(), cfg, tensor.F32, 1)
	require.NoError(t, err)
	m, err := model.New(cfg, weights, model.WithThreads(2))
	require.NoError(t, err)
	defer m.Close()
	verifyWith(t, nil)
	for _, choices := range []int{1, 4} {
		e := newEngine(t, m, Options{})
		allocations := func(tokens int) int64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s, err := e.Submit(within(t), Request{Prompt: []int32{1, 2, 3}, Choices: choices, Sampling: model.Sampling{MaxTokens: tokens, IgnoreEOS: true, Temperature: 1, LogProbs: true}})
			require.NoError(t, err)
			for err == nil {
				_, err = s.Next(context.Background())
			}
			require.ErrorIs(t, err, io.EOF)
			runtime.ReadMemStats(&after)
			return int64(after.Mallocs - before.Mallocs)
		}
		allocations(3000) // until everything has its size
		more := allocations(3000) - allocations(1000)
		require.Less(t, more, int64(2000*11/10), "%d choices", choices)
	}
}
