package grammar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/stretchr/testify/require"
)

// ideographs returns a vocabulary of all bytes and of pairs of ideographs.
func ideographs() *Vocabulary {
	var list []string
	for b := range 256 {
		list = append(list, string([]byte{byte(b)}))
	}
	for r := range 8000 {
		list = append(list, string(rune(0x4e00+r))+string(rune(0x4e00+r/2)))
	}
	return NewVocabulary(len(list), func(id int32) []byte { return []byte(list[id]) })
}

// isolated returns n characters no two of which are neighbours.
func isolated(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteRune(rune(0x4e00 + 2*i))
	}
	return b.String()
}

func patternSchema(pattern string) Part {
	return Schema([]byte(`{"type":"string","pattern":`+quoted(pattern)+`}`), true)
}

// allocated returns the bytes that fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestWorkIsChargedBeforeItIsDone: patterns whose ways to be read, times the characters
// that each may go on with, are many, take bounded memory and leave nothing in the grammar.
func TestWorkIsChargedBeforeItIsDone(t *testing.T) {
	v := ideographs()
	for name, pattern := range map[string]string{
		"characters with a common first byte": "^([" + isolated(17000) + "]?){1000}$",
		"characters with two common bytes":    "^([" + isolated(31) + "]?){1000}$",
		"a property":                          `^(\p{L}?){1000}$`,
		"alternatives":                        "^((" + strings.Join(strings.Split(isolated(30), ""), "|") + ")?){900}$",
		"a class outside of JSON":             "([" + isolated(17000) + "]?){1000}",
	} {
		part := patternSchema(pattern)
		text := `"` + "一"
		if strings.HasPrefix(pattern, "(") {
			part, text = Regexp(pattern), "一"
		}
		var g *Grammar
		var err error
		require.Less(t, allocated(func() { g, err = Compile(bg, v, part) }), uint64(256<<20), name)
		if err != nil {
			require.ErrorContains(t, err, "states", name)
			continue
		}
		grown := allocated(func() {
			var s *State
			if s, err = g.Bytes(bg, nil, g.Start(), []byte(text)); err == nil {
				_, _, err = g.Mask(bg, nil, s)
			}
		})
		require.Less(t, grown, uint64(256<<20), name)
		require.True(t, err == nil || errors.Is(err, ErrAmbiguous), "%s: %v", name, err)
		require.Less(t, len(g.frames), 8*maxStates, name)
	}
}

// TestCompileWork: what it takes to compile a class that is repeated does not depend on its
// size times its repetitions.
func TestCompileWork(t *testing.T) {
	v := letters()
	for name, pattern := range map[string]string{
		"a class of 36 KB":      "^[" + isolated(12000) + "]{1000}$",
		"a negated class":       "^[^" + isolated(12000) + "]{1000}$",
		"two classes by turns":  "^([" + isolated(6000) + "][^" + isolated(6000) + "]){500}$",
		"a class within bounds": "^([" + isolated(12000) + "]|a){1000}$",
	} {
		m, err := begin(bg, maxCompileWork, ErrBudget)
		require.NoError(t, err)
		c := newCompiler(m)
		r := c.begin(0, -1)
		grown := allocated(func() { _, err = patternSchema(pattern).build(c, c.rules[r].start) })
		m.end()
		require.NoError(t, err, name)
		require.NoError(t, c.err, name)
		require.Less(t, m.done, 1<<16, name)
		require.Less(t, grown, uint64(64<<20), name)
	}
	_, err := Compile(bg, v, Schema([]byte(`{"anyOf":[`+strings.Repeat(`{"type":"string","pattern":"`+"["+isolated(3000)+"]"+`","maxLength":4000},`, 20)+`true]}`), true))
	require.ErrorContains(t, err, "all patterns together")
}

// spend follows a text through a grammar, asking for each mask, and returns the work.
func spend(t *testing.T, g *Grammar, text string) int64 {
	budget := NewBudget(1)
	before := budget.left.Load()
	s := g.Start()
	for i := range len(text) {
		_, _, err := g.Mask(bg, budget, s)
		require.NoError(t, err)
		s, err = g.Bytes(bg, budget, s, []byte(text[i:i+1]))
		require.NoError(t, err)
		require.NotNil(t, s)
	}
	return before - budget.left.Load()
}

// TestWorkDoesNotDependOnOthers: the work that an answer is charged for is the same whether
// or not others were there before it, and whether everything was forgotten meanwhile.
func TestWorkDoesNotDependOnOthers(t *testing.T) {
	for _, test := range []struct {
		part Part
		text string
	}{
		{patternSchema("^[a-y]*[b-z][a-y]{12}$"), `"abcabcbbacbacbabc`},
		{Schema([]byte(`{"type":"array","items":{"anyOf":[{"type":"string","maxLength":50},{"type":"object"},{"type":"number"}]}}`), false), `["hello", {"a": [1, 2, {"b": null}]}, 1.25, "`},
		{Regexp(`(?s).*[a-m].{30}`), "abcdefghijklmnopqrstuvwxyz"},
	} {
		g, err := Compile(bg, letters(), test.part)
		require.NoError(t, err)
		cold := spend(t, g, test.text)
		require.Positive(t, cold)
		require.Equal(t, cold, spend(t, g, test.text), "everything is remembered")
		g.forget()
		require.Equal(t, cold, spend(t, g, test.text), "after forgetting")
		s := g.Start()
		for i := range len(test.text) { // forgetting in between
			s, err = g.Bytes(bg, nil, s, []byte(test.text[i:i+1]))
			require.NoError(t, err)
			want := spent(t, g, s)
			g.forget()
			require.Equal(t, want, spent(t, g, s), "%q", test.text[:i+1])
		}
	}
}

// spent returns the work of a single mask.
func spent(t *testing.T, g *Grammar, s *State) int64 {
	b := NewBudget(1)
	before := b.left.Load()
	_, _, err := g.Mask(bg, b, s)
	require.NoError(t, err)
	return before - b.left.Load()
}

// TestBudget: the masks of a request end when its work is done, and only these.
func TestBudget(t *testing.T) {
	g := compileSchema(t, `{"type":"array"}`, true)
	poor, rich := new(Budget), NewBudget(1)
	poor.left.Store(500)
	s := g.Start()
	var err error
	for err == nil {
		if _, _, err = g.Mask(bg, poor, s); err == nil {
			s, err = g.Bytes(bg, poor, s, []byte("["))
		}
	}
	require.ErrorIs(t, err, ErrBudget)
	_, _, err = g.Mask(bg, rich, g.Start())
	require.NoError(t, err)
	require.Greater(t, NewBudget(128).left.Load(), NewBudget(1).left.Load())
}

// late is a context that ends when it has been asked for its end a number of times.
type late struct {
	context.Context
	cancel context.CancelCauseFunc
	left   atomic.Int64
}

func (l *late) Err() error {
	if l.left.Add(-1) == 0 {
		l.cancel(errors.New("the client has left"))
	}
	return l.Context.Err()
}

func newLate(checks int) *late {
	l := new(late)
	l.Context, l.cancel = context.WithCancelCause(context.Background())
	l.left.Store(int64(checks))
	return l
}

// TestCancelled: compiling and masks end when their context does, soon, and others can go
// on.
func TestCancelled(t *testing.T) {
	v := ideographs()
	many := strings.TrimSuffix(strings.Repeat(`{"type":"object","properties":{"abcdefgh":{"type":"number","minimum":-5.5,"maximum":7.25}}},`, 200), ",")
	schema := Schema([]byte(`{"anyOf":[`+many+`]}`), true)
	_, err := Compile(newLate(4), v, schema)
	require.ErrorContains(t, err, "the client has left")
	_, err = Compile(bg, v, schema)
	require.NoError(t, err)

	g, err := Compile(bg, v, patternSchema("^["+isolated(12000)+"]{1000}$"))
	require.NoError(t, err)
	s, err := g.Bytes(bg, nil, g.Start(), []byte(`"`))
	require.NoError(t, err)
	_, _, err = g.Mask(newLate(8), nil, s)
	require.ErrorContains(t, err, "the client has left")
	require.Less(t, g.meter.done, 9*quantum)
	_, _, err = g.Mask(bg, nil, s)
	require.NoError(t, err)
	require.Greater(t, g.meter.done, 18*quantum)

	over, cancel := context.WithCancel(bg)
	cancel()
	_, err = g.Bytes(over, nil, s, []byte("一"))
	require.ErrorIs(t, err, context.Canceled)
	_, err = g.Bytes(bg, nil, s, []byte("一"))
	require.NoError(t, err)
}

// TestTurns: a grammar's masks come although another's never end.
func TestTurns(t *testing.T) {
	heavy, err := Compile(bg, ideographs(), patternSchema("^["+isolated(12000)+"]{1000}$"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2*runtime.GOMAXPROCS(0))
	for i := range cap(ended) {
		go func() {
			var err error
			for n := 0; err == nil; n++ {
				var s *State
				if s, err = heavy.Bytes(ctx, nil, heavy.Start(), []byte(fmt.Sprint(`"`, isolated(i+n%500+1)))); err == nil && s != nil {
					_, _, err = heavy.Mask(ctx, nil, s)
				}
			}
			ended <- err
		}()
	}
	light := compileSchema(t, `{"type":"array","items":{"type":"integer"}}`, true)
	require.Positive(t, spend(t, light, "[1, 2, 3"))
	cancel()
	for range cap(ended) {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
}

// FuzzPatternBounds: whatever a pattern and its bounds, compiling it and following it take
// bounded work and memory, the same for the first answer as for later ones.
func FuzzPatternBounds(f *testing.F) {
	f.Add("^[a-c]*[b-z]{3}$", 0, 9, uint64(1))
	f.Add(`(\p{L}?){200}`, 3, -1, uint64(2))
	f.Add("^("+isolated(40)+"|a)*$", 1, 50, uint64(3))
	f.Add(`((a?){30}){30}`, 0, -1, uint64(4))
	f.Add(`((a?){30}){30}`, 22, -1, uint64(3))
	v := letters()
	f.Fuzz(func(t *testing.T, pattern string, least, most int, seed uint64) {
		defer testfuzz.Bound(t, 16<<20)() // an automaton of maxNodes takes some 70 MiB to compile, and the frames of each answer as much
		if len(pattern) > 1<<10 {
			return
		}
		bounds := fmt.Sprintf(`,"minLength":%d`, least)
		if most >= 0 {
			bounds += fmt.Sprintf(`,"maxLength":%d`, most)
		}
		part := Schema([]byte(`{"type":"string","pattern":`+quoted(pattern)+bounds+`}`), true)
		g, err := Compile(bg, v, part)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(g.nodes), maxNodes)
		follow := func() (work int64, err error) {
			budget, s, rng := NewBudget(1), g.Start(), rand.New(rand.NewPCG(seed, 2))
			before := budget.left.Load()
			for range 6 {
				mask, some, err := g.Mask(bg, budget, s)
				require.LessOrEqual(t, g.meter.done, maxWork+maxFrames)
				if err != nil || !some {
					return before - budget.left.Load(), err
				}
				id := int32(rng.IntN(g.v.size))
				for mask[id>>6]>>(id&63)&1 == 0 {
					id = (id + 1) % int32(g.v.size)
				}
				if s, err = g.Token(bg, budget, s, id); err != nil {
					return before - budget.left.Load(), err
				}
			}
			return before - budget.left.Load(), nil
		}
		first, err1 := follow()
		again, err2 := follow()
		require.Equal(t, first, again)
		require.Equal(t, err1, err2)
		require.Less(t, len(g.frames), 8*maxStates)
		require.Less(t, len(g.states), maxStates)
	})
}
