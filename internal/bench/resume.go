package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
)

// ReadReport reads the report in a JSON file, nil if the file does not exist.
func ReadReport(path string) (*Report, error) {
	data, err := inputfile.Read(path, maxResult)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read measurements: %w", err)
	}
	r := &Report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read measurements %q: %w", path, err)
	}
	if r.Format != Format {
		return nil, fmt.Errorf("read measurements %q: found the format %q, expected %q", path, r.Format, Format)
	}
	return r, nil
}

// WriteFile writes the report as JSON to a file. If that fails, the file is unchanged.
func (r *Report) WriteFile(path string) error {
	return atomicfile.Write(path, 0o666, func(w io.Writer) error { return report.WriteJSON(w, r) })
}

// resume takes over the measurements of an earlier run on the same machine.
func (r *runner) resume(old *Report) error {
	if old == nil {
		return nil
	}
	a, b := &old.Machine, &r.report.Machine
	for _, c := range []struct{ what, found, expected string }{
		{"processor", fmt.Sprintf("%s (family %d, model %d)", a.CPU, a.Family, a.Model), fmt.Sprintf("%s (family %d, model %d)", b.CPU, b.Family, b.Model)},
		{"number of processors", fmt.Sprint(a.Processors), fmt.Sprint(b.Processors)},
		{"system", a.System, b.System},
		{"program", old.Version + " " + old.Revision, r.o.Version + " " + r.o.Revision},
	} {
		if c.found != c.expected {
			return fmt.Errorf("resume earlier measurements: %s: found %s, expected %s", c.what, c.found, c.expected)
		}
	}
	r.report.Started = old.Started
	for _, p := range old.Points {
		if p.Error == "" {
			r.report.Points = append(r.report.Points, p)
			r.seen[p.Key] = true
		}
	}
	return nil
}

// save passes the report so far to Options.Save.
func (r *runner) save() error {
	if r.o.Save == nil {
		return nil
	}
	return r.o.Save(r.report)
}
