package command

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/internal/quantize"
	"github.com/lukv/lukv/internal/report"
)

type quantizeCmd struct {
	File  string `arg:"" help:"GGUF file of a model, the first if there are several."`
	Out   string `arg:"" help:"GGUF file to make. It must not exist."`
	Type  string `enum:"${blocktypes}" default:"q4_k" help:"Set the type of the matrices: ${enum} (default ${default})."`
	Again bool   `help:"Allow weights that are already in few bits, whose errors then add up."`
	JSON  bool   `help:"Print one JSON object."`
}

func (quantizeCmd) Help() string {
	return `Rounds the matrices of a model to blocks of few bits. The embedding and the output matrix become Q6_K, or the type itself if that has more bits; norms, biases and routers stay. The file can be used by lukv, llama.cpp and programs built on it.

Examples:

  lukv quantize model-f16.gguf model-q4_k.gguf

  lukv quantize model-bf16.gguf model-q8_0.gguf --type q8_0`
}

// blockTypes returns the types of blocks that are written, by their names in flags, and these
// names.
func blockTypes() (types map[string]gguf.Type, names []string) {
	types = map[string]gguf.Type{}
	for _, t := range quantize.Types() {
		name := strings.ToLower(t.String())
		types[name], names = t, append(names, name)
	}
	return types, names
}

// quantizeFormat is the format identifier that quantize --json prints.
const quantizeFormat = "lukv quantize 1"

func (c *quantizeCmd) Run(e *env) error {
	blocks, _ := blockTypes()
	line := e.longProgress()
	defer line.clear()
	r, err := quantize.GGUF(e.ctx, c.File, c.Out, quantize.Options{
		Type: blocks[c.Type], Again: c.Again,
		Progress: func(done, total int64) {
			line.show("quantizing: %s of %s weights", count(done), count(total))
		},
	})
	line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return report.WriteJSON(e.out, struct {
			Format string `json:"format"`
			Path   string `json:"path"`
			*quantize.Result
		}{quantizeFormat, c.Out, r})
	}
	var types []string
	for _, name := range slices.Sorted(maps.Keys(r.Types)) {
		types = append(types, fmt.Sprintf("%d %s", r.Types[name], name))
	}
	fmt.Fprintf(e.out, "wrote %s: %d tensors (%s), %s from %s\n",
		c.Out, r.Tensors, strings.Join(types, ", "), report.Bytes(r.Bytes), report.Bytes(r.Before))
	return nil
}
