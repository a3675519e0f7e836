package ruler

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func wordCount(s string) int { return len(strings.Fields(s)) }

// file writes a user's file.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestTemplates(t *testing.T) {
	s := &Sources{}
	require.NoError(t, s.ReadTemplates(file(t, "t.json", `{
		"niah": {"template":"Some {type_needle_v} are here.\n{context}\nWhat are all the special magic {type_needle_v} for {query}? Give answers.","answer_prefix":" The special magic {type_needle_v} for {query} are","tokens_to_generate":11},
		"variable_tracking": {"template":"T {context} Question: Find all variables that are assigned the value {query}.","answer_prefix":" Answer: {num_v} of {query}: ","tokens_to_generate":12}}`)))
	one := samples(t, Options{Task: "niah_single_3", Length: 400, Samples: 1, Count: fields, Sources: s})[0]
	assert.True(t, strings.HasPrefix(one.Input, "A uuid is here.\n"), one.Input[:40])
	assert.True(t, strings.HasSuffix(one.Input, "? Give answer."))
	assert.Contains(t, one.Input, "What is the special magic uuid for ")
	assert.True(t, strings.HasSuffix(one.AnswerPrefix, " is"))
	assert.Equal(t, wordCount(one.Input+one.AnswerPrefix)+11, one.Length)
	many := samples(t, Options{Task: "niah_multivalue", Length: 400, Samples: 1, Count: fields, Sources: s})[0]
	assert.True(t, strings.HasPrefix(many.Input, "Some numbers are here.\n"))
	assert.Contains(t, many.Input, "One of the special magic numbers for ", "needles are always in the plural")
	vt := samples(t, Options{Task: "vt", Length: 800, Samples: 1, Count: fields, Sources: s})[0]
	assert.Regexp(t, ` Answer: 5 of \d{5}: ([A-Z]{3} ){4}[A-Z]{3}\n\nT `, vt.Input)
	cwe := samples(t, Options{Task: "cwe", Length: 800, Samples: 1, Count: fields, Sources: s})[0]
	assert.Contains(t, cwe.Input, "most common words in the above list?", "families that are not in the file keep their wording")

	for text, want := range map[string]string{
		"[]":       "read templates",
		`{"x":{}}`: `family "x", expected one of niah`,
		`{"niah":{"template":"{context}","tokens_to_generate":1}}`: "no {query}",
		`{"qa":{"template":"{context}{query}"}}`:                   "tokens_to_generate is 0",
	} {
		assert.ErrorContains(t, s.ReadTemplates(file(t, "t.json", text)), want, text)
	}
}

func TestEssays(t *testing.T) {
	const text = `Mr. Fox ran. "Where to?" he asked. e.g. nowhere. 3 hens saw it! They laughed.`
	want := []string{"Mr. Fox ran.", `"Where to?" he asked. e.g. nowhere.`, "3 hens saw it!", "They laughed.", "Mr. Fox"}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte(text[:30]), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "b.txt"), []byte(text[30:]), 0o600))
	for _, path := range []string{file(t, "e.json", `{"text":`+string(mustJSON(t, text))+`}`), file(t, "e.txt", text), dir} {
		s := &Sources{}
		require.NoError(t, s.ReadEssays(path))
		n := wordCount(text)
		if path == dir {
			assert.Len(t, s.essays, n+1, "a file ends a word")
			continue
		}
		assert.Equal(t, want, s.essay(n+2), "it begins again at its end")
	}
	s := &Sources{}
	require.ErrorContains(t, s.ReadEssays(file(t, "e.txt", " ")), "no text")
	require.ErrorContains(t, s.ReadEssays(file(t, "e.json", "{")), "read essays")
	require.ErrorContains(t, s.ReadEssays("absent"), "read essays")
}

// TestASCII: what a sample takes from a user's file is written in ASCII and read as it was.
func TestASCII(t *testing.T) {
	s := &Sources{}
	require.NoError(t, s.ReadEssays(file(t, "e.txt", "Über “Bäume” <&> schrieb sie. \U0001f333 blüht. Fin \x7f.")))
	one := samples(t, Options{Task: "niah_single_2", Length: 400, Samples: 1, Count: fields, Sources: s})[0]
	line, err := json.Marshal(one)
	require.NoError(t, err)
	for _, b := range line {
		require.Less(t, b, byte(0x80))
	}
	assert.Contains(t, string(line), `\u00dcber \u201cB\u00e4ume\u201d`)
	assert.Contains(t, string(line), `\ud83c\udf33 bl\u00fcht`)
	var back Sample
	require.NoError(t, json.Unmarshal(line, &back))
	assert.Equal(t, *one, back)
}

// TestSourcesOfOtherEncodings: a file that is not UTF-8 is refused, whose characters would be
// lost.
func TestSourcesOfOtherEncodings(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"nounlist.txt", "adjectivelist.txt", "verblist.txt", "e.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("caf\xe9\n"), 0o600))
	}
	s := &Sources{}
	latin := func(name string) string { return file(t, name, `{"text":"caf`+"\xe9"+`"}`) }
	for what, err := range map[string]error{
		"essays": s.ReadEssays(latin("e.json")), "text": s.ReadEssays(latin("e.txt")), "folder": s.ReadEssays(dir), "noise": s.ReadNoise(latin("n.txt")),
		"words": s.ReadWords(dir), "more": s.ReadMoreWords(latin("w.txt")), "more JSON": s.ReadMoreWords(latin("w.json")),
		"squad": s.ReadSQuAD(latin("s.json")), "hotpot": s.ReadHotpot(latin("h.json")), "templates": s.ReadTemplates(latin("t.json")),
	} {
		assert.ErrorIs(t, err, errNotUTF8, what)
	}
}

func TestWordsAndNoise(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"nounlist.txt": "fox\nhen\n\nfox\r\n", "adjectivelist.txt": "red\nblue", "verblist.txt": "run\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	s := &Sources{}
	require.NoError(t, s.ReadWords(dir))
	assert.Equal(t, []string{"fox", "hen"}, s.nouns)
	require.NoError(t, s.ReadNoise(file(t, "n.txt", "Ho hum.\nSo it goes.\n")))
	one := samples(t, Options{Task: "niah_single_1", Length: 300, Samples: 1, Count: fields, Sources: s})[0]
	assert.Regexp(t, `for (red|blue)-(fox|hen) is: `, one.Input)
	assert.Contains(t, one.Input, "\nHo hum. So it goes.\n")

	require.NoError(t, s.ReadMoreWords(file(t, "w.json", `{"1":"zebra","2":"yak"}`)))
	for _, o := range []int{0, 1} {
		cwe := samples(t, Options{Task: "cwe", Length: 600, Samples: 2, Count: fields, Sources: s})[o]
		assert.Contains(t, cwe.Input, "zebra")
	}
	require.NoError(t, s.ReadMoreWords(file(t, "w.txt", "zebra\nyak")))
	require.Error(t, s.ReadMoreWords(file(t, "w.txt", "\n")))
	require.Error(t, s.ReadWords(t.TempDir()))
	require.Error(t, s.ReadNoise(file(t, "n.txt", "")))
}

const squad = `{"data":[
	{"paragraphs":[{"context":"Ann lives in Rome.","qas":[{"question":"Where does Ann live?","is_impossible":false,"answers":[{"text":"Rome"},{"text":"in Rome"}]},
		{"question":"Where does Bo live?","is_impossible":true,"answers":[]}]},{"context":"Ann has a cat.","qas":[]}]},
	{"paragraphs":[{"context":"Cid is old.","qas":[{"question":"Who is old?","is_impossible":false,"answers":[{"text":"Cid"}]}]}]}]}`

const hotpot = `[{"question":"Is Ann older than Cid?","answer":"no","context":[["Ann",["Ann is young."," She sings."]],["Cid",["Cid is old."]]]},
	{"question":"Who sings?","answer":"Ann","context":[["Ann",["Ann is young."," She sings."]],["Dee",["Dee is here."]]]}]`

// Samples take the user's questions in order, with their gold documents once
// each.
func TestUsersQuestions(t *testing.T) {
	s := &Sources{}
	require.NoError(t, s.ReadSQuAD(file(t, "s.json", squad)))
	require.NoError(t, s.ReadHotpot(file(t, "h.json", hotpot)))
	got := samples(t, Options{Task: "qa_1", Length: 120, Samples: 3, Count: fields, Sources: s})
	assert.Equal(t, []string{"Rome", "in Rome"}, got[0].Outputs)
	assert.Equal(t, []string{"Cid"}, got[1].Outputs)
	assert.Equal(t, got[0].Outputs, got[2].Outputs, "the file begins again")
	for _, x := range got[:2] {
		assert.Contains(t, x.Input, "Document 1:\n")
		assert.Contains(t, x.Input, "Cid is old.")
		assert.Contains(t, x.Input, "Ann has a cat.")
	}
	least := s.squad.questions[0]
	d := &draw{Sources: s, r: random(&Options{}, 0), units: 2}
	p := d.askUsers(s.squad)
	assert.Contains(t, p.input, "Ann has a cat.", "the same article before others")
	assert.NotContains(t, p.input, "Cid")
	assert.Equal(t, least.answers, p.outputs)

	got = samples(t, Options{Task: "qa_2", Length: 90, Samples: 2, Count: fields, Sources: s})
	assert.Equal(t, []string{"no"}, got[0].Outputs)
	assert.Equal(t, 1, strings.Count(got[0].Input, "Ann\nAnn is young. She sings."))
	assert.Equal(t, 1, strings.Count(got[0].Input, "Cid\nCid is old."))

	for text, want := range map[string]string{"[]": "read SQuAD", `{"data":[]}`: "no questions with answers"} {
		assert.ErrorContains(t, s.ReadSQuAD(file(t, "s.json", text)), want)
	}
	for text, want := range map[string]string{"{}": "read HotpotQA", "[]": "no questions with answers", `[{"question":"q","answer":"a","context":[["t"]]}]`: "question 0: expected context"} {
		assert.ErrorContains(t, s.ReadHotpot(file(t, "h.json", text)), want)
	}
}

// Samples say whether they contain this project's own texts.
func TestLabel(t *testing.T) {
	s := &Sources{}
	for _, task := range Tasks() {
		assert.Equal(t, "builtin", s.label(task), task)
	}
	s.wordings = builtinWordings
	assert.Empty(t, s.label("fwe"))
	assert.Empty(t, s.label("niah_multikey_3"))
	assert.Equal(t, "builtin", s.label("niah_single_2"))
	s.nouns = []string{"fox"}
	assert.Empty(t, s.label("cwe"))
	assert.Equal(t, "builtin", s.label("niah_single_2"))
	s.essays = []string{"a"}
	assert.Empty(t, s.label("niah_single_2"))
	assert.Equal(t, "builtin", s.label("niah_single_1"))
	s.noiseBlock, s.squad, s.hotpot = "x", &collection{}, &collection{}
	for _, task := range Tasks() {
		assert.Empty(t, s.label(task), task)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return data
}
