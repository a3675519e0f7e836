package eval

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
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

// TestForeignNotation: what is not the text of an answer, in tables and in lines, is refused
// and not looked for in predictions, nor are texts lost that are in another encoding.
func TestForeignNotation(t *testing.T) {
	quoted := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	line := func(answers string) string {
		text, err := json.Marshal(map[string]string{"context": "c", "question": "q", "answers": answers})
		require.NoError(t, err)
		return string(text) + "\n"
	}
	for _, answers := range []string{
		"array(['a'], dtype=object)", "np.array(['a'])", "list(('a',))", "Index(['a'], dtype='object')", "('a', 'b')", "('a',)", "{'a'}", "{'text': ['a']}", `{"text": "a"}`,
		"<ArrowStringArray>\n['a']", "0    a\nName: answers, dtype: object", "",
	} {
		_, err := ReadItems(strings.NewReader("context,question,answers\nc,q,"+quoted(answers)+"\n"), "x.csv")
		require.ErrorContains(t, err, "answers", answers)
		_, err = ReadItems(strings.NewReader(line(answers)), "x.jsonl")
		require.ErrorContains(t, err, "answers", answers)
	}
	_, err := ReadItems(strings.NewReader(line("['a', 'b']")), "x.jsonl")
	require.ErrorContains(t, err, "as Python prints it")
	for _, answers := range []string{"a", "(A) a", "f(x)", "[1]", "{x}", "'a'", "a, dtype", "(a) or 'b'"} {
		items, err := ReadItems(strings.NewReader(line(answers)), "x.jsonl")
		require.NoError(t, err, answers)
		require.Equal(t, []string{answers}, items[0].Answers)
	}
	for name, text := range map[string]string{
		"a.csv":    "context,question,answers,answers\nc,q,a,b\n",
		"b.csv":    "context,question,answers\nc\xe9,q,a\n",
		"c.csv":    "context,question,answers\nc,q,NaN\n",
		"d.jsonl":  "{\"context\":\"c\xe9\",\"question\":\"q\",\"answers\":\"a\"}\n",
		"e.jsonl":  `{"context":"c","question":"q","answers":["a"," "]}`,
		"f.jsonl":  `{"context":"c","question":"q","answers":""}`,
		"x/g.json": "{\"input\":\"c What?\",\"outputs\":[\"\"]}",
	} {
		_, err := ReadItems(strings.NewReader(text), name)
		require.Error(t, err, name)
	}
	for name, text := range map[string]string{
		"m/vt.jsonl":             `{"pred":"x","outputs":[""]}`,
		"pred/m/qasper.jsonl":    `{"pred":"x","answers":[" "]}`,
		"pred/m/data.jsonl":      `{"pred":"x","answers":["y"],"task":"dureader"}`,
		"n/vt.jsonl":             "{\"pred\":\"\xe9\",\"outputs\":[\"a\"]}",
		"a__b__p__0.5/x.csv":     "predicted_answer,answers\nx,\"('y',)\"\n",
		"a__b__p__0.5/twice.csv": "predicted_answer,answers,answers\nx,y,z\n",
	} {
		_, err := ReadPredictions(strings.NewReader(text), name)
		require.Error(t, err, name)
	}
	answers, err := ReadPredictions(strings.NewReader("\ufeff"+`{"pred":"x","outputs":["x"]}`), "m/vt.jsonl")
	require.NoError(t, err, "a byte order mark")
	require.Len(t, answers, 1)
}
