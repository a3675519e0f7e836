package eval

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lukv/lukv/eval/scoring"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The scores are those of kvpress (8bb29b9) and of InfiniteBench's own script
// (88b3daa), with ROUGE-Lsum from the package rouge_score 0.1.2 without stemming; 0
// where they raise an exception ("12.5" for a whole number).
func TestInfiniteBenchScores(t *testing.T) {
	raw, err := os.ReadFile("testdata/infinitebench/scores.json")
	require.NoError(t, err)
	var rows [][5]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &rows))
	require.Len(t, rows, 229)
	seen := map[string]int{}
	for _, row := range rows {
		it := Item{Classes: []string{"the red door", "Load_all", "A quiet room", "B"}}
		var prediction string
		var want [2]float64
		for i, v := range []any{&it.Task, &prediction, &it.Answers, &want[0], &want[1]} {
			require.NoError(t, json.Unmarshal(row[i], v))
		}
		for i, clean := range []scoring.Clean{scoring.CleanKVPress, scoring.CleanOfficial} {
			got, _ := scoring.Options{Clean: clean}.Score(it.reference(), prediction)
			assert.InDelta(t, want[i], got, 1e-11, "%s, %s: %q for %q", it.Task, clean, prediction, it.Answers)
		}
		seen[it.Task]++
	}
	assert.Len(t, seen, len(infiniteTasks), "every task")
}

// infiniteRecord is a record of a task in the benchmark's own form.
func infiniteRecord(task string) string {
	answer, options := `"twelve"`, "[]"
	switch task {
	case "passkey", "number_string", "kv_retrieval", "longdialogue_qa_eng", "longbook_qa_eng", "longbook_qa_chn":
		answer = `["71432", "other"]`
	case "math_find":
		answer = "12.5"
	case "code_run":
		answer = "-3"
	case "math_calc":
		answer = "[1, 20, 300]"
	case "longbook_choice_eng", "code_debug":
		answer, options = `["two"]`, `["one", "two", "three", "four"]`
	}
	return `{"id": 1, "context": "A {input} of text.", "input": "What is it?", "answer": ` + answer + `, "options": ` + options + "}\n"
}

// A folder of the benchmark's files is read whole, with kvpress's answer lengths
// or its own, and every task's reference scores 1.
func TestInfiniteBenchFolder(t *testing.T) {
	dir := t.TempDir()
	for task := range infiniteTasks {
		require.NoError(t, os.WriteFile(filepath.Join(dir, task+".jsonl"), []byte(infiniteRecord(task)), 0o600))
	}
	items, files, err := ReadData(dir, DataOptions{})
	require.NoError(t, err)
	require.Len(t, items, 12)
	require.Len(t, files, 12)
	exact, _, err := ReadData(dir, DataOptions{LongBench: &LongBench{ExactLength: true}})
	require.NoError(t, err)
	for i, it := range items {
		task := infiniteTasks[it.Task]
		require.NotNil(t, task, it.Task)
		assert.Equal(t, it.Task, strings.TrimSuffix(files[i].Name, ".jsonl"))
		assert.Equal(t, task.before+"A {input} of text.", it.Context, "what looks like a slot in a context is text")
		assert.Equal(t, [2]int{task.maxNew + 20, task.maxNew}, [2]int{it.MaxNewTokens, exact[i].MaxNewTokens})
		assert.NotContains(t, it.Question, "{")
		assert.Equal(t, "infinitebench", Benchmark(it.Task))
		assert.Equal(t, task.category, Category(it.Task))
		assert.Less(t, TaskOrder(it.Task), len(taskOrder))
		assert.Positive(t, FullSet(it.Task))
		reference := strings.Join(it.Answers, ", ")
		if it.Classes != nil {
			assert.Contains(t, it.Question, "\nA. one\nB. two\nC. three\nD. four\n")
			reference = "B"
		} else if len(it.Answers) == 2 {
			reference = it.Answers[0]
		}
		for _, clean := range []scoring.Clean{scoring.CleanKVPress, scoring.CleanOfficial} {
			if it.Task == "code_debug" && clean == scoring.CleanOfficial {
				reference = "B."
			}
			score, _ := scoring.Options{Clean: clean}.Score(it.reference(), reference)
			assert.Equal(t, 1.0, score, "%s: %q for %q", it.Task, reference, it.Answers)
			score, _ = scoring.Options{Clean: clean}.Score(it.reference(), "")
			assert.Zero(t, score, it.Task)
		}
	}
	for line, want := range map[string]string{
		`{"context":"c","input":"i","answer":null,"options":[]}`:               "answer",
		`{"context":"c","input":"i","answer":[],"options":[]}`:                 "empty",
		`{"context":"c","input":"i","answer":[{}],"options":[]}`:               "expected a text, a number",
		`{"context":"","input":"i","answer":"a","options":[]}`:                 "context",
		`{"context":"c","input":"i","answer":"a","options":["one"]}`:           "expected 4",
		`{"context":"c","input":"i","answer":"a","options":["b","c","d","e"]}`: "none of the options",
	} {
		_, err := ReadItems(strings.NewReader(line), "x/code_debug.jsonl")
		assert.ErrorContains(t, err, want, line)
	}
}

// Tables as kvpress publishes them have the options only in the question, and so
// do its predictions.
func TestInfiniteBenchTables(t *testing.T) {
	line := `{"task":"code_debug","context":"c","question":"Which?\n\nOptions:\nA. f\nB. g\nC. h\nD. k","answer_prefix":"The correct option is:","answer":["C"],"max_new_tokens":25}`
	items, err := ReadItems(strings.NewReader(line), "t.jsonl")
	require.NoError(t, err)
	assert.Equal(t, []string{"f", "g", "h", "k"}, items[0].Classes)
	for text, want := range map[string]float64{" C. h": 1, "h": 1, "answer: h": 1, "B": 0, "k": 0} {
		score, _ := scoring.Options{}.Score(items[0].reference(), text)
		assert.Equal(t, want, score, text)
	}
	answers, err := ReadPredictions(strings.NewReader("question,answer,predicted_answer\n\"Which?\nA. f\nB. g\nC. h\nD. k\",\"['C']\",It is h\n"),
		"x/infinitebench__code_debug__m__snapkv__0.50/predictions.csv")
	require.NoError(t, err)
	assert.Equal(t, [2]any{"code_debug", []string{"f", "g", "h", "k"}}, [2]any{answers[0].Task, answers[0].Classes})
	assert.Nil(t, askedOptions("A. f\nB. g\nD. h\nC. k"))
}

// No prediction, however odd, causes a panic.
func TestInfiniteBenchOddPredictions(t *testing.T) {
	long := strings.Repeat("9", 10000)
	for task := range infiniteTasks {
		for _, text := range []string{"", " ", "\x00", "\xff", "answer:", "is:", "answer is:é", "-", "+", ".", "A", long, long + ".5", "option"} {
			for _, answers := range [][]string{{""}, {"A"}, {"é"}, {"-"}, {long}, {"Z"}, nil} {
				for _, clean := range []scoring.Clean{scoring.CleanKVPress, scoring.CleanOfficial} {
					score, _ := scoring.Options{Clean: clean}.Score(&scoring.Reference{Task: task, Answers: answers}, text)
					assert.True(t, score >= 0 && score <= 1, task)
				}
			}
		}
	}
}
