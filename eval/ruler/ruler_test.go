package ruler

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

func counter(t *testing.T, files fs.FS) func(context.Context, string) (int, error) {
	t.Helper()
	tok, err := tokenizer.Load(files)
	require.NoError(t, err)
	return func(ctx context.Context, s string) (int, error) {
		ids, err := tok.EncodeContext(ctx, s, math.MaxInt, tokenizer.EncodeOptions{SpecialAsText: true})
		return len(ids), err
	}
}

// fields counts words instead of tokens.
func fields(_ context.Context, s string) (int, error) { return len(strings.Fields(s)), nil }

func samples(t *testing.T, o Options) []*Sample {
	t.Helper()
	var out []*Sample
	require.NoError(t, Generate(t.Context(), o, func(s *Sample) error { out = append(out, s); return nil }), "%s %d", o.Task, o.Length)
	return out
}

var answers = map[string]int{"niah_multivalue": 4, "niah_multiquery": 4, "vt": 5, "cwe": 10, "fwe": 3}

// TestProperties checks the properties of every sample of every task (spec
// evaluation 3.8, G and the families' own).
func TestProperties(t *testing.T) {
	for _, length := range []int{2048, 4096} {
		properties(t, counter(t, builtin.Files()), "needle", length, 4)
	}
}

// TestAllProperties checks them in full: three tokenizers, three lengths, 20
// samples.
func TestAllProperties(t *testing.T) {
	dir := os.Getenv("LUKV_RULER_TOKENIZERS")
	if dir == "" {
		t.Skip("LUKV_RULER_TOKENIZERS is not set: samples of one tokenizer at two lengths are checked")
	}
	folders, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	checked := 0
	for _, folder := range folders {
		if _, err := tokenizer.Load(os.DirFS(folder)); err != nil {
			t.Logf("%s: %v", folder, err)
			continue
		}
		checked++
		for _, length := range []int{2048, 4096, 16384} {
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(folder), length), func(t *testing.T) {
				t.Parallel()
				properties(t, counter(t, os.DirFS(folder)), folder, length, 20)
			})
		}
	}
	require.GreaterOrEqual(t, checked, 3, "tokenizers in %s", dir)
}

func properties(t *testing.T, count func(context.Context, string) (int, error), tokenizer string, length, n int) {
	var perfect, mute []eval.Answer
	for _, task := range Tasks() {
		o := Options{Task: task, Length: length, Samples: n, Seed: 42, Count: count, Tokenizer: tokenizer}
		all := samples(t, o)
		more := o
		more.Samples = 2
		require.Equal(t, all[:2], samples(t, more), "a sample does not depend on their number")
		more.Seed = 43
		require.NotEqual(t, all[0].Input, samples(t, more)[0].Input)
		for _, s := range all {
			where := fmt.Sprintf("%s, %d tokens, sample %d", task, length, s.Index)
			it := general(t, where, length, count, s)
			right, wrong := strings.Join(s.Outputs, " "), ""
			perfect = append(perfect, answer(it, right))
			mute = append(mute, answer(it, wrong))
			switch {
			case strings.HasPrefix(task, "niah"):
				needlesOf(t, where, task, s, it)
			case task == "vt":
				chainOf(t, where, s, it)
			case task == "cwe":
				listOf(t, where, length, s, it)
			case task == "fwe":
				codedOf(t, where, length, s, it)
			default:
				documentsOf(t, where, s, it)
			}
		}
	}
	// A model that answers the references scores 100 on all thirteen, a mute one
	// 0.
	for want, answers := range map[float64][]eval.Answer{100: perfect, 0: mute} {
		rows := eval.Summarize(answers)
		require.Len(t, rows, 14)
		for _, r := range rows {
			require.Equal(t, want, r.Percent, r.Task)
		}
	}
}

func answer(it *eval.Item, text string) eval.Answer {
	score, _ := scoring.Options{}.Score(&scoring.Reference{Task: it.Task, Answers: it.Answers}, text)
	return eval.Answer{Task: it.Task, Method: "double", Score: score}
}

// general checks the properties common to all tasks and returns the sample as read
// back.
func general(t *testing.T, where string, length int, count func(context.Context, string) (int, error), s *Sample) *eval.Item {
	n, err := count(t.Context(), s.Input+s.AnswerPrefix)
	require.NoError(t, err)
	generate := s.Length - n
	require.LessOrEqual(t, s.Length, length, where)
	if length >= 4096 {
		require.GreaterOrEqual(t, float64(s.Length), 0.9*float64(length), where)
	}
	require.Len(t, s.Outputs, max(1, answers[s.Task]), where)
	require.NotContains(t, s.Outputs, "", where)
	require.Equal(t, "builtin", s.Data)

	// The reader takes it apart.
	line, err := json.Marshal(s)
	require.NoError(t, err)
	items, err := eval.ReadItems(strings.NewReader(string(line)), "x")
	require.NoError(t, err, where)
	it := items[0]
	require.Equal(t, s.Input+s.AnswerPrefix, it.Context+it.Question+it.AnswerPrefix, where)
	require.Equal(t, generate, it.MaxNewTokens, where)
	if s.Task != "cwe" && s.Task != "fwe" {
		require.NotContains(t, it.Context, strings.TrimSpace(it.Question), where)
	}
	return &it
}

var needleForm = regexp.MustCompile(`One of the special magic (\w+) for (\S+) is: (\S+)\.`)

func needlesOf(t *testing.T, where, task string, s *Sample, it *eval.Item) {
	found := needleForm.FindAllStringSubmatch(it.Context, -1)
	want := map[string]int{"niah_multikey_1": 4, "niah_multivalue": 4, "niah_multiquery": 4}[task]
	if task == "niah_multikey_2" || task == "niah_multikey_3" {
		want = strings.Count(it.Context, "\n") - 1 // lines between the first and the last break: H + 1
	}
	require.Len(t, found, max(1, want), where)
	keys, values := map[string]int{}, map[string]int{}
	form := map[string]string{
		"numbers": `^[1-9][0-9]{6}$`,
		"uuids":   `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`,
	}
	for _, f := range found {
		keys[f[2]]++
		values[f[3]]++
		require.Regexp(t, form[f[1]], f[3], where)
		require.Regexp(t, `^[^ ]+-[^ ]+$`, f[2], where)
	}
	per := 1
	if task == "niah_multivalue" {
		per = 4
	}
	require.Len(t, values, len(found), where)
	require.Len(t, keys, len(found)/per, where)
	single := len(s.Outputs) == 1
	require.Equal(t, single, strings.Contains(it.Question, "What is the special magic"), where)
	at := 0
	for _, out := range s.Outputs {
		require.Equal(t, 1, strings.Count(s.Input, out), where)
		for _, f := range found {
			if f[3] == out && per == 1 {
				i := strings.Index(it.Question, f[2])
				require.GreaterOrEqual(t, i, at, "references follow the order of the keys: %s", where)
				at = i
			}
		}
	}
	require.NotNil(t, s.TokenPosition, where)
	if strings.Contains(it.Question, ", and ") {
		for key := range keys {
			require.Contains(t, it.Question, key, where)
		}
	}
	if !strings.Contains(it.Context, noiseStart) && want < 5 {
		inEssay(t, where, it.Context)
	}
}

const noiseStart = "The sand is warm."

// inEssay checks that needles stand between sentences of the essays, in order, at
// different depths of the grid.
func inEssay(t *testing.T, where, context string) {
	_, text, _ := strings.Cut(context, "\n")
	text = strings.TrimSpace(text)
	hay := strings.TrimSpace(strings.Join(strings.Fields(needleForm.ReplaceAllString(text, "")), " "))
	all := builtinSentences(len(strings.Fields(hay)))
	require.Equal(t, strings.Join(all, " "), hay, "%s: the haystack in order", where)
	allowed := map[int]int{} // by sentence, the depths that lead to it
	for _, d := range depths {
		allowed[int(float64(len(all))*(float64(d)/100))]++
	}
	rest, before := text, 0
	for {
		i := needleForm.FindStringIndex(rest)
		if i == nil {
			break
		}
		words := len(strings.Fields(rest[:i[0]]))
		rest, before = rest[i[1]:], before+words
		at := 0
		for n := 0; n < before; at++ {
			n += len(strings.Fields(all[at]))
			require.LessOrEqual(t, n, before, "%s: between sentences", where)
		}
		allowed[at]--
		require.GreaterOrEqual(t, allowed[at], 0, "%s: sentence %d of %d", where, at, len(all))
	}
}

func chainOf(t *testing.T, where string, s *Sample, it *eval.Item) {
	require.Equal(t, 2, strings.Count(s.Input, "Question: Find all variables that are assigned the value"), where)
	_, ask, _ := strings.Cut(it.Context, "They are: ")
	at := -1
	for i, name := range s.Outputs {
		require.Regexp(t, `^[A-Z]{5}$`, name, where)
		line := fmt.Sprintf("VAR %s = VAR ", name)
		if i == 0 {
			line = fmt.Sprintf("VAR %s = ", name)
			value := ask[strings.Index(ask, line)+len(line):][:5]
			require.Contains(t, it.Question, value, where)
			require.Equal(t, 1, strings.Count(it.Context, value), where)
		} else {
			line += s.Outputs[i-1]
		}
		require.Equal(t, 1, strings.Count(ask, line), where)
		require.Greater(t, strings.Index(ask, line), at, where)
		at = strings.Index(ask, line)
	}
	example := regexp.MustCompile(`assigned the value (\d{5})`).FindStringSubmatch(it.Context)
	require.NotNil(t, example, where)
	require.NotContains(t, it.Question, example[1], where)
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`VAR ([A-Z]+) =`).FindAllStringSubmatch(it.Context, -1) {
		names[m[1]] = true
	}
	require.Len(t, names, 10, where)
	for a := range names {
		for b := range names {
			require.False(t, a != b && strings.Contains(b, a), where)
		}
	}
}

func listOf(t *testing.T, where string, length int, s *Sample, it *eval.Item) {
	parts := regexp.MustCompile(`(?m)^1\. .*$`).FindAllString(it.Context, -1)
	require.Len(t, parts, 2, where)
	counts := func(text string) map[string]int {
		out := map[string]int{}
		for i, m := range regexp.MustCompile(`(\d+)\. (\S+)`).FindAllStringSubmatch(text, -1) {
			require.Equal(t, strconv.Itoa(i+1), m[1], where)
			out[m[2]]++
		}
		return out
	}
	example, list := counts(parts[0]), counts(parts[1])
	often, seldom, entries := 30, 3, 190
	if length < 4096 {
		often, seldom, entries = 6, 1, 40
	}
	total := 0
	for w, n := range example {
		total += n
		require.NotContains(t, list, w, where)
	}
	require.Equal(t, entries, total, where)
	for w, n := range list {
		want := seldom
		if slices.Contains(s.Outputs, w) {
			want = often
		}
		require.Equal(t, want, n, "%s: %s", where, w)
	}
}

func codedOf(t *testing.T, where string, length int, s *Sample, it *eval.Item) {
	counts := map[string]int{}
	_, text, _ := strings.Cut(it.Context, "mean nothing. ")
	words := strings.Fields(text)
	for _, w := range words {
		counts[w]++
		require.Regexp(t, `^([a-z]{6}|\.\.\.)$`, w, where)
	}
	fits := false
	for n := len(words); n < 2*len(words)+200 && !fits; n++ {
		rank := func(k float64) int { return int(float64(n) / k / k / (math.Pi * math.Pi / 6)) }
		fits = counts["..."] == rank(1) && counts[s.Outputs[0]] == rank(2) && counts[s.Outputs[1]] == rank(3) && counts[s.Outputs[2]] == rank(4)
	}
	require.True(t, fits, where)
	if length >= 4096 {
		require.Greater(t, counts[s.Outputs[0]], counts[s.Outputs[1]], where)
		require.Greater(t, counts[s.Outputs[1]], counts[s.Outputs[2]], where)
	}
	for w, n := range counts {
		if w != "..." && !slices.Contains(s.Outputs, w) {
			require.Less(t, n, counts[s.Outputs[2]], where)
		}
	}
}

func documentsOf(t *testing.T, where string, s *Sample, it *eval.Item) {
	seen := map[string]bool{}
	for i, d := range strings.Split(it.Context, "Document ")[1:] {
		number, text, _ := strings.Cut(d, ":\n")
		require.Equal(t, strconv.Itoa(i+1), number, where)
		require.False(t, seen[text], where)
		seen[text] = true
	}
	if out := s.Outputs[0]; out != "yes" && out != "no" {
		require.Equal(t, 1, strings.Count(it.Context, out), where)
	}
}

// Over 500 samples, needles stand at all depths of essays, and anywhere among
// lines (N4, N5).
func TestDepths(t *testing.T) {
	want := []int{0, 3, 5, 8, 10, 13, 15, 18, 21, 23, 26, 28, 31, 33, 36, 38, 41, 44, 46, 49,
		51, 54, 56, 59, 62, 64, 67, 69, 72, 74, 77, 79, 82, 85, 87, 90, 92, 95, 97, 100}
	require.Equal(t, want, depths)
	at := map[int]bool{}
	for _, s := range samples(t, Options{Task: "niah_single_2", Length: 3000, Samples: 500, Seed: 1, Count: fields}) {
		before, _, _ := strings.Cut(s.Input, "One of the special magic")
		_, before, _ = strings.Cut(before, "\n")
		at[strings.Count(before, ".")] = true
	}
	require.Len(t, at, 40)
	for _, task := range []string{"niah_single_1", "niah_multikey_2"} {
		sum, low, high := 0.0, 1.0, 0.0
		all := samples(t, Options{Task: task, Length: 1500, Samples: 500, Seed: 1, Count: fields})
		for _, s := range all {
			lines := strings.Split(s.Input, "\n")
			place := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, s.Outputs[0]) })
			x := float64(place-1) / float64(len(lines)-3)
			sum, low, high = sum+x, min(low, x), max(high, x)
		}
		assert.InDelta(t, 0.5, sum/float64(len(all)), 0.05, task)
		assert.Less(t, low, 0.05, task)
		assert.Greater(t, high, 0.95, task)
	}
}

// Refusals say what would fit.
func TestLimits(t *testing.T) {
	for _, task := range Tasks() {
		err := Generate(t.Context(), Options{Task: task, Length: 40, Samples: 1, Count: fields}, nil)
		require.ErrorContains(t, err, "even the smallest haystack does not fit: expected at least", task)
	}
	assert.ErrorContains(t, Generate(t.Context(), Options{Task: "poetry"}, nil), "expected one of niah_single_1")
	assert.Len(t, Tasks(), 13)
	seen := map[string]bool{}
	for i := range names {
		seen[name(i)] = true
	}
	assert.Len(t, seen, names)
}

// A list that is too short for a haystack is reported, not drawn from forever.
func TestShortLists(t *testing.T) {
	o := Options{Task: "niah_multikey_2", Length: 2000, Samples: 1, Count: fields, Sources: &Sources{
		nouns: []string{"sea", "seaside", "tree", "oak-tree"}, adjectives: []string{"red", "infrared", "old"},
	}}
	require.ErrorContains(t, Generate(t.Context(), o, nil), "niah_multikey_2 of 2000 tokens: the lists have too few words for keys: expected at most")
	o.Task, o.Sources.nouns, o.Sources.adjectives = "niah_multikey_1", []string{"sea"}, []string{"red"}
	require.ErrorContains(t, Generate(t.Context(), o, nil), "the lists have too few words for keys")

	lacking := func(make func(*draw) prompt, units int) string {
		return make(&draw{Sources: &Sources{}, r: rand.New(rand.NewPCG(1, 2)), length: 1000, units: units}).lacking
	}
	require.Equal(t, "words", lacking(commonWords, names+2000))
	require.Empty(t, lacking(commonWords, names))
	require.Equal(t, "names", lacking(oneDocument, names/4+1), "four names each")
	require.Empty(t, lacking(oneDocument, names/4))
	require.Equal(t, "names", lacking(twoDocuments, names))
}

// Keys that are part of another are found just as by comparing with all of them,
// even if words contain hyphens.
func TestKeysApart(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	list := func() []string {
		out := make([]string, 40)
		for i := range out {
			for range 1 + r.IntN(5) {
				out[i] += string("aab-"[r.IntN(4)])
			}
		}
		return out
	}
	refused := 0
	for seed := range uint64(200) {
		sources := &Sources{adjectives: list(), nouns: list()}
		d := newDrawn(&draw{Sources: sources, r: rand.New(rand.NewPCG(seed, 0))})
		again := rand.New(rand.NewPCG(seed, 0))
		var given []string
		for range 20 {
			want := ""
			for want == "" {
				adjective, noun := sources.pair(again)
				s := adjective + "-" + noun
				if slices.ContainsFunc(given, func(g string) bool { return strings.Contains(g, s) || strings.Contains(s, g) }) {
					refused++
					continue
				}
				want = s
			}
			given = append(given, want)
			require.Equal(t, want, d.next(words), "seed %d, after %q", seed, given)
		}
	}
	require.Greater(t, refused, 1000)
}

// Generate stops between two counts when asked to.
func TestGenerateEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	counts := 0
	count := func(_ context.Context, s string) (int, error) {
		if counts++; counts == 3 {
			cancel()
		}
		return len(strings.Fields(s)), nil
	}
	require.ErrorIs(t, Generate(ctx, Options{Task: "niah_single_1", Length: 1 << 20, Samples: 1, Count: count}, nil), context.Canceled)
	require.Equal(t, 3, counts)
}

// TestShufflesRestart: the order of entries depends on their number and the seed alone
// (spec evaluation 3.3), so that samples with as many entries have the common ones in the
// same places; another seed has others.
func TestShufflesRestart(t *testing.T) {
	common := func(s *Sample) (places []int) {
		for i, w := range regexp.MustCompile(`\d+\. (\S+)`).FindAllStringSubmatch(s.Input, -1) {
			if slices.Contains(s.Outputs, w[1]) {
				places = append(places, i)
			}
		}
		return places
	}
	o := Options{Task: "cwe", Length: 2000, Samples: 4, Seed: 1, Count: fields}
	all := samples(t, o)
	for _, s := range all {
		require.NotEmpty(t, common(s))
		require.Equal(t, common(all[0]), common(s))
	}
	require.NotEqual(t, all[0].Outputs, all[1].Outputs, "other words")
	o.Seed = 2
	require.NotEqual(t, common(all[0]), common(samples(t, o)[0]))

	// A question's documents, with the one that has the answer.
	gold := func(s *Sample) int {
		before, _, _ := strings.Cut(s.Input, "founded by "+s.Outputs[0])
		return strings.Count(before, "Document ")
	}
	o = Options{Task: "qa_1", Length: 1000, Samples: 4, Seed: 1, Count: fields}
	all = samples(t, o)
	for _, s := range all {
		if strings.Count(s.Input, "Document ") == strings.Count(all[0].Input, "Document ") {
			require.Equal(t, gold(all[0]), gold(s))
		}
	}
}
