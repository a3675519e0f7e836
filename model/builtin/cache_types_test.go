package builtin

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// TestIntegerCachesAreClose bounds the divergence of next-token distributions with a cache of
// integers from those with bf16, KL(bf16 ‖ integers) in nats, over all positions of some samples,
// and the bytes that the caches take.
func TestIntegerCachesAreClose(t *testing.T) {
	m, err := Open(t.Context())
	require.NoError(t, err)
	defer m.Close()
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	samples := 12
	if testing.Short() {
		samples = 2
	}
	texts := someSamples(tok, samples)
	want, whole := distributions(t, m, "bf16", texts)
	for _, k := range []struct {
		name       string
		kl, memory float64
	}{{"int8", 0.00003, 0.58}, {"k8v4", 0.0012, 0.44}, {"int4", 0.002, 0.32}} { // heads of 32
		got, bytes := distributions(t, m, k.name, texts)
		sum, agree, n := 0.0, 0, 0
		for i := range want {
			for j := range want[i] {
				kl, same := divergence(want[i][j], got[i][j])
				sum, n = sum+kl, n+1
				if same {
					agree++
				}
			}
		}
		t.Logf("%s: KL %.6f over %d positions, the same first choice in %.2f %%, %.3f of the bytes", k.name, sum/float64(n), n, 100*float64(agree)/float64(n), float64(bytes)/float64(whole))
		assert.LessOrEqual(t, sum/float64(n), k.kl, k.name)
		assert.LessOrEqual(t, float64(bytes)/float64(whole), k.memory, k.name)
	}
}

// someSamples returns the tokens of n samples of about 1,000 tokens.
func someSamples(tok *tokenizer.Tokenizer, n int) (texts [][]int32) {
	for _, s := range Samples() {
		if s.Length == 1024 && len(texts) < n {
			h, q := Prompt(s.Context, s.Question, s.AnswerPrefix)
			texts = append(texts, append(h.Encode(tok), q.Encode(tok)...))
		}
	}
	return texts
}

// distributions returns the logits after every token of texts with a type of cache, and the bytes
// of all caches.
func distributions(t *testing.T, m *model.Model, name string, texts [][]int32) (all [][][]float32, bytes int64) {
	keys, values, err := kvcache.ParseType(name)
	require.NoError(t, err)
	for _, tokens := range texts {
		s, err := m.NewSession(model.SessionOptions{CacheType: keys, CacheValues: values})
		require.NoError(t, err)
		var logits [][]float32
		require.NoError(t, s.PrefillEach(context.Background(), tokens, func(_ int, l []float32) error {
			logits = append(logits, append([]float32(nil), l...))
			return nil
		}))
		bytes += s.Stats().CacheBytes
		require.NoError(t, s.Close())
		all = append(all, logits)
	}
	return all, bytes
}

// divergence returns KL(p ‖ q) of the distributions of two rows of logits, and whether their
// first choice is the same.
func divergence(p, q []float32) (kl float64, same bool) {
	lp, lq := logSum(p), logSum(q)
	first := [2]int{}
	for i := range p {
		a, b := float64(p[i])-lp, float64(q[i])-lq
		kl += math.Exp(a) * (a - b)
		if p[i] > p[first[0]] {
			first[0] = i
		}
		if q[i] > q[first[1]] {
			first[1] = i
		}
	}
	return kl, first[0] == first[1]
}

func logSum(x []float32) float64 {
	most := math.Inf(-1)
	for _, v := range x {
		most = max(most, float64(v))
	}
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(float64(v) - most)
	}
	return most + math.Log(sum)
}
