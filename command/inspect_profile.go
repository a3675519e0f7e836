package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
)

// profileInfo is printed by inspect --json for a profile.
type profileInfo struct {
	Format     string                `json:"format"`
	Kind       string                `json:"kind"` // "profile"
	Path       string                `json:"path"`
	Digest     string                `json:"digest"`
	Identity   *lukv.ProfileIdentity `json:"identity,omitempty"` // absent for a .npy file
	Layers     int                   `json:"layers"`
	KVHeads    int                   `json:"kv_heads"`
	Excluded   []int                 `json:"excluded_layers,omitempty"`
	Pairs      int                   `json:"pairs"`
	MinContext int                   `json:"min_context"`
	MaxContext int                   `json:"max_context"`
	Levels     []levelInfo           `json:"levels"`
	HeatMap    lukv.HeatMap          `json:"heat_map"`

	lukv.CalibrationData
	OutputErrors *lukv.OutputErrors `json:"output_errors,omitempty"`
	LossMap      *lukv.LossMap      `json:"loss_map,omitempty"`
}

type levelInfo struct {
	Ratio float64 `json:"ratio"`
	Mean  float64 `json:"mean"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
}

// profile shows a profile, or the progress of an unfinished one.
func (c *inspectCmd) profile(e *env) error {
	data, err := inputfile.Read(c.Path, maxInput)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	var kind struct {
		Format   string               `json:"format"`
		Pairs    int                  `json:"pairs"`
		Identity lukv.ProfileIdentity `json:"identity"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return fmt.Errorf("inspect %s: %w, expected a profile", c.Path, err)
	}
	if kind.Format == "lukv profile state" {
		if err := e.given.unused(profileFlags+" tensors verify positions", c.Path+" is an unfinished profile, without ratios"); err != nil {
			return err
		}
		if c.JSON {
			return report.WriteJSON(e.out, map[string]any{"format": inspectFormat, "kind": "profile state", "path": c.Path, "pairs": kind.Pairs, "identity": kind.Identity})
		}
		fmt.Fprintf(e.out, "unfinished profile %s: %s done, metric %s\n", c.Path, report.Count(kind.Pairs, "question"), metricName(kind.Identity.Metric))
		return nil
	}
	p, err := lukv.ReadProfile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("inspect %s: %w", c.Path, err)
	}
	return c.showProfile(e, p, &p.Identity)
}

// ratios shows a .npy file.
func (c *inspectCmd) ratios(e *env) error {
	f, err := inputfile.Open(c.Path)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	defer f.Close()
	p, err := lukv.ReadProfileNPY(f, lukv.DefaultProfileIdentity())
	if err != nil {
		return fmt.Errorf("inspect %s: %w", c.Path, err)
	}
	return c.showProfile(e, p, nil)
}

func (c *inspectCmd) showProfile(e *env, p *lukv.Profile, id *lukv.ProfileIdentity) error {
	if err := e.given.unused("tensors verify positions", c.Path+" is a profile"); err != nil {
		return err
	}
	digest, err := p.Digest()
	if err != nil {
		return err
	}
	info := profileInfo{
		Format: inspectFormat, Kind: "profile", Path: c.Path, Digest: digest, Identity: id, Layers: p.Layers(), KVHeads: p.KVHeads(),
		Excluded: p.Excluded, Pairs: p.Pairs, MinContext: p.MinContext, MaxContext: p.MaxContext,
		HeatMap: p.HeatMap(c.Ratio, c.Nearest), CalibrationData: p.CalibrationData, OutputErrors: p.OutputErrors, LossMap: p.LossMap,
	}
	for i := range solve.Levels {
		ratio := float64(i+1) / 100
		h := p.HeatMap(ratio, true)
		info.Levels = append(info.Levels, levelInfo{ratio, h.Mean, h.Min, h.Max})
	}
	if done, err := c.instead(e, info.picture(), info); done || err != nil {
		return err
	}
	t := newTable(e.out)
	t.line("profile", "%s", c.Path)
	t.line("shape", "%d layers of %d KV heads", info.Layers, info.KVHeads)
	if id != nil {
		t.line("digest", "%s", digest)
		writeIdentity(t, id)
	}
	if info.Pairs > 0 {
		t.line("measured on", "%s about contexts of %d to %d tokens", report.Count(info.Pairs, "question"), info.MinContext, info.MaxContext)
	}
	if info.LossMap != nil {
		writeLossMap(t, info.LossMap)
	}
	if c := info.QueryCenters; c != nil {
		t.line("query centres", "%d layers of %d query heads; the mean query is %.0f %% as long as queries are on average", len(c), len(c[0]), 100*lukv.Concentration(c))
	}
	if r := info.Rankings; r != nil {
		t.line("rankings", "%d layers of %d KV heads: %d weights each and a constant", len(r), len(r[0]), 2*len(r[0][0].Key)+2)
	}
	if len(info.Excluded) > 0 {
		t.line("excluded", "layers %v (sliding windows)", info.Excluded)
	}
	if err := t.w.Flush(); err != nil {
		return err
	}
	if info.OutputErrors != nil {
		if err := info.writeOutputErrors(e.out); err != nil {
			return err
		}
	}
	h := info.HeatMap
	fmt.Fprintf(e.out, "\npercent removed per head at ratio %g: mean %.1f, least %.1f, most %.1f\n", h.Ratio, 100*h.Mean, 100*h.Min, 100*h.Max)
	return report.HeatMap{Values: h.Ratios}.WriteText(raw(e.out), e.colors())
}

// errorColumns are the fractions kept for which inspect shows the errors of a layer.
var errorColumns = []float64{0.05, 0.1, 0.2, 0.5}

// writeOutputErrors prints a table of the layers: their weights, their measured
// effects, and the summed errors of their heads.
func (info *profileInfo) writeOutputErrors(w io.Writer) error {
	o, kind := info.OutputErrors, info.Identity.Weights
	fmt.Fprintf(w, "\noutput errors per answer step (%d steps), by fraction kept; effects in nats\n", o.AnswerSteps)
	header := []string{"layer", "weight"}
	switch kind.Kind {
	case lukv.WeightsCut:
		header = append(header, "effect")
	case lukv.WeightsSpan:
		for _, ratio := range kind.Ratios {
			header = append(header, fmt.Sprintf("effect at %g", ratio))
		}
	}
	columns := []int{0} // of the grid
	header = append(header, fmt.Sprintf("%.4f", o.Grid[0]))
	for _, x := range errorColumns {
		if i := slices.Index(o.Grid, x); i > 0 {
			columns, header = append(columns, i), append(header, fmt.Sprint(x))
		}
	}
	t := report.Table{}
	for i := range header {
		t.Right = append(t.Right, i)
	}
	t.Row(header...)
	for l := range info.Layers {
		if slices.Contains(info.Excluded, l) {
			continue
		}
		row := []string{fmt.Sprint(l), fmt.Sprintf("%.4f", o.LayerWeights[l])}
		if len(o.Effects) > 0 {
			for _, effect := range o.Effects[l] {
				row = append(row, fmt.Sprintf("%.4g", effect))
			}
		}
		for _, i := range columns {
			sum := 0.0
			for _, head := range o.Error[l*info.KVHeads : (l+1)*info.KVHeads] {
				sum += head[i]
			}
			row = append(row, fmt.Sprintf("%.4g", sum))
		}
		t.Row(row...)
	}
	return t.Write(w, report.NoColors)
}

// writeIdentity prints a profile's identity.
func writeIdentity(t table, id *lukv.ProfileIdentity) {
	t.line("model", "%s", id.Model)
	t.line("metric", "%s", id.Metric)
	t.line("protection", "%d sinks, window of %d", id.Protection.Sinks, id.Protection.Window)
	t.line("made with", "normalization %s, objective %s, scope %s, solver %s, min retention %g, %d steps",
		id.Normalization, id.Objective, id.Scope, id.Solver, id.MinRetention, id.MaxSteps)
	if w := id.Weights; w != nil {
		what := w.Kind
		if w.Kind != lukv.WeightsNone {
			what = fmt.Sprintf("%s, power %g, floor %g", w.Kind, w.Power, w.Floor)
		}
		t.line("layer weights", "%s", what)
	}
	t.line("calibration", "%s", id.Calibration)
}

// picture returns the heat map of a profile.
func (info *profileInfo) picture() report.HeatMap {
	subtitle := fmt.Sprintf("%d layers of %d KV heads", info.Layers, info.KVHeads)
	if id := info.Identity; id != nil {
		subtitle = fmt.Sprintf("model %s, metric %s, %s, normalization %s, %s",
			clip(id.Model, 20), id.Metric.Name, report.Count(info.Pairs, "question"), id.Normalization, id.Objective)
	}
	return report.HeatMap{
		Title:    fmt.Sprintf("Percent removed per head at ratio %g", info.HeatMap.Ratio),
		Subtitle: subtitle, Values: info.HeatMap.Ratios,
	}
}
