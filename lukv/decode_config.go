package lukv

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// DecodeConfig says how a cache is kept small while tokens are generated (spec
// §7): with which metric, to which size, and how often. The zero value does nothing.
type DecodeConfig struct {
	// Mode names a preset, whose values replace those fields that are zero. "periodic"
	// cuts every 512 passes with the metric of the prefill. "tova", "h2o" and "streaming"
	// cut after every pass, the first prefill included, with the metric of that name, as
	// published: the window of tova is 0, and h2o's half of the target. Empty: no
	// compression while decoding.
	Mode string `json:"mode,omitempty"`

	// TargetSize is the number of entries per head after a cut, default 2048.
	TargetSize int `json:"target_size,omitempty"`

	// Ratio replaces TargetSize with the fraction to remove of all entries seen:
	// max(1, ⌊(p+1)(1-Ratio)⌋) entries stay at position p.
	Ratio float64 `json:"ratio,omitempty"`

	// Interval is the number of passes between cuts; a pass of at least TargetSize tokens
	// (a second turn of a chat) cuts at once. Buffer is the number of recent query rows
	// kept for the metric, 256 in mode "periodic"; -1 keeps none beyond the current pass.
	Interval int `json:"interval,omitempty"`
	Buffer   int `json:"buffer,omitempty"`

	// Prefill makes the first prefill a pass like any other, which may cut; otherwise it
	// stays as it is.
	Prefill bool `json:"prefill,omitempty"`

	// Metric ranks the entries.
	Metric *MetricConfig `json:"metric,omitempty"`

	// Decay multiplies accumulated attention before each query row, for metrics that read
	// it; default 1, no decay.
	Decay float64 `json:"decay,omitempty"`
}

// decodePresets holds the values of the modes.
var decodePresets = map[string]DecodeConfig{
	"periodic":  {Interval: 512, Buffer: 256},
	"tova":      {Interval: 1, Buffer: -1, Prefill: true, Metric: &MetricConfig{"tova", `{"window":0}`}},
	"h2o":       {Interval: 1, Buffer: -1, Prefill: true, Metric: &MetricConfig{Name: "h2o"}},
	"streaming": {Interval: 1, Buffer: -1, Prefill: true, Metric: &MetricConfig{Name: "streaming_llm"}},
}

// Enabled reports whether the configuration asks for anything.
func (c DecodeConfig) Enabled() bool { return c.Mode != "" }

// WithDefaults returns the configuration with the preset's values written out, and mode
// "periodic", or an error that names the bad field. The metric stays open where the
// preset leaves it to the prefill.
func (c DecodeConfig) WithDefaults() (DecodeConfig, error) {
	if c == (DecodeConfig{}) {
		return c, nil
	}
	preset, ok := decodePresets[c.Mode]
	err := c.validate()
	if !ok {
		err = fmt.Errorf("mode: found %q, expected one of %s", c.Mode, strings.Join(slices.Sorted(maps.Keys(decodePresets)), ", "))
	}
	if err != nil {
		return DecodeConfig{}, fmt.Errorf("decode compression: %w", err)
	}
	c.Mode, c.Prefill = "periodic", c.Prefill || preset.Prefill
	if c.TargetSize == 0 && c.Ratio == 0 {
		c.TargetSize = 2048
	}
	if c.Interval == 0 {
		c.Interval = preset.Interval
	}
	if c.Buffer == 0 {
		c.Buffer = preset.Buffer
	}
	if c.Decay == 0 {
		c.Decay = 1
	}
	if c.Metric == nil {
		c.Metric = preset.Metric
	}
	return c, nil
}

func (c DecodeConfig) validate() error {
	expect := func(field string, found any, ok bool, expected string) error {
		if ok {
			return nil
		}
		return fmt.Errorf("%s: found %v, expected %s", field, found, expected)
	}
	return firstOf(
		expect("target_size", c.TargetSize, c.TargetSize >= 0 && c.TargetSize <= maxSlots, "at least 1"),
		expect("ratio", c.Ratio, c.Ratio >= 0 && c.Ratio < 1, "at least 0 and below 1"),
		expect("target_size", c.TargetSize, c.Ratio == 0 || c.TargetSize == 0, "none beside a ratio"),
		expect("interval", c.Interval, c.Interval >= 0 && c.Interval <= maxSlots, "at least 1"),
		expect("buffer", c.Buffer, c.Buffer >= -1 && c.Buffer <= maxSlots, "at least 1, or -1 for none"),
		expect("decay", c.Decay, c.Decay >= 0 && c.Decay <= 1, "above 0, at most 1"),
	)
}

// UnmarshalJSON reads a configuration. Unknown fields are errors. The fields that modes
// had before they became presets are read as parameters of the preset's metric: heavy
// and recent of "h2o", whose sum is the target, and sinks of "streaming", -1 for none.
func (c *DecodeConfig) UnmarshalJSON(data []byte) error {
	type fields DecodeConfig
	var x struct {
		fields
		Heavy  int `json:"heavy"`
		Recent int `json:"recent"`
		Sinks  int `json:"sinks"`
	}
	if err := decodeStrict(data, &x); err != nil {
		return fmt.Errorf("decode compression: %w", err)
	}
	*c = DecodeConfig(x.fields)
	if x.Heavy == 0 && x.Recent == 0 && x.Sinks == 0 {
		return nil
	}
	if err := c.readOldFields(x.Heavy, x.Recent, x.Sinks); err != nil {
		return fmt.Errorf("decode compression %s: %w", c.Mode, err)
	}
	return nil
}

func (c *DecodeConfig) readOldFields(heavy, recent, sinks int) error {
	switch {
	case c.Metric != nil:
		return errors.New("heavy, recent and sinks: expected none beside a metric, which has them as parameters")
	case c.Mode != "h2o" && (heavy != 0 || recent != 0):
		return fmt.Errorf("heavy and recent: found %d and %d, expected none in this mode", heavy, recent)
	case c.Mode != "streaming" && sinks != 0:
		return fmt.Errorf("sinks: found %d, expected none in this mode", sinks)
	}
	if c.Mode == "streaming" {
		c.Metric = &MetricConfig{"streaming_llm", fmt.Sprintf(`{"sinks":%d}`, max(sinks, 0))}
		return within("sinks", sinks, -1, maxSlots)
	}
	n := heavy + recent
	if c.TargetSize != 0 && c.TargetSize != n {
		return fmt.Errorf("target_size: found %d, expected heavy + recent = %d", c.TargetSize, n)
	}
	c.TargetSize, c.Metric = n, &MetricConfig{"h2o", fmt.Sprintf(`{"window":%d}`, recent)}
	return firstOf(within("heavy", heavy, 0, maxSlots), within("recent", recent, 0, maxSlots))
}
