package scoring

import (
	"strings"
	"unicode"
)

// Match says how a prediction is compared with the accepted answers.
type Match string

const (
	// MatchAuto chooses by the task's name: the measure of a LongBench dataset or of
	// a task of InfiniteBench, whose predictions are not cleaned; MatchPart for
	// RULER's question answering (names that start with "qa"), whose answers are
	// alternatives; MatchAll otherwise.
	MatchAuto Match = "auto"

	// MatchAll scores the share of the answers that occur in the prediction
	// (RULER's string_match_all).
	MatchAll Match = "all"

	// MatchPart scores 1 if any answer occurs in the prediction (RULER's
	// string_match_part).
	MatchPart Match = "part"

	// LongBench's measures (spec evaluation 5). If there are several answers, the
	// best counts.
	MatchF1             Match = "qa_f1"          // words in common
	MatchRouge          Match = "rouge_l"        // longest common subsequences of words
	MatchClassification Match = "classification" // the only class named
	MatchRetrieval      Match = "retrieval"      // the right paragraph's number among those named
	MatchCount          Match = "count"          // the right number among those named
	MatchCode           Match = "code_sim"       // similarity of the first line of code
)

// Clean says how a prediction is prepared before it is scored.
//
// RULER (spec evaluation 3.7): white space is trimmed, control characters up to
// U+001F are replaced, and white space is trimmed again. LongBench (5.1): for
// some datasets only the first line counts, and leading white space may be
// removed; LongBench-E's are always prepared as its own script does it.
type Clean string

const (
	CleanKVPress  Clean = "kvpress"  // control characters and leading white space are removed; the default
	CleanOfficial Clean = "official" // as in the benchmarks' own scripts: the former become line breaks, the latter stays
	CleanNone     Clean = "none"     // the prediction is scored as it is
)

// CodeSim says how the similarity of lines of code is measured.
type CodeSim string

const (
	CodeDifflib CodeSim = "difflib" // matching blocks, as without the optional C library; the default
	CodeIndel   CodeSim = "indel"   // the longest common subsequence, as with it
)

// Options say how predictions are scored. The zero value is the default.
type Options struct {
	Match   Match
	Clean   Clean
	CodeSim CodeSim
}

// Reference holds the answers that a prediction is compared with.
type Reference struct {
	Task    string   // chooses the measure, unless Options do
	Answers []string // the accepted ones
	Classes []string // all classes of a classification, or the options of a choice
}

// Score returns how well a prediction agrees with a reference, from 0 to 1, and the
// text that was scored.
func (s Options) Score(it *Reference, prediction string) (score float64, text string) {
	match := s.Match
	if match == MatchAuto || match == "" {
		if measure := infiniteMeasures[it.Task]; measure != nil && len(it.Answers) > 0 {
			return measure(prediction, it, s.Clean == CleanOfficial), prediction
		}
		match = matchOf(it.Task)
	}
	switch d, e := LongBench(it.Task); {
	case s.Clean == CleanNone:
		text = prediction
	case e: // which has no other preparation
		text = d.clean(prediction, CleanOfficial)
	case d != nil:
		text = d.clean(prediction, s.Clean)
	default:
		text = cleanRuler(prediction, s.Clean)
	}
	return s.held(match, it, text), text
}

// matchOf chooses the measure of a task by its name.
func matchOf(task string) Match {
	if d, _ := LongBench(task); d != nil {
		return d.Match
	}
	if strings.HasPrefix(task, "qa") {
		return MatchPart
	}
	return MatchAll
}

// held scores a cleaned prediction against a reference.
func (s Options) held(match Match, it *Reference, text string) float64 {
	one := func(answer string) float64 { return 0 }
	switch match {
	case MatchAll, MatchPart:
		return stringMatch(match, text, it.Answers)
	case MatchF1:
		one = func(a string) float64 { return wordF1(text, a) }
	case MatchRouge:
		one = func(a string) float64 { return rougeL(text, a) }
	case MatchClassification:
		one = func(a string) float64 { return classification(text, a, it.Classes) }
	case MatchRetrieval:
		one = func(a string) float64 { return retrieval(text, a) }
	case MatchCount:
		one = func(a string) float64 { return numberShare(text, a) }
	case MatchCode:
		one = func(a string) float64 { return codeSimilarity(text, a, s.CodeSim) }
	}
	best := 0.0
	for _, a := range it.Answers {
		best = max(best, one(a))
	}
	return best
}

// stringMatch looks for the answers in the prediction. Case does not matter; an
// empty answer occurs everywhere.
func stringMatch(match Match, prediction string, answers []string) float64 {
	prediction = lower(prediction)
	found := 0
	for _, a := range answers {
		if strings.Contains(prediction, lower(a)) {
			found++
		}
	}
	if match == MatchPart {
		return float64(min(found, 1))
	}
	return float64(found) / float64(max(1, len(answers)))
}

// cleanRuler cleans a prediction as RULER does.
func cleanRuler(prediction string, c Clean) string {
	to := rune(-1) // drop
	if c == CleanOfficial {
		to = '\n'
	}
	return strings.TrimFunc(strings.Map(func(r rune) rune {
		if r < 0x20 {
			return to
		}
		return r
	}, strings.TrimFunc(prediction, isSpace)), isSpace)
}

// isSpace reports whether Python takes r for white space, which includes U+001C to
// U+001F.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
