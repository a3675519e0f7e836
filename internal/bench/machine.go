package bench

import (
	"runtime"
	"time"

	"github.com/klauspost/cpuid/v2"

	"github.com/lukv/lukv/internal/probe"
	"github.com/lukv/lukv/internal/sysmem"
	"github.com/lukv/lukv/kernels"
)

// Machine describes the machine that a report was made on.
type Machine struct {
	System     string   `json:"system"`           // GOOS/GOARCH
	Kernel     string   `json:"kernel,omitempty"` // release of the operating system, where known
	CPU        string   `json:"cpu"`
	Family     int      `json:"family,omitempty"` // of the processor, as is Model; 0 if unknown
	Model      int      `json:"model,omitempty"`
	Processors int      `json:"processors"` // that this program may use
	Sets       []string `json:"sets"`       // instruction sets, as --cpu takes them
	Streaming  string   `json:"streaming"`  // how memory-bound kernels load data
	L1         int      `json:"l1_bytes"`   // data cache of a core; 0 if unknown, as below
	L2         int      `json:"l2_bytes"`
	L3         int      `json:"l3_bytes"`
	Memory     int64    `json:"memory_bytes"`
	Go         string   `json:"go"`

	// Limits are the best rates of the machine, measured when the run began.
	Limits []Limit `json:"limits"`

	// RoundTrip is the time in seconds that a cache line takes from one core to
	// another and back, 0 with a single processor.
	RoundTrip float64 `json:"round_trip_seconds"`
}

// Limit is one limit of the machine.
type Limit struct {
	Name    string  `json:"name"`
	Threads int     `json:"threads"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"` // bytes/s or flop/s
}

// Units of Limit.
const (
	BytesPerSecond = "bytes/s"
	FlopPerSecond  = "flop/s"
)

// roof is the result of the probes at one moment.
type roof struct {
	read, compute float64 // bytes/s, flop/s
}

// prober measures the machine.
type prober struct {
	buf *probe.Buffer
	d   time.Duration // of each probe
}

// newProber returns a prober with a buffer of size bytes, 0 for several times the
// last-level cache.
func newProber(size int, d time.Duration) (*prober, error) {
	if size == 0 {
		size = 4 * min(max(64<<20, cpuid.CPU.Cache.L3), 511<<20) // fits an int of 32 bits
	}
	buf, err := probe.NewBuffer(size)
	if err != nil {
		return nil, err
	}
	return &prober{buf, d}, nil
}

func (p *prober) roof(threads int, u probe.Unit) roof {
	return roof{p.buf.Read(threads, p.d), u.Rate(threads, p.d)}
}

// machine describes and measures the machine.
func (p *prober) machine() Machine {
	c := &cpuid.CPU
	m := Machine{
		System: runtime.GOOS + "/" + runtime.GOARCH, Kernel: kernelRelease(), CPU: c.BrandName,
		Processors: runtime.GOMAXPROCS(0), Memory: sysmem.Total(), Go: runtime.Version(),
		Family: c.Family, Model: c.Model, Streaming: kernels.Detect().Streaming.String(),
		L1: max(0, c.Cache.L1D), L2: max(0, c.Cache.L2), L3: max(0, c.Cache.L3),
	}
	if m.CPU == "" {
		m.CPU = "unknown"
	}
	for _, v := range kernels.Variants() {
		m.Sets = append(m.Sets, v.String())
	}
	counts := []int{1}
	if m.Processors > 1 {
		counts = append(counts, m.Processors)
	}
	for _, n := range counts {
		m.Limits = append(m.Limits, Limit{"memory read, " + probe.ReadName(), n, p.buf.Read(n, p.d), BytesPerSecond})
	}
	for _, u := range probe.Units() {
		for _, n := range counts {
			m.Limits = append(m.Limits, Limit{u.Name, n, u.Rate(n, p.d), FlopPerSecond})
		}
	}
	m.RoundTrip = probe.RoundTrip(p.d).Seconds()
	return m
}
