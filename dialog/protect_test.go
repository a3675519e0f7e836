package dialog

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// held returns how many entries the heads of a conversation's session hold of the tokens
// at positions [from,to): the fewest and the most.
func held(c *Conversation, from, to int) (least, most int) {
	cfg := c.m.Config()
	least = to - from
	for at := range cfg.Layers {
		for h := range cfg.KVHeads {
			n := 0
			for _, p := range c.s.Cache().Positions(at, h, nil) {
				if int(p) >= from && int(p) < to {
					n++
				}
			}
			least, most = min(least, n), max(most, n)
		}
	}
	return least, most
}

// TestSystemPromptStays: a document after a system prompt is compressed alone, if the
// policy allows it.
func TestSystemPromptStays(t *testing.T) {
	m := open(t)
	f, err := PlainFormat(m)
	require.NoError(t, err)
	document := builtin.Samples()[0].Context
	system := strings.Repeat("Answer in one word, please. ", 5)
	in := chat.Input{AddGenerationPrompt: true, Messages: []*chat.Object{chat.NewMessage("system", system), chat.NewMessage("user", "Who?")}}
	tokens, front, n, err := f.SplitTokens(t.Context(), in, document, 2000)
	require.NoError(t, err)
	require.Greater(t, len(front), 20)
	require.Equal(t, front, tokens[:len(front)])
	in.Messages = in.Messages[1:]
	_, none, _, err := f.SplitTokens(t.Context(), in, document, 2000)
	require.NoError(t, err)
	require.Empty(t, none, "a header is the beginning of the context")

	for _, x := range []struct {
		policy lukv.Policy
		stays  bool
	}{
		{lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "snapkv"}}, true},
		{lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "compactor"}}, false},
		{lukv.Policy{Ratio: 0.8, Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 1000}}, false},
		{lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "streaming_llm", Params: `{"rerotate":true}`}}, false},
	} {
		want := 0
		if x.stays {
			want = len(front)
		}
		require.Equal(t, want, Protected(m, &x.policy, front, tokens[:n]), "%v", x.policy)
		c := begin(t, m, true)
		c.System, c.Session.Compression = system, &x.policy
		require.NoError(t, c.ReadDocument(t.Context(), document))
		require.Equal(t, tokens[:n], c.s.Tokens())
		least, _ := held(c, 0, len(front))
		require.Equal(t, x.stays, least == len(front), "%v", x.policy)
		if x.stays {
			least, most := held(c, len(front), n)
			require.Equal(t, least, most)
			require.InDelta(t, 0.2*float64(n-len(front)), least, 1)
		}
	}
}

// TestOlderTurns: what was said before the last turns is compressed, once, and nothing
// else; after a change in it, it is read again.
func TestOlderTurns(t *testing.T) {
	for _, document := range []string{"", builtin.Samples()[0].Context} {
		for _, plain := range []bool{true, false} {
			c := begin(t, open(t), plain)
			c.Sampling.MaxTokens, c.Sampling.IgnoreEOS = 12, true
			c.Session.Compression = &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}
			c.KeepTurns = 2
			if plain {
				c.System = "Be brief."
			}
			if document != "" {
				require.NoError(t, c.ReadDocument(t.Context(), document))
			}
			front := len(c.headTokens)
			var ends []int // of the compressed part, after each message
			say := func(text string) {
				t.Helper()
				_, err := c.Ask(t.Context(), text, quiet)
				require.NoError(t, err)
				ends = append(ends, c.s.Stats().ContextTokens)
				prompt, err := c.Prompt(t.Context(), c.Messages[:len(c.Messages)-1])
				require.NoError(t, err)
				want, err := c.encode(t.Context(), prompt)
				require.NoError(t, err)
				require.Equal(t, want, c.s.Tokens()[:len(want)], "the session holds the prompt, every token once")
			}
			for range 5 {
				say(strings.Repeat("Where does Ada live now? ", 4))
			}
			require.Equal(t, []int{front, front, front}, ends[:3], "two turns stay, and the one that is asked")
			require.Greater(t, ends[3], front)
			require.Greater(t, ends[4], ends[3])
			if document == "" && plain {
				least, _ := held(c, 0, 4)
				require.Equal(t, 4, least, "the system prompt")
			}
			least, most := held(c, front, ends[4])
			assert.Less(t, most, ends[4]-front)
			assert.Less(t, 0, least)
			least, _ = held(c, ends[4], c.s.Len())
			assert.Equal(t, c.s.Len()-ends[4], least, "what is newer stays")

			// The last message again: nothing else is read.
			s := c.s
			c.Messages = c.Messages[:8]
			say("Something else?")
			require.Same(t, s, c.s)
			require.Equal(t, ends[4], ends[5])
			// What is compressed changes: everything is read and compressed again.
			c.Messages[0].Set("content", "Something new.")
			say("And now?")
			require.NotSame(t, s, c.s)
			least, most = held(c, front, ends[6])
			assert.Less(t, most, ends[6]-front)
			assert.Less(t, 0, least)
			c.KeepTurns = 0
			say("Off again?")
			require.Equal(t, ends[6], ends[7])
		}
	}
}

// TestTurnsTokens: what was said before the last turns is separated from what stays,
// within the exact tokens of the whole prompt.
func TestTurnsTokens(t *testing.T) {
	m := open(t)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	templated, err := NewFormat(m, time.Unix(0, 0))
	require.NoError(t, err)
	plain, err := PlainFormat(m)
	require.NoError(t, err)
	for _, f := range []*Format{templated, plain} {
		in := chat.Input{AddGenerationPrompt: true}
		say := func(role, text string) { in.Messages = append(in.Messages, chat.NewMessage(role, text)) }
		if f == plain { // the other template has no place for it
			say("system", "Be brief.")
		}
		for _, n := range []string{"one", "two", "three", "four"} {
			say("user", "Question "+n+"?")
			say("assistant", "Answer "+n+".")
		}
		say("user", "Question five?")
		want, err := f.Tokens(t.Context(), in, 2000)
		require.NoError(t, err)
		for keep, last := range map[int]string{1: "three", 2: "two", 3: "one"} {
			tokens, front, n, err := f.TurnsTokens(t.Context(), in, keep, 2000)
			require.NoError(t, err)
			require.Equal(t, want, tokens)
			before, behind := tok.Decode(tokens[:n], false), tok.Decode(tokens[n:], false)
			require.Contains(t, before, "Answer "+last+".")
			require.Equal(t, 4-keep, strings.Count(before, "Question"), before)
			require.Equal(t, keep+1, strings.Count(behind, "Question"), behind)
			text := tok.Decode(tokens[:common(front, tokens)], false)
			require.NotContains(t, text, "Question")
			if f == plain {
				require.Contains(t, text, "Be brief.")
			}
		}
		for _, keep := range []int{4, 5, 100} {
			tokens, _, n, err := f.TurnsTokens(t.Context(), in, keep, 2000)
			require.NoError(t, err)
			require.Equal(t, want, tokens)
			require.Zero(t, n, "nothing is older")
		}
	}
}

// TestChosenRatioKeepsTheCacheType: a policy whose ratio is chosen by the loss may name a cache
// type; the result is the session that this ratio gives.
func TestChosenRatioKeepsTheCacheType(t *testing.T) {
	ctx := t.Context()
	m := open(t)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	tokens := tok.Encode(builtin.Samples()[9].Context, tokenizer.EncodeOptions{})
	o := model.SessionOptions{Compression: &lukv.Policy{CacheType: "int4"}}
	s, loss, err := ReadContextWithin(ctx, m, o, tokens, 3, 1)
	require.NoError(t, err)
	defer s.Close()
	require.True(t, loss.Measured())
	require.Equal(t, tensor.Q4_0, s.Cache().Options().Type)

	o.Compression.Ratio = 0.95
	given, err := ReadContext(ctx, m, o, tokens, 3)
	require.NoError(t, err)
	defer given.Close()
	for _, x := range []*model.Session{s, given} {
		require.NoError(t, x.Append(ctx, 7))
	}
	require.Equal(t, given.Logits(), s.Logits())
}
