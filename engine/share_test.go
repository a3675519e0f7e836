package engine

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

func TestShareLevel(t *testing.T) {
	for _, test := range []struct {
		limit int
		rows  []int
		level int // 0: every client gets its rows
	}{
		{8, nil, 0},
		{8, []int{64}, 0},
		{8, []int{4, 4}, 0},
		{8, []int{1, 31}, 7},
		{8, []int{31, 1}, 7},
		{20, []int{16, 8}, 12},
		{8, []int{20, 20}, 0},      // alike
		{8, []int{6, 20}, 6},       // the second gets what the first asks for
		{8, []int{1, 1, 1, 29}, 5}, // what the others leave
		{8, []int{2, 2, 2, 2, 2, 2}, 0},
		{8, []int{1, 2, 2, 2, 2, 2, 2}, 0}, // one with few does not make all others take turns
		{8, []int{1, 2, 2, 2, 2, 2, 9}, 2},
	} {
		s := share{times: passes(float64(4*test.limit-4), 1)}
		for i, n := range test.rows {
			s.client(fmt.Sprint(i)).rows += n
		}
		require.Equal(t, test.level, s.level(), "%+v", test)
	}
}

// TestShareProperties: no client gets more than it asks for or less than one with the same
// rows, clients within the level get all, and the limit is exceeded only by clients alike.
func TestShareProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := share{times: passes(rapid.Float64Range(0, 80).Draw(t, "base"), 1)}
		asked := rapid.SliceOfN(rapid.IntRange(1, 64), 0, 12).Draw(t, "rows")
		for i, n := range asked {
			s.client(fmt.Sprint(i)).rows += n
		}
		level, total, most := s.level(), 0, 0
		if level == 0 {
			return
		}
		below := 0
		for _, n := range asked {
			total += min(n, level)
			most = max(most, n)
			if n <= level {
				below++
			}
		}
		require.Less(t, level, most, "somebody is left out")
		require.True(t, total <= s.limit() || 2*below >= len(asked), "%d rows of %d for %v", total, s.limit(), asked)
		require.GreaterOrEqual(t, 2*below, 1, "%v", asked)
	})
}

// line of passes whose time is base and perRow more for each row.
func passes(base, perRow float64) (l line) {
	for i := range 100 {
		rows := float64(1 + i%17)
		l.add(rows, base+perRow*rows)
	}
	return l
}

func TestShareLimit(t *testing.T) {
	require.Equal(t, leastRows, (&share{}).limit(), "nothing is known")
	for range 10 {
		same := share{}
		same.times.add(20, 1)
		require.Equal(t, leastRows, same.limit(), "the rows were always the same")
	}
	require.Equal(t, 11, (&share{times: passes(40, 1)}).limit(), "51 take a quarter longer than 41")
	require.Equal(t, leastRows, (&share{times: passes(1, 1)}).limit())
	require.Equal(t, math.MaxInt, (&share{times: passes(1, 0)}).limit(), "more rows take no longer")
	require.Equal(t, math.MaxInt, (&share{times: passes(1, -0.01)}).limit())
	require.Equal(t, math.MaxInt32, (&share{times: passes(1e10, 1)}).limit())
}

func TestLine(t *testing.T) {
	l := passes(40, 3)
	base, slope, ok := l.fit()
	require.True(t, ok)
	require.InDelta(t, 40, base, 1e-6)
	require.InDelta(t, 3, slope, 1e-6)
	for i := range 200 { // the machine became slower
		rows := float64(1 + i%17)
		l.add(rows, 80+5*rows)
	}
	base, slope, _ = l.fit()
	require.InDelta(t, 80, base, 0.5)
	require.InDelta(t, 5, slope, 0.1)
}

// TestPromptsWait: a client's prompts wait for others' answers, and for nobody else's, once
// they have taken more than half of the time. Package turns keeps the account.
func TestPromptsWait(t *testing.T) {
	var s share
	a, b := t.Name()+"a", t.Name()+"b"
	turns.Charge(a, time.Hour)
	require.False(t, s.promptsWait(a), "nobody decodes")
	s.client(a)
	require.False(t, s.promptsWait(a), "nobody else decodes")
	s.client(b)
	require.True(t, s.promptsWait(a))
	require.False(t, s.promptsWait(b))
}

// TestOwedAfter: after prompts, answers of other clients have as much time, however many clients
// send prompts; those of the same client have some of it after long prompts.
func TestOwedAfter(t *testing.T) {
	prompt := func(client string, n int) *job { return &job{req: Request{Client: client, Prompt: make([]int32, n)}} }
	var s share
	require.Zero(t, s.owedAfter(prompt("a", 10)))
	require.EqualValues(t, answersShare, s.owedAfter(prompt("a", longPrompt)), "nobody else decodes")
	s.client("a")
	require.EqualValues(t, answersShare, s.owedAfter(prompt("a", 10), prompt("a", longPrompt)))
	require.EqualValues(t, othersShare, s.owedAfter(prompt("a", longPrompt), prompt("b", 10)))
	s.client("b")
	require.EqualValues(t, othersShare, s.owedAfter(prompt("a", 10)))
}

// TestPromptsInTurn: a client with one prompt does not wait for all of another.
func TestPromptsInTurn(t *testing.T) {
	var e Engine
	for _, client := range []string{"a", "a", "a", "a", "b", "c", "a"} {
		e.running = append(e.running, &job{req: Request{Client: client}, session: new(model.Session)})
	}
	e.running[6].session = nil // its prompt has been read
	var got []int
	for range 12 {
		e.share.step++
		next := e.promptsInTurn()
		require.Len(t, next, 6)
		e.share.promptTurn(next[0])
		got = append(got, slices.Index(e.running, next[0]))
	}
	require.Equal(t, []int{0, 4, 5, 1, 4, 5, 2, 4, 5, 3, 4, 5}, got)
}

// TestClientsShareSteps: beside a client with many answers, one with few is in every step,
// and the steps are short; the many take turns, and none is left out for longer than that
// takes. Their results are those of each alone.
func TestClientsShareSteps(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 2)
	decode := &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 64, Interval: 8}}
	const limit = 4
	slow, fast := passes(4*limit-4, 1), passes(1000, 1) // the latter for hundreds of rows
	for name, test := range map[string]struct {
		o      Options
		times  line
		few    int
		many   int
		policy *lukv.Policy
		out    bool // answers are left out
	}{
		"one beside many":         {Options{}, slow, 1, 14, nil, true},
		"some beside many":        {Options{}, slow, 2, 9, nil, true},
		"with drafts":             {Options{Lookup: true}, slow, 1, 12, nil, true},
		"compressed as they grow": {Options{}, slow, 1, 12, decode, true},
		"as many":                 {Options{}, slow, 6, 6, nil, false},
		"few enough":              {Options{}, slow, 1, limit - 1, nil, false},
		"fast enough":             {Options{}, fast, 1, 14, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			steps, out, widest := 0, 0, 0
			missed := map[*choice]int{} // steps in succession
			verifyWith(t, func(e *Engine) {
				verify(e)
				e.share.times = test.times
				asked, in := map[string]int{}, map[string]int{}
				for _, c := range e.decoding { // those that could continue
					client := c.j.req.Client
					asked[client]++
					if missed[c]++; c.step == e.share.step {
						in[client]++
						missed[c] = 0
					}
					turns := 0
					if test.out {
						turns = (test.many + limit - 1 - test.few) / (limit - test.few)
					}
					if missed[c] > turns {
						panic(fmt.Sprintf("left out of %d steps", missed[c]))
					}
				}
				if asked["few"] < test.few || asked["many"] < test.many {
					return
				}
				steps++
				if in["few"] < test.few {
					panic("the client with few answers is left out")
				}
				if widest = max(widest, in["many"]); in["many"] < test.many {
					out++
				}
			})
			e := newEngine(t, m, test.o)
			few := Request{Client: "few", Prompt: tokens[0], Choices: test.few, Sampling: model.Sampling{MaxTokens: 24, IgnoreEOS: true, LogProbs: true, Temperature: 1}}
			if test.policy != nil {
				few.Policy, few.Context = test.policy, contexts[0]
			}
			many := few
			many.Client, many.Choices, many.Prompt = "many", test.many, tokens[1]
			if test.policy != nil {
				many.Context = contexts[1]
			}
			many.Sampling.Seed = 7
			a, err := e.Submit(within(t), many)
			require.NoError(t, err)
			b, err := e.Submit(within(t), few)
			require.NoError(t, err)
			got := make(chan *outcome)
			go func() { got <- collect(t, a, test.many) }()
			require.True(t, equal(collect(t, b, test.few), alone(t, m, few)))
			require.True(t, equal(<-got, alone(t, m, many)))
			require.NoError(t, e.Close()) // nothing counts any more
			require.Greater(t, steps, 10)
			if !test.out {
				require.Zero(t, out)
				return
			}
			require.Equal(t, steps, out)
			require.Equal(t, limit-test.few, widest)
		})
	}
}

// TestPromptsOfAClientWait: while a client reads long prompts, steps for another's answers alone
// lie between the pieces.
func TestPromptsOfAClientWait(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	for _, other := range []string{"few", "many"} {
		with, without, last := 0, 0, 0
		verifyWith(t, func(e *Engine) {
			verify(e)
			reads, decodes := 0, false
			for _, j := range e.running {
				if j.session != nil && j.fill != nil {
					reads += j.fill.Remaining()
				} else if j.req.Client == "few" && len(j.choices) > 0 && j.choices[0].fed > 0 {
					decodes = true
				}
			}
			switch {
			case !decodes || reads == 0 || last == 0:
			case reads < last:
				with++
			default:
				without++
			}
			last = reads
		})
		e := newEngine(t, m, Options{Latency: 20 * time.Millisecond})
		few := Request{Client: "few", Prompt: tokens[0], Sampling: model.Sampling{MaxTokens: 120, IgnoreEOS: true, LogProbs: true}}
		want := alone(t, m, few)
		a, err := e.Submit(within(t), few)
		require.NoError(t, err)
		first, err := a.Next(within(t))
		require.NoError(t, err)
		var long []int32
		for range 6 {
			long = append(long, tokens[1]...)
		}
		b, err := e.Submit(within(t), Request{Client: other, Prompt: long, PromptOnly: true})
		require.NoError(t, err)
		got := collect(t, a, 1)
		got.ids[0], got.probs[0] = append([]int32{first.Token.ID}, got.ids[0]...), append([]float64{first.Token.LogProb}, got.probs[0]...)
		got.text[0] = first.Text + got.text[0]
		require.True(t, equal(got, want))
		for _, err := range b.Events() {
			require.NoError(t, err)
		}
		require.NoError(t, e.Close()) // nothing counts any more
		require.Positive(t, with)
		if other == "many" {
			require.GreaterOrEqual(t, without, with)
		}
	}
}

// TestQuickPrompts: while answers are owed time, a short prompt is read in their steps, and a long
// one waits.
func TestQuickPrompts(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	name := func(client string) string { return t.Name() + client } // package turns keeps accounts by name
	short, long := tokens[0][:quickTokens], tokens[0]
	require.Greater(t, len(long), quickTokens)
	quick, left := false, 0
	verifyWith(t, func(e *Engine) {
		verify(e)
		e.pace.owed = 1e9
		decodes, reads := false, 0
		for _, j := range e.running {
			switch j.req.Client {
			case name("decodes"):
				decodes = j.session == nil && !j.over()
			case name("short"):
				quick = quick || decodes && j.session == nil
			case name("long"):
				if j.session != nil && j.fill != nil {
					reads = j.fill.Remaining()
				}
			}
		}
		if decodes && reads < left {
			panic("a long prompt is read")
		}
		if decodes {
			short := 0
			for _, p := range e.parts {
				if p.Prefill != nil {
					short += p.N
				}
			}
			if short > quickTokens {
				panic(fmt.Sprintf("%d tokens of short prompts are read in a step", short))
			}
		}
		left = reads
	})
	e := newEngine(t, m, Options{})
	q := Request{Client: name("decodes"), Prompt: short, Sampling: model.Sampling{MaxTokens: 200, IgnoreEOS: true}}
	a, err := e.Submit(within(t), q)
	require.NoError(t, err)
	_, err = a.Next(within(t))
	require.NoError(t, err)
	q.Sampling.MaxTokens = 3
	q.Client, q.Prompt = name("long"), long
	c, err := e.Submit(within(t), q)
	require.NoError(t, err)
	all := []*Stream{a, c}
	for i := range 5 {
		q.Client, q.Prompt = name("short"), short[i:]
		b, err := e.Submit(within(t), q)
		require.NoError(t, err)
		all = append(all, b)
	}
	for _, s := range all {
		for _, err := range s.Events() {
			require.NoError(t, err)
		}
	}
	require.NoError(t, e.Close()) // quick is not written any more
	require.True(t, quick, "the short prompt waited for the answer's end")
}
