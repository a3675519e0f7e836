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

// elementType describes a type of keys or values.
type elementType struct {
	typ   tensor.Type
	saved tensor.Type // of its tensors in files
	whole int         // head dimensions are multiples of it
	host  bool        // whether no device holds it
}

var elements = []elementType{
	{typ: tensor.F32, saved: tensor.F32, whole: 1}, {typ: tensor.F16, saved: tensor.F16, whole: 1}, {typ: tensor.BF16, saved: tensor.BF16, whole: 1},
	{typ: tensor.I8, saved: tensor.I8, whole: 1}, {typ: tensor.Q4_0, saved: tensor.U8, whole: 32, host: true},
}

// elementOf returns what describes a type, nil if caches cannot hold it.
func elementOf(t tensor.Type) *elementType {
	for i := range elements {
		if elements[i].typ == t {
			return &elements[i]
		}
	}
	return nil
}

// typeOfSaved returns the type of entries in a tensor of the given type.
func typeOfSaved(saved tensor.Type) tensor.Type {
	for _, e := range elements {
		if e.saved == saved {
			return e.typ
		}
	}
	return saved
}

// TypeNames returns the names of cache types, from the widest to the narrowest.
func TypeNames() (names []string) {
	for _, t := range namedTypes {
		names = append(names, t.name)
	}
	return names
}

// ParseType returns the types of keys and values, Options.Type and Options.Values, of a cache
// type, one of [TypeNames]. In k8v4 keys have 8 bits and values 4.
func ParseType(name string) (keys, values tensor.Type, err error) {
	for _, t := range namedTypes {
		if t.name == name {
			return t.keys, t.values, nil
		}
	}
	names, last := TypeNames(), len(namedTypes)-1
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
