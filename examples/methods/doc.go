// Package methods shows how another module can provide its own metrics and
// allocators: each is a struct of parameters with two or three methods, registered
// under a name. A blank import makes them available to policies, profiles, sessions,
// evaluation and a command that imports it, see cmd/mylukv:
//
//	import (
//		"github.com/lukv/lukv/command"
//
//		_ "github.com/lukv/lukv/examples/methods"
//	)
//
//	func main() { command.Main() }
//
// Then mylukv eval --metric value_norm and --allocator '{"name":"tilted","tilt":0.5}' work
// like the built-in names.
package methods

import "github.com/lukv/lukv/lukv"

func init() {
	keydiff, err := lukv.NewMetric(lukv.MetricConfig{Name: "keydiff"})
	if err != nil {
		panic(err)
	}
	uniform, err := lukv.NewAllocator(lukv.AllocatorConfig{Name: "uniform"}, nil)
	if err != nil {
		panic(err)
	}
	lukv.RegisterMetric("value_norm", valueNorm{Sinks: 4})
	lukv.RegisterMetric("key_change", keyChange{})
	lukv.RegisterMetric("chunks", chunks{Metric: lukv.InnerMetric{Metric: keydiff}, Size: 8})
	lukv.RegisterAllocator("tilted", tilted{Tilt: 0.25})
	lukv.RegisterAllocator("at_least", atLeast{Allocator: lukv.InnerAllocator{Allocator: uniform}, Entries: 16})
}
