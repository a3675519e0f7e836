package kvcache

import (
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

func open(t testing.TB, o Options) *Cache {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// element returns a number that differs between keys and values, positions and
// elements and is exact in every element type: bf16 has 8 significant bits.
func element(value bool, pos int32, d int) float32 {
	x := float32((int(pos)*31+d*7)%127 + 1)
	if value {
		return -x
	}
	return x
}

// rows returns the keys and values of the given positions, with a stride.
func rows(pos []int32, dim, stride int) (k, v []float32) {
	nan := float32(math.NaN())
	k, v = make([]float32, len(pos)*stride), make([]float32, len(pos)*stride)
	for i := range k {
		k[i], v[i] = nan, nan // between rows: must not be read
	}
	for i, x := range pos {
		for d := range dim {
			k[i*stride+d], v[i*stride+d] = element(false, x, d), element(true, x, d)
		}
	}
	return k, v
}

// add appends the positions [from, to) to a head.
func add(t testing.TB, c *Cache, layer, head int, from, to int32) {
	t.Helper()
	require.NoError(t, addErr(c, layer, head, from, to))
}

func addErr(c *Cache, layer, head int, from, to int32) error {
	pos := span(from, to)
	dim := c.Options().HeadDim
	k, v := rows(pos, dim, dim+3)
	return c.Append(layer, head, pos, k, v, dim+3)
}

func span(from, to int32) []int32 {
	pos := make([]int32, 0, to-from)
	for x := from; x < to; x++ {
		pos = append(pos, x)
	}
	return pos
}

// wantHead compares a head with the entries that the positions imply, reading them
// both as copies and in place.
func wantHead(t testing.TB, c *Cache, layer, head, base int, want []int32) {
	t.Helper()
	dim := c.Options().HeadDim
	got := c.Positions(layer, head, nil)
	require.Equal(t, append([]int32{}, want...), append([]int32{}, got...), "positions")
	require.Equal(t, len(want), c.Len(layer, head))
	require.Equal(t, base, c.Base(layer, head), "base")
	k, v := rows(want, dim, dim)
	require.Equal(t, k, append([]float32{}, c.Keys(layer, head, 0, len(want), nil)...), "keys")
	require.Equal(t, v, append([]float32{}, c.Values(layer, head, 0, len(want), nil)...), "values")
	wantPages(t, c, layer, head, k, v)
}

// wantPages reads the pages as a kernel does, spelling out the layout's formula.
func wantPages(t testing.TB, c *Cache, layer, head int, k, v []float32) {
	t.Helper()
	o := c.Options()
	at := func(p unsafe.Pointer, i int) float32 {
		switch p = unsafe.Add(p, i*o.Type.Bytes(1)); o.Type {
		case tensor.F32:
			return *(*float32)(p)
		case tensor.F16:
			return tensor.F16ToF32(*(*uint16)(p))
		}
		return tensor.BF16ToF32(*(*uint16)(p))
	}
	pages, n := c.View(layer, head).Pages, c.Len(layer, head)
	require.Len(t, pages, (n+o.PageEntries-1)/o.PageEntries)
	for j, p := range pages {
		require.Zero(t, uintptr(p.K)%64, "key alignment")
		require.Zero(t, uintptr(p.V)%64, "value alignment")
		for e := range o.PageEntries {
			for d := range o.HeadDim {
				gk, gv := at(p.K, e/16*o.HeadDim*16+d*16+e%16), at(p.V, e*o.HeadDim+d)
				if i := j*o.PageEntries + e; i < n {
					if wk, wv := k[i*o.HeadDim+d], v[i*o.HeadDim+d]; gk != wk || gv != wv {
						t.Fatalf("entry %d element %d: got key %v value %v, want %v %v", i, d, gk, gv, wk, wv)
					}
				} else if math.Abs(float64(gk)) > 127 || math.Abs(float64(gv)) > 127 {
					t.Fatalf("empty slot %d element %d: got key %v value %v, want what was stored or zero", i, d, gk, gv)
				}
			}
		}
	}
}

// TestPagesOfSeveralTiles reads pages of the default size, four key tiles, as a
// kernel does: after appends, an eviction across tiles, a fork and a truncation.
func TestPagesOfSeveralTiles(t *testing.T) { everywhere(t, testPagesOfSeveralTiles) }

func testPagesOfSeveralTiles(t *testing.T, at place) {
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		c := at.open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 6, Type: typ})
		require.Equal(t, 64, c.Options().PageEntries)
		for _, to := range []int32{1, 15, 17, 40, 64, 65, 150} {
			add(t, c, 0, 0, c.LastPosition(0, 0)+1, to)
			wantHead(t, c, 0, 0, 0, span(0, to))
		}
		f, err := c.Fork()
		require.NoError(t, err)
		defer f.Close()
		var kept []int32 // from every tile, moved to other places, mostly in other tiles
		for x := int32(3); x < 150; x += 2 {
			kept = append(kept, x)
		}
		require.NoError(t, f.Keep(0, 0, kept))
		wantHead(t, f, 0, 0, 0, kept)
		wantHead(t, c, 0, 0, 0, span(0, 150))
		require.NoError(t, f.Truncate(100))
		wantHead(t, f, 0, 0, 0, kept[:49])
		add(t, f, 0, 0, 200, 220)
		wantHead(t, f, 0, 0, 0, append(slices.Clone(kept[:49]), span(200, 220)...))
	}
}

func TestAppendByHand(t *testing.T) { everywhere(t, testAppendByHand) }

func testAppendByHand(t *testing.T, at place) {
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		for _, dim := range []int{2, 6, 64} {
			c := at.open(t, Options{Layers: 2, KVHeads: 3, HeadDim: dim, Type: typ, PageEntries: 16})
			page := int64(2*16*dim*typ.Bytes(1) + 16*4)
			wantHead(t, c, 1, 2, 0, nil)
			require.Zero(t, c.Bytes())
			require.EqualValues(t, -1, c.LastPosition(1, 2))

			add(t, c, 1, 2, 0, 1)
			wantHead(t, c, 1, 2, 0, span(0, 1))
			require.Equal(t, page, c.Bytes())

			add(t, c, 1, 2, 1, 16)
			wantHead(t, c, 1, 2, 0, span(0, 16))
			require.Equal(t, page, c.Bytes(), "16 entries fill one page")

			add(t, c, 1, 2, 16, 17)
			wantHead(t, c, 1, 2, 0, span(0, 17))
			require.Equal(t, 2*page, c.Bytes())

			add(t, c, 1, 2, 40, 100) // positions may have gaps
			wantHead(t, c, 1, 2, 0, append(span(0, 17), span(40, 100)...))
			require.Equal(t, 5*page, c.Bytes())
			require.EqualValues(t, 99, c.LastPosition(1, 2))

			wantHead(t, c, 1, 1, 0, nil)
			wantHead(t, c, 0, 2, 0, nil)
			s := c.Stats()
			var device int64 // layer 1 is on the device if all are
			if at.device != nil && at.layers == 0 {
				device = 5 * page
			}
			require.Equal(t, Stats{Entries: 77, Pages: 5, PageBytes: page, Bytes: 5 * page, SlackBytes: 3 * page / 16, DeviceBytes: device, TableBytes: s.TableBytes, HighWater: 5 * page}, s)
			require.Equal(t, PoolStats{Caches: 1, Bytes: 5 * page}, c.PoolStats())

			got := c.Keys(1, 2, 15, 18, make([]float32, 1, 1000))
			k, _ := rows([]int32{15, 16, 40}, dim, dim)
			require.Equal(t, k, got)
			require.Equal(t, 1000, cap(got), "dst is used")
		}
	}
}

func TestRounding(t *testing.T) { everywhere(t, testRounding) }

func testRounding(t *testing.T, at place) {
	in := []float32{1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11, 1 + 0x3p-11, 0x1p-149, 70000, float32(math.Inf(-1)), -0.1}
	for typ, round := range map[tensor.Type]func(float32) float32{
		tensor.F32:  func(x float32) float32 { return x },
		tensor.F16:  func(x float32) float32 { return tensor.F16ToF32(tensor.F32ToF16(x)) },
		tensor.BF16: func(x float32) float32 { return tensor.BF16ToF32(tensor.F32ToBF16(x)) },
	} {
		c := at.open(t, Options{Layers: 1, KVHeads: 1, HeadDim: len(in), Type: typ})
		require.NoError(t, c.Append(0, 0, []int32{0}, in, in, len(in)))
		for d, x := range in {
			require.Equal(t, round(x), c.Keys(0, 0, 0, 1, nil)[d], "%v key %v", typ, x)
			require.Equal(t, round(x), c.Values(0, 0, 0, 1, nil)[d], "%v value %v", typ, x)
		}
	}
}

func TestKeepByHand(t *testing.T) { everywhere(t, testKeepByHand) }

func testKeepByHand(t *testing.T, at place) {
	c := at.open(t, Options{Layers: 1, KVHeads: 2, HeadDim: 4, PageEntries: 16})
	page := c.Stats().PageBytes
	add(t, c, 0, 0, 0, 50)
	add(t, c, 0, 1, 0, 50)
	require.NoError(t, c.Keep(0, 0, span(0, 50)))
	wantHead(t, c, 0, 0, 0, span(0, 50))
	require.NoError(t, c.Keep(0, 0, []int32{0, 1, 2, 20, 33, 34, 49}))
	kept := []int32{0, 1, 2, 20, 33, 34, 49}
	wantHead(t, c, 0, 0, 0, kept)
	wantHead(t, c, 0, 1, 0, span(0, 50))
	require.Equal(t, 5*page, c.Bytes())
	require.Equal(t, 8*page, c.Stats().HighWater)

	// Entries are not positions: entry 3 holds position 20.
	require.NoError(t, c.Keep(0, 0, []int32{1, 3, 6}))
	wantHead(t, c, 0, 0, 0, []int32{1, 20, 49})
	add(t, c, 0, 0, 50, 70)
	wantHead(t, c, 0, 0, 0, append([]int32{1, 20, 49}, span(50, 70)...))
	require.NoError(t, c.Keep(0, 0, nil))
	wantHead(t, c, 0, 0, 0, nil)
	require.Equal(t, 4*page, c.Bytes())
	add(t, c, 0, 0, 70, 71)
	wantHead(t, c, 0, 0, 0, span(70, 71))
	require.Equal(t, 8*page, c.Stats().HighWater)

	for _, bad := range [][]int32{{1}, {-1}, {0, 0}} {
		require.Error(t, c.Keep(0, 0, bad))
	}
	require.Error(t, c.Keep(0, 1, []int32{3, 2}))
	require.Error(t, c.Keep(1, 0, nil))
	wantHead(t, c, 0, 1, 0, span(0, 50))
}

func TestForkCopiesOnWrite(t *testing.T) { everywhere(t, testForkCopiesOnWrite) }

func testForkCopiesOnWrite(t *testing.T, at place) {
	c := at.open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 8, PageEntries: 16})
	page := c.Stats().PageBytes
	add(t, c, 0, 0, 0, 40)
	f, err := c.Fork()
	require.NoError(t, err)
	defer f.Close()
	want := func(pool, shared int64) {
		t.Helper()
		require.Equal(t, pool*page, c.PoolStats().Bytes, "pages of the family")
		require.Equal(t, shared*page, c.Stats().SharedBytes, "shared pages")
		require.Equal(t, shared*page, f.Stats().SharedBytes, "shared pages of the fork")
	}
	want(3, 3)
	require.Equal(t, 3*page, f.Bytes())
	require.Equal(t, c.heads[0].pageList, f.heads[0].pageList)

	add(t, f, 0, 0, 40, 41) // into a shared partial page
	want(4, 2)
	wantHead(t, c, 0, 0, 0, span(0, 40))
	wantHead(t, f, 0, 0, 0, span(0, 41))

	add(t, c, 0, 0, 60, 61) // now its own page
	want(4, 2)
	wantHead(t, c, 0, 0, 0, append(span(0, 40), 60))
	wantHead(t, f, 0, 0, 0, span(0, 41))

	require.NoError(t, f.Keep(0, 0, []int32{0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 40}))
	want(5, 0)
	wantHead(t, c, 0, 0, 0, append(span(0, 40), 60))
	wantHead(t, f, 0, 0, 0, append(append([]int32{0, 1}, span(5, 21)...), 40))

	g, err := f.Fork()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	wantHead(t, g, 0, 0, 0, append(append([]int32{0, 1}, span(5, 21)...), 40))
	require.Equal(t, int64(2), c.PoolStats().Caches)
	// The first page's survivors stay in place, so it need not be copied.
	h, err := g.Fork()
	require.NoError(t, err)
	require.NoError(t, h.Keep(0, 0, append(span(0, 16), 18)))
	require.Equal(t, page, h.Stats().SharedBytes)
	require.NoError(t, h.Truncate(3))
	wantHead(t, h, 0, 0, 0, []int32{0, 1})
	add(t, h, 0, 0, 30, 32)
	wantHead(t, h, 0, 0, 0, []int32{0, 1, 30, 31})
	wantHead(t, g, 0, 0, 0, append(append([]int32{0, 1}, span(5, 21)...), 40))
	require.NoError(t, h.Close())
	require.NoError(t, g.Close())
	require.Equal(t, 3*page, c.PoolStats().Bytes)
}

func TestWindow(t *testing.T) { everywhere(t, testWindow) }

func testWindow(t *testing.T, at place) {
	c := at.open(t, Options{Layers: 2, KVHeads: 1, HeadDim: 4, PageEntries: 16, Windows: []int{0, 20}})
	for l := range 2 {
		add(t, c, l, 0, 0, 50)
	}
	c.DropBefore(0, 40)
	wantHead(t, c, 0, 0, 0, span(0, 50))
	c.DropBefore(1, 15)
	wantHead(t, c, 1, 0, 0, span(0, 50))
	c.DropBefore(1, 31) // position 31 is in the second page
	wantHead(t, c, 1, 0, 16, span(16, 50))
	c.DropBefore(1, 32)
	wantHead(t, c, 1, 0, 32, span(32, 50))
	add(t, c, 1, 0, 50, 64)
	c.DropBefore(1, 1000)
	wantHead(t, c, 1, 0, 64, nil)
	require.EqualValues(t, 63, c.LastPosition(1, 0))
	require.Error(t, addErr(c, 1, 0, 63, 64))
	add(t, c, 1, 0, 64, 90)
	wantHead(t, c, 1, 0, 64, span(64, 90))
	require.NoError(t, c.Keep(1, 0, []int32{0, 25}))
	wantHead(t, c, 1, 0, 0, []int32{64, 89})
}

func TestTruncate(t *testing.T) { everywhere(t, testTruncate) }

func testTruncate(t *testing.T, at place) {
	o := Options{Layers: 2, KVHeads: 2, HeadDim: 4, PageEntries: 16, Windows: []int{0, 32}}
	all := func(c *Cache, from, to int32) {
		for l := range 2 {
			for h := range 2 {
				add(t, c, l, h, from, to)
			}
		}
	}
	t.Run("lengths per head", func(t *testing.T) {
		c := at.open(t, o)
		all(c, 0, 20)
		add(t, c, 0, 0, 20, 30)
		all(c, 30, 70)
		require.NoError(t, c.Truncate(30))
		wantHead(t, c, 0, 0, 0, span(0, 30))
		wantHead(t, c, 1, 1, 0, span(0, 20))
		require.NoError(t, c.Truncate(30), "once more")
		require.NoError(t, c.Truncate(math.MaxInt32))
		wantHead(t, c, 0, 0, 0, span(0, 30))
		require.Equal(t, 8*c.Stats().PageBytes, c.Bytes())
		require.NoError(t, c.Truncate(math.MinInt32))
		require.Zero(t, c.Bytes())
		all(c, 0, 1)
	})
	t.Run("fork", func(t *testing.T) {
		c := at.open(t, o)
		all(c, 0, 40)
		f, err := c.Fork()
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, f.Truncate(20))
		all(f, 20, 25)
		wantHead(t, c, 0, 0, 0, span(0, 40))
		require.NoError(t, c.Truncate(21))
		wantHead(t, f, 0, 0, 0, span(0, 25))
	})
	t.Run("window", func(t *testing.T) {
		c := at.open(t, o)
		all(c, 0, 80)
		c.DropBefore(1, 17)
		require.NoError(t, c.Truncate(48)) // the next token, 48, reads 17 and above
		wantHead(t, c, 1, 1, 16, span(16, 48))
		all(c, 48, 80)
		c.DropBefore(1, 49)
		wantHead(t, c, 1, 1, 48, span(48, 80))
		// Token 79 reads 48 and above, token 78 reads 47, which is gone.
		require.ErrorContains(t, c.Truncate(78), "window")
		wantHead(t, c, 0, 0, 0, span(0, 80))
		require.NoError(t, c.Truncate(79))
		wantHead(t, c, 0, 0, 0, span(0, 79))
		wantHead(t, c, 1, 1, 48, span(48, 79))
	})
}

func TestFull(t *testing.T) { everywhere(t, testFull) }

func testFull(t *testing.T, at place) {
	page := int64(2*16*4*4 + 16*4)
	c := at.open(t, Options{Layers: 1, KVHeads: 2, HeadDim: 4, PageEntries: 16, MaxBytes: 4*page + page/2})
	add(t, c, 0, 0, 0, 40)
	require.ErrorIs(t, addErr(c, 0, 1, 0, 17), ErrFull)
	wantHead(t, c, 0, 1, 0, nil)
	add(t, c, 0, 1, 0, 16)
	require.ErrorIs(t, addErr(c, 0, 1, 16, 17), ErrFull)
	wantHead(t, c, 0, 1, 0, span(0, 16))
	require.NoError(t, c.Check())
	add(t, c, 0, 0, 40, 48)
	f, err := c.Fork()
	require.NoError(t, err)
	defer f.Close()
	// Copying shared pages takes no more pages than the limit allows.
	require.NoError(t, f.Keep(0, 0, span(1, 48)))
	require.NoError(t, f.Keep(0, 0, span(1, 30)))
	add(t, f, 0, 1, 16, 17)
	require.ErrorIs(t, addErr(f, 0, 1, 17, 33), ErrFull)
	require.Equal(t, 4*page, f.Stats().HighWater)
}

func TestArguments(t *testing.T) { everywhere(t, testArguments) }

func testArguments(t *testing.T, at place) {
	c := at.open(t, Options{Layers: 2, KVHeads: 1, HeadDim: 4})
	x := make([]float32, 8)
	for name, err := range map[string]error{
		"no layer 2":      c.Append(2, 0, []int32{0}, x, x, 4),
		"no layer 0 head": c.Append(0, 1, []int32{0}, x, x, 4),
		"no layer -1":     c.Append(-1, 0, nil, x, x, 4),
		"stride 3":        c.Append(0, 0, []int32{0}, x, x, 3),
		"7 key":           c.Append(0, 0, []int32{0, 1}, x[:7], x, 4),
		"7 value":         c.Append(0, 0, []int32{0, 1}, x, x[:7], 4),
		"0 key":           c.Append(0, 0, []int32{0}, nil, nil, 4),
		"elements":        c.Append(0, 0, []int32{0, 1}, x, x, math.MaxInt),
		"position -1":     c.Append(0, 0, []int32{-1}, x, x, 4),
		"position 3":      c.Append(0, 0, []int32{3, 3}, x, x, 4),
	} {
		require.ErrorContains(t, err, name)
	}
	wantHead(t, c, 0, 0, 0, nil)
	require.NoError(t, c.Append(0, 0, nil, nil, nil, 4))
	require.NoError(t, c.Append(0, 0, []int32{math.MaxInt32 - 1, math.MaxInt32}, x, x, 4))
	require.Panics(t, func() { c.Len(0, 1) })
	require.Panics(t, func() { c.Keys(0, 0, 1, 3, nil) })
	require.Panics(t, func() { c.Values(0, 0, -1, 1, nil) })

	ok := Options{Layers: 2, KVHeads: 2, HeadDim: 4}
	for want, change := range map[string]func(*Options){
		"layers":         func(o *Options) { o.Layers = 0 },
		"KV heads":       func(o *Options) { o.KVHeads = -1 },
		"heads in all":   func(o *Options) { o.Layers, o.KVHeads = 1<<30, 1<<30 },
		"head dimension": func(o *Options) { o.HeadDim = 3 },
		"dimension 514":  func(o *Options) { o.HeadDim = 514 },
		"element type":   func(o *Options) { o.Type = tensor.F64 },
		"per page":       func(o *Options) { o.PageEntries = 48 },
		"8 entries":      func(o *Options) { o.PageEntries = 8 },
		"windows":        func(o *Options) { o.Windows = []int{1} },
		"window -1":      func(o *Options) { o.Windows = []int{1, -1} },
		"limit":          func(o *Options) { o.MaxBytes = -1 },
		"on a device":    func(o *Options) { o.Device, o.DeviceLayers = newFake(), -1 },
	} {
		o := ok
		change(&o)
		_, err := New(o)
		require.ErrorContains(t, err, want)
		require.True(t, strings.HasPrefix(err.Error(), "make a cache: "), err)
	}
}

func TestClosed(t *testing.T) { everywhere(t, testClosed) }

func testClosed(t *testing.T, at place) {
	c, err := New(at.options(Options{Layers: 1, KVHeads: 1, HeadDim: 4, Windows: []int{16}}))
	require.NoError(t, err)
	add(t, c, 0, 0, 0, 100)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	require.NoError(t, c.Check())
	require.ErrorIs(t, addErr(c, 0, 0, 100, 101), ErrClosed)
	require.ErrorIs(t, c.Keep(0, 0, nil), ErrClosed)
	require.ErrorIs(t, c.Truncate(0), ErrClosed)
	require.ErrorIs(t, c.Save(t.Context(), nil, nil), ErrClosed)
	_, err = c.Fork()
	require.ErrorIs(t, err, ErrClosed)
	c.DropBefore(0, 100)
	require.Zero(t, c.Len(0, 0))
	require.Zero(t, c.Bytes())
	require.Empty(t, c.Positions(0, 0, nil))
	require.Empty(t, c.View(0, 0).Pages)
}

// TestCheckFinds corrupts a cache in ways that Check must detect.
func TestCheckFinds(t *testing.T) {
	for want, damage := range map[string]func(c *Cache){
		"position 7":     func(c *Cache) { c.positions(&c.heads[0], 0)[8] = 7 },
		"have":           func(c *Cache) { c.heads[1].n += 16 },
		"booked":         func(c *Cache) { c.held.Add(-1) },
		"same page":      func(c *Cache) { c.heads[0].blocks[0], c.heads[0].pages[0] = c.heads[1].blocks[0], c.heads[1].pages[0] },
		"not where":      func(c *Cache) { c.heads[0].pages[1].K = c.heads[0].pages[0].K },
		"base 8":         func(c *Cache) { c.heads[0].base = 8 },
		"dropped":        func(c *Cache) { c.heads[0].base = 16 },
		"not above 1000": func(c *Cache) { c.heads[0].dropped = 1000 },
	} {
		c := open(t, Options{Layers: 1, KVHeads: 2, HeadDim: 4, PageEntries: 16})
		add(t, c, 0, 0, 0, 40)
		add(t, c, 0, 1, 0, 40)
		require.NoError(t, c.Check())
		heads := []head{c.heads[0], c.heads[1]}
		for i := range heads {
			heads[i].blocks = append(heads[i].blocks[:0:0], heads[i].blocks...)
			heads[i].pages = append(heads[i].pages[:0:0], heads[i].pages...)
		}
		damage(c)
		require.ErrorContains(t, c.Check(), want)
		c.heads = heads // restored, so that it can be closed
		c.held.Store(6 * c.pool.host.pageBytes)
	}
}

// TestConcurrentHeads has one goroutine per head append and evict, in two forks
// at once.
func TestConcurrentHeads(t *testing.T) { everywhere(t, testConcurrentHeads) }

func testConcurrentHeads(t *testing.T, at place) {
	const heads, steps = 6, 40
	c := at.open(t, Options{Layers: 1, KVHeads: heads, HeadDim: 8, PageEntries: 16, Type: tensor.BF16})
	for h := range heads {
		add(t, c, 0, h, 0, 20)
	}
	f, err := c.Fork()
	require.NoError(t, err)
	defer f.Close()
	var wg sync.WaitGroup
	for i, cache := range []*Cache{c, f} {
		for h := range heads {
			wg.Go(func() {
				for s := range int32(steps) {
					from := 20 + s*11
					if err := addErr(cache, 0, h, from, from+int32(h+i+1)); err != nil {
						t.Error(err)
					}
					if n := cache.Len(0, h); s%8 == 7 {
						if err := cache.Keep(0, h, span(int32(n/2), int32(n))); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
	}
	wg.Wait()
	for i, cache := range []*Cache{c, f} {
		require.NoError(t, cache.Check())
		for h := range heads {
			want := span(0, 20)
			for s := range int32(steps) {
				want = append(want, span(20+s*11, 20+s*11+int32(h+i+1))...)
				if s%8 == 7 {
					want = want[len(want)/2:]
				}
			}
			wantHead(t, cache, 0, h, 0, want)
		}
	}
	require.Zero(t, c.Stats().SharedBytes)
}

func TestSteadyAppendAllocatesNothing(t *testing.T) {
	checking = func() bool { return false }
	defer func() { checking = func() bool { return true } }()
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		c := open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 64, PageEntries: 16, Type: typ, Windows: []int{100}})
		pos := []int32{0}
		k, v := rows(pos, 64, 64)
		step := func() {
			for range 64 { // several new pages, which are dropped again
				if err := c.Append(0, 0, pos, k, v, 64); err != nil {
					t.Fatal(err)
				}
				pos[0]++
				c.DropBefore(0, pos[0]-100)
			}
		}
		step()
		step()
		step()
		require.Zero(t, testing.AllocsPerRun(50, step))
		dst, at := make([]float32, 64), make([]int32, 0, 200)
		require.Zero(t, testing.AllocsPerRun(50, func() {
			c.Keys(0, 0, 3, 4, dst)
			c.Values(0, 0, 3, 4, dst)
			c.Positions(0, 0, at)
			c.View(0, 0)
		}))
	}
}

// TestOptionBounds makes caches with options at the ends of their ranges.
func TestOptionBounds(t *testing.T) {
	for _, o := range []Options{
		{Layers: 1, KVHeads: 1, HeadDim: 2, PageEntries: 16},
		{Layers: 1, KVHeads: 1, HeadDim: 512, PageEntries: 1024, Type: tensor.F16},
		{Layers: 2, KVHeads: 1, HeadDim: 2, Windows: []int{0, 1}},
	} {
		c := open(t, o)
		add(t, c, o.Layers-1, 0, 0, 3)
		wantHead(t, c, o.Layers-1, 0, 0, span(0, 3))
	}
	for _, bad := range []int{15, 17, 24, 1025, 2048} {
		_, err := New(Options{Layers: 1, KVHeads: 1, HeadDim: 2, PageEntries: bad})
		require.ErrorContains(t, err, "entries per page", "%d", bad)
	}
}

// TestDeviceLayers puts the pages of only the requested layers on a device.
func TestDeviceLayers(t *testing.T) {
	for asked, want := range map[int]int{0: 3, 1: 1, 2: 2, 3: 3, 4: 3} {
		c := open(t, Options{Layers: 3, KVHeads: 2, HeadDim: 4, Device: newFake(), DeviceLayers: asked})
		require.Equal(t, want, c.Options().DeviceLayers)
		for l := range 3 {
			add(t, c, l, 1, 0, 1)
		}
		s := c.Stats()
		require.Equal(t, int64(want)*s.PageBytes, s.DeviceBytes, "%d layers asked for", asked)
	}
	require.Zero(t, open(t, Options{Layers: 3, KVHeads: 2, HeadDim: 4, DeviceLayers: 2}).Options().DeviceLayers, "without a device")
}

// TestLongListsAreReplaced: the tail of a list is cleared, and a list that uses less
// than a quarter of its capacity is replaced by a short one.
func TestLongListsAreReplaced(t *testing.T) {
	for _, x := range []struct{ capacity, n, least, most int }{
		{100, 25, 100, 100}, {100, 24, 24, 40}, {64, 0, 64, 64}, {65, 0, 0, 8}, {400, 99, 99, 160},
	} {
		was := make([]int, x.capacity)
		for i := range was {
			was[i] = i + 1
		}
		got := zeroTail(was, x.n)
		require.Equal(t, was[:x.n], got)
		require.Equal(t, make([]int, x.capacity-x.n), was[x.n:], "the tail")
		require.GreaterOrEqual(t, cap(got), x.least, "%d of %d", x.n, x.capacity)
		require.LessOrEqual(t, cap(got), x.most, "%d of %d", x.n, x.capacity)
	}
}

// TestNoWindows: without windows DropBefore removes nothing, and any truncation works.
func TestNoWindows(t *testing.T) {
	for _, windows := range [][]int{nil, {0}} {
		c := open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 4, PageEntries: 16, Windows: windows})
		add(t, c, 0, 0, 0, 100)
		c.DropBefore(0, 90)
		wantHead(t, c, 0, 0, 0, span(0, 100))
		require.NoError(t, c.Truncate(3))
		wantHead(t, c, 0, 0, 0, span(0, 3))
	}
}
