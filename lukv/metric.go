package lukv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// maxSlots bounds every count in a configuration; slots and positions are
// int32.
const maxSlots = math.MaxInt32

// MetricConfig names a metric and its parameters, in code and in JSON. A nil
// or empty field means the metric's default, or that of Preset. Setting a
// parameter that the metric does not have is an error.
//
//	snapkv              window kernel pool group order shrink_window
//	                    presets kvpress, snapkv, snapkv-longbench, adakv
//	keydiff             block
//	expected_attention  future sinks covariance value_norm epsilon
//	                    presets kvpress, kvpress-leaderboard
//	streaming_llm       sinks rerotate
//	knorm               –
//	tova                window
//	observed            –
//	h2o                 window
//
// The names ea and streaming are accepted for expected_attention and
// streaming_llm.
type MetricConfig struct {
	Name   string `json:"name"`
	Preset string `json:"preset,omitempty"`

	// Window is the number of last queries observed, which are protected too:
	// snapkv 32 (at least 1). tova: 1, or 0 to leave the newest entry
	// unprotected as the original does. h2o: the protected recent entries, -1
	// (default) for half of the budget.
	Window *int `json:"window,omitempty"`

	// Kernel is the odd width of SnapKV's pooling, default 7; Pool is "max"
	// (default) or "avg".
	Kernel *int   `json:"kernel,omitempty"`
	Pool   string `json:"pool,omitempty"`

	// Group reduces the query heads of a group by "mean" (default) or "max";
	// Order is "pool-then-reduce" (default) or "reduce-then-pool".
	Group string `json:"group,omitempty"`
	Order string `json:"order,omitempty"`

	// ShrinkWindow halves a SnapKV window that would eat the whole budget,
	// default false.
	ShrinkWindow *bool `json:"shrink_window,omitempty"`

	// Block makes KeyDiff cut back to the budget after every Block entries;
	// 0 (default) scores all at once.
	Block *int `json:"block,omitempty"`

	// Future is the number of coming positions that Expected Attention
	// averages over, default 512.
	Future *int `json:"future,omitempty"`

	// Sinks is the number of first entries always kept, default 4
	// (expected_attention, streaming_llm).
	Sinks *int `json:"sinks,omitempty"`

	// Covariance and ValueNorm switch parts of Expected Attention, default
	// true; Epsilon is added before the value norm, default 0.02.
	Covariance *bool    `json:"covariance,omitempty"`
	ValueNorm  *bool    `json:"value_norm,omitempty"`
	Epsilon    *float64 `json:"epsilon,omitempty"`

	// Rerotate renumbers what StreamingLLM keeps (see [Rerotate]), default
	// false. The metric itself does not look at it; whoever owns the cache
	// does.
	Rerotate *bool `json:"rerotate,omitempty"`
}

// metrics lists every metric with its constructor.
var metrics = []struct {
	name  string
	build func(*params) Metric
}{
	{"snapkv", newSnapKV},
	{"keydiff", newKeyDiff},
	{"expected_attention", newExpectedAttention},
	{"streaming_llm", newStreamingLLM},
	{"knorm", newKNorm},
	{"tova", newTOVA},
	{"observed", newObserved},
	{"h2o", newH2O},
}

// aliases are other names that users type.
var aliases = map[string]string{"ea": "expected_attention", "streaming": "streaming_llm"}

// Metrics lists the names of all metrics.
func Metrics() []string {
	names := make([]string, len(metrics))
	for i, m := range metrics {
		names[i] = m.name
	}
	return names
}

// NewMetric builds the metric that cfg describes.
func NewMetric(cfg MetricConfig) (Metric, error) {
	name := cfg.Name
	if to, ok := aliases[name]; ok {
		name = to
	}
	for _, m := range metrics {
		if m.name != name {
			continue
		}
		p := &params{cfg: cfg, name: name}
		metric := m.build(p)
		if !p.presets {
			p.preset()
		}
		if p.err == nil {
			p.err = p.unused(metric.Config())
		}
		if p.err != nil {
			return nil, p.err
		}
		return metric, nil
	}
	return nil, fmt.Errorf("metric %q is unknown, expected one of %s", cfg.Name, strings.Join(Metrics(), ", "))
}

// String returns the configuration as compact JSON with a fixed order of
// fields. Of a metric's Config it is the identity that profiles are checked
// against: equal strings, equal scores.
func (c MetricConfig) String() string {
	data, err := json.Marshal(c)
	if err != nil { // only for an epsilon that is not a number, which NewMetric refuses
		return fmt.Sprintf("{%q: %q}", c.Name, err)
	}
	return string(data)
}

// ParseMetricConfig reads a configuration from JSON, or a bare name. Unknown
// fields are errors.
func ParseMetricConfig(text string) (MetricConfig, error) {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return MetricConfig{Name: strings.TrimSpace(text)}, nil
	}
	var c MetricConfig
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return MetricConfig{}, fmt.Errorf("read metric configuration: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return MetricConfig{}, fmt.Errorf("read metric configuration: found more text after the object")
	}
	return c, nil
}

// params resolves the fields of a configuration and remembers the first error.
type params struct {
	cfg  MetricConfig
	name string
	err  error

	presets bool // the metric has asked for its preset
}

func (p *params) fail(field string, found any, expected string) {
	if p.err == nil {
		p.err = fmt.Errorf("metric %s: %s: found %v, expected %s", p.name, field, found, expected)
	}
}

// preset checks the preset against those that the metric has.
func (p *params) preset(names ...string) string {
	p.presets = true
	names = append([]string{"default"}, names...)
	if p.cfg.Preset != "" && !slices.Contains(names, p.cfg.Preset) {
		p.fail("preset", fmt.Sprintf("%q", p.cfg.Preset), "one of "+strings.Join(names, ", "))
	}
	return p.cfg.Preset
}

func (p *params) integer(field string, v *int, def, lo, hi int) int {
	if v == nil {
		return def
	}
	if *v < lo || *v > hi {
		p.fail(field, *v, fmt.Sprintf("%d to %d", lo, hi))
	}
	return *v
}

func (p *params) number(field string, v *float64, def, lo, hi float64) float64 {
	if v == nil {
		return def
	}
	if !(*v >= lo && *v <= hi) {
		p.fail(field, *v, fmt.Sprintf("%g to %g", lo, hi))
	}
	return *v
}

func (p *params) boolean(v *bool, def bool) bool {
	if v == nil {
		return def
	}
	return *v
}

func (p *params) choice(field, v, def string, options ...string) string {
	if v == "" {
		return def
	}
	if !slices.Contains(options, v) {
		p.fail(field, fmt.Sprintf("%q", v), "one of "+strings.Join(options, ", "))
	}
	return v
}

// unused reports a parameter that was set although the metric, whose full
// configuration is full, does not have it.
func (p *params) unused(full MetricConfig) error {
	given, has := p.cfg.fields(), full.fields()
	for _, f := range given {
		if f.set && !slices.ContainsFunc(has, func(g configField) bool { return g.name == f.name && g.set }) {
			return fmt.Errorf("metric %s: it has no parameter %s", p.name, f.name)
		}
	}
	return nil
}

type configField struct {
	name string
	set  bool
}

// fields says which parameters are set.
func (c MetricConfig) fields() []configField {
	return []configField{
		{"window", c.Window != nil}, {"kernel", c.Kernel != nil}, {"pool", c.Pool != ""},
		{"group", c.Group != ""}, {"order", c.Order != ""}, {"shrink_window", c.ShrinkWindow != nil},
		{"block", c.Block != nil}, {"future", c.Future != nil}, {"sinks", c.Sinks != nil},
		{"covariance", c.Covariance != nil}, {"value_norm", c.ValueNorm != nil},
		{"epsilon", c.Epsilon != nil}, {"rerotate", c.Rerotate != nil},
	}
}
