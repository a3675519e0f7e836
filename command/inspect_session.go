package command

import (
	"fmt"
	"io"
	"os"

	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// cacheInfo is printed by inspect --json for a saved session or cache.
type cacheInfo struct {
	Format        string       `json:"format"`
	Kind          string       `json:"kind"` // "session" or "cache"
	Path          string       `json:"path"`
	Model         string       `json:"model,omitempty"`
	Digest        string       `json:"digest,omitempty"`
	Precision     string       `json:"precision,omitempty"`
	Label         string       `json:"label,omitempty"`
	Position      int          `json:"position"` // tokens processed
	ContextTokens int          `json:"context_tokens,omitempty"`
	Policy        *lukv.Policy `json:"policy,omitempty"`
	Layers        int          `json:"layers"`
	KVHeads       int          `json:"kv_heads"`
	HeadDim       int          `json:"head_dim"`
	Type          string       `json:"type"`
	PageEntries   int          `json:"page_entries"`
	Entries       int64        `json:"entries"`
	Bytes         int64        `json:"bytes"`
	SlackBytes    int64        `json:"slack_bytes"`
	Ratio         float64      `json:"ratio"` // fraction of entries removed
	Lengths       [][]int      `json:"lengths"`
	Positions     [][][]int32  `json:"positions,omitempty"` // [layer][KV head], with --positions
	FileBytes     int64        `json:"file_bytes"`
}

// session reads the description that a saved session carries.
func (c *inspectCmd) session() (*model.SessionInfo, error) {
	f, size, err := inputfile.OpenSized(c.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return model.ReadSessionInfo(c.Path, f, size)
}

// readCache reads a saved cache, and the session's description if it belongs to one.
func (c *inspectCmd) readCache(e *env, session bool) (*cacheInfo, *kvcache.Cache, error) {
	var said *model.SessionInfo
	var err error
	if session {
		if said, err = c.session(); err != nil {
			return nil, nil, err
		}
	}
	cache, _, err := kvcache.LoadFile(e.ctx, c.Path, kvcache.Options{})
	if err != nil {
		return nil, nil, err
	}
	o, st := cache.Options(), cache.Stats()
	info := &cacheInfo{
		Format: inspectFormat, Kind: "cache", Path: c.Path,
		Layers: o.Layers, KVHeads: o.KVHeads, HeadDim: o.HeadDim, Type: o.Type.String(), PageEntries: o.PageEntries,
		Entries: st.Entries, Bytes: st.Bytes, SlackBytes: st.SlackBytes,
	}
	for l := range o.Layers {
		if c.Positions {
			info.Positions = append(info.Positions, make([][]int32, o.KVHeads))
			for h := range o.KVHeads {
				info.Positions[l][h] = cache.Positions(l, h, []int32{})
			}
		}
		row := make([]int, o.KVHeads)
		for h := range row {
			row[h] = cache.Len(l, h)
			info.Position = max(info.Position, int(cache.LastPosition(l, h))+1)
		}
		info.Lengths = append(info.Lengths, row)
	}
	if said != nil {
		info.Model, info.Digest, info.Precision = said.Model, said.Digest, string(said.Precision)
		info.Kind, info.Label, info.Position, info.ContextTokens, info.Policy = "session", said.Label, said.Position, said.ContextTokens, said.Policy
	}
	if fi, err := os.Stat(c.Path); err == nil {
		info.FileBytes = fi.Size()
	}
	return info, cache, nil
}

// removed sets the ratio. It returns the fraction removed from every head in layers
// without a sliding window, and the number of entries that these heads could hold.
func (info *cacheInfo) removed(windows []int) (removed [][]float64, full int64) {
	removed = make([][]float64, info.Layers)
	left := 0.0
	for l, row := range info.Lengths {
		if windows != nil && windows[l] > 0 || info.Position == 0 {
			continue
		}
		removed[l] = make([]float64, len(row))
		for h, n := range row {
			removed[l][h] = 1 - float64(n)/float64(info.Position)
			full += int64(info.Position)
			left += float64(n)
		}
	}
	if full > 0 {
		info.Ratio = 1 - left/float64(full)
	}
	return removed, full
}

func (c *inspectCmd) cache(e *env, session bool) error {
	if err := e.given.unused("ratio nearest tensors verify", c.Path+" is a saved session, no profile"); err != nil {
		return err
	}
	info, cache, err := c.readCache(e, session)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", c.Path, err)
	}
	defer cache.Close()
	removed, full := info.removed(cache.Options().Windows)
	if c.SVG != "" && full == 0 {
		return usage("--svg would have no effect: %s holds no entries that could be removed", c.Path)
	}
	if done, err := c.instead(e, report.HeatMap{
		Title:    fmt.Sprintf("Percent removed per head: %d of %d entries are left", info.Entries, full),
		Subtitle: fmt.Sprintf("%d layers of %d KV heads, %d tokens", info.Layers, info.KVHeads, info.Position),
		Values:   removed,
	}, info); done || err != nil {
		return err
	}
	t := newTable(e.out)
	t.line(info.Kind, "%s (%s)", c.Path, report.Bytes(info.FileBytes))
	if info.Model != "" {
		t.line("model", "%s", info.Model)
	}
	if info.Label != "" {
		t.line("label", "%s", info.Label)
	}
	t.line("tokens", "%d", info.Position)
	if info.Policy != nil {
		t.line("policy", "%s", info.Policy)
	}
	t.line("cache", "%d layers of %d KV heads of %d, %s, pages of %d entries", info.Layers, info.KVHeads, info.HeadDim, info.Type, info.PageEntries)
	t.line("entries", "%d (%.1f %% removed)", info.Entries, 100*info.Ratio)
	t.line("bytes", "%s, of this slack %s", report.Bytes(info.Bytes), report.Bytes(info.SlackBytes))
	if err := t.w.Flush(); err != nil {
		return err
	}
	if full == 0 {
		removed = nil
	}
	return writeHeads(e, info.Lengths, info.Positions, removed)
}

func writeLengths(w io.Writer, lengths [][]int) {
	fmt.Fprintln(w, "\nentries per layer and KV head")
	for l, row := range lengths {
		fmt.Fprintf(w, "%5d", l)
		for _, n := range row {
			fmt.Fprintf(w, " %7d", n)
		}
		fmt.Fprintln(w)
	}
}
