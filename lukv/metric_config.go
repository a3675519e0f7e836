package lukv

import (
	"encoding/json"
	"fmt"
	"math"
)

// maxSlots bounds every count in a configuration; slots and positions are
// int32.
const maxSlots = math.MaxInt32

// MetricConfig names a metric and its parameters. In JSON it is one flat
// object, {"name":"snapkv","window":8}; missing parameters take the metric's
// defaults, or those of "preset". A parameter that the metric does not have is
// an error when the metric is built.
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
//	cake                window kernel gamma
//	defensivekv         window kernel mass compat
//	kvzip               chunk sinks prefix suffix plus
//	key_distance        values
//	criticalkv          metric first_stage epsilon shift
//	                    presets expected_attention, keydiff
//	lagkv               sinks lag cross
//	leverage            ridge
//	compactor           chunk blending ridge sinks window
//	cur                 of local sinks
//	chunkkv             metric size heads
//	per_head            metrics
//	                    presets kvpress
//	triattention        future sinks centers
//	learned             target ridge floor
//
// [RegisterMetric] adds others. The names ea and streaming are accepted for
// expected_attention and streaming_llm.
type MetricConfig struct {
	Name   string
	Params string // JSON object of the parameters that are set; "": none
}

var metrics = registry[Metric]{
	kind:    "metric",
	aliases: map[string]string{"ea": "expected_attention", "streaming": "streaming_llm"},
}

func init() {
	RegisterMetric("snapkv", snapKV{Window: 32, Kernel: 7, Pool: "max", Group: "mean", Order: poolFirst},
		Preset[Metric]{"kvpress", snapKV{Window: 64, Kernel: 5, Pool: "avg", Group: "mean", Order: poolFirst}},
		Preset[Metric]{"snapkv", snapKV{Window: 32, Kernel: 5, Pool: "avg", Group: "mean", Order: poolFirst}},
		Preset[Metric]{"snapkv-longbench", snapKV{Window: 32, Kernel: 7, Pool: "max", Group: "mean", Order: poolFirst}},
		Preset[Metric]{"adakv", snapKV{Window: 32, Kernel: 7, Pool: "max", Group: "mean", Order: reduceFirst}})
	RegisterMetric("keydiff", keyDiff{})
	RegisterMetric("expected_attention", expectedAttention{Future: 512, Sinks: 4, Covariance: true, ValueNorm: true, Epsilon: 0.02},
		Preset[Metric]{"kvpress", expectedAttention{Future: 512, Sinks: 4, Covariance: true, ValueNorm: true}},
		Preset[Metric]{"kvpress-leaderboard", expectedAttention{Future: 512, Sinks: 4, Covariance: true, ValueNorm: true, Epsilon: 0.01}})
	RegisterMetric("streaming_llm", streamingLLM{Sinks: 4})
	RegisterMetric("knorm", kNorm{})
	RegisterMetric("tova", tova{Window: 1})
	RegisterMetric("observed", observed{})
	RegisterMetric("h2o", h2o{Window: -1})
	RegisterMetric("cake", cake{Window: 32, Kernel: 5, Gamma: 200})
	RegisterMetric("defensivekv", defensiveKV{Window: 32, Kernel: 5, Mass: 0.9})
	RegisterMetric("kvzip", kvZip{Chunk: 2048, Sinks: 4, Suffix: "\n"})
	RegisterMetric("key_distance", keyDistance{})
	snap := snapKV{Window: 32, Kernel: 7, Pool: "max", Group: "mean", Order: poolFirst}
	expected := expectedAttention{Future: 512, Sinks: 4, Covariance: true}
	RegisterMetric("criticalkv", criticalKV{Metric: InnerMetric{snap}, FirstStage: 0.5, Epsilon: 1e-4},
		Preset[Metric]{"expected_attention", criticalKV{Metric: InnerMetric{expected}, FirstStage: 0.5, Epsilon: 1e-4}},
		Preset[Metric]{"keydiff", criticalKV{Metric: InnerMetric{keyDiff{}}, FirstStage: 0.5, Epsilon: 1e-4, Shift: true}})
	RegisterMetric("lagkv", lagKV{Sinks: 4, Lag: 128})
	RegisterMetric("leverage", leverage{Ridge: 0.01})
	RegisterMetric("compactor", compactor{Chunk: 256, Blending: 0.35, Ridge: 0.01, Sinks: 8, Window: 4})
	RegisterMetric("cur", curKV{Of: "product", Local: 16, Sinks: 4})
	RegisterMetric("per_head", perHead{Metrics: []InnerMetric{{snap}, {keyDiff{}}, {expectedAttention{Future: 512, Sinks: 4, Covariance: true, ValueNorm: true, Epsilon: 0.02}}}})
	metrics.unlist("per_head")
	RegisterMetric("chunkkv", chunkKV{Metric: InnerMetric{snap}, Size: 10, Heads: "layer"},
		Preset[Metric]{"kvpress", chunkKV{Metric: InnerMetric{snap}, Size: 20, Heads: "layer"}})
	RegisterMetric("triattention", triAttention{Future: 17, Sinks: 4})
	RegisterMetric("learned", learned{Target: InnerMetric{kvZip{Chunk: 2048, Sinks: 4, Suffix: "\n"}}, Ridge: 1e-3, Floor: 1e-7})
	metrics.unlist("learned")
}

// RegisterMetric makes a metric available by name: to policies, profiles,
// sessions, evaluation and the command. defaults is a struct; its JSON is the
// metric's parameters, and its value their defaults. A method Validate() error,
// if there is one, rejects bad parameters; its messages name the parameter,
// what was found and what was expected. A method Summary() string, if there is
// one, explains it in a sentence. The metrics of this package are registered in
// the same way.
//
// Call it from init. It panics if the name is taken, the type is registered
// already or is not a struct, or a parameter is called name or preset.
func RegisterMetric(name string, defaults Metric, presets ...Preset[Metric]) {
	metrics.add(name, defaults, presets)
}

// Metrics lists the names of all metrics that rank without a profile: learned and
// per_head are not among them.
func Metrics() []string { return metrics.names(false) }

// NewMetric builds the metric that c describes.
func NewMetric(c MetricConfig) (Metric, error) { return metrics.read(config(c)) }

// MetricConfigOf returns the full configuration of a metric, every parameter
// written out: NewMetric of it gives the same metric. It is the identity that
// profiles are checked against: equal configurations, equal scores.
func MetricConfigOf(m Metric) MetricConfig { return MetricConfig(metrics.configOf(m)) }

// MarshalJSON writes one flat object with the name first.
func (c MetricConfig) MarshalJSON() ([]byte, error) { return config(c).marshal() }

// UnmarshalJSON reads a flat object. Name and parameters are checked only when
// the metric is built.
func (c *MetricConfig) UnmarshalJSON(data []byte) error {
	if err := (*config)(c).unmarshal(data); err != nil {
		return fmt.Errorf("metric configuration: %w", err)
	}
	return nil
}

// String returns the configuration as compact JSON.
func (c MetricConfig) String() string { return config(c).text() }

// ParseMetricConfig reads a configuration from JSON, or a bare name.
func ParseMetricConfig(text string) (MetricConfig, error) {
	c, err := parseConfig(text)
	if err != nil {
		return MetricConfig{}, fmt.Errorf("read metric configuration: %w", err)
	}
	return MetricConfig(c), nil
}

// InnerMetric is a metric as a parameter of another one. In JSON it is a
// configuration or a bare name.
type InnerMetric struct{ Metric }

// MarshalJSON writes the full configuration.
func (m InnerMetric) MarshalJSON() ([]byte, error) { return json.Marshal(MetricConfigOf(m.Metric)) }

// UnmarshalJSON builds the metric.
func (m *InnerMetric) UnmarshalJSON(data []byte) (err error) {
	var c MetricConfig
	if json.Unmarshal(data, &c.Name) != nil {
		if err := c.UnmarshalJSON(data); err != nil {
			return err
		}
	}
	m.Metric, err = NewMetric(c)
	return err
}
