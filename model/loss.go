package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/lukv"
)

// LossOptions say how the loss of a compressed cache is measured. The zero value has the
// defaults.
type LossOptions struct {
	// Strata is the number of equal parts of a span that give a passage each (default
	// 32, fewer on a short span), and New how surprising a token was at first reading to
	// count as new, in nats (default 1).
	Strata int
	New    float64

	// Frame precedes a passage that is begun again; the default is "\n\n" in tokens.
	Frame []int32

	// Sweep takes 16 passages of 40 tokens at equal distances instead of those that
	// surprised the model: they are known before the prefill, see
	// SessionOptions.ProbeLoss, but find fewer facts in long texts.
	Sweep bool

	// Ratios are the candidates of CompressWithin, ascending (default 0.1, 0.2 … 0.9,
	// 0.95). With Confident the bound holds for Loss.Upper instead of the share.
	Ratios    []float64
	Confident bool
}

const (
	defaultStrata = 32
	maxStrata     = 4096
	defaultNew    = 1.0
	lossLead      = 10 // first tokens of a span, which no passage is about
	lossRun       = 8  // most tokens of a run, and tokens that lead into it
	lossRead      = 4  // tokens of a passage that precede a row that counts
	lossStratum   = 16 // fewest tokens of a stratum
	lossShortest  = 42 // tokens of the shortest span with passages
	sweepCount    = 16
	sweepTokens   = 40
	lossFewest    = 8 // facts of a measurement
)

var defaultLossRatios = []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, .95}

// withDefaults checks the options and fills in defaults.
func (o LossOptions) withDefaults(m *Model) (LossOptions, error) {
	switch {
	case o.Strata < 0 || o.Strata > maxStrata:
		return o, fmt.Errorf("found %d strata, expected 0 for the default to %d", o.Strata, maxStrata)
	case !(o.New >= 0) || math.IsInf(o.New, 0):
		return o, fmt.Errorf("found tokens new from %g nats, expected 0 for the default or more", o.New)
	}
	if o.Strata == 0 {
		o.Strata = defaultStrata
	}
	if o.New == 0 {
		o.New = defaultNew
	}
	if len(o.Ratios) == 0 {
		o.Ratios = defaultLossRatios
	}
	for i, r := range o.Ratios {
		if !(r > 0 && r < 1) || i > 0 && r <= o.Ratios[i-1] {
			return o, fmt.Errorf("found the ratios %v, expected them ascending between 0 and 1", o.Ratios)
		}
	}
	if o.Frame != nil {
		return o, m.knows(o.Frame)
	}
	tok, err := m.Tokenizer()
	if err != nil {
		return o, fmt.Errorf("tokens before a passage: %w", err)
	}
	o.Frame = tok.Encode("\n\n", tokenizerPlain)
	return o, nil
}

// knows returns an error if a token is not one of the vocabulary.
func (m *Model) knows(tokens []int32) error {
	for i, t := range tokens {
		if t < 0 || int(t) >= m.cfg.Vocab {
			return fmt.Errorf("token %d is %d, expected 0 to %d", i, t, m.cfg.Vocab-1)
		}
	}
	return nil
}

// Loss is how much of a span a compressed cache can no longer repeat: of Facts facts that
// the full cache repeats when their passage is begun again, Lost are not repeated. A fact
// is a run of tokens that surprised the model at first reading. The number is a rate,
// measured on the span itself, and no guarantee for any answer; answers that join several
// facts fail more often.
type Loss struct {
	Facts, Lost int
	Upper       float64     // Wilson's one-sided 95 % bound on Share
	Nats        float64     // mean of ln p under the full cache minus that under this one, over the tokens of facts
	Ranges      []LostRange // the facts, ascending
	Rows        int         // tokens that were fed to this cache

	// Answers is the share of answers that such a loss meant when the policy's profile
	// was calibrated, nil if that was not measured (lukv.LossMap).
	Answers *float64

	Tried []LossTried // by CompressWithin, in its order
}

// LostRange is a fact: the tokens at positions From to To-1.
type LostRange struct {
	From int  `json:"from"`
	To   int  `json:"to"`
	Lost bool `json:"lost"`
}

// LossTried is a ratio that CompressWithin tried, and the facts lost there.
type LossTried struct {
	Ratio float64 `json:"ratio"`
	Lost  int     `json:"lost"`
}

// Measured reports whether there were at least eight facts. If not, the loss is unknown,
// and no number but Facts means anything.
func (l Loss) Measured() bool { return l.Facts >= lossFewest }

// Share returns the fraction of facts lost, 0 if there are none.
func (l Loss) Share() float64 {
	if l.Facts == 0 {
		return 0
	}
	return float64(l.Lost) / float64(l.Facts)
}

// String says the same to a person.
func (l Loss) String() string {
	if !l.Measured() {
		return fmt.Sprintf("not measured: %d facts found, at least %d are needed", l.Facts, lossFewest)
	}
	kept := l.Facts - l.Lost
	text := fmt.Sprintf("%d of %d facts repeated (%.0f %%; loss at most %.0f %% at 95 %%)", kept, l.Facts, 100*float64(kept)/float64(l.Facts), 100*l.Upper)
	if l.Answers != nil {
		text += fmt.Sprintf("; when the profile was made, that meant %.0f %% of answers lost", 100**l.Answers)
	}
	return text
}

// expect fills in Answers by the profile of the policy that made the cache.
func (l *Loss) expect(p *lukv.Policy) {
	if p != nil && p.Profile != nil && p.Profile.LossMap != nil && l.Measured() {
		share := p.Profile.LossMap.At(l.Share())
		l.Answers = &share
	}
}

// lossJSON is a Loss in JSON.
type lossJSON struct {
	Measured bool        `json:"measured"`
	Facts    int         `json:"facts"`
	Lost     *int        `json:"lost,omitempty"`
	Share    *float64    `json:"facts_lost,omitempty"`
	Upper    *float64    `json:"upper,omitempty"`
	Nats     *float64    `json:"nats,omitempty"`
	Answers  *float64    `json:"answers_lost,omitempty"`
	Tried    []LossTried `json:"tried,omitempty"`
	Rows     int         `json:"probe_rows"`
	Map      []LostRange `json:"map,omitempty"`
}

// MarshalJSON writes measured, facts, lost, facts_lost, upper, nats, tried, probe_rows
// and map, and answers_lost if it is known. Without a measurement there are only measured, facts and probe_rows.
func (l Loss) MarshalJSON() ([]byte, error) {
	j := lossJSON{Measured: l.Measured(), Facts: l.Facts, Rows: l.Rows}
	if j.Measured {
		share := l.Share()
		j.Lost, j.Share, j.Upper, j.Nats, j.Answers, j.Tried, j.Map = &l.Lost, &share, &l.Upper, &l.Nats, l.Answers, l.Tried, l.Ranges
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *Loss) UnmarshalJSON(data []byte) error {
	var j lossJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*l = Loss{Facts: j.Facts, Rows: j.Rows, Ranges: j.Map, Tried: j.Tried}
	if j.Answers != nil && !(*j.Answers >= 0 && *j.Answers <= 1) || j.Measured != l.Measured() ||
		j.Measured && (j.Lost == nil || j.Upper == nil || j.Nats == nil || *j.Lost < 0 || *j.Lost > j.Facts) {
		return errors.New("loss: the numbers contradict each other")
	}
	if j.Measured {
		l.Lost, l.Upper, l.Nats, l.Answers = *j.Lost, *j.Upper, *j.Nats, j.Answers
	}
	return nil
}

// wilson returns the one-sided 95 % bound on the rate behind k of n events (Wilson 1927).
func wilson(k, n int) float64 {
	if n == 0 {
		return 1
	}
	const z = 1.645
	p, m := float64(k)/float64(n), float64(n)
	root := math.Sqrt(float64(p*(1-p))/m + z*z/(4*m*m))
	return (p + z*z/(2*m) + float64(z*root)) / (1 + z*z/m)
}

// passageRange is a run of a span's tokens that is begun again; positions count from the
// span's start.
type passageRange struct{ from, to int }

// passagesBySurprise returns the passages of a span of which readings gives ln p of every
// token at first reading, one at most in each stratum.
func passagesBySurprise(readings []float64, o LossOptions) []passageRange {
	T := len(readings)
	if T < lossShortest {
		return nil
	}
	strata := min(o.Strata, (T-lossLead)/lossStratum)
	var out []passageRange
	for j := range strata {
		t := lossLead + j*(T-lossLead)/strata
		for i := t + 1; i < lossLead+(j+1)*(T-lossLead)/strata; i++ {
			if readings[i] < readings[t] || math.IsNaN(readings[t]) {
				t = i
			}
		}
		if isNew(readings[t], o) {
			out = append(out, passageAround(readings, t, o))
		}
	}
	return out
}

func isNew(reading float64, o LossOptions) bool { return reading < -o.New }

// passageAround returns the run of new tokens around t and the tokens that lead into it.
func passageAround(readings []float64, t int, o LossOptions) passageRange {
	a, b := t, t+1
	for a > lossLead && isNew(readings[a-1], o) && t-a < lossRun-1 {
		a--
	}
	for b < len(readings) && isNew(readings[b], o) && b-a < lossRun {
		b++
	}
	return passageRange{a - lossRun, b}
}

// passagesByPosition returns the passages of the sweep over a span of T tokens.
func passagesByPosition(T int) []passageRange {
	if T < lossShortest {
		return nil
	}
	var out []passageRange
	for i := range sweepCount {
		from := 2 + i*(T-2-sweepTokens)/(sweepCount-1)
		if p := (passageRange{from, from + sweepTokens}); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}
