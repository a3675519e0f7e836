package brackets

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"
)

func TestDepth(t *testing.T) {
	for text, want := range map[string]int{
		``: 0, `1`: 0, `"[{"`: 0, `[]`: 1, `{"a":[1,{"b":"}\"]"}]}`: 3, `["\\",[]]`: 2, `[[],[[]]`: 3, `]`: 0,
	} {
		require.Equal(t, want, Depth([]byte(text)), text)
	}
}

// TestDepthOfValues: the depth of JSON text is that of the value.
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
		require.Equal(t, want, Depth(text), "%s", text)
	})
}
