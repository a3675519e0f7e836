package weights

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unsafe"

	"github.com/lukv/lukv/internal/workers"
	"github.com/lukv/lukv/tensor"
)

// If a file of weights becomes shorter while it is mapped, reads fault. Goroutines
// that read weights turn faults into panics (those of the pool always do), and their
// callers turn such a panic into an error.

// Reading runs fn, which reads weights, and returns ErrChanged if a file of them
// became shorter.
func (w *Weights) Reading(fn func() error) (err error) {
	was := debug.SetPanicOnFault(true)
	defer func() { w.EndReading(was, recover(), &err) }()
	return fn()
}

// guardFaults runs fn, which reads a file that is being loaded, and returns
// ErrChanged if the file became shorter.
func guardFaults(fn func()) (err error) {
	was := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(was)
		if p := recover(); p != nil {
			if _, ok := p.(interface{ Addr() uintptr }); !ok {
				panic(p)
			}
			err = ErrChanged
		}
	}()
	fn()
	return nil
}

// EndReading restores the SetPanicOnFault setting and turns what was recovered into
// an error if it is a fault in the weights; other panics continue.
func (w *Weights) EndReading(was bool, recovered any, err *error) {
	debug.SetPanicOnFault(was)
	if recovered == nil {
		return
	}
	cause := recovered
	if p, ok := cause.(*workers.Panic); ok {
		cause = p.Value
	}
	if fault, ok := cause.(interface{ Addr() uintptr }); ok {
		if name := w.at(fault.Addr()); name != "" {
			*err = fmt.Errorf("read tensor %q: %w", name, ErrChanged)
			return
		}
	}
	panic(recovered)
}

// ErrChanged says that a file of weights became shorter while in use. Close
// the model and open it again.
var ErrChanged = errors.New("the weights' file changed while it was in use")

// at returns the name of the tensor at an address, "" if there is none.
func (w *Weights) at(addr uintptr) (name string) {
	w.Each(func(n string, t tensor.Tensor) {
		if from := uintptr(unsafe.Pointer(unsafe.SliceData(t.Data))); addr >= from && addr-from < uintptr(len(t.Data)) {
			name = n
		}
	})
	return name
}
