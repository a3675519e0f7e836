package scoring

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Right answers of a choice are single letters from A to J; others are none.
func TestRightOptions(t *testing.T) {
	letters, texts := rightOptions(&Reference{Answers: []string{"AB", "K", "", "a", "J", "B", "@"}, Classes: []string{"one", "two"}})
	require.Equal(t, []string{"J", "B"}, letters)
	require.Equal(t, []string{"two"}, texts)
}
