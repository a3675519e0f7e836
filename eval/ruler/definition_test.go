package ruler

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lists are a user's words, of which there are few.
func lists(t *testing.T) *Sources {
	dir := t.TempDir()
	for name, text := range map[string]string{"nounlist.txt": "fox\nhen", "adjectivelist.txt": "red\nblue", "verblist.txt": "run\nsit"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	s := &Sources{}
	require.NoError(t, s.ReadWords(dir))
	return s
}

// TestKeysAreDistinct: the keys of a sample are all different, and so are its values, also
// where there are no more words than keys.
func TestKeysAreDistinct(t *testing.T) {
	needle := regexp.MustCompile(`magic numbers for (\S+) is: (\S+)\.`)
	for _, s := range samples(t, Options{Task: "niah_multiquery", Length: 400, Samples: 20, Count: fields, Sources: lists(t)}) {
		seen := map[string]bool{}
		for _, m := range needle.FindAllStringSubmatch(s.Input, -1) {
			seen[m[1]], seen[m[2]] = true, true
		}
		require.Len(t, seen, 8)
	}
}

// TestListsOfUsersWords: a long list has all of a user's words before it invents others.
func TestListsOfUsersWords(t *testing.T) {
	for _, s := range samples(t, Options{Task: "cwe", Length: 600, Samples: 3, Count: fields, Sources: lists(t)}) {
		for _, w := range []string{"fox", "hen", "red", "blue", "run", "sit"} {
			assert.Contains(t, s.Input, ". "+w+" ", w)
		}
	}
}

// TestDocumentsAreDrawn: which of an article's further paragraphs, and which other documents,
// stand beside those that a question needs depends on the seed.
func TestDocumentsAreDrawn(t *testing.T) {
	var paragraphs []string
	for i := range 30 {
		paragraphs = append(paragraphs, fmt.Sprintf(`{"context":"Fact %d.","qas":[{"question":"Which?","answers":[{"text":"%d"}]}]}`, i, i))
	}
	s := &Sources{}
	require.NoError(t, s.ReadSQuAD(file(t, "s.json", `{"data":[{"paragraphs":[`+strings.Join(paragraphs, ",")+`]}]}`)))
	sets := map[string]bool{}
	for seed := range uint64(4) {
		one := samples(t, Options{Task: "qa_1", Length: 120, Samples: 1, Seed: seed, Count: fields, Sources: s})[0]
		assert.Equal(t, 1, strings.Count(one.Input, "Fact 0."), "the document that the question needs")
		set := make([]byte, 30)
		for i := range set {
			set[i] = byte('0' + strings.Count(one.Input, fmt.Sprintf("Fact %d.", i)))
		}
		require.NotContains(t, string(set), "2")
		sets[string(set)] = true
	}
	require.Len(t, sets, 4)
}
