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
	for i := range s.int8 {
		if r := &s.int8[i]; r.mem != nil {
			r.mem = r.mem[row*r.stride:]
		}
	}
	return s
}

// Float32s returns the first n columns of a row as they were set. The operand must have the form
// FormF32.
func (o *Operand) Float32s(row, n int) []float32 { return o.f32[row*o.stride:][:n] }

// CopyRow sets the first n columns of row dst of o to those of row src of x, which has the
// forms of o. In the integer forms, row src has exactly n columns.
func (o *Operand) CopyRow(dst int, x *Operand, src, n int) {
	if o.f32 != nil {
		copy(o.f32[dst*o.stride:][:n], x.f32[src*x.stride:][:n])
	}
	if o.bf16 != nil {
		copy(o.bf16[dst*o.stride:][:n], x.bf16[src*x.stride:][:n])
	}
	for i := range o.int8 {
		if to, from := &o.int8[i], &x.int8[i]; to.mem != nil {
			to.copyRow(dst, from, src)
		}
	}
}

// copyRow sets a row to one of x, which may have another number of columns: those that both
// have are copied, and others are zeros in either.
func (r *int8Rows) copyRow(dst int, x *int8Rows, src int) {
	to, from := r.row(dst), x.row(src)
	n := copy(to.q, from.q)
	clear(to.q[n:])
	clear(to.scale[copy(to.scale, from.scale):])
	clear(to.less32[copy(to.less32, from.less32):])
	clear(to.less16[copy(to.less16, from.less16):])
	clear(to.sums32[copy(to.sums32, from.sums32):])
	clear(to.sums16[copy(to.sums16, from.sums16):])
	clear(to.less8[copy(to.less8, from.less8):])
}
