package command

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/embedded"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

type profileCmd struct {
	modelFlags
	Output string `short:"o" placeholder:"FILE" help:"Write the profile to FILE; - is standard output (default: the user's cache, where commands find it for this model). FILE.state keeps unfinished work."`

	Metric string `group:"policy" placeholder:"NAME|JSON" help:"Profile the ranking of this metric (default snapkv): ${profiledmetrics}; or JSON with parameters."`
	protectFlags

	Text      []string `sep:"none" placeholder:"FILE" help:"Calibrate on this text, with --questions. May be repeated, in pairs."`
	Questions []string `sep:"none" placeholder:"FILE" help:"Ask these questions about the text: plain lines, or JSON Lines of {question, answer_prefix}."`
	Data      []string `sep:"none" placeholder:"FILE" help:"Read texts with questions from FILE: JSON Lines of {context, questions}. May be repeated."`
	Limit     int      `placeholder:"N" help:"Ask only the first N questions of each text."`
	Texts     int      `placeholder:"N" help:"Use only the first N texts."`
	Template  bool     `help:"Apply the chat template to text and questions (default: plain text; builtin always uses the prompt of its card)."`

	Normalization   string  `enum:"none,layer,global" default:"none" help:"Normalise the usefulness of entries: ${enum}."`
	Objective       string  `enum:"importance,capacity,output-error,utility" default:"importance" help:"Set the objective. importance (or utility): how much answers draw on the entries that the metric ranks high, as published; capacity: the same without the gap to a perfect ranking; output-error: the change of each head's output."`
	Weights         string  `enum:"cut,span,none" default:"cut" help:"Weight the output errors of layers by the effect of cutting each alone (cut), by each layer's effect on a cut of all layers, which takes many passes (span), or equally (none)."`
	Scope           string  `enum:"global,layer" default:"global" help:"Let heads compete in the whole model (global) or in their layer."`
	Solver          string  `enum:"greedy,greedy+repair" default:"greedy" help:"Set the solver: ${enum}."`
	MaxSteps        int     `default:"64" placeholder:"N" help:"Generate at most N tokens per question (default ${default})."`
	MinRetention    float64 `default:"0.01" placeholder:"F" help:"Keep at least this fraction of each head (default ${default})."`
	IncludeQuestion bool    `help:"Count the last token of the question as a decoding step."`
	Temperature     float64 `group:"sampling" placeholder:"T" help:"Sample the answers at this temperature (default: greedy)."`
	TopP            float64 `group:"sampling" placeholder:"P" help:"Nucleus sampling: keep the smallest set of tokens with probability P; with --temperature."`
	Seed            uint64  `group:"sampling" placeholder:"N" help:"Set the random seed (default 0); with --temperature."`

	LossMap bool `help:"Also measure how many answers are lost where a share of facts is lost, so that --measure-loss and --max-loss can report both: by 14 cuts of each text, on questions that name their answers."`

	NPY     string `name:"npy" placeholder:"FILE" help:"Also write the ratios as .npy, float64 [99, layers, KV heads]; - is standard output."`
	FromNPY string `name:"from-npy" placeholder:"FILE" help:"Measure nothing; convert the .npy file, assumed to belong to this model and metric."`
	JSON    bool   `help:"Print the summary as one JSON object."`
}

func (profileCmd) Help() string {
	return `Prefill each text with the full cache, answer its questions, measure how much the answers drew on each cache entry, and solve for the budgets that lose least at 99 levels of compression with the metric's ranking. The mean over all questions is the profile. Two runs give the same bytes. For the metric triattention, the profile also holds the centres of the queries on the texts; for the metric learned, the ranking that is fitted to KVzip's scores on them before anything else is measured.

Work that was interrupted goes on from FILE.state, and the fit of learned from FILE.state.fit, when the same command is given again.

Examples:

  lukv profile DIR --metric snapkv -o dir-snapkv.profile

  lukv profile DIR --metric '{"name":"snapkv","window":64}' --text book.txt --questions book.questions -o my.profile

  lukv profile builtin --metric keydiff --solver greedy+repair --json -o builtin-keydiff.profile

  lukv profile DIR --metric triattention -o dir-triattention.profile

  lukv profile DIR --metric learned --objective output-error

  lukv profile DIR --metric key_distance --loss-map

  lukv profile builtin --metric keydiff --objective output-error --weights cut -o builtin-keydiff.profile`
}

// profileFormat is the format identifier that profile --json prints.
const profileFormat = "lukv profile summary 1"

// profileSummary is printed by profile --json.
type profileSummary struct {
	Format     string               `json:"format"`
	Path       string               `json:"path"`
	Digest     string               `json:"digest"`
	Identity   lukv.ProfileIdentity `json:"identity"`
	Layers     int                  `json:"layers"`
	KVHeads    int                  `json:"kv_heads"`
	Pairs      int                  `json:"pairs"`
	MinContext int                  `json:"min_context"`
	MaxContext int                  `json:"max_context"`

	// For the pairs measured by this run, not those taken from a state file.
	Measured  int   `json:"measured"`
	Resumed   int   `json:"resumed"`
	Steps     int   `json:"steps"`        // decoding steps that counted
	Passes    int   `json:"passes"`       // of question and answer over a cached context, for output errors
	NoSteps   []int `json:"no_answer"`    // pairs whose answer ended at once: the question's last token was used
	Repaired  int   `json:"repair_moves"` // over all pairs and levels
	Solutions int   `json:"solutions"`    // one per pair and level
	Proven    int   `json:"proven"`       // of these, proven optimal

	Levels []levelSummary `json:"levels"`

	LossMap *lukv.LossMap `json:"loss_map,omitempty"`

	// Notes are warnings about the calibration texts, and about
	// budgets that the profile gives to contexts like those it was measured on.
	Notes []string `json:"notes"`
}

// levelSummary describes one level. Loss and Bound are means over the measured
// pairs: the loss of the chosen budgets, and a lower bound on the loss of any
// budgets. Gap is the certificate: the loss is at most that fraction above the
// optimum. It is absent if nothing was measured or the bound is 0.
type levelSummary struct {
	Ratio float64 `json:"ratio"`
	Mean  float64 `json:"mean"` // overall ratio of the profile at this level
	Min   float64 `json:"min"`  // smallest and largest ratio of a head
	Max   float64 `json:"max"`
	Loss  float64 `json:"loss"`
	Bound float64 `json:"bound"`

	Gap *float64 `json:"gap,omitempty"`
}

// maker is one execution of profile.
type maker struct {
	*profileCmd
	e       *env
	m       *model.Model
	summary profileSummary
}

func (c *profileCmd) Run(e *env) error {
	metric, err := c.check()
	if err != nil {
		return err
	}
	m, err := c.open(e)
	if err != nil {
		return err
	}
	defer m.Close()
	if c.Output == "" {
		if err := c.toCache(m, metric); err != nil {
			return err
		}
	}
	k := &maker{profileCmd: c, e: e, m: m}
	k.summary.Path = c.Output
	k.summary.Levels = make([]levelSummary, solve.Levels)
	k.summary.Notes = []string{}
	var p *lukv.Profile
	if c.FromNPY != "" {
		p, err = k.convert(metric)
	} else {
		p, err = k.measure(metric)
	}
	if err != nil {
		return err
	}
	if err := k.save(p); err != nil {
		return err
	}
	return k.print(p)
}

// toCache sets the output to the model's file in the user's cache.
func (c *profileCmd) toCache(m *model.Model, metric lukv.MetricConfig) error {
	dir, err := cachedProfileFolder(m)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("the user's cache: %w (name a file with --output)", err)
	}
	c.Output = filepath.Join(dir, cachedProfileName(metric, c.Objective))
	return nil
}

func (c *profileCmd) outputs() []string { return []string{c.Output, c.NPY} }

func (c *profileCmd) check() (lukv.MetricConfig, error) {
	switch {
	case len(c.Text) != len(c.Questions):
		return lukv.MetricConfig{}, usage("--text and --questions: found %d and %d, expected pairs", len(c.Text), len(c.Questions))
	case c.Limit < 0 || c.Texts < 0:
		return lukv.MetricConfig{}, usage("--limit and --texts: found %d and %d, expected 0 or more", c.Limit, c.Texts)
	case c.Output == "" && c.Model == builtin.Name:
		return lukv.MetricConfig{}, usage("--output is missing: commands use the profiles that come with %s unless a file is named", builtin.Name)
	case c.MaxSteps < 1:
		return lukv.MetricConfig{}, usage("--max-steps: found %d, expected at least 1", c.MaxSteps)
	case !(c.MinRetention >= 0 && c.MinRetention < 1):
		return lukv.MetricConfig{}, usage("--min-retention: found %v, expected at least 0 and below 1", c.MinRetention)
	case c.Output == "-" && c.NPY == "-", (c.Output == "-" || c.NPY == "-") && c.JSON:
		return lukv.MetricConfig{}, usage("--output, --npy and --json: only one of them can be standard output")
	}
	s := c.sampling()
	if err := s.Validate(); err != nil {
		return lukv.MetricConfig{}, usageError{err}
	}
	metric, err := parseMetric(c.Metric)
	if err == nil && c.FromNPY != "" && metric.Name == "per_head" {
		err = usage("--from-npy and --metric per_head: ratios alone do not say which metric ranks each head")
	}
	if m, e := lukv.NewMetric(metric); err == nil && e == nil && c.FromNPY != "" && lukv.NeedsRankings(m) {
		err = usage("--from-npy and --metric %s: ratios alone do not hold the ranking that the metric learned reads", metric.Name)
	}
	return metric, err
}

func (c *profileCmd) sampling() model.Sampling {
	return model.Sampling{Temperature: c.Temperature, TopP: c.TopP, Seed: c.Seed}
}

// texts returns the calibration texts that the flags name.
func (c *profileCmd) texts() ([]calibration.Text, error) {
	var texts []calibration.Text
	for i, path := range c.Text {
		data, err := inputfile.Read(path, maxInput)
		if err != nil {
			return nil, fmt.Errorf("read text: %w", err)
		}
		in, err := inputfile.Open(c.Questions[i])
		if err != nil {
			return nil, fmt.Errorf("read questions: %w", err)
		}
		questions, err := calibration.ReadQuestions(in, c.Questions[i])
		in.Close()
		if err != nil {
			return nil, err
		}
		texts = append(texts, calibration.Text{Context: string(unmarked(data)), Questions: questions})
	}
	for _, path := range c.Data {
		in, err := inputfile.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read texts: %w", err)
		}
		more, err := calibration.ReadTexts(in, path)
		in.Close()
		if err != nil {
			return nil, err
		}
		texts = append(texts, more...)
	}
	if len(texts) == 0 {
		texts = []calibration.Text{calibration.Narrative()}
		if c.Model == builtin.Name {
			texts = embedded.Texts()
		}
	}
	if c.Texts > 0 {
		texts = texts[:min(c.Texts, len(texts))]
	}
	for i := range texts {
		if c.Limit > 0 {
			texts[i].Questions = texts[i].Questions[:min(c.Limit, len(texts[i].Questions))]
		}
	}
	return texts, nil
}

// prompt returns the framing of text and question.
func (k *maker) prompt() (calibration.Prompt, error) {
	if k.Model == builtin.Name {
		return builtin.Prompt, nil
	}
	f, err := dialog.PlainFraming(k.m)
	if k.Template {
		f, err = dialog.ChatFraming(k.e.ctx, k.m, dialog.FixedDate)
	}
	f.Between = "\n\n"
	return f.Prompt, err
}

func (k *maker) options(metric lukv.MetricConfig) (calibration.ProfileOptions, error) {
	o := calibration.ProfileOptions{
		Options: calibration.Options{
			MaxSteps: k.MaxSteps, Sampling: k.sampling(), IncludeQuestion: k.IncludeQuestion, Session: k.session(),
		},
		Metric: metric, Normalization: k.Normalization, Objective: k.Objective, Scope: k.Scope, Solver: k.Solver,
		MinRetention: k.MinRetention, State: statePath(k.Output),
	}
	if o.Objective == "importance" { // called utility in files
		o.Objective = lukv.ObjectiveUtility
	}
	if o.Objective == lukv.ObjectiveOutputError {
		o.Weights = lukv.DefaultWeights(k.Weights)
	}
	if o.MinRetention == 0 {
		o.MinRetention = -1
	}
	var err error
	if o.Prompt, err = k.prompt(); err != nil {
		return o, err
	}
	o.Protection, err = k.protection(metric)
	return o, err
}

func (k *maker) measure(metric lukv.MetricConfig) (*lukv.Profile, error) {
	texts, err := k.texts()
	if err != nil {
		return nil, err
	}
	o, err := k.options(metric)
	if err != nil {
		return nil, err
	}
	k.summary.Notes = append(k.summary.Notes, calibration.Notes(texts)...)
	line := k.e.longProgress()
	defer line.clear()
	first := calibration.Pairs(texts[:1])
	line.show("reading text 1 of %d, question 1 of %d", len(texts), first)
	begun := false
	o.Fitted = func(done, texts int) {
		if !begun && done > 0 {
			k.e.note("resuming from %s: %d of %d texts are fitted", calibration.FitState(o.State), done, texts)
		}
		begun = true
		k.e.log.Info("ranking fitted", "texts", done, "of", texts)
		line.show("fitting the ranking: text %d of %d", min(done+1, texts), texts)
	}
	o.Progress = func(p calibration.Progress) {
		if p.Pair == nil {
			if p.Resumed > 0 {
				k.e.note("resuming from %s: %d of %d questions are done", o.State, p.Resumed, p.Total)
			}
			k.summary.Resumed = p.Resumed
			return
		}
		k.add(p)
		k.e.log.Info("question measured", "done", p.Done, "of", p.Total, "tokens", p.Pair.Tokens, "steps", p.Pair.Steps)
		line.show("profiling: question %d of %d%s", p.Done, p.Total, line.left(p.Resumed, p.Done, p.Total))
	}
	p, err := calibration.Profile(k.e.ctx, k.m, texts, o)
	line.clear()
	if errors.Is(err, lukv.ErrProfileMismatch) {
		return nil, fmt.Errorf("%w (remove %s to begin anew)", err, strings.Join(unfinished(o.State), " and "))
	}
	if err == nil && k.LossMap {
		err = k.mapLoss(p, texts, o.Options, line)
	}
	if files := unfinished(o.State); err != nil && k.e.ctx.Err() != nil && len(files) > 0 {
		k.e.note("unfinished work is in %s; the same command continues from it", strings.Join(files, " and "))
	}
	return p, err
}

// unfinished returns the files of unfinished work that there are.
func unfinished(state string) (files []string) {
	for _, path := range []string{calibration.FitState(state), state} {
		if path != "" && exists(path) {
			files = append(files, path)
		}
	}
	return files
}

// mapLoss measures the profile's loss map. Without enough facts or answers there is none.
func (k *maker) mapLoss(p *lukv.Profile, texts []calibration.Text, o calibration.Options, line *progress) error {
	m, err := calibration.LossMap(k.e.ctx, k.m, texts, p, o, func(done, total int) {
		k.e.log.Info("cut measured", "done", done, "of", total)
		line.show("measuring answers lost: cut %d of %d%s", done, total, line.left(0, done, total))
	})
	line.clear()
	if errors.Is(err, calibration.ErrNoLossMap) {
		k.summary.Notes = append(k.summary.Notes, err.Error())
		return nil
	}
	p.LossMap, k.summary.LossMap = m, m
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// add records the results of one pair.
func (k *maker) add(p calibration.Progress) {
	s := &k.summary
	s.Measured++
	s.Steps += p.Pair.Steps
	s.Passes += p.Pair.Passes
	if p.Levels == nil {
		return
	}
	if p.Pair.FromQuestion && !k.IncludeQuestion {
		s.NoSteps = append(s.NoSteps, p.Pair.Index)
	}
	for i := range s.Levels {
		loss, bound := p.Levels.Loss[i], p.Levels.Bound[i]
		s.Levels[i].Loss += loss
		s.Levels[i].Bound += bound
		s.Repaired += p.Levels.Moves[i]
		s.Solutions++
		if loss <= bound {
			s.Proven++
		}
	}
}

// convert makes a profile from a .npy file.
func (k *maker) convert(metric lukv.MetricConfig) (*lukv.Profile, error) {
	raw, err := inputfile.Read(k.FromNPY, maxInput)
	if err != nil {
		return nil, fmt.Errorf("read ratios: %w", err)
	}
	o, err := k.options(metric)
	if err != nil {
		return nil, err
	}
	id, err := o.Identity(k.m, nil)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	id.Calibration = "npy sha256:" + hex.EncodeToString(sum[:])
	p, err := lukv.ReadProfileNPY(bytes.NewReader(raw), id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.FromNPY, err)
	}
	if err := p.CheckShape(k.m.Config().Layers, k.m.Config().KVHeads); err != nil {
		return nil, fmt.Errorf("%s: %w", k.FromNPY, err)
	}
	return p, nil
}

// save writes the profile, then removes the state file.
func (k *maker) save(p *lukv.Profile) error {
	if k.NPY != "" {
		if err := k.e.writeTo(k.NPY, p.WriteNPY); err != nil {
			return fmt.Errorf("write ratios: %w", err)
		}
	}
	if k.Output == "-" {
		return p.Write(k.e.out)
	}
	if err := p.Save(k.Output); err != nil {
		return err
	}
	if k.FromNPY != "" {
		return nil
	}
	state := statePath(k.Output)
	return errors.Join(removeState(calibration.FitState(state)), removeState(state))
}

// summarize completes the summary from the profile.
func (k *maker) summarize(p *lukv.Profile) error {
	s := &k.summary
	var err error
	if s.Digest, err = p.Digest(); err != nil {
		return err
	}
	s.Format = profileFormat
	s.Identity, s.Layers, s.KVHeads, s.Pairs = p.Identity, p.Layers(), p.KVHeads(), p.Pairs
	s.MinContext, s.MaxContext = p.MinContext, p.MaxContext
	for i := range s.Levels {
		l := &s.Levels[i]
		l.Ratio = float64(i+1) / 100
		h := p.HeatMap(l.Ratio, true)
		l.Mean, l.Min, l.Max = h.Mean, h.Min, h.Max
		if s.Measured == 0 {
			continue
		}
		if l.Bound > 0 {
			gap := max(0, l.Loss/l.Bound-1)
			l.Gap = &gap
		}
		l.Loss /= float64(s.Measured)
		l.Bound /= float64(s.Measured)
	}
	if s.NoSteps == nil {
		s.NoSteps = []int{}
	}
	notes, err := k.notes(p)
	s.Notes = append(s.Notes, notes...) // after those on the texts
	return err
}

// notes returns the notes of policies with the profile on contexts as long as
// the shortest one it was measured on.
func (k *maker) notes(p *lukv.Profile) ([]string, error) {
	if p.MinContext == 0 {
		return nil, nil
	}
	var notes []string
	c := k.m.Config()
	shape := lukv.CacheShape{Layers: c.Layers, KVHeads: c.KVHeads, Excluded: make([]bool, c.Layers)}
	for _, at := range p.Excluded {
		shape.Excluded[at] = true
	}
	for _, ratio := range []float64{0.5, 0.8, 0.9} {
		policy := &lukv.Policy{
			Metric: p.Identity.Metric, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Ratio: ratio,
			Protection: &p.Identity.Protection, Profile: p,
		}
		compiled, err := policy.Compile(k.m.ID(), shape)
		if err != nil {
			return nil, err
		}
		demand := compiled.Demand(p.MinContext)
		budgets, err := lukv.Allocate(compiled.Allocator(), demand, nil)
		if err != nil {
			return nil, err
		}
		for _, note := range compiled.Notes(demand, budgets) {
			notes = append(notes, fmt.Sprintf("at ratio %g: %s", ratio, note))
		}
	}
	return notes, nil
}

func (k *maker) print(p *lukv.Profile) error {
	if err := k.summarize(p); err != nil {
		return err
	}
	s := &k.summary
	for _, note := range s.Notes {
		k.e.note("note: %s", note)
	}
	if k.JSON {
		return report.WriteJSON(k.e.out, s)
	}
	out := k.e.out
	if k.Output == "-" || k.NPY == "-" {
		if k.e.quiet {
			return nil
		}
		out = k.e.err // standard output holds the profile
	}
	id := &s.Identity
	t := newTable(out)
	t.line("wrote", "%s: %d layers of %d KV heads", s.Path, s.Layers, s.KVHeads)
	t.line("digest", "%s", s.Digest)
	writeIdentity(t, id)
	if s.Measured+s.Resumed > 0 {
		earlier := ""
		if s.Resumed > 0 {
			earlier = fmt.Sprintf(", %d of them from an earlier run", s.Resumed)
		}
		t.line("measured on", "%s about contexts of %d to %d tokens%s", report.Count(s.Pairs, "question"), s.MinContext, s.MaxContext, earlier)
	}
	switch {
	case s.Passes > 0:
		t.line("solved", "%d answer steps, %d passes of question and answer over a cached context", s.Steps, s.Passes)
	case s.Measured > 0:
		moves := ""
		if id.Solver == lukv.SolverRepair {
			moves = fmt.Sprintf(", %d repair moves", s.Repaired)
		}
		t.line("solved", "%d decoding steps; %d of %d solutions proven optimal%s", s.Steps, s.Proven, s.Solutions, moves)
		if n := len(s.NoSteps); n > 0 {
			t.line("", "%s ended at once: measured on the question's last token instead", report.Count(n, "answer"))
		}
	}
	if s.LossMap != nil {
		writeLossMap(t, s.LossMap)
	}
	if err := t.w.Flush(); err != nil {
		return err
	}
	return writeLevels(out, s)
}

// writeLossMap prints what shares of facts lost mean for answers.
func writeLossMap(t table, m *lukv.LossMap) {
	n := 0
	var points []string
	for i := range m.Facts {
		n += m.N[i]
		points = append(points, fmt.Sprintf("%.0f → %.0f", 100*m.Facts[i], 100*m.Answers[i]))
	}
	t.line("facts lost", "to answers lost, in percent: %s (%s)", strings.Join(points, ", "), report.Count(n, "answer"))
}

// writeLevels prints some levels: the fractions removed, the losses, and how far
// the loss may be above the optimum.
func writeLevels(w io.Writer, s *profileSummary) error {
	t := report.Table{Right: []int{0, 1, 2, 3, 4, 5}}
	header := []string{"ratio", "mean", "least", "most"}
	if s.Solutions > 0 {
		header = append(header, "loss", "above the optimum")
	}
	fmt.Fprintln(w)
	t.Row(header...)
	for _, i := range []int{9, 24, 49, 79, 89, 94, 98} {
		l := s.Levels[i]
		row := []string{
			fmt.Sprintf("%.2f", l.Ratio), fmt.Sprintf("%.4f", l.Mean), fmt.Sprintf("%.4f", l.Min), fmt.Sprintf("%.4f", l.Max),
		}
		if s.Solutions > 0 {
			row = append(row, fmt.Sprintf("%.4g", l.Loss), aboveOptimum(l))
		}
		t.Row(row...)
	}
	return t.Write(w, report.NoColors)
}

// aboveOptimum says how far a level's loss can be above the optimum: as a fraction
// of the bound, or as a difference if the bound is too small for that.
func aboveOptimum(l levelSummary) string {
	switch {
	case l.Loss <= l.Bound:
		return "0 %"
	case l.Gap == nil || *l.Gap >= 1:
		return fmt.Sprintf("at most %.2g", l.Loss-l.Bound)
	}
	return fmt.Sprintf("at most %.3g %%", 100**l.Gap)
}
