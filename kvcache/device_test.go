package kvcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/internal/testdevice"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// reserve adds the positions [from, to) to a head, as a pass on the device does.
func reserve(t testing.TB, c *Cache, layer, head int, from, to int32) {
	t.Helper()
	n, pos := c.Len(layer, head), span(from, to)
	require.NoError(t, c.Reserve(layer, head, pos))
	k, v := rows(pos, c.Options().HeadDim, c.Options().HeadDim)
	pass(c, layer, head, n, pos, k, v)
}

func TestReserveByHand(t *testing.T) {
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		d := newFake()
		c := open(t, Options{Layers: 2, KVHeads: 2, HeadDim: 6, Type: typ, PageEntries: 16, Device: d, DeviceLayers: 1})
		page := c.Stats().PageBytes
		reserve(t, c, 0, 1, 0, 1)
		wantHead(t, c, 0, 1, 0, span(0, 1))
		reserve(t, c, 0, 1, 1, 40)
		wantHead(t, c, 0, 1, 0, span(0, 40))
		add(t, c, 0, 1, 40, 45)
		wantHead(t, c, 0, 1, 0, span(0, 45))
		require.NoError(t, c.Keep(0, 1, []int32{0, 20, 21, 22, 44}))
		reserve(t, c, 0, 1, 45, 70)
		wantHead(t, c, 0, 1, 0, append([]int32{0, 20, 21, 22, 44}, span(45, 70)...))
		require.Equal(t, 2*page, c.Stats().DeviceBytes)
		add(t, c, 1, 1, 0, 1)
		require.Equal(t, 2*page, c.Stats().DeviceBytes)
		require.Equal(t, 3*page, c.Bytes())
		require.Equal(t, int64(2*4*16), c.Stats().TableBytes-tables(c), "positions of two pages")

		// A failed pass.
		require.NoError(t, c.Reserve(0, 1, span(70, 90)))
		require.NoError(t, c.Truncate(70))
		wantHead(t, c, 0, 1, 0, append([]int32{0, 20, 21, 22, 44}, span(45, 70)...))

		for want, err := range map[string]error{
			"not on a device": c.Reserve(1, 0, []int32{0}),
			"no layer 2":      c.Reserve(2, 0, []int32{0}),
			"not above 69":    c.Reserve(0, 1, []int32{69}),
		} {
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, "reserve 1 entries of layer ")
		}
		require.NoError(t, c.Reserve(0, 0, nil))
		require.Nil(t, c.Table(1, 0), "a layer on the host")
	}
}

// tables returns the bytes of a cache's page lists.
func tables(c *Cache) (n int64) {
	for i := range c.heads {
		p := &c.heads[i]
		n += bytesOf(p.blocks) + bytesOf(p.pages) + bytesOf(p.remote)
	}
	return n
}

// TestTableGrowsInPlace counts the entries that changes write to a page table;
// the fake device checks their values.
func TestTableGrowsInPlace(t *testing.T) {
	d, was := newFake(), 0
	c := open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 2, PageEntries: 16, Windows: []int{64}, Device: d})
	reserve(t, c, 0, 0, 0, 16*100)
	table := c.Table(0, 0).(*testdevice.Table)
	want := func(written int) {
		t.Helper()
		require.Same(t, table, c.Table(0, 0))
		require.Equal(t, c.heads[0].remote, table.Pages[:len(c.heads[0].remote)])
		now := d.Counts().TableEntriesWritten
		require.Equal(t, written, now-was)
		was = now
	}
	want(100)
	reserve(t, c, 0, 0, 1600, 1616)
	want(1)
	add(t, c, 0, 0, 1616, 1617)
	want(1)
	reserve(t, c, 0, 0, 1617, 1630)
	want(0)
	require.NoError(t, c.Truncate(1600))
	want(0)
	reserve(t, c, 0, 0, 1600, 1610)
	want(1)
	f, err := c.Fork()
	require.NoError(t, err)
	reserve(t, c, 0, 0, 1610, 1611) // copies the last page
	want(1)
	require.NoError(t, c.Keep(0, 0, append(span(0, 800), 805)))
	want(1) // the page that 805 moves to
	require.NoError(t, f.Close())
	require.NoError(t, c.Keep(0, 0, span(0, 700)))
	want(0)
	c.DropBefore(0, 17)
	want(43)
	require.NoError(t, c.Close())
	require.Nil(t, c.Table(0, 0))
}

func TestSteadyReserveAllocatesNothing(t *testing.T) {
	checking = func() bool { return false }
	defer func() { checking = func() bool { return true } }()
	c := open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 64, PageEntries: 1024, Device: newFake()})
	pos := []int32{0}
	step := func() {
		if err := c.Reserve(0, 0, pos); err != nil || c.Table(0, 0) == nil {
			t.Fatal(err)
		}
		pos[0]++
	}
	step()
	require.Zero(t, testing.AllocsPerRun(1000, step))
	d := c.Options().Device.(*testdevice.Device)
	calls := d.Counts().Calls
	step()
	require.Equal(t, calls, d.Counts().Calls, "calls of the device within a page")
}

// TestViewsAreKept counts the pages fetched to read a head on a device, all of them
// in one call.
func TestViewsAreKept(t *testing.T) {
	d := newFake()
	c := open(t, Options{Layers: 3, KVHeads: 2, HeadDim: 4, PageEntries: 16, Device: d, DeviceLayers: 2})
	for l := range 2 {
		for h := range 2 {
			add(t, c, l, h, 0, 40)
		}
	}
	reads := func(what string, want int, do func()) {
		t.Helper()
		was, calls := d.Counts().PagesRead, d.Counts().Calls
		do()
		require.Equal(t, want, d.Counts().PagesRead-was, what)
		require.Equal(t, min(want, 1), d.Counts().Calls-calls, what)
	}
	view := func(layer, head int) func() { return func() { c.View(layer, head) } }
	reads("first", 3, view(0, 0))
	reads("again", 0, view(0, 0))
	reads("other head", 3, view(0, 1))
	reads("both at hand", 0, func() { c.View(0, 0); c.View(0, 1) })
	old := c.View(0, 0)
	reserve(t, c, 0, 0, 40, 60)
	reads("after a change", 4, view(0, 0))
	reads("unchanged head", 0, view(0, 1))
	reads("other layer", 3, view(1, 0))
	reads("back", 4, view(0, 0))
	require.NoError(t, c.Keep(0, 0, []int32{50}))
	reads("after Keep", 1, view(0, 0))
	require.NoError(t, c.Truncate(0))
	reads("empty", 0, view(0, 0))
	require.Len(t, old.Pages, 3)
	add(t, c, 1, 0, 0, 100)
	reads("rows of two pages", 2, func() { c.Keys(1, 0, 20, 40, nil) })
	reads("no rows", 0, func() { c.Values(1, 0, 20, 20, nil) })
	reads("positions", 0, func() { c.Positions(1, 0, nil) })
	reads("check", 0, func() { require.NoError(t, c.Check()) })
	one := open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 4, PageEntries: 16, Device: d})
	add(t, one, 0, 0, 0, 100)
	reads("keys and values of a file", 7, func() { saved(t, one, nil) })
	to := newFake()
	loaded, _, err := load(t.Context(), "x", saved(t, one, nil), Options{Device: to})
	require.NoError(t, err)
	require.Equal(t, 1, to.Counts().Writes, "seven pages go to a device at once")
	require.NoError(t, loaded.Close())
}

// TestConcurrentViews reads the heads of two layers from many goroutines.
func TestConcurrentViews(t *testing.T) {
	d := newFake()
	c := open(t, Options{Layers: 2, KVHeads: 4, HeadDim: 4, PageEntries: 16, Device: d})
	for i := range 8 {
		add(t, c, i/4, i%4, 0, int32(20+i))
	}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			l, h := i/4%2, i%4
			k, v := rows(span(0, int32(20+i%8)), 4, 4)
			for range 20 {
				wantPages(t, c, l, h, k, v)
				if !slices.Equal(k, c.Keys(l, h, 0, c.Len(l, h), nil)) {
					t.Error("keys")
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.Err())
}

// faultScript is the state of a script that makes every kind of change at least
// once, on two caches of a family. held is what their heads must hold after a step.
type faultScript struct {
	d    *testdevice.Device
	o    Options
	c, f *Cache
	held [2][4][]int32 // positions
}

// faultSteps use the device in every way that changes and readers do. An error
// leaves everything unchanged.
var faultSteps = []struct {
	name string
	do   func(s *faultScript) error
	then func(s *faultScript)
}{
	{"new", func(s *faultScript) (err error) { s.c, err = New(s.o); return err }, func(*faultScript) {}},
	{"append", func(s *faultScript) error { return addErr(s.c, 0, 0, 0, 40) }, func(s *faultScript) { s.held[0][0] = span(0, 40) }},
	{"append to a page", func(s *faultScript) error { return addErr(s.c, 0, 0, 40, 50) }, func(s *faultScript) { s.held[0][0] = span(0, 50) }},
	{"reserve", func(s *faultScript) error { return reserveErr(s.c, 0, 1, 0, 50) }, func(s *faultScript) { s.held[0][1] = span(0, 50) }},
	{"append elsewhere", func(s *faultScript) error { return addErr(s.c, 1, 1, 0, 20) }, func(s *faultScript) { s.held[0][3] = span(0, 20) }},
	{"fork", func(s *faultScript) (err error) { s.f, err = s.c.Fork(); return err }, func(s *faultScript) { s.held[1] = s.held[0] }},
	{"reserve in a shared page", func(s *faultScript) error { return reserveErr(s.f, 0, 1, 50, 80) }, func(s *faultScript) { s.held[1][1] = span(0, 80) }},
	{"append to a shared page", func(s *faultScript) error { return addErr(s.c, 0, 0, 50, 70) }, func(s *faultScript) { s.held[0][0] = span(0, 70) }},
	{"keep of shared pages", func(s *faultScript) error { return s.c.Keep(0, 1, span(5, 45)) }, func(s *faultScript) { s.held[0][1] = span(5, 45) }},
	{"keep", func(s *faultScript) error { return s.f.Keep(0, 1, append([]int32{0, 3}, span(60, 75)...)) }, func(s *faultScript) {
		s.held[1][1] = append([]int32{0, 3}, span(60, 75)...)
	}},
	{"table", func(s *faultScript) error { s.f.Table(0, 1); return s.f.Err() }, func(*faultScript) {}},
	{"truncate", func(s *faultScript) error { return s.c.Truncate(45) }, func(s *faultScript) {
		s.held[0][0] = span(0, 45)
	}},
	{"drop", func(s *faultScript) error { s.c.DropBefore(0, 20); return nil }, func(s *faultScript) {
		s.held[0][0] = span(16, 45)
	}},
	{"save", func(s *faultScript) error { return s.c.Save(context.Background(), io.Discard, nil) }, func(*faultScript) {}},
	{"load", func(s *faultScript) error {
		var file bytes.Buffer
		if err := s.c.Save(context.Background(), &file, nil); err != nil {
			return err
		}
		c, _, err := load(context.Background(), "x", file.Bytes(), Options{Device: s.o.Device})
		if err != nil {
			return err
		}
		return c.Close()
	}, func(*faultScript) {}},
	{"reserve a page", func(s *faultScript) error { return reserveErr(s.c, 0, 0, 45, 80) }, func(s *faultScript) {
		s.held[0][0] = span(16, 80)
	}},
	{"keys", func(s *faultScript) error { s.c.Keys(0, 0, 3, 40, nil); return s.c.Err() }, func(*faultScript) {}},
	{"view", func(s *faultScript) error { s.f.View(0, 1); return s.f.Err() }, func(*faultScript) {}},
}

func reserveErr(c *Cache, layer, head int, from, to int32) error {
	n, pos := c.Len(layer, head), span(from, to)
	if err := c.Reserve(layer, head, pos); err != nil {
		return err
	}
	k, v := rows(pos, c.Options().HeadDim, c.Options().HeadDim)
	pass(c, layer, head, n, pos, k, v)
	return nil
}

// want compares both caches with what they should hold, except for what was on a
// lost device.
func (s *faultScript) want(t *testing.T, step string) {
	t.Helper()
	s.d.Pause(true)
	defer s.d.Pause(false)
	for at, c := range []*Cache{s.c, s.f} {
		if c == nil {
			continue
		}
		require.NoError(t, c.Check(), step)
		for i, want := range s.held[at] {
			l, h := i/2, i%2
			got := c.Positions(l, h, nil)
			require.True(t, slices.Equal(want, got), "%s: cache %d head %d: got positions %v, want %v", step, at, i, got, want)
			if l >= s.o.DeviceLayers || !s.d.Lost() {
				k, v := rows(want, 4, 4)
				require.True(t, slices.Equal(k, c.Keys(l, h, 0, len(want), nil)), "%s: cache %d head %d: keys", step, at, i)
				require.True(t, slices.Equal(v, c.Values(l, h, 0, len(want), nil)), "%s: cache %d head %d: values", step, at, i)
			}
		}
	}
}

// TestFaults runs the script once for each of its uses of the device, which then fails.
func TestFaults(t *testing.T) {
	for _, fault := range []error{kernels.ErrDeviceMemory, kernels.ErrDeviceLost} {
		t.Run(fault.Error(), func(t *testing.T) {
			uses := 0
			for runFaults(t, uses+1, fault) {
				uses++
			}
			require.Greater(t, uses, 35)
			t.Logf("each of %d uses of the device failed", uses)
		})
	}
}

// runFaults runs the script with a fault at one use of the device, and reports
// whether the script reached it.
func runFaults(t *testing.T, at int, fault error) bool {
	d, live := newFake(), arena.Live()
	s := &faultScript{d: d, o: Options{Layers: 2, KVHeads: 2, HeadDim: 4, PageEntries: 16, Windows: []int{32, 0}, Device: d, DeviceLayers: 1}}
	d.FailAt(at, fault)
	for _, x := range faultSteps {
		step, was := fmt.Sprintf("fault at use %d, %s", at, x.name), d.Failed()
		err := x.do(s)
		if !was && d.Failed() {
			require.ErrorIs(t, err, fault, step)
			s.want(t, step)
			if d.Lost() || s.err() != nil {
				break
			}
			// The failed step changed nothing, and succeeds when repeated.
			err = x.do(s)
		}
		require.NoError(t, err, step)
		x.then(s)
		s.want(t, step)
	}
	for _, c := range []*Cache{s.c, s.f} {
		if c == nil {
			continue
		}
		if err := c.Err(); err != nil {
			require.ErrorIs(t, err, fault)
			for what, refused := range map[string]error{
				"append": addErr(c, 1, 0, 100, 101), "reserve": c.Reserve(0, 0, []int32{100}), "keep": c.Keep(0, 0, nil),
				"truncate": c.Truncate(0), "save": c.Save(t.Context(), io.Discard, nil),
				"fork": second(c.Fork()),
			} {
				require.ErrorIs(t, refused, fault, "fault at use %d: %s of a failed cache", at, what)
			}
		}
	}
	s.want(t, fmt.Sprintf("fault at use %d, end", at))
	for _, c := range []*Cache{s.c, s.f} {
		if c != nil {
			require.NoError(t, c.Close())
		}
	}
	d.WantEmpty(t)
	require.Equal(t, live, arena.Live())
	return d.Failed()
}

// err returns the device error of one of the caches, nil if neither has one.
func (s *faultScript) err() error {
	for _, c := range []*Cache{s.c, s.f} {
		if c != nil && c.Err() != nil {
			return c.Err()
		}
	}
	return nil
}

func second[T any](_ T, err error) error { return err }

// TestLostWhileReading loses the device in the middle of reading a head.
func TestLostWhileReading(t *testing.T) {
	d := newFake()
	// Three pages are read at a time.
	const dim, size, n = 256, 1024, 3*1024 + 20
	c := open(t, Options{Layers: 2, KVHeads: 1, HeadDim: dim, PageEntries: size, Device: d, DeviceLayers: 1})
	add(t, c, 0, 0, 0, n)
	add(t, c, 1, 0, 0, 40)
	require.NoError(t, c.Err())
	d.FailAt(2, kernels.ErrDeviceLost)
	k, _ := rows(span(0, n), dim, dim)
	clear(k[3*size*dim:])
	require.True(t, slices.Equal(k, c.Keys(0, 0, 0, n, nil)), "the first pages, then zeros")
	require.ErrorIs(t, c.Err(), kernels.ErrDeviceLost)
	require.ErrorContains(t, c.Err(), "read page 3 of layer 0 head 0")
	for _, p := range c.View(0, 0).Pages {
		require.Zero(t, *(*float32)(p.K))
	}
	wantHead(t, c, 1, 0, 0, span(0, 40))
	require.ErrorIs(t, addErr(c, 1, 0, 40, 41), kernels.ErrDeviceLost)
	require.False(t, errors.Is(c.Err(), kernels.ErrDeviceMemory))
}

// TestFullCountsBothMemories: the limit counts pages on the host and on the device.
func TestFullCountsBothMemories(t *testing.T) {
	page := int64(2*16*4*4 + 16*4)
	d := newFake()
	c := open(t, Options{Layers: 2, KVHeads: 1, HeadDim: 4, PageEntries: 16, MaxBytes: 3 * page, Device: d, DeviceLayers: 1})
	add(t, c, 0, 0, 0, 32)
	add(t, c, 1, 0, 0, 16)
	require.ErrorIs(t, c.Reserve(0, 0, []int32{32}), ErrFull)
	require.ErrorIs(t, addErr(c, 1, 0, 16, 17), ErrFull)
	require.Equal(t, PoolStats{Caches: 1, Bytes: 3 * page}, c.PoolStats())
	require.NoError(t, c.Truncate(16))
	reserve(t, c, 0, 0, 16, 17)
	require.Equal(t, 2*page, c.Stats().DeviceBytes)
	require.Len(t, d.Holders(), 2)
}
