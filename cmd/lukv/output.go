package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/report"
)

// writeTo writes an output that is named on the command line: - is standard
// output. A file appears when it is complete.
func (e *env) writeTo(path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(e.out)
	}
	return atomicfile.Write(path, 0o644, write)
}

// writeJSON prints an object, with its format (docs/json.md) in front.
func (e *env) writeJSON(format string, object any) error {
	var b bytes.Buffer
	if err := report.WriteJSON(&b, object); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.out, "{\n  \"format\": %q,%s", format, bytes.TrimPrefix(b.Bytes(), []byte("{")))
	return err
}
