package model

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
)

func goldenGGUF(t testing.TB) (string, []goldenCase) {
	return goldenCases(t, "LUKV_GOLDEN_GGUF", filepath.Join("testdata", "gguf"))
}

// TestGoldenGGUF compares logits and greedy tokens of models run from GGUF files with
// independent references, in f32 precision for every instruction set that the processor has.
func TestGoldenGGUF(t *testing.T) {
	dir, cases := goldenGGUF(t)
	checks, worst := 0, 0.0
	for _, c := range cases {
		for _, cpu := range kernels.Variants() {
			t.Run(c.Name+"/"+cpu.String(), func(t *testing.T) {
				n, w := checkGolden(t, dir, c, cpu)
				checks += n
				worst = max(worst, w)
			})
		}
	}
	fmt.Printf("golden GGUF models: %d checks, worst deviation %.2g\n", checks, worst)
	require.NotZero(t, checks)
}

// TestGoldenGGUFMalformed: damaged files and those that are not understood are refused by a
// message that names the fault, before a token is produced.
func TestGoldenGGUFMalformed(t *testing.T) {
	dir, _ := goldenGGUF(t)
	dir = filepath.Join(dir, "malformed")
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	require.NoError(t, err)
	var cases []struct {
		Name, Open, Expect string
		Mention            []string `json:"error_should_mention"`
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		var index struct{ Cases json.RawMessage }
		require.NoError(t, json.Unmarshal(text, &index))
		require.NoError(t, json.Unmarshal(index.Cases, &cases))
	}
	require.NotEmpty(t, cases)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			err := runGGUF(t, filepath.Join(dir, c.Open))
			switch {
			case c.Expect == "ok":
				require.NoError(t, err)
			case c.Expect == "error" || err != nil:
				require.Error(t, err)
				lower := strings.ToLower(err.Error())
				require.True(t, slices.ContainsFunc(c.Mention, func(word string) bool { return strings.Contains(lower, strings.ToLower(word)) }),
					"%q mentions none of %q", err, c.Mention)
			}
		})
	}
	fmt.Printf("golden malformed GGUF models: %d checks\n", len(cases))
}

// runGGUF opens a file and prefills a few tokens.
func runGGUF(t *testing.T, path string) error {
	m, err := Open(t.Context(), path, WithThreads(1))
	if err != nil {
		return err
	}
	defer m.Close()
	if _, err := m.Tokenizer(); err != nil {
		return err
	}
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	tokens := make([]int32, 24)
	for i := range tokens {
		tokens[i] = int32(i * 7 % m.Config().Vocab)
	}
	if err := s.Prefill(t.Context(), tokens); err != nil {
		return err
	}
	for _, v := range s.Logits() {
		require.False(t, math.IsNaN(float64(v)) || math.IsInf(float64(v), 0))
	}
	return nil
}
