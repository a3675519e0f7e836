package kernels

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lukv/lukv/tensor"
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
	Missing string `json:"missing,omitempty"` // feature without which it is unusable, "" if none

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

// Device is an open accelerator: memory, and operations on it. It is the whole contract
// between a model and the hardware that it runs on: whoever implements Device, and passes
// package kernels/conformance, runs every model that lukv runs.
//
//   - [Device.Matrix] and [Device.Buffer] make memory. Buffers hold activations, norms and
//     biases; shared buffers carry numbers between host and device.
//   - [Encoder] records operations on buffers and runs them. Recording and running are
//     separate, so that decoding records once and runs for every token.
//   - [Pages] keep the keys and values of caches, [Attention] says which entries the rows
//     of a pass append and see. A [Reducer] also computes the reductions over entries that
//     metrics are made of.
//
// A driver may leave out [ExpertEncoder], and [Reducer] with [StatisticsEncoder].
//
// The arithmetic of every operation is that of the function of [CPU] with the same name,
// up to the bound that the operation states in package kernels/conformance. The bits of a
// row depend only on its own operands, not on the other rows or on how rows are divided
// among calls.
//
// A Device is safe for concurrent use; work runs in the order in which it was submitted.
// After ErrDeviceLost every method but Close fails with it. Methods that allocate fail with
// ErrDeviceMemory if there is too little memory, and then allocate nothing.
type Device interface {
	Info() DeviceInfo
	Memory() DeviceMemory

	// Matrix copies weights of F32, F16, BF16 or blocks of integers to the device, where blocks
	// should take no more memory than in the file. Products widen weights exactly and take
	// activations as they are: no device rounds them to 8 bits. A device that lacks a type of
	// blocks refuses it by an error that names it, and rows that are not whole blocks. Several
	// matrices of one shape and type become one, a stack: their rows, one matrix after the
	// other, as the experts of a layer are kept.
	Matrix(ctx context.Context, stack ...Matrix) (DeviceMatrix, error)

	// Buffer allocates rows × cols elements on the device, all zero. The type is F32, or
	// BF16 for activations that are rounded to nearest even when they are written.
	Buffer(t tensor.Type, rows, cols int) (Buffer, error)

	// Shared allocates rows × cols f32 numbers, all zero, that the host uses in place.
	Shared(use SharedUse, rows, cols int) (SharedBuffer, error)

	// Write copies numbers, [N][columns], to rows, Read copies rows to numbers, after all
	// work that was submitted before.
	Write(ctx context.Context, dst Rows, src []float32) error
	Read(ctx context.Context, dst []float32, src Rows) error

	// Pages creates an empty pool of cache pages of F32, F16, BF16 or I8, or with keys of BF16
	// and values of I8. A device that lacks I8 refuses it by an error that names it.
	Pages(l PageLayout) (PagePool, error)

	// Attention allocates the state of attention for passes of a shape.
	Attention(s AttentionShape) (Attention, error)

	// Encoder returns an encoder without lists.
	Encoder() (Encoder, error)

	// Close releases everything, including memory that was not freed. A second Close does
	// nothing.
	Close() error
}

// DeviceMatrix is a matrix of weights on the device that made it. Free does not wait: call
// it only when no list that uses the matrix is running. A second Free does nothing. The
// same holds for every other Free below.
type DeviceMatrix interface{ Free() }

// Buffer is memory for rows of numbers on the device that made it.
type Buffer interface{ Free() }

// SharedBuffer is a Buffer whose numbers the host sees. Operations take it only where they
// say so.
type SharedBuffer interface {
	Buffer

	// Floats returns the numbers, [rows][cols]. They are valid until Free and may be
	// accessed only while no list that uses the buffer is running.
	Floats() []float32
}

// SharedUse says which way the numbers of a shared buffer go.
type SharedUse uint8

const (
	HostWrites SharedUse = iota // the device reads; reading may be slow for the host
	HostReads                   // the device writes
)

// Rows is a part of a buffer: rows [First, First+N).
type Rows struct {
	Buffer   Buffer
	First, N int
}

// Part returns rows first … first+n-1 of r.
func (r Rows) Part(first, n int) Rows { return Rows{r.Buffer, r.First + first, n} }

// NewVector copies numbers such as a norm or a bias to a new buffer of one row.
func NewVector(ctx context.Context, d Device, v []float32) (Buffer, error) {
	b, err := d.Buffer(tensor.F32, 1, len(v))
	if err != nil {
		return nil, err
	}
	if err := d.Write(ctx, Rows{b, 0, 1}, v); err != nil {
		b.Free()
		return nil, err
	}
	return b, nil
}

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
	// device memory allocated for them.
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

// Linear is a matrix product with its bias: x·Wᵀ + Bias.
type Linear struct {
	W    DeviceMatrix
	Bias Buffer // [1][rows of W], or nil
}

// Product is one of the products of a MatMul. Dst has as many rows as the source.
type Product struct {
	Linear
	Dst Rows
}

// CommandList is a recorded list of operations. Free releases it.
type CommandList interface{ Free() }

// Encoder records operations on buffers of its device and runs the recorded lists. It
// belongs to one goroutine at a time.
//
//	e.Begin()
//	e.Copy(x, in); e.Norm(h, x, w, eps); e.MatMul(h, false, products); …
//	list, err := e.End()
//	copy(in.Floats(), embeddings); a.SetSpans(…); a.SetHead(…)
//	err = e.Run(ctx, list)
//
// An operation reads and writes its rows when the list runs, after all operations that were
// recorded before it. Operations keep no slice that they were given. Unless an operation
// says otherwise, its rows are f32 and not shared, and its operands do not overlap.
// Running allocates nothing on the Go heap.
type Encoder interface {
	// Begin starts recording and discards a recording that was not ended. End stops and
	// returns the list, or an error for the first operation whose arguments did not fit.
	Begin()
	End() (CommandList, error)

	// Run runs a list and waits for it. When ctx is done, it soon returns the context's
	// cause, after the device has finished what it had begun: long operations and long
	// lists are interrupted in between.
	Run(ctx context.Context, list CommandList) error

	// Copy copies src to dst, which has as many rows and columns and the same type. Either
	// may be shared. Rows of f32 on the device may also go to rows of bf16, rounded.
	Copy(dst, src Rows)

	// Embed sets row i of dst to row ids[i] of the table, widened; ids is a shared buffer
	// of one column that holds whole numbers. An id beyond the table gives zeros.
	Embed(dst Rows, table DeviceMatrix, ids Rows)

	// Norm sets dst to the RMS-normalised rows of src, times weight, [1][columns]. dst may
	// be bf16.
	Norm(dst, src Rows, weight Buffer, eps float64)

	// HeadNorm normalises each head of x in place: as many columns as weight has, which may
	// be all of them.
	HeadNorm(x Rows, weight Buffer, eps float64)

	// MatMul computes products of src, which may be bf16. With add they are added to their
	// Dst.
	MatMul(src Rows, add bool, products []Product)

	// GateUp sets dst to the activation of src·gate, times src·up ([CPU.Gated]). Both may be
	// bf16.
	GateUp(dst, src Rows, a Activation, gate, up Linear)

	// AddScaled adds src, times scale, to dst.
	AddScaled(dst, src Rows, scale float32)

	// ArgMax sets each row of dst, one column, to the index of the largest element of the
	// row of src, the first among equals. NaN is never the largest.
	ArgMax(dst, src Rows)

	// RopeAppend rotates queries q and keys k in place by the rows' turns and stores keys
	// and values v in the pages of the layer's heads. Row i is row i of the pass that a
	// describes. turns is shared: HeadDim/2 cosines, then as many sines, for each row, and,
	// if it has one column more, the factor of the row's rotated queries. Turns without a
	// buffer rotate nothing. With AttentionShape.BF16 it rounds q. What pages of I8 hold of a
	// rotated key or a value has the bits that PageRows stores.
	RopeAppend(a Attention, layer int, q, k, v, turns Rows)

	// Attend sets dst, which may be bf16, to the attention of rotated queries q over the
	// layer's pages. Queries and weights need not be rounded where pages are of I8, as they are
	// on the processor: a device may widen entries and compute as over other types. With
	// stats, the softmax statistics are kept for Attention.ReadStats and ColumnSums.
	Attend(a Attention, layer int, dst, q Rows, stats bool)

	// Close releases the encoder and its lists.
	Close()
}

// ExpertEncoder is an Encoder with the operations of mixtures of experts. Models that have them
// run only on devices whose encoders do.
type ExpertEncoder interface {
	Encoder

	// Route sets row i of experts to the indices of the experts that the function [Route]
	// chooses by row i of logits, as many as experts has columns, in ascending order, and row
	// i of weights to their weights.
	Route(experts, weights, logits Rows, normalise bool)

	// ExpertGateUp sets row i·K+k of dst, which may be bf16, to what GateUp computes of x, row
	// i of src, which may be bf16, with the matrices experts[i][k] of two stacks. experts has K
	// columns of whole numbers below the height of the stacks.
	ExpertGateUp(dst, src, experts Rows, a Activation, gate, up DeviceMatrix)

	// ExpertMatMul sets row i·K+k of dst to the product of row i·K+k of src, which may be
	// bf16, with matrix experts[i][k] of a stack.
	ExpertMatMul(dst, src, experts Rows, w DeviceMatrix)

	// ExpertSum sets row i of dst to the sum of rows i·K … i·K+K-1 of src, each times its
	// element of row i of weights, which has K columns: zero, to which they are added in
	// ascending order. Products and sums are rounded separately.
	ExpertSum(dst, src, weights Rows)

	// AddGated adds row i of src, times 1/(1 + e^(-gates[i])), to row i of dst. gates has one
	// column. Products and sums are rounded separately.
	AddGated(dst, src, gates Rows)
}

// StatisticsEncoder is an Encoder with the statistics of a [Reducer].
type StatisticsEncoder interface {
	Encoder

	// Moments adds rows first … first+n-1 of q to the statistics. It does not matter how
	// rows are divided among calls.
	Moments(m Moments, q Rows, first, n int)

	// ColumnSums adds, per query head, the attention weights that rows first … first+n-1
	// of the pass give to every entry. They are consecutive tokens of sequence seq, the
	// layer has no window, and Attend with stats precedes it in the list. It does not
	// matter how rows are divided among calls.
	ColumnSums(s ColumnSums, a Attention, layer, seq int, q Rows, first, n int)
}

// AttentionShape says what an Attention is for.
type AttentionShape struct {
	Rows      int // maximum number of rows of a pass, a row being a token
	Sequences int // maximum number of sequences

	Heads, KVHeads, HeadDim int

	Windows []int   // attention window of every layer on the device, in tokens; 0 for none
	Scale   float32 // of scores, log2 e included
	Cap     float32 // if positive, what SoftCap limits scaled scores to, log2 e included
	Page    PageLayout

	// WideKeys marks the layers with keys of BF16 if those of Page are integers; nil for none.
	WideKeys []bool

	// BF16 rounds to bf16, as AttentionArgs.BF16 does, the rotated queries and the
	// attention weights, which are 0 where the score is more than 60 below the largest of
	// its block. Page.Type must then be BF16.
	BF16 bool
}

// PageOf is the layout of a layer's pages.
func (s *AttentionShape) PageOf(layer int) PageLayout {
	l := s.Page
	if s.WideKeys != nil && s.WideKeys[layer] {
		l = l.WithWideKeys()
	}
	return l
}

// RowSpan is a span of consecutive tokens of one sequence in a pass: rows [Row, Row+N).
type RowSpan struct{ Row, N int }

// Attention knows where the rows of a pass are in the caches of their sequences, layer by
// layer. It belongs to one goroutine at a time, and may be changed only while no list that
// uses it is running.
type Attention interface {
	// SetSpans says which rows belong to sequence i = 0 … len(spans)-1; positions,
	// [rows], holds those of the rows.
	SetSpans(spans []RowSpan, positions []int32)

	// SetHead says where the entries of a KV head of a sequence are: its pages, with
	// room for the rows that the pass appends, the number of entries before the
	// pass, and the logical slot of entry 0. Call it before every Run: a table that
	// grew has moved. It allocates nothing.
	SetHead(layer, seq, head int, t PageTable, entries, base int)

	// ReadStats copies the softmax statistics of n rows, from first on, to dst, [n][Heads].
	ReadStats(ctx context.Context, dst []Softmax, first, n int) error

	// Free releases the memory, that of a Reducer's statistics and sums included.
	Free()
}

// Reducer is an Attention that reduces over the entries of its layers, of a device whose
// encoders are each a [StatisticsEncoder]. Without one, metrics are computed on the host, from
// copies of the pages.
//
// Reductions compute at once, over the widened entries that SetHead last named for the
// layer and the sequence: call it again after a pass has appended its rows. They return new
// memory, a row per KV head or per query head with an element per entry, exact up to the
// rounding of the device.
type Reducer interface {
	Attention

	// KeyNorms and ValueNorms return the lengths of keys and of values, per KV head.
	KeyNorms(ctx context.Context, layer, seq int) ([][]float32, error)
	ValueNorms(ctx context.Context, layer, seq int) ([][]float32, error)

	// MeanCosines returns the cosine of every key with the mean of its head's unit keys,
	// per KV head.
	MeanCosines(ctx context.Context, layer, seq int) ([][]float32, error)

	// OutputNorms returns, per query head, the norm of every value after the part of
	// the output projection, [any, Heads*HeadDim], that reads the head: norm 1 is the sum
	// of absolute values, norm 2 the length.
	OutputNorms(ctx context.Context, layer, seq int, projection DeviceMatrix, norm int) ([][]float32, error)

	// QuadraticForm returns k·linear[q] + kᵀ·form[q]·k for every query head q and key k of
	// its KV head. linear is [Heads][HeadDim]; form is [Heads][HeadDim][HeadDim], upper
	// triangles with zeros below, or nil for none.
	QuadraticForm(ctx context.Context, layer, seq int, linear, form []float32) ([][]float32, error)

	// KeyDistances returns the squared distance of every key from the mean of its head's keys,
	// per KV head, after their rotation is undone: elements i and i + HeadDim/2 of a key are
	// turned back by the angle frequencies[i] times the entry's position. frequencies is
	// [HeadDim/2].
	KeyDistances(ctx context.Context, layer, seq int, frequencies []float64) ([][]float32, error)

	// LinearForms returns k·keys[h] + v·values[h] for every key k, its rotation undone as for
	// KeyDistances, and value v of a KV head h. keys and values are [KVHeads][HeadDim].
	LinearForms(ctx context.Context, layer, seq int, keys, values []float32, frequencies []float64) ([][]float32, error)

	// Moments allocates statistics of the query heads of a layer: their means and, with
	// covariance, second moments, initially of no rows. ReadMoments returns the number of
	// rows so far and writes the mean of a query head, [HeadDim], and the biased
	// covariance, [HeadDim][HeadDim], unless cov is nil.
	Moments(covariance bool) (Moments, error)
	ReadMoments(ctx context.Context, m Moments, head int, mean, cov []float64) (n int, err error)

	// ColumnSums allocates sums of attention, initially zero, for heads of up to the given
	// number of entries. ReadColumnSums returns them per query head, for the entries of a
	// layer and sequence.
	ColumnSums(entries int) (ColumnSums, error)
	ReadColumnSums(ctx context.Context, s ColumnSums, layer, seq int) ([][]float32, error)
}

// Moments and ColumnSums are statistics on the device, used with the Reducer that made them.
type (
	Moments    interface{ Free() }
	ColumnSums interface{ Free() }
)
