package scoring

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// The measures of InfiniteBench's tasks (spec evaluation 10) as kvpress implements them
// or, if official, as its own script does where that differs.
var infiniteMeasures = map[string]func(text string, it *Reference, official bool) float64{
	"passkey": firstWhole, "number_string": firstWhole, "kv_retrieval": wordNamed, "longdialogue_qa_eng": speaker,
	"longbook_sum_eng": rougeLSum, "longbook_choice_eng": choice, "longbook_qa_eng": bestWords, "longbook_qa_chn": bestCharacters,
	"math_find": firstNumber, "math_calc": numbersInFront, "code_run": lastWhole, "code_debug": faultyFunction,
}

// isNoDigit reports where a text is split into whole numbers.
func isNoDigit(r rune) bool { return r < '0' || r > '9' }

// firstWhole is 1 if the first run of digits in the text is the answer.
func firstWhole(text string, it *Reference, _ bool) float64 {
	runs := strings.FieldsFunc(text, isNoDigit)
	return right(len(runs) > 0 && runs[0] == it.Answers[0])
}

func right(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// words splits a text at white space and at the characters of without.
func words(text, without string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return isSpace(r) || strings.ContainsRune(without, r) })
}

const wordMarks = ":\"'.,?!{}"

// wordNamed is 1 if the answer is a word of the text.
func wordNamed(text string, it *Reference, _ bool) float64 {
	return right(slices.Contains(words(text, wordMarks), it.Answers[0]))
}

// speaker is 1 if the text names an answer, in any case. If official, the first
// answer must be a word of the text in capitals.
func speaker(text string, it *Reference, official bool) float64 {
	text = upper(strings.TrimFunc(text, isSpace))
	if official {
		return right(slices.Contains(words(text, wordMarks), it.Answers[0]))
	}
	return right(slices.ContainsFunc(it.Answers, func(a string) bool { return strings.Contains(text, upper(a)) }))
}

// lastWhole is 1 if the last word is the answer, a whole number.
func lastWhole(text string, it *Reference, _ bool) float64 {
	w := words(text, ".`'\":")
	if len(w) == 0 {
		return 0
	}
	got, ok := pythonInt(w[len(w)-1])
	return right(ok && got == it.Answers[0])
}

// pythonInt is the number in the notation of Python's int(): digits of any script after
// a sign or none, with single underscores between them.
func pythonInt(s string) (string, bool) {
	digits, negative := strings.CutPrefix(s, "-")
	if !negative {
		digits = strings.TrimPrefix(s, "+")
	}
	digits = asciiDigits(digits)
	for part := range strings.SplitSeq(digits, "_") {
		if part == "" || strings.ContainsFunc(part, isNoDigit) {
			return "", false
		}
	}
	number := whole(strings.ReplaceAll(digits, "_", ""))
	if negative && number != "0" {
		number = "-" + number
	}
	return number, true
}

// asciiDigits writes decimal digits of any script in ASCII. Unicode has the ten of each
// together, some scripts' next to each other.
func asciiDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.Is(unicode.Nd, r) {
			return r
		}
		before := rune(0)
		for unicode.Is(unicode.Nd, r-1-before) {
			before++
		}
		return '0' + before%10
	}, s)
}

var number = regexp.MustCompile(`\p{Nd}+\.\p{Nd}+|\p{Nd}+`)

// firstNumber is 1 if the first number of the text is the answer.
func firstNumber(text string, it *Reference, _ bool) float64 {
	found := asciiDigits(number.FindString(text))
	if !strings.ContainsAny(it.Answers[0], ".eE") {
		return right(found != "" && whole(found) == it.Answers[0])
	}
	got, err := strconv.ParseFloat(found, 64)
	want, err2 := strconv.ParseFloat(it.Answers[0], 64)
	return right(err == nil && err2 == nil && got == want)
}

// whole is a whole number without leading zeros.
func whole(s string) string { return strings.TrimLeft(s[:len(s)-1], "0") + s[len(s)-1:] }

// numbersInFront is the share of the answers that the text's whole numbers match
// from the start.
func numbersInFront(text string, it *Reference, _ bool) float64 {
	runs, n := strings.FieldsFunc(text, isNoDigit), 0
	for n < len(it.Answers) && n < len(runs) && whole(runs[n]) == it.Answers[n] {
		n++
	}
	return float64(n) / float64(len(it.Answers))
}

// bestWords is LongBench's F1 score over words.
func bestWords(text string, it *Reference, _ bool) float64 {
	best := 0.0
	for _, a := range it.Answers {
		best = max(best, wordF1(text, a))
	}
	return best
}

// chineseMarks are punctuation that does not count in Chinese answers, in addition
// to ASCII's.
const chineseMarks = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏"

// bestCharacters is the F1 score over characters.
func bestCharacters(text string, it *Reference, _ bool) float64 {
	characters := func(s string) []rune {
		return []rune(strings.Map(func(r rune) rune {
			if isSpace(r) || strings.ContainsRune("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"+chineseMarks, r) {
				return -1
			}
			return r
		}, lower(s)))
	}
	best := 0.0
	p := characters(text)
	for _, answer := range it.Answers {
		a := characters(answer)
		count := map[rune]int{}
		for _, r := range a {
			count[r]++
		}
		common := 0
		for _, r := range p {
			if count[r] > 0 {
				count[r]--
				common++
			}
		}
		if common > 0 {
			precision, recall := float64(common)/float64(len(p)), float64(common)/float64(len(a))
			best = max(best, 2*precision*recall/(precision+recall))
		}
	}
	return best
}

var someWord = regexp.MustCompile(`[\p{L}\p{N}_]+`)

// lastLetter is the last one-letter word from A to last on the first line that
// has one, "" if there is none.
func lastLetter(text, last string) string {
	for line := range strings.SplitSeq(text, "\n") {
		found := ""
		for _, w := range someWord.FindAllString(line, -1) {
			if len(w) == 1 && w >= "A" && w <= last {
				found = w
			}
		}
		if found != "" {
			return found
		}
	}
	return ""
}

// after returns what follows the first of the phrases that the text contains,
// less one character.
func after(text string, phrases []string) (rest string, ok bool) {
	for _, p := range phrases {
		if i := strings.Index(text, p); i >= 0 {
			rest = text[i+len(p):]
			_, rest = cutRune(rest)
			return rest, true
		}
	}
	return "", false
}

// cutRune splits off the first character of a text.
func cutRune(s string) (first, rest string) {
	for i := range s {
		if i > 0 {
			return s[:i], s[i:]
		}
	}
	return s, ""
}

// beginsWith reports whether a text begins with any of the others.
func beginsWith(text string, others []string) bool {
	return slices.ContainsFunc(others, func(o string) bool { return strings.HasPrefix(text, o) })
}

// plain replaces the given strings with spaces and collapses runs of spaces.
func plain(text string, without ...string) string {
	for _, w := range without {
		text = strings.ReplaceAll(text, w, " ")
	}
	for strings.Contains(text, "  ") {
		text = strings.ReplaceAll(text, "  ", " ")
	}
	return text
}

// choice is 1 if the text chooses a right option: by its last letter, its
// first, what follows a phrase such as "answer is", or any letter. If official, the
// option's text chooses it, too.
func choice(text string, it *Reference, official bool) float64 {
	either, texts := rightOptions(it)
	text = strings.TrimFunc(text, isSpace)
	if official {
		either = append(either, texts...)
	} else if slices.Contains(either, lastLetter(text, "D")) {
		return 1
	}
	if text == "" {
		return 0
	}
	if strings.ContainsRune("ABCD", rune(text[0])) {
		return right(slices.Contains(either, text[:1]))
	}
	if slices.Contains(either, text) {
		return 1
	}
	text = plain(text, "\n", "\"", "'", ".", ",", "?", "!", "{", "}")
	if rest, ok := after(text, []string{"answer is:", "answer:", "answer is", "option is"}); ok {
		return right(beginsWith(rest, either))
	}
	for _, w := range strings.FieldsFunc(text, isSpace) {
		if strings.Contains("ABCD", w) {
			return right(slices.Contains(either, w))
		}
	}
	return 0
}

// faultyFunction is 1 if the text names the right function or its letter, alone,
// at the beginning, or after a phrase such as "answer:".
func faultyFunction(text string, it *Reference, official bool) float64 {
	letters, texts := rightOptions(it)
	either := append(texts, letters...)
	text = strings.TrimFunc(text, isSpace)
	if official {
		for _, l := range letters {
			if strings.HasPrefix(text, l+".") || strings.HasPrefix(text, l+":") {
				return 1
			}
		}
	} else if slices.Contains(letters, lastLetter(text, "J")) {
		return 1
	}
	text = plain(text, "\n", "`", "'", "\"", "-", "*", "Option", "option")
	if !official && beginsWith(text, either) {
		return 1
	}
	rest, _ := after(text, []string{"answer is:", "is:", "answer:"}) // these also match within longer phrases
	return right(rest != "" && beginsWith(rest, either))
}

// rougeLSum is the F value of ROUGE-Lsum. It counts, for each line of the answer,
// the words on a longest common subsequence with any line of the text. Words are
// runs of ASCII letters and digits, in lower case, and none counts more often
// than it occurs.
func rougeLSum(text string, it *Reference, _ bool) float64 {
	best := 0.0
	for _, a := range it.Answers {
		best = max(best, linesInCommon(text, a))
	}
	return best
}

func linesInCommon(text, answer string) float64 {
	lines := func(s string) (out [][]string, n int, count map[string]int) {
		count = map[string]int{}
		for line := range strings.SplitSeq(s, "\n") {
			if line == "" {
				continue
			}
			w := strings.FieldsFunc(lower(line), func(r rune) bool { return isNoDigit(r) && (r < 'a' || r > 'z') })
			for _, x := range w {
				count[x]++
			}
			out, n = append(out, w), n+len(w)
		}
		return out, n, count
	}
	got, n, gotCount := lines(text)
	want, m, wantCount := lines(answer)
	hits := 0
	for _, r := range want {
		on := map[int]bool{}
		for _, c := range got {
			for _, i := range onCommon(r, c) {
				on[i] = true
			}
		}
		for i, w := range r {
			if on[i] && gotCount[w] > 0 && wantCount[w] > 0 {
				hits++
				gotCount[w]--
				wantCount[w]--
			}
		}
	}
	if hits == 0 {
		return 0
	}
	recall, precision := float64(hits)/float64(m), float64(hits)/float64(n)
	return 2 * precision * recall / (precision + recall)
}

// onCommon returns the places in a of a longest common subsequence of a and b, the
// last first.
func onCommon(a, b []string) []int {
	var out []int
	traceBack(a, b, func(above, left int32) bool { return left <= above }, func(i int) { out = append(out, i) })
	return out
}

// rightOptions returns the letters of the right answers and the texts of
// those options.
func rightOptions(it *Reference) (letters, texts []string) {
	for _, a := range it.Answers {
		if len(a) != 1 || a < "A" || a > "J" {
			continue
		}
		letters = append(letters, a)
		if i := int(a[0] - 'A'); i < len(it.Classes) && it.Classes[i] != "" {
			texts = append(texts, it.Classes[i])
		}
	}
	return letters, texts
}
