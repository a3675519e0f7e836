//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// These tests need a Vulkan device; without one they skip, unless LUKV_MUST_VULKAN=1
// turns that into a failure. LUKV_TEST_DEVICE selects the device; the default is the
// first one, software or not. On a Debian 12 machine without a GPU
//
//	apt-get install --no-install-recommends libvulkan1 mesa-vulkan-drivers vulkan-validationlayers
//
// installs Mesa's software device and the validation layer, and
//
//	VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.x86_64.json NODEVICE_SELECT=1 LUKV_MUST_VULKAN=1
//
// makes the tests run on it. Regenerating shaders also needs glslc and spirv-tools.
// LUKV_VULKAN_GPU_ASSISTED=1 adds the layer's checks of every address, which needs
// layer 1.4.309 or later: Debian 12's hangs. scripts/vulkan-new provides one.

var shared struct {
	once sync.Once
	d    *Device
	err  error

	mu       sync.Mutex
	messages []string // of the validation layer
}

func note(m string) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.messages = append(shared.messages, m)
	fmt.Fprintln(os.Stderr, "validation:", m) // at once, since the tests may not reach the end
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.d != nil {
		if err := shared.d.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close the device:", err)
			code = 1
		}
	}
	if n := len(shared.messages); n > 0 {
		fmt.Fprintf(os.Stderr, "the validation layer reported %d messages\n", n)
		code = 1
	}
	os.Exit(code)
}

// openTest opens a separate device for a test, or skips.
func openTest(t testing.TB, o Options) *Device {
	t.Helper()
	d, err := openAny(o)
	if err != nil {
		skipOrFail(t, err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, kernels.ErrDeviceLost) {
			t.Errorf("close the device: %v", err)
		}
	})
	return d
}

func openAny(o Options) (*Device, error) {
	selector := os.Getenv("LUKV_TEST_DEVICE")
	if selector == "" {
		selector = "0"
	}
	if o.CacheDir == "" {
		o.CacheDir = "-"
	}
	if o.Validation == nil {
		o.Validation = note
	}
	o.GPUAssisted = gpuAssisted()
	d, err := Open(selector, o)
	if err != nil && !o.GPUAssisted && strings.Contains(err.Error(), "VK_LAYER_KHRONOS_validation is not installed") {
		o.Validation = nil
		return Open(selector, o)
	}
	return d, err
}

func gpuAssisted() bool { return os.Getenv("LUKV_VULKAN_GPU_ASSISTED") == "1" }

func skipOrFail(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("LUKV_MUST_VULKAN") == "1" {
		t.Fatalf("LUKV_MUST_VULKAN is set, but there is no device: %v", err)
	}
	t.Skipf("no vulkan device: %v", err)
}

// device returns the device that the tests share, or skips.
func device(t testing.TB) *Device {
	t.Helper()
	shared.once.Do(func() { shared.d, shared.err = openAny(Options{BlockBytes: 64 << 20}) })
	if shared.err != nil {
		skipOrFail(t, shared.err)
	}
	return shared.d
}

const guard = 256

// guarded is device memory between bytes that must not change.
type guarded struct {
	t testing.TB
	d *Device
	b *buffer
	view
}

func alloc(t testing.TB, d *Device, n int) *guarded {
	t.Helper()
	whole := (n + 2*guard + 3) &^ 3
	b, err := d.newLocalBuffer(int64(whole))
	ok(t, err)
	fill := make([]byte, whole)
	for i := range fill {
		fill[i] = 0xA5
	}
	ok(t, d.upload(context.Background(), b.All(), fill))
	g := &guarded{t, d, b, b.At(guard, int64(n))}
	t.Cleanup(func() {
		if !t.Failed() {
			g.check()
		}
		b.Free()
	})
	return g
}

func (g *guarded) check() {
	g.t.Helper()
	all := make([]byte, g.b.Size())
	ok(g.t, g.d.download(context.Background(), all, g.b.All()))
	n := int(g.view.Size())
	for i, x := range all {
		if (i < guard || i >= guard+n) && x != 0xA5 {
			g.t.Fatalf("byte %d of a buffer of %d was overwritten with %#x", i-guard, n, x)
		}
	}
}

func (g *guarded) f32() []float32 {
	g.t.Helper()
	raw := make([]byte, g.view.Size())
	ok(g.t, g.d.download(context.Background(), raw, g.view))
	return floats(raw)
}

func (g *guarded) raw() []byte {
	g.t.Helper()
	raw := make([]byte, g.view.Size())
	ok(g.t, g.d.download(context.Background(), raw, g.view))
	return raw
}

func floats(raw []byte) []float32 {
	out := make([]float32, len(raw)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out
}

func bytesOf(x []float32) []byte {
	out := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
	}
	return out
}

func upload(t testing.TB, d *Device, data []byte) *guarded {
	t.Helper()
	g := alloc(t, d, len(data))
	ok(t, d.upload(context.Background(), g.view, data))
	return g
}

// uploadRows uploads [n][cols] values as a rows2D of a type; gaps keep the guard
// pattern, which is garbage that must not matter.
func uploadRows(t testing.TB, d *Device, x []float32, n, cols int, typ tensor.Type) (rows2D, *guarded) {
	t.Helper()
	g := alloc(t, d, max(n*padded(cols)*typ.Bytes(1), 4))
	r := newRows2D(g.view, typ, n, cols)
	raw := make([]byte, cols*typ.Bytes(1))
	for i := range n {
		kernels.CPU{}.Narrow(raw, x[i*cols:(i+1)*cols], typ)
		ok(t, d.upload(context.Background(), g.view.At(int64(i*padded(cols)*typ.Bytes(1)), int64(len(raw))), raw))
	}
	return r, g
}

// rowsOf reads a rows2D back as [n][cols].
func rowsOf(g *guarded, r rows2D) []float32 {
	g.t.Helper()
	raw := g.raw()
	out := make([]float32, r.N*r.Cols)
	size := r.Type.Bytes(1)
	for i := range r.N {
		kernels.CPU{}.Widen(out[i*r.Cols:(i+1)*r.Cols], raw[i*r.Stride*size:(i*r.Stride+r.Cols)*size], r.Type)
	}
	return out
}

func newRows(t testing.TB, d *Device, n, cols int, typ tensor.Type) (rows2D, *guarded) {
	t.Helper()
	g := alloc(t, d, max(n*padded(cols)*typ.Bytes(1), 4))
	return newRows2D(g.view, typ, n, cols), g
}

func uploadWeights(t testing.TB, d *Device, raw []byte, typ tensor.Type, rows, cols int) weights {
	t.Helper()
	g := alloc(t, d, int(weightBytes(typ, rows, cols)))
	ok(t, d.uploadRows(context.Background(), g.view, raw, typ.Bytes(cols), rowPitch(typ, cols)))
	return weights{Mem: g.view, Type: typ, Rows: rows, Cols: cols}
}

func run(t testing.TB, d *Device, record func(c *commands)) {
	t.Helper()
	ok(t, d.run(context.Background(), record))
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// narrow rounds values to a type and returns their bytes and the rounded values.
func narrow(x []float32, typ tensor.Type) ([]byte, []float32) {
	raw := make([]byte, len(x)*typ.Bytes(1))
	kernels.CPU{}.Narrow(raw, x, typ)
	y := make([]float32, len(x))
	kernels.CPU{}.Widen(y, raw, typ)
	return raw, y
}

// within fails unless |got-want| ≤ bound(i) everywhere. It logs the largest error.
func within(t testing.TB, what string, want []float64, got []float32, bound func(i int) float64) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%s: %d values, expected %d", what, len(got), len(want))
	}
	worst, at := 0.0, -1
	for i := range want {
		if math.IsInf(want[i], 0) && float64(got[i]) == want[i] {
			continue
		}
		e := math.Abs(float64(got[i])-want[i]) / bound(i)
		if e > worst || math.IsNaN(e) {
			worst, at = e, i
			if math.IsNaN(e) {
				break
			}
		}
	}
	if at >= 0 && !(worst <= 1) {
		t.Fatalf("%s: element %d of %d: want %g, got %g, which is %g times the bound of %g", what, at, len(want), want[at], got[at], worst, bound(at))
	}
	t.Logf("%s: worst error %.3f of the bound", what, worst)
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func rng(name string) *rand.Rand {
	var h uint64 = 14695981039346656037
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(h, 7))
}

func relative(want []float64, rel, abs float64) func(int) float64 {
	return func(i int) float64 { return math.Abs(want[i])*rel + abs }
}

var weightTypes = []tensor.Type{tensor.F32, tensor.F16, tensor.BF16}

func repeat[T any](n int, f func(i int) T) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = f(i)
	}
	return slices.Clip(s)
}
