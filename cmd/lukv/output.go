package main

import (
	"io"

	"github.com/lukv/lukv/internal/atomicfile"
)

// writeTo writes an output that is named on the command line: - is standard
// output. A file appears when it is complete.
func (e *env) writeTo(path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(e.out)
	}
	return atomicfile.Write(path, 0o644, write)
}
