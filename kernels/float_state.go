//go:build !purego && (amd64 || arm64)

package kernels

import "runtime"

// floatState returns the register of the thread that says how floats are rounded and whether
// subnormal ones become zero (MXCSR, FPCR); setFloatState sets it.
func floatState() uint32
func setFloatState(state uint32)

// tileDot computes one block of a product of bf16 with bf16. Its routines make zeros of
// subnormal numbers, which is a state of the thread, and end it before they return. A fault, as
// when the file of the weights becomes shorter, leaves them in the middle: the state is then put
// back here, before anything else can run on the thread.
func (c CPU) tileDot(a *tile) {
	runtime.LockOSThread()
	state, done := floatState(), false
	defer func() {
		if !done {
			setFloatState(state)
		}
		runtime.UnlockOSThread()
	}()
	c.tileFlushing(a)
	done = true
}
