package eval

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

func TestReadItems(t *testing.T) {
	items, err := ReadItems(strings.NewReader("\ufeff"+`{"context":"c","question":"q","answers":["a","b"],"task":"t","max_new_tokens":7,"length":9}

{"context":"c","answer":"one"}
`), "f")
	require.NoError(t, err)
	assert.Equal(t, []Item{
		{Task: "t", Context: "c", Question: "q", Answers: []string{"a", "b"}, MaxNewTokens: 7, Length: 9, Line: 1},
		{Task: "default", Context: "c", Answers: []string{"one"}, Line: 3},
	}, items)
	for text, want := range map[string]string{
		"":                                 "no items",
		"{}\n":                             "line 1",
		`{"context":"c"}`:                  `no "answers"`,
		`{"context":"c","answers":[]}`:     "empty",
		`{"context":"c","answers":[1]}`:    "list of strings",
		`{"context":"c","answers":[null]}`: "list of strings: string 1 is null",
		`{"input":"x","outputs":["a",null],"task":"vt"}`: "string 2 is null",
		`{"answers":["a"]}`:                                   `no "context"`,
		`{"context":"c","answers":null}`:                      `no "answers"`,
		"{\"context\":\"c\",\"answers\":[":                    "line 1",
		`{"context":"c","answers":["a"],"max_new_tokens":-1}`: "max_new_tokens",
	} {
		_, err := ReadItems(strings.NewReader(text), "f")
		assert.ErrorContains(t, err, want, text)
		assert.ErrorContains(t, err, "read f")
	}
}

func FuzzReadItems(f *testing.F) {
	f.Add([]byte(`{"context":"c","question":"q","answers":["a","b"],"task":"t","max_new_tokens":7}`))
	f.Add([]byte("{\"context\":\"c\",\"answer\":\"one\"}\n\n{}"))
	for i, line := range bytes.SplitN(builtin.SamplesJSONL(), []byte("\n"), 4) {
		if i < 3 {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		items, err := ReadItems(bytes.NewReader(data), "f")
		if err == nil && len(items) == 0 {
			t.Fatal("no items and no error")
		}
		for _, it := range items {
			if it.Context == "" || len(it.Answers) == 0 || it.Task == "" || it.Line < 1 {
				t.Fatalf("incomplete item %+v", it)
			}
		}
	})
}

func TestScore(t *testing.T) {
	for _, c := range []struct {
		match      scoring.Match
		task, text string
		answers    []string
		want       float64
	}{
		{scoring.MatchAll, "x", "a B c", []string{"b", "d"}, 0.5},
		{scoring.MatchPart, "x", "a B c", []string{"b", "d"}, 1},
		{scoring.MatchPart, "x", "a B c", []string{"e", "d"}, 0},
		{scoring.MatchAuto, "x", "a B c", []string{"b", "d"}, 0.5},
		{"", "qa_1", "a B c", []string{"b", "d"}, 1},
		{scoring.MatchAll, "qa_1", "a B c", []string{"b", "d"}, 0.5},
		{scoring.MatchAll, "x", "", []string{"b"}, 0},
		{scoring.MatchAuto, "qasper", "a B c", []string{"b", "d"}, 2. / 3},
		{scoring.MatchAuto, "qasper_e", "a B c", []string{"b", "d"}, 2. / 3},
		{scoring.MatchAuto, "lcc-e", "x = 1\ny", []string{"x = 1"}, 1},
	} {
		got, _ := scoring.Options{Match: c.match}.Score(&scoring.Reference{Task: c.task, Answers: c.answers}, c.text)
		assert.InDelta(t, c.want, got, 1e-15, "%+v", c)
	}
}

func TestSubset(t *testing.T) {
	var items []Item
	for i := range 60 {
		items = append(items, Item{Task: fmt.Sprint("t", i%3), Line: i})
	}
	count := func(items []Item) map[string]int {
		n := map[string]int{}
		for i, it := range items {
			n[it.Task]++
			assert.True(t, i == 0 || items[i-1].Line < it.Line, "order kept, nothing twice")
		}
		return n
	}
	all, _, err := Subset(items, 0, 0, 1)
	require.NoError(t, err)
	assert.Equal(t, items, all)
	a, places, err := Subset(items, 0.25, 0, 1)
	require.NoError(t, err)
	require.Len(t, places, len(a))
	for i, at := range places {
		assert.Equal(t, items[at], a[i])
	}
	assert.Equal(t, map[string]int{"t0": 5, "t1": 5, "t2": 5}, count(a))
	b, _, err := Subset(items, 0.25, 3, 1)
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"t0": 3, "t1": 3, "t2": 3}, count(b))
	assert.Subset(t, a, b, "a larger share contains the smaller")
	again, _, err := Subset(items, 0.25, 0, 1)
	require.NoError(t, err)
	assert.Equal(t, a, again)
	other, _, err := Subset(items, 0.25, 0, 2)
	require.NoError(t, err)
	assert.NotEqual(t, a, other)
	one, _, err := Subset(items, 0.001, 0, 2)
	require.NoError(t, err)
	assert.Len(t, one, 3, "at least one of each task")
	// A task's draw does not depend on the others.
	var t1 []Item
	for _, it := range items {
		if it.Task == "t1" {
			t1 = append(t1, it)
		}
	}
	alone, _, err := Subset(t1, 0.25, 0, 1)
	require.NoError(t, err)
	for _, it := range alone {
		assert.Contains(t, a, it)
	}
	for _, bad := range []float64{-1, 1.1, math.NaN()} {
		_, _, err := Subset(items, bad, 0, 1)
		assert.Error(t, err)
	}
	_, _, err = Subset(items, 0, -1, 1)
	assert.Error(t, err)
}

// answers are made-up answers: method a is right on three of the four items of
// each task, b on one of four, and c failed once.
func answers() []Answer {
	var out []Answer
	for _, m := range []string{"a", "b", "c"} {
		for i := range 8 {
			a := Answer{
				Item: i, Task: []string{"x", "y"}[i/4], Method: m, RatioAchieved: 0.5,
				CacheBytes: 100, FullBytes: 200, PeakBytes: int64(150 + i), Time: time.Second,
			}
			switch {
			case m == "a" && i%4 != 0 || m == "b" && i%4 == 1 || m == "c":
				a.Score = 1
			}
			if m == "c" && i == 2 {
				a.Score, a.Error = 0, "does not fit"
			}
			out = append(out, a)
		}
	}
	return out
}

func TestSummarize(t *testing.T) {
	rows := Summarize(answers())
	require.Len(t, rows, 9)
	assert.Equal(t, Row{
		Method: "a", Task: "x", N: 4, Score: 0.75, Percent: 75, Interval: IntervalWilson, Low: rows[0].Low, High: rows[0].High,
		RatioAchieved: 0.5, CacheBytes: 100, PeakBytes: 153, FullBytes: 200, Seconds: 1,
	}, rows[0])
	assert.Equal(t, Average, rows[2].Task)
	assert.Equal(t, 2, rows[2].Tasks)
	assert.Equal(t, 8, rows[2].N)
	assert.Equal(t, 0.75, rows[2].Score)
	assert.Equal(t, 0.25, rows[5].Score)
	assert.Equal(t, 3, rows[6].N)
	assert.Equal(t, 1, rows[6].Failed)
	assert.Equal(t, 1.0, rows[6].Score, "a failed item does not count")
	assert.Equal(t, 1, rows[8].Failed)
	assert.Zero(t, rows[8].Missing)
	assert.Equal(t, rows, Summarize(answers()), "repeatable")
	assert.Equal(t, []Row{}, Summarize([]Answer{{Method: "a", Task: "x", Error: "does not fit"}}), "a list in JSON")
}

// A task in which a method answered nothing is missing from that method's
// average, and the row says so; the other methods' averages include it.
func TestSummarizeMissingTask(t *testing.T) {
	var as []Answer
	for i, method := range []string{"a", "a", "a", "b", "b", "b"} {
		as = append(as, Answer{Item: i % 3, Task: []string{"x", "y", "z"}[i%3], Method: method, Score: float64(i % 3)})
	}
	as[4].Error, as[5].Error = "does not fit", "does not fit" // b: y and z
	as[4].Score, as[5].Score = 0, 0
	rows := Summarize(as)
	require.Len(t, rows, 6)
	assert.Equal(t, 1.0, rows[3].Score)
	assert.Zero(t, rows[3].Missing)
	last := rows[5]
	assert.Equal(t, [3]any{"b", Average, 1}, [3]any{last.Method, last.Task, last.N})
	assert.Equal(t, [2]int{2, 2}, [2]int{last.Missing, last.Failed})
	assert.Equal(t, 0.0, last.Score, "of task x alone")
	var table bytes.Buffer
	require.NoError(t, WriteTable(&table, rows))
	assert.Contains(t, table.String(), "1 (2 failed, 2 tasks missing)")
}

// Fractions are summed, then divided, then multiplied by 100, then rounded
// (spec evaluation 3.7): dividing each first would give 6.87 here.
func TestScoreArithmetic(t *testing.T) {
	var as []Answer
	for i := range 20 {
		a := Answer{Item: i, Task: "x", Method: "m", Empty: i >= 18}
		if i < 11 {
			a.Score = 1. / 8
		}
		as = append(as, a)
	}
	row := Summarize(as)[0]
	require.Equal(t, 0.06875, row.Score)
	require.Equal(t, 6.88, row.Percent)
	require.Equal(t, 2, row.Empty)

	as = nil // LongBench multiplies before it divides (5.1): 14.37 otherwise
	for i := range 160 {
		a := Answer{Item: i, Task: "passage_count", Method: "m"}
		if i < 23 {
			a.Score = 1
		}
		as = append(as, a)
	}
	require.Equal(t, 14.38, Summarize(as)[0].Percent)
	for x, want := range map[float64]float64{2.675: 2.67, 1.005: 1, 0.125: 0.12, 33.335: 33.34, 66.66666: 66.67} {
		require.Equal(t, want, round2(x), "%v", x)
	}
}

// Intervals of few items are Wilson's: one right answer does not make 100 %
// certain. The values are those of the formula with n trials.
func TestFewItems(t *testing.T) {
	one := func(n int, score float64) []Answer {
		var as []Answer
		for i := range n {
			as = append(as, Answer{Item: i, Task: "x", Method: "m", Score: score})
		}
		return as
	}
	for _, c := range []struct {
		n           int
		score       float64
		low, high   float64
		want        string
		description string
	}{
		{1, 1, 0.2065, 1, IntervalWilson, "one right"},
		{1, 0, 0, 0.7935, IntervalWilson, "one wrong"},
		{9, 1, 0.7009, 1, IntervalWilson, "nine right"},
		{10, 1, 1, 1, IntervalBootstrap, "enough to resample"},
	} {
		r := Summarize(one(c.n, c.score))[0]
		assert.Equal(t, c.want, r.Interval, c.description)
		assert.InDelta(t, c.low, r.Low, 5e-5, c.description)
		assert.InDelta(t, c.high, r.High, 5e-5, c.description)
	}
	// Two tasks, of one item and of four, are as good as 2²/(1 + 1/4) = 3.2 items.
	as := append(one(1, 1), one(4, 1)...)
	for i := range as[1:] {
		as[i+1].Task = "y"
	}
	low, high := wilson(1, 3.2)
	rows := Summarize(as)
	assert.Equal(t, [2]float64{low, high}, [2]float64{rows[2].Low, rows[2].High})
	var table bytes.Buffer
	require.NoError(t, WriteTable(&table, rows[:1]))
	assert.Contains(t, table.String(), "*20.7-100.0")
	assert.Contains(t, table.String(), "Wilson's interval")
}

func TestCompare(t *testing.T) {
	d := Compare(answers(), "a", "b")
	assert.Equal(t, Difference{Diff: 0.5, N: 8, Tasks: 2}, d, "too few for an interval")
	assert.Equal(t, Difference{}, Compare(answers(), "a", "none"))
	// A failed item counts under neither method: item 2 failed under c, where a
	// was right.
	d = Compare(answers(), "c", "a")
	assert.Equal(t, [2]int{7, 2}, [2]int{d.N, d.Tasks})
	assert.InDelta(t, (1./3+1./4)/2, d.Diff, 1e-15)
	assert.InDelta(t, -d.Diff, Compare(answers(), "a", "c").Diff, 1e-15)

	var many []Answer
	for i := range 24 {
		task := []string{"x", "y"}[i%2]
		many = append(many,
			Answer{Item: i, Task: task, Method: "a", Score: float64(min(i%4, 1))},
			Answer{Item: i, Task: task, Method: "b", Score: float64(i % 2)})
	}
	d = Compare(many, "a", "b")
	assert.Equal(t, IntervalBootstrap, d.Interval)
	assert.Equal(t, 0.25, d.Diff)
	assert.True(t, d.Low < d.Diff && d.Diff < d.High && d.Low > 0)
	assert.Equal(t, Difference{N: 24, Tasks: 2, Interval: IntervalBootstrap}, Compare(many, "a", "a"))
	for i := range many { // 24 tasks of one item each cannot be resampled by task
		many[i].Task = fmt.Sprint(many[i].Item)
	}
	d = Compare(many, "a", "b")
	assert.Equal(t, IntervalPooled, d.Interval)
	assert.Equal(t, 0.25, d.Diff)
	assert.True(t, d.Low < d.Diff && d.Diff < d.High)
}

func TestWriters(t *testing.T) {
	rows := Summarize(answers())
	rows[0].Method = "a|b"
	var table, md, comma, text bytes.Buffer
	require.NoError(t, WriteTable(&table, rows))
	assert.Contains(t, table.String(), "75.00")
	assert.Contains(t, table.String(), "(1 failed)")
	assert.Equal(t, 11, strings.Count(table.String(), "\n"), "header, rows, the note on few items")

	require.NoError(t, WriteMarkdown(&md, rows))
	lines := strings.SplitAfter(md.String(), "\n")
	assert.Len(t, lines, 14)
	for _, line := range lines[:11] {
		assert.Equal(t, len(header)+1, strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"), line)
	}

	require.NoError(t, WriteCSV(&comma, rows, map[string]string{"b": `{"ratio":0.5}`}))
	records, err := csv.NewReader(&comma).ReadAll()
	require.NoError(t, err)
	assert.Len(t, records, 10)
	assert.Equal(t, "policy", records[0][len(records[0])-1])
	assert.Equal(t, `{"ratio":0.5}`, records[4][len(records[4])-1])
	rows[1].Tokens, rows[2].Bytes = 64, 1<<40
	comma.Reset()
	require.NoError(t, WriteCSV(&comma, rows, nil))
	records, err = csv.NewReader(&comma).ReadAll()
	require.NoError(t, err)
	for i, want := range [][]string{{"budget_tokens", "budget_bytes"}, {"", ""}, {"64", ""}, {"", "1099511627776"}} {
		assert.Equal(t, want, records[i][19:21], "a budget is not the ratio 0 of the full cache")
	}

	require.NoError(t, report.WriteJSON(&text, rows))
	var back []Row
	require.NoError(t, json.Unmarshal(text.Bytes(), &back))
	assert.Equal(t, rows, back)
}

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	settings := map[string]int{"n": 1}
	l, err := OpenLog[Answer](path, "h1", settings)
	require.NoError(t, err)
	for _, a := range answers()[:3] {
		assert.False(t, l.Done(a.Item, a.Method))
		require.NoError(t, l.Add(a))
		assert.True(t, l.Done(a.Item, a.Method))
	}
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	// Wherever the file is cut, whole lines are kept and the rest is dropped.
	for cut := range len(whole) {
		require.NoError(t, os.WriteFile(path, whole[:cut], 0o644))
		l, err := OpenLog[Answer](path, "h1", settings)
		ends := bytes.Count(whole[:cut], []byte("\n"))
		if ends == 0 && cut > 0 {
			assert.Error(t, err)
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, whole[:cut], data, "a file that may be something else stays")
			continue
		}
		require.NoError(t, err, "cut at %d", cut)
		assert.Len(t, l.Outcomes(), max(0, ends-1))
		for _, a := range answers()[len(l.Outcomes()):3] {
			require.NoError(t, l.Add(a))
		}
		require.NoError(t, l.Close())
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, whole, data)
	}

	_, err = OpenLog[Answer](path, "h2", settings)
	assert.ErrorIs(t, err, ErrSettings)
	_, err = OpenLog[Answer](path, "h2", map[string]any{"seed": 4, "limit": 2})
	assert.ErrorContains(t, err, "made with other settings (n, seed): choose another place")
	require.NoError(t, os.WriteFile(path, append(whole, "nonsense\n"...), 0o644))
	_, err = OpenLog[Answer](path, "h1", settings)
	assert.ErrorContains(t, err, "line 5")
	// Lines that no run writes would be counted, and would make scores that are not
	// numbers.
	for line, want := range map[string]string{
		"null": `no "method"`, `{"method":"a","item":-1}`: "item -1", `{"method":"a","score":5}`: "score 5, expected 0 to 1",
	} {
		require.NoError(t, os.WriteFile(path, append(whole, line+"\n"...), 0o644))
		_, err = OpenLog[Answer](path, "h1", settings)
		require.ErrorContains(t, err, "line 5: "+want)
		_, err = ReadPredictions(bytes.NewReader(append(whole, line+"\n"...)), path)
		require.ErrorContains(t, err, "line 5: "+want)
	}
	second := bytes.Split(whole, []byte("\n"))[1]
	require.NoError(t, os.WriteFile(path, append(append(whole, second...), '\n'), 0o644))
	l, err = OpenLog[Answer](path, "h1", settings)
	require.NoError(t, err)
	assert.Len(t, l.Outcomes(), 3, "an answer counts once")
	require.NoError(t, l.Close())
	_, err = OpenLog[Answer](filepath.Join(path, "no"), "h1", settings)
	assert.Error(t, err)
}

// One file of answers has one writer: a second run is refused, and no line of
// either is lost or torn.
func TestLogHasOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	first, err := OpenLog[Answer](path, "h", nil)
	require.NoError(t, err)
	require.NoError(t, first.Add(answers()[0]))
	_, err = OpenLog[Answer](path, "h", nil)
	require.ErrorIs(t, err, ErrInUse)
	_, err = OpenLog[Answer](path, "other", nil)
	require.ErrorIs(t, err, ErrInUse)
	require.NoError(t, first.Add(answers()[1]))
	require.NoError(t, first.Close())
	second, err := OpenLog[Answer](path, "h", nil)
	require.NoError(t, err)
	defer second.Close()
	require.Equal(t, answers()[:2], second.Outcomes())
}

// A resumed run may write a shorter line where a longer one broke off: nothing
// of the broken one is left after it.
func TestLogShorterLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := OpenLog[Answer](path, "h", nil)
	require.NoError(t, err)
	require.NoError(t, l.Add(Answer{Item: 0, Method: "m"}))
	require.NoError(t, l.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	broken := append(bytes.Clone(whole), `{"item":1,"task":"x","prediction":"`+strings.Repeat("long ", 1000)...)
	require.NoError(t, os.WriteFile(path, broken, 0o644))
	l, err = OpenLog[Answer](path, "h", nil)
	require.NoError(t, err)
	require.Len(t, l.Outcomes(), 1)
	require.NoError(t, l.Add(Answer{Item: 1, Method: "m"}))
	require.NoError(t, l.Close())
	l, err = OpenLog[Answer](path, "h", nil)
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, []Answer{{Item: 0, Method: "m"}, {Item: 1, Method: "m"}}, l.Outcomes())
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(after), "long")
	require.True(t, bytes.HasPrefix(after, whole))
}

func TestLogIsAFile(t *testing.T) {
	_, err := OpenLog[Answer](t.TempDir(), "h", nil)
	require.Error(t, err)
	if _, err := os.Stat("/dev/null"); err == nil {
		_, err := OpenLog[Answer]("/dev/null", "h", nil)
		require.ErrorContains(t, err, "not a regular file")
	}
}

func FuzzOpenLog(f *testing.F) {
	f.Add([]byte(`{"format":"lukv answers 2","settings_hash":"h","settings":{}}` + "\n" + `{"item":1,"method":"m"}` + "\n{"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := OpenLog[Answer](path, "h", nil)
		after, _ := os.ReadFile(path)
		if err != nil {
			if !bytes.Equal(after, data) {
				t.Fatal("a refused file was changed")
			}
			return
		}
		defer l.Close()
		if len(data) > 0 && !bytes.HasPrefix(data, after) {
			t.Fatal("an accepted file lost more than its end")
		}
	})
}

// builtinFraming is the embedded model's prompt.
var builtinFraming = dialog.Framing{Before: "<s><|user|>", Between: "\n\n", After: "<|assistant|>"}

// few returns the embedded samples of a task and length, at most n.
func few(task string, length, n int) []Item {
	var out []Item
	for _, s := range builtin.Samples() {
		if s.Task == task && s.Length == length && len(out) < n {
			out = append(out, Item{Task: s.Task, Context: s.Context, Question: s.Question, AnswerPrefix: s.AnswerPrefix, Answers: s.Answers})
		}
	}
	return out
}

func open(t *testing.T) *model.Model {
	t.Helper()
	m, err := builtin.Open(t.Context(), model.WithThreads(2))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func collect(t *testing.T, m *model.Model, items []Item, methods []Method, o Options) []Answer {
	t.Helper()
	var out []Answer
	require.NoError(t, Run(t.Context(), m, items, methods, o, func(a Answer) error {
		a.Time, a.PrefillMS, a.EvictMS, a.FirstTokenMS, a.DecodeMS = 0, 0, 0, 0, 0
		out = append(out, a)
		return nil
	}))
	return out
}

func TestRun(t *testing.T) {
	m := open(t)
	items := few("niah_single_2", 256, 2)
	twin := items[0] // a second question about the same context
	twin.Question, twin.AnswerPrefix, twin.MaxNewTokens = items[0].Question, "", 5
	items = append(items, twin)
	methods := []Method{
		{Name: "full"},
		{Name: "half", Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}},
		{Name: "ada", Policy: &lukv.Policy{Ratio: 0.5, Allocator: lukv.AllocatorConfig{Name: "adakv"}}},
	}
	o := Options{Framing: builtinFraming, OwnPrefills: true}
	var calls [][2]int
	o.Progress = func(done, total int) { calls = append(calls, [2]int{done, total}) }
	got := collect(t, m, items, methods, o)
	require.Len(t, got, 9)
	assert.Equal(t, [2]int{0, 9}, calls[0])
	assert.Equal(t, [2]int{9, 9}, calls[len(calls)-1])
	var order []string
	for _, a := range got {
		order = append(order, fmt.Sprint(a.Item, a.Method))
		if a.Method == "full" && a.Item != 2 {
			assert.Equal(t, 1.0, a.Score)
			assert.Equal(t, "stop", a.Stop)
		}
		if a.Method != "full" {
			assert.InDelta(t, 0.5, a.RatioAchieved, 0.02)
			assert.Less(t, a.CacheBytes, a.FullBytes)
		}
		assert.LessOrEqual(t, a.PeakBytes, a.FullBytes)
		if a.Item == 2 {
			assert.LessOrEqual(t, a.NewTokens, 5)
		}
	}
	assert.Equal(t, []string{"0full", "2full", "0half", "2half", "0ada", "2ada", "1full", "1half", "1ada"}, order)

	// One prefill for all: the same answers, without peaks.
	shared := o
	shared.OwnPrefills = false
	for i, a := range collect(t, m, items, methods, shared) {
		want := got[i]
		want.PeakBytes = 0
		assert.Equal(t, want, a)
	}

	// What is done is not repeated; the rest comes out the same.
	resumed := o
	resumed.Done = func(item int, method string) bool { return method == "half" || item == 1 }
	var want []Answer
	for _, a := range got {
		if !resumed.Done(a.Item, a.Method) {
			want = append(want, a)
		}
	}
	assert.Equal(t, want, collect(t, m, items, methods, resumed))

	// The question known before compression.
	aware := o
	aware.QueryAware = true
	for i, a := range collect(t, m, items[:1], methods, aware) {
		assert.Greater(t, a.ContextTokens, got[0].ContextTokens)
		if i == 0 {
			assert.Equal(t, got[0].Prediction, a.Prediction, "with the full cache it makes no difference")
		}
	}
}

// TestSharedPrefill: one prefill per context gives, for every combination of three
// metrics, four allocators and two ratios, the answers, budgets and notes of a prefill
// per method; metrics that cannot observe a prefill together have their own.
func TestSharedPrefill(t *testing.T) {
	m := open(t)
	items := few("niah_single_2", 256, 1)
	methods := []Method{{Name: "full"}}
	add := func(metric lukv.MetricConfig, allocator string, ratio float64) {
		p := &lukv.Policy{Metric: metric, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: ratio}
		if p.Allocator.NeedsProfile() {
			var err error
			p.Profile, err = builtin.Profile(metric)
			require.NoError(t, err)
		}
		methods = append(methods, Method{Name: fmt.Sprint(metric, allocator, ratio), Policy: p})
	}
	for _, metric := range []string{"snapkv", "keydiff", "expected_attention"} {
		for _, allocator := range []string{"uniform", "pyramidkv", "adakv", "lukv"} {
			for _, ratio := range []float64{0.5, 0.9} {
				add(lukv.MetricConfig{Name: metric}, allocator, ratio)
			}
		}
	}
	add(lukv.MetricConfig{Name: "expected_attention", Params: `{"sinks":8}`}, "uniform", 0.5)
	o := Options{Framing: builtinFraming, MaxNewTokens: 4, OwnPrefills: true}
	want := collect(t, m, items, methods, o)
	require.Len(t, want, 26)
	for i := range want {
		assert.Positive(t, want[i].PeakBytes)
		want[i].PeakBytes = 0
	}
	o.OwnPrefills = false
	got := collect(t, m, items, methods, o)
	assert.Positive(t, got[25].PeakBytes, "it leaves out eight positions, the other four")
	got[25].PeakBytes = 0
	assert.Equal(t, want, got)

	// Where the full cache does not fit, methods have their own prefills, and the
	// notes say so.
	o.Session.MaxCacheBytes = want[3].FullBytes * 9 / 10
	for i, a := range collect(t, m, items, []Method{methods[0], methods[2], methods[3]}, o) {
		if i == 0 {
			assert.Contains(t, a.Error, "cache is full")
			continue
		}
		assert.Equal(t, want[i+1].Prediction, a.Prediction)
		assert.Positive(t, a.PeakBytes)
		require.NotEmpty(t, a.Notes)
		assert.Contains(t, a.Notes[len(a.Notes)-1], "the full cache of the context did not fit, so that methods had prefills of their own")
	}
}

// TestQueryAwareText: the control experiment compresses context and question
// together. The text is the same as otherwise, only split elsewhere.
func TestQueryAwareText(t *testing.T) {
	m := open(t)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	item := Item{Context: "The code is 12.", Question: "Which code?", AnswerPrefix: "It is"}
	parts := func(aware bool) (head, tail string) {
		r := &runner{tok: tok, items: []Item{item}, o: Options{Framing: builtinFraming, QueryAware: aware}}
		h, t := r.parts(0)
		return tok.Decode(h, false), tok.Decode(t, false)
	}
	head, tail := parts(false)
	assert.Equal(t, "<s><|user|>The code is 12.", head)
	assert.Equal(t, "\n\nWhich code?<|assistant|>It is", tail)
	head, tail = parts(true)
	assert.Equal(t, "<s><|user|>The code is 12.\n\nWhich code?", head)
	assert.Equal(t, "<|assistant|>It is", tail)

	// Equal contexts share a compressed cache only where it holds no question.
	two := []Item{item, item}
	assert.Len(t, (&runner{items: two}).groups(), 1)
	assert.Len(t, (&runner{items: two, o: Options{QueryAware: true}}).groups(), 2)
}

func TestRunFailures(t *testing.T) {
	m := open(t)
	items := append(few("niah_single_2", 256, 1), few("niah_single_2", 1024, 1)...)
	methods := []Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	for _, own := range []bool{false, true} {
		o := Options{Framing: builtinFraming, OwnPrefills: own, Session: model.SessionOptions{MaxTokens: 400}}
		got := collect(t, m, items, methods, o)
		require.Len(t, got, 4)
		for _, a := range got {
			if a.Item == 0 {
				assert.Empty(t, a.Error)
			} else {
				assert.Contains(t, a.Error, "context full")
				assert.Zero(t, a.Score)
			}
		}
	}
	// A policy that cannot run is an error before any work is done.
	bad := []Method{{Name: "bad", Policy: &lukv.Policy{Ratio: 0.5, Allocator: lukv.AllocatorConfig{Name: "lukv"}}}}
	err := Run(t.Context(), m, items, bad, Options{Framing: builtinFraming}, func(Answer) error { t.Fatal("an answer"); return nil })
	assert.ErrorContains(t, err, "method bad")
	stop := errors.New("stop")
	err = Run(t.Context(), m, items, methods, Options{Framing: builtinFraming}, func(Answer) error { return stop })
	assert.ErrorIs(t, err, stop)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = Run(ctx, m, items, methods, Options{Framing: builtinFraming}, func(Answer) error { return nil })
	assert.ErrorIs(t, err, context.Canceled)
}

// TestSharedPrefillServesCake: an allocator gets what it observes even if the
// metric observes nothing of the kind; answers are those of separate prefills.
func TestSharedPrefillServesCake(t *testing.T) {
	m := open(t)
	methods := []Method{{Name: "full"}}
	for _, window := range []string{"", `{"window":40}`} {
		methods = append(methods, Method{Name: "cake" + window, Policy: &lukv.Policy{
			Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "cake", Params: window}, Ratio: 0.8}})
	}
	items, o := few("niah_single_2", 256, 1), Options{Framing: builtinFraming, MaxNewTokens: 4, OwnPrefills: true}
	want := collect(t, m, items, methods, o)
	o.OwnPrefills = false
	got := collect(t, m, items, methods, o)
	for i := range want {
		assert.Zero(t, got[i].PeakBytes, "shared")
		want[i].PeakBytes = 0
	}
	assert.Equal(t, want, got)
}
