package command

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/safetensors"
)

// traceInfo is printed by inspect --json for a trace. Rows of layers that were not
// compressed are null.
type traceInfo struct {
	Format    string       `json:"format"`
	Kind      string       `json:"kind"` // "trace"
	Path      string       `json:"path"`
	Model     string       `json:"model"`
	Precision string       `json:"precision"`
	Policy    *lukv.Policy `json:"policy"`
	From      int          `json:"from"` // the span: its first position, and the one after its last
	To        int          `json:"to"`
	Budgets   [][]int      `json:"budgets"` // [layer][KV head]
	Lengths   [][]int      `json:"lengths"`
	Positions [][][]int32  `json:"positions,omitempty"` // [layer][KV head], with --positions
	Entries   int64        `json:"entries"`             // kept
	Evicted   int64        `json:"evicted_decoding"`    // evicted later
	Ratio     float64      `json:"ratio"`               // fraction of entries removed
	FileBytes int64        `json:"file_bytes"`
}

func (c *inspectCmd) trace(e *env, f *safetensors.File) error {
	if err := e.given.unused("ratio nearest tensors verify", c.Path+" is a trace, no profile"); err != nil {
		return err
	}
	x, err := model.ReadTrace(f)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	info := traceInfo{
		Format: inspectFormat, Kind: "trace", Path: c.Path, Model: x.Model, Precision: string(x.Precision), Policy: x.Policy,
		From: x.Span.From, To: x.Span.To, Budgets: x.Budgets, Lengths: make([][]int, len(x.Budgets)),
	}
	tokens, heads := x.Span.To-x.Span.From, 0
	removed := make([][]float64, len(x.Positions))
	for l, row := range x.Positions {
		for _, kept := range row {
			info.Lengths[l] = append(info.Lengths[l], len(kept))
			removed[l] = append(removed[l], 1-float64(len(kept))/float64(tokens))
			info.Entries += int64(len(kept))
			heads++
		}
	}
	for _, row := range x.Evicted {
		for _, gone := range row {
			info.Evicted += int64(len(gone))
		}
	}
	if heads > 0 {
		info.Ratio = 1 - float64(info.Entries)/float64(heads*tokens)
	}
	if c.Positions {
		info.Positions = x.Positions
	}
	if fi, err := os.Stat(c.Path); err == nil {
		info.FileBytes = fi.Size()
	}
	if done, err := c.instead(e, report.HeatMap{
		Title:    fmt.Sprintf("Percent removed per head of %v", x.Span),
		Subtitle: fmt.Sprintf("model %s, metric %s, allocator %s", clip(x.Model, 20), x.Policy.Metric.Name, x.Policy.Allocator.Name),
		Values:   removed,
	}, info); done || err != nil {
		return err
	}
	t := newTable(e.out)
	t.line("trace", "%s (%s)", c.Path, report.Bytes(info.FileBytes))
	t.line("model", "%s", info.Model)
	t.line("policy", "%s", info.Policy)
	t.line("tokens", "%d, positions %d to %d", tokens, info.From, info.To-1)
	t.line("entries", "%d kept (%.1f %% removed)", info.Entries, 100*info.Ratio)
	if info.Evicted > 0 {
		t.line("decoding", "%d entries evicted", info.Evicted)
	}
	if err := t.w.Flush(); err != nil {
		return err
	}
	return writeHeads(e, info.Lengths, info.Positions, removed)
}

// writePositions lists the positions of every head, one head a line; nil: nothing.
func writePositions(w io.Writer, positions [][][]int32) {
	if positions == nil {
		return
	}
	fmt.Fprintln(w, "\npositions: layer, KV head, entries, which")
	for l, row := range positions {
		for h, p := range row {
			fmt.Fprintf(w, "%5d %4d %7d  %s\n", l, h, len(p), ranges(p))
		}
	}
}

// ranges lists ascending positions, such as "0-3 7 9-12". A long list is cut short
// and ends with the number of positions left out.
func ranges(positions []int32) string {
	const long = 80
	var b strings.Builder
	for i := 0; i < len(positions); {
		if b.Len() > long {
			fmt.Fprintf(&b, " … %d more", len(positions)-i)
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		end := i + 1
		for end < len(positions) && positions[end] == positions[end-1]+1 {
			end++
		}
		if fmt.Fprint(&b, positions[i]); end > i+1 {
			fmt.Fprintf(&b, "-%d", positions[end-1])
		}
		i = end
	}
	return b.String()
}
