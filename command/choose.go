package command

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

type chooseCmd struct {
	modelFlags
	Document []string `short:"d" sep:"none" required:"" placeholder:"FILE" help:"Measure on this text; - is standard input. May be repeated: five documents of the kind that will be asked about are enough."`

	Metric    []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Compare these metrics (default ${choosemetrics}): ${metrics}; or JSON objects."`
	Allocator []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Compare these allocators (default adakv): ${allocators}; or JSON objects."`
	Ratio     []string `group:"policy" sep:"none" placeholder:"R,…" help:"Remove these fractions of each document's cache (default 0.3,0.5,0.7,0.8,0.9)."`
	Profile   []string `group:"policy" sep:"none" placeholder:"FILE" help:"Read profiles for the allocator lukv, one per metric. May be repeated."`
	protectFlags

	Raw  bool `help:"Do not apply the chat template."`
	JSON bool `name:"json" help:"Print one JSON object."`
}

// chooseMetrics are the metrics that choose compares by default: those that need neither a
// profile nor a second reading.
const chooseMetrics = "key_distance,keydiff,snapkv,expected_attention,knorm"

var chooseRatios = []string{"0.3", "0.5", "0.7", "0.8", "0.9"}

func (chooseCmd) Help() string {
	return `No questions are needed: every document is read once with the full cache, which is asked to repeat passages that surprised the model. What it can repeat are facts; the table shows the mean share of them that each policy loses at each ratio, the best policy first. The share is a rate and no guarantee for an answer; answers that join several facts fail more often. Documents with fewer than 8 facts are not counted.

Examples:

  lukv choose DIR --document a.txt --document b.txt --document c.txt

  lukv choose DIR -d report.txt --metric keydiff,kvzip --allocator uniform,adakv --ratio 0.5,0.8`
}

func (c *chooseCmd) unused(g given) error {
	if c.Model == builtin.Name {
		if err := g.unused("raw", "prompts of the embedded model are always those of its card"); err != nil {
			return err
		}
	}
	return checkProfile(g, c.Allocator, c.Metric, "")
}

// chooseResult is printed by choose --json.
type chooseResult struct {
	Model     string           `json:"model"`
	Documents []chooseDocument `json:"documents"`
	Policies  []choosePolicy   `json:"policies"` // the best first
}

// chooseDocument is a document and the facts in it.
type chooseDocument struct {
	Path     string `json:"path"`
	Tokens   int    `json:"tokens"`
	Facts    int    `json:"facts"`
	Measured bool   `json:"measured"`
}

// choosePolicy is what a metric with an allocator loses.
type choosePolicy struct {
	Metric    lukv.MetricConfig    `json:"metric"`
	Allocator lukv.AllocatorConfig `json:"allocator"`
	Mean      float64              `json:"facts_lost"` // over the ratios
	Ratios    []chooseCell         `json:"ratios"`

	name string
}

// chooseCell is the mean over the measured documents.
type chooseCell struct {
	Ratio float64 `json:"ratio"`
	Lost  float64 `json:"facts_lost"`
	Nats  float64 `json:"nats"`
	N     int     `json:"documents"`
}

func (c *chooseCmd) Run(e *env) error {
	items, err := c.items(e)
	if err != nil {
		return err
	}
	m, framing, err := c.openFramed(e, c.Raw)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.checkLengths(m, framing, items); err != nil {
		return err
	}
	compared := evalCmd{modelFlags: c.modelFlags, budgetLists: budgetLists{Ratio: c.ratios()}, Metric: c.metrics(), Allocator: c.allocators(),
		Profile: c.Profile, NoFull: true, protectFlags: c.protectFlags}
	methods, err := compared.methods(m)
	if err != nil {
		return err
	}
	line := e.longProgress()
	defer line.clear()
	var answers []eval.Answer
	o := eval.Options{
		Framing: framing, MaxNewTokens: 1, Session: c.session(), MeasureLoss: true,
		Progress: func(done, total int) {
			line.show("measuring: %d of %d caches%s", done, total, line.left(0, done, total))
		},
	}
	run := methods
	if len(run) == 1 { // alone it would not share the full cache, whose passages are those that surprise the model
		run = append(run, eval.Method{Name: "full"})
	}
	err = eval.Run(e.ctx, m, items, run, o, func(a eval.Answer) error {
		if a.Error != "" {
			return fmt.Errorf("%s: %s", c.Document[a.Item], a.Error)
		}
		answers = append(answers, a)
		return nil
	})
	if err != nil {
		return err
	}
	line.clear()
	out := chooseResult{Model: m.ID(), Documents: c.documents(answers), Policies: rankPolicies(methods, answers)}
	if err := out.unmeasured(); err != nil {
		return err
	}
	if c.JSON {
		return e.writeJSON("lukv choose 1", out)
	}
	return out.write(e)
}

func (c *chooseCmd) metrics() []string {
	if len(c.Metric) == 0 {
		return []string{chooseMetrics}
	}
	return c.Metric
}

// allocators returns those to compare, by default one that needs no profile and loses less
// than equal budgets with most metrics.
func (c *chooseCmd) allocators() []string {
	if len(c.Allocator) == 0 {
		return []string{"adakv"}
	}
	return c.Allocator
}

func (c *chooseCmd) ratios() []string {
	if len(c.Ratio) == 0 {
		return chooseRatios
	}
	return c.Ratio
}

// items returns the documents as contexts of an evaluation whose answers nobody reads.
func (c *chooseCmd) items(e *env) ([]eval.Item, error) {
	if n := len(slices.DeleteFunc(slices.Clone(c.Document), func(p string) bool { return p != "-" })); n > 1 {
		return nil, usage("--document -: standard input can be read once")
	}
	var out []eval.Item
	for i, path := range c.Document {
		data, err := e.readText(path)
		if err != nil {
			return nil, fmt.Errorf("read document: %w", err)
		}
		if err := e.checkText(path, data); err != nil {
			return nil, err
		}
		text := strings.TrimSpace(strings.ToValidUTF8(string(data), "\ufffd"))
		if text == "" {
			return nil, usage("--document %s: the document is empty", path)
		}
		out = append(out, eval.Item{Task: fmt.Sprintf("document-%d", i), Context: text, Question: "?", Answers: []string{"?"}})
	}
	return out, nil
}

// checkLengths refuses documents that do not fit into the context with the framing and one token
// of an answer, before anything is measured.
func (c *chooseCmd) checkLengths(m *model.Model, framing dialog.Framing, items []eval.Item) error {
	tok, err := m.Tokenizer()
	if err != nil {
		return err
	}
	limit := m.Config().MaxPositions
	if c.MaxContext > 0 {
		limit = c.MaxContext
	}
	for i, it := range items {
		head, tail := framing.Prompt(it.Context, it.Question, it.AnswerPrefix)
		if n := len(head.Encode(tok)) + len(tail.Encode(tok)); n >= limit {
			return fmt.Errorf("%s: %w: found %d tokens with those around it, expected fewer than %d", c.Document[i], model.ErrContextFull, n, limit)
		}
	}
	return nil
}

// documents describes the documents, in the order in which they were given.
func (c *chooseCmd) documents(answers []eval.Answer) []chooseDocument {
	out := make([]chooseDocument, len(c.Document))
	for i, path := range c.Document {
		out[i].Path = path
	}
	for _, a := range answers {
		d := &out[a.Item]
		d.Tokens, d.Facts, d.Measured = max(d.Tokens, a.ContextTokens), a.Facts, a.FactsLost != nil
	}
	return out
}

// rankPolicies gathers the ratios of each policy and puts the policy that loses least on
// average first; those of equal loss stay in order.
func rankPolicies(methods []eval.Method, answers []eval.Answer) []choosePolicy {
	var out []choosePolicy
	for _, x := range methods {
		name := policyName(x.Policy.Metric, x.Policy.Allocator, "")
		at := slices.IndexFunc(out, func(p choosePolicy) bool { return p.name == name })
		if at < 0 {
			at = len(out)
			out = append(out, choosePolicy{Metric: x.Policy.Metric, Allocator: x.Policy.Allocator, name: name})
		}
		out[at].Ratios = append(out[at].Ratios, cellOf(x, answers))
	}
	for i := range out {
		p := &out[i]
		for _, cell := range p.Ratios {
			p.Mean += cell.Lost / float64(len(p.Ratios))
		}
	}
	slices.SortStableFunc(out, func(a, b choosePolicy) int { return cmp.Compare(a.Mean, b.Mean) })
	return out
}

func cellOf(x eval.Method, answers []eval.Answer) chooseCell {
	cell := chooseCell{Ratio: x.Policy.Ratio}
	for _, a := range answers {
		if a.Method == x.Name && a.FactsLost != nil {
			cell.Lost += *a.FactsLost
			cell.Nats += *a.NatsLost
			cell.N++
		}
	}
	if cell.N > 0 {
		cell.Lost, cell.Nats = cell.Lost/float64(cell.N), cell.Nats/float64(cell.N)
	}
	return cell
}

// unmeasured returns an error if there is no document of which the loss could be measured.
func (r *chooseResult) unmeasured() error {
	var few []string
	for _, d := range r.Documents {
		if d.Measured {
			return nil
		}
		few = append(few, fmt.Sprintf("%s: found %d facts, expected 8 or more", d.Path, d.Facts))
	}
	return fmt.Errorf("the loss was not measured: %s", strings.Join(few, "; "))
}

// write prints the ranking as text.
func (r *chooseResult) write(e *env) error {
	for _, d := range r.Documents {
		note := ""
		if !d.Measured {
			note = ": not measured, too few facts"
		}
		e.note("%s: %d tokens, %d facts%s", filepath.Base(d.Path), d.Tokens, d.Facts, note)
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "facts lost\t")
	for _, cell := range r.Policies[0].Ratios {
		fmt.Fprintf(w, "%g removed\t", cell.Ratio)
	}
	fmt.Fprintln(w, "mean\t")
	for _, p := range r.Policies {
		fmt.Fprintf(w, "%s\t", strings.TrimRight(p.name, "/"))
		for _, cell := range p.Ratios {
			fmt.Fprintf(w, "%.1f %%\t", 100*cell.Lost)
		}
		fmt.Fprintf(w, "%.1f %%\t\n", 100*p.Mean)
	}
	return w.Flush()
}
