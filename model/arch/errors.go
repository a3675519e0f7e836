package arch

import "errors"

// ErrUnsupported says that a checkpoint is of a kind that this package cannot
// run: its architecture, activation, rope scaling or quantization is unknown.
var ErrUnsupported = errors.New("not supported")

// Unsupported returns an error with the text of err that is ErrUnsupported.
func Unsupported(err error) error { return unsupportedError{err} }

// unsupportedError is an ErrUnsupported with the text of another error.
type unsupportedError struct{ error }

func (unsupportedError) Is(target error) bool { return target == ErrUnsupported }
