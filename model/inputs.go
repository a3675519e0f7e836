package model

import "github.com/lukv/lukv/model/arch"

// WithInputs calls see with the inputs of the matrices of layers, one row at a time: x, [columns], is
// what a token's product with the matrix of the role in the layer reads, and see must not
// keep it. Matrices that read the same are told once: arch.RoleQ stands for queries, keys
// and values, arch.RoleGate for all that read the norm before a feed-forward unit, experts
// included, and arch.RoleExpertDown for the last matrices of all experts but the shared one.
//
// It is for calibration, and needs PrecisionF32 and the processor. Passes of sessions that
// work at the same time call see at the same time.
func WithInputs(see func(layer int, role arch.Role, x []float32)) Option {
	return func(o *options) { o.inputs = see }
}
