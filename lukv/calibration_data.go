package lukv

import (
	"errors"
	"fmt"
	"slices"
)

// CalibrationData is what calibration measured for the metrics that read it. Do not
// modify it once a metric has it.
type CalibrationData struct {
	// QueryCenters are the centres of the model's queries on the calibration texts,
	// [L][H], zeros in excluded layers, for triattention; nil if not measured.
	QueryCenters [][]QueryCenter `json:"query_centers,omitempty"`

	// Rankings are the functions that learned ranks by, [L][K], zeros in excluded
	// layers; nil if not fitted.
	Rankings [][]Ranking `json:"rankings,omitempty"`
}

// NeedsCenters reports whether a metric reads query centres and has none of its
// own, so that a profile made for it must hold them.
func NeedsCenters(m Metric) bool {
	t, ok := m.(triAttention)
	return ok && len(t.Centers) == 0
}

// NeedsRankings reports whether a metric, or one within it, ranks by functions that
// only calibration can give it.
func NeedsRankings(m Metric) bool {
	_, ok := learnedWithin(m)
	return ok
}

// learnedWithin returns the metric learned that m is or contains.
func learnedWithin(m Metric) (found learned, ok bool) {
	mapMetrics(m, func(x Metric) Metric {
		if l, is := x.(learned); is {
			found, ok = l, true
		}
		return x
	})
	return found, ok
}

// WithCalibration returns the metric with what was measured for it, and for the metrics
// within it; any other metric is returned unchanged. The metric keeps d.
func WithCalibration(m Metric, d *CalibrationData) Metric {
	return mapMetrics(m, func(x Metric) Metric {
		switch x := x.(type) {
		case triAttention:
			x.profiled = d.QueryCenters
			return x
		case learned:
			x.data = d
			return x
		}
		return x
	})
}

// mapMetrics returns m with fn applied to it or, if it is made of others, to those.
func mapMetrics(m Metric, fn func(Metric) Metric) Metric {
	switch m := m.(type) {
	case perHead:
		m.Metrics = slices.Clone(m.Metrics)
		for i, x := range m.Metrics {
			m.Metrics[i].Metric = mapMetrics(x.Metric, fn)
		}
		return m
	case criticalKV:
		m.Metric.Metric = mapMetrics(m.Metric.Metric, fn)
		return m
	case chunkKV:
		m.Metric.Metric = mapMetrics(m.Metric.Metric, fn)
		return m
	}
	return fn(m)
}

// check reports data whose shape differs from a profile's.
func (d *CalibrationData) check(layers, kvHeads int) error {
	if d.QueryCenters != nil {
		if n := len(d.QueryCenters); n != layers {
			return fmt.Errorf("query centers of %d layers, expected %d", n, layers)
		}
		if err := checkCenters(d.QueryCenters); err != nil {
			return fmt.Errorf("query centers: %w", err)
		}
		if n := len(d.QueryCenters[0]); n%kvHeads != 0 {
			return fmt.Errorf("query centers of %d query heads, expected a multiple of %d kv heads", n, kvHeads)
		}
	}
	if d.Rankings == nil {
		return nil
	}
	if n := len(d.Rankings); n != layers {
		return fmt.Errorf("rankings of %d layers, expected %d", n, layers)
	}
	if err := checkRankings(d.Rankings); err != nil {
		return fmt.Errorf("rankings: %w", err)
	}
	if n := len(d.Rankings[0]); n != kvHeads {
		return fmt.Errorf("rankings of %d KV heads, expected %d", n, kvHeads)
	}
	return nil
}

// checkRankings reports why the profile p cannot rank for m, which needs rankings.
func (p *Profile) checkRankings(m learned) error {
	if p == nil {
		return errors.New("found no profile, expected one of this metric, which holds its ranking")
	}
	made, err := NewMetric(p.Identity.Metric)
	if err != nil {
		return err
	}
	its, ok := learnedWithin(made)
	if !ok || p.Rankings == nil {
		return fmt.Errorf("%w: found a profile of the metric %s without rankings, expected one of this metric", ErrProfileMismatch, p.Identity.Metric.Name)
	}
	if a, b := MetricConfigOf(its), MetricConfigOf(m); a != b {
		return fmt.Errorf("%w: metric: the profile was made for %v, this run has %v", ErrProfileMismatch, a, b)
	}
	return nil
}
