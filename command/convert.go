package command

import (
	"fmt"

	"github.com/lukv/lukv/internal/convert"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/tensor"
)

type convertCmd struct {
	File string   `arg:"" help:"GGUF file of a model, the first if there are several."`
	Out  string   `arg:"" help:"Folder to create; it must not exist."`
	Type string   `enum:"auto,bf16,f32" default:"auto" help:"Write weights of this type; auto keeps F32, F16 and BF16 and converts all other types to bf16."`
	Max  byteSize `name:"shard-size" default:"2GiB" placeholder:"SIZE" help:"Split weights into files of at most SIZE (default ${default})."`
	JSON bool     `help:"Print one JSON object."`
}

func (convertCmd) Help() string {
	return `Make a folder for Python tools: config, tokenizer, chat template, and weights as safetensors. lukv itself opens GGUF files directly. Blocks of few bits become plain numbers: a file of 4 bits a weight grows fourfold.

The folder appears when it is complete. Until then it is called OUT.partial; the same command continues with the missing files.

Examples:

  lukv convert model-Q4_K_M.gguf model

  lukv convert model-Q8_0.gguf model-f32 --type f32`
}

// convertFormat is the format identifier that convert --json prints.
const convertFormat = "lukv convert 1"

func (c *convertCmd) Run(e *env) error {
	if c.Max <= 0 {
		return usage("--shard-size: found %d, expected more than 0", c.Max)
	}
	line := e.longProgress()
	defer line.clear()
	file, err := modelPath(c.File)
	if err != nil {
		return err
	}
	r, err := convert.GGUF(e.ctx, file, c.Out, convert.Options{
		Type: map[string]tensor.Type{"auto": 0, "bf16": tensor.BF16, "f32": tensor.F32}[c.Type], ShardBytes: int64(c.Max),
		Progress: func(done, total int64) {
			line.show("converting: %s of %s", report.Bytes(done), report.Bytes(total))
		},
	})
	line.clear()
	if err != nil {
		if e.ctx.Err() != nil && exists(c.Out+".partial") {
			e.note("unfinished work is in %s.partial; the same command continues from it", c.Out)
		}
		return err
	}
	if c.JSON {
		return report.WriteJSON(e.out, struct {
			Format string `json:"format"`
			Path   string `json:"path"`
			*convert.Result
		}{convertFormat, c.Out, r})
	}
	resumed := ""
	if r.Resumed > 0 {
		resumed = fmt.Sprintf(", %d of them from an earlier run", r.Resumed)
	}
	fmt.Fprintf(e.out, "wrote %s: %s, %s parameters in %d tensors, %s in %s%s\n",
		c.Out, r.Architecture, count(r.Parameters), r.Tensors, report.Bytes(r.Bytes), report.Count(r.Shards, "file"), resumed)
	return nil
}
