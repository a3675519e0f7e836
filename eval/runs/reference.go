package runs

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/lukv/lukv/eval"
)

// Reference is a published table of scores.
type Reference struct {
	rows []referenceRow
}

type referenceRow struct {
	model, metric, allocator string
	ratio                    float64
	scores                   map[string]float64 // by column, in percent
}

// alias maps names in published tables to our names.
var alias = map[string]string{
	"pyramid": "pyramidkv", "ada": "adakv", "ea": "expected_attention", "avg": eval.Average,
}

func nameOf(s string) string {
	if a, ok := alias[s]; ok {
		return a
	}
	return s
}

// ReadReference reads a table as CSV with the columns model, allocator, metric,
// ratio and one per task or category; allocator full is the full cache. A column
// variant may mark rows of other variants of LU-KV ("without_gap"); these are left
// out. name appears in errors.
func ReadReference(r io.Reader, name string) (*Reference, error) {
	ref, err := readReference(r)
	if err != nil {
		return nil, fmt.Errorf("read reference %s: %w", name, err)
	}
	return ref, nil
}

func readReference(r io.Reader) (*Reference, error) {
	records, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) < 2 {
		return nil, fmt.Errorf("found %d lines, expected a header and rows", len(records))
	}
	at := map[string]int{}
	for i, h := range records[0] {
		at[h] = i
	}
	for _, need := range []string{"model", "allocator", "metric", "ratio"} {
		if _, ok := at[need]; !ok {
			return nil, fmt.Errorf("no column %s: expected model, allocator, metric, ratio and scores", need)
		}
	}
	ref := &Reference{}
	for n, rec := range records[1:] {
		if i, ok := at["variant"]; ok && rec[i] != "" && rec[i] != "with_gap" {
			continue
		}
		ratio, err := strconv.ParseFloat(rec[at["ratio"]], 64)
		if err != nil {
			return nil, fmt.Errorf("row %d: ratio %q", n+1, rec[at["ratio"]])
		}
		row := referenceRow{model: rec[at["model"]], metric: nameOf(rec[at["metric"]]), allocator: nameOf(rec[at["allocator"]]), ratio: ratio, scores: map[string]float64{}}
		for name, i := range at {
			if slices.Contains([]string{"model", "allocator", "metric", "ratio", "variant"}, name) || rec[i] == "" {
				continue
			}
			x, err := strconv.ParseFloat(rec[i], 64)
			if err != nil {
				return nil, fmt.Errorf("row %d: %s is %q, expected a number", n+1, name, rec[i])
			}
			row.scores[nameOf(name)] = x
		}
		ref.rows = append(ref.rows, row)
	}
	return ref, nil
}

// refer puts published rows after ours.
func (t *Table) refer(ref *Reference, model string) error {
	if t.By == ByRatio {
		return fmt.Errorf("report: a reference has columns by task or category, not by ratio")
	}
	var rows []Row
	found := 0
	for i, r := range t.Rows {
		rows = append(rows, r)
		next := i+1 < len(t.Rows) && t.Rows[i+1].Metric == r.Metric && t.Rows[i+1].Allocator == r.Allocator && t.Rows[i+1].Ratio == r.Ratio
		if next { // the same method in the next run; once is enough
			continue
		}
		for _, x := range ref.rows {
			full := x.allocator == "full" && r.Metric == "" && r.Ratio == 0
			if !full && (x.metric != r.Metric || x.allocator != r.Allocator || x.ratio != r.Ratio) || model != "" && x.model != model {
				continue
			}
			row := Row{Model: x.model, Metric: r.Metric, Allocator: r.Allocator, Ratio: x.ratio, Cells: make([]*Cell, len(t.Columns))}
			for k, c := range t.Columns {
				if score, ok := x.scores[c.Name]; ok {
					row.Cells[k] = &Cell{Percent: score}
					found++
				}
			}
			rows = append(rows, row)
		}
	}
	if found == 0 {
		return fmt.Errorf("report: the reference has no row and column of this table")
	}
	t.Rows = rows
	t.Notes = append(t.Notes, "Rows with a model are published figures, of other models and data.")
	return nil
}
