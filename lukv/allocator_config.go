package lukv

import (
	"encoding/json"
	"fmt"
)

// AllocatorConfig names an allocator and its parameters. In JSON it is one flat
// object, {"name":"adakv","alpha":0.5}; missing parameters take the allocator's
// defaults. A parameter that the allocator does not have is an error when the
// allocator is built.
//
//	uniform    –
//	pyramidkv  form window beta
//	adakv      form alpha pool normalize skip
//	global     pool count weights
//	lukv       lookup
//	cake       window tau1 tau2 cascade
//	           presets mistral-7b-1024, mistral-7b-128, llama-3.1-8b-1024, llama-3.1-8b-128
//	headkv     importance beta tau
//	duo        streaming importance
//	threshold  least
//
// [RegisterAllocator] adds others. The names pyramid and ada are accepted for
// pyramidkv and adakv. The forms of the repositories (absolute, interpolate)
// round each layer or head on its own and may miss an absolute budget by an
// entry per head; all others meet it.
type AllocatorConfig struct {
	Name   string
	Params string // JSON object of the parameters that are set; "": none
}

var allocators = registry[Allocator]{
	kind:    "allocator",
	aliases: map[string]string{"pyramid": "pyramidkv", "ada": "adakv"},
}

func init() {
	RegisterAllocator("uniform", uniform{})
	RegisterAllocator("pyramidkv", pyramid{Form: "ratio", Window: 8, Beta: 20})
	RegisterAllocator("adakv", ada{Form: "pool", Alpha: 0.2, Pool: "layer"})
	RegisterAllocator("global", global{Pool: "model", Count: "kept"})
	RegisterAllocator("lukv", lu{Lookup: "interpolate"})
	RegisterAllocator("cake", cakeLayers{Window: 32, Tau1: 1.6, Tau2: 0.6, Cascade: true},
		Preset[Allocator]{"mistral-7b-1024", cakeLayers{Window: 32, Tau1: 0.8, Tau2: 0.5, Cascade: true}},
		Preset[Allocator]{"mistral-7b-128", cakeLayers{Window: 32, Tau1: 1, Tau2: 0.8, Cascade: true}},
		Preset[Allocator]{"llama-3.1-8b-1024", cakeLayers{Window: 32, Tau1: 1.6, Tau2: 0.4, Cascade: true}},
		Preset[Allocator]{"llama-3.1-8b-128", cakeLayers{Window: 32, Tau1: 1.6, Tau2: 0.6, Cascade: true}})
	RegisterAllocator("headkv", headKV{Beta: 1.5, Tau: 1})
	RegisterAllocator("duo", duo{Streaming: 384})
	RegisterAllocator("threshold", scoreThreshold{})
}

// RegisterAllocator makes an allocator available by name, under the rules of
// [RegisterMetric].
func RegisterAllocator(name string, defaults Allocator, presets ...Preset[Allocator]) {
	allocators.add(name, defaults, presets)
}

// Allocators lists the names of all allocators.
func Allocators() []string { return allocators.names(false) }

// NewAllocator builds the allocator that c describes. profile is needed by lukv, by duo
// without importance and by allocators that wrap them; all others ignore it. The caller
// must have checked that it belongs to the model and metric ([Profile.Check]).
func NewAllocator(c AllocatorConfig, profile *Profile) (Allocator, error) {
	a, err := allocators.read(config(c))
	if err != nil {
		return nil, err
	}
	if a, err = BindProfile(a, profile); err != nil {
		return nil, fmt.Errorf("allocator %s: %w", allocators.canonical(c.Name), err)
	}
	return a, nil
}

// AllocatorConfigOf returns the full configuration of an allocator, every
// parameter written out.
func AllocatorConfigOf(a Allocator) AllocatorConfig { return AllocatorConfig(allocators.configOf(a)) }

// NeedsProfile reports whether the allocator reads a profile.
func (c AllocatorConfig) NeedsProfile() bool {
	a, err := allocators.read(config(c))
	if err != nil {
		return false
	}
	_, err = BindProfile(a, nil)
	return err != nil
}

// Validate reports what [NewAllocator] would reject, apart from a missing profile.
func (c AllocatorConfig) Validate() error {
	_, err := allocators.read(config(c))
	return err
}

// MarshalJSON writes one flat object with the name first.
func (c AllocatorConfig) MarshalJSON() ([]byte, error) { return config(c).marshal() }

// UnmarshalJSON reads a flat object. Name and parameters are checked only when
// the allocator is built.
func (c *AllocatorConfig) UnmarshalJSON(data []byte) error {
	if err := (*config)(c).unmarshal(data); err != nil {
		return fmt.Errorf("allocator configuration: %w", err)
	}
	return nil
}

// String returns the configuration as compact JSON.
func (c AllocatorConfig) String() string { return config(c).text() }

// ParseAllocatorConfig reads a configuration from JSON, or a bare name.
func ParseAllocatorConfig(text string) (AllocatorConfig, error) {
	c, err := parseConfig(text)
	if err != nil {
		return AllocatorConfig{}, fmt.Errorf("read allocator configuration: %w", err)
	}
	return AllocatorConfig(c), nil
}

// InnerAllocator is an allocator as a parameter of another one. In JSON it is a
// configuration or a bare name. The outer allocator passes a profile on with
// [BindProfile].
type InnerAllocator struct{ Allocator }

// MarshalJSON writes the full configuration.
func (a InnerAllocator) MarshalJSON() ([]byte, error) {
	return json.Marshal(AllocatorConfigOf(a.Allocator))
}

// UnmarshalJSON builds the allocator, without a profile.
func (a *InnerAllocator) UnmarshalJSON(data []byte) (err error) {
	var c AllocatorConfig
	if json.Unmarshal(data, &c.Name) != nil {
		if err := c.UnmarshalJSON(data); err != nil {
			return err
		}
	}
	a.Allocator, err = allocators.read(config(c))
	return err
}
