// Package device is a complete driver for lukv in host memory: the smallest thing that
// package kernels/conformance accepts and that runs every model. Start from it when you
// write a driver for new hardware, and replace one part after the other:
//
//   - device.go: memory, and the operations that an encoder records, each a loop over rows;
//   - experts.go: operations of mixtures of experts;
//   - pages.go: pages of caches, with counts of their holders;
//   - attention.go: attention over pages, and the reductions that metrics are made of.
//
// Arithmetic is that of the kernels.CPU that New is given, row by row, so results have the
// bits of the processor, and running the conformance suite on it checks an instruction set.
// Misuse that a real device would not notice, such as writing to a page with two holders,
// panics.
//
// A blank import makes the driver available as "example":
//
//	import _ "github.com/lukv/lukv/examples/device"
//
//	m, err := model.Open(ctx, path, model.WithDevice("example"))
package device
