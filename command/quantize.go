package command

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/internal/quantize"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/model"
)

type quantizeCmd struct {
	Model string `arg:"" help:"Model: a checkpoint folder with weights of 16 or 32 bits or its name in the hub's cache, or a GGUF file, the first if there are several."`
	Out   string `arg:"" help:"Folder or GGUF file to make. It must not exist."`
	Type  string `enum:"auto,int8,int4,${blocktypes},q4_k_m,f32,f16,bf16" default:"auto" help:"Set the type of the matrices: int8 or int4 for folders; q8_0, q4_0, q4_k or q4_k_m for GGUF files, and for those of folders also f32, f16 or bf16. auto is int4 for a folder of a folder, else q4_k."`
	Text  string `name:"calibrate" placeholder:"FILE" help:"Weigh errors by what the model computes on the text in FILE (- is standard input), in pieces of 512 tokens. Some thousand tokens like those to come will do."`
	Again bool   `help:"Allow weights of a GGUF file that are already in few bits, whose errors then add up."`
	JSON  bool   `help:"Print one JSON object."`
}

func (quantizeCmd) Help() string {
	return `Round the matrices of a model to few bits.

A folder becomes a folder in the format of compressed-tensors, which lukv, vLLM and transformers open: int8 has a scale for each row, int4 one for each 128 weights, or 64 or 32 where rows need it. Embedding and output matrix stay, as do norms, biases and routers.

A GGUF file becomes one that lukv, llama.cpp and programs built on it open; so does a folder with one of the types of GGUF files, or with OUT ending in .gguf. Its embedding and output matrix become Q6_K, or Q8_0 with that type. q4_k_m also gives Q6_K to the values of attention and the last matrices of the feed-forward units of half of the layers.

Among the scales of a group, those of least squared error are chosen. With --calibrate, errors count as much as the inputs that they are multiplied with: the model runs on the text first, which takes as long as reading a prompt of that length in 32-bit numbers.

Examples:

  lukv quantize Qwen/Qwen3-0.6B qwen3-int4

  lukv quantize model-folder model-int8 --type int8 --calibrate notes.txt

  lukv quantize Qwen/Qwen3-0.6B qwen3-q4_k_m.gguf --type q4_k_m

  lukv quantize model-f16.gguf model-q4_k_m.gguf --type q4_k_m`
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

// folderBits are the types of quantize for folders.
var folderBits = map[string]int{"auto": 4, "int4": 4, "int8": 8}

// fileTypes returns the types of quantize for GGUF files.
func fileTypes() map[string]gguf.Type {
	types, _ := blockTypes()
	types["auto"], types["q4_k_m"] = gguf.Q4_K, gguf.Q4_K
	return types
}

// plainTypes are the types of quantize for GGUF files from folders that are none of few bits.
var plainTypes = map[string]gguf.Type{"f32": gguf.F32, "f16": gguf.F16, "bf16": gguf.BF16}

// quantizeTo is what quantize writes.
type quantizeTo struct {
	bits int       // of the integers of a folder, 0 for a GGUF file
	typ  gguf.Type // of a GGUF file
}

// target returns what is written of the model at path, a GGUF file or a folder.
func (c *quantizeCmd) target(file bool) (to quantizeTo, err error) {
	to.bits = folderBits[c.Type]
	named := strings.HasSuffix(strings.ToLower(c.Out), ".gguf")
	if typ, ok := fileTypes()[c.Type]; ok && (file || c.Type != "auto" || named) {
		to = quantizeTo{typ: typ}
	} else if typ, ok := plainTypes[c.Type]; ok {
		to = quantizeTo{typ: typ}
	}
	_, plain := plainTypes[c.Type]
	switch {
	case file && (to.bits > 0 || plain):
		return to, usage("--type %s: %s is a GGUF file, expected q8_0, q4_0, q4_k or q4_k_m; lukv convert makes a folder of it", c.Type, c.Model)
	case to.bits > 0 && named:
		return to, usage("--type %s: makes a folder, but %s has the name of a GGUF file; expected q8_0, q4_0, q4_k or q4_k_m", c.Type, c.Out)
	case !file && c.Again:
		return to, usage("--again: has no effect on folders, whose weights must be of 16 or 32 bits")
	case c.Text != "" && (c.Type == "q8_0" || plain):
		return to, usage("--calibrate: has no effect on %s, whose values do not depend on errors", c.Type)
	}
	return to, nil
}

func (c *quantizeCmd) Run(e *env) error {
	path, err := modelPath(c.Model)
	if err != nil {
		return err
	}
	file := model.IsGGUF(path)
	to, err := c.target(file)
	if err != nil {
		return err
	}
	line := e.longProgress()
	defer line.clear()
	if c.Text == "" {
		return c.write(e, line, path, to, nil)
	}
	if exists(c.Out) {
		return fmt.Errorf("%s exists already", c.Out)
	}
	text, err := e.readText(c.Text)
	if err != nil {
		return err
	}
	importance, err := quantize.Calibrate(e.ctx, path, string(text), func(done, total int) {
		line.show("calibrating: %s of %s tokens", count(int64(done)), count(int64(total)))
	})
	if err != nil {
		return err
	}
	return c.write(e, line, path, to, importance)
}

// modelName returns the last part of a model's name or path, "" if that says nothing.
func modelName(model string) string {
	name, _, _ := strings.Cut(filepath.Base(filepath.ToSlash(model)), "@") // without a revision
	if strings.Trim(name, "./\\") == "" {
		return ""
	}
	return name
}

// write writes the model at path, a GGUF file or a folder.
func (c *quantizeCmd) write(e *env, line *progress, path string, to quantizeTo, importance *quantize.Importance) (err error) {
	shown := func(done, total int64) {
		line.show("quantizing: %s of %s weights", count(done), count(total))
	}
	var r *quantize.Result
	o := quantize.Options{Type: to.typ, Mixed: c.Type == "q4_k_m", Again: c.Again, Importance: importance, Progress: shown}
	switch {
	case to.bits > 0:
		r, err = quantize.Folder(e.ctx, path, c.Out, quantize.FolderOptions{Bits: to.bits, Importance: importance, Progress: shown})
	case model.IsGGUF(path):
		r, err = quantize.GGUF(e.ctx, path, c.Out, o)
	default:
		r, err = quantize.FolderGGUF(e.ctx, path, c.Out, modelName(c.Model), o)
	}
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
