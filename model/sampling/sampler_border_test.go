package sampling

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMinPBorder: a token that has exactly the share is in, however tokens are selected.
func TestMinPBorder(t *testing.T) {
	logits := []float32{2, 2, 1, 2}
	for _, o := range []Options{{}, {TopK: 4}, {TopK: 3}, {TopP: 0.999}} {
		o.Temperature, o.MinP = 1, 1
		got := draws(t, o, logits, nil, nil, 200)
		require.Len(t, got, 3, "%+v", o)
		require.Zero(t, got[2])
	}
}

// TestPenaltiesBelowOne: a positive logit is divided however small it is, and what is
// subtracted may make one negative.
func TestPenaltiesBelowOne(t *testing.T) {
	s := newTestSampler(t, 2, Options{RepetitionPenalty: 1.5}, 0)
	s.Start([]int32{0})
	id, err := s.Next([]float32{0.5, 0.4}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, id)
}

// TestSamplersForget: a sampler that begins anew knows nothing of the last generation.
func TestSamplersForget(t *testing.T) {
	o := Options{RepetitionPenalty: 3, RepetitionWindow: 3, PresencePenalty: 1, FrequencyPenalty: 0.5}
	logits := []float32{3, 2, 1}
	s := newTestSampler(t, 3, o, 0)
	s.Start([]int32{0, 1, 0, 1})
	for range 5 {
		s.Accept(0)
	}
	require.NoError(t, s.Reset(o, 0))
	id, err := s.Next(logits, nil)
	require.NoError(t, err)
	require.EqualValues(t, 0, id)
	// The window's oldest token leaves, whichever generation filled it before.
	s.Start([]int32{0, 2, 2, 2})
	id, err = s.Next(logits, nil)
	require.NoError(t, err)
	require.EqualValues(t, 0, id)
}

// TestWindowOfTheRepetitionPenalty: only the last W tokens of a long answer count.
func TestWindowOfTheRepetitionPenalty(t *testing.T) {
	const vocab, window = 7, 3
	s := newTestSampler(t, vocab, Options{RepetitionPenalty: 2, RepetitionWindow: window}, 0)
	history := []int32{0, 1, 2, 3, 4, 5, 6, 0, 0, 3, 0, 5, 5, 5, 1, 2, 6, 6, 2}
	s.Start(history[:2])
	for n := 2; n <= len(history); n++ {
		logits := make([]float32, vocab)
		for token := range logits {
			logits[token] = 8
		}
		changed := s.change(logits, nil)
		for token := range logits {
			want := float32(8)
			for _, h := range history[max(0, n-window):n] {
				if int(h) == token {
					want = 4
				}
			}
			require.Equal(t, want, changed[token], "token %d behind %d", token, history[:n])
		}
		if n < len(history) {
			s.Accept(history[n])
		}
	}
}
