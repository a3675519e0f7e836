package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/lukv/lukv/hub"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

type inspectCmd struct {
	Path      string  `arg:"" help:"Checkpoint folder, hub name in the cache or builtin, profile (.npy too), saved session, trace, or safetensors file."`
	Ratio     float64 `default:"0.8" placeholder:"R" help:"Profile: overall ratio of the heat map (default ${default})."`
	SVG       string  `name:"svg" placeholder:"FILE" help:"Profile, saved session or trace: write the heat map as SVG; - is standard output, instead of anything else."`
	Nearest   bool    `help:"Profile: the nearest level instead of interpolating."`
	Tensors   bool    `help:"Checkpoint: list all tensors."`
	Positions bool    `help:"Saved session or trace: list the positions that each head holds or kept; the text shows the first ones, --json all."`
	Verify    bool    `help:"Checkpoint: read all weights and print their digest. The identity knows a sample of each tensor only."`
	JSON      bool    `help:"One JSON object."`
}

func (inspectCmd) Help() string {
	return `The kind of thing is found by its content. A checkpoint is checked as run would check it; a saved session is read as a whole and its checksum verified.

Examples:

  lukv inspect DIR --tensors

  lukv inspect snapkv.profile --ratio 0.9 --svg snapkv.svg

  lukv inspect book.session --json

  lukv inspect book.trace --positions`
}

func (c *inspectCmd) unused(g given) error {
	if c.SVG == "-" {
		return g.unused("json", "the picture goes to standard output instead of anything else")
	}
	return nil
}

func (c *inspectCmd) Run(e *env) error {
	if !(c.Ratio >= 0 && c.Ratio < 1) {
		return usage("--ratio: found %v, expected at least 0 and below 1", c.Ratio)
	}
	if c.Path == builtin.Name {
		return c.checkpoint(e)
	}
	info, err := os.Stat(c.Path)
	if _, notName := hub.ParseRef(c.Path); errors.Is(err, fs.ErrNotExist) && notName == nil {
		if c.Path, err = resolveModel(c.Path); err != nil {
			return err
		}
		return c.checkpoint(e)
	}
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if info.IsDir() {
		return c.checkpoint(e)
	}
	head, err := readHead(c.Path)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	switch {
	case bytes.HasPrefix(head, []byte("\x93NUMPY")):
		return c.ratios(e)
	case bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")):
		return c.profile(e)
	case len(head) > 8 && head[8] == '{':
		return c.tensorFile(e)
	}
	return fmt.Errorf("inspect %s: neither a checkpoint nor a profile nor a saved session", c.Path)
}

// picture writes a heat map if one was asked for, and reports whether that is
// all that standard output shall show.
func (c *inspectCmd) picture(e *env, h report.HeatMap) (done bool, err error) {
	if c.SVG == "" {
		return false, nil
	}
	h.Command = e.commandLine()
	if err := e.writeTo(c.SVG, h.WriteSVG); err != nil {
		return false, fmt.Errorf("write heat map: %w", err)
	}
	return c.SVG == "-", nil
}

func readHead(path string) ([]byte, error) {
	f, err := inputfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, 64)
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return head[:n], err
}

// Flags about ratios per head.
const profileFlags = "ratio svg nearest"

// table prints name and value columns.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) table { return table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (t table) line(name, format string, args ...any) {
	fmt.Fprintf(t.w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
}

// inspectFormat names the version of what inspect --json prints.
const inspectFormat = "lukv inspect 1"

// checkpointInfo is what inspect --json prints of a checkpoint.
type checkpointInfo struct {
	Format     string         `json:"format"`
	Kind       string         `json:"kind"` // "checkpoint"
	Path       string         `json:"path"`
	ID         string         `json:"id"`
	Config     configInfo     `json:"config"`
	Parameters int64          `json:"parameters"`
	Bytes      int64          `json:"bytes"`
	Digest     string         `json:"digest,omitempty"` // of all weights, with --verify
	Types      []tensorTypes  `json:"types"`
	Unused     []string       `json:"unused_tensors"`
	Tensors    []tensorInfo   `json:"tensors,omitempty"`
	CacheBytes map[string]int `json:"cache_bytes_per_token"` // by element type
	Tokenizer  string         `json:"tokenizer"`             // "" if it can be read, else why not
	Vocabulary int            `json:"tokenizer_vocabulary,omitempty"`
}

// configInfo is a model's configuration as it is understood.
type configInfo struct {
	Architecture   string   `json:"architecture"`
	Layers         int      `json:"layers"`
	Hidden         int      `json:"hidden"`
	Intermediate   int      `json:"intermediate"`
	Heads          int      `json:"heads"`
	KVHeads        int      `json:"kv_heads"`
	HeadDim        int      `json:"head_dim"`
	Vocabulary     int      `json:"vocabulary"`
	MaxPositions   int      `json:"max_positions"`
	NormEps        float64  `json:"norm_eps"`
	Rope           ropeInfo `json:"rope"`
	QKVBias        bool     `json:"qkv_bias"`
	OutBias        bool     `json:"out_bias"`
	MLPBias        bool     `json:"mlp_bias"`
	QKNorm         bool     `json:"qk_norm"`
	TiedEmbeddings bool     `json:"tied_embeddings"`
	Windows        []int    `json:"windows"` // by layer; 0: full attention
	BOS            []int    `json:"bos"`
	EOS            []int    `json:"eos"`
}

type ropeInfo struct {
	Type        string  `json:"type"` // "": no scaling
	Theta       float64 `json:"theta"`
	Factor      float64 `json:"factor,omitempty"`
	OriginalMax int     `json:"original_max_positions,omitempty"`
}

func configOf(c *model.Config) configInfo {
	ids := func(x []int) []int { return append([]int{}, x...) } // [], not null
	return configInfo{
		Architecture: c.Arch, Layers: c.Layers, Hidden: c.Hidden, Intermediate: c.Intermediate,
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Vocabulary: c.Vocab, MaxPositions: c.MaxPositions,
		NormEps: c.NormEps, Rope: ropeInfo{c.Rope.Type, c.Rope.Theta, c.Rope.Factor, c.Rope.OriginalMax},
		QKVBias: c.QKVBias, OutBias: c.OutBias, MLPBias: c.MLPBias, QKNorm: c.QKNorm, TiedEmbeddings: c.TiedEmbeddings,
		Windows: ids(c.Windows), BOS: ids(c.BOS), EOS: ids(c.EOS),
	}
}

type tensorTypes struct {
	Type       string `json:"type"`
	Tensors    int    `json:"tensors"`
	Parameters int64  `json:"parameters"`
	Bytes      int64  `json:"bytes"`
}

type tensorInfo struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Shape []int  `json:"shape"`
	Bytes int    `json:"bytes"`
}

func (c *inspectCmd) checkpoint(e *env) error {
	if err := e.given.unused(profileFlags, c.Path+" is a checkpoint, no profile"); err != nil {
		return err
	}
	if err := e.given.unused("positions", c.Path+" is a checkpoint, no saved session or trace"); err != nil {
		return err
	}
	info, cfg, err := c.readCheckpoint(e)
	if err != nil {
		return err
	}
	if c.JSON {
		return report.WriteJSON(e.out, info)
	}
	t := newTable(e.out)
	t.line("checkpoint", "%s", info.Path)
	t.line("identity", "%s", info.ID)
	if info.Digest != "" {
		t.line("digest", "%s", info.Digest)
	}
	t.line("architecture", "%s, %d layers, hidden %d, intermediate %d", cfg.Arch, cfg.Layers, cfg.Hidden, cfg.Intermediate)
	t.line("attention", "%d query heads on %d KV heads of %d%s", cfg.Heads, cfg.KVHeads, cfg.HeadDim, extras(cfg))
	t.line("windows", "%s", windows(cfg.Windows))
	t.line("vocabulary", "%d (tokenizer %s)", cfg.Vocab, tokenizerText(info))
	t.line("context", "%d tokens", cfg.MaxPositions)
	t.line("rope", "%s", ropeText(cfg))
	t.line("parameters", "%s (%s)", count(info.Parameters), report.Bytes(info.Bytes))
	for _, x := range info.Types {
		t.line("", "%s: %d tensors, %s parameters, %s", x.Type, x.Tensors, count(x.Parameters), report.Bytes(x.Bytes))
	}
	t.line("cache", "%s per token as f32, %s as bf16 or f16", report.Bytes(int64(info.CacheBytes["f32"])), report.Bytes(int64(info.CacheBytes["bf16"])))
	if n := len(info.Unused); n > 0 {
		t.line("unused", "%d tensors: %s", n, clip(strings.Join(info.Unused, ", "), 200))
	}
	for _, x := range info.Tensors {
		t.line(x.Name, "%s %v %s", x.Type, x.Shape, report.Bytes(int64(x.Bytes)))
	}
	return t.w.Flush()
}

func (c *inspectCmd) readCheckpoint(e *env) (*checkpointInfo, *model.Config, error) {
	flags := runtimeFlags{Threads: 1, Precision: "auto", CPU: "auto"}
	m, err := flags.open(e, c.Path)
	if err != nil {
		return nil, nil, err
	}
	defer m.Close()
	cfg := m.Config()
	info := &checkpointInfo{Format: inspectFormat, Kind: "checkpoint", Path: c.Path, ID: m.ID(), Config: configOf(cfg), Unused: []string{}}
	files, w, err := c.openWeights(m)
	if err != nil {
		return nil, nil, err
	}
	defer files.Close()
	defer w.Close()
	info.Unused = append(info.Unused, w.Unused()...)
	for name, t := range files.All() {
		n := int64(1)
		for _, d := range t.Shape {
			n *= int64(d)
		}
		info.Parameters += n
		info.Bytes += int64(len(t.Data))
		i := slices.IndexFunc(info.Types, func(x tensorTypes) bool { return x.Type == t.Type.String() })
		if i < 0 {
			i = len(info.Types)
			info.Types = append(info.Types, tensorTypes{Type: t.Type.String()})
		}
		x := &info.Types[i]
		x.Tensors++
		x.Parameters += n
		x.Bytes += int64(len(t.Data))
		if c.Tensors {
			info.Tensors = append(info.Tensors, tensorInfo{name, t.Type.String(), t.Shape, len(t.Data)})
		}
	}
	if c.Verify {
		if info.Digest, err = digest(e, files); err != nil {
			return nil, nil, err
		}
	}
	info.CacheBytes = map[string]int{}
	for name, t := range map[string]tensor.Type{"f32": tensor.F32, "f16": tensor.F16, "bf16": tensor.BF16} {
		info.CacheBytes[name] = 2 * cfg.Layers * cfg.KVHeads * cfg.HeadDim * t.Size()
	}
	if tok, err := m.Tokenizer(); err != nil {
		info.Tokenizer = err.Error()
	} else {
		info.Vocabulary = tok.VocabSize()
	}
	return info, cfg, nil
}

// digest hashes the name, type, shape and every byte of all tensors, in the order
// of their names, however they are divided into files.
func digest(e *env, files *safetensors.Checkpoint) (string, error) {
	line := e.progress()
	defer line.clear()
	all := map[string]tensor.Tensor{}
	for name, t := range files.All() {
		all[name] = t
	}
	h := sha256.New()
	for i, name := range slices.Sorted(maps.Keys(all)) {
		if e.ctx.Err() != nil {
			return "", context.Cause(e.ctx)
		}
		t := all[name]
		line.show("reading tensor %d of %d", i+1, len(all))
		fmt.Fprintf(h, "%q %v %v %d\n", name, t.Type, t.Shape, len(t.Data))
		h.Write(t.Data)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// openWeights opens a model's tensors twice: as they lie in the files, and as
// the network uses them. Those of a folder are mapped, not read.
func (c *inspectCmd) openWeights(m *model.Model) (files *safetensors.Checkpoint, w *model.Weights, err error) {
	if c.Path == builtin.Name {
		if files, err = safetensors.OpenCheckpointFS(m.Source()); err != nil {
			return nil, nil, err
		}
		w, err = model.LoadWeightsFS(m.Source(), m.Config())
	} else {
		var dir string
		if dir, err = resolveModel(c.Path); err != nil {
			return nil, nil, err
		}
		if files, err = safetensors.OpenCheckpoint(dir); err != nil {
			return nil, nil, err
		}
		w, err = model.LoadWeights(dir, m.Config())
	}
	if err != nil {
		files.Close()
		return nil, nil, err
	}
	return files, w, nil
}

func extras(c *model.Config) string {
	var out []string
	for _, x := range []struct {
		on   bool
		name string
	}{
		{c.QKVBias, "q/k/v biases"}, {c.OutBias, "output bias"}, {c.MLPBias, "MLP biases"},
		{c.QKNorm, "q/k norms"}, {c.TiedEmbeddings, "tied embeddings"},
	} {
		if x.on {
			out = append(out, x.name)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "; " + strings.Join(out, ", ")
}

func windows(w []int) string {
	n, size := 0, 0
	for _, x := range w {
		if x > 0 {
			n, size = n+1, x
		}
	}
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %d layers see %d tokens", n, len(w), size)
}

func tokenizerText(info *checkpointInfo) string {
	if info.Tokenizer != "" {
		return "cannot be used: " + info.Tokenizer
	}
	return "has " + strconv.Itoa(info.Vocabulary)
}

func ropeText(c *model.Config) string {
	r := c.Rope
	if r.Type == "" {
		return fmt.Sprintf("theta %g", r.Theta)
	}
	s := fmt.Sprintf("theta %g, %s scaling by %g", r.Theta, r.Type, r.Factor)
	if r.OriginalMax > 0 {
		s += fmt.Sprintf(" from %d tokens", r.OriginalMax)
	}
	return s
}

// count prints a number of parameters.
func count(n int64) string {
	switch x := float64(n); {
	case n >= 1e9:
		return fmt.Sprintf("%.2f billion", x/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.2f million", x/1e6)
	}
	return strconv.FormatInt(n, 10)
}

// profileInfo is what inspect --json prints of a profile.
type profileInfo struct {
	Format     string                `json:"format"`
	Kind       string                `json:"kind"` // "profile"
	Path       string                `json:"path"`
	Digest     string                `json:"digest"`
	Identity   *lukv.ProfileIdentity `json:"identity,omitempty"` // absent of a .npy file
	Layers     int                   `json:"layers"`
	KVHeads    int                   `json:"kv_heads"`
	Excluded   []int                 `json:"excluded_layers,omitempty"`
	Pairs      int                   `json:"pairs"`
	MinContext int                   `json:"min_context"`
	MaxContext int                   `json:"max_context"`
	Levels     []levelInfo           `json:"levels"`
	HeatMap    lukv.HeatMap          `json:"heat_map"`

	OutputErrors *lukv.OutputErrors `json:"output_errors,omitempty"`
}

type levelInfo struct {
	Ratio float64 `json:"ratio"`
	Mean  float64 `json:"mean"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
}

// profile shows a profile, or says how far an unfinished one is.
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
		return fmt.Errorf("inspect %s: %w", c.Path, err)
	}
	if kind.Format == "lukv profile state" {
		if err := e.given.unused(profileFlags+" tensors verify positions", c.Path+" is an unfinished profile, without ratios"); err != nil {
			return err
		}
		if c.JSON {
			return report.WriteJSON(e.out, map[string]any{"format": inspectFormat, "kind": "profile state", "path": c.Path, "pairs": kind.Pairs, "identity": kind.Identity})
		}
		fmt.Fprintf(e.out, "unfinished profile %s: %d questions done, metric %s\n", c.Path, kind.Pairs, metricName(kind.Identity.Metric))
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
		HeatMap: p.HeatMap(c.Ratio, c.Nearest), OutputErrors: p.OutputErrors,
	}
	for i := range solve.Levels {
		ratio := float64(i+1) / 100
		h := p.HeatMap(ratio, true)
		info.Levels = append(info.Levels, levelInfo{ratio, h.Mean, h.Min, h.Max})
	}
	if done, err := c.picture(e, info.picture()); done || err != nil {
		return err
	}
	if c.JSON {
		return report.WriteJSON(e.out, info)
	}
	t := newTable(e.out)
	t.line("profile", "%s", c.Path)
	t.line("shape", "%d layers of %d KV heads", info.Layers, info.KVHeads)
	if id != nil {
		t.line("digest", "%s", digest)
		writeIdentity(t, id)
	}
	if info.Pairs > 0 {
		t.line("measured on", "%d questions about contexts of %d to %d tokens", info.Pairs, info.MinContext, info.MaxContext)
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

// errorColumns are fractions kept at which inspect shows the errors of a layer.
var errorColumns = []float64{0.05, 0.1, 0.2, 0.5}

// writeOutputErrors prints a table of the layers: their measured effects, what they
// weigh, and the errors of all their heads together.
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

// writeIdentity prints what a profile belongs to.
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

// picture is the heat map of a profile.
func (info *profileInfo) picture() report.HeatMap {
	subtitle := fmt.Sprintf("%d layers of %d KV heads", info.Layers, info.KVHeads)
	if id := info.Identity; id != nil {
		subtitle = fmt.Sprintf("model %s, metric %s, %d questions, normalization %s, %s",
			clip(id.Model, 20), id.Metric.Name, info.Pairs, id.Normalization, id.Objective)
	}
	return report.HeatMap{
		Title:    fmt.Sprintf("Percent removed per head at ratio %g", info.HeatMap.Ratio),
		Subtitle: subtitle, Values: info.HeatMap.Ratios,
	}
}

// tensorFile shows a saved session or cache, or any safetensors file.
func (c *inspectCmd) tensorFile(e *env) error {
	f, err := safetensors.Open(c.Path)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	defer f.Close()
	if _, ok := f.Metadata()["lukv_cache"]; ok {
		return c.cache(e)
	}
	if model.IsTrace(f) {
		return c.trace(e, f)
	}
	if err := e.given.unused(profileFlags+" verify positions", c.Path+" holds tensors, no profile"); err != nil {
		return err
	}
	info := checkpointInfo{Kind: "tensors", Path: c.Path}
	for name, t := range f.All() {
		n := int64(1)
		for _, d := range t.Shape {
			n *= int64(d)
		}
		info.Parameters += n
		info.Bytes += int64(len(t.Data))
		info.Tensors = append(info.Tensors, tensorInfo{name, t.Type.String(), t.Shape, len(t.Data)})
	}
	if c.JSON {
		return report.WriteJSON(e.out, map[string]any{
			"format": inspectFormat, "kind": info.Kind, "path": info.Path, "parameters": info.Parameters, "bytes": info.Bytes,
			"tensors": info.Tensors, "metadata": f.Metadata(),
		})
	}
	t := newTable(e.out)
	t.line("tensors", "%d in %s: %s elements, %s", f.Len(), c.Path, count(info.Parameters), report.Bytes(info.Bytes))
	for _, x := range info.Tensors {
		t.line(x.Name, "%s %v %s", x.Type, x.Shape, report.Bytes(int64(x.Bytes)))
	}
	return t.w.Flush()
}

// cacheInfo is what inspect --json prints of a saved session or cache.
type cacheInfo struct {
	Format        string       `json:"format"`
	Kind          string       `json:"kind"` // "session" or "cache"
	Path          string       `json:"path"`
	Model         string       `json:"model,omitempty"`
	Digest        string       `json:"digest,omitempty"`
	Precision     string       `json:"precision,omitempty"`
	Label         string       `json:"label,omitempty"`
	Position      int          `json:"position"` // tokens processed
	ContextTokens int          `json:"context_tokens,omitempty"`
	Policy        *lukv.Policy `json:"policy,omitempty"`
	Layers        int          `json:"layers"`
	KVHeads       int          `json:"kv_heads"`
	HeadDim       int          `json:"head_dim"`
	Type          string       `json:"type"`
	PageEntries   int          `json:"page_entries"`
	Entries       int64        `json:"entries"`
	Bytes         int64        `json:"bytes"`
	SlackBytes    int64        `json:"slack_bytes"`
	Ratio         float64      `json:"ratio"` // fraction of entries removed
	Lengths       [][]int      `json:"lengths"`
	Positions     [][][]int32  `json:"positions,omitempty"` // [layer][KV head], with --positions
	FileBytes     int64        `json:"file_bytes"`
}

// session reads what a saved session says of itself, nil for a cache without one.
func (c *inspectCmd) session() (*model.SessionInfo, error) {
	f, err := kvcache.OpenFile(c.Path)
	if err != nil {
		return nil, err
	}
	_, is := f.Meta()["session"]
	f.Close()
	if !is {
		return nil, nil
	}
	file, err := inputfile.Open(c.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return model.ReadSessionInfo(c.Path, file, st.Size())
}

func (c *inspectCmd) cache(e *env) error {
	if err := e.given.unused("ratio nearest tensors verify", c.Path+" is a saved session, no profile"); err != nil {
		return err
	}
	said, err := c.session()
	if err != nil {
		return fmt.Errorf("inspect %s: %w", c.Path, err)
	}
	cache, _, err := kvcache.LoadFile(c.Path, kvcache.Options{})
	if err != nil {
		return fmt.Errorf("inspect %s: %w", c.Path, err)
	}
	defer cache.Close()
	o, st := cache.Options(), cache.Stats()
	info := cacheInfo{
		Format: inspectFormat, Kind: "cache", Path: c.Path,
		Layers: o.Layers, KVHeads: o.KVHeads, HeadDim: o.HeadDim, Type: o.Type.String(), PageEntries: o.PageEntries,
		Entries: st.Entries, Bytes: st.Bytes, SlackBytes: st.SlackBytes,
	}
	for l := range o.Layers {
		if c.Positions {
			info.Positions = append(info.Positions, make([][]int32, o.KVHeads))
			for h := range o.KVHeads {
				info.Positions[l][h] = cache.Positions(l, h, []int32{})
			}
		}
		row := make([]int, o.KVHeads)
		for h := range row {
			row[h] = cache.Len(l, h)
			info.Position = max(info.Position, int(cache.LastPosition(l, h))+1)
		}
		info.Lengths = append(info.Lengths, row)
	}
	if said != nil {
		info.Model, info.Digest, info.Precision = said.Model, said.Digest, string(said.Precision)
		info.Kind, info.Label, info.Position, info.ContextTokens, info.Policy = "session", said.Label, said.Position, said.ContextTokens, said.Policy
	}
	full := int64(0)
	removed := make([][]float64, o.Layers) // of the layers without a window
	for l, row := range info.Lengths {
		if o.Windows != nil && o.Windows[l] > 0 || info.Position == 0 {
			continue
		}
		removed[l] = make([]float64, len(row))
		for h, n := range row {
			removed[l][h] = 1 - float64(n)/float64(info.Position)
			full += int64(info.Position)
			info.Ratio -= float64(n)
		}
	}
	if full > 0 {
		info.Ratio = 1 + info.Ratio/float64(full)
	}
	if fi, err := os.Stat(c.Path); err == nil {
		info.FileBytes = fi.Size()
	}
	if c.SVG != "" && full == 0 {
		return usage("--svg would have no effect: %s holds no entries that could be removed", c.Path)
	}
	if done, err := c.picture(e, report.HeatMap{
		Title:    fmt.Sprintf("Percent removed per head: %d of %d entries are left", info.Entries, full),
		Subtitle: fmt.Sprintf("%d layers of %d KV heads, %d tokens", info.Layers, info.KVHeads, info.Position),
		Values:   removed,
	}); done || err != nil {
		return err
	}
	if c.JSON {
		return report.WriteJSON(e.out, info)
	}
	t := newTable(e.out)
	t.line(info.Kind, "%s (%s)", c.Path, report.Bytes(info.FileBytes))
	if info.Model != "" {
		t.line("model", "%s", info.Model)
	}
	if info.Label != "" {
		t.line("label", "%s", info.Label)
	}
	t.line("tokens", "%d", info.Position)
	if info.Policy != nil {
		t.line("policy", "%s", info.Policy)
	}
	t.line("cache", "%d layers of %d KV heads of %d, %s, pages of %d entries", info.Layers, info.KVHeads, info.HeadDim, info.Type, info.PageEntries)
	t.line("entries", "%d (%.1f %% removed)", info.Entries, 100*info.Ratio)
	t.line("bytes", "%s, of this slack %s", report.Bytes(info.Bytes), report.Bytes(info.SlackBytes))
	if err := t.w.Flush(); err != nil {
		return err
	}
	writeLengths(e.out, info.Lengths)
	writePositions(e.out, info.Positions)
	if full > 0 {
		fmt.Fprintln(e.out, "\npercent removed")
		return report.HeatMap{Values: removed}.WriteText(raw(e.out), e.colors())
	}
	return nil
}

func writeLengths(w io.Writer, lengths [][]int) {
	fmt.Fprintln(w, "\nentries per layer and KV head")
	for l, row := range lengths {
		fmt.Fprintf(w, "%5d", l)
		for _, n := range row {
			fmt.Fprintf(w, " %7d", n)
		}
		fmt.Fprintln(w)
	}
}
