package eval

import (
	"bytes"
	"encoding/csv"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPublishedSets: how many items the sets have, and how long an answer may be.
func TestPublishedSets(t *testing.T) {
	for task, items := range map[string]int{
		"niah_single_1": 500, "vt": 500, "qa_2": 500,
		"narrativeqa": 200, "multifieldqa_en": 150, "lcc": 500, "repobench-p": 500, "trec": 200,
		"passkey": 590, "number_string": 590, "kv_retrieval": 500, "longdialogue_qa_eng": 200, "longbook_sum_eng": 103, "longbook_choice_eng": 229,
		"longbook_qa_eng": 351, "longbook_qa_chn": 175, "math_find": 350, "math_calc": 50, "code_run": 400, "code_debug": 394,
		"lcc_e": 0, "of my own": 0,
	} {
		require.Equal(t, items, FullSet(task), task)
	}
	for task, n := range map[string]int{
		"passkey": 6, "number_string": 12, "kv_retrieval": 50, "longdialogue_qa_eng": 40, "longbook_sum_eng": 1200, "longbook_choice_eng": 40,
		"longbook_qa_eng": 40, "longbook_qa_chn": 40, "math_find": 3, "math_calc": 30000, "code_run": 5, "code_debug": 5,
	} {
		require.Equal(t, n, infiniteTasks[task].maxNew, task)
	}
	for task, n := range map[string]int{
		"narrativeqa": 128, "qasper": 128, "multifieldqa_en": 64, "hotpotqa": 32, "2wikimqa": 32, "musique": 32,
		"gov_report": 512, "qmsum": 512, "multi_news": 512, "trec": 64, "triviaqa": 32, "samsum": 128,
		"passage_count": 32, "passage_retrieval_en": 32, "lcc": 64, "repobench-p": 64,
	} {
		require.Equal(t, n, longbenchPrompts[task].maxNew, task)
	}
}

func TestTaskOrder(t *testing.T) {
	require.Equal(t, 0, TaskOrder("niah_single_1"))
	require.Equal(t, len(taskOrder), TaskOrder("of my own"))
	require.Equal(t, TaskOrder("lcc"), TaskOrder("lcc_e"))
	for i, task := range taskOrder {
		require.Equal(t, i, TaskOrder(task))
		require.NotEmpty(t, Benchmark(task), task)
	}
	for task, want := range map[string]string{"vt": "ruler", "niah_single_1": "ruler", "lcc-e": "longbench", "passkey": "infinitebench", "of my own": ""} {
		require.Equal(t, want, Benchmark(task), task)
	}
}

// TestOptionsOfChoices: the first option is A, a letter may stand for one, and
// nothing else does.
func TestOptionsOfChoices(t *testing.T) {
	read := func(answer string) (Item, error) {
		items, err := ReadItems(strings.NewReader(`{"context":"c","input":"i","answer":["`+answer+`"],"options":["one","two","three","four"]}`), "x/code_debug.jsonl")
		if err != nil {
			return Item{}, err
		}
		return items[0], nil
	}
	for answer, want := range map[string]string{"one": "A", "four": "D", "A": "A", "B": "B", "D": "D"} {
		it, err := read(answer)
		require.NoError(t, err, answer)
		require.Equal(t, []string{want}, it.Answers)
	}
	for _, answer := range []string{"@", "E", "AB", "", "B."} {
		_, err := read(answer)
		require.ErrorContains(t, err, "none of the options", answer)
	}
}

// TestOptionsInQuestions are looked for only in the tasks that have them.
func TestOptionsInQuestions(t *testing.T) {
	const question = `which?\nA. a\nB. b\nC. c\nD. d`
	for task, want := range map[string][]string{"of my own": nil, "code_debug": {"a", "b", "c", "d"}} {
		items, err := ReadItems(strings.NewReader(`{"task":"`+task+`","context":"c","question":"`+question+`","answers":["A"]}`), "x.jsonl")
		require.NoError(t, err)
		require.Equal(t, want, items[0].Classes, task)
		table := "task,question,answer,predicted_answer\n" + task + ",\"" + strings.ReplaceAll(question, `\n`, "\n") + "\",A,A\n"
		answers, err := ReadPredictions(strings.NewReader(table), "run/predictions.csv")
		require.NoError(t, err)
		require.Equal(t, want, answers[0].Classes, task)
	}
}

// TestLongBenchRecords are recognized by their dataset or by the file's name.
func TestLongBenchRecords(t *testing.T) {
	for name, dataset := range map[string]string{"x.jsonl": `"dataset":"qasper",`, "data/qasper.jsonl": ""} {
		items, err := ReadItems(strings.NewReader(`{`+dataset+`"context":"c","input":"i","answers":["a"],"length":3,"all_classes":null}`), name)
		require.NoError(t, err)
		require.Equal(t, "qasper", items[0].Task, name)
		require.Contains(t, items[0].Question, "i", name)
	}
}

// TestFoldersOfPredictions: method and ratio are the last ones in a name.
func TestFoldersOfPredictions(t *testing.T) {
	const table = "task,answer,predicted_answer\nvt,a,a\n"
	for folder, want := range map[string]struct {
		method string
		ratio  float64
	}{
		"ruler__4096__m__no_press__0.00":   {"no_press__0.00", 0},
		"ruler__4096__m__snapkv__0.25":     {"snapkv__0.25", 0.25},
		"ruler__0.5__m__snapkv__0.25":      {"snapkv__0.25", 0.25},
		"ruler__4096__m__snapkv__0.25__qa": {"snapkv__0.25__qa", 0.25},
		"ruler__4096__m__snapkv__1":        {"ruler__4096__m__snapkv__1", 0},
	} {
		got, err := ReadPredictions(strings.NewReader(table), folder+"/predictions.csv")
		require.NoError(t, err)
		require.Equal(t, want.method, got[0].Method, folder)
		require.Equal(t, want.ratio, got[0].Ratio, folder)
	}
}

func TestLinesOfPredictions(t *testing.T) {
	got, err := ReadPredictions(strings.NewReader("{\"outputs\":[\"a\"],\"pred\":\"a\"}\n\n{\"outputs\":[\"b\"],\"pred\":\"b\"}\n"), "m/pred/vt.jsonl")
	require.NoError(t, err)
	require.Equal(t, [2]int{1, 3}, [2]int{got[0].Line, got[1].Line})
	_, err = ReadPredictions(strings.NewReader("{\"outputs\":[\"a\"],\"pred\":\"a\"}\n\n{\n"), "m/pred/vt.jsonl")
	require.ErrorContains(t, err, "line 3")
	// Answers of a run with the first line missing.
	got, err = ReadPredictions(strings.NewReader(`{"item":4,"task":"vt","method":"m","score":1}`+"\n"), "answers.jsonl")
	require.NoError(t, err)
	require.Equal(t, "m", got[0].Method)
	require.Equal(t, 1.0, got[0].Score)
}

func TestUnfinishedStrings(t *testing.T) {
	for _, text := range []string{`['a\`, `['\`, `['a\\`} {
		_, err := cellList(text)
		require.Error(t, err, text)
	}
}

// TestCells are what tables show of a row, and nothing that it does not have.
func TestCells(t *testing.T) {
	r := Row{Method: "m", Task: "vt", N: 4, Percent: 75, Low: 0.5, High: 1, Interval: IntervalBootstrap}
	require.Equal(t, []string{"m", "vt", "4", "0", "75.00", "50.0-100.0", "-", "-", "-", "-"}, r.cells())
	r.Seconds, r.Failed, r.Missing = 1.5004, 1, 2
	require.Equal(t, "4 (1 failed, 2 tasks missing)", r.cells()[2])
	require.Equal(t, "1.5s", r.cells()[9])
	var table, comma bytes.Buffer
	require.NoError(t, WriteTable(&table, []Row{r}))
	require.NotContains(t, table.String(), "Wilson", "no note on what is not there")
	r.Score = math.Pi / 4
	require.NoError(t, WriteCSV(&comma, []Row{r}, nil))
	records, err := csv.NewReader(&comma).ReadAll()
	require.NoError(t, err)
	require.Equal(t, "0.7853981633974483", records[1][9], "all digits")
}
