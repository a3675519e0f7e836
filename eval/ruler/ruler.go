package ruler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Sample is one question, in the form of RULER's own files.
type Sample struct {
	Index         int      `json:"index"`
	Input         string   `json:"input"` // context and question
	Outputs       []string `json:"outputs"`
	Length        int      `json:"length"` // tokens of input and answer prefix, plus those to generate
	LengthChat    int      `json:"length_w_model_temp"`
	AnswerPrefix  string   `json:"answer_prefix"`
	TokenPosition *int     `json:"token_position_answer,omitempty"` // tokens before the first answer, for needles
	Task          string   `json:"task"`
	Tokenizer     string   `json:"tokenizer"`
	Seed          uint64   `json:"seed"`
	Data          string   `json:"data,omitempty"` // "builtin": includes this project's own texts
}

// MarshalJSON writes a sample in ASCII alone, as RULER's scripts do.
func (s *Sample) MarshalJSON() ([]byte, error) {
	type plain Sample // without this method
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode((*plain)(s)); err != nil {
		return nil, err
	}
	out := make([]byte, 0, b.Len())
	for _, r := range b.String() {
		switch {
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return out, nil
}

// Options say what to generate.
type Options struct {
	Task    string
	Length  int // in tokens, answer included
	Samples int
	Seed    uint64

	Count     func(ctx context.Context, text string) (int, error) // tokens in a text, without special ones
	Tokenizer string                                              // its name, for the record

	Sources *Sources // the user's texts and wording; nil: built-in ones
}

// prompt is a sample without its length.
type prompt struct {
	input, prefix string
	outputs       []string
	lacking       string // what the lists have too few of for this haystack
}

// task says how samples of one task are made.
type task struct {
	name   string
	family string // of the wording
	least  int    // units of the smallest haystack
	make   func(x *draw) prompt
}

// draw is what one sample is made of.
type draw struct {
	*Sources
	r             *rand.Rand
	seed          uint64 // of all samples; see shuffle
	sample        int    // from 0; -1 is not handed out
	length, units int
}

// tasks are all thirteen, in the order of reports.
var tasks = []task{
	niah{haystack: noise, value: number}.task("niah_single_1"),
	niah{haystack: essay, value: number}.task("niah_single_2"),
	niah{haystack: essay, value: uuid}.task("niah_single_3"),
	niah{haystack: essay, value: number, keys: 4}.task("niah_multikey_1"),
	niah{haystack: needles, value: number}.task("niah_multikey_2"),
	niah{haystack: needles, key: uuid, value: uuid}.task("niah_multikey_3"),
	niah{haystack: essay, value: number, values: 4}.task("niah_multivalue"),
	niah{haystack: essay, value: number, queried: 4}.task("niah_multiquery"),
	{"vt", vtFamily, hops + 1, variables},
	{"cwe", cweFamily, common, commonWords},
	{"fwe", fweFamily, 60, frequentWords},
	{"qa_1", qaFamily, 1, oneDocument},
	{"qa_2", qaFamily, 2, twoDocuments},
}

// Tasks returns the names of all tasks.
func Tasks() []string {
	var out []string
	for _, t := range tasks {
		out = append(out, t.name)
	}
	return out
}

// random returns a sample's source of random numbers: PCG, seeded with the seed
// and a hash of task, length and number.
func random(o *Options, sample int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d %d", o.Task, o.Length, sample)
	return rand.New(rand.NewPCG(o.Seed, h.Sum64()))
}

// shuffle puts entries into an order that depends on their number and the seed alone:
// the generator restarts for every sample, as RULER's does, so that samples with as many
// entries have the same ones in the same places.
func shuffle[E any](x *draw, entries []E) {
	r := rand.New(rand.NewPCG(x.seed, 0))
	r.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
}

// Generate makes the samples of a task and hands each to emit. It stops if emit
// returns an error or ctx ends.
func Generate(ctx context.Context, o Options, emit func(*Sample) error) error {
	for _, t := range tasks {
		if t.name == o.Task {
			if o.Sources == nil {
				o.Sources = &Sources{}
			}
			if err := t.generate(ctx, &o, emit); err != nil {
				return fmt.Errorf("ruler %s of %d tokens: %w", t.name, o.Length, err)
			}
			return nil
		}
	}
	return fmt.Errorf("ruler: task %q, expected one of %s", o.Task, strings.Join(Tasks(), ", "))
}

func (t *task) generate(ctx context.Context, o *Options, emit func(*Sample) error) error {
	if o.Samples < 0 || o.Length < 1 || o.Length > 1<<24 {
		return errors.New("expected at least one token, at most 16 million, and no negative number of samples")
	}
	// All samples have the largest haystack that fits one that is not handed
	// out. A sample for which it is too large gets a smaller one.
	units, err := t.fit(ctx, o, -1, 0)
	if err != nil {
		return err
	}
	for i := range o.Samples {
		n := units
		p := t.sample(o, i, n)
		size, err := t.size(ctx, o, &p)
		if err != nil {
			return err
		}
		if size > o.Length || 20*size < 19*o.Length {
			// Its words happen to take many or few tokens: the sample gets a
			// haystack of its own.
			limit := units
			if size < o.Length {
				limit = 0
			}
			if n, err = t.fit(ctx, o, i, limit); err != nil {
				return err
			}
			p = t.sample(o, i, n)
			if size, err = t.size(ctx, o, &p); err != nil {
				return err
			}
		}
		s := &Sample{
			Index: i, Input: p.input, Outputs: p.outputs, Length: size, AnswerPrefix: p.prefix,
			Task: t.name, Tokenizer: o.Tokenizer, Seed: o.Seed, Data: o.Sources.label(t.name),
		}
		s.LengthChat = s.Length
		if strings.HasPrefix(t.name, "niah") {
			at, err := o.Count(ctx, p.input[:strings.Index(p.input, p.outputs[0])])
			if err != nil {
				return err
			}
			s.TokenPosition = &at
		}
		if err := emit(s); err != nil {
			return err
		}
	}
	return nil
}

// sample makes a sample with a haystack of the given size.
func (t *task) sample(o *Options, sample, units int) prompt {
	return t.make(&draw{o.Sources, random(o, sample), o.Seed, sample, o.Length, units})
}

// size is the length of a prompt with its answer, or math.MaxInt if the lists
// lack words for it.
func (t *task) size(ctx context.Context, o *Options, p *prompt) (int, error) {
	if p.lacking != "" {
		return math.MaxInt, nil
	}
	n, err := o.Count(ctx, p.input+p.prefix)
	return n + o.Sources.wording(t.family).Tokens, err
}

// fit returns the largest haystack with which a sample fits, less than limit if
// that is not 0.
func (t *task) fit(ctx context.Context, o *Options, sample, limit int) (int, error) {
	lacking := "" // in the smallest haystack that does not fit
	size := func(units int) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		p := t.sample(o, sample, units)
		n, err := t.size(ctx, o, &p)
		if n > o.Length {
			lacking = p.lacking
		}
		return n, err
	}
	least, err := size(t.least)
	if err != nil {
		return 0, err
	}
	if lacking != "" {
		return 0, fmt.Errorf("the lists have too few %s", lacking)
	}
	if least > o.Length {
		return 0, fmt.Errorf("even the smallest haystack does not fit: expected at least %d tokens", least)
	}
	low, high := t.least, limit // fits; does not fit
	longest := least
	for high == 0 || high-low > 1 {
		units := (low + high) / 2
		if high == 0 {
			units = 2 * low
		}
		n, err := size(units)
		if err != nil {
			return 0, err
		}
		if n > o.Length {
			high = units
		} else {
			low, longest = units, n
		}
	}
	if lacking != "" {
		return 0, fmt.Errorf("the lists have too few %s: expected at most %d tokens", lacking, longest)
	}
	return low, nil
}
