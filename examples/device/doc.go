// Package device is a complete driver for lukv in host memory: it passes package
// kernels/conformance and runs every model. Start from it when you write a driver for new
// hardware, and replace one part after the other. Three files make a driver:
//
//   - device.go: memory, and the operations that an encoder records, each a loop over rows;
//   - pages.go: pages of caches, with counts of their holders;
//   - attention.go: attention over pages.
//
// Two are optional. Without them the suite tests the rest, models with experts are refused,
// and the host computes metrics:
//
//   - experts.go: operations of mixtures of experts (kernels.ExpertEncoder);
//   - reductions.go: what metrics are made of (kernels.Reducer and kernels.StatisticsEncoder).
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
