package eval

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// TestTimeOfAnAnswer: an answer that shares nothing took as long as its parts: up to the first
// token, and after it.
func TestTimeOfAnAnswer(t *testing.T) {
	m := open(t)
	for _, a := range collectTimed(t, m, few("niah_single_2", 256, 2), []Method{{Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}, Options{Framing: builtinFraming, OwnPrefills: true}) {
		parts := time.Duration((a.FirstTokenMS + a.DecodeMS) * float64(time.Millisecond))
		assert.InDelta(t, parts, a.Time, float64(10*time.Microsecond), "%v, %v", parts, a.Time)
		assert.Positive(t, a.DecodeMS)
	}
}

func collectTimed(t *testing.T, m *model.Model, items []Item, methods []Method, o Options) []Answer {
	t.Helper()
	var out []Answer
	require.NoError(t, Run(t.Context(), m, items, methods, o, func(a Answer) error {
		out = append(out, a)
		return nil
	}))
	require.Len(t, out, len(items)*len(methods))
	return out
}

// TestDivergenceOfLongAnswers: an answer whose distributions alone could take more than is held
// at a time is measured by itself.
func TestDivergenceOfLongAnswers(t *testing.T) {
	m := open(t)
	items := few("niah_single_2", 256, 2)
	items[1].Context = items[0].Context
	methods := []Method{{Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	want := measured(t, m, items, methods, Options{MaxNewTokens: 100})
	for i := range items {
		items[i].MaxNewTokens = maxReferenceBytes
	}
	require.Equal(t, want, measured(t, m, items, methods, Options{}))
}

// TestDivergencesCloseSessions: divergences of many contexts fit into a model whose sessions
// together have room for few.
func TestDivergencesCloseSessions(t *testing.T) {
	s, err := open(t).NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Prefill(t.Context(), make([]int32, 256)))
	m, err := builtin.Open(t.Context(), model.WithMaxMemory(5*s.Stats().CacheBytes))
	require.NoError(t, err)
	defer m.Close()
	methods := []Method{{Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	var items []Item
	for i := range 12 {
		items = append(items, few("niah_single_2", 256, 1)...)
		items[i].Context = fmt.Sprint(items[i].Context, " ", i)
	}
	for _, d := range measured(t, m, items, methods, Options{MaxNewTokens: 2}) {
		assert.Empty(t, d.Error)
	}
}
