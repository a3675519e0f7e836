package tokenizer

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTekkenPattern: a plus after braces, which is possessive only in the regular
// expressions of tiktoken, is refused.
func TestTekkenPattern(t *testing.T) {
	_, err := readTekken([]byte(strings.Replace(tekkenOf(259, 2), `"pattern":"a"`, `"pattern":"a{1,3}+|."`, 1)), &config{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "differently")
}

// TestTekkenEntries puts entries before a valid vocabulary.
func TestTekkenEntries(t *testing.T) {
	for entry, want := range map[string]string{
		`{"token_bytes":"YWI="}`:              "entry 0: no rank",
		`{"rank":-2,"token_bytes":"YWI="}`:    "entry 0: JSON at byte 9: found -2, expected a whole number of at least 0",
		`{"rank":"x","token_bytes":"YWI="}`:   `entry 0: JSON at byte 9: found '"', expected a number`,
		`{"rank":256,"token_bytes":7}`:        "entry 0: JSON at byte 27: found '7', expected base64, a string",
		`{"rank":256,"token_bytes":""}`:       "rank 256 has about 0 bytes",
		`{"rank":256,"token_bytes":"Y"}`:      "rank 256 has about 0 bytes",
		`{"rank":256,"token_bytes":"!!!!"}`:   "rank 256: token_bytes: illegal base64",
		`{"rank":256,"token_bytes":"YQ=="}`:   `rank 97 has bytes "a", expected some that no other rank has`,
		`{"rank":97,"token_bytes":"YWI="}`:    "rank 97 occurs twice",
		`{"rank":257,"token_bytes":"nobody"}`: "no rank 256", // beyond the vocabulary
	} {
		file := strings.Replace(tekkenOf(259, 2), `"vocab":[`, `"vocab":[`+entry+`,`, 1)
		_, err := readTekken([]byte(file), &config{})
		require.ErrorContains(t, err, want, entry)
	}
	file := strings.Replace(tekkenOf(259, 2), `"vocab":[`, `"vocab":[{"rank":256,"token_bytes":"YWI="},`, 1)
	tok, err := readTekken([]byte(file), &config{})
	require.NoError(t, err)
	require.Equal(t, "ab", tok.Piece(258))
}
