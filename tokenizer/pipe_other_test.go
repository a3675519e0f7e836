//go:build !unix

package tokenizer

import "errors"

func makePipe(string) error { return errors.ErrUnsupported }
