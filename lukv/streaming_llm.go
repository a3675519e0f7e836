package lukv

import "context"

// streamingLLM keeps the first entries, to which models attend whatever they hold
// ("sinks"), and the newest ones. The scores depend on the position alone.
//
// Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023,
// https://arxiv.org/abs/2309.17453; spec 3.8.
type streamingLLM struct {
	Sinks int `json:"sinks"`

	// Rerotate renumbers the kept entries (see [Rerotate]). The metric itself
	// ignores it; the owner of the cache acts on it.
	Rerotate bool `json:"rerotate"`
}

func (m streamingLLM) Validate() error { return within("sinks", m.Sinks, 0, maxSlots) }

// Rerotates reports whether the entries kept should be renumbered.
func (m streamingLLM) Rerotates() bool { return m.Rerotate }

// ProfileProtection covers the sinks, which otherwise the scores alone keep.
func (m streamingLLM) ProfileProtection() Protection { return Protection{Sinks: m.Sinks} }

func (streamingLLM) Needs(T, n int) Needs { return Needs{} }

// Protection is empty: the scores alone determine the kept entries for every budget.
func (streamingLLM) Protection(T, n int) Protection { return Protection{} }

func (m streamingLLM) Score(ctx context.Context, l *Layer) (Scores, error) {
	s := l.NewScores()
	for _, row := range s {
		m.rank(row)
	}
	return s, ctx.Err()
}

// rank scores a head of len(row) entries: the newest entry first, then the
// sinks in order, then the rest from new to old. So the best b entries are the
// sinks and the last b-s, or for b <= s the newest and the first b-1. Scores
// are small integers, exact in float32 for up to 2^23 entries.
func (m streamingLLM) rank(row []float32) {
	T := len(row)
	sinks := min(m.Sinks, T)
	for t := range row {
		if t < sinks {
			row[t] = float32(T + sinks - t)
		} else {
			row[t] = float32(t)
		}
	}
	if T > 0 {
		row[T-1] = float32(T + sinks + 1)
	}
}
