package tokenizer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTekkenEntries puts entries before a valid vocabulary.
func TestTekkenEntries(t *testing.T) {
	for entry, want := range map[string]string{
		`{"token_bytes":"YWI="}`:              "entry 0 has rank -1: expected 0 or more",
		`{"rank":-2,"token_bytes":"YWI="}`:    "entry 0 has rank -2: expected 0 or more",
		`{"rank":"x","token_bytes":"YWI="}`:   `entry 0 has rank 0: strconv.ParseInt: parsing "\"x\""`,
		`{"rank":256,"token_bytes":7}`:        "entry 0 has rank 256: found 7, expected a string",
		`{"rank":256,"token_bytes":""}`:       "rank 256 has about 0 bytes",
		`{"rank":256,"token_bytes":"Y"}`:      "rank 256 has about 0 bytes",
		`{"rank":256,"token_bytes":"!!!!"}`:   "rank 256: token_bytes: illegal base64",
		`{"rank":256,"token_bytes":"YQ=="}`:   `bytes "a" stand there twice`,
		`{"rank":97,"token_bytes":"YWI="}`:    "rank 97 stands there twice",
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
