package lukv

import (
	"fmt"
	"slices"
	"strings"
)

// policyPreset is a published setting: a policy without a budget.
type policyPreset struct {
	name   string
	policy Policy
}

// policyPresets lists whole published settings. Sources: the papers' own tables and
// the repositories of the methods; docs/methods.md names them.
var policyPresets = []policyPreset{
	{"kvpress", Policy{Metric: MetricConfig{"snapkv", `{"preset":"kvpress"}`}, KVPressRounding: true}},
	{"snapkv", Policy{Metric: MetricConfig{"snapkv", `{"preset":"snapkv"}`}}},
	{"snapkv-longbench", Policy{Metric: MetricConfig{"snapkv", `{"preset":"snapkv-longbench"}`}}},
	{"pyramidkv", Policy{Metric: MetricConfig{"snapkv", `{"window":8}`}, Allocator: AllocatorConfig{"pyramidkv", `{"form":"absolute"}`}}},
	{"adakv", Policy{Metric: MetricConfig{"snapkv", `{"preset":"adakv"}`}, Allocator: AllocatorConfig{"adakv", `{"form":"interpolate"}`}}},
	{"lukv", Policy{Metric: MetricConfig{Name: "snapkv"}, Allocator: AllocatorConfig{"lukv", `{"lookup":"nearest"}`}, Rounding: Rounding{Heads: HeadsFloor, Floor: FloorNone}}},
	{"cake", Policy{Metric: MetricConfig{Name: "cake"}, Allocator: AllocatorConfig{Name: "cake"}}},
	{"h2o", Policy{Metric: MetricConfig{Name: "h2o"}}},
	{"tova", Policy{Metric: MetricConfig{"tova", `{"window":0}`}}},
	{"streaming_llm", Policy{Metric: MetricConfig{"streaming_llm", `{"rerotate":true}`}}},
	{"keydiff", Policy{Metric: MetricConfig{"keydiff", `{"block":128}`}}},
	{"expected_attention", Policy{Metric: MetricConfig{Name: "expected_attention"}, Allocator: AllocatorConfig{Name: "adakv"}}},
	{"kvzip", Policy{Metric: MetricConfig{Name: "kvzip"}, Allocator: AllocatorConfig{"global", `{"count":"removed"}`}}},
	{"criticalkv", Policy{Metric: MetricConfig{Name: "criticalkv"}}},
	{"critical-adakv", Policy{Metric: MetricConfig{Name: "criticalkv"}, Allocator: AllocatorConfig{Name: "adakv"}}},
	{"defensivekv", Policy{Metric: MetricConfig{Name: "defensivekv"}, Allocator: AllocatorConfig{"global", `{"pool":"layer"}`}}},
	{"layer-defensivekv", Policy{Metric: MetricConfig{Name: "defensivekv"}, Allocator: AllocatorConfig{"global", `{"pool":"model"}`}}},
	{"lagkv", Policy{Metric: MetricConfig{Name: "lagkv"}}},
	{"compactor", Policy{Metric: MetricConfig{Name: "compactor"}}},
	{"curdkv", Policy{Metric: MetricConfig{Name: "cur"}}},
	{"chunkkv", Policy{Metric: MetricConfig{Name: "chunkkv"}}},
	{"duoattention", Policy{Metric: MetricConfig{"streaming_llm", `{"sinks":128}`}, Allocator: AllocatorConfig{Name: "duo"}}},
	{"triattention", Policy{Metric: MetricConfig{Name: "triattention"}, Decode: DecodeConfig{Mode: "periodic", Interval: 128, TargetSize: 2048}}},
}

// PolicyPresets lists the names of [PresetPolicy].
func PolicyPresets() []string {
	names := make([]string, len(policyPresets))
	for i, p := range policyPresets {
		names[i] = p.name
	}
	return names
}

// PresetPolicy returns a whole published setting by name: metric, allocator,
// rounding and compression while decoding, without a budget. A metric that is
// given replaces the preset's; given by name alone under the preset kvpress, it
// takes the parameters of kvpress. Compile writes out everything that the preset
// leaves to defaults; the presets lukv and duoattention need a profile, the
// latter unless its allocator is given an importance.
func PresetPolicy(name string, metric MetricConfig) (Policy, error) {
	i := slices.IndexFunc(policyPresets, func(p policyPreset) bool { return p.name == name })
	if i < 0 {
		return Policy{}, fmt.Errorf("preset %q is unknown, expected one of %s", name, strings.Join(PolicyPresets(), ", "))
	}
	p := policyPresets[i].policy
	if metric.Name != "" {
		p.Metric = metric
		if name == "kvpress" && metric.Params == "" && metrics.hasPreset(metric.Name, name) {
			p.Metric.Params = `{"preset":"kvpress"}`
		}
	}
	m, a := p.Methods()
	built, err := NewMetric(m)
	if err != nil {
		return Policy{}, fmt.Errorf("preset %s: %w", name, err)
	}
	p.Metric = MetricConfigOf(built)
	if full, err := allocators.read(config(a)); err == nil {
		p.Allocator = AllocatorConfigOf(full)
	}
	return p, nil
}

func (r *registry[T]) hasPreset(name, preset string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.named(r.canonical(name))
	return e != nil && slices.ContainsFunc(e.presets, func(p Preset[[]byte]) bool { return p.Name == preset })
}
