package command

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lukv/lukv/eval/study"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
	"github.com/lukv/lukv/tokenizer"
)

type analyzeContinuationCmd struct {
	modelFlags
	Text      []string `sep:"none" placeholder:"FILE" help:"Continue this text (default: the built-in narrative, on which built-in profiles are measured). May be repeated."`
	Prefix    int      `default:"1024" placeholder:"N" help:"Compress the first N tokens of each window (default ${default})."`
	Tokens    int      `default:"256" placeholder:"N" help:"Predict N tokens after the compressed context (default ${default})."`
	Windows   int      `default:"1" placeholder:"N" help:"Use at most N windows per text (default ${default})."`
	Ratio     []string `group:"policy" sep:"none" placeholder:"R,…" help:"Remove these fractions of the context's cache (default 0.5,0.8,0.9)."`
	Metric    []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Rank entries by these metrics (default snapkv): ${metrics}; or JSON objects."`
	Allocator []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Divide the budget by these allocators (default uniform): ${allocators}; or JSON objects."`
	Profile   []string `group:"policy" sep:"none" placeholder:"FILE" help:"Read profiles for the allocator lukv; compare several of one metric that were measured on different texts."`
	analyzeOut
}

func (analyzeContinuationCmd) Help() string {
	return `Measure language modelling after a compressed context: how much harder the rest of a text becomes to predict. Profiles measured on different texts show whether profiles transfer.

Examples:

  lukv analyze continuation builtin --metric snapkv,keydiff --allocator uniform,adakv,lukv -o continuation.json

  lukv analyze continuation DIR --text book.txt --prefix 4096 --tokens 512 --windows 4 --allocator uniform,lukv --profile novel.profile --profile essays.profile -o transfer.json`
}

func (c *analyzeContinuationCmd) Run(e *env) error {
	for _, n := range []struct {
		flag  string
		value int
	}{{"--prefix", c.Prefix}, {"--tokens", c.Tokens}, {"--windows", c.Windows}} {
		if n.value < 1 || n.value > 1<<24 {
			return usage("%s: found %d, expected 1 to %d", n.flag, n.value, 1<<24)
		}
	}
	o := study.ContinuationOptions{Prefix: c.Prefix, Tokens: c.Tokens, Windows: c.Windows, Session: c.session()}
	var err error
	if o.Ratios, err = parseRatios(c.Ratio); err != nil {
		return err
	}
	if len(o.Ratios) == 0 {
		o.Ratios = []float64{0.5, 0.8, 0.9}
	}
	m, err := c.open(e)
	if err != nil {
		return err
	}
	defer m.Close()
	names, err := c.texts(e, m, &o)
	if err != nil {
		return err
	}
	if o.Shapes, err = c.shapes(m); err != nil {
		return err
	}
	line := e.longProgress()
	defer line.clear()
	o.Progress = func(from, done, total int) {
		line.show("predicting: %d of %d%s", done, total, line.left(from, done, total))
	}
	return c.measure(e, m, line, func(state *study.State) (*study.File, error) {
		o.State = state
		figures, err := study.Continuation(e.ctx, m, o)
		return &study.File{Title: "Language modelling after compressed contexts", Model: m.ID(), Data: strings.Join(names, ", "), Figures: figures}, err
	})
}

// texts reads and tokenizes the texts.
func (c *analyzeContinuationCmd) texts(e *env, m *model.Model, o *study.ContinuationOptions) (names []string, err error) {
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	// If the checkpoint begins texts with BOS, every piece begins with it.
	bare, whole := tok.Encode("a", tokenizer.EncodeOptions{}), tok.Encode("a", tokenizer.EncodeOptions{AddSpecial: true})
	if len(whole) > len(bare) && whole[0] == tok.BOS() {
		o.Start = whole[:1]
	}
	add := func(name, text string) error {
		ids := tok.Encode(text, tokenizer.EncodeOptions{SpecialAsText: true})
		if len(ids) < c.Prefix+c.Tokens {
			return fmt.Errorf("text %s: %d tokens, expected at least %d: --prefix and --tokens together", name, len(ids), c.Prefix+c.Tokens)
		}
		names, o.Texts = append(names, name), append(o.Texts, ids)
		return nil
	}
	if len(c.Text) == 0 {
		return names, add("built-in narrative", calibration.Narrative().Context)
	}
	for _, path := range c.Text {
		data, err := e.readText(path)
		if err != nil {
			return nil, fmt.Errorf("read text: %w", err)
		}
		if err := add(filepath.Base(path), string(data)); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// shapes returns the figure's lines: metrics times allocators, where an allocator that
// needs a profile appears once for every profile of the metric.
func (c *analyzeContinuationCmd) shapes(m *model.Model) ([]study.Shape, error) {
	set, err := loadProfiles(c.Profile)
	if err != nil {
		return nil, err
	}
	metrics, allocators := splitList(c.Metric), splitList(c.Allocator)
	if len(metrics) == 0 {
		metrics = []string{"snapkv"}
	}
	if len(allocators) == 0 {
		allocators = []string{"uniform"}
	}
	var out []study.Shape
	for _, text := range metrics {
		metric, err := parseMetric(text)
		if err != nil {
			return nil, err
		}
		for _, text := range allocators {
			allocator, err := parseAllocator(text)
			if err != nil {
				return nil, err
			}
			shape := study.Shape{Name: metricName(metric) + ", " + allocator.Name, Policy: lukv.Policy{Metric: metric, Allocator: allocator}}
			if !allocator.NeedsProfile() {
				if shape.Policy.Profile, err = set.of(m, c.Model, &shape.Policy); err != nil {
					return nil, err
				}
				out = append(out, shape)
				continue
			}
			for _, one := range set.apart(metric) {
				named := shape
				if named.Policy.Profile, err = one.find(m, c.Model, metric, ""); err != nil {
					return nil, err
				}
				if len(one.paths) > 0 && len(c.Profile) > 1 {
					named.Name += " of " + strings.TrimSuffix(filepath.Base(one.paths[0]), ".profile")
				}
				out = append(out, named)
			}
		}
	}
	return out, set.unused()
}

// apart returns a set for each profile that was made for a metric, or the set itself
// if there is none, whose find then reports why.
func (s *profileSet) apart(metric lukv.MetricConfig) []*profileSet {
	if full, err := lukv.NewMetric(metric); err == nil {
		metric = lukv.MetricConfigOf(full)
	}
	var out []*profileSet
	for i, p := range s.profiles {
		if p != nil && p.Identity.Metric.String() == metric.String() {
			s.used[i] = true
			out = append(out, &profileSet{paths: s.paths[i : i+1], profiles: s.profiles[i : i+1], used: make([]bool, 1)})
		}
	}
	if len(out) == 0 {
		return []*profileSet{s}
	}
	return out
}
