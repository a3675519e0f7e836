package kvevents

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// unpack reads a value as MessagePack's specification says, and returns it with what
// follows.
func unpack(t require.TestingT, p []byte) (any, []byte) {
	list := func(n int, p []byte) (any, []byte) {
		out := []any{}
		for range n {
			var v any
			v, p = unpack(t, p)
			out = append(out, v)
		}
		return out, p
	}
	be, head := binary.BigEndian, p[0]
	switch p = p[1:]; {
	case head < 0x80:
		return uint64(head), p
	case head&0xf0 == 0x90:
		return list(int(head&15), p)
	case head&0xe0 == 0xa0:
		n := int(head & 31)
		return string(p[:n]), p[n:]
	}
	switch head {
	case 0xc0:
		return nil, p
	case 0xcb:
		return math.Float64frombits(be.Uint64(p)), p[8:]
	case 0xcc:
		return uint64(p[0]), p[1:]
	case 0xcd:
		return uint64(be.Uint16(p)), p[2:]
	case 0xce:
		return uint64(be.Uint32(p)), p[4:]
	case 0xcf:
		return be.Uint64(p), p[8:]
	case 0xdc:
		return list(int(be.Uint16(p)), p[2:])
	case 0xdd:
		return list(int(be.Uint32(p)), p[4:])
	}
	require.Fail(t, "unknown", "%#x", head)
	return nil, nil
}

// router is what a listener to events knows: the text up to the end of every block, by
// the block's hash.
type router map[any]string

func (r router) hear(t require.TestingT, event pack) {
	if event == nil {
		return
	}
	v, rest := unpack(t, event)
	require.Empty(t, rest)
	e := v.([]any)
	switch e[0] {
	case "AllBlocksCleared":
		require.Len(t, e, 1)
		clear(r)
	case "BlockRemoved":
		require.Equal(t, "GPU", e[2])
		for _, h := range e[1].([]any) {
			require.Contains(t, r, h, "it was stored before")
			delete(r, h)
		}
	case "BlockStored":
		require.Equal(t, []any{uint64(16), nil, "GPU", nil}, e[4:])
		text, known := "", e[2] == nil
		if !known {
			text, known = r[e[2]]
		}
		require.True(t, known, "the block in front is there")
		tokens := e[3].([]any)
		require.Len(t, tokens, 16*len(e[1].([]any)))
		for i, h := range e[1].([]any) {
			text += fmt.Sprint(tokens[16*i : 16*i+16])
			require.NotContains(t, r, h, "it was not there before")
			r[h] = text
		}
	default:
		require.Fail(t, "unknown", "%v", e)
	}
}

// knows requires that the router knows exactly the blocks of the given prompts.
func (r router) knows(t require.TestingT, prompts map[string]int) {
	want, got := map[string]bool{}, map[string]bool{}
	for name, n := range prompts {
		text := ""
		for block := 0; n > 0 && block+1 < len(name); block++ {
			text += fmt.Sprint(anys(blockOf(name[block])))
			want[name[len(name)-1:]+text] = true // the label
		}
	}
	for _, text := range r {
		for _, label := range []string{"p", "q"} {
			if want[label+text] {
				got[label+text] = true
			}
		}
	}
	require.Equal(t, want, got)
	require.Len(t, r, len(want))
}

func anys(tokens []int32) (out []any) {
	for _, x := range tokens {
		out = append(out, uint64(x))
	}
	return out
}

// blockOf returns a block named by a letter, with tokens of all lengths in MessagePack.
func blockOf(letter byte) (out []int32) {
	for i := range int32(blockTokens) {
		out = append(out, int32(letter)<<(i%14))
	}
	return out
}

// prompt returns a prompt of blocks named by letters; one more letter names its label.
func prompt(name string, rest int) (label string, tokens []int32) {
	n := len(name) - 1
	for i := range n {
		tokens = append(tokens, blockOf(name[i])...)
	}
	return name[n:], append(tokens, blockOf('z')[:rest]...)
}

// TestBlocks: a listener to the events knows the blocks of the prompts that are there,
// whichever came, went and came again.
func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, r, prompts := newBlocks(), router{}, map[string]int{}
		name := rapid.StringMatching("[ab]{0,4}[pq]")
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			s := name.Draw(t, "prompt")
			label, tokens := prompt(s, len(s)%3)
			if rapid.Bool().Draw(t, "put") {
				r.hear(t, b.put(label, tokens))
				prompts[s]++
			} else {
				r.hear(t, b.remove(label, tokens)) // perhaps one that is not there
				prompts[s] = max(0, prompts[s]-1)
			}
			r.knows(t, prompts)
		}
	})
}
