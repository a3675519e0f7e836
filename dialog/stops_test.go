package dialog

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

func newStops(t testing.TB, list ...string) *Stops {
	s, err := NewStops(list)
	require.NoError(t, err)
	return s
}

// firstStop returns the part of a text before the stop text that is completed first, or the
// longest of those completed together, by definition.
func firstStop(text string, stops []string) (before string, end int, stopped bool) {
	for end := 1; end <= len(text); end++ {
		longest := 0
		for _, stop := range stops {
			if strings.HasSuffix(text[:end], stop) {
				longest = max(longest, len(stop))
			}
		}
		if longest > 0 {
			return text[:end-longest], end, true
		}
	}
	return text, len(text), false
}

func TestNewStops(t *testing.T) {
	_, err := NewStops([]string{"a", "世"})
	require.NoError(t, err)
	none, err := NewStops(nil)
	require.NoError(t, err)
	require.Nil(t, none)
	require.Zero(t, none.Bytes())
	for want, list := range map[string][]string{
		"empty": {"a", ""}, "UTF-8": {"世界"[:4]}, "more than 65536 bytes": {strings.Repeat("a", 40000), strings.Repeat("b", 40000)},
	} {
		_, err := NewStops(list)
		require.ErrorContains(t, err, want)
	}
	most := newStops(t, strings.Repeat("a", maxStopBytes-1))
	require.Equal(t, int64(stopBytes*maxStopBytes), most.Bytes())
}

// TestStopsAreLinear: the nodes that are visited for an answer are proportional to it, also
// for stop texts that are nearly found everywhere.
func TestStopsAreLinear(t *testing.T) {
	for name, list := range map[string]func(n int) []string{
		"that end differently": func(n int) []string { return ending(strings.Repeat("a", n), 16) },
		"within each other":    func(n int) []string { return []string{strings.Repeat("a", n) + "b", strings.Repeat("a", n/2) + "c"} },
		"that repeat": func(n int) []string {
			return []string{strings.Repeat("ab", n/2) + "c", strings.Repeat("ba", n/2) + "c"}
		},
		"whose failures are chains": func(n int) []string {
			return []string{strings.Repeat("a", n) + "b", "aab", "ab" + strings.Repeat("a", n) + "c"}
		},
	} {
		s := newStops(t, list(2000)...)
		text := strings.Repeat("a", 20000) + strings.Repeat("ab", 10000)
		visited, at := 0, int32(0)
		for i := range len(text) {
			for from := at; ; from = s.nodes[from].fail {
				visited++
				if s.next(from, text[i]) != 0 || from == 0 {
					break
				}
			}
			if at = s.step(at, text[i]); s.nodes[at].stop > 0 {
				at = 0
			}
		}
		require.LessOrEqual(t, visited, 2*len(text), name)
		children := map[int32]int{}
		for i := range s.nodes {
			for child := s.nodes[i].child; child != 0; child = s.nodes[child].sibling {
				children[int32(i)]++
			}
		}
		for at, n := range children {
			require.LessOrEqual(t, n, 16, "%s: node %d", name, at)
		}
	}
}

// ending returns n texts that begin with the same one.
func ending(text string, n int) []string {
	var list []string
	for i := range n {
		list = append(list, text+string(rune('b'+i)))
	}
	return list
}

// TestHeldIsBounded: no more is held back than the longest stop text, and each byte of the
// answer is returned once.
func TestHeldIsBounded(t *testing.T) {
	a := &Answer{stops: newStops(t, strings.Repeat("a", 1000)+"b")}
	out := 0
	for range 5000 {
		out += len(a.add("aaa"))
		require.LessOrEqual(t, len(a.held), 1000)
		require.LessOrEqual(t, cap(a.held), 4096)
	}
	require.Equal(t, 15000, out+len(a.held))
	require.Equal(t, "aa", a.add("aab"))
	require.True(t, a.Stopped())
}

// FuzzStops: however an answer is split, it ends where a search in the whole text ends.
func FuzzStops(f *testing.F) {
	f.Add("abcabcd", "abcd\x00bc", uint64(1), true)
	f.Add(strings.Repeat("a", 50)+"b", strings.Repeat("a", 20)+"b\x00aab", uint64(7), false)
	f.Add("日本語 text", "本\x00本語", uint64(3), false)
	f.Fuzz(func(t *testing.T, text, joined string, split uint64, keep bool) {
		defer testfuzz.Bound(t, len(text)+len(joined))()
		if len(text) > 1<<10 || len(joined) > 1<<9 || !utf8.ValidString(text) {
			return
		}
		list := strings.Split(joined, "\x00")
		stops, err := NewStops(list)
		if err != nil {
			return
		}
		before, end, stopped := firstStop(text, list)
		if stopped && keep {
			before = text[:end]
		}
		a, got := &Answer{stops: stops, keep: keep}, ""
		for rest := text; rest != "" && !a.Stopped(); {
			n := min(len(rest), 1+int(split%7))
			split = split*6364136223846793005 + 1442695040888963407
			got += a.add(rest[:n])
			rest = rest[n:]
		}
		if !a.Stopped() {
			got += string(a.held)
		}
		require.Equal(t, before, got)
		require.Equal(t, stopped, a.Stopped())
	})
}

// BenchmarkStops searches an answer of the given number of characters for 16 stop texts that
// it nearly contains everywhere.
func BenchmarkStops(b *testing.B) {
	tok, err := tokenizer.Load(builtin.Files())
	require.NoError(b, err)
	for _, n := range []int{1000, 2000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			stops := newStops(b, ending(strings.Repeat("a", n), 16)...)
			ids := tok.Encode(strings.Repeat("a", n), tokenizer.EncodeOptions{})
			for b.Loop() {
				a := NewAnswer(tok, stops)
				for _, id := range ids {
					a.Token(id)
				}
				a.End()
			}
		})
	}
}
