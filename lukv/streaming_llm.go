package lukv

import "context"

// streamingLLM keeps the first s entries and the newest ones (Xiao et al.,
// "Efficient Streaming Language Models with Attention Sinks", 2023; spec §3.8).
type streamingLLM struct {
	sinks    int
	rerotate bool
}

func newStreamingLLM(p *params) Metric {
	return streamingLLM{
		sinks:    p.integer("sinks", p.cfg.Sinks, 4, 0, maxSlots),
		rerotate: p.boolean(p.cfg.Rerotate, false),
	}
}

func (streamingLLM) Name() string { return "streaming_llm" }

func (m streamingLLM) Config() MetricConfig {
	return MetricConfig{Name: m.Name(), Sinks: new(m.sinks), Rerotate: new(m.rerotate)}
}

func (streamingLLM) Needs(T, n int) Needs { return Needs{} }

// Protection is empty: the scores alone express what is kept for every budget.
func (streamingLLM) Protection(T, n int) Protection { return Protection{} }

func (m streamingLLM) Score(ctx context.Context, l *Layer) (Scores, error) {
	if err := l.check(m.Name(), m.Needs(l.longest(), l.Share)); err != nil {
		return nil, err
	}
	s := make(Scores, l.KVHeads)
	err := l.eachHead(ctx, func(h int) error {
		s[h] = make([]float32, l.Len(h))
		m.rank(s[h])
		return nil
	})
	return s, err
}

// rank scores a head of len(row) entries: the newest entry first, then the
// sinks in order, then the rest from new to old. So b entries are the sinks and
// the last b-s, or for b <= s the newest and the first b-1. Scores are small
// integers, exact in float32 for up to 2^23 entries.
func (m streamingLLM) rank(row []float32) {
	T := len(row)
	sinks := min(m.sinks, T)
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
