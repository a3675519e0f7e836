package eval

import "strings"

// Match says how a prediction is held against several accepted answers.
type Match string

const (
	// MatchAll scores the share of the answers that occur in the prediction
	// (RULER's string_match_all).
	MatchAll Match = "all"
	// MatchPart scores 1 if any answer occurs in it (RULER's string_match_part).
	MatchPart Match = "part"
	// MatchAuto is MatchPart for question-answering tasks, whose answers are
	// alternatives (task names that start with "qa"), and MatchAll otherwise.
	MatchAuto Match = "auto"
)

// Score returns how well prediction answers, from 0 to 1. Case does not matter.
func Score(m Match, task, prediction string, answers []string) float64 {
	if m == MatchAuto || m == "" {
		m = MatchAll
		if strings.HasPrefix(task, "qa") {
			m = MatchPart
		}
	}
	prediction = strings.ToLower(prediction)
	found := 0
	for _, a := range answers {
		if strings.Contains(prediction, strings.ToLower(a)) {
			found++
		}
	}
	if m == MatchPart {
		return float64(min(found, 1))
	}
	return float64(found) / float64(max(1, len(answers)))
}
