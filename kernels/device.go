package kernels

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

var (
	// ErrNoDevice says that no driver, or none of its devices, has a name.
	ErrNoDevice = errors.New("no such device")

	// ErrDeviceLost says that a device stopped working. Everything on it is lost;
	// close what used it and open it again, or continue without it.
	ErrDeviceLost = errors.New("device lost")

	// ErrDeviceMemory says that there is not enough device memory; the message has
	// the numbers.
	ErrDeviceMemory = errors.New("out of device memory")
)

// DeviceDriver opens devices of one kind. Packages such as kernels/vulkan
// register theirs when they are imported.
type DeviceDriver interface {
	// Name is the part of a device's name before the colon, such as "vulkan".
	Name() string

	// Devices lists the devices of this system, in the order of their indices.
	// On a system without any, the error is ErrNoDevice and says why.
	Devices() ([]DeviceInfo, error)

	// Open opens the device that the selector names: an index, part of a name or
	// a UUID; the empty selector means the best device that is not software.
	Open(selector string) (Device, error)
}

var drivers struct {
	sync.Mutex
	all []DeviceDriver
}

// RegisterDevice makes a driver known. It panics if its name is taken.
func RegisterDevice(d DeviceDriver) {
	drivers.Lock()
	defer drivers.Unlock()
	if slices.ContainsFunc(drivers.all, func(o DeviceDriver) bool { return o.Name() == d.Name() }) {
		panic("kernels: device driver " + d.Name() + " is registered twice")
	}
	drivers.all = append(drivers.all, d)
}

// DeviceDrivers returns the registered drivers.
func DeviceDrivers() []DeviceDriver {
	drivers.Lock()
	defer drivers.Unlock()
	return slices.Clone(drivers.all)
}

// OpenDevice opens a device by its full name, driver[:selector]. The caller
// closes it.
func OpenDevice(name string) (Device, error) {
	driver, selector, _ := strings.Cut(name, ":")
	var known []string
	for _, d := range DeviceDrivers() {
		if d.Name() == driver {
			return d.Open(selector)
		}
		known = append(known, d.Name())
	}
	if known == nil {
		return nil, fmt.Errorf("%w: %q: this program was built without device drivers", ErrNoDevice, name)
	}
	return nil, fmt.Errorf("%w: %q: found no driver of that name, expected one of %s", ErrNoDevice, name, strings.Join(known, ", "))
}

// DeviceInfo describes a device of this system.
type DeviceInfo struct {
	Index   int    `json:"index"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Kind    string `json:"kind"`              // discrete, integrated, virtual, software or other
	Driver  string `json:"driver"`            // name and version
	API     string `json:"api"`               // name and version, such as "Vulkan 1.3.260"
	Missing string `json:"missing,omitempty"` // what it lacks to be usable, "" if nothing

	Memory        uint64 `json:"memory_bytes"`         // of the largest device-local heap
	Free          uint64 `json:"free_bytes"`           // that this process may still use; Memory if the driver does not say
	MaxAllocation uint64 `json:"max_allocation_bytes"` // of one allocation

	Features []string `json:"features"` // optional features in use or available, by name

	// Matrices names the matrix units that bf16 products use, such as "bf16
	// 16×16×16" (rows, weights and columns of one step), or is "none: " and the reason.
	// Whether an available unit is used may be known only once the device is open.
	Matrices string `json:"matrices,omitempty"`
}

// DeviceMemory describes the memory of an open device in bytes.
type DeviceMemory struct {
	Used, Taken uint64 // in live buffers; allocated from the driver for them
	Host        uint64 // allocated for buffers that the host sees
	Free, Total uint64
	Buffers     int // live buffers
}

// Device is an open accelerator: memory for weights and cache pages, and passes
// over them. It is safe for concurrent use; work runs in the order in which it
// was submitted. After ErrDeviceLost every method but Close fails with it.
type Device interface {
	Info() DeviceInfo
	Memory() DeviceMemory

	// Matrix copies weights to the device, Vector copies numbers such as biases and
	// norms. Without enough memory they fail with ErrDeviceMemory and allocate nothing.
	Matrix(ctx context.Context, m Matrix) (DeviceMatrix, error)
	Vector(ctx context.Context, v []float32) (DeviceVector, error)

	// Rows allocates memory for n rows of cols f32 numbers, with undefined contents.
	Rows(n, cols int) (DeviceRows, error)

	// Pages creates an empty pool of cache pages.
	Pages(l PageLayout) (PagePool, error)

	// Pass allocates what passes of a shape need.
	Pass(s PassShape) (Pass, error)

	// Close releases everything, including what was not freed. A second Close does
	// nothing.
	Close() error
}

// DeviceMatrix, DeviceVector and DeviceRows are memory of the device that made
// them. Free does not wait: call it only when no pass uses them. A second Free
// does nothing.
type (
	DeviceMatrix interface{ Free() }
	DeviceVector interface{ Free() }
	DeviceRows   interface{ Free() }
)

// DevicePage is a page of a pool. The zero DevicePage is no page.
type DevicePage uint64

// PagePool allocates cache pages and counts references to them, so that caches can
// share them. It is safe for concurrent use. Pages that become free are reused by
// work submitted later; memory that no page uses is soon returned to the device.
//
// On the host a page is a block of bytes as [PageLayout] describes it. Elements
// keep their bits when copied in either direction.
type PagePool interface {
	// Alloc appends n pages to dst, each with one reference. On an error
	// (ErrDeviceMemory) nothing is allocated.
	Alloc(dst []DevicePage, n int) ([]DevicePage, error)
	Ref(pages []DevicePage)
	Unref(pages []DevicePage)

	// Read copies pages to consecutive blocks on the host, Write copies blocks to
	// pages. Many pages at once take much less time than one by one. After an error
	// the contents of the destination are undefined. Copy copies one page to another.
	Read(ctx context.Context, blocks []byte, pages []DevicePage) error
	Write(ctx context.Context, pages []DevicePage, blocks []byte) error
	Copy(dst, src DevicePage) error

	// Compact copies entry slots[i] of the list src to entry i of the list dst, for
	// from ≤ i < len(slots). Slots ascend and slots[i] ≥ i; the pages of dst are those
	// of src, or fresh ones in their place.
	Compact(dst, src []DevicePage, slots []int32, from int) error

	// Table creates an empty page table in memory that the device reads.
	Table() (PageTable, error)

	// Bytes returns the bytes of all pages in use, counting a shared page once;
	// HighWater their maximum since the beginning or ResetHighWater; Taken the
	// device memory behind them.
	Bytes() int64
	HighWater() int64
	ResetHighWater()
	Taken() int64

	// Close releases all memory. A second Close does nothing.
	Close() error
}

// PageTable is a list of pages as passes read it. It may be changed only while no
// pass that reads it is running.
type PageTable interface {
	// Set makes the table hold pages, whose elements below from it already holds.
	// It allocates only when the table has to grow, by doubling.
	Set(pages []DevicePage, from int) error
	Free()
}

// PassShape says what passes can compute.
type PassShape struct {
	Rows      int // maximum number of rows, a row being a token
	Sequences int // maximum number of sequences
	Logits    int // maximum number of rows of logits

	Hidden, Heads, KVHeads, HeadDim, Intermediate, Vocab int

	Windows []int   // attention window, in tokens, of every layer on the device; 0 for none
	BF16    bool    // activations are rounded to bf16 before products; all matrices are bf16 then
	Scale   float32 // of attention scores, log2 e included
	Page    PageLayout

	// AttentionBF16 rounds to bf16, as AttentionArgs.BF16 does, the rotated queries and
	// the attention weights, which are 0 where the score is more than 60 below the
	// largest of its block. Page.Type must then be BF16.
	AttentionBF16 bool
}

// Activation names a matrix of activations of a pass, [rows][columns] of f32 as far as the
// host can see.
type Activation uint8

const (
	ActX         Activation = iota // [Hidden] residual stream
	ActNorm                        // [Hidden] normalised
	ActQ                           // [Heads*HeadDim]
	ActK                           // [KVHeads*HeadDim]
	ActV                           // [KVHeads*HeadDim]
	ActAttention                   // [Heads*HeadDim]
	ActMLP                         // [Intermediate]
	ActLogits                      // [Vocab]
	ActBranch                      // [Hidden] what a branch adds to ActX; devices have none
)

// Columns returns the number of columns of an activation.
func (s *PassShape) Columns(a Activation) int {
	switch a {
	case ActQ, ActAttention:
		return s.Heads * s.HeadDim
	case ActK, ActV:
		return s.KVHeads * s.HeadDim
	case ActMLP:
		return s.Intermediate
	case ActLogits:
		return s.Vocab
	}
	return s.Hidden
}

// DeviceProduct is one matrix product of a MatMul: Dst = src·Wᵀ + Bias.
type DeviceProduct struct {
	W    DeviceMatrix
	Dst  Activation
	Bias DeviceVector // or nil
}

// PassSpan is a span of consecutive tokens of one sequence in a pass: rows
// [Row, Row+N).
type PassSpan struct{ Row, N int }

// Pass holds the memory of one forward pass at a time and records operations. It
// may be used by one goroutine at a time. Recording and running are separate, so
// that decoding records once and runs for every token:
//
//	p.Begin(rows); p.SetInput(); p.Norm(…); …; list, err := p.End()
//	copy(p.In(), x); p.SetRow(…); p.SetSpans(…); p.SetHead(…)
//	err = p.Run(ctx, list)
//
// Running allocates nothing on the Go heap. The bits of a row depend only on its own
// operands, whatever else is in the pass.
type Pass interface {
	// Begin starts recording operations on rows rows; End stops and returns the list.
	// End reports arguments that did not fit.
	Begin(rows int)
	End() (PassList, error)

	// SetInput sets ActX to the contents of In at the time the list runs.
	SetInput()
	// LoadRows sets ActX to the rows of r from first on; StoreRows does the reverse.
	LoadRows(r DeviceRows, first int)
	StoreRows(r DeviceRows, first int)
	// Norm sets ActNorm to the RMS-normalised ActX.
	Norm(w DeviceVector, eps float64)
	// MatMul computes products of src. With add they are added to their Dst, which must
	// be ActX, ActQ, ActK or ActV.
	MatMul(src Activation, add bool, products []DeviceProduct)
	// HeadNorm normalises every head of ActQ or ActK in place; w is [HeadDim].
	HeadNorm(a Activation, w DeviceVector, eps float64)
	// RopeAppend rotates ActQ and ActK by the rows' cosines and sines and stores keys and
	// values in the pages of the layer's heads. With AttentionBF16 it rounds ActQ.
	RopeAppend(layer int)
	// Attend sets ActAttention from ActQ and the layer's pages. With stats, ReadStats
	// can read the softmax statistics afterwards.
	Attend(layer int, stats bool)
	// GateUp sets ActMLP to SwiGLU(ActNorm·gateᵀ + gb, ActNorm·upᵀ + ub); biases may be nil.
	GateUp(gate, up DeviceMatrix, gb, ub DeviceVector)
	// Logits sets n rows of ActLogits to the products of head with the rows of ActX from
	// first on, normalised with w, and makes them available to OutLogits.
	Logits(w DeviceVector, eps float64, head DeviceMatrix, first, n int)

	// In returns host memory for the rows of SetInput, [rows][Hidden]. CosSin returns that
	// for the cosines and sines of every row, [rows][HeadDim]: HeadDim/2 cosines, then as
	// many sines. Both are valid until Close and may be written only while no list runs.
	In() []float32
	CosSin() []float32

	// SetSpans says which rows belong to sequence i = 0 … len(spans)-1; positions,
	// [rows], holds those of the rows.
	SetSpans(spans []PassSpan, positions []int32)
	// SetHead says where the entries of a KV head of a sequence are: its pages, with
	// room for the rows that the pass appends, the number of entries before the
	// pass, and the logical slot of entry 0. Call it before every Run: a table that
	// grew has moved.
	SetHead(layer, seq, head int, t PageTable, entries, base int)

	// Run runs a list and waits for it. When ctx is done, it soon returns the
	// context's cause, after the device has finished what it had begun.
	Run(ctx context.Context, list PassList) error

	// OutLogits returns n rows of logits, [n][Vocab], valid until the next Run.
	OutLogits(n int) []float32
	// Read copies n rows of an activation, from first on, to dst, [n][columns].
	Read(ctx context.Context, dst []float32, a Activation, first, n int) error
	// ReadStats copies the softmax statistics of n rows, from first on, to dst, [n][Heads].
	ReadStats(ctx context.Context, dst []Softmax, first, n int) error

	// Close releases the memory of the pass and of its lists.
	Close()
}

// MetricPass is a Pass that also computes, on the device, what compression ranks
// entries by. Moments and ColumnSums are recorded like the operations of Pass; the
// others compute at once, on the entries that SetHead last named for the layer and
// the sequence: call it again after the rows of a pass were appended.
//
// Scores are returned in new memory, a row per KV head with an element per entry;
// larger means keep. They are exact up to the rounding of the device.
type MetricPass interface {
	Pass

	// NewMoments allocates memory for statistics of a layer's queries: their means
	// and, with covariance, second moments, initially of no rows.
	NewMoments(covariance bool) (DeviceMoments, error)

	// Moments adds rows first … first+n-1 of ActQ, as they are at that point, to the
	// statistics of every query head: record it before RopeAppend. It does not
	// matter how rows are divided among calls.
	Moments(m DeviceMoments, first, n int)

	// ReadMoments returns the number of rows so far and writes the mean of a query
	// head, [HeadDim], and the biased covariance, [HeadDim][HeadDim], unless cov is nil.
	ReadMoments(ctx context.Context, m DeviceMoments, head int, mean, cov []float64) (n int, err error)

	// NewSums allocates memory for attention column sums, initially zero, of heads with
	// up to entries entries.
	NewSums(entries int) (DeviceSums, error)

	// ColumnSums adds, per query head, the attention weights that rows first …
	// first+n-1 give to every entry. The rows are consecutive tokens of sequence
	// seq, the layer has no window, and Attend(layer, true) comes before it in the
	// list. It does not matter how rows are divided among calls.
	ColumnSums(s DeviceSums, layer, seq, first, n int)

	// WindowScores returns SnapKV's scores from the sums of the last o.Window rows, with
	// +Inf for the last o.Window entries.
	WindowScores(ctx context.Context, layer, seq int, s DeviceSums, o WindowScoring) ([][]float32, error)

	// AnchorScores returns minus the cosine of every key with the mean of its head's
	// unit keys. KeyNorms and ValueNorms return the lengths of keys and of values.
	AnchorScores(ctx context.Context, layer, seq int) ([][]float32, error)
	KeyNorms(ctx context.Context, layer, seq int) ([][]float32, error)
	ValueNorms(ctx context.Context, layer, seq int) ([][]float32, error)

	// OutputNorms has a row per query head: the norm of every value after the
	// part of the output projection out, [Hidden, Heads*HeadDim], that reads the head.
	// Norm 1 is the sum of absolute values, norm 2 the length.
	OutputNorms(ctx context.Context, layer, seq int, out DeviceMatrix, norm int) ([][]float32, error)

	// ExpectedScores returns the scores of Expected Attention, given moments of the
	// rotated queries.
	ExpectedScores(ctx context.Context, layer, seq int, o ExpectedScoring) ([][]float32, error)
}

// DeviceMoments and DeviceSums are statistics on the device, used with the
// MetricPass that made them. Free releases their memory; so does Close of the pass.
type (
	DeviceMoments interface{ Free() }
	DeviceSums    interface{ Free() }
)

// WindowScoring holds the parameters of WindowScores.
type WindowScoring struct {
	Window      int  // rows that the sums cover, at least 1
	Kernel      int  // width of the pooling along entries, odd
	MaxPool     bool // pool by the maximum, not the mean
	GroupMax    bool // reduce a group by the maximum, not the mean
	ReduceFirst bool // reduce over the group before pooling
}

// ExpectedScoring holds the parameters of ExpectedScores. The logit of a key k for
// query head q is k·Mean[q] + kᵀ·Form[q]·k; logits go through a softmax over the
// entries that are not sinks, and the score is the mean over the group. With ValueNorm,
// Epsilon is added to it and the sum multiplied by the value's length. Sinks score +Inf.
type ExpectedScoring struct {
	Mean      []float32 // [Heads][HeadDim]
	Form      []float32 // [Heads][HeadDim][HeadDim], upper triangle with zeros below; nil: no second moments
	Sinks     []int     // [KVHeads] leading entries that are always kept; nil: none
	ValueNorm bool
	Epsilon   float64
}

// PassList is a recorded list of operations. Free releases it.
type PassList interface{ Free() }
