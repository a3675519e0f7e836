package command

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

type embedCmd struct {
	modelFlags

	Texts []string `arg:"" optional:"" name:"text" help:"Texts (default: the lines of standard input)."`

	Pooling    string `enum:"auto,last,mean" default:"auto" help:"Make the vector of the last token's hidden state or of the mean over all: ${enum} (default: as the checkpoint says)."`
	Normalize  *bool  `negatable:"" help:"Scale vectors to a length of 1 (default: as the checkpoint says; with --pooling, yes)."`
	Dimensions int    `placeholder:"N" help:"Keep the first N elements (default: all)."`
	JSON       bool   `help:"Print one JSON object."`
}

func (embedCmd) Help() string {
	return `Print a vector for each text, as a line of JSON, from the hidden states after the model's last norm. Checkpoints of embeddings say in modules.json how these become one vector; for other models, --pooling does.

Examples:

  lukv embed Qwen/Qwen3-Embedding-0.6B "The cat sat on the mat." "A feline rested."

  lukv embed Qwen/Qwen3-Embedding-0.6B --dimensions 256 < lines.txt > vectors.jsonl`
}

// embeddedText is one text of embed --json.
type embeddedText struct {
	Tokens    int       `json:"tokens"`
	Embedding []float32 `json:"embedding"`
}

func (c *embedCmd) Run(e *env) error {
	if c.Dimensions < 0 {
		return usage("--dimensions: found %d, expected 1 or more", c.Dimensions)
	}
	texts, err := c.texts(e)
	if err != nil {
		return err
	}
	m, err := c.open(e)
	if err != nil {
		return err
	}
	defer m.Close()
	how, err := c.how(m)
	if err != nil {
		return err
	}
	if most := m.Config().Hidden; c.Dimensions > most {
		return usage("--dimensions: found %d, expected at most %d, those of the model", c.Dimensions, most)
	}
	prompts, err := encodeTexts(e, m, texts)
	if err != nil {
		return err
	}
	o := engine.Options{MaxTokens: c.MaxContext, MaxBytes: int64(c.MaxCache), PrefixCacheBytes: -1}
	o.CacheType, o.CacheValues = cacheTypes(c.CacheType)
	en, err := engine.New(m, o)
	if err != nil {
		return err
	}
	defer en.Close()
	vectors, err := en.Embed(e.ctx, engine.Request{}, prompts, how, c.Dimensions)
	if err != nil {
		return err
	}
	return c.print(e, how, prompts, vectors)
}

// texts returns the texts: arguments, or else lines.
func (c *embedCmd) texts(e *env) ([]string, error) {
	texts := c.Texts
	if len(texts) == 0 {
		data, err := e.readText("-")
		if err != nil {
			return nil, err
		}
		texts = strings.Split(strings.TrimSuffix(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n"), "\n")
	}
	for i, text := range texts {
		if text == "" {
			return nil, usage("text %d is empty", i+1)
		}
	}
	return texts, nil
}

// how returns how hidden states become one vector.
func (c *embedCmd) how(m *model.Model) (model.Embedding, error) {
	how := model.Embedding{Pooling: model.Pooling(c.Pooling), Normalize: true}
	if c.Pooling == "auto" {
		var err error
		if how, err = m.Embedding(); errors.Is(err, model.ErrNoEmbedding) {
			return how, usage("the checkpoint does not say how its hidden states become one vector: expected --pooling last or mean")
		} else if err != nil {
			return how, err
		}
	}
	if c.Normalize != nil {
		how.Normalize = *c.Normalize
	}
	return how, nil
}

// encodeTexts returns the tokens of texts, with those that the tokenizer puts around each.
func encodeTexts(e *env, m *model.Model, texts []string) (out [][]int32, err error) {
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	for i, text := range texts {
		ids, err := tok.EncodeContext(e.ctx, text, m.Config().MaxPositions, tokenizer.EncodeOptions{AddSpecial: true})
		if err != nil {
			return nil, fmt.Errorf("text %d: %w", i+1, err)
		}
		out = append(out, ids)
	}
	return out, nil
}

func (c *embedCmd) print(e *env, how model.Embedding, prompts [][]int32, vectors [][]float32) error {
	if c.JSON {
		list := make([]embeddedText, len(vectors))
		for i, v := range vectors {
			list[i] = embeddedText{len(prompts[i]), v}
		}
		return e.writeJSON("lukv embed 1", map[string]any{"pooling": how.Pooling, "normalized": how.Normalize, "dimensions": len(vectors[0]), "texts": list})
	}
	w := bufio.NewWriter(e.out)
	for _, v := range vectors {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		w.Write(append(line, '\n'))
	}
	return w.Flush()
}
