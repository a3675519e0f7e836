package arch

import (
	"fmt"
	"slices"
	"strconv"
)

// families is the registry.
var families = []*family{
	&llamaFamily, &mistralFamily, &qwen2Family, &qwen3Family,
	&mixtralFamily, &qwen2MoEFamily, &qwen3MoEFamily,
	&smolLM3Family, &ministral3Family, &graniteFamily, &phi3Family, &olmo2Family,
	&gemma2Family, &gemma3Family,
}

// unsupported are architectures that are known, and why they cannot run.
var unsupported = map[string]string{
	"deepseek_v2":      "latent attention",
	"deepseek_v3":      "latent attention and grouped expert routing",
	"gemma4":           "layers that share caches and per-layer embeddings",
	"gemma4_text":      "layers that share caches and per-layer embeddings",
	"glm4_moe":         "sigmoid expert routing",
	"gpt_oss":          "attention sinks and clamped experts",
	"granitemoe":       graniteMoE,
	"granitemoehybrid": "Mamba layers",
	"kimi_k2":          "latent attention and grouped expert routing",
	"llama4":           "chunked attention and interleaved rotation",
	"llama4_text":      "chunked attention and interleaved rotation",
	"qwen3_5":          "gated delta-net layers",
	"qwen3_5_moe":      "gated delta-net layers",
	"qwen3_5_moe_text": "gated delta-net layers",
	"qwen3_5_text":     "gated delta-net layers",
	"qwen3_next":       "gated delta-net layers",
}

// architectures returns the supported architectures, by the model_type of their configs,
// sorted.
func architectures() []string {
	var names []string
	for _, f := range families {
		names = append(names, f.arch)
	}
	slices.Sort(names)
	return names
}

// familyOf returns the family of an architecture, nil if it is not supported.
func familyOf(arch string) *family {
	for _, f := range families {
		if f.arch == arch {
			return f
		}
	}
	return nil
}

// findFamily returns the family that a config asks for: by model_type or, in configs
// without it, by the class under architectures.
func findFamily(o object) (*family, error) {
	if o.Has("model_type") {
		name := o.String("model_type", "")
		if o.Err() != nil {
			return nil, o.Err()
		}
		if f := familyOf(name); f != nil {
			return f, nil
		}
		return nil, unsupportedArch("model_type", short(strconv.Quote(name)), unsupported[name])
	}
	if o.Has("architectures") {
		classes := o.Strings("architectures", maxClasses)
		if err := o.Err(); err != nil {
			return nil, err
		}
		for _, f := range families {
			if slices.Contains(classes, f.class) {
				return f, nil
			}
		}
		return nil, unsupportedArch("architectures", short(fmt.Sprintf("%q", classes)), "")
	}
	return nil, fmt.Errorf("found neither \"model_type\" nor \"architectures\", so the architecture is %w, expected one of %v",
		ErrUnsupported, architectures())
}

// unsupportedArch returns the error for an architecture; missing, if known, says what of
// it is not implemented.
func unsupportedArch(key, name, missing string) error {
	if missing != "" {
		return fmt.Errorf("%q: architecture %s is %w because of its %s, expected one of %v", key, name, ErrUnsupported, missing, architectures())
	}
	return fmt.Errorf("%q: architecture %s is %w, expected one of %v", key, name, ErrUnsupported, architectures())
}

// Tensors returns the names of the family's tensors.
func (c *Config) Tensors() TensorTable {
	if f := familyOf(c.Arch); f != nil {
		return f.tensors
	}
	return llamaTensors
}

// Interleaved reports whether checkpoints store the rows of every query and key head, and
// their biases, in the order of interleaved rotation.
func (c *Config) Interleaved(n Naming) bool {
	f := familyOf(c.Arch)
	return n == GGUF && f != nil && f.interleaved
}
