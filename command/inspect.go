package command

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"

	"github.com/lukv/lukv/hub"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/safetensors"
)

type inspectCmd struct {
	Path      string  `arg:"" help:"Checkpoint folder, GGUF file, hub name in the cache or builtin, profile (.npy too), saved session, trace, or safetensors file."`
	Ratio     float64 `default:"0.8" placeholder:"R" help:"Show a profile's heat map at this overall ratio (default ${default})."`
	SVG       string  `name:"svg" placeholder:"FILE" help:"Write the heat map of a profile, saved session or trace as SVG; - prints only the SVG to standard output."`
	Nearest   bool    `help:"Show a profile's nearest level instead of interpolating."`
	Tensors   bool    `help:"List all tensors of a checkpoint."`
	Positions bool    `help:"List the positions that each head of a saved session or trace holds or kept; the text shows the first positions, --json all."`
	Verify    bool    `help:"Read all weights of a checkpoint and print their digest, which caches saved with --verify carry. The identity covers only a sample of each tensor."`
	JSON      bool    `help:"Print one JSON object."`
}

func (inspectCmd) Help() string {
	return `The file type is detected from its content. A checkpoint is checked as run would check it; a saved session is read completely and its checksum verified.

Examples:

  lukv inspect DIR --tensors

  lukv inspect snapkv.profile --ratio 0.9 --svg snapkv.svg

  lukv inspect book.session --json

  lukv inspect book.trace --positions`
}

func (c *inspectCmd) unused(g given) error {
	if c.SVG == "-" {
		return g.unused("json", "the picture replaces the text on standard output")
	}
	return nil
}

func (c *inspectCmd) Run(e *env) error {
	if !(c.Ratio >= 0 && c.Ratio < 1) {
		return usage("--ratio: found %v, expected at least 0 and below 1", c.Ratio)
	}
	if c.Path == builtin.Name {
		return c.checkpoint(e)
	}
	info, err := os.Stat(c.Path)
	if _, notName := hub.ParseRef(c.Path); errors.Is(err, fs.ErrNotExist) && notName == nil {
		if c.Path, err = resolveModel(c.Path); err != nil {
			return err
		}
		return c.checkpoint(e)
	}
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if info.IsDir() || model.IsGGUF(c.Path) {
		return c.checkpoint(e)
	}
	head, err := readHead(c.Path)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	switch {
	case bytes.HasPrefix(head, []byte("\x93NUMPY")):
		return c.ratios(e)
	case bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")):
		return c.profile(e)
	case len(head) > 8 && head[8] == '{':
		return c.tensorFile(e)
	}
	return fmt.Errorf("inspect %s: neither a checkpoint nor a profile, saved session, trace or safetensors file", c.Path)
}

// instead writes the heat map as SVG and info as JSON, if asked for, and reports
// whether they replace the text.
func (c *inspectCmd) instead(e *env, h report.HeatMap, info any) (done bool, err error) {
	if c.SVG != "" {
		h.Command = e.commandLine()
		if err := e.writeTo(c.SVG, h.WriteSVG); err != nil {
			return false, fmt.Errorf("write heat map: %w", err)
		}
	}
	switch {
	case c.SVG == "-":
		return true, nil
	case c.JSON:
		return true, report.WriteJSON(e.out, info)
	}
	return false, nil
}

// writeHeads shows the entries that every head holds or kept, and the fraction that was removed.
func writeHeads(e *env, lengths [][]int, positions [][][]int32, removed [][]float64) error {
	writeLengths(e.out, lengths)
	writePositions(e.out, positions)
	if removed == nil {
		return nil
	}
	fmt.Fprintln(e.out, "\npercent removed")
	return report.HeatMap{Values: removed}.WriteText(raw(e.out), e.colors())
}

func readHead(path string) ([]byte, error) {
	f, err := inputfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, 64)
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return head[:n], err
}

// Flags that concern ratios per head.
const profileFlags = "ratio svg nearest"

// table prints name and value columns.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) table { return table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (t table) line(name, format string, args ...any) {
	fmt.Fprintf(t.w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
}

// inspectFormat is the format identifier that inspect --json prints.
const inspectFormat = "lukv inspect 1"

// tensorFile shows a saved session or cache, or any safetensors file.
func (c *inspectCmd) tensorFile(e *env) error {
	f, err := safetensors.Open(c.Path)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	defer f.Close()
	if meta := f.Metadata(); has(meta, "lukv_cache") {
		return c.cache(e, has(meta, "session"))
	}
	if model.IsTrace(f) {
		return c.trace(e, f)
	}
	if err := e.given.unused(profileFlags+" verify positions", c.Path+" holds tensors, no profile"); err != nil {
		return err
	}
	var elements, size int64
	var tensors []tensorInfo
	for name, t := range f.All() {
		elements += int64(t.Len())
		size += int64(len(t.Data))
		tensors = append(tensors, tensorInfo{name, t.Type.String(), t.Shape, len(t.Data)})
	}
	if c.JSON {
		return report.WriteJSON(e.out, map[string]any{
			"format": inspectFormat, "kind": "tensors", "path": c.Path, "parameters": elements, "bytes": size,
			"tensors": tensors, "metadata": f.Metadata(),
		})
	}
	t := newTable(e.out)
	t.line("tensors", "%d in %s: %s elements, %s", f.Len(), c.Path, count(elements), report.Bytes(size))
	for _, x := range tensors {
		t.line(x.Name, "%s %v %s", x.Type, x.Shape, report.Bytes(int64(x.Bytes)))
	}
	return t.w.Flush()
}

func has(meta map[string]string, key string) bool {
	_, ok := meta[key]
	return ok
}
