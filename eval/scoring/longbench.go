package scoring

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Dataset is one of LongBench's English datasets (spec evaluation 4.1).
type Dataset struct {
	Category  string
	Match     Match
	FirstLine bool // only the first line of a prediction counts
}

// datasets are LongBench's English datasets by name. Names in LongBench-E end
// in _e or -e.
var datasets = map[string]*Dataset{
	"narrativeqa":          {"single_doc", MatchF1, false},
	"qasper":               {"single_doc", MatchF1, false},
	"multifieldqa_en":      {"single_doc", MatchF1, false},
	"hotpotqa":             {"multi_doc", MatchF1, false},
	"2wikimqa":             {"multi_doc", MatchF1, false},
	"musique":              {"multi_doc", MatchF1, false},
	"gov_report":           {"summ", MatchRouge, false},
	"qmsum":                {"summ", MatchRouge, false},
	"multi_news":           {"summ", MatchRouge, false},
	"trec":                 {"few_shot", MatchClassification, true},
	"triviaqa":             {"few_shot", MatchF1, true},
	"samsum":               {"few_shot", MatchRouge, true},
	"passage_count":        {"synthetic", MatchCount, false},
	"passage_retrieval_en": {"synthetic", MatchRetrieval, false},
	"lcc":                  {"code", MatchCode, false},
	"repobench-p":          {"code", MatchCode, false},
}

// chineseDatasets are LongBench's Chinese datasets, whose measures need a word segmenter.
var chineseDatasets = []string{"multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh"}

// CheckTask refuses the tasks of benchmarks that cannot be scored.
func CheckTask(task string) error {
	if slices.Contains(chineseDatasets, task) {
		return fmt.Errorf("task %s: one of LongBench's Chinese datasets, whose measures are not available: expected one of its English ones", task)
	}
	return nil
}

// Categories are the datasets' categories in the order of reports.
var Categories = []string{"single_doc", "multi_doc", "summ", "few_shot", "synthetic", "code"}

// Datasets returns the names of LongBench's English datasets, in alphabetical order.
func Datasets() []string { return slices.Sorted(maps.Keys(datasets)) }

// LongBench returns a task's dataset, nil if it has none, and reports whether the task
// is one of LongBench-E's.
func LongBench(task string) (d *Dataset, extended bool) {
	for _, suffix := range []string{"_e", "-e"} {
		if name, ok := strings.CutSuffix(task, suffix); ok && datasets[name] != nil {
			return datasets[name], true
		}
	}
	return datasets[task], false
}

// clean prepares a prediction for scoring (spec evaluation 5.1).
func (d *Dataset) clean(prediction string, c Clean) string {
	trim := isSpace
	if c == CleanOfficial {
		trim = func(r rune) bool { return r == '\n' }
	}
	if d.FirstLine {
		prediction, _, _ = strings.Cut(strings.TrimLeftFunc(prediction, trim), "\n")
	}
	if c != CleanOfficial {
		prediction = strings.TrimLeftFunc(prediction, isSpace)
	}
	return prediction
}

// Bucket names the range of lengths, in words, that LongBench-E reports a
// context under.
func Bucket(length int) string {
	switch {
	case length < 4000:
		return "0-4k"
	case length < 8000:
		return "4-8k"
	}
	return "8k+"
}

// Buckets are the ranges in the order of reports.
var Buckets = []string{"0-4k", "4-8k", "8k+"}

// classification is 1 divided by the number of classes that a prediction names,
// if the right one is among them. Classes contained in the right one's name do
// not count. They are removed as in the original: the class after a removed one
// is skipped.
func classification(prediction, answer string, classes []string) float64 {
	var named []string
	for _, c := range classes {
		if strings.Contains(prediction, c) {
			named = append(named, c)
		}
	}
	for i := 0; i < len(named); i++ {
		if c := named[i]; c != answer && strings.Contains(answer, c) {
			for j := range named {
				if named[j] == c {
					named = append(named[:j], named[j+1:]...)
					break
				}
			}
		}
	}
	for _, c := range named {
		if c == answer {
			return 1 / float64(len(named))
		}
	}
	return 0
}
