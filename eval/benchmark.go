package eval

import (
	"slices"
	"strings"

	"github.com/lukv/lukv/eval/scoring"
)

// taskOrder are the tasks of all benchmarks in the order of reports.
var taskOrder = []string{
	"niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
	"niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
	"narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report", "qmsum", "multi_news",
	"trec", "triviaqa", "samsum", "passage_count", "passage_retrieval_en", "lcc", "repobench-p",
	"passkey", "number_string", "kv_retrieval", "longdialogue_qa_eng", "longbook_sum_eng", "longbook_choice_eng", "longbook_qa_eng",
	"longbook_qa_chn", "math_find", "math_calc", "code_run", "code_debug",
}

// base is a task's name without the suffix of LongBench-E.
func base(task string) string {
	if _, e := scoring.LongBench(task); e {
		return task[:len(task)-2]
	}
	return task
}

// TaskOrder is the place of a task in reports; unknown tasks come last.
func TaskOrder(task string) int {
	if i := slices.Index(taskOrder, base(task)); i >= 0 {
		return i
	}
	return len(taskOrder)
}

// Benchmark names the benchmark that a task belongs to, "" if none.
func Benchmark(task string) string {
	switch {
	case isLongBench(task):
		return "longbench"
	case infiniteTasks[task] != nil:
		return "infinitebench"
	case TaskOrder(task) < len(taskOrder):
		return "ruler"
	}
	return ""
}

// Category names the group that a task of RULER, LongBench or InfiniteBench
// belongs to in reports, "" for other tasks.
func Category(task string) string {
	if d, _ := scoring.LongBench(task); d != nil {
		return d.Category
	}
	if t := infiniteTasks[task]; t != nil {
		return t.category
	}
	family, _, _ := strings.Cut(task, "_")
	return map[string]string{"niah": "retrieval", "vt": "multi_hop", "cwe": "aggregation", "fwe": "aggregation", "qa": "question_answering"}[family]
}

// FullSet is the number of items that a task has in the benchmark's published set,
// 0 for other tasks.
func FullSet(task string) int {
	_, extended := scoring.LongBench(task)
	switch {
	case TaskOrder(task) == len(taskOrder), extended:
		return 0
	case infiniteTasks[task] != nil:
		return infiniteTasks[task].items
	case !isLongBench(task):
		return 500
	}
	switch task {
	case "multifieldqa_en":
		return 150
	case "lcc", "repobench-p":
		return 500
	}
	return 200
}

func isLongBench(task string) bool {
	d, _ := scoring.LongBench(task)
	return d != nil
}
