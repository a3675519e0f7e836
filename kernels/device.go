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
	// ErrNoDevice says that no driver, or no device of it, answers to a name.
	ErrNoDevice = errors.New("no such device")

	// ErrDeviceLost says that a device stopped working. Everything on it is gone;
	// close what used it and open it again, or go on without.
	ErrDeviceLost = errors.New("device lost")

	// ErrDeviceMemory says that device memory does not suffice; the message has
	// the numbers.
	ErrDeviceMemory = errors.New("out of device memory")
)

// DeviceDriver opens devices of one kind. Packages such as kernels/vulkan
// register theirs when they are imported.
type DeviceDriver interface {
	// Name is what stands before the colon of a device's name, such as "vulkan".
	Name() string

	// Devices lists the devices of this system, in the order of their indices.
	// A system without any gives an error that is ErrNoDevice and says why.
	Devices() ([]DeviceInfo, error)

	// Open opens the device that the selector names: an index, a part of a name
	// or a UUID; the empty selector means the best device that is no software.
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
	Missing string `json:"missing,omitempty"` // what it lacks to be used, "" if nothing

	Memory        uint64 `json:"memory_bytes"`         // of the largest device-local heap
	Free          uint64 `json:"free_bytes"`           // that this process may still use; Memory if the driver does not tell
	MaxAllocation uint64 `json:"max_allocation_bytes"` // of one allocation

	Features []string `json:"features"` // optional abilities in use or at hand, by their names

	// Matrices names the matrix units that products of bf16 use, such as "bf16
	// 16×16×16" (rows, weights and columns of one step), or says "none: " and why.
	// Whether an offered one is used may be known only of an open device.
	Matrices string `json:"matrices,omitempty"`
}

// DeviceMemory describes the memory of an open device in bytes.
type DeviceMemory struct {
	Used, Taken uint64 // in live buffers; taken from the driver for them
	Host        uint64 // taken for buffers that the host sees
	Free, Total uint64
	Buffers     int // live buffers
}

// Device is an open accelerator: memory for weights and cache pages, and passes
// over them. It is safe for concurrent use; work runs in the order in which it
// was handed over. After ErrDeviceLost every method but Close fails with it.
type Device interface {
	Info() DeviceInfo
	Memory() DeviceMemory

	// Matrix copies weights to the device, Vector numbers such as biases and
	// norms. Not enough memory: ErrDeviceMemory, and nothing was taken.
	Matrix(ctx context.Context, m Matrix) (DeviceMatrix, error)
	Vector(ctx context.Context, v []float32) (DeviceVector, error)

	// Rows takes memory for n rows of cols numbers, f32, with undefined contents.
	Rows(n, cols int) (DeviceRows, error)

	// Pages makes an empty pool of cache pages.
	Pages(l PageLayout) (PagePool, error)

	// Pass takes what passes of a shape need.
	Pass(s PassShape) (Pass, error)

	// Close gives everything back, also what was not freed. A second Close does
	// nothing.
	Close() error
}

// DeviceMatrix, DeviceVector and DeviceRows are memory of the device that made
// them. Free waits for nothing: call it when no pass uses them. A second Free
// does nothing.
type (
	DeviceMatrix interface{ Free() }
	DeviceVector interface{ Free() }
	DeviceRows   interface{ Free() }
)

// DevicePage is a page of a pool. The zero DevicePage is none.
type DevicePage uint64

// PagePool hands out cache pages and counts who holds them, so that caches can
// share them. Safe for concurrent use. Pages that become free are used again by
// work that is handed over later; memory that no page uses goes back to the
// device soon.
//
// On the host a page is a block of bytes as [PageLayout] describes it. Elements
// keep their bits on the way in both directions.
type PagePool interface {
	// Alloc appends n pages to dst, each held once. On an error (ErrDeviceMemory)
	// nothing was taken.
	Alloc(dst []DevicePage, n int) ([]DevicePage, error)
	Ref(pages []DevicePage)
	Unref(pages []DevicePage)

	// Read copies pages to blocks of the host, one behind the other, Write blocks to
	// pages. Many pages at once take much less time than one by one. After an error
	// the destination holds anything. Copy copies one page to another.
	Read(ctx context.Context, blocks []byte, pages []DevicePage) error
	Write(ctx context.Context, pages []DevicePage, blocks []byte) error
	Copy(dst, src DevicePage) error

	// Compact makes entry slots[i] of the list src entry i of the list dst, for
	// from ≤ i < len(slots). Slots ascend and slots[i] ≥ i; pages of dst are those
	// of src or fresh ones in their place.
	Compact(dst, src []DevicePage, slots []int32, from int) error

	// Table makes an empty page table in memory that the device reads.
	Table() (PageTable, error)

	// Bytes is that of all held pages, a page that is shared counted once;
	// HighWater the most it was since the beginning or ResetHighWater; Taken the
	// device memory behind them.
	Bytes() int64
	HighWater() int64
	ResetHighWater()
	Taken() int64

	// Close gives all memory back. A second Close does nothing.
	Close() error
}

// PageTable is a list of pages as passes read it. It is changed only while no
// pass that reads it runs.
type PageTable interface {
	// Set makes pages the table's, given that entries below from are in it
	// already. It allocates only when the table has to grow, by doubling.
	Set(pages []DevicePage, from int) error
	Free()
}

// PassShape says what passes are for.
type PassShape struct {
	Rows      int // most rows, a row being a token
	Sequences int // most sequences
	Logits    int // most rows of logits

	Hidden, Heads, KVHeads, HeadDim, Intermediate, Vocab int

	Windows []int   // attention window in tokens of every layer on the device, 0 for none
	BF16    bool    // activations are rounded to bf16 before products; all matrices are bf16 then
	Scale   float32 // of attention scores, log2 e included
	Page    PageLayout

	// AttentionBF16 rounds rotated queries to bf16, and in attention the weights,
	// which are 0 where the score is more than 60 below the largest of its block, as
	// AttentionArgs.BF16 does. Page.Type must be BF16 then.
	AttentionBF16 bool
}

// Act names a matrix of activations of a pass, [rows][columns] f32 as far as the
// host sees it.
type Act uint8

const (
	ActX         Act = iota // [Hidden] residual stream
	ActNorm                 // [Hidden] normalised
	ActQ                    // [Heads*HeadDim]
	ActK                    // [KVHeads*HeadDim]
	ActV                    // [KVHeads*HeadDim]
	ActAttention            // [Heads*HeadDim]
	ActInner                // [Intermediate]
	ActLogits               // [Vocab]
)

// Columns returns the columns of an activation.
func (s *PassShape) Columns(a Act) int {
	switch a {
	case ActQ, ActAttention:
		return s.Heads * s.HeadDim
	case ActK, ActV:
		return s.KVHeads * s.HeadDim
	case ActInner:
		return s.Intermediate
	case ActLogits:
		return s.Vocab
	}
	return s.Hidden
}

// DeviceProduct is one matrix product of a MatMul: Dst = src·Wᵀ + Bias.
type DeviceProduct struct {
	W    DeviceMatrix
	Dst  Act
	Bias DeviceVector // or nil
}

// PassSpan is the consecutive tokens of one sequence in a pass: rows
// [Row, Row+N).
type PassSpan struct{ Row, N int }

// Pass is the memory of one forward pass at a time and a recorder of operations.
// It belongs to one goroutine at a time. Recording and running what was recorded
// are separate, so that decoding records once and runs for every token:
//
//	p.Begin(rows); p.Take(); p.Norm(…); …; list, err := p.End()
//	copy(p.In(), x); p.SetRow(…); p.SetSpans(…); p.SetHead(…)
//	err = p.Run(ctx, list)
//
// Running allocates nothing on the Go heap. Bits of a row depend on its own
// operands alone, whatever else is in the pass.
type Pass interface {
	// Begin starts recording operations on rows rows; End ends it and returns the
	// list. Arguments that do not fit are an error of End.
	Begin(rows int)
	End() (PassList, error)

	// Take sets ActX to what the host left in In when the list runs.
	Take()
	// Load sets ActX to rows first … of r, Store the other way.
	Load(r DeviceRows, first int)
	Store(r DeviceRows, first int)
	// Norm sets ActNorm to the RMS-normalised ActX.
	Norm(w DeviceVector, eps float64)
	// MatMul computes products of src. With add they are added to their Dst, which is
	// ActX, ActQ, ActK or ActV.
	MatMul(src Act, add bool, products []DeviceProduct)
	// HeadNorm normalises every head of ActQ or ActK in place, w is [HeadDim].
	HeadNorm(a Act, w DeviceVector, eps float64)
	// RopeAppend rotates ActQ and ActK by the rows' turns and stores keys and
	// values in the pages of the layer's heads. With AttentionBF16 it rounds ActQ.
	RopeAppend(layer int)
	// Attend sets ActAttention from ActQ and the layer's pages. With stats, ReadStats
	// can read the softmax statistics afterwards.
	Attend(layer int, stats bool)
	// GateUp sets ActInner to SwiGLU(ActNorm·gateᵀ + gb, ActNorm·upᵀ + ub); biases may be nil.
	GateUp(gate, up DeviceMatrix, gb, ub DeviceVector)
	// Logits sets ActLogits, n rows, to the products of head with rows first … of
	// ActX, normalised with w, and leaves them where OutLogits shows them.
	Logits(w DeviceVector, eps float64, head DeviceMatrix, first, n int)

	// In is memory of the host for the rows of Take, [rows][Hidden]. Turns is that
	// for cosines and sines of every row, [rows][HeadDim]: HeadDim/2 cosines, then
	// as many sines. Both are valid until Close and are written only while no list runs.
	In() []float32
	Turns() []float32

	// SetSpans says which rows belong to sequence i = 0 … len(spans)-1; positions,
	// [rows], are those of the rows.
	SetSpans(spans []PassSpan, positions []int32)
	// SetHead says where the entries of a KV head of a sequence lie: its pages, with
	// room for the rows that the pass appends, the number of entries before the
	// pass, and the logical slot of entry 0. Say so before every Run: a table that
	// grew has moved.
	SetHead(layer, seq, head int, t PageTable, entries, base int)

	// Run runs a list and waits for it. When ctx is done, it returns soon with the
	// context's cause, after the device has finished what had begun.
	Run(ctx context.Context, list PassList) error

	// OutLogits returns n rows of logits, [n][Vocab], valid until the next Run.
	OutLogits(n int) []float32
	// Read copies rows first … of an activation to dst, [n][columns].
	Read(ctx context.Context, dst []float32, a Act, first, n int) error
	// ReadStats copies the softmax statistics of rows first …, [n][Heads].
	ReadStats(ctx context.Context, dst []Softmax, first, n int) error

	// Close gives the memory of the pass and of its lists back.
	Close()
}

// MetricPass is a Pass that also computes what compression ranks entries by, where
// they lie. Moments and ColumnSums are recorded like the operations of Pass; the
// others compute at once, on the entries that SetHead named last for the layer and
// the sequence: set them anew after the rows of a pass were appended.
//
// Scores come in new memory, a row per KV head with an element per entry; larger
// means keep. They are within the rounding of the device.
type MetricPass interface {
	Pass

	// NewMoments takes memory for statistics of the queries of a layer: their
	// means and, with covariance, second moments, of no rows at first.
	NewMoments(covariance bool) (DeviceMoments, error)

	// Moments adds rows first … first+n-1 of ActQ, as they are then, to the
	// statistics of every query head: record it before RopeAppend. It does not
	// matter how rows are cut into calls.
	Moments(m DeviceMoments, first, n int)

	// ReadMoments returns the number of rows so far and writes the mean of a query
	// head, [HeadDim], and the biased covariance, [HeadDim][HeadDim], unless cov is nil.
	ReadMoments(ctx context.Context, m DeviceMoments, head int, mean, cov []float64) (n int, err error)

	// NewSums takes memory for attention column sums, zero at first, of heads with
	// up to so many entries.
	NewSums(entries int) (DeviceSums, error)

	// ColumnSums adds, per query head, the attention weights that rows first …
	// first+n-1 give to every entry. The rows are consecutive tokens of sequence
	// seq, the layer has no window, and Attend(layer, true) comes before it in the
	// list. It does not matter how rows are cut into calls.
	ColumnSums(s DeviceSums, layer, seq, first, n int)

	// WindowScores is SnapKV's score of the sums of the last o.Window rows, with
	// +Inf for the last o.Window entries.
	WindowScores(ctx context.Context, layer, seq int, s DeviceSums, o WindowScoring) ([][]float32, error)

	// AnchorScores is minus the cosine of every key with the mean of its head's
	// unit keys. KeyNorms and ValueNorms are the lengths of keys and of values.
	AnchorScores(ctx context.Context, layer, seq int) ([][]float32, error)
	KeyNorms(ctx context.Context, layer, seq int) ([][]float32, error)
	ValueNorms(ctx context.Context, layer, seq int) ([][]float32, error)

	// OutputNorms has a row per query head: the norm of every value after the
	// part of the output projection, [Hidden, Heads*HeadDim], that reads the head. Norm 1 is
	// the sum of absolute values, 2 the length.
	OutputNorms(ctx context.Context, layer, seq int, out DeviceMatrix, norm int) ([][]float32, error)

	// ExpectedScores is Expected Attention given moments of the rotated queries.
	ExpectedScores(ctx context.Context, layer, seq int, o ExpectedScoring) ([][]float32, error)
}

// DeviceMoments and DeviceSums are statistics on the device, used with the
// MetricPass that made them. Free gives their memory back; so does its Close.
type (
	DeviceMoments interface{ Free() }
	DeviceSums    interface{ Free() }
)

// WindowScoring are the parameters of WindowScores.
type WindowScoring struct {
	Window      int  // rows that the sums are of, at least 1
	Kernel      int  // width of the pooling along entries, odd
	MaxPool     bool // pool by the maximum, not by the mean
	GroupMax    bool // reduce a group by the maximum, not by the mean
	ReduceFirst bool // over the group, before pooling
}

// ExpectedScoring are the parameters of ExpectedScores. The logit of a key k for
// query head q is k·Mean[q] + kᵀ·Form[q]·k; logits go through a softmax over the
// entries that are no sinks, and the mean over the group is the score, plus
// Epsilon and times the length of the value with ValueNorm. Sinks score +Inf.
type ExpectedScoring struct {
	Mean      []float32 // [Heads][HeadDim]
	Form      []float32 // [Heads][HeadDim][HeadDim], upper triangle with zeros below; nil: no second moments
	Sinks     []int     // [KVHeads] leading entries that are always kept; nil: none
	ValueNorm bool
	Epsilon   float64
}

// PassList is a recorded list of operations. Free gives it back.
type PassList interface{ Free() }
