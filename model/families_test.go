package model

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
)

// familiesDir returns the folder of the golden models of further families;
// LUKV_GOLDEN_FAMILIES names another one with the same layout.
func familiesDir() string {
	if dir := os.Getenv("LUKV_GOLDEN_FAMILIES"); dir != "" {
		return dir
	}
	return filepath.Join("testdata", "families")
}

// familyCase is an entry of its cases.json.
type familyCase struct {
	goldenCase
	Level string `json:"level"`
}

func goldenFamilies(t testing.TB) []familyCase {
	text, err := os.ReadFile(filepath.Join(familiesDir(), "cases.json"))
	require.NoError(t, err)
	var index struct{ Cases []familyCase }
	require.NoError(t, json.Unmarshal(text, &index))
	require.NotEmpty(t, index.Cases)
	return index.Cases
}

// TestGoldenFamilies compares logits and greedy tokens with the independent references, in
// f32 precision for every instruction set that the processor has.
func TestGoldenFamilies(t *testing.T) {
	checks, worst := 0, 0.0
	for _, c := range goldenFamilies(t) {
		for _, cpu := range kernels.Variants() {
			t.Run(c.Name+"/"+cpu.String(), func(t *testing.T) {
				n, w := checkGolden(t, familiesDir(), c.goldenCase, cpu)
				checks += n
				worst = max(worst, w)
			})
		}
	}
	fmt.Printf("golden families: %d checks, worst deviation %.2g\n", checks, worst)
	require.NotZero(t, checks)
}

// TestGoldenFamiliesChunks: chunks of any size and tokens one by one give the bits of one
// prefill, in both precisions, and a batch gives those of sessions alone.
func TestGoldenFamiliesChunks(t *testing.T) {
	checks := 0
	for _, c := range goldenFamilies(t) {
		for _, p := range []Precision{PrecisionF32, PrecisionBF16} {
			t.Run(c.Name+"/"+string(p), func(t *testing.T) {
				m, err := Open(t.Context(), filepath.Join(familiesDir(), c.Name), WithPrecision(p), WithThreads(2))
				require.NoError(t, err)
				defer m.Close()
				tokens := randomTokens(75, m.cfg.Vocab, 3)
				whole := prefillLogits(t, newTestSession(t, m, SessionOptions{}), tokens)
				for _, chunk := range []int{1, 7, 32} {
					testnum.SameBits(t, fmt.Sprintf("chunks of %d", chunk), prefillLogits(t, newTestSession(t, m, SessionOptions{ChunkTokens: chunk}), tokens), whole)
				}
				if m.net.Dynamic() { // earlier logits depend on the length of the whole
					one := newTestSession(t, m, SessionOptions{})
					for i, token := range tokens {
						require.NoError(t, one.Append(t.Context(), token))
						if i == 40 || i == len(tokens)-1 {
							fresh := prefillLogits(t, newTestSession(t, m, SessionOptions{}), tokens[:i+1])
							testnum.SameBits(t, fmt.Sprintf("token %d", i), one.Logits(), fresh[i*m.cfg.Vocab:])
						}
					}
					require.NoError(t, one.Truncate(30))
					require.NoError(t, one.Prefill(t.Context(), tokens[30:41]))
					fresh := prefillLogits(t, newTestSession(t, m, SessionOptions{}), tokens[:41])
					testnum.SameBits(t, "after going back", one.Logits(), fresh[40*m.cfg.Vocab:])
					return
				}
				one, two := newTestSession(t, m, SessionOptions{}), newTestSession(t, m, SessionOptions{})
				require.NoError(t, two.Prefill(t.Context(), tokens[:11]))
				for i, token := range tokens {
					require.NoError(t, m.Pass(t.Context(), []Part{{Session: two, Token: tokens[(i+5)%len(tokens)]}, {Session: one, Token: token}}))
					testnum.SameBits(t, fmt.Sprintf("token %d", i), one.Logits(), whole[i*m.cfg.Vocab:(i+1)*m.cfg.Vocab])
				}
				checks += len(tokens) + 3
			})
		}
	}
	fmt.Printf("golden families, chunks and batches: %d checks\n", checks)
	require.NotZero(t, checks)
}

// TestGoldenFamiliesMalformed opens relatives of the golden models that are broken or not
// supported.
func TestGoldenFamiliesMalformed(t *testing.T) {
	dir := filepath.Join(familiesDir(), "malformed")
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	require.NoError(t, err)
	var list struct {
		Cases []struct {
			Name, Expect, Why string
			Mention           []string `json:"error_should_mention"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &list))
	for _, c := range list.Cases {
		t.Run(c.Name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			m, err := Open(context.Background(), filepath.Join(dir, c.Name))
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20))
			if err == nil {
				require.NotEqual(t, "error", c.Expect, c.Why)
				require.NoError(t, m.Close())
				return
			}
			t.Log(err)
			require.NotEqual(t, "ok", c.Expect, err)
			named := false
			for _, word := range c.Mention {
				named = named || strings.Contains(strings.ToLower(err.Error()), strings.ToLower(word))
			}
			require.True(t, named, "%q should mention one of %v", err, c.Mention)
		})
	}
	fmt.Printf("golden families, malformed: %d checks\n", len(list.Cases))
	require.NotEmpty(t, list.Cases)
}

// TestGoldenFamiliesCompress: a ratio of 0 changes nothing (P2); a ratio of 0.8 leaves what
// the budgets allow, in the layers with full attention only, and such a session can be
// saved, loaded and forked, with the bits of the one that goes on.
func TestGoldenFamiliesCompress(t *testing.T) {
	checks := 0
	for _, c := range goldenFamilies(t) {
		t.Run(c.Name, func(t *testing.T) {
			ctx := t.Context()
			m, err := Open(ctx, filepath.Join(familiesDir(), c.Name), WithThreads(2))
			require.NoError(t, err)
			defer m.Close()
			tokens, steps := randomTokens(300, m.cfg.Vocab, 5), randomTokens(4, m.cfg.Vocab, 6)
			plain := traceOf(t, newTestSession(t, m, SessionOptions{}), tokens, steps)
			for _, metric := range []string{"snapkv", "knorm", "expected_attention", "tova"} {
				policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: "uniform"}}
				s := newTestSession(t, m, SessionOptions{Compression: policy})
				testnum.SameBits(t, metric+" at ratio 0", plain, traceOf(t, s, tokens, steps))

				policy.Ratio = 0.8
				s = newTestSession(t, m, SessionOptions{Compression: policy})
				require.NoError(t, s.Prefill(ctx, tokens))
				for at, p := range m.net.Plan {
					for h := range m.cfg.KVHeads {
						if n := s.cache.Len(at, h); p.Window == 0 {
							require.Equal(t, 59, n, "layer %d, head %d", at, h)
						} else {
							require.GreaterOrEqual(t, n, min(p.Window, len(tokens)), "layer %d, head %d", at, h)
						}
					}
				}
				fork, err := s.Fork()
				require.NoError(t, err)
				defer fork.Close()
				path := filepath.Join(t.TempDir(), "session")
				require.NoError(t, s.Save(ctx, path))
				loaded, err := m.LoadSession(ctx, path, SessionOptions{Compression: policy})
				require.NoError(t, err)
				defer loaded.Close()
				for _, token := range steps {
					for _, x := range []*Session{s, fork, loaded} {
						require.NoError(t, x.Append(ctx, token))
						require.True(t, finite(x.Logits()))
					}
					testnum.SameBits(t, metric+", fork", s.Logits(), fork.Logits())
					testnum.SameBits(t, metric+", loaded", s.Logits(), loaded.Logits())
					checks += 2
				}
			}
			require.Zero(t, allocations(t, newTestSession(t, m, SessionOptions{})))
		})
	}
	fmt.Printf("golden families, compressed: %d checks\n", checks)
	require.NotZero(t, checks)
}
