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
	"github.com/lukv/lukv/internal/report"
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
		{Task: "t", Context: "c", Question: "q", Answers: []string{"a", "b"}, MaxNewTokens: 7, Line: 1},
		{Task: "default", Context: "c", Answers: []string{"one"}, Line: 3},
	}, items)
	for text, want := range map[string]string{
		"":                                 "no items",
		"{}\n":                             "line 1",
		`{"context":"c"}`:                  `no "answers"`,
		`{"context":"c","answers":[]}`:     "empty",
		`{"context":"c","answers":[1]}`:    "list of strings",
		`{"answers":["a"]}`:                `no "context"`,
		`{"context":"c","answers":null}`:   `no "answers"`,
		"{\"context\":\"c\",\"answers\":[": "line 1",
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
		match      Match
		task, text string
		answers    []string
		want       float64
	}{
		{MatchAll, "x", "a B c", []string{"b", "d"}, 0.5},
		{MatchPart, "x", "a B c", []string{"b", "d"}, 1},
		{MatchPart, "x", "a B c", []string{"e", "d"}, 0},
		{MatchAuto, "x", "a B c", []string{"b", "d"}, 0.5},
		{"", "qa_1", "a B c", []string{"b", "d"}, 1},
		{MatchAll, "qa_1", "a B c", []string{"b", "d"}, 0.5},
		{MatchAll, "x", "", []string{"b"}, 0},
	} {
		assert.Equal(t, c.want, Score(c.match, c.task, c.text, c.answers), "%+v", c)
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
	all, err := Subset(items, 0, 0, 1)
	require.NoError(t, err)
	assert.Equal(t, items, all)
	a, err := Subset(items, 0.25, 0, 1)
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"t0": 5, "t1": 5, "t2": 5}, count(a))
	b, err := Subset(items, 0.25, 3, 1)
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"t0": 3, "t1": 3, "t2": 3}, count(b))
	again, err := Subset(items, 0.25, 0, 1)
	require.NoError(t, err)
	assert.Equal(t, a, again)
	other, err := Subset(items, 0.25, 0, 2)
	require.NoError(t, err)
	assert.NotEqual(t, a, other)
	one, err := Subset(items, 0.001, 0, 2)
	require.NoError(t, err)
	assert.Len(t, one, 3, "at least one of each task")
	// A task's draw does not depend on the others.
	var t1 []Item
	for _, it := range items {
		if it.Task == "t1" {
			t1 = append(t1, it)
		}
	}
	alone, err := Subset(t1, 0.25, 0, 1)
	require.NoError(t, err)
	for _, it := range alone {
		assert.Contains(t, a, it)
	}
	for _, bad := range []float64{-1, 1.1, math.NaN()} {
		_, err := Subset(items, bad, 0, 1)
		assert.Error(t, err)
	}
	_, err = Subset(items, 0, -1, 1)
	assert.Error(t, err)
}

// answers are made-up answers: method a is right in three of four items of each
// task, b in one of four, and c failed once.
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
		Method: "a", Task: "x", N: 4, Score: 0.75, Low: rows[0].Low, High: 1,
		RatioAchieved: 0.5, CacheBytes: 100, PeakBytes: 153, FullBytes: 200, Seconds: 1,
	}, rows[0])
	assert.Less(t, rows[0].Low, 0.75)
	assert.Equal(t, Average, rows[2].Task)
	assert.Equal(t, 8, rows[2].N)
	assert.Equal(t, 0.75, rows[2].Score)
	assert.Equal(t, 0.25, rows[5].Score)
	assert.Equal(t, 3, rows[6].N)
	assert.Equal(t, 1, rows[6].Failed)
	assert.Equal(t, 1.0, rows[6].Score, "a failed item does not count")
	assert.Equal(t, 1, rows[8].Failed)
	assert.Equal(t, rows, Summarize(answers()), "repeatable")

	d, low, high := Compare(answers(), "a", "b")
	assert.Equal(t, 0.5, d)
	assert.True(t, low <= d && d <= high)
	d, low, high = Compare(answers(), "a", "a")
	assert.Equal(t, [3]float64{}, [3]float64{d, low, high})
	d, _, _ = Compare(answers(), "a", "none")
	assert.Zero(t, d)
}

func TestWriters(t *testing.T) {
	rows := Summarize(answers())
	rows[0].Method = "a|b"
	var table, md, comma, text bytes.Buffer
	require.NoError(t, WriteTable(&table, rows))
	assert.Contains(t, table.String(), "75.0")
	assert.Contains(t, table.String(), "(1 failed)")
	assert.Equal(t, 10, strings.Count(table.String(), "\n"))

	require.NoError(t, WriteMarkdown(&md, rows))
	assert.Equal(t, 11, strings.Count(md.String(), "\n"))
	for line := range strings.Lines(md.String()) {
		assert.Equal(t, len(header)+1, strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"), line)
	}

	require.NoError(t, WriteCSV(&comma, rows))
	records, err := csv.NewReader(&comma).ReadAll()
	require.NoError(t, err)
	assert.Len(t, records, 10)

	require.NoError(t, report.WriteJSON(&text, rows))
	var back []Row
	require.NoError(t, json.Unmarshal(text.Bytes(), &back))
	assert.Equal(t, rows, back)
}

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	settings := map[string]int{"n": 1}
	l, err := OpenLog(path, "h1", settings)
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

	// Cut anywhere, what is whole is there and the rest is gone.
	for cut := range len(whole) {
		require.NoError(t, os.WriteFile(path, whole[:cut], 0o644))
		l, err := OpenLog(path, "h1", settings)
		ends := bytes.Count(whole[:cut], []byte("\n"))
		if ends == 0 && cut > 0 {
			assert.Error(t, err)
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, whole[:cut], data, "a file that may be something else stays")
			continue
		}
		require.NoError(t, err, "cut at %d", cut)
		assert.Len(t, l.Answers(), max(0, ends-1))
		for _, a := range answers()[len(l.Answers()):3] {
			require.NoError(t, l.Add(a))
		}
		require.NoError(t, l.Close())
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, whole, data)
	}

	_, err = OpenLog(path, "h2", settings)
	assert.ErrorIs(t, err, ErrSettings)
	require.NoError(t, os.WriteFile(path, append(whole, "nonsense\n"...), 0o644))
	_, err = OpenLog(path, "h1", settings)
	assert.ErrorContains(t, err, "line 5")
	_, err = OpenLog(filepath.Join(path, "no"), "h1", settings)
	assert.Error(t, err)
}

func FuzzOpenLog(f *testing.F) {
	f.Add([]byte(`{"format":"lukv answers 1","settings_hash":"h","settings":{}}` + "\n" + `{"item":1,"method":"m"}` + "\n{"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := OpenLog(path, "h", nil)
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
		a.Time = 0
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
	o := Options{Framing: builtinFraming}
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
	shared.SharePrefill = true
	for i, a := range collect(t, m, items, methods, shared) {
		want := got[i]
		want.PeakBytes = 0
		assert.Equal(t, want, a)
	}

	// What is done is not done again; the rest comes out the same.
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

func TestRunFailures(t *testing.T) {
	m := open(t)
	items := append(few("niah_single_2", 256, 1), few("niah_single_2", 1024, 1)...)
	methods := []Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	for _, share := range []bool{false, true} {
		o := Options{Framing: builtinFraming, SharePrefill: share, Session: model.SessionOptions{MaxTokens: 400}}
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
	// A policy that cannot run is an error before any work.
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
