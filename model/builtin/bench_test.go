package builtin

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// BenchmarkLookup generates with lookup decoding and without in turns, and reports
// the median of the ratios of tokens per second. Sets: "quote" begins to recite a
// line of the document and goes on, "answer" are the samples' own questions, and
// "free" samples at a high temperature, where nothing comes twice.
func BenchmarkLookup(b *testing.B) {
	ctx := context.Background()
	m, err := Open(ctx)
	require.NoError(b, err)
	defer m.Close()
	tok, err := m.Tokenizer()
	require.NoError(b, err)
	sets := map[string]func(s Sample) ([]int32, model.Sampling){
		"quote": func(s Sample) ([]int32, model.Sampling) {
			head := tok.Encode("<s><|user|>"+s.Context, tokenizer.EncodeOptions{})
			begin := len(head) / 3
			return slices.Concat(head, head[begin:begin+24]), model.Sampling{MaxTokens: 64, IgnoreEOS: true}
		},
		"answer": func(s Sample) ([]int32, model.Sampling) {
			text := "<s><|user|>" + s.Context + "\n\n" + s.Question + "<|assistant|>" + s.AnswerPrefix
			return tok.Encode(text, tokenizer.EncodeOptions{}), model.Sampling{MaxTokens: 64}
		},
		"free": func(s Sample) ([]int32, model.Sampling) {
			return tok.Encode("<s><|user|>"+s.Context, tokenizer.EncodeOptions{}), model.Sampling{MaxTokens: 64, IgnoreEOS: true, Temperature: 4}
		},
	}
	for name, set := range sets {
		b.Run(name, func(b *testing.B) {
			var ratios []float64
			var drafted, accepted, generated int
			for i := range b.N {
				samples := Samples()
				prompt, o := set(samples[(i*37)%len(samples)])
				o.Seed = uint64(i)
				var took [2]time.Duration
				for turn := range 2 {
					lookup := (i+turn)%2 == 0
					s, err := m.NewSession(model.SessionOptions{Lookup: lookup})
					require.NoError(b, err)
					require.NoError(b, s.Prefill(ctx, prompt))
					begin, n := time.Now(), 0
					for _, err := range s.Generate(ctx, o) {
						require.NoError(b, err)
						n++
					}
					if lookup {
						took[1] = time.Since(begin)
						st := s.Stats()
						drafted, accepted, generated = drafted+st.Drafted, accepted+st.Accepted, generated+n
					} else {
						took[0] = time.Since(begin)
					}
					require.NoError(b, s.Close())
				}
				ratios = append(ratios, float64(took[0])/float64(took[1]))
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "faster")
			b.ReportMetric(float64(drafted)/float64(generated), "drafts/token")
			b.ReportMetric(float64(accepted)/float64(generated), "accepted/token")
			b.ReportMetric(0, "ns/op")
		})
	}
}
