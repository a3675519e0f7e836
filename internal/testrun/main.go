// Command testrun runs "go test" and lists at the end the checks made and the tests
// skipped, with the reasons.
//
//	go run ./internal/testrun [flags of go test] ./...
//
// Packages are reported as by go test, a line each, with the output of what
// failed. The exit status is 0 only if all tests passed.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
)

func main() {
	verbose := slices.Contains(os.Args[1:], "-v")
	command := exec.Command("go", append([]string{"test", "-json"}, os.Args[1:]...)...)
	command.Stderr = os.Stderr
	events, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun: starting go test:", err)
		os.Exit(1)
	}
	s := newSummary(os.Stdout, verbose)
	reading := s.read(events)
	err = command.Wait()
	s.close()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil || reading != nil:
		fmt.Fprintln(os.Stderr, "testrun:", errors.Join(err, reading))
		os.Exit(1)
	}
}

// read consumes the events of go test until they end. A line that is not an event
// is printed as is.
func (s *summary) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				s.add(e)
			} else {
				s.out.Write(line)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
