package strictjson

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"
)

// depth returns the greatest nesting depth in a text.
func depth(text []byte) int {
	var n Nesting
	most := 0
	for _, c := range text {
		n.Next(c)
		most = max(most, n.Depth)
	}
	return most
}

func TestNesting(t *testing.T) {
	for text, want := range map[string]int{
		``: 0, `1`: 0, `"[{"`: 0, `[]`: 1, `{"a":[1,{"b":"}\"]"}]}`: 3, `["\\",[]]`: 2, `[[],[[]]`: 3, `]`: 0,
	} {
		require.Equal(t, want, depth([]byte(text)), text)
	}
}

// TestDepthOfValues: the depth of JSON text is that of the value, by brackets and
// by the limit of a Scanner.
func TestDepthOfValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var value func(depth int) (any, int)
		value = func(depth int) (any, int) {
			if depth == 0 || rapid.Bool().Draw(t, "text") {
				return rapid.String().Draw(t, "s"), 0
			}
			most, list := 0, []any{}
			for range rapid.IntRange(0, 3).Draw(t, "n") {
				v, d := value(depth - 1)
				most, list = max(most, d), append(list, v)
			}
			if rapid.Bool().Draw(t, "object") {
				return map[string]any{rapid.String().Draw(t, "key"): list}, most + 2
			}
			return list, most + 1
		}
		v, want := value(4)
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.Equal(t, want, depth(text), "%s", text)
		require.NoError(t, Check(text, want), "%s", text)
		if want > 0 {
			require.ErrorContains(t, Check(text, want-1), "deep", "%s", text)
		}
	})
}
