package runs

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/scoring"
)

// answers returns answers to items of two tasks under a few methods: item i of
// method k scores 1 if i is below right[k].
func answers(right map[string]int, n int) []eval.Answer {
	var out []eval.Answer
	for _, method := range []string{"full", "snapkv/uniform/0.8", "snapkv/lukv/0.8", "snapkv/lukv/0.5"} {
		if _, ok := right[method]; !ok {
			continue
		}
		for _, task := range []string{"vt", "niah_single_1"} {
			for i := range n {
				a := eval.Answer{Item: i, Task: task, Method: method, Prediction: "no", References: []string{"yes"}}
				if parts := strings.Split(method, "/"); len(parts) == 3 {
					a.Metric, a.Allocator = parts[0], parts[1]
					a.Ratio = map[string]float64{"0.8": 0.8, "0.5": 0.5}[parts[2]]
				}
				if i < right[method] {
					a.Prediction = "yes"
				}
				out = append(out, a)
			}
		}
	}
	return out
}

func settings(hash, data string) Info {
	return Info{Hash: hash, Settings: json.RawMessage(`{"a":1}`), Command: "lukv eval", Version: map[string]string{"version": "1"}, Data: data}
}

// folder keeps answers in a folder.
func folder(t *testing.T, all []eval.Answer) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	f, err := Open(dir, settings("h", "builtin"))
	require.NoError(t, err)
	for _, a := range all {
		require.NoError(t, f.Add(a))
	}
	require.NoError(t, f.Finish(eval.Summarize(all), nil))
	require.NoError(t, f.Close())
	return dir
}

func TestFolder(t *testing.T) {
	dir := folder(t, answers(map[string]int{"full": 3}, 3))
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 5)
	first, err := os.ReadFile(filepath.Join(dir, infoName))
	require.NoError(t, err)

	// The same run is resumed; another is refused.
	info := settings("h", "builtin")
	info.Command = "another"
	f, err := Open(dir, info)
	require.NoError(t, err)
	assert.True(t, f.Done(2, "full"))
	_, err = Open(dir, info)
	require.ErrorIs(t, err, eval.ErrInUse)
	require.NoError(t, f.Close())
	_, err = Open(dir, settings("other", ""))
	require.ErrorIs(t, err, eval.ErrSettings)
	again, err := os.ReadFile(filepath.Join(dir, infoName))
	require.NoError(t, err)
	assert.Equal(t, first, again)

	// A run that chooses other questions changes only the settings.
	grown := info
	grown.Settings = json.RawMessage(`{"a":2}`)
	f, err = Open(dir, grown)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	changed, err := os.ReadFile(filepath.Join(dir, infoName))
	require.NoError(t, err)
	assert.Equal(t, strings.Replace(string(first), `"a": 1`, `"a": 2`, 1), string(changed))
	assert.NotEqual(t, first, changed)

	// A folder that lost its answers starts over, with the new run's information.
	lost := folder(t, answers(map[string]int{"full": 3}, 3))
	require.NoError(t, os.Remove(filepath.Join(lost, answersName)))
	f, err = Open(lost, settings("other", ""))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	now, err := readInfo(lost)
	require.NoError(t, err)
	assert.Equal(t, "other", now.Hash)

	r, err := readOne(dir)
	require.NoError(t, err)
	assert.Equal(t, "run", r.Name)
	assert.Equal(t, "lukv eval", r.Info.Command)
	assert.Len(t, r.Answers, 6)
	assert.Zero(t, r.Answers[0].Score)
	r.Rescore(scoring.Options{})
	assert.Equal(t, 1.0, r.Answers[0].Score)

	require.NoError(t, os.WriteFile(filepath.Join(dir, infoName), []byte(`{"format":"other"}`), 0o600))
	_, err = readOne(dir)
	require.ErrorContains(t, err, `format "other"`)
	_, err = readOne(t.TempDir())
	require.ErrorContains(t, err, "neither run.json nor predictions.csv")
}

// The folder above a run would count every answer twice.
func TestFolderOfRuns(t *testing.T) {
	dir := folder(t, answers(map[string]int{"full": 3, "snapkv/lukv/0.8": 1}, 3))
	r, err := readOne(dir)
	require.NoError(t, err)
	assert.Len(t, r.Answers, 12)
	_, err = readOne(filepath.Dir(dir))
	require.ErrorContains(t, err, dir+" in it is the folder of a run")
}

// A filter that nothing passes is a mistake even where the full cache would be left.
func TestTableOfNothing(t *testing.T) {
	all := []*Run{{Answers: answers(map[string]int{"full": 3, "snapkv/uniform/0.8": 1, "snapkv/lukv/0.5": 2}, 3)}}
	for want, o := range map[string]Options{
		"the metric keydiff, found [snapkv]":                     {Metrics: []string{"snapkv", "keydiff"}},
		"the allocator adakv, found [lukv uniform]":              {Allocators: []string{"adakv"}},
		"none of the answers has the ratio 0.9, found [0.5 0.8]": {Ratios: []float64{0.9}},
	} {
		_, err := NewTable(all, o)
		require.ErrorContains(t, err, want)
	}
	_, err := NewTable(all, Options{Metrics: []string{"snapkv"}, Allocators: []string{"lukv"}, Ratios: []float64{0.5}})
	require.NoError(t, err)
}

// A complete run has its answers a second time by benchmark, task and method, and
// any part of that can be read by itself. Names come from data and policies: none
// leads out of the folder or replaces another.
func TestFolderByTask(t *testing.T) {
	all := answers(map[string]int{"full": 2, "snapkv/lukv/0.8": 1}, 3)
	all[0], all[1] = all[1], all[0] // as a resumed run would give them
	hostile := []eval.Answer{
		{Task: "../../up", Method: "a/b"}, {Task: "..", Method: "a-b"}, {Task: "..-..-up", Method: `{"name":"a"}`},
		{Task: "\x00", Method: strings.Repeat("long", 1000)}, {Task: "UP", Method: "A/B"}, {Task: "up", Method: "a/b"}, {Task: "up", Method: "A/B"},
	}
	dir := folder(t, append(all, hostile...))
	var paths []string
	require.NoError(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		if err == nil && !d.IsDir() && strings.Contains(rel, string(filepath.Separator)) {
			paths = append(paths, filepath.ToSlash(rel))
			assert.Less(t, len(d.Name()), 200)
		}
		return err
	}))
	require.Len(t, paths, 4+len(hostile))
	assert.Subset(t, paths, []string{
		"ruler/vt/full.jsonl", "ruler/vt/snapkv-lukv-0.8.jsonl", "ruler/niah_single_1/full.jsonl", "ruler/niah_single_1/snapkv-lukv-0.8.jsonl",
		"other/..-..-up/a-b.jsonl", "other/..-..-up-2/--name---a--.jsonl", "other/-../a-b.jsonl", "other/UP/A-B.jsonl", "other/up-2/a-b.jsonl", "other/up-2/A-B-2.jsonl",
	})
	for _, part := range []string{"ruler/vt/full.jsonl", "ruler/vt", "ruler"} {
		r, err := readOne(filepath.Join(dir, part))
		require.NoError(t, err)
		items := map[string][]int{}
		for _, a := range r.Answers {
			items[a.Task+" "+a.Method] = append(items[a.Task+" "+a.Method], a.Item)
		}
		assert.Equal(t, []int{0, 1, 2}, items["vt full"], part)
	}
}

// Other programs' folders are read whole.
func TestReadForeign(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/ruler__4096__m__snapkv__0.50/predictions.csv": "task,answer,predicted_answer\nvt,\"['A', 'B']\",A b\n",
		"a/ruler__4096__m__snapkv__0.50/metrics.json":    "{}",
		"b/pred/model/trec.jsonl":                        `{"pred":"\n Place x","answers":["Place"],"all_classes":["Place","Number"],"length":1}` + "\n",
		"c/pred/qa_1.jsonl":                              `{"pred":"\u0001it","outputs":["it","no"]}` + "\n",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	r, err := readOne(dir)
	require.NoError(t, err)
	got := map[string]float64{} // not rescored, as reports read them
	for _, a := range r.Answers {
		got[a.Method+" "+a.Task] = a.Score
	}
	assert.Equal(t, map[string]float64{"snapkv__0.50 vt": 1, "model trec": 1, "c qa_1": 1}, got)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad.jsonl"), []byte("{}"), 0o600))
	_, err = readOne(dir)
	require.ErrorContains(t, err, `no "pred"`)
}

func readOne(path string) (*Run, error) {
	all, err := Read(path)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// run writes answers, reads them back and rescores them.
func run(t *testing.T, all []eval.Answer) *Run {
	t.Helper()
	r, err := readOne(folder(t, all))
	require.NoError(t, err)
	r.Rescore(scoring.Options{})
	return r
}

func TestTable(t *testing.T) {
	r := run(t, answers(map[string]int{"full": 12, "snapkv/uniform/0.8": 3, "snapkv/lukv/0.8": 9, "snapkv/lukv/0.5": 6}, 12))
	table, err := NewTable([]*Run{r}, Options{Against: "uniform"})
	require.NoError(t, err)
	var names []string
	for _, c := range table.Columns {
		names = append(names, c.Name)
	}
	assert.Equal(t, []string{"niah_single_1", "vt", eval.Average}, names, "the benchmark's order")
	percent := map[string][]float64{}
	for _, row := range table.Rows {
		for _, c := range row.Cells {
			percent[table.label(&row)] = append(percent[table.label(&row)], c.Percent)
			assert.Equal(t, row.Method == "snapkv/lukv/0.8", c.Best, row.Method)
			assert.Equal(t, eval.IntervalBootstrap, c.Interval)
			assert.LessOrEqual(t, c.Low, c.Percent)
		}
	}
	assert.Equal(t, map[string][]float64{"full": {100, 100, 100}, "snapkv, uniform, 80 %": {25, 25, 25}, "snapkv, lukv, 80 %": {75, 75, 75}, "snapkv, lukv, 50 %": {50, 50, 50}}, percent)
	assert.Equal(t, "full", table.Rows[0].Method)
	require.Len(t, table.Differences, 1)
	d := table.Differences[0]
	assert.Equal(t, 50.0, d.Percent)
	assert.Equal(t, 24, d.N)
	assert.Less(t, 0.0, d.Low)

	table, err = NewTable([]*Run{r}, Options{By: ByCategory, Ratios: []float64{0.5}})
	require.NoError(t, err)
	assert.Equal(t, "retrieval", table.Columns[0].Name)
	assert.Equal(t, "multi_hop", table.Columns[1].Name)
	require.Len(t, table.Rows, 2)
	assert.Equal(t, 50.0, table.Rows[1].Cells[2].Percent)

	table, err = NewTable([]*Run{r}, Options{By: ByRatio})
	require.NoError(t, err)
	require.Len(t, table.Columns, 3)
	require.Len(t, table.Rows, 3)
	assert.Equal(t, 100.0, table.Rows[0].Cells[0].Percent)
	for _, row := range table.Rows[1:] {
		if row.Allocator == "lukv" {
			assert.Equal(t, 50.0, row.Cells[1].Percent)
			assert.Equal(t, 75.0, row.Cells[2].Percent)
		} else {
			assert.Nil(t, row.Cells[1])
		}
	}
	_, err = NewTable([]*Run{r}, Options{Against: "unifrom"})
	require.ErrorContains(t, err, "none of the methods has the allocator unifrom")
	_, err = NewTable([]*Run{r}, Options{Metrics: []string{"keydiff"}, By: "colour"})
	require.ErrorContains(t, err, `by "colour"`)
}

// Pairs are never formed across runs; failed and missing items are shown.
func TestTableOfRuns(t *testing.T) {
	first := answers(map[string]int{"full": 2, "snapkv/uniform/0.8": 1}, 2)
	second := answers(map[string]int{"snapkv/lukv/0.8": 2}, 2)[:3] // one item of the second task
	second[2].Error = "context full"
	a, b := run(t, first), run(t, second)
	table, err := NewTable([]*Run{a, b}, Options{Against: "uniform"})
	require.NoError(t, err)
	assert.Empty(t, table.Differences)
	last := table.Rows[len(table.Rows)-1]
	assert.Equal(t, "run (2)", last.Run)
	assert.Nil(t, last.Cells[0], "the only item failed")
	assert.Equal(t, 1, last.Cells[2].Missing)
	var md strings.Builder
	require.NoError(t, table.WriteMarkdown(&md, true))
	assert.Contains(t, md.String(), "| run (2): snapkv, lukv, 80 % |  | 100.00 (34.2–100.0) | 100.00† (34.2–100.0) [n=2] |")
	assert.Contains(t, md.String(), "1 item without an answer")
	assert.Contains(t, md.String(), "this project's own texts")
	assert.Contains(t, md.String(), "† a mean over fewer tasks")
	assert.Contains(t, md.String(), "the benchmark's own set has more")
}

// Methods with the same name but different parameters have rows of their own, which
// say so.
func TestTableOfOneName(t *testing.T) {
	var all []eval.Answer
	for i, m := range []struct {
		metric, allocator string
		right             int
	}{{"snapkv", "uniform", 1}, {`{"name":"snapkv","window":8}`, "uniform", 2}, {`{"name":"snapkv","window":8}`, `{"name":"adakv","alpha":1}`, 3}, {"preset: snapkv", "adakv", 4}} {
		for _, ratio := range []string{"0.5", "0.8"} {
			for item := range 4 {
				a := eval.Answer{Item: item, Task: "vt", Method: m.metric + "/" + m.allocator + "/" + ratio, Metric: "snapkv", Allocator: "uniform", Prediction: "no", References: []string{"yes"}}
				if i > 1 {
					a.Allocator = "adakv"
				}
				a.Ratio = map[string]float64{"0.8": 0.8, "0.5": 0.5}[ratio]
				if item < m.right {
					a.Prediction = "yes"
				}
				all = append(all, a)
			}
		}
	}
	r := run(t, all)
	table, err := NewTable([]*Run{r}, Options{By: ByRatio})
	require.NoError(t, err)
	got := map[string][]float64{}
	for _, row := range table.Rows {
		for _, c := range row.Cells {
			got[table.label(&row)] = append(got[table.label(&row)], c.Percent)
		}
	}
	assert.Equal(t, map[string][]float64{"snapkv/uniform": {25, 25}, `{"name":"snapkv","window":8}/uniform`: {50, 50},
		`{"name":"snapkv","window":8}/{"name":"adakv","alpha":1}`: {75, 75}, "preset: snapkv/adakv": {100, 100}}, got)

	table, err = NewTable([]*Run{r}, Options{Against: "uniform", Ratios: []float64{0.5}})
	require.NoError(t, err)
	best := map[string]bool{}
	for _, row := range table.Rows {
		best[table.label(&row)] = row.Cells[0].Best
	}
	assert.Equal(t, map[string]bool{"snapkv/uniform/0.5": false, `{"name":"snapkv","window":8}/uniform/0.5`: false,
		`{"name":"snapkv","window":8}/{"name":"adakv","alpha":1}/0.5`: true, "preset: snapkv/adakv/0.5": true}, best)
	var pairs []string
	for _, d := range table.Differences {
		pairs = append(pairs, d.Metric+": "+d.A+" over "+d.B)
	}
	assert.ElementsMatch(t, []string{"snapkv: adakv over uniform", `{"name":"snapkv","window":8}: {"name":"adakv","alpha":1} over uniform`}, pairs)
}

func TestReference(t *testing.T) {
	const text = "model,allocator,metric,variant,ratio,vt,niah_single_1,avg\n" +
		"m-1,full,,,0,99.5,98,98.75\nm-1,uniform,snapkv,,0.8,25,37,31\nm-1,lukv,snapkv,without_gap,0.8,1,1,1\nm-2,lukv,snapkv,with_gap,0.8,80,,80\n"
	ref, err := ReadReference(strings.NewReader(text), "r.csv")
	require.NoError(t, err)
	r := run(t, answers(map[string]int{"full": 2, "snapkv/uniform/0.8": 1, "snapkv/lukv/0.8": 2}, 2))
	table, err := NewTable([]*Run{r}, Options{Reference: ref})
	require.NoError(t, err)
	var md, tex, long strings.Builder
	require.NoError(t, table.WriteMarkdown(&md, false))
	assert.Contains(t, md.String(), "| full | 100.00 | 100.00 | 100.00 |\n| full (published, m-1) | 98.00 | 99.50 | 98.75 |\n")
	assert.Contains(t, md.String(), "| snapkv, lukv, 80 % | **100.00** | **100.00** | **100.00** |\n| snapkv, lukv, 80 % (published, m-2) |  | 80.00 | 80.00 |\n")
	require.NoError(t, table.WriteLaTeX(&tex, true))
	assert.Contains(t, tex.String(), "method & niah\\_single\\_1 & vt & average \\\\\n")
	assert.Contains(t, tex.String(), "snapkv, lukv, 80 \\% & \\textbf{100.00 (34.2--100.0)} &")
	require.NoError(t, table.WriteCSV(&long))
	records, err := csv.NewReader(strings.NewReader(long.String())).ReadAll()
	require.NoError(t, err)
	assert.Len(t, records, 1+3*3+3+3+2)
	table, err = NewTable([]*Run{r}, Options{Reference: ref, Model: "m-2"})
	require.NoError(t, err)
	assert.Len(t, table.Rows, 4)
	_, err = NewTable([]*Run{r}, Options{Reference: ref, Model: "m-3"})
	require.ErrorContains(t, err, "no row and column")
	_, err = NewTable([]*Run{r}, Options{Reference: ref, By: ByRatio})
	require.ErrorContains(t, err, "by task or category")
	for text, want := range map[string]string{
		"":                  "found 0 lines",
		"method,r50\na,1\n": "no column model",
		"model,allocator,metric,ratio\na,b,c,d\n":      `ratio "d"`,
		"model,allocator,metric,ratio,vt\na,b,c,0,x\n": `vt is "x"`,
	} {
		_, err := ReadReference(strings.NewReader(text), "r.csv")
		assert.ErrorContains(t, err, want, text)
	}
}

// All of the paper's tables that have the columns of a reference can be read.
func TestPaperTables(t *testing.T) {
	dir := os.Getenv("LUKV_GOLDEN_PAPER_TABLES")
	if dir == "" {
		t.Skip("LUKV_GOLDEN_PAPER_TABLES is not set: the paper's tables are not compared")
	}
	names, err := filepath.Glob(filepath.Join(dir, "*_r?0.csv"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		f, err := os.Open(name)
		require.NoError(t, err)
		defer f.Close()
		ref, err := ReadReference(f, name)
		require.NoError(t, err)
		for _, row := range ref.rows {
			sum, n := 0.0, 0
			for column, x := range row.scores {
				if column != eval.Average {
					sum, n = sum+x, n+1
				}
			}
			if n >= 13 { // the columns are tasks; the average is over them, not over categories
				assert.InDelta(t, row.scores[eval.Average], sum/float64(n), 0.0051, name)
			}
		}
	}
}
