package eval

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadPredictions(t *testing.T) {
	read := func(name, text string) []Answer {
		t.Helper()
		got, err := ReadPredictions(strings.NewReader(text), name)
		require.NoError(t, err)
		return got
	}
	// kvpress's folder for a RULER run.
	got := read("out/ruler__4096__org--model__snapkv__0.80__fraction0.100/predictions.csv",
		"question,answer,task,max_new_tokens,predicted_answer\n"+
			"\"q, q\",\"['it\\'s', \"\"b\"\"]\",niah_multivalue,128,\"it's b\nand more\"\n"+
			"q2,['7'],qa_1,32,\n")
	assert.Equal(t, []Answer{
		{Item: 0, Line: 2, Task: "niah_multivalue", Method: "snapkv__0.80__fraction0.100", Ratio: 0.8, Prediction: "it's b\nand more", References: []string{"it's", "b"}, Score: 1},
		{Item: 1, Line: 4, Task: "qa_1", Method: "snapkv__0.80__fraction0.100", Ratio: 0.8, References: []string{"7"}, Empty: true},
	}, got)
	got = read("x/longbench__trec__org--model__keydiff__0.50/predictions.csv",
		"answers,all_classes,length,predicted_answer\n['Place'],\"['Place', 'Number']\",12.0,Place\n")
	assert.Equal(t, "trec", got[0].Task)
	assert.Equal(t, []string{"Place", "Number"}, got[0].Classes)
	assert.Equal(t, 12, got[0].Length)

	got = read("m/synthetic/4096/pred/vt.jsonl", `{"index":0,"input":"i","outputs":["A","B"],"pred":"A","others":{},"truncation":-1,"length":9}`+"\n")
	assert.Equal(t, []Answer{{Line: 1, Task: "vt", Method: "4096", Prediction: "A", References: []string{"A", "B"}, Score: 0.5, Length: 9}}, got)
	got = read("pred/my-model/trec.jsonl", `{"pred":"x","answers":["Place"],"all_classes":["Place"],"length":5}`)
	assert.Equal(t, []Answer{{Line: 1, Task: "trec", Method: "my-model", Prediction: "x", References: []string{"Place"}, Classes: []string{"Place"}, Length: 5}}, got)

	// LongBench-E's folder alone says that it is.
	got = read("pred_e/my-model/qasper.jsonl", `{"pred":"x","answers":["x"],"all_classes":null,"length":5000}`)
	assert.Equal(t, [2]any{"qasper_e", "qasper_e 4-8k"}, [2]any{got[0].Task, Summarize(got)[1].Task})
	got = read("p.csv", "task,answer,length,predicted_answer\nvt,x,nan,x\n")
	assert.Zero(t, got[0].Length, "a gap")

	// Our own; the last line is still being written.
	line, err := json.Marshal(Answer{Item: 3, Task: "t", Method: "full", Prediction: "p", References: []string{"r"}, Score: 0.5})
	require.NoError(t, err)
	got = read("a.jsonl", `{"format":"lukv answers 2","settings_hash":"x","settings":{}}`+"\n"+string(line)+"\n"+string(line[:20]))
	require.Len(t, got, 1)
	got = read("a.jsonl", `{"format":"lukv answers 2","settings_hash":"x","settings":{}}`+"\n"+string(line)+"\n"+string(line)+"\n")
	require.Len(t, got, 1, "an answer that two runs have written")
	assert.Equal(t, 3, got[0].Item)
	assert.Equal(t, 0.5, got[0].Score)
}

func TestReadPredictionsErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"p.csv", "", "expected a header"},
		{"p.csv", "a,b\n", "no predictions"},
		{"p.csv", "a,b\n1,2\n", "no column predicted_answer"},
		{"p.csv", "answer,predicted_answer\n['x' 'y'],z\n", "an array without commas"},
		{"p.csv", "answer,predicted_answer\n['x,z\n", "does not end"},
		{"p.csv", "answer,predicted_answer\n[1],z\n", "no quoted string"},
		{"p.csv", "answer,predicted_answer\n[null],z\n", "no quoted string"},
		{"p.csv", "predicted_answer\nz\n", "no answers"},
		{"p.csv", "a,b\n1\n", "wrong number of fields"},
		{"longbench__trec__m__s__0.50/p.csv", "answers,predicted_answer\n['x'],x\n", "expected the classes of task trec"},
		{"p.csv", "task,answer,length,predicted_answer\nvt,x,1e300,x\n", `line 2: column length: found "1e300", expected a whole number`},
		{"p.csv", "task,answer,length,predicted_answer\nvt,x,many,x\n", `found "many", expected a whole number`},
		{"p.csv", "task,answer,length,predicted_answer\nqasper-e,x,nan,x\n", "length 0: expected the number of words"},
		{"pred/m/trec.jsonl", `{"pred":"a","answers":["a"],"all_classes":null}`, "line 1: no \"all_classes\": expected the classes of task trec"},
		{"pred_e/m/qasper.jsonl", `{"pred":"a","answers":["a"]}`, "length 0: expected the number of words"},
		{"p.jsonl", "", "no predictions"},
		{"p.jsonl", "{}\n", `no "pred"`},
		{"p.jsonl", `{"pred":"a"}`, `no "outputs" or "answers"`},
		{"p.jsonl", `{"pred":"a","answers":[null]}`, "string 1 is null"},
		{"p.jsonl", `{"format":"lukv answers 1"}` + "\n", "expected \"lukv answers 2\""},
		{"p.jsonl", "[]\n", "line 1"},
	} {
		_, err := ReadPredictions(strings.NewReader(c.text), c.name)
		assert.ErrorContains(t, err, c.want, c.text)
	}
}

// Tables give the same items as JSON Lines.
func TestReadItemsCSV(t *testing.T) {
	got, err := ReadItems(strings.NewReader("\ufefftask,context,question,answer_prefix,answer,max_new_tokens\nvt,c,q,p,\"['a', 'b']\",30\nx,\"c\nd\",,,one,\n"), "t.csv")
	require.NoError(t, err)
	assert.Equal(t, []Item{
		{Task: "vt", Context: "c", Question: "q", AnswerPrefix: "p", Answers: []string{"a", "b"}, MaxNewTokens: 30, Line: 2},
		{Task: "x", Context: "c\nd", Answers: []string{"one"}, Line: 3},
	}, got)
	for text, want := range map[string]string{
		"task,context\n":                                 "no items",
		"context,answer\n,a\n":                           `line 2: no "context"`,
		"context,answer,max_new_tokens\nc,a,many\n":      "expected a whole number",
		"context,answer\nc,\"['a' 'b']\"\n":              "without commas",
		"context,answer,all_classes\nc,a,\"['a', 3]\"\n": "column all_classes",
	} {
		_, err := ReadItems(strings.NewReader(text), "t.csv")
		assert.ErrorContains(t, err, want, text)
	}
}

func TestPythonList(t *testing.T) {
	for text, want := range map[string][]string{
		`[]`: {}, `['a']`: {"a"}, `["it's", 'b',]`: {"it's", "b"}, `[ 'a' , "b" ]`: {"a", "b"},
		`['\'\\\n\t\x41\u00e9\U0001F600\q']`: {"'\\\n\tAé😀\\q"},
	} {
		got, err := cellList(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{`[`, `['a'`, `['a' 'b']`, `['a',,'b']`, `[a]`, `['\x4']`, `['\uzzzz']`, `['a']x`} {
		_, err := cellList(text)
		assert.Error(t, err, text)
	}
}

func FuzzReadPredictions(f *testing.F) {
	f.Add("predictions.csv", "answer,predicted_answer,all_classes\n\"['x', 'y\\x41']\",z,['a' 'b']\n")
	f.Add("pred/vt.jsonl", `{"outputs":["A"],"pred":"A"}`+"\n")
	f.Add("a.jsonl", `{"format":"lukv answers 2"}`+"\n{\"item\":1}\n{")
	f.Fuzz(func(t *testing.T, name, text string) {
		defer testfuzz.Bound(t, len(name)+len(text))()
		got, err := ReadPredictions(strings.NewReader(text), name)
		if err == nil && len(got) == 0 {
			t.Fatal("no predictions and no error")
		}
	})
}

// An endless line is given up and not read further.
func TestEndlessLine(t *testing.T) {
	short := strings.Repeat("x", 99) + "\n"
	for _, size := range []int{16, 64} {
		r := bufio.NewReaderSize(strings.NewReader(short+"rest"), size)
		line, err := readLine(r, 100)
		require.NoError(t, err)
		require.Equal(t, short, string(line))
		line, err = readLine(r, 100)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, "rest", string(line))
		endless := strings.NewReader(strings.Repeat("x", 1000))
		_, err = readLine(bufio.NewReaderSize(endless, size), 100)
		require.ErrorContains(t, err, "a line is longer than 100 bytes")
		require.GreaterOrEqual(t, endless.Len(), 1000-100-2*size)
	}
}
