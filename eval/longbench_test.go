package eval

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/lukv/lukv/eval/scoring"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// officialPrompts have the structure of LongBench's own: the parts that the split
// depends on, in a different wording.
func officialPrompts(t *testing.T) fstest.MapFS {
	prompts, lengths := map[string]string{}, map[string]int{}
	for name, p := range longbenchPrompts {
		prompts[name] = strings.Replace(p.prompt, slotContext, "Other words, and {braces}.\n"+slotContext, 1)
		lengths[name] = p.maxNew + 1
	}
	dir := fstest.MapFS{}
	for name, v := range map[string]any{"dataset2prompt.json": prompts, "dataset2maxlen.json": lengths} {
		data, err := json.Marshal(v)
		require.NoError(t, err)
		dir[name] = &fstest.MapFile{Data: data}
	}
	return dir
}

// The parts of every record concatenate to the filled prompt, in both wordings, and
// question and answer prefix are those of spec evaluation 4.2.
func TestLongBenchSplit(t *testing.T) {
	official, err := ReadLongBench(officialPrompts(t))
	require.NoError(t, err)
	prefixes := map[string]string{
		"narrativeqa": "Answer:", "qasper": "Answer:", "multifieldqa_en": "Answer:", "hotpotqa": "Answer:", "2wikimqa": "Answer:", "musique": "Answer:",
		"qmsum": "Answer:", "gov_report": "Summary:", "multi_news": "Summary:", "trec": "Type:", "triviaqa": "Answer:", "samsum": "Summary:",
		"passage_count": "The final answer is: ", "passage_retrieval_en": "The answer is: ", "lcc": "Next line of code:\n", "repobench-p": "Next line of code:\n",
	}
	starts := map[string]string{
		"narrativeqa": "Question: ", "qasper": "Question: ", "multifieldqa_en": "Question: ", "hotpotqa": "Question: ", "2wikimqa": "Question: ", "musique": "Question: ",
		"qmsum": "Query: ", "gov_report": "Now, write", "multi_news": "Now, write", "passage_count": "Please enter",
	}
	require.Len(t, prefixes, len(scoring.Datasets()))
	for _, config := range []*LongBench{nil, {ExactLength: true}, official} {
		items, files, err := ReadData("testdata/longbench", DataOptions{LongBench: config})
		require.NoError(t, err)
		require.Len(t, files, 16)
		seen := map[string]int{}
		for _, it := range items {
			seen[it.Task]++
			raw := record(t, it)
			prompt, n := longbenchPrompts[it.Task].prompt, longbenchPrompts[it.Task].maxNew
			if config == official {
				prompt, n = official.Prompts[it.Task], n+1
			}
			if config == nil || !config.ExactLength {
				n += 20
			}
			assert.Equal(t, n, it.MaxNewTokens, it.Task)
			whole := strings.NewReplacer(slotContext, raw.Context, slotInput, raw.Input).Replace(prompt)
			assert.Equal(t, whole, it.Context+it.Question+it.AnswerPrefix, it.Task)
			assert.Equal(t, prefixes[it.Task], it.AnswerPrefix, it.Task)
			if start, ok := starts[it.Task]; ok {
				assert.True(t, strings.HasPrefix(it.Question, start), "%s: %q", it.Task, it.Question)
			} else if it.Task == "lcc" {
				assert.Empty(t, it.Question)
			} else {
				assert.True(t, strings.HasPrefix(it.Question, raw.Input[:9]), "%s: %q", it.Task, it.Question)
			}
			assert.Equal(t, raw.Answers, it.Answers)
			assert.Equal(t, raw.Length, it.Length)
		}
		assert.Len(t, seen, 16)
	}
	extended, _, err := ReadData("testdata/longbench", DataOptions{Extended: true})
	require.NoError(t, err)
	assert.Equal(t, "hotpotqa-e", extended[0].Task)
	assert.Len(t, extended, 4)
}

type longbenchRecord struct {
	Input, Context string
	Answers        []string
	Length         int
}

// record is the line that an item came from.
func record(t *testing.T, it Item) (r longbenchRecord) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/longbench/data", it.Task+".jsonl"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(strings.Split(string(data), "\n")[it.Line-1]), &r))
	return r
}

// A zip file is read like a folder, and so is a single file.
func TestLongBenchZip(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "data.zip")
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	require.NoError(t, z.AddFS(os.DirFS("testdata/longbench")))
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(name, b.Bytes(), 0o600))
	want, _, err := ReadData("testdata/longbench", DataOptions{})
	require.NoError(t, err)
	got, files, err := ReadData(name, DataOptions{})
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.Len(t, files[0].SHA256, 64)
	one, _, err := ReadData("testdata/longbench/data/trec.jsonl", DataOptions{})
	require.NoError(t, err)
	assert.Len(t, one, 2)
	assert.Equal(t, []string{"Number", "Person", "Place", "Other place"}, one[0].Classes)

	_, _, err = ReadData(dir+"/absent", DataOptions{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, _, err = ReadData(t.TempDir(), DataOptions{})
	require.ErrorContains(t, err, "none of LongBench's")
	bad := filepath.Join(dir, "trec.jsonl")
	for text, want := range map[string]string{
		`{"input":"a","answers":["b"]}`:                                `line 1: no "context"`,
		`{"input":"a","context":"c"}`:                                  `line 1: no "answers"`,
		`{"input":"a","context":"c","dataset":"dureader","answers":1}`: "answers",
	} {
		require.NoError(t, os.WriteFile(bad, []byte(text), 0o600))
		_, _, err = ReadData(bad, DataOptions{})
		assert.ErrorContains(t, err, want, text)
	}
	_, err = ReadItems(strings.NewReader(`{"input":"a","context":"c","dataset":"dureader","answers":["b"]}`), "x")
	require.ErrorContains(t, err, `dataset "dureader": not one of LongBench's English ones`)
	require.NoError(t, os.WriteFile(name, []byte("no zip"), 0o600))
	_, _, err = ReadData(name, DataOptions{})
	require.ErrorContains(t, err, "data.zip")
}

func TestLongBenchConfigErrors(t *testing.T) {
	for text, edit := range map[string]func(fstest.MapFS){
		"dataset2prompt.json":       func(d fstest.MapFS) { delete(d, "dataset2prompt.json") },
		"dataset2maxlen.json":       func(d fstest.MapFS) { d["dataset2maxlen.json"] = &fstest.MapFile{Data: []byte(`{"lcc":1}`)} },
		"the prompt does not end":   func(d fstest.MapFS) { replace(d, "Next line of code:", "Next code:") },
		`has no "Now, write"`:       func(d fstest.MapFS) { replace(d, "Now, write", "Write") },
		"has no {context} in front": func(d fstest.MapFS) { replace(d, "{context}", "{text}") },
	} {
		dir := officialPrompts(t)
		edit(dir)
		_, err := ReadLongBench(dir)
		assert.ErrorContains(t, err, text)
	}
}

func replace(d fstest.MapFS, old, text string) {
	d["dataset2prompt.json"].Data = bytes.ReplaceAll(d["dataset2prompt.json"].Data, []byte(old), []byte(text))
}

// double answers items as a model would that knows the references, or knows
// nothing.
func double(items []Item, predict func(Item) string) []Answer {
	var out []Answer
	for i, it := range items {
		a := Answer{Item: i, Task: it.Task, Method: "double", Prediction: predict(it), References: it.Answers, Classes: it.Classes, Length: it.Length}
		var text string
		a.Score, text = scoring.Options{}.Score(it.reference(), a.Prediction)
		a.Empty = text == ""
		out = append(out, a)
	}
	return out
}

// The whole miniature set: references score 100 in each dataset, each category
// and on average (spec evaluation 11.4); empty predictions score 0.
func TestLongBenchDouble(t *testing.T) {
	items, _, err := ReadData("testdata/longbench", DataOptions{})
	require.NoError(t, err)
	rows := Summarize(double(items, func(it Item) string { return it.Answers[0] }))
	require.Len(t, rows, 16+6+1)
	for _, r := range rows {
		if Category(r.Task) == "code" || Category(r.Task) == "summ" || r.Task == "samsum" || r.N > 2 {
			assert.InDelta(t, 100, r.Percent, 10, r.Task) // indentation is lost; ROUGE has an epsilon
			continue
		}
		assert.Equal(t, 100.0, r.Percent, r.Task)
	}
	for _, r := range Summarize(double(items, func(Item) string { return "" })) {
		assert.Zero(t, r.Percent, r.Task)
		assert.Equal(t, r.N, r.Empty, r.Task)
	}
}

// TestDataAreBounded: the files of a folder are bounded together.
func TestDataAreBounded(t *testing.T) {
	const line = `{"context": "c", "question": "q", "answers": ["a"]}`
	dir := fstest.MapFS{
		"qa_1/validation.jsonl": {Data: []byte(line)},
		"qa_2/validation.jsonl": {Data: []byte(line)},
	}
	room := int64(2*len(line) + 1)
	items, _, err := readTree(dir, "data", &room, DataOptions{})
	require.NoError(t, err)
	require.Len(t, items, 2)
	room = int64(2 * len(line))
	_, _, err = readTree(dir, "data", &room, DataOptions{})
	require.ErrorContains(t, err, fmt.Sprintf("qa_2/validation.jsonl: more than the %d bytes", len(line)))
	room = int64(len(line) - 5)
	_, _, err = readTree(dir, "data", &room, DataOptions{})
	require.ErrorContains(t, err, "more than", "not what is wrong with the half of a line")
}

// TestChineseDatasets: LongBench's Chinese datasets are never scored by another rule.
func TestChineseDatasets(t *testing.T) {
	for _, name := range []string{"multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh"} {
		want := "task " + name + ": one of LongBench's Chinese datasets"
		line := `{"input":"i","context":"c","answers":["a"],"dataset":"` + name + `"}`
		_, err := ReadItems(strings.NewReader(line), "x.jsonl")
		require.ErrorContains(t, err, `dataset "`+name+`": not one of LongBench's English ones`)
		_, err = ReadItems(strings.NewReader(`{"question":"q","context":"c","answers":["a"],"task":"`+name+`"}`), "x.jsonl")
		require.ErrorContains(t, err, want)
		_, err = ReadItems(strings.NewReader(`{"question":"q","context":"c","answers":["a"]}`), name+".jsonl")
		require.ErrorContains(t, err, want)
		_, err = ReadPredictions(strings.NewReader(`{"pred":"12","answers":["1"]}`), "pred/m/"+name+".jsonl")
		require.ErrorContains(t, err, want)
		table := "predicted_answer,answers,task\n12,1," + name + "\n"
		_, err = ReadPredictions(strings.NewReader(table), "a__b__m__snapkv__0.5/predictions.csv")
		require.ErrorContains(t, err, want)
		_, err = ReadPredictions(strings.NewReader("predicted_answer,answers\n12,1\n"), "longbench__"+name+"__m__snapkv__0.5/predictions.csv")
		require.ErrorContains(t, err, want)

		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".jsonl"), []byte(line), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "trec.jsonl"), []byte(strings.Replace(line, name, "trec", 1)), 0o600))
		var skipped []string
		items, _, err := ReadData(dir, DataOptions{Skipped: func(file, why string) { skipped = append(skipped, filepath.Base(file)+": "+why) }})
		require.NoError(t, err)
		require.Len(t, items, 1)
		require.Equal(t, []string{name + ".jsonl: the measures of LongBench's Chinese datasets are not available"}, skipped)
	}
}

// TestCSVArrays: a column in numpy's notation is refused, not taken as the answer.
func TestCSVArrays(t *testing.T) {
	for _, cell := range []string{`"array(['a'], dtype=object)"`, `"array(['a', 'b'])"`, `" array([])"`} {
		_, err := ReadItems(strings.NewReader("context,question,answers\nc,q,"+cell+"\n"), "x.csv")
		require.ErrorContains(t, err, "column answers: found \"array(")
		_, err = ReadPredictions(strings.NewReader("predicted_answer,answer,task\np,"+cell+",niah\n"), "x/predictions.csv")
		require.ErrorContains(t, err, "column answer: found \"array(")
	}
}
