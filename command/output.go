package command

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/report"
)

// writeTo writes an output named on the command line; - is standard output. A
// file appears only once it is complete.
func (e *env) writeTo(path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(e.out)
	}
	return atomicfile.Write(path, 0o644, write)
}

// An outputter is a command that works long before it writes to the files that its flags
// name; "" and - mean none.
type outputter interface{ outputs() []string }

// checkOutputs returns an error if one of the files could not be written, before the work
// whose result would then be lost.
func checkOutputs(paths []string) error {
	for _, path := range paths {
		if path == "" || path == "-" {
			continue
		}
		if err := atomicfile.Check(path); err != nil {
			return err
		}
	}
	return nil
}

// statePath returns the name of the file that keeps the unfinished work of an output,
// "" if the output is standard output or exists and is not a regular file.
func statePath(output string) string {
	if info, err := os.Stat(output); output == "-" || err == nil && !info.Mode().IsRegular() {
		return ""
	}
	return output + ".state"
}

// removeState removes the file of unfinished work, if there is one.
func removeState(path string) error {
	if err := os.Remove(path); path != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state: %w", err)
	}
	return nil
}

// writeJSON prints an object with its format (docs/json.md) as the first field.
func (e *env) writeJSON(format string, object any) error {
	var b bytes.Buffer
	if err := report.WriteJSON(&b, object); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.out, "{\n  \"format\": %q,%s", format, bytes.TrimPrefix(b.Bytes(), []byte("{")))
	return err
}
