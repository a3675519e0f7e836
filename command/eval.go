package command

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

type evalCmd struct {
	modelFlags
	Data []string `short:"d" sep:"none" placeholder:"FILE" help:"Read questions from FILE: JSON Lines or CSV of {task, context, question, answer_prefix, answers, max_new_tokens, all_classes, length}, files of RULER, LongBench or InfiniteBench, or a folder or zip of these. May be repeated (default for builtin: its samples)."`

	LongbenchConfig string `placeholder:"DIR" help:"Read LongBench's dataset2prompt.json and dataset2maxlen.json from DIR (default: built-in wording)."`
	LongbenchE      bool   `name:"longbench-e" help:"Read the datasets of LongBench-E from folders and zip files."`
	MaxGen          string `enum:"kvpress,official" default:"kvpress" help:"Limit answers to LongBench and InfiniteBench by the benchmark's own limit plus 20 tokens (kvpress), or by its own limit (official)."`

	budgetLists `set:"ratios=0.5,0.8,0.9"`
	Metric      []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Rank entries by these metrics (default snapkv): ${metrics}; or JSON objects."`
	Allocator   []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Divide the budget by these allocators (default uniform): ${allocators}; or JSON objects."`
	Preset      []string `group:"policy" placeholder:"NAME,…" help:"Evaluate published presets, in addition to --metric and --allocator or instead of them: ${presets}."`
	Profile     []string `group:"policy" sep:"none" placeholder:"FILE" help:"Read profiles for the allocator lukv, one per metric; builtin:output-error selects those of the embedded model. May be repeated."`
	Decode      string   `group:"policy" placeholder:"JSON" help:"Also compress while decoding."`
	Compat      bool     `group:"policy" help:"Round budgets like older versions of kvpress."`
	NoFull      bool     `group:"policy" help:"Skip the full cache."`
	MaxLoss     []string `group:"policy" sep:"none" placeholder:"B,…" help:"Choose each context's ratio, in addition to ratios or instead of them: the largest of 0.1 to 0.9 and 0.95 that loses at most this share of its facts."`
	MeasureLoss bool     `group:"policy" help:"Measure how many of the facts that the full cache can repeat from each context a method loses; --json, --items and --out have the numbers per answer."`
	protectFlags

	Limit        int     `placeholder:"N" help:"Ask at most N questions per task."`
	Fraction     float64 `placeholder:"F" help:"Ask this fraction of each task's questions, 0 to 1 (default: all)."`
	Seed         uint64  `default:"42" placeholder:"N" help:"Draw the questions of --limit and --fraction with this seed (default ${default})."`
	MaxNewTokens int     `default:"64" placeholder:"N" help:"Limit answers to N tokens if the data set no limit (default ${default})."`
	Measure      string  `enum:"score,kl" default:"score" help:"Score answers (score), or measure how far each method moves the predictions of the full cache's own answer (kl): the Kullback-Leibler divergence in nats per token, for any question, also one without a right answer."`
	Reference    string  `name:"reference-cache" enum:",${cachetypes}" default:"" placeholder:"TYPE" help:"With --measure kl: let a full cache of this type answer (default: that of --cache-type), so that cache types can be compared; the full cache of --cache-type is then measured, too."`
	Original     string  `name:"reference-model" placeholder:"MODEL" help:"With --measure kl: let this model answer (default: the measured one), such as the one before it was quantised, so that weights can be compared; the measured model's full cache is then measured, too."`
	scoringFlags
	Raw          bool   `help:"Do not apply the chat template."`
	Truncate     string `enum:"auto,error,head,middle" default:"auto" help:"Treat contexts that are too long as an error, or keep their beginning (head), or half of each end (middle); auto is middle where all questions are of LongBench, otherwise error."`
	QueryAware   bool   `help:"Compress after the question is known (a control experiment)."`
	SharePrefill bool   `default:"true" negatable:"" help:"Derive all methods from one prefill of each context (default). With --no-share-prefill, each method has its own prefill: slower, the same answers, and peaks are measured."`

	Parallel int      `default:"1" placeholder:"N" help:"Evaluate N contexts at the same time (default ${default})."`
	Memory   byteSize `placeholder:"SIZE" help:"With --parallel: lower the parallelism so that caches stay within SIZE."`

	Out      string `short:"o" xor:"answers" placeholder:"DIR" help:"Keep the run in a folder: settings, versions, answers and scores. An interrupted run continues from it, and a larger --limit extends it."`
	Items    string `xor:"answers" placeholder:"FILE" help:"Append every answer, or every divergence, to FILE. An interrupted run continues from it, and a larger --limit extends it."`
	CSV      bool   `name:"csv" xor:"format" help:"Print CSV in long form."`
	JSON     bool   `name:"json" xor:"format" help:"Print one JSON object."`
	Markdown bool   `xor:"format" help:"Print a Markdown table."`
}

func (evalCmd) Help() string {
	return `Evaluate the full cache, then the cross product of metrics, allocators and budgets. Every context is prefilled once and compressed by each method before its questions are known; decoding is greedy. Scores are in percent with 95 % bootstrap intervals over the items; every task counts once in the average. Items that do not fit are listed, do not count, and make the exit status 1.

With --measure kl, the full cache answers, and each method's cache reads question and answer in one pass: the table has the mean Kullback-Leibler divergence of the next token's distribution from the full cache's, in nats per token of the answer. It shows losses that scores of as many questions do not.

Examples:

  lukv eval builtin --allocator uniform,adakv --ratio 0.8 --limit 2

  lukv eval DIR --data ruler-4096.jsonl --metric snapkv,keydiff --allocator uniform,lukv --profile snapkv.profile --profile keydiff.profile --ratio 0.5,0.8 --items run1.jsonl

  lukv eval builtin --limit 2 --measure kl --metric key_distance,snapkv --ratio 0.5,0.8

  lukv eval DIR --data questions.jsonl --measure kl --cache-type int8 --reference-cache bf16 --json > int8.json

  lukv eval DIR-q4_k.gguf --data questions.jsonl --measure kl --reference-model DIR --ratio 0.5,0.8

  lukv eval DIR --data longbench/data.zip --ratio 0.8 --out runs/longbench`
}

// scoringFlags say how answers are scored.
type scoringFlags struct {
	Match      string `enum:"auto,all,part,qa_f1,rouge_l,classification,retrieval,count,code_sim" default:"auto" help:"Score by the share of expected answers found (all), by any found (part), by one of LongBench's measures, or by the task's name (auto): LongBench's and InfiniteBench's own measures, part for tasks named qa…, otherwise all."`
	RulerClean string `enum:"kvpress,official,none" default:"kvpress" help:"Clean answers before scoring like kvpress, like the benchmarks' own scripts (official), or not at all."`
	CodeSim    string `enum:"difflib,indel" default:"difflib" help:"Measure the similarity of code by matching blocks (difflib) or the longest common subsequence (indel)."`
}

func (f *scoringFlags) scoring() scoring.Options {
	return scoring.Options{Match: scoring.Match(f.Match), Clean: scoring.Clean(f.RulerClean), CodeSim: scoring.CodeSim(f.CodeSim)}
}

// evalSettings holds everything that answers depend on, and which questions are
// answered.
type evalSettings struct {
	Model        string          `json:"model"`
	Precision    model.Precision `json:"precision"`
	Device       string          `json:"device,omitempty"` // with its driver: bits depend on both
	DeviceLayers int             `json:"device_layers,omitempty"`
	CacheType    string          `json:"cache_type"`
	MaxContext   int             `json:"max_context"`
	MaxCache     int64           `json:"max_cache_bytes,omitempty"`
	Data         []eval.DataFile `json:"data"`
	Truncate     eval.Truncate   `json:"truncate,omitempty"`
	Items        int             `json:"items"`
	Limit        int             `json:"limit,omitempty"`
	Fraction     float64         `json:"fraction,omitempty"`
	Seed         uint64          `json:"seed"`
	MaxNewTokens int             `json:"max_new_tokens"`
	MaxGen       string          `json:"max_gen,omitempty"`          // of LongBench and InfiniteBench; "": kvpress's
	Longbench    string          `json:"longbench_config,omitempty"` // SHA-256 of prompts and lengths from files; "": our own
	Match        scoring.Match   `json:"match"`
	Clean        scoring.Clean   `json:"clean"`
	CodeSim      scoring.CodeSim `json:"code_sim"`
	QueryAware   bool            `json:"query_aware"`
	MeasureLoss  bool            `json:"measure_loss,omitempty"`
	SharePrefill bool            `json:"share_prefill"`
	Framing      dialog.Framing  `json:"framing"`
	Measure      string          `json:"measure,omitempty"` // kl; "": score
	Reference    string          `json:"reference_cache,omitempty"`
	Original     string          `json:"reference_model,omitempty"` // identity
	Methods      []evalMethod    `json:"methods"`
}

type evalMethod struct {
	Name   string       `json:"name"`
	Policy *lukv.Policy `json:"policy"` // as in force; null: the full cache

	MaxLoss *float64 `json:"max_loss,omitempty"` // chooses the policy's ratio
}

// evalFormat is the format identifier that eval --json prints.
const evalFormat = "lukv eval 1"

// evalResult is printed by eval --json.
type evalResult struct {
	Format   string        `json:"format"`
	Settings evalSettings  `json:"settings"`
	Hash     string        `json:"settings_hash"`
	Version  versionInfo   `json:"version"`
	Rows     []eval.Row    `json:"rows"`
	Notes    []evalNote    `json:"notes"`
	Failed   []eval.Answer `json:"failed"`
}

// evalNote is a note about a method, from the first of its answers that has any,
// with the number of answers that have notes.
type evalNote struct {
	Method  string `json:"method"`
	Note    string `json:"note"`
	Answers int    `json:"answers"`
}

// truncation returns how contexts of items that are too long are shortened.
func (c *evalCmd) truncation(items []eval.Item) eval.Truncate {
	switch c.Truncate {
	case "error":
		return eval.TruncateError
	case "auto":
		if slices.ContainsFunc(items, func(it eval.Item) bool { return eval.Benchmark(it.Task) != "longbench" }) {
			return eval.TruncateError
		}
		return eval.TruncateMiddle
	}
	return eval.Truncate(c.Truncate)
}

func (c *evalCmd) Run(e *env) error {
	if err := c.check(); err != nil {
		return err
	}
	questions, err := c.questions(e)
	if err != nil {
		return err
	}
	m, framing, err := c.openFramed(e, c.Raw)
	if err != nil {
		return err
	}
	defer m.Close()
	methods, err := c.methods(m)
	if err != nil {
		return err
	}
	o := eval.Options{
		Framing: framing, MaxNewTokens: c.MaxNewTokens,
		Scoring: c.scoring(), Truncate: c.truncation(questions.items), Parallel: c.Parallel, Memory: int64(c.Memory),
		Session: c.session(), OwnPrefills: !c.SharePrefill, QueryAware: c.QueryAware, MeasureLoss: c.MeasureLoss,
	}
	settings := evalSettings{
		MaxGen: c.maxGen(), Longbench: questions.longbench,
		Model: m.ID(), Precision: m.Precision(), CacheType: c.CacheType, MaxContext: c.MaxContext, MaxCache: int64(c.MaxCache),
		Data: questions.data, Truncate: o.Truncate, Items: len(questions.items), Limit: c.Limit, Fraction: c.Fraction, Seed: c.Seed, MaxNewTokens: c.MaxNewTokens,
		Match: o.Scoring.Match, Clean: o.Scoring.Clean, CodeSim: o.Scoring.CodeSim, QueryAware: c.QueryAware, MeasureLoss: c.MeasureLoss, SharePrefill: c.SharePrefill, Framing: framing,
	}
	if dev := m.Device(); dev != nil {
		settings.Device, settings.DeviceLayers = dev.Info().Name+", "+dev.Info().Driver, m.DeviceLayers()
		if units := dev.Info().Matrices; units != "" && !strings.HasPrefix(units, "none: ") {
			settings.Device += ", matrices " + units // they change the bits
		}
	}
	for _, x := range methods {
		policy, err := inForce(m, c.session(), x.Policy)
		if err != nil {
			return fmt.Errorf("method %s: %w", x.Name, err)
		}
		settings.Methods = append(settings.Methods, evalMethod{x.Name, policy, x.MaxLoss})
	}
	if c.Measure == "kl" {
		if c.MeasureLoss || len(c.MaxLoss) > 0 {
			return usage("--measure kl: found --measure-loss or --max-loss, expected neither")
		}
		settings.Measure, settings.Reference = c.Measure, c.Reference
		if c.Reference != "" {
			o.ReferenceType, o.ReferenceValues = cacheTypes(c.Reference)
		}
		if c.Original != "" {
			if o.Reference, err = c.runtimeFlags.open(e, c.Original); err != nil {
				return fmt.Errorf("reference: %w", err)
			}
			defer o.Reference.Close()
			settings.Original = o.Reference.ID()
		}
		return c.divergence(e, m, questions, methods, o, settings)
	}
	return c.evaluate(e, m, questions, methods, o, settings)
}

// hash identifies the settings that a file of answers belongs to. It leaves out the
// choice of questions, so that a run can be extended with more of them.
func (s evalSettings) hash() string {
	s.Items, s.Limit, s.Fraction = 0, 0, 0
	sum := sha256.Sum256([]byte(compact(s)))
	return hex.EncodeToString(sum[:8])
}

func (c *evalCmd) evaluate(e *env, m *model.Model, questions evalQuestions, methods []eval.Method, o eval.Options, settings evalSettings) error {
	hash := settings.hash()
	record := recorder[eval.Answer]{
		path: cmp.Or(c.Out, c.Items), verb: "answered", nouns: "answers",
		places: questions.places, item: func(a *eval.Answer) *int { return &a.Item },
	}
	var folder *runs.Folder
	var err error
	switch {
	case c.Out != "":
		if folder, err = runs.Open(c.Out, c.info(e, settings, hash)); err == nil {
			record.log = folder.Log
		}
	case c.Items != "":
		record.log, err = eval.OpenLog[eval.Answer](c.Items, hash, settings)
	}
	if err != nil {
		return err
	}
	answers, err := record.run(e, o, func(o eval.Options, emit func(eval.Answer) error) error {
		return eval.Run(e.ctx, m, questions.items, methods, o, emit)
	})
	if err != nil {
		return err
	}
	result := evalResult{Format: evalFormat, Settings: settings, Hash: hash, Version: readVersion()}
	return c.print(e, result, folder, methods, answers)
}

// info returns the description of the run in its folder.
func (c *evalCmd) info(e *env, settings evalSettings, hash string) runs.Info {
	info := runs.Info{Hash: hash, Settings: json.RawMessage(compact(settings)), Command: e.commandLine(), Version: readVersion(), Started: time.Now().UTC()}
	for _, d := range settings.Data {
		if d.Data != "" {
			info.Data = d.Data
		}
	}
	return info
}

// inForce returns a policy with every parameter written out, as sessions of the
// model use it; nil for nil.
func inForce(m *model.Model, o model.SessionOptions, p *lukv.Policy) (*lukv.Policy, error) {
	o.Compression = p
	s, err := m.NewSession(o)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Policy(), nil
}

// writePolicies lists the policies of a table's methods, below the table.
func writePolicies(w io.Writer, methods []evalMethod) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\npolicies")
	for _, m := range methods {
		if m.Policy == nil {
			fmt.Fprintf(t, "  %s\tnothing is removed\n", m.Name)
			continue
		}
		fmt.Fprintf(t, "  %s\t%s\n", m.Name, m.Policy)
	}
	return t.Flush()
}

// evalNotes gathers the notes of answers, one note per method.
func evalNotes(answers []eval.Answer) []evalNote {
	notes := []evalNote{}
	for _, a := range answers {
		if len(a.Notes) == 0 {
			continue
		}
		i := slices.IndexFunc(notes, func(n evalNote) bool { return n.Method == a.Method })
		if i < 0 {
			i = len(notes)
			notes = append(notes, evalNote{Method: a.Method, Note: strings.Join(a.Notes, "; ")})
		}
		notes[i].Answers++
	}
	return notes
}

// placesOf returns the place of each method by its name.
func placesOf(methods []eval.Method) map[string]int {
	at := map[string]int{}
	for i, m := range methods {
		at[m.Name] = i
	}
	return at
}

// print prints rows in the order of methods and tasks, whatever order the answers
// of a resumed run are in.
func (c *evalCmd) print(e *env, result evalResult, folder *runs.Folder, methods []eval.Method, answers []eval.Answer) error {
	at := placesOf(methods)
	slices.SortStableFunc(answers, func(a, b eval.Answer) int {
		if d := at[a.Method] - at[b.Method]; d != 0 {
			return d
		}
		return a.Item - b.Item
	})
	result.Rows = eval.Summarize(answers)
	result.Failed = []eval.Answer{}
	for _, a := range answers {
		if a.Error != "" {
			result.Failed = append(result.Failed, a)
		}
	}
	result.Notes = evalNotes(answers)
	if folder != nil {
		if err := folder.Finish(result.Rows, policies(result.Settings.Methods)); err != nil {
			return err
		}
	}
	if err := c.printRows(e, &result); err != nil {
		return err
	}
	for _, n := range result.Notes {
		e.note("note: %s, %s: %s", n.Method, report.Count(n.Answers, "answer"), n.Note)
	}
	for _, a := range result.Failed {
		fmt.Fprintf(e.err, "failed: %s, line %d, task %s: %s\n", a.Method, a.Line, a.Task, a.Error)
	}
	if n := len(result.Failed); n > 0 {
		return fmt.Errorf("%d of %d answers failed", n, len(answers))
	}
	return nil
}

// policies returns the methods' policies as JSON, by name.
func policies(methods []evalMethod) map[string]string {
	out := map[string]string{}
	for _, m := range methods {
		if m.Policy != nil {
			out[m.Name] = m.Policy.String()
		}
	}
	return out
}

func (c *evalCmd) printRows(e *env, result *evalResult) error {
	switch {
	case c.JSON:
		return report.WriteJSON(e.out, result)
	case c.CSV:
		return eval.WriteCSV(e.out, result.Rows, policies(result.Settings.Methods))
	case c.Markdown:
		if err := eval.WriteMarkdown(e.out, result.Rows); err != nil {
			return err
		}
		for _, m := range result.Settings.Methods {
			if m.Policy != nil {
				fmt.Fprintf(e.out, "\n%s: `%s`\n", m.Name, m.Policy)
			}
		}
		return nil
	}
	if err := eval.WriteTable(e.out, result.Rows); err != nil {
		return err
	}
	return writePolicies(e.out, result.Settings.Methods)
}

func (c *evalCmd) check() error {
	switch {
	case c.MaxNewTokens < 1:
		return usage("--max-new-tokens: found %d, expected at least 1", c.MaxNewTokens)
	case c.Parallel < 1 || c.Parallel > maxThreads:
		return usage("--parallel: found %d, expected 1 to %d", c.Parallel, maxThreads)
	case c.Items == "-" || c.Out == "-":
		return usage("--items and --out: a run could not go on from standard output; --json prints the results there")
	}
	return nil
}

// evalQuestions are the questions of a run.
type evalQuestions struct {
	items  []eval.Item
	places []int // of the items among all of the data; they identify answers
	data   []eval.DataFile

	longbench string // SHA-256 of LongBench's configuration, if it comes from files
}

// maxGen returns --max-gen for the settings, "" for the default, so that runs that do
// not use it keep their hashes.
func (c *evalCmd) maxGen() string {
	if c.MaxGen == "kvpress" {
		return ""
	}
	return c.MaxGen
}

// questions reads the data and draws the subset.
func (c *evalCmd) questions(e *env) (evalQuestions, error) {
	o := eval.DataOptions{LongBench: &eval.LongBench{}, Extended: c.LongbenchE}
	config := ""
	if c.LongbenchConfig != "" {
		var err error
		if o.LongBench, err = eval.ReadLongBench(inputfile.Dir(c.LongbenchConfig)); err != nil {
			return evalQuestions{}, err
		}
		sum := sha256.Sum256([]byte(compact(o.LongBench)))
		config = hex.EncodeToString(sum[:])
	}
	o.LongBench.ExactLength = c.MaxGen == "official"
	var items []eval.Item
	var data []eval.DataFile
	for _, path := range c.Data {
		more, files, err := c.read(e, path, o)
		if err != nil {
			return evalQuestions{}, err
		}
		items, data = append(items, more...), append(data, files...)
	}
	if len(c.Data) == 0 {
		if c.Model != builtin.Name {
			return evalQuestions{}, usage("--data is missing: only %s brings samples of its own", builtin.Name)
		}
		var err error
		if items, data, err = readBytes("builtin samples", builtin.SamplesJSONL()); err != nil {
			return evalQuestions{}, err
		}
		data[0].Data = "builtin"
	}
	items, places, err := eval.Subset(items, c.Fraction, c.Limit, c.Seed)
	if err != nil {
		return evalQuestions{}, usageError{err}
	}
	return evalQuestions{items, places, data, config}, nil
}

// read reads questions from a path, - for standard input.
func (c *evalCmd) read(e *env, path string, o eval.DataOptions) ([]eval.Item, []eval.DataFile, error) {
	if path != "-" {
		o.Skipped = func(name, why string) { e.note("left out %s: %s", name, why) }
		return eval.ReadData(path, o)
	}
	raw, err := e.readText(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read data: %w", err)
	}
	return readBytes(path, raw)
}

// readBytes reads questions that are in memory.
func readBytes(name string, raw []byte) ([]eval.Item, []eval.DataFile, error) {
	items, err := eval.ReadItems(bytes.NewReader(raw), name)
	if err != nil {
		return nil, nil, err
	}
	sum := sha256.Sum256(raw)
	return items, []eval.DataFile{{Name: name, SHA256: hex.EncodeToString(sum[:]), Items: len(items), Data: items[0].Data}}, nil
}

// methods returns the full cache and the cross product of the flags.
func (c *evalCmd) methods(m *model.Model) ([]eval.Method, error) {
	bounds, err := c.bounds()
	if err != nil {
		return nil, err
	}
	var ratios []float64
	if len(bounds) == 0 {
		ratios = []float64{0.5, 0.8, 0.9}
	}
	budgets, err := c.budgets(ratios...)
	if err != nil {
		return nil, err
	}
	decode, err := parseDecode(c.Decode)
	if err != nil {
		return nil, err
	}
	profiles, err := loadProfiles(c.Profile)
	if err != nil {
		return nil, err
	}
	var out []eval.Method
	seen := map[string]bool{}
	add := func(method eval.Method) {
		if !seen[method.Name] {
			seen[method.Name] = true
			out = append(out, method)
		}
	}
	if !c.NoFull {
		add(eval.Method{Name: "full"})
	}
	shapes, err := c.shapes(decode)
	if err != nil {
		return nil, err
	}
	for _, shape := range shapes {
		if shape.Policy.Protection, err = c.protection(shape.Policy.Metric); err != nil {
			return nil, err
		}
		profile, err := profiles.of(m, c.Model, shape.Policy)
		if err != nil {
			return nil, err
		}
		if profile != nil {
			shape.Policy.Profile = profile
			if shape.Policy.ProfileDigest, err = profile.Digest(); err != nil {
				return nil, err
			}
		}
		for _, budget := range budgets {
			p := *shape.Policy
			budget.give(&p)
			if err := p.Validate(); err != nil {
				return nil, usageError{err}
			}
			add(eval.Method{Name: shape.Name + policyName(p.Metric, p.Allocator, budget.String()), Policy: &p})
		}
		for _, bound := range bounds {
			add(eval.Method{Name: shape.Name + policyName(shape.Policy.Metric, shape.Policy.Allocator, fmt.Sprintf("loss-%g", bound)), Policy: shape.Policy, MaxLoss: &bound})
		}
	}
	if err := profiles.unused(); err != nil {
		return nil, err
	}
	if len(bounds) > 0 && decode.Enabled() {
		return nil, usage("--max-loss: found --decode, expected policies that compress the context only")
	}
	if len(out) == 0 || c.Measure == "kl" && len(out) == 1 && out[0].Policy == nil {
		return nil, errors.New("no methods to evaluate")
	}
	return out, nil
}

// bounds reads the list of --max-loss.
func (c *evalCmd) bounds() ([]float64, error) {
	var out []float64
	for _, s := range splitList(c.MaxLoss) {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || !(x >= 0 && x <= 1) {
			return nil, usage("--max-loss: found %q, expected 0 to 1", s)
		}
		out = append(out, x)
	}
	return out, nil
}

// shapes returns the policies without budgets: the presets by name, and the cross
// product of metrics and allocators, where an empty list means its default
// unless both are empty and there are presets.
func (c *evalCmd) shapes(decode lukv.DecodeConfig) ([]eval.Method, error) {
	var out []eval.Method
	for _, name := range splitList(c.Preset) {
		p, err := presetPolicy(name, "")
		if err != nil {
			return nil, err
		}
		if decode.Enabled() {
			p.Decode = decode
		}
		p.KVPressRounding = p.KVPressRounding || c.Compat
		out = append(out, eval.Method{Name: name + ": ", Policy: &p})
	}
	metrics, allocators := splitList(c.Metric), splitList(c.Allocator)
	if len(out) > 0 && len(metrics) == 0 && len(allocators) == 0 {
		return out, nil
	}
	if len(metrics) == 0 {
		metrics = []string{"snapkv"}
	}
	if len(allocators) == 0 {
		allocators = []string{"uniform"}
	}
	for _, m := range metrics {
		metric, err := parseMetric(m)
		if err != nil {
			return nil, err
		}
		for _, a := range allocators {
			allocator, err := parseAllocator(a)
			if err != nil {
				return nil, err
			}
			out = append(out, eval.Method{Policy: &lukv.Policy{Metric: metric, Allocator: allocator, Decode: decode, KVPressRounding: c.Compat}})
		}
	}
	return out, nil
}

// policyName names a policy in tables.
func policyName(metric lukv.MetricConfig, allocator lukv.AllocatorConfig, budget string) string {
	a := allocator.Name
	if compact(allocator) != compact(lukv.AllocatorConfig{Name: a}) {
		a = compact(allocator)
	}
	return metricName(metric) + "/" + a + "/" + budget
}
