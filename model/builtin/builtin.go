package builtin

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer/chat"
)

//go:embed config.json generation_config.json tokenizer.json tokenizer_config.json model.safetensors
var files embed.FS

//go:embed eval_samples.jsonl
var samples []byte

//go:embed calibration.jsonl
var calibrationTexts []byte

//go:embed profiles/*.json profiles/output-error/*.json
var profiles embed.FS

// Name is what the command calls the model.
const Name = "builtin"

// Files returns the checkpoint as a folder in the layout of published models.
func Files() fs.FS { return files }

// Open loads the model. The caller closes it.
func Open(ctx context.Context, opts ...model.Option) (*model.Model, error) {
	m, err := model.OpenFS(ctx, files, opts...)
	if err != nil {
		return nil, fmt.Errorf("builtin model: %w", err)
	}
	return m, nil
}

// Sample is a question about a context, of the kind the model was made to
// answer. The model was never trained on it.
type Sample struct {
	Task         string   `json:"task"`
	Length       int      `json:"length"`        // nominal context length in tokens
	PromptTokens int      `json:"prompt_tokens"` // tokens of Prompt's two parts together
	Context      string   `json:"context"`
	Question     string   `json:"question"`
	AnswerPrefix string   `json:"answer_prefix"`
	Answers      []string `json:"answers"`     // all must appear in the output
	AnswerText   string   `json:"answer_text"` // the whole expected continuation
}

// Samples returns the 221 samples that come with the model.
func Samples() []Sample { return decodeLines[Sample](samples) }

// Profile returns the model's profile of the published objective for a metric in
// its default configuration. It returns nil for other configurations, and for
// per_head, which has no default: measure those with lukv profile builtin, which
// also made the embedded ones.
func Profile(metric lukv.MetricConfig) (*lukv.Profile, error) { return profile("profiles/", metric) }

// OutputErrorProfile is Profile of output errors with layers weighted by the effect
// of cutting each (lukv profile builtin --objective output-error).
func OutputErrorProfile(metric lukv.MetricConfig) (*lukv.Profile, error) {
	return profile("profiles/output-error/", metric)
}

func profile(folder string, metric lukv.MetricConfig) (*lukv.Profile, error) {
	m, err := lukv.NewMetric(metric)
	if err != nil {
		return nil, err
	}
	full := lukv.MetricConfigOf(m)
	data, err := profiles.ReadFile(folder + full.Name + ".json")
	if err != nil {
		return nil, nil
	}
	p, err := lukv.ReadProfile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("builtin profile of %s: %w", full.Name, err)
	}
	if p.Identity.Metric.String() != full.String() {
		return nil, nil
	}
	return p, nil
}

// decodeLines reads embedded JSON Lines.
func decodeLines[T any](text []byte) []T {
	var out []T
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text))
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			panic(fmt.Sprintf("builtin: embedded data: %v", err))
		}
		out = append(out, v)
	}
	return out
}

// CalibrationText is a context to measure profiles on, with questions about
// different parts of it.
type CalibrationText struct {
	Context   string                `json:"context"`
	Questions []CalibrationQuestion `json:"questions"`
}

// CalibrationQuestion is a question with the beginning of its answer.
type CalibrationQuestion struct {
	Question     string   `json:"question"`
	AnswerPrefix string   `json:"answer_prefix"`
	Answers      []string `json:"answers"`
}

// Calibration returns eight contexts of about 1,900 tokens with ten questions
// each, made by the model's own generator with seeds that occur neither in its
// training nor in Samples.
func Calibration() []CalibrationText { return decodeLines[CalibrationText](calibrationTexts) }

// SamplesJSONL returns the samples as stored in eval_samples.jsonl.
func SamplesJSONL() []byte { return bytes.Clone(samples) }

// Prompt returns the two parts of the prompt of a question about a context: the
// part that can be compressed before the question is known, and the rest. The
// markers are special tokens; encode both parts with their data and without
// adding special tokens.
func Prompt(context, question, answerPrefix string) (head, tail chat.Prompt) {
	own := func(text string) chat.Prompt { return chat.Prompt{Text: text} }
	return chat.Join(own("<s><|user|>"), chat.Data(context)),
		chat.Join(own("\n\n"), chat.Data(question), own("<|assistant|>"), chat.Data(answerPrefix))
}
