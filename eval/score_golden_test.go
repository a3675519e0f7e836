package eval

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scoringCase is a case of any of the files.
type scoringCase struct {
	ID         string          `json:"id"`
	Metric     string          `json:"metric"`
	Task       string          `json:"task"`
	Prediction string          `json:"prediction"`
	References json.RawMessage `json:"references"`
	Score      float64         `json:"score"`

	Predictions []string        `json:"predictions"`
	Official    json.RawMessage `json:"official"`
	KVPress     json.RawMessage `json:"kvpress"`
}

func get[T any](t *testing.T, raw json.RawMessage) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(raw, &v))
	return v
}

// percent is a mean of scores as a percentage, decimally rounded.
func percent(t *testing.T, sum float64, n int) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(strconv.FormatFloat(100*(sum/float64(n)), 'f', 2, 64), 64)
	require.NoError(t, err)
	return v
}

func TestScoringGolden(t *testing.T) {
	dir := cmp.Or(os.Getenv("LUKV_GOLDEN_SCORING"), filepath.Join("testdata", "scoring"))
	checks := 0
	same := func(id string, want, got float64) {
		checks++
		assert.False(t, math.Abs(want-got) > 1e-9, "%s: want %v, got %v", id, want, got)
	}
	for _, name := range []string{"string_match_all", "string_match_part", "ruler_postprocess", "ruler_task"} {
		data, err := os.ReadFile(filepath.Join(dir, name+".json"))
		require.NoError(t, err)
		for _, c := range get[[]scoringCase](t, data) {
			match := MatchAuto
			switch name {
			case "string_match_all":
				match = MatchAll
			case "string_match_part":
				match = MatchPart
			case "ruler_postprocess":
				assert.Equal(t, get[string](t, c.Official), CleanOfficial.Apply(c.Prediction), c.ID)
				assert.Equal(t, get[string](t, c.KVPress), CleanKVPress.Apply(c.Prediction), c.ID)
				assert.Equal(t, c.Prediction, CleanNone.Apply(c.Prediction))
				checks += 2
				continue
			case "ruler_task":
				refs := get[[][]string](t, c.References)
				for clean, want := range map[Clean]json.RawMessage{CleanOfficial: c.Official, CleanKVPress: c.KVPress} {
					sum := 0.0
					for i, p := range c.Predictions {
						sum += Score(match, c.Task, clean.Apply(p), refs[i])
					}
					same(c.ID, get[float64](t, want), percent(t, sum, len(c.Predictions)))
				}
				continue
			}
			same(c.ID, c.Score, percent(t, Score(match, "", c.Prediction, get[[]string](t, c.References)), 1))
		}
	}
	require.Positive(t, checks)
	text := fmt.Sprintf("golden scoring (string match): %d checks", checks)
	t.Log(text)
	fmt.Println(text)
}

// Lower-casing is Unicode's, not rune by rune.
func TestScoreLowerCase(t *testing.T) {
	for _, c := range [][2]string{{"ΟΔΟΣ ΑΒ", "οδος"}, {"İx", "i\u0307x"}, {"ÉCOLE", "école"}} {
		assert.Equal(t, 1.0, Score(MatchAll, "", c[0], []string{c[1]}), "%q", c)
	}
}
