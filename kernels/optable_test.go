package kernels

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testmem"
	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/tensor"
)

// The operation table. Each operation lists its operands and one or more ways
// to compute the same thing (whole, in slices of rows, token by token, …). The
// first way on the portable CPU is the definition. TestOpTable requires its bits
//
//   - from every way on every instruction set that the processor offers,
//   - with operands between guard bytes and flush against unreadable pages,
//   - for plain data and for data full of subnormal, huge and special numbers,
//   - to match those recorded in testdata/optable.golden, on any processor.
//
// A group of operations adds its rows in a file of its own, optable_<group>_test.go,
// with an init function that calls register.

// op is one operation with one shape.
type op struct {
	name     string // "group/shape", unique
	operands []operand
	ways     []way
	styles   []style // nil: all but tiny
}

type operand struct {
	name string
	elem tensor.Type // element type, for filling and for comparing
	n    int         // elements
	role role
}

type role int

const (
	in    role = iota // must come back unchanged
	out               // starts with a recognisable pattern; compared whole, including what is not written
	inout             // filled like in, compared like out
)

// way computes the operation on buffers given in the order of the operands.
type way struct {
	name string
	run  func(c CPU, b []mem)
}

// mem is an operand's memory.
type mem []byte

func (m mem) f32() []float32 { return view[float32](m) }
func (m mem) u16() []uint16  { return view[uint16](m) }

func view[T any](m mem) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(m))), len(m)/int(unsafe.Sizeof(t)))
}

var opTable []op

func register(ops ...op) { opTable = append(opTable, ops...) }

// style is a kind of data.
type style = testnum.Style

const plain, hard, special, tiny = testnum.Plain, testnum.Hard, testnum.Special, testnum.Tiny

var updateOps = flag.Bool("update-optable", false, "rewrite testdata/optable.golden from the portable functions")

func TestOpTable(t *testing.T) {
	const file = "testdata/optable.golden"
	golden := map[string]string{}
	if !*updateOps {
		golden = readHashes(t, file)
	}
	seen := map[string]string{}
	checks, ran := 0, 0
	for _, o := range opTable {
		t.Run(o.name, func(t *testing.T) {
			ran++
			styles := o.styles
			if styles == nil {
				styles = []style{plain, hard, special}
			}
			for _, st := range styles {
				key := o.name + " " + st.String()
				_, dup := seen[key]
				require.False(t, dup, "operation %q stands twice in the table", key)
				data := make([]mem, len(o.operands))
				r := rand.New(rand.NewPCG(testnum.Hash(key), 1))
				for i, a := range o.operands {
					data[i] = newMem(a.elem.Bytes(a.n))
					fillRandom(r, data[i], a, st)
				}
				want := make([]mem, len(data))
				for i := range data {
					want[i] = newMem(len(data[i]))
					copy(want[i], data[i])
				}
				o.ways[0].run(CPU{}, want)
				seen[key] = hashOutputs(o.operands, want)
				if g, ok := golden[key]; !*updateOps {
					require.True(t, ok, "%s: no recorded result; run go test -run TestOpTable -update-optable where the portable functions are known to be right", key)
					require.Equal(t, g, seen[key], "%s: the portable result differs from the recorded one", key)
				}
				for _, c := range streamingVariants(o.name) {
					for wi, w := range o.ways {
						places := testmem.Places
						if wi > 0 || c.Streaming != streamNear || c == (CPU{}) { // Go checks its own bounds
							places = places[:1]
						}
						for _, p := range places {
							checks++
							where := fmt.Sprintf("%s on %v, streaming %v, slow dot products %v, %s, %s data, %v", o.name, c, c.Streaming, c.SlowDot, w.name, st.String(), p)
							runOp(t, where, o.operands, data, want, p, wi, func(b []mem) { w.run(c, b) })
						}
					}
				}
			}
		})
	}
	require.NotZero(t, checks, "nothing was checked")
	if *updateOps {
		require.Equal(t, len(opTable), ran, "recording needs the whole table")
		writeHashes(t, file, seen)
	}
	msg := fmt.Sprintf("operation table: %d operations, %d checks on %v", len(opTable), checks, Variants())
	t.Log(msg)
	fmt.Println(msg)
}

// streamingVariants returns every instruction set with every choice of streaming and
// SlowDot that makes a difference for an operation.
func streamingVariants(name string) (all []CPU) {
	sets, many := Variants(), strings.HasPrefix(name, "MatMul") || strings.HasPrefix(name, "Attention")
	if testing.Short() && len(sets) > 1 {
		sets = sets[1:] // the first way of the portable functions is compared with its record
	}
	switch last := sets[len(sets)-1]; {
	case last.AVX512BF16 && many:
		last.SlowDot = !last.SlowDot
		sets = append(sets, last)
	case last.DotProd && !strings.HasPrefix(name, "MatMulInt8/"):
		sets = sets[:len(sets)-1] // as without
	}
	for _, c := range sets {
		for s := range Streaming(len(streamingNames)) {
			if s == streamNear || c.AVX2 && many {
				c.Streaming = s
				all = append(all, c)
			}
		}
	}
	return all
}

func runOp(t *testing.T, where string, args []operand, data, want []mem, p testmem.Place, offset int, run func([]mem)) {
	t.Helper()
	bufs := make([]*testmem.Buffer, len(data))
	got := make([]mem, len(data))
	for i := range data {
		// An offset from 64 bytes, but never off the element's own alignment.
		bufs[i] = testmem.New(t, len(data[i]), p, (offset+i+1)*args[i].elem.Align())
		got[i] = bufs[i].Bytes
		copy(got[i], data[i])
	}
	run(got)
	for i, a := range args {
		if err := bufs[i].Check(); err != nil {
			t.Errorf("%s: operand %s: %v", where, a.name, err)
		}
		ref := want[i]
		if a.role == in {
			ref = data[i]
		}
		if d := diff(a.elem, ref, got[i]); d != "" {
			t.Errorf("%s: operand %s: %s", where, a.name, d)
		}
	}
}

// diff describes how got differs from want. It returns "" if all elements have the
// same bits (any NaN equals any other).
func diff(t tensor.Type, want, got mem) string {
	if bytes.Equal(want, got) {
		return ""
	}
	if t.Quantised() {
		return "the blocks differ"
	}
	var lines []string
	bad, n := 0, len(want)/t.Bytes(1)
	for i := range n {
		w, g := bitsAt(t, want, i), bitsAt(t, got, i)
		if w == g {
			continue
		}
		if bad++; bad <= 4 {
			lines = append(lines, fmt.Sprintf("  [%d] want %s, got %s", i, showBits(t, w), showBits(t, g)))
		}
	}
	if bad == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d elements differ\n%s", bad, n, strings.Join(lines, "\n"))
}

// bitsAt returns the bits of element i, the same for every NaN.
func bitsAt(t tensor.Type, m mem, i int) uint64 {
	switch t {
	case tensor.F32:
		b := binary.LittleEndian.Uint32(m[4*i:])
		if b&0x7fffffff > 0x7f800000 {
			b = 0x7fc00000
		}
		return uint64(b)
	case tensor.BF16:
		b := binary.LittleEndian.Uint16(m[2*i:])
		if b&0x7fff > 0x7f80 {
			b = 0x7fc0
		}
		return uint64(b)
	case tensor.F16:
		b := binary.LittleEndian.Uint16(m[2*i:])
		if b&0x7fff > 0x7c00 {
			b = 0x7e00
		}
		return uint64(b)
	case tensor.I64:
		return binary.LittleEndian.Uint64(m[8*i:])
	case tensor.I8:
		return uint64(m[i])
	case tensor.I16:
		return uint64(binary.LittleEndian.Uint16(m[2*i:]))
	case tensor.I32:
		return uint64(binary.LittleEndian.Uint32(m[4*i:]))
	}
	panic("no comparison for type " + t.String())
}

func showBits(t tensor.Type, b uint64) string {
	var v float64
	switch t {
	case tensor.F32:
		v = float64(math.Float32frombits(uint32(b)))
	case tensor.BF16:
		v = float64(bf16(uint16(b)))
	case tensor.F16:
		v = float64(tensor.F16ToF32(uint16(b)))
	default:
		return fmt.Sprint(int64(b))
	}
	return fmt.Sprintf("%#x (%g)", b, v)
}

func newMem(n int) mem {
	// Aligned for every element type.
	s := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), n)
}

func fillRandom(r *rand.Rand, m mem, a operand, st style) {
	if a.elem.Quantised() {
		fillQuants(r, m, a.elem, st)
		return
	}
	for i := range a.n {
		if a.role == out {
			for j := range a.elem.Bytes(1) {
				m[i*a.elem.Bytes(1)+j] = byte(0xC0 + j)
			}
			continue
		}
		switch a.elem {
		case tensor.F32:
			binary.LittleEndian.PutUint32(m[4*i:], randomBits(r, st, a.elem))
		case tensor.F16, tensor.BF16:
			binary.LittleEndian.PutUint16(m[2*i:], uint16(randomBits(r, st, a.elem)))
		case tensor.I64:
			binary.LittleEndian.PutUint64(m[8*i:], r.Uint64())
		case tensor.I32:
			binary.LittleEndian.PutUint32(m[4*i:], r.Uint32())
		}
	}
}

// fillQuants fills m with random blocks whose scales are of the style.
func fillQuants(r *rand.Rand, m mem, t tensor.Type, st style) {
	scales := map[tensor.Type][]int{
		tensor.Q4_1: {0, 2}, tensor.Q5_1: {0, 2}, tensor.Q4_K: {0, 2}, tensor.Q5_K: {0, 2},
		tensor.Q2_K: {80, 82}, tensor.Q3_K: {108}, tensor.Q6_K: {208}, tensor.MXFP4: {},
	}[t]
	if scales == nil {
		scales = []int{0}
	}
	for size := t.Bytes(t.Block()); len(m) > 0; m = m[size:] {
		for i := range m[:size] {
			m[i] = byte(r.Uint32())
		}
		for _, at := range scales {
			binary.LittleEndian.PutUint16(m[at:], uint16(randomBits(r, st, tensor.F16)))
		}
		switch {
		case t == tensor.MXFP4 && st == plain:
			m[0] = byte(122 + r.Uint32()%6)
		case t == tensor.MXFP4 && st != special:
			m[0] = min(m[0], 254)
		case t == tensor.Q8_0 && r.Uint32()%4 == 0:
			m[2+r.Uint32()%32] = 0x80 // -128, which writers of the type avoid
		}
	}
}

// randomBits returns the bits of a random element of a floating-point type.
func randomBits(r *rand.Rand, st style, t tensor.Type) uint32 {
	exp, man := uint32(8), uint32(23)
	switch t {
	case tensor.F16:
		exp, man = 5, 10
	case tensor.BF16:
		man = 7
	}
	return testnum.Bits(r, st, exp, man)
}

// hashOutputs returns a short hash of everything an operation wrote.
func hashOutputs(args []operand, b []mem) string {
	h := sha256.New()
	var w [8]byte
	for i, a := range args {
		if a.role == in {
			continue
		}
		for j := range a.n {
			binary.LittleEndian.PutUint64(w[:], bitsAt(a.elem, b[i], j))
			h.Write(w[:])
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func readHashes(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	m := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if line := s.Text(); line != "" && line[0] != '#' {
			i := strings.LastIndexByte(line, ' ')
			m[line[:i]] = line[i+1:]
		}
	}
	return m
}

func writeHashes(t *testing.T, file string, m map[string]string) {
	t.Helper()
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+" "+v)
	}
	sort.Strings(lines)
	text := "# Results of the portable functions: operation, data, hash. Made by go test -run TestOpTable -update-optable.\n" +
		strings.Join(lines, "\n") + "\n"
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}
