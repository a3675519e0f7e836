package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Format names the version of the figures file.
const Format = "lukv results 1"

// Figures are the results of all experiments. Scores, losses and ratios are
// fractions from 0 to 1.
type Figures struct {
	Format    string `json:"format"`
	Model     string `json:"model"`
	Precision string `json:"precision"`

	Test        Test        `json:"test"`
	Objectives  Comparison  `json:"objectives"`
	Metrics     Comparison  `json:"metrics"`
	Weights     Comparison  `json:"weights"`
	PerHead     Comparison  `json:"per_head"`
	Remedies    Comparison  `json:"remedies"`
	OneLayer    OneLayer    `json:"one_layer"`
	Development Development `json:"development"`
	Losses      Losses      `json:"losses"`
	Solver      Solver      `json:"solver"`
}

// Score is a mean over tasks with its 95 % interval.
type Score struct {
	Score float64 `json:"score"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Cell is the average of one metric at one ratio under one method: an
// allocator, or a way of making the profile.
type Cell struct {
	Metric string  `json:"metric"`
	Ratio  float64 `json:"ratio"`
	Method string  `json:"method"`
	Score
	Achieved   float64 `json:"ratio_achieved"` // the fraction removed
	CacheBytes int64   `json:"cache_bytes"`    // mean, page slack included
}

// Cells are found by metric, ratio and method.
type Cells []Cell

// at returns a cell, the zero cell if there is none.
func (cs Cells) at(metric string, ratio float64, method string) Cell {
	for _, c := range cs {
		if c.Metric == metric && c.Ratio == ratio && c.Method == method {
			return c
		}
	}
	return Cell{}
}

// metrics lists the metrics of the cells, in their order.
func (cs Cells) metrics() []string {
	var out []string
	for _, c := range cs {
		if !slices.Contains(out, c.Metric) {
			out = append(out, c.Metric)
		}
	}
	return out
}

// Test compares the allocators on the embedded samples.
type Test struct {
	Items     int    `json:"items"`
	Full      Score  `json:"full"`
	FullBytes int64  `json:"full_bytes"`
	Cells     Cells  `json:"cells"`
	Gains     []Gain `json:"gains"`
	Tasks     []Task `json:"tasks"` // at TaskRatio
}

// Comparison compares methods under several metrics and ratios. Gains are those of
// one method over others, item by item.
type Comparison struct {
	Items int    `json:"items"`
	Full  Score  `json:"full"`
	Cells Cells  `json:"cells"`
	Gains []Gain `json:"gains"`
	Tasks []Task `json:"tasks,omitempty"`
}

// Gain is the paired difference in score of one method minus another.
type Gain struct {
	Metric string  `json:"metric"`
	Ratio  float64 `json:"ratio"`
	Over   string  `json:"over"`
	Diff   float64 `json:"difference"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Task holds the scores of one task by metric, at one ratio, and method.
type Task struct {
	Task   string                        `json:"task"`
	Items  int                           `json:"items"`
	Full   float64                       `json:"full"`
	Scores map[string]map[string]float64 `json:"scores"`
}

// OneLayer is the cost of removing part of a single layer.
type OneLayer struct {
	Items  int                  `json:"items"`
	Ratio  float64              `json:"ratio"`
	Full   float64              `json:"full"`
	Scores map[string][]float64 `json:"scores"` // by metric, [layer]
}

// Development compares ways of making a profile. The method of a cell is
// "uniform" or the name of a variant.
type Development struct {
	Items int   `json:"items"`
	Full  Score `json:"full"`
	Cells Cells `json:"cells"`
}

// Losses says what fraction of the oracle importance the kept entries lack.
type Losses struct {
	Items int    `json:"items"`
	Cells []Loss `json:"cells"`
}

// Loss is the loss of one allocator, and that of the best choice of entries under the
// same budgets.
type Loss struct {
	Metric    string  `json:"metric"`
	Ratio     float64 `json:"ratio"`
	Allocator string  `json:"allocator"`
	Loss      float64 `json:"loss"`
	Oracle    float64 `json:"oracle"`
}

// Solver says how close solutions come to their lower bounds over all
// calibration questions, metrics and levels.
type Solver struct {
	Solutions int         `json:"solutions"`
	Exact     int         `json:"exact"`    // greedy, with a certificate of zero
	Improved  int         `json:"improved"` // by repair
	Worsened  int         `json:"worsened"`
	Levels    []SolverRow `json:"levels"`
}

// SolverRow sums the losses of one metric at one level; Ratio 0 means all
// levels together.
type SolverRow struct {
	Metric   string  `json:"metric"`
	Ratio    float64 `json:"ratio"`
	Bound    float64 `json:"bound"`
	Greedy   float64 `json:"greedy"`
	Repaired float64 `json:"repaired"`
}

// Read reads figures that were written as JSON.
func Read(r io.Reader) (*Figures, error) {
	f := new(Figures)
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(f); err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if f.Format != Format {
		return nil, fmt.Errorf("read results: found format %q, expected %q", f.Format, Format)
	}
	return f, nil
}
