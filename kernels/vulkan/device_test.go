//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

func TestDevices(t *testing.T) {
	list, err := Devices()
	if err != nil {
		skipOrFail(t, err)
	}
	for _, d := range list {
		t.Logf("%+v", d)
		if d.Name == "" || len(d.UUID) != 32 || d.Missing == "" && (d.Memory == 0 || d.API == "" || d.MaxAllocation == 0) {
			t.Errorf("an incomplete description: %+v", d)
		}
	}
}

// The driver is registered and opens the devices that it lists.
func TestDriver(t *testing.T) {
	var found kernels.DeviceDriver
	for _, d := range kernels.DeviceDrivers() {
		if d.Name() == "vulkan" {
			found = d
		}
	}
	if found == nil {
		t.Fatal("the driver is not registered")
	}
	list, err := found.Devices()
	if err != nil {
		if !errors.Is(err, kernels.ErrNoDevice) {
			t.Errorf("no device, but the error is %v", err)
		}
		skipOrFail(t, err)
	}
	_, err = kernels.OpenDevice("vulkan:no device has this name")
	if !errors.Is(err, kernels.ErrNoDevice) || !strings.Contains(err.Error(), list[0].Name) {
		t.Errorf("a device that does not exist: %v", err)
	}
	for _, info := range list {
		if info.Missing != "" {
			continue
		}
		for _, selector := range []string{fmt.Sprint(info.Index), info.UUID} {
			d, err := kernels.OpenDevice("vulkan:" + selector)
			ok(t, err)
			if got := d.Info(); got.UUID != info.UUID || got.Name != info.Name {
				t.Errorf("%q opened %+v, expected %+v", selector, got, info)
			}
			ok(t, d.Close())
		}
	}
	t.Setenv("LUKV_DEVICE", "no such device") // only the command reads this
	if d, err := kernels.OpenDevice("vulkan"); err == nil {
		if d.Info().Kind == "software" {
			t.Error("a software device was taken without being asked for")
		}
		ok(t, d.Close())
	} else if !errors.Is(err, kernels.ErrNoDevice) || strings.Contains(err.Error(), "no such device\"") {
		t.Error(err)
	}
}

func TestChoose(t *testing.T) {
	list := []kernels.DeviceInfo{
		{Index: 0, Name: "llvmpipe", Kind: "software", UUID: strings.Repeat("0", 32)},
		{Index: 1, Name: "Card A1", Kind: "integrated", Memory: 64, UUID: strings.Repeat("1", 32)},
		{Index: 2, Name: "Card B2", Kind: "discrete", Memory: 8, UUID: strings.Repeat("2", 32)},
		{Index: 3, Name: "Card B3", Kind: "discrete", Memory: 16, UUID: "abcdef00" + strings.Repeat("3", 24)},
		{Index: 4, Name: "Old", Kind: "discrete", Memory: 99, Missing: "a compute queue"},
	}
	for sel, want := range map[string]int{
		"": 3, "0": 0, "2": 2, "a1": 1, "llvm": 0, "LLVMPIPE": 0, "ABCDEF00-3333-3333-3333-333333333333": 3,
		"card": -1, "9": -1, "nothing": -1, "old": -1, "4": -1, "-1": -1,
	} {
		got, err := choose(list, sel)
		if want >= 0 && (err != nil || got != want) || want < 0 && err == nil {
			t.Errorf("selector %q: want %d, got %d and %v", sel, want, got, err)
		}
	}
	mesa := []kernels.DeviceInfo{{Name: "llvmpipe (LLVM 15.0.7, 128 bits)", Kind: "software"}}
	for _, sel := range []string{"1", "15", "128"} { // numbers are indices, not parts of a name
		if _, err := choose(mesa, sel); !errors.Is(err, kernels.ErrNoDevice) {
			t.Errorf("selector %s of %v: want ErrNoDevice, got %v", sel, mesa, err)
		}
	}
	if _, err := choose(list[:1], ""); !errors.Is(err, kernels.ErrNoDevice) {
		t.Errorf("a software device alone: want ErrNoDevice, got %v", err)
	}
}

// A space behaves like a list of marked cells.
func TestSpace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 200
		s := newSpace(size)
		var cells [size]bool
		type held struct{ off, n uint64 }
		var live []held
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "give") {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				h := live[i]
				live = append(live[:i], live[i+1:]...)
				s.give(h.off, h.n)
				for c := h.off; c < h.off+h.n; c++ {
					cells[c] = false
				}
			} else {
				n, align := rapid.Uint64Range(1, 60).Draw(t, "n"), uint64(1)<<rapid.IntRange(0, 4).Draw(t, "align")
				off, found := s.take(n, align)
				fits := false
				for at := uint64(0); at+n <= size && !fits; at += align {
					fits = true
					for c := at; c < at+n; c++ {
						fits = fits && !cells[c]
					}
				}
				if found != fits {
					t.Fatalf("%d units at a multiple of %d: found %v, expected %v", n, align, found, fits)
				}
				if !found {
					continue
				}
				if off%align != 0 || off+n > size {
					t.Fatalf("offset %d for %d units at a multiple of %d", off, n, align)
				}
				for c := off; c < off+n; c++ {
					if cells[c] {
						t.Fatalf("cell %d was handed out twice", c)
					}
					cells[c] = true
				}
				live = append(live, held{off, n})
			}
			used, longest, now := uint64(0), uint64(0), uint64(0)
			for _, c := range cells {
				if c {
					used++
					now = 0
				} else {
					now++
					longest = max(longest, now)
				}
			}
			if s.used != used || s.largest() != longest {
				t.Fatalf("used %d and largest %d, expected %d and %d", s.used, s.largest(), used, longest)
			}
		}
	})
}

func TestTransfers(t *testing.T) {
	d := device(t)
	ctx := context.Background()
	data := make([]byte, 3*stagingSlotBytes+12345)
	for i := range data {
		data[i] = byte(i * 31 >> 7)
	}
	b := alloc(t, d, len(data))
	ok(t, d.upload(ctx, b.view, data))
	if !bytes.Equal(b.raw(), data) {
		t.Error("data changed on their way through the device")
	}
	const rowBytes, pitch, rows = 777, 1024, 9000
	p := alloc(t, d, rows*pitch)
	ok(t, d.uploadRows(ctx, p.view, data[:rows*rowBytes], rowBytes, pitch))
	got := p.raw()
	for i := range rows {
		row := got[i*pitch : (i+1)*pitch]
		if !bytes.Equal(row[:rowBytes], data[i*rowBytes:(i+1)*rowBytes]) || !bytes.Equal(row[rowBytes:], make([]byte, pitch-rowBytes)) {
			t.Fatalf("row %d is wrong", i)
		}
	}
	if d.upload(ctx, b.view.At(0, 4), data[:5]) == nil || d.download(ctx, make([]byte, 5), b.view.At(0, 4)) == nil ||
		d.uploadRows(ctx, b.view.At(0, 100), data[:60], 20, 40) == nil {
		t.Error("a transfer beyond a view was accepted")
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := d.idle(done); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled wait: %v", err)
	}
}

func TestOutOfMemory(t *testing.T) {
	d := openTest(t, Options{MaxBytes: 48 << 20, BlockBytes: 16 << 20})
	if _, err := d.newLocalBuffer(-1); err == nil {
		t.Error("a negative size was accepted")
	}
	var list []*buffer
	for {
		b, err := d.newLocalBuffer(5 << 20)
		if err != nil {
			var o *outOfMemoryError
			if !errors.As(err, &o) || !errors.Is(err, kernels.ErrDeviceMemory) || o.Needed != 5<<20 || o.Total != 48<<20 || o.Free >= 5<<20+blockPad {
				t.Fatalf("want an outOfMemoryError with numbers, got %v", err)
			}
			t.Log(err)
			break
		}
		list = append(list, b)
		if len(list) > 9 {
			t.Fatal("the limit does not hold")
		}
	}
	if len(list) < 6 {
		t.Errorf("%d buffers of 5 MiB in 48 MiB", len(list))
	}
	for _, b := range list {
		b.Free()
		b.Free()
	}
	if m := d.Memory(); m.Used != 0 || m.Buffers != 0 || m.Taken > 17<<20 {
		t.Errorf("after everything was freed: %+v", m)
	}
	b, err := d.newLocalBuffer(30 << 20) // larger than a block
	ok(t, err)
	b.Free()
}

// The work of many sessions leaves nothing: no memory, no goroutines.
func TestNoLeaks(t *testing.T) {
	d := openTest(t, Options{BlockBytes: 1 << 20})
	before, live := d.Memory(), len(d.live)
	goroutines := runtime.NumGoroutine()
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for w := range 4 {
		wg.Go(func() {
			for i := range 100 {
				if err := session(d, (w*7+i*13)%50+1); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	after := d.Memory()
	if after.Used != before.Used || after.Buffers != before.Buffers || after.Taken > 2<<20 {
		t.Errorf("memory before %+v, after %+v", before, after)
	}
	if len(d.live) != live {
		t.Errorf("%d lists of commands, %d before", len(d.live), live)
	}
	// A goroutine that has finished its work may not have ended yet.
	for range 100 {
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
}

// session allocates memory, computes, reads the result and frees everything.
func session(d *Device, n int) error {
	ctx := context.Background()
	b, err := d.newLocalBuffer(int64(n) * 4096)
	if err != nil {
		return err
	}
	defer b.Free()
	h, err := d.newHostBuffer(64)
	if err != nil {
		return err
	}
	defer h.Free()
	copy(h.Bytes(), bytesOf([]float32{1, 2, 3, 4, 5, 6, 7, float32(n)}))
	x, y := newRows2D(h.All(), tensor.F32, 1, 8), newRows2D(b.All(), tensor.F32, 1, 8)
	if err := d.run(ctx, func(c *commands) {
		c.Zero(b.All())
		c.AddScaled(y, x, 1)
		c.AddScaled(y, x, 1)
	}); err != nil {
		return err
	}
	out := make([]byte, 32)
	if err := d.download(ctx, out, b.All()); err != nil {
		return err
	}
	if f := floats(out); f[0] != 2 || f[7] != float32(2*n) {
		return fmt.Errorf("found %v for %d", f, n)
	}
	return nil
}

func TestManyDevices(t *testing.T) {
	if testing.Short() {
		t.Skip("opens devices again and again")
	}
	for range 5 {
		d := openTest(t, Options{BlockBytes: 1 << 20})
		// Close releases what was not freed.
		_, err := d.newLocalBuffer(1000)
		ok(t, err)
		c, err := d.newCommands()
		ok(t, err)
		ok(t, c.Begin())
		c.Mark()
		ok(t, c.End())
		ok(t, d.Close())
		ok(t, d.Close())
		c.Free()
		if _, err := d.newLocalBuffer(1); !errors.Is(err, ErrClosed) {
			t.Errorf("a buffer of a closed device: %v", err)
		}
		if err := d.run(context.Background(), func(*commands) {}); !errors.Is(err, ErrClosed) {
			t.Errorf("commands of a closed device: %v", err)
		}
	}
}

func TestDeviceLost(t *testing.T) {
	d := openTest(t, Options{BlockBytes: 1 << 20})
	b, err := d.newLocalBuffer(100)
	ok(t, err)
	ok(t, d.upload(context.Background(), b.All(), []byte{1}))
	d.mu.Lock()
	d.inject = vk.DeviceLost("vkQueueSubmit2")
	d.mu.Unlock()
	for range 2 { // it stays lost
		err = d.upload(context.Background(), b.All(), []byte{1})
		if !errors.Is(err, kernels.ErrDeviceLost) || !strings.Contains(err.Error(), d.Info().Name) && !strings.Contains(err.Error(), "vkQueueSubmit2") {
			t.Fatalf("want ErrDeviceLost, got %v", err)
		}
	}
	if _, err := d.newLocalBuffer(1); !errors.Is(err, kernels.ErrDeviceLost) {
		t.Errorf("a buffer of a lost device: %v", err)
	}
	if err := d.idle(context.Background()); !errors.Is(err, kernels.ErrDeviceLost) {
		t.Errorf("a wait for a lost device: %v", err)
	}
	b.Free()
	ok(t, d.Close())
	// The process continues.
	e := openTest(t, Options{BlockBytes: 1 << 20})
	ok(t, session(e, 3))
}

func TestPipelineCache(t *testing.T) {
	dir := t.TempDir()
	d := openTest(t, Options{CacheDir: dir, BlockBytes: 1 << 20})
	ok(t, session(d, 1))
	ok(t, d.Close())
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	ok(t, err)
	if len(files) != 1 || !strings.HasSuffix(files[0], ".bin") {
		t.Fatalf("files of the cache: %v", files)
	}
	data, err := os.ReadFile(files[0])
	ok(t, err)
	if readCache(files[0]) == nil {
		t.Fatal("the cache cannot be read")
	}
	// A damaged file is not used and is replaced.
	for name, bad := range map[string][]byte{"cut": data[:len(data)-1], "short": data[:10], "flipped": append([]byte{data[0] ^ 1}, data[1:]...)} {
		ok(t, os.WriteFile(files[0], bad, 0o644))
		if readCache(files[0]) != nil {
			t.Errorf("%s: a damaged cache was read", name)
		}
		d := openTest(t, Options{CacheDir: dir, BlockBytes: 1 << 20})
		ok(t, session(d, 1))
		ok(t, d.Close())
		if readCache(files[0]) == nil {
			t.Errorf("%s: a damaged cache was not replaced", name)
		}
	}
}

func TestTogetherAndCopy(t *testing.T) {
	d := device(t)
	x := upload(t, d, bytesOf([]float32{1, 2, 3, 4, 5, 6, 7, 8}))
	a, b := alloc(t, d, 32), alloc(t, d, 32)
	run(t, d, func(c *commands) {
		c.Concurrent(func() {
			c.Copy(a.view, x.view)
			c.Zero(b.view)
		})
		c.AddScaled(newRows2D(b.view, tensor.F32, 1, 8), newRows2D(a.view, tensor.F32, 1, 8), 1)
	})
	testnum.SameBits(t, "copy and add", x.f32(), b.f32())
	if err := d.run(context.Background(), func(c *commands) { c.Copy(a.view.At(0, 4), x.view) }); err == nil {
		t.Error("a copy beyond a view was accepted")
	}
}

// TestCopies: sizes and places that a shader copies, and those that it leaves to the driver.
func TestCopies(t *testing.T) {
	d := device(t)
	const most = 5*copyGroup + 48
	large := make([]byte, most+64)
	for i := range large {
		large[i] = byte(i*7 + i>>8)
	}
	src, dst := upload(t, d, large), alloc(t, d, len(large))
	for _, c := range []struct {
		from, to, n int64
		shader      bool
	}{
		{0, 0, copyGroup, true}, {16, 0, copyGroup + 16, true}, {0, 32, most, true}, {64, 64, most, true},
		{0, 0, copyGroup - 16, false}, {4, 0, copyGroup, false}, {0, 4, copyGroup, false}, {0, 0, copyGroup + 4, false},
	} {
		name := fmt.Sprintf("%d bytes from %d to %d", c.n, c.from, c.to)
		from, to := src.view.At(c.from, c.n), dst.view.At(c.to, int64(len(large))-c.to)
		if got := shaderCopies(to, from); got != c.shader {
			t.Errorf("%s by a shader: %v", name, got)
		}
		run(t, d, func(cmd *commands) {
			cmd.Zero(dst.view)
			cmd.Copy(to, from)
		})
		want := make([]byte, len(large))
		copy(want[c.to:], large[c.from:c.from+c.n])
		if !bytes.Equal(dst.raw(), want) {
			t.Errorf("%s: the bytes differ", name)
		}
	}
}
