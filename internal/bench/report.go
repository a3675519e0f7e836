package bench

import (
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lukv/lukv/kernels"
)

// Format is the format identifier of a Report in JSON.
const Format = "lukv bench 1"

// Report is the outcome of a Run.
type Report struct {
	Format  string    `json:"format"`
	Started time.Time `json:"started"`

	Command  []string `json:"command,omitempty"` // for the caller to fill in
	Version  string   `json:"version,omitempty"` // of the program, as is Revision
	Revision string   `json:"revision,omitempty"`

	Machine     Machine       `json:"machine"`
	Device      *DeviceReport `json:"device,omitempty"`
	Points      []Point       `json:"points"`
	Interrupted bool          `json:"interrupted,omitempty"` // points are missing
}

// DeviceReport names the accelerator that ran the models.
type DeviceReport struct {
	Name string             `json:"name"` // as it was opened
	Info kernels.DeviceInfo `json:"info"`
}

// Point is the measurement for one Key. Fractions are of 1; sizes are in bytes.
type Point struct {
	Key

	// Error is the reason why the point was not measured. The other fields are then zero.
	Error string `json:"error,omitempty"`

	// Speed is the median in tokens per second of all sessions together, Low
	// and High are the extremes, all over undisturbed samples.
	Speed float64 `json:"tokens_per_second"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`

	// Read and Compute are the medians of the fractions that the samples reached
	// of the machine's read bandwidth (decoding only) and of its peak in Unit; 0 on an
	// accelerator.
	Read    float64 `json:"read_fraction,omitempty"`
	Compute float64 `json:"compute_fraction"`
	Unit    string  `json:"unit,omitempty"`

	// VersusFull is Speed over that of the same point without compression. A
	// compressing prefill is measured alongside one without compression, and this
	// is the median over the pairs. For other points it is set if the report has
	// the point without compression; both are first divided by the probes around them.
	VersusFull float64 `json:"versus_full,omitempty"`

	// BytesPerStep are the bytes read by a decoding step, CacheRead the cache's part.
	// Flop and AttentionFlop are the operations of matrix products and of
	// attention in a decoding step or a whole prefill.
	BytesPerStep  int64 `json:"bytes_per_step,omitempty"`
	CacheRead     int64 `json:"cache_bytes_per_step,omitempty"`
	Flop          int64 `json:"flop"`
	AttentionFlop int64 `json:"attention_flop"`

	// CacheBytes are the bytes of the caches of all sessions at the end,
	// PeakCacheBytes the most they ever held, and Kept the entries as a fraction
	// of those of an uncompressed cache.
	CacheBytes     int64   `json:"cache_bytes"`
	PeakCacheBytes int64   `json:"peak_cache_bytes"`
	Kept           float64 `json:"kept"`

	// PrivateBytes is the resident memory beyond weights, caches and the probe's
	// buffer after a repetition, PrivatePeakBytes the most during one (sampled
	// every 10 ms; mapped weights only), and PeakBytes the largest resident size,
	// including mapped weights but not that buffer. 0 if the system does not tell.
	PrivateBytes     int64 `json:"private_bytes,omitempty"`
	PrivatePeakBytes int64 `json:"private_peak_bytes,omitempty"`
	PeakBytes        int64 `json:"peak_bytes,omitempty"`

	// DeviceBytes is the size of all live buffers on the device.
	DeviceBytes int64 `json:"device_bytes,omitempty"`

	// Ranking is the share of a compressing prefill spent on ranking and eviction
	// after the layers' computation; the work of metrics during that
	// computation counts only in VersusFull.
	Ranking float64 `json:"ranking,omitempty"`

	// Allocations is the median number of heap allocations per decoded token.
	Allocations float64 `json:"allocations_per_token"`

	// Disturbed says that no sample was undisturbed and the medians are over all
	// of them.
	Disturbed        bool     `json:"disturbed,omitempty"`
	DisturbedSamples int      `json:"disturbed_samples,omitempty"`
	Samples          []Sample `json:"samples"`
}

// Sample is one repetition.
type Sample struct {
	Seconds     float64 `json:"seconds"`
	Speed       float64 `json:"tokens_per_second"`
	Read        float64 `json:"read_fraction,omitempty"`
	Compute     float64 `json:"compute_fraction"`
	ReadBefore  float64 `json:"read_before"` // probes, bytes/s
	ReadAfter   float64 `json:"read_after"`
	PeakBefore  float64 `json:"peak_before"` // probes, flop/s
	PeakAfter   float64 `json:"peak_after"`
	Allocations float64 `json:"allocations_per_token,omitempty"`
	Ranking     float64 `json:"ranking,omitempty"`
	Full        float64 `json:"full_tokens_per_second,omitempty"` // without compression
	Disturbed   bool    `json:"disturbed,omitempty"`
}

// Spread returns the distance between the extremes as a fraction of the median.
func (p *Point) Spread() float64 {
	if p.Speed == 0 {
		return 0
	}
	return (p.High - p.Low) / p.Speed
}

// counted returns the number of samples that the medians are taken over.
func (p *Point) counted() int {
	if p.Disturbed {
		return len(p.Samples)
	}
	return len(p.Samples) - p.DisturbedSamples
}

// column is one column of a table.
type column struct {
	name  string
	fold  bool // if it is the same in all rows, named once above instead
	right bool
	cell  func(p *Point) string
}

var columns = []column{
	{"model", true, false, func(p *Point) string { return p.Model }},
	{"weights", true, false, func(p *Point) string { return p.Weights }},
	{"mapped", true, false, func(p *Point) string { return orDash(p.Mapped, "yes") }},
	{"threads", true, true, func(p *Point) string { return strconv.Itoa(p.Threads) }},
	{"precision", true, false, func(p *Point) string { return p.Precision }},
	{"cpu", true, false, func(p *Point) string { return p.CPU }},
	{"device", true, false, func(p *Point) string { return orDash(p.Device != "", p.on()) }},
	{"cache type", true, false, func(p *Point) string { return p.Cache }},
	{"batch", true, true, func(p *Point) string { return strconv.Itoa(p.Batch) }},
	{"depth", true, true, func(p *Point) string { return strconv.Itoa(p.Depth) }},
	{"compression", true, false, func(p *Point) string { return p.Key.Compression() }},
	{"profile", true, false, func(p *Point) string { return orDash(p.Profile != "", p.Profile[:min(len(p.Profile), 19)]) }},
	{"test", false, false, func(p *Point) string { return p.Name() }},
	{"tok/s", false, true, func(p *Point) string { return figure(p.Speed) }},
	{"spread", false, true, func(p *Point) string { return orDash(p.counted() > 1, percent(p.Spread())) }},
	{"read", false, true, func(p *Point) string { return orDash(p.Read > 0, percent(p.Read)) }},
	{"compute", false, true, func(p *Point) string { return orDash(p.Compute > 0, percent(p.Compute)) }},
	{"vs full", false, true, func(p *Point) string {
		return orDash(p.VersusFull > 0, strconv.FormatFloat(p.VersusFull, 'f', 2, 64)+"x")
	}},
	{"ranking", false, true, func(p *Point) string { return orDash(p.Ranking > 0, percent(p.Ranking)) }},
	{"cache", false, true, func(p *Point) string { return Size(p.CacheBytes) }},
	{"peak", false, true, func(p *Point) string { return orDash(p.PeakBytes > 0, Size(p.PeakBytes)) }},
	{"private", false, true, func(p *Point) string {
		return orDash(p.PrivateBytes > 0, Size(max(p.PrivateBytes, p.PrivatePeakBytes)))
	}},
	{"on device", false, true, func(p *Point) string { return orDash(p.DeviceBytes > 0, Size(p.DeviceBytes)) }},
	{"allocs", false, true, func(p *Point) string {
		return orDash(p.Test == TestDecode, strconv.FormatFloat(p.Allocations, 'g', 3, 64))
	}},
	{"", false, false, (*Point).note},
}

func orDash(ok bool, s string) string {
	if ok {
		return s
	}
	return "-"
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + "%" }

// figure formats a number with three digits or more.
func figure(x float64) string {
	switch {
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

func (p *Point) note() string {
	switch {
	case p.Disturbed:
		return "disturbed"
	case p.DisturbedSamples > 0:
		return fmt.Sprintf("%d disturbed left out", p.DisturbedSamples)
	}
	return ""
}

// table returns the columns that differ, the header and the rows of the points
// that were measured, and their common columns.
func (r *Report) table() (cols []column, rows [][]string, common string) {
	var same []string
	for _, c := range columns {
		cells := map[string]bool{}
		for i := range r.Points {
			if p := &r.Points[i]; p.Error == "" {
				cells[c.cell(p)] = true
			}
		}
		if len(cells) == 1 && (c.fold || cells["-"] || cells[""]) {
			for cell := range cells {
				if c.fold && cell != "-" {
					same = append(same, c.name+" "+cell)
				}
			}
			continue
		}
		cols = append(cols, c)
	}
	head := make([]string, len(cols))
	for i, c := range cols {
		head[i] = c.name
	}
	rows = append(rows, head)
	for i := range r.Points {
		p := &r.Points[i]
		if p.Error != "" {
			continue
		}
		row := make([]string, len(cols))
		for j, c := range cols {
			row[j] = c.cell(p)
		}
		rows = append(rows, row)
	}
	return cols, rows, strings.Join(same, ", ")
}

// rate formats a rate.
func rate(x float64, unit string) string {
	if unit == BytesPerSecond {
		return figure(x/1e9) + " GB/s"
	}
	return figure(x/1e9) + " GFLOP/s"
}

// cache formats the size of a cache.
func cache(n int) string {
	if n == 0 {
		return "unknown size"
	}
	return Size(int64(n))
}

// lines describes the machine.
func (r *Report) lines() []string {
	m := &r.Machine
	cpu := m.CPU
	if m.Family > 0 {
		cpu += fmt.Sprintf(" (family %d, model %d)", m.Family, m.Model)
	}
	out := []string{
		fmt.Sprintf("%s, %s, %d processors, %s of memory, %s", cpu, m.System, m.Processors, Size(m.Memory), m.Go),
		fmt.Sprintf("caches of %s, %s and %s; streaming: %s", cache(m.L1), cache(m.L2), cache(m.L3), m.Streaming),
	}
	byName := map[string]int{}
	for _, l := range m.Limits {
		text := fmt.Sprintf("%s on %d", rate(l.Value, l.Unit), l.Threads)
		if at, ok := byName[l.Name]; ok {
			out[at] += ", " + text
			continue
		}
		byName[l.Name] = len(out)
		out = append(out, l.Name+": "+text)
	}
	if m.RoundTrip > 0 {
		out = append(out, fmt.Sprintf("core to core and back: %.0f ns", m.RoundTrip*1e9))
	}
	if d := r.Device; d != nil {
		text := fmt.Sprintf("%s: %s, %s, %s, %s, %s of memory", d.Name, d.Info.Name, d.Info.Kind, d.Info.Driver, d.Info.API, Size(int64(d.Info.Memory)))
		if d.Info.Matrices != "" {
			text += ", matrices: " + d.Info.Matrices
		}
		out = append(out, text)
	}
	return out
}

// ends lists missing points.
func (r *Report) ends() []string {
	var out []string
	for i := range r.Points {
		if p := &r.Points[i]; p.Error != "" {
			out = append(out, "not measured: "+p.Error)
		}
	}
	if r.Interrupted {
		out = append(out, "interrupted: points are missing")
	}
	return out
}

// WriteTable writes the report for people at a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	for _, line := range r.lines() {
		fmt.Fprintln(&b, line)
	}
	cols, rows, common := r.table()
	if len(rows) > 1 {
		fmt.Fprintf(&b, "\n%s\n", common)
		writeAligned(&b, rows, func(i int) bool { return cols[i].right })
	}
	for _, line := range r.ends() {
		fmt.Fprintln(&b, line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeAligned writes rows in columns, right-aligned where right says so.
func writeAligned(b *strings.Builder, rows [][]string, right func(i int) bool) {
	wide := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			wide[i] = max(wide[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			pad := strings.Repeat(" ", wide[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line += "  "
			}
			if right(i) {
				line += pad + cell
			} else {
				line += cell + pad
			}
		}
		fmt.Fprintln(b, strings.TrimRight(line, " "))
	}
}

// writeMarkdown writes rows, the first of which is the header.
func writeMarkdown(b *strings.Builder, rows [][]string, right func(i int) bool) {
	for i, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		if i > 0 {
			continue
		}
		for j := range row {
			if right(j) {
				b.WriteString("|---:")
			} else {
				b.WriteString("|---")
			}
		}
		b.WriteString("|\n")
	}
}

// WriteMarkdown writes the report as a list and a table.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	for _, line := range r.lines() {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	cols, rows, common := r.table()
	if len(rows) > 1 {
		fmt.Fprintf(&b, "- %s\n\n", common)
		writeMarkdown(&b, rows, func(i int) bool { return cols[i].right })
	}
	for _, line := range r.ends() {
		fmt.Fprintf(&b, "\n%s\n", line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteCSV writes one line per point with all of its numbers except samples,
// under their JSON names.
func (r *Report) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	var head []string
	var fields []int
	t := reflect.TypeFor[Point]()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "samples" {
			continue
		}
		head = append(head, name)
		fields = append(fields, i)
	}
	key := reflect.TypeFor[Key]()
	var keys []string
	for i := range key.NumField() {
		name, _, _ := strings.Cut(key.Field(i).Tag.Get("json"), ",")
		keys = append(keys, name)
	}
	if err := out.Write(append(keys, head...)); err != nil {
		return err
	}
	for i := range r.Points {
		p := reflect.ValueOf(&r.Points[i]).Elem()
		k := reflect.ValueOf(r.Points[i].Key)
		var row []string
		for j := range k.NumField() {
			row = append(row, fmt.Sprint(k.Field(j).Interface()))
		}
		for _, j := range fields {
			row = append(row, fmt.Sprint(p.Field(j).Interface()))
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
