package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/eval/ruler"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/tokenizer"
)

type genCmd struct {
	Ruler genRulerCmd `cmd:"" help:"Generate questions of RULER's thirteen tasks at any length."`
}

func (genCmd) Help() string {
	return `Examples:

  lukv gen ruler DIR -o data --length 4096 --samples 20`
}

type genRulerCmd struct {
	Model   string   `arg:"" help:"Model whose tokenizer counts the tokens: checkpoint folder, GGUF file, or name of a model fetched by lukv pull."`
	Out     string   `short:"o" required:"" placeholder:"DIR" help:"Write DIR/LENGTH/TASK/validation.jsonl."`
	Length  []string `sep:"none" placeholder:"N,…" help:"Make questions of N tokens, context and answer included (default 4096)."`
	Task    []string `sep:"none" placeholder:"NAME,…" help:"Make these tasks (default all): niah_single_1 to _3, niah_multikey_1 to _3, niah_multivalue, niah_multiquery, vt, cwe, fwe, qa_1, qa_2."`
	Samples int      `default:"20" placeholder:"N" help:"Make N questions of each task (default ${default})."`
	Seed    uint64   `default:"42" placeholder:"N" help:"Set the random seed (default ${default})."`

	Essays    string `placeholder:"PATH" help:"Hide needles in this text: PaulGrahamEssays.json, a .txt file, or a folder of .txt files."`
	Noise     string `placeholder:"FILE" help:"Fill lines with the sentences of FILE."`
	Words     string `placeholder:"DIR" help:"Read nounlist.txt, adjectivelist.txt and verblist.txt from DIR."`
	MoreWords string `placeholder:"FILE" help:"Read words for long lists from FILE: english_words.json, or one word per line."`
	Squad     string `placeholder:"FILE" help:"Read SQuAD's dev-v2.0.json, for qa_1."`
	Hotpot    string `placeholder:"FILE" help:"Read HotpotQA's hotpot_dev_distractor_v1.json, for qa_2."`
	Templates string `placeholder:"FILE" help:"Read the wording from FILE: JSON of {family: {template, answer_prefix, tokens_to_generate}} with RULER's families (niah, variable_tracking, common_words_extraction, freq_words_extraction, qa) and slots."`
}

func (genRulerCmd) Help() string {
	return `Write the files of RULER's own scripts, by the same rules. Words, essays, documents and wording are built in unless flags name RULER's originals; scores on built-in data compare methods with each other, not with published figures, and its lines say "data": "builtin". Equal arguments give equal bytes.

The questions are for instruction-tuned models. The embedded model (builtin) only retrieves sentences like those it was trained on and scores about 0 on them: for a test of the pipeline, evaluate it on its own samples (lukv eval builtin).

Examples:

  lukv gen ruler DIR -o data --length 4096,8192

  lukv gen ruler DIR -o data --task qa_1 --squad dev-v2.0.json --templates official.json

  lukv eval DIR --data data/4096/niah_single_1/validation.jsonl --ratio 0.8`
}

func (c *genRulerCmd) Run(e *env) error {
	if c.Samples < 1 {
		return usage("--samples: found %d, expected at least 1", c.Samples)
	}
	tasks := splitList(c.Task)
	for _, t := range tasks {
		if !slices.Contains(ruler.Tasks(), t) {
			return usage("--task: found %q, expected one of %s", t, strings.Join(ruler.Tasks(), ", "))
		}
	}
	if len(tasks) == 0 {
		tasks = ruler.Tasks()
	}
	lengths := []int{}
	for _, s := range splitList(c.Length) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return usage("--length: found %q, expected a number of tokens", s)
		}
		lengths = append(lengths, n)
	}
	if len(lengths) == 0 {
		lengths = []int{4096}
	}
	tok, err := openTokenizer(c.Model)
	if err != nil {
		return err
	}
	sources, err := c.sources()
	if err != nil {
		return err
	}
	count := func(ctx context.Context, s string) (int, error) {
		ids, err := tok.EncodeContext(ctx, s, math.MaxInt, tokenizer.EncodeOptions{SpecialAsText: true})
		return len(ids), err
	}
	line := e.progress()
	defer line.clear()
	for _, length := range lengths {
		for i, task := range tasks {
			line.show("%d tokens: task %d of %d", length, i+1, len(tasks))
			o := ruler.Options{Task: task, Length: length, Samples: c.Samples, Seed: c.Seed, Count: count, Tokenizer: c.Model, Sources: sources}
			path := filepath.Join(c.Out, strconv.Itoa(length), task, "validation.jsonl")
			if err := c.write(e, path, o); err != nil {
				return err
			}
		}
	}
	line.clear()
	fmt.Fprintf(e.out, "wrote %s: %s for each of %s at %s\n", c.Out, report.Count(c.Samples, "question"), report.Count(len(tasks), "task"), report.Count(len(lengths), "length"))
	return nil
}

// sources reads the files that the flags name.
func (c *genRulerCmd) sources() (*ruler.Sources, error) {
	s := &ruler.Sources{}
	for _, x := range []struct {
		path string
		read func(string) error
	}{
		{c.Essays, s.ReadEssays}, {c.Noise, s.ReadNoise}, {c.Words, s.ReadWords}, {c.MoreWords, s.ReadMoreWords},
		{c.Squad, s.ReadSQuAD}, {c.Hotpot, s.ReadHotpot}, {c.Templates, s.ReadTemplates},
	} {
		if x.path == "" {
			continue
		}
		if err := x.read(x.path); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (c *genRulerCmd) write(e *env, path string, o ruler.Options) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return atomicfile.Write(path, 0o666, func(w io.Writer) error {
		lines := json.NewEncoder(w)
		lines.SetEscapeHTML(false)
		return ruler.Generate(e.ctx, o, func(s *ruler.Sample) error { return lines.Encode(s) })
	})
}
