package eval

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scoringCase is a case of any of the files.
type scoringCase struct {
	ID           string          `json:"id"`
	Metric       scoring.Match   `json:"metric"`
	Task         string          `json:"task"`
	Prediction   string          `json:"prediction"`
	References   json.RawMessage `json:"references"`
	PerReference []float64       `json:"per_reference"`
	AllClasses   []string        `json:"all_classes"`
	Score        float64         `json:"score"`

	Predictions []string            `json:"predictions"`
	Official    json.RawMessage     `json:"official"`
	KVPress     json.RawMessage     `json:"kvpress"`
	Dataset     string              `json:"dataset"`
	Lengths     []int               `json:"lengths"`
	ByLength    map[string]*float64 `json:"by_length"`

	Scores     map[string]float64 `json:"scores"`
	Categories map[string]float64 `json:"categories"`
	Avg        float64            `json:"avg"`

	Record       json.RawMessage `json:"record"`
	Context      string          `json:"context"`
	Question     string          `json:"question"`
	AnswerPrefix string          `json:"answer_prefix"`
	Answer       []string        `json:"answer"`
	MaxNewTokens int             `json:"max_new_tokens"`
}

func get[T any](t *testing.T, raw json.RawMessage) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(raw, &v))
	return v
}

// golden makes the checks of one golden file and counts them.
type golden struct {
	t      *testing.T
	checks int
}

func (g *golden) same(id string, want, got, within float64) {
	g.t.Helper()
	g.checks++
	assert.False(g.t, math.Abs(want-got) > within, "%s: want %v, got %v", id, want, got)
}

// unit scores a prediction as it is, against all references and against each.
func (g *golden) unit(c *scoringCase, s scoring.Options, scale float64) {
	g.t.Helper()
	s.Clean = scoring.CleanNone
	refs := get[[]string](g.t, c.References)
	it := scoring.Reference{Answers: refs, Classes: c.AllClasses}
	got, _ := s.Score(&it, c.Prediction)
	if scale != 1 {
		got = round2(scale * got)
	}
	g.same(c.ID, c.Score, got, 1e-9)
	for i, want := range c.PerReference {
		it.Answers = refs[i : i+1]
		got, _ := s.Score(&it, c.Prediction)
		g.same(fmt.Sprintf("%s, reference %d", c.ID, i), want, got, 1e-9)
	}
}

// task scores a task's predictions with both kinds of cleaning and compares the
// rows that a run would print.
func (g *golden) task(c *scoringCase, name string) {
	g.t.Helper()
	refs := get[[][]string](g.t, c.References)
	rows := func(name string, clean scoring.Clean) []Row {
		var as []Answer
		for i, p := range c.Predictions {
			it := scoring.Reference{Task: name, Answers: refs[i], Classes: c.AllClasses}
			a := Answer{Item: i, Task: name, Method: "m"}
			a.Score, _ = scoring.Options{Clean: clean}.Score(&it, p)
			if c.Lengths != nil {
				a.Length = c.Lengths[i]
			}
			as = append(as, a)
		}
		return Summarize(as)
	}
	for clean, want := range map[scoring.Clean]json.RawMessage{scoring.CleanOfficial: c.Official, scoring.CleanKVPress: c.KVPress} {
		g.same(c.ID, get[float64](g.t, want), rows(name, clean)[0].Percent, 1e-9)
	}
	if c.ByLength == nil {
		return
	}
	got := map[string]float64{}
	for _, r := range rows(name+"_e", scoring.CleanKVPress) { // LongBench-E has only one preparation
		got[r.Task] = r.Percent
	}
	for i, r := range rows(name+"-e", scoring.CleanOfficial) {
		assert.Equal(g.t, rows(name+"-e", "")[i], r)
	}
	for b, want := range c.ByLength {
		score, ok := got[name+"_e "+b]
		assert.Equal(g.t, want != nil, ok, "%s %s", c.ID, b)
		if want != nil {
			g.same(c.ID+" "+b, *want, score, 0.0051)
		}
	}
}

// aggregate makes one answer of each dataset and compares the means' rows.
func (g *golden) aggregate(c *scoringCase) {
	g.t.Helper()
	var as []Answer
	for name, score := range c.Scores {
		as = append(as, Answer{Task: name, Method: "m", Score: score / 100})
	}
	rows := map[string]float64{}
	for _, r := range Summarize(as) {
		rows[r.Task] = 100 * r.Score
	}
	for name, want := range c.Categories {
		g.same(c.ID+" "+name, want, rows[name], 1e-9)
	}
	g.same(c.ID, c.Avg, rows[Average], 1e-9)
}

// split reads a line of one of RULER's files.
func (g *golden) split(c *scoringCase) {
	g.t.Helper()
	items, err := ReadItems(bytes.NewReader(c.Record), filepath.Join("4096", c.Task, "validation.jsonl"))
	require.NoError(g.t, err, c.ID)
	items[0].Length, items[0].Line = 0, 0
	assert.Equal(g.t, Item{
		Task: c.Task, Context: c.Context, Question: c.Question, AnswerPrefix: c.AnswerPrefix,
		Answers: c.Answer, MaxNewTokens: c.MaxNewTokens,
	}, items[0], c.ID)
	g.checks++
}

func TestScoringGolden(t *testing.T) {
	dir := cmp.Or(os.Getenv("LUKV_GOLDEN_SCORING"), filepath.Join("testdata", "scoring"))
	all := 0
	for _, name := range []string{
		"string_match_all", "string_match_part", "ruler_postprocess", "ruler_task", "ruler_split",
		"qa_f1", "rouge_l", "classification", "retrieval", "count", "code_sim", "code_sim_indel", "longbench_task", "aggregate",
	} {
		data, err := os.ReadFile(filepath.Join(dir, name+".json"))
		require.NoError(t, err)
		g := &golden{t: t}
		for _, c := range get[[]scoringCase](t, data) {
			switch name {
			case "string_match_all":
				g.unit(&c, scoring.Options{Match: scoring.MatchAll}, 100)
			case "string_match_part":
				g.unit(&c, scoring.Options{Match: scoring.MatchPart}, 100)
			case "ruler_postprocess":
				assert.Equal(t, get[string](t, c.Official), cleaned(c.Prediction, scoring.CleanOfficial), c.ID)
				assert.Equal(t, get[string](t, c.KVPress), cleaned(c.Prediction, scoring.CleanKVPress), c.ID)
				g.checks += 2
			case "ruler_task":
				g.task(&c, c.Task)
			case "ruler_split":
				g.split(&c)
			case "longbench_task":
				g.task(&c, c.Dataset)
			case "aggregate":
				g.aggregate(&c)
			case "code_sim_indel":
				g.unit(&c, scoring.Options{Match: scoring.MatchCode, CodeSim: scoring.CodeIndel}, 1)
			default:
				g.unit(&c, scoring.Options{Match: c.Metric}, 1)
			}
		}
		require.Positive(t, g.checks, name)
		all += g.checks
	}
	text := fmt.Sprintf("golden scoring: %d checks", all)
	t.Log(text)
	fmt.Println(text)
}

// Lower-casing is Unicode's, not rune by rune.
func TestScoreLowerCase(t *testing.T) {
	for _, c := range [][2]string{{"ΟΔΟΣ ΑΒ", "οδος"}, {"İx", "i\u0307x"}, {"ÉCOLE", "école"}} {
		score, _ := scoring.Options{Match: scoring.MatchAll}.Score(&scoring.Reference{Answers: []string{c[1]}}, c[0])
		assert.Equal(t, 1.0, score, "%q", c)
	}
}

// FuzzScore: every measure gives a number from 0 to 1 for any texts.
func FuzzScore(f *testing.F) {
	f.Add("the answer is 4", "Paragraph 4")
	f.Add("x = 1 # one\n\n`y`", "y")
	f.Add(". . \x1c.a b. b a", "b.a. ")
	f.Fuzz(func(t *testing.T, prediction, answer string) {
		defer testfuzz.Bound(t, len(prediction)+len(answer))()
		if len(prediction)+len(answer) > 2000 {
			return
		}
		it := scoring.Reference{Answers: []string{answer}, Classes: []string{answer, prediction, "a"}}
		for _, m := range []scoring.Match{scoring.MatchAll, scoring.MatchPart, scoring.MatchF1, scoring.MatchRouge, scoring.MatchClassification, scoring.MatchRetrieval, scoring.MatchCount, scoring.MatchCode} {
			for _, s := range []scoring.Options{{Match: m}, {Match: m, Clean: scoring.CleanOfficial, CodeSim: scoring.CodeIndel}} {
				if x, _ := s.Score(&it, prediction); !(x >= 0 && x <= 1) {
					t.Fatalf("%s of %q against %q: %v", m, prediction, answer, x)
				}
			}
		}
	})
}

func TestReadRulerRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"input":"no question","outputs":["1"]}`:                                                       "no question of task niah_single_1",
		`{"input":"c What is the special magic number?","outputs":["1"]}`:                               "the answer prefix of task",
		`{"input":"What is the special magic number? The special magic","outputs":["1"]}`:               "nothing stands before",
		`{"input":"c What is the special magic number? The special magic","outputs":[]}`:                "outputs: the list is empty",
		`{"task":"poetry","input":"c","outputs":["1"]}`:                                                 "not one of RULER's",
		`{"input":"c","outputs":["1"],"answer_prefix":" What is the special magic. The special magic"}`: "answer_prefix: holds the question",
	} {
		_, err := ReadItems(bytes.NewReader([]byte("\n"+text)), "data/niah_single_1/validation.jsonl")
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "validation.jsonl: line 2")
	}
}

// cleaned prepares a prediction as RULER does.
func cleaned(prediction string, c scoring.Clean) string {
	_, text := scoring.Options{Clean: c}.Score(&scoring.Reference{Task: "niah_single_1"}, prediction)
	return text
}
