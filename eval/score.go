package eval

import (
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

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

// Clean says what is done to a prediction before it is scored: white space is
// trimmed, control characters up to U+001F are replaced, and white space is
// trimmed again (spec evaluation §3.7).
type Clean string

const (
	CleanKVPress  Clean = "kvpress"  // control characters go; the default
	CleanOfficial Clean = "official" // they become line breaks, as in RULER's own script
	CleanNone     Clean = "none"     // the prediction is scored as it is
)

// Apply returns the prediction as it is scored.
func (c Clean) Apply(prediction string) string {
	if c == CleanNone {
		return prediction
	}
	to := rune(-1) // drop
	if c == CleanOfficial {
		to = '\n'
	}
	return trim(strings.Map(func(r rune) rune {
		if r < 0x20 {
			return to
		}
		return r
	}, trim(prediction)))
}

// trim removes what Python takes for white space: U+001C to U+001F too.
func trim(s string) string {
	return strings.TrimFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f })
}

// Score returns how well prediction answers, from 0 to 1, without cleaning it.
// Case does not matter; an empty answer occurs everywhere.
func Score(m Match, task, prediction string, answers []string) float64 {
	if m == MatchAuto || m == "" {
		m = MatchAll
		if strings.HasPrefix(task, "qa") {
			m = MatchPart
		}
	}
	lower := cases.Lower(language.Und)
	prediction = lower.String(prediction)
	found := 0
	for _, a := range answers {
		if strings.Contains(prediction, lower.String(a)) {
			found++
		}
	}
	if m == MatchPart {
		return float64(min(found, 1))
	}
	return float64(found) / float64(max(1, len(answers)))
}
