package kernels

// From returns the rows of o from the given one on, in the same memory.
func (o *Operand) From(row int) Operand {
	s := *o
	if s.f32 != nil {
		s.f32 = s.f32[row*s.stride:]
	}
	if s.bf16 != nil {
		s.bf16 = s.bf16[row*s.stride:]
	}
	return s
}

// CopyRow sets the first n columns of row dst of o to those of row src of x, which has the
// forms of o.
func (o *Operand) CopyRow(dst int, x *Operand, src, n int) {
	if o.f32 != nil {
		copy(o.f32[dst*o.stride:][:n], x.f32[src*x.stride:][:n])
	}
	if o.bf16 != nil {
		copy(o.bf16[dst*o.stride:][:n], x.bf16[src*x.stride:][:n])
	}
}
