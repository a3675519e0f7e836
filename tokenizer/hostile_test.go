package tokenizer

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hostileTexts are lines with no place to cut, which punish quadratic merging,
// scanning and backtracking.
var hostileTexts = map[string]string{
	"letter":     "a",
	"pair":       "ab",
	"blank":      " ",
	"line break": "\n",
	"blank line": " \n",
	"digit":      "7",
	"mark":       "\u0301",
	"two marks":  "\u0301\u0323",
	"jamo":       "\u1161",
	"word mark":  "\u2581",
	"han":        "漢",
	"emoji":      "🙂",
	"bracket":    "<",
	"special":    "<|im_",
	"bad byte":   "\xff",
	"upper":      "Aʰ",
	"mixed":      "the quick brown fox, ",
	"deep":       "aaaaaaaabaaaaaaac",
}

// TestHostileInput encodes long hostile lines. Quadratic time would take minutes
// where this takes a fraction of a second per line.
func TestHostileInput(t *testing.T) {
	size := 1 << 17
	if testing.Short() {
		size = 1 << 14
	}
	models := []string{
		"needle-llama/tokenizer.json", "mini/llama2-style/tokenizer.json", "mini/added-tokens/tokenizer.json",
		"mini/multi-split/tokenizer.json", "mini/metaspace-always-unk/tokenizer.json", "mini/tekken-v7/tekken.json",
		"mini/spm-noprefix/tokenizer.model", "mini/split-string/tokenizer.json",
	}
	if s := os.Getenv("LUKV_HOSTILE_BYTES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		size = n
		models = append(models, benchModels...)
	}
	for _, name := range models {
		t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
			tok := loadModel(t, name)
			for kind, unit := range hostileTexts {
				text := strings.Repeat(unit, size/len(unit))
				start := time.Now()
				ids := tok.Encode(text, EncodeOptions{})
				took := time.Since(start)
				// 20 µs a byte is a hundred times what it takes; the rest leaves
				// room for a busy machine.
				if limit := time.Duration(len(text))*20*time.Microsecond + 30*time.Second; took > limit {
					t.Errorf("%s: %d bytes took %v, more than %v", kind, len(text), took, limit)
				}
				if size > 1<<20 {
					t.Logf("%-10s %9d tokens in %v", kind, len(ids), took.Round(time.Millisecond))
				}
			}
		})
	}
}
