package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/inputfile"
)

// maxResult bounds the size of a file of measurements.
const maxResult = 1 << 28

// Series are named samples, in the order in which they were added. The zero value is
// empty. Values with the same name are observations of the same thing.
type Series struct {
	names  []seriesName
	values map[seriesName][]float64
}

type seriesName struct{ name, unit string }

func (s *Series) add(name, unit string, x ...float64) {
	key := seriesName{name, unit}
	if s.values == nil {
		s.values = map[seriesName][]float64{}
	}
	if _, ok := s.values[key]; !ok {
		s.names = append(s.names, key)
	}
	s.values[key] = append(s.values[key], x...)
}

// Units of the series read from reports.
const (
	UnitSpeed    = "tok/s"
	UnitFraction = "of the machine" // read bandwidth in decode, compute peak in prefill
)

// ReadSeries reads the results of repeated runs of one program: reports of
// lukv bench --json, or output of go test -bench, told apart by their first
// byte. A single report gives one observation per repetition that was not
// disturbed (per repetition, if all were), and one per repetition of an
// accelerator's operations. If there are several, each report gives its medians,
// since repetitions within one run share its luck. Benchmark output gives one
// observation per line and unit.
func ReadSeries(paths []string) (*Series, error) {
	s := &Series{}
	for _, path := range paths {
		data, err := inputfile.Read(path, maxResult)
		if err != nil {
			return nil, fmt.Errorf("read measurements: %w", err)
		}
		if err := s.read(data, len(paths) > 1); err != nil {
			return nil, fmt.Errorf("read measurements %s: %w", path, err)
		}
	}
	if len(s.names) == 0 {
		return nil, fmt.Errorf("read measurements %s: found none", strings.Join(paths, ", "))
	}
	return s, nil
}

func (s *Series) read(data []byte, medians bool) error {
	if !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		return s.readGo(string(data))
	}
	var r Report
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if r.Format != Format {
		return fmt.Errorf("report: found format %q, expected %q", r.Format, Format)
	}
	for i := range r.Points {
		p := &r.Points[i]
		if p.Error != "" {
			continue
		}
		fraction := func(s Sample) float64 { return s.Compute }
		if p.Test == TestDecode {
			fraction = func(s Sample) float64 { return s.Read }
		}
		var speeds, fractions []float64
		for _, x := range p.Samples {
			if !x.Disturbed || p.Disturbed {
				speeds, fractions = append(speeds, x.Speed), append(fractions, fraction(x))
			}
		}
		if len(speeds) == 0 {
			continue
		}
		if medians {
			speeds, fractions = []float64{Median(speeds)}, []float64{Median(fractions)}
		}
		s.add(p.Key.String(), UnitSpeed, speeds...)
		s.add(p.Key.String(), UnitFraction, fractions...)
	}
	return nil
}

// readGo reads the lines of go test -bench: "BenchmarkName-8  100  123 ns/op  …".
func (s *Series) readGo(text string) error {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 4 || len(f)%2 != 0 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		if _, err := strconv.Atoi(f[1]); err != nil {
			continue
		}
		for i := 2; i < len(f); i += 2 {
			x, err := strconv.ParseFloat(f[i], 64)
			if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("benchmark line %q: found %q, expected a number", strings.TrimSpace(line), f[i])
			}
			s.add(f[0], f[i+1], x)
		}
	}
	return nil
}

// Difference is one line of a comparison.
type Difference struct {
	Name        string  `json:"name"`
	Unit        string  `json:"unit"`
	Old         float64 `json:"old"` // medians
	New         float64 `json:"new"`
	OldN        int     `json:"old_observations"`
	NewN        int     `json:"new_observations"`
	Change      float64 `json:"change"` // New/Old - 1, 0 if Old is 0
	P           float64 `json:"p"`      // of the Mann-Whitney U test, two-sided
	Significant bool    `json:"significant"`
}

// Alpha is the p-value below which a difference counts as significant.
const Alpha = 0.05

// Compare tests the samples that both series have, in the order of the old one.
// It is an error if they have none in common.
func Compare(old, new *Series) ([]Difference, error) {
	var out []Difference
	for _, key := range old.names {
		a, b := old.values[key], new.values[key]
		if len(b) == 0 {
			continue
		}
		d := Difference{
			Name: key.name, Unit: key.unit, Old: Median(a), New: Median(b), OldN: len(a), NewN: len(b),
			P: MannWhitney(a, b),
		}
		if d.Old != 0 {
			d.Change = d.New/d.Old - 1
		}
		d.Significant = d.P < Alpha
		out = append(out, d)
	}
	if len(out) == 0 {
		return nil, errors.New("compare: the measurements have no point in common")
	}
	return out, nil
}

// WriteDifferences writes a comparison as a table. Changes that are not
// significant are marked with a tilde.
func WriteDifferences(w io.Writer, list []Difference) error {
	rows := [][]string{{"", "unit", "old", "new", "change", "p", "n"}}
	tooFew := false
	for _, d := range list {
		change := fmt.Sprintf("%+.1f%%", 100*d.Change)
		if !d.Significant {
			change = "~ (" + change + ")"
		}
		rows = append(rows, []string{
			d.Name, d.Unit, strconv.FormatFloat(d.Old, 'g', 4, 64), strconv.FormatFloat(d.New, 'g', 4, 64),
			change, strconv.FormatFloat(d.P, 'f', 3, 64), fmt.Sprintf("%d+%d", d.OldN, d.NewN),
		})
		tooFew = tooFew || smallestP(d.OldN, d.NewN) >= Alpha
	}
	var b strings.Builder
	writeAligned(&b, rows, func(i int) bool { return i >= 2 })
	if tooFew {
		fmt.Fprintf(&b, "too few observations for any difference to reach p < %g in some lines: 4 on each side are the least\n", Alpha)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// smallestP returns the p-value of samples that do not overlap at all.
func smallestP(n1, n2 int) float64 {
	a, b := make([]float64, n1), make([]float64, n2)
	for i := range b {
		b[i] = float64(1 + i)
	}
	for i := range a {
		a[i] = -float64(1 + i)
	}
	return MannWhitney(a, b)
}
