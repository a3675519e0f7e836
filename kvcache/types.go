package kvcache

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/lukv/lukv/tensor"
)

// namedTypes are the types of keys and values that have a name, from the widest to the narrowest.
var namedTypes = []struct {
	name         string
	keys, values tensor.Type
}{
	{"f32", tensor.F32, tensor.F32}, {"f16", tensor.F16, tensor.F16}, {"bf16", tensor.BF16, tensor.BF16},
	{"int8", tensor.I8, tensor.I8}, {"k8v4", tensor.I8, tensor.Q4_0}, {"int4", tensor.Q4_0, tensor.Q4_0},
}

// ParseType returns the types of keys and values, Options.Type and Options.Values, of a cache
// type: f32, f16, bf16, int8, k8v4 (keys of 8 bits, values of 4) or int4.
func ParseType(name string) (keys, values tensor.Type, err error) {
	var names []string
	for _, t := range namedTypes {
		if t.name == name {
			return t.keys, t.values, nil
		}
		names = append(names, t.name)
	}
	last := len(names) - 1
	return 0, 0, fmt.Errorf("cache type %.20q, expected %s or %s", name, strings.Join(names[:last], ", "), names[last])
}

// TypeName returns the name of a cache type; values may be 0 for those of keys.
func TypeName(keys, values tensor.Type) string {
	values = cmp.Or(values, keys)
	for _, t := range namedTypes {
		if t.keys == keys && t.values == values {
			return t.name
		}
	}
	return fmt.Sprintf("keys %v, values %v", keys, values)
}

// Validate returns the error that New would return for the options.
func (o Options) Validate() error {
	_, err := o.withDefaults()
	return err
}
