package ruler

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSamplesStay: a seed has the same samples in every release, so that an evaluation can be
// repeated and continued. Whoever changes them changes the results of evaluations.
func TestSamplesStay(t *testing.T) {
	want := map[string]string{
		"cwe":             "ad23991b7a8a",
		"fwe":             "d214c0e2d6dd",
		"niah_multikey_1": "5a8ecb127f00",
		"niah_multikey_2": "170748bcd403",
		"niah_multikey_3": "50094e1e08c4",
		"niah_multiquery": "6ba0efe62ee1",
		"niah_multivalue": "5e07bbe9167f",
		"niah_single_1":   "abdd2f0b07f8",
		"niah_single_2":   "5d70b55ee1d4",
		"niah_single_3":   "7f35a3a0039c",
		"qa_1":            "4b710c4ed60d",
		"qa_2":            "0276d33fab28",
		"vt":              "788be5c234ec",
	}
	got := map[string]string{}
	for _, task := range Tasks() {
		h := sha256.New()
		for _, s := range samples(t, Options{Task: task, Length: 800, Samples: 2, Seed: 5, Count: fields}) {
			require.NoError(t, json.NewEncoder(h).Encode(s))
		}
		got[task] = hex.EncodeToString(h.Sum(nil)[:6])
	}
	require.Equal(t, want, got)
}

// TestCodedWords: the task fwe has as many coded words as its length asks for, all mixed.
func TestCodedWords(t *testing.T) {
	for length, distinct := range map[int]int{200: 4, 300: 5, 299: 4, 349: 5} {
		s := samples(t, Options{Task: "fwe", Length: length, Samples: 1, Seed: 3, Count: fields})[0]
		_, text, _ := strings.Cut(s.Input, "mean nothing. ")
		var words []string
		for _, w := range strings.Fields(text) {
			if !regexp.MustCompile(`^([a-z]{6}|\.\.\.)$`).MatchString(w) {
				break
			}
			words = append(words, w)
		}
		runs := len(slices.Compact(slices.Clone(words)))
		slices.Sort(words)
		require.Len(t, slices.Compact(words), distinct, "%d", length)
		require.Greater(t, runs, 3*distinct, "shuffled")
	}
}

// TestUUIDs are random ones by RFC 9562: version 4, the variant, all other bits drawn.
func TestUUIDs(t *testing.T) {
	id := regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b`)
	last := map[byte]bool{}
	for _, s := range samples(t, Options{Task: "niah_multikey_3", Length: 1500, Samples: 2, Seed: 5, Count: fields}) {
		require.Regexp(t, "^"+id.String()+"$", s.Outputs[0])
		for _, x := range id.FindAllString(s.Input, -1) {
			last[x[len(x)-1]] = true
		}
		require.Equal(t, len(regexp.MustCompile(`[0-9a-f]{8}-\S+`).FindAllString(s.Input, -1)), len(id.FindAllString(s.Input, -1)))
	}
	require.Greater(t, len(last), 12, "of 16")
}
