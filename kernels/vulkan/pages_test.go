//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// hostPool is a model of a pool: its pages are blocks on the host.
type hostPool struct {
	layout kernels.PageLayout
	block  map[kernels.DevicePage][]byte
	refs   map[kernels.DevicePage]int
	high   int
}

// entry returns the bytes of an entry in a block: value, position, and the key's elements.
func (h *hostPool) entry(block []byte, e int) [][]byte {
	l, size := h.layout, h.layout.Type.Bytes(1)
	half := l.PageEntries * l.HeadDim * size
	parts := [][]byte{block[half+e*l.HeadDim*size:][:l.HeadDim*size], block[2*half+4*e:][:4]}
	for d := range l.HeadDim {
		parts = append(parts, block[(e/16*16*l.HeadDim+d*16+e%16)*size:][:size])
	}
	return parts
}

func (h *hostPool) compact(dst, src []kernels.DevicePage, slots []int32, from int) {
	pe := h.layout.PageEntries
	old := map[kernels.DevicePage][]byte{}
	for _, g := range src {
		old[g] = slices.Clone(h.block[g])
	}
	for i := from; i < len(slots); i++ {
		s := int(slots[i])
		to, of := h.entry(h.block[dst[i/pe]], i%pe), h.entry(old[src[s/pe]], s%pe)
		for j := range to {
			copy(to[j], of[j])
		}
	}
}

// A pool under random use holds what the model of a pool does.
func TestPagePool(t *testing.T) {
	d := openTest(t, Options{BlockBytes: 2 << 20})
	ctx := context.Background()
	rapid.Check(t, func(t *rapid.T) {
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		l := kernels.PageLayout{
			Type: rapid.SampledFrom(weightTypes).Draw(t, "type"), HeadDim: rapid.SampledFrom([]int{4, 8, 20, 64}).Draw(t, "dim"),
			PageEntries: rapid.SampledFrom([]int{16, 64}).Draw(t, "entries"),
		}
		before := d.Memory()
		p, err := d.newPagePool(layout(l))
		check(err)
		p.per = rapid.IntRange(1, 4).Draw(t, "chunk")
		h := &hostPool{l, map[kernels.DevicePage][]byte{}, map[kernels.DevicePage]int{}, 0}
		seed := byte(0)
		var held []kernels.DevicePage
		alloc := func(n int) []kernels.DevicePage {
			pages, err := p.Alloc(nil, n)
			check(err)
			for _, g := range pages {
				if g == 0 || h.refs[g] != 0 {
					t.Fatalf("page %#x was handed out twice", g)
				}
				block := make([]byte, l.Bytes())
				for i := range block {
					seed += 13
					block[i] = seed&0x3f | 1
				}
				check(p.Write(ctx, []kernels.DevicePage{g}, block))
				h.block[g], h.refs[g] = block, 1
			}
			held = append(held, pages...)
			return pages
		}
		unref := func(i int) {
			g := held[i]
			held = slices.Delete(held, i, i+1)
			p.Unref([]kernels.DevicePage{g})
			if h.refs[g]--; h.refs[g] == 0 {
				delete(h.block, g)
				delete(h.refs, g)
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 4).Draw(t, "op"); {
			case op == 0 || len(held) < 2:
				alloc(rapid.IntRange(0, 6).Draw(t, "n"))
			case op == 1:
				g := rapid.SampledFrom(held).Draw(t, "page")
				p.Ref([]kernels.DevicePage{g})
				h.refs[g]++
				held = append(held, g)
			case op == 2:
				unref(rapid.IntRange(0, len(held)-1).Draw(t, "which"))
			case op == 3:
				a, b := rapid.SampledFrom(held).Draw(t, "to"), rapid.SampledFrom(held).Draw(t, "from")
				if a != b {
					check(p.Copy(a, b))
					copy(h.block[a], h.block[b])
				}
			case op == 4:
				// A new list of pages, some of which are shared.
				src := alloc(rapid.IntRange(1, 12).Draw(t, "pages"))
				for _, g := range src {
					if rapid.IntRange(0, 3).Draw(t, "shared") == 0 {
						p.Ref([]kernels.DevicePage{g})
						h.refs[g]++
						held = append(held, g)
					}
				}
				n := len(src) * l.PageEntries
				cut := rapid.IntRange(0, n-1).Draw(t, "cut")
				var slots []int32
				from := 0
				for e := range n {
					if e < cut || rapid.IntRange(0, 2).Draw(t, "keep") > 0 {
						if int(e) == len(slots) && from == len(slots) {
							from++
						}
						slots = append(slots, int32(e))
					}
				}
				// Shared pages that would be written are replaced.
				dst := slices.Clone(src[:(len(slots)+l.PageEntries-1)/l.PageEntries])
				for i, g := range dst {
					if (i+1)*l.PageEntries > from && h.refs[g] > 1 {
						dst[i] = alloc(1)[0]
						from = min(from, i*l.PageEntries)
					}
				}
				check(p.Compact(dst, src, slots, from))
				h.compact(dst, src, slots, from)
			}
			h.high = max(h.high, len(h.refs))
			if want := int64(len(h.refs) * p.bytes); p.Bytes() != want || p.HighWater() < want || p.HighWater() != int64(h.high*p.bytes) || p.Taken() < want {
				t.Fatalf("%d bytes, at most %d, of %d taken; expected %d and %d", p.Bytes(), p.HighWater(), p.Taken(), want, h.high*p.bytes)
			}
		}
		pages := slices.Collect(maps.Keys(h.block))
		blocks := make([]byte, len(pages)*l.Bytes())
		check(p.Read(ctx, blocks, pages))
		for i, g := range pages {
			if !bytes.Equal(blocks[i*l.Bytes():(i+1)*l.Bytes()], h.block[g]) {
				t.Fatalf("page %#x differs from what was written", g)
			}
			if holders(p, g) != int32(h.refs[g]) {
				t.Fatalf("page %#x: found %d holders, expected %d", g, holders(p, g), h.refs[g])
			}
		}
		p.ResetHighWater()
		if p.HighWater() != p.Bytes() {
			t.Fatalf("high water %d after a reset at %d", p.HighWater(), p.Bytes())
		}
		for len(held) > 0 {
			unref(len(held) - 1)
		}
		if p.Taken() != 0 || p.Bytes() != 0 || len(p.chunks)+len(p.open) != 0 {
			t.Fatalf("%d bytes are taken for no page", p.Taken())
		}
		_, err = p.Alloc(nil, 3)
		check(err)
		check(p.Close())
		check(p.Close())
		if m := d.Memory(); m.Used != before.Used || m.Buffers != before.Buffers {
			t.Fatalf("memory before %+v, after %+v", before, m)
		}
	})
}

func TestPagePoolEdges(t *testing.T) {
	d := openTest(t, Options{MaxBytes: 12 << 20, BlockBytes: 6 << 20})
	ctx := context.Background()
	l := kernels.PageLayout{Type: tensor.BF16, HeadDim: 64, PageEntries: 64}
	p, err := d.Pages(l)
	ok(t, err)
	a, err := p.Alloc(nil, 10)
	ok(t, err)
	require.Equal(t, int64(10*l.Bytes()), p.Bytes(), "pages have no gaps")
	// Slots to which no entry has been written are finite.
	block := make([]byte, l.Bytes())
	ok(t, p.Read(ctx, block, a[3:4]))
	require.Equal(t, make([]byte, l.Bytes()), block)

	p.Ref(a[:3])
	require.EqualValues(t, 2, holders(p, a[0]))
	require.EqualValues(t, 1, holders(p, a[3]))
	p.Unref(a)
	require.Equal(t, int64(3*l.Bytes()), p.Bytes())
	_, err = p.Alloc(nil, 10000)
	require.ErrorIs(t, err, kernels.ErrDeviceMemory)
	var o *outOfMemoryError
	require.ErrorAs(t, err, &o)
	require.Equal(t, int64(3*l.Bytes()), p.Bytes(), "a failed Alloc takes nothing")
	require.Panics(t, func() { p.Unref(a[9:]) })
	require.Panics(t, func() { p.Ref([]kernels.DevicePage{12345}) })

	for name, err := range map[string]error{
		"short block":    p.Read(ctx, block[1:], a[:1]),
		"one block":      p.Read(ctx, block, a[:2]),
		"long block":     p.Write(ctx, a[:1], append(block, 0)),
		"descending":     p.Compact(a[:2], a[:2], []int32{5, 4}, 0),
		"beyond":         p.Compact(a[:2], a[:2], []int32{128}, 0),
		"too many":       p.Compact(a[:1], a[:2], make([]int32, 65), 65),
		"from":           p.Compact(a[:1], a[:1], []int32{1}, 2),
		"negative entry": p.Compact(a[:1], a[:1], []int32{-1}, 0),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// A table grows by doubling and keeps what it had.
	table, err := p.Table()
	ok(t, err)
	many := repeat(100, func(i int) kernels.DevicePage { return a[i%3] })
	for n := range many {
		ok(t, table.Set(many[:n+1], n))
	}
	m := table.(*pageTable).mem.Bytes()
	require.Len(t, m, 8*128)
	for i, g := range many {
		require.Equal(t, uint64(g), binary.LittleEndian.Uint64(m[8*i:]))
	}
	table.Free()
	table.Free()
	if table.Set(many, 0) == nil {
		t.Error("a table that was freed")
	}
	p.Unref(a[:3])
	require.Zero(t, p.Bytes())
	require.Equal(t, int64(10*l.Bytes()), p.HighWater())
	require.Zero(t, p.Taken())
	require.Zero(t, d.Memory().Buffers)
	ok(t, p.Close())
	if _, err = p.Alloc(nil, 1); err == nil {
		t.Error("a page of a closed pool")
	}
	p.Unref(a)

	// Blocks that work still uses go back when it has ended, and make room.
	for range 20 {
		b, err := d.newLocalBuffer(5 << 20)
		ok(t, err)
		ok(t, d.once(func(c *commands) { c.Zero(b.All()) }))
		b.Free()
	}
	if _, err := d.newLocalBuffer(1 << 40); !errors.Is(err, kernels.ErrDeviceMemory) {
		t.Errorf("a tebibyte: %v", err)
	}
}

// A list of entries that needs more than one slot of the ring.
func TestCompactLong(t *testing.T) {
	if testing.Short() {
		t.Skip("moves a million entries")
	}
	d := openTest(t, Options{})
	ctx := context.Background()
	l := kernels.PageLayout{Type: tensor.F16, HeadDim: 4, PageEntries: 1024}
	p, err := d.Pages(l)
	ok(t, err)
	defer func() { ok(t, p.Close()) }()
	const pages = 1100
	g, err := p.Alloc(nil, pages)
	ok(t, err)
	size := l.Bytes()
	blocks := make([]byte, pages*size)
	for i := range pages {
		block := blocks[i*size : (i+1)*size]
		for e := range l.PageEntries {
			binary.LittleEndian.PutUint32(block[size-4*l.PageEntries+4*e:], uint32(i*l.PageEntries+e))
		}
	}
	per := stagingSlotBytes / layout(l).PageBytes()
	transfers := uint64((pages + per - 1) / per)
	last := d.last
	ok(t, p.Write(ctx, g, blocks))
	if d.last-last != transfers {
		t.Errorf("%d pages went in %d transfers, expected %d", pages, d.last-last, transfers)
	}
	slots := repeat(pages*l.PageEntries-5, func(i int) int32 { return int32(i + i/300000) })
	ok(t, p.Compact(g, g, slots, 10))
	clear(blocks)
	last = d.last
	ok(t, p.Read(ctx, blocks, g))
	if d.last-last != transfers {
		t.Errorf("%d pages came in %d transfers, expected %d", pages, d.last-last, transfers)
	}
	for i := range pages {
		block := blocks[i*size : (i+1)*size]
		for e := range l.PageEntries {
			if n := i*l.PageEntries + e; n < len(slots) {
				if got := binary.LittleEndian.Uint32(block[len(block)-4*l.PageEntries+4*e:]); got != uint32(slots[n]) {
					t.Fatalf("entry %d: want that of %d, got %d", n, slots[n], got)
				}
			}
		}
	}
}

func BenchmarkLayout(b *testing.B) {
	for _, typ := range []tensor.Type{tensor.F32, tensor.BF16} {
		l := layout{Type: typ, HeadDim: 128, PageEntries: 64}
		block, page := make([]byte, l.hostBytes()), make([]byte, l.PageBytes())
		b.Run("in/"+typ.String(), func(b *testing.B) {
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				l.FromHost(page, block)
			}
		})
		b.Run("out/"+typ.String(), func(b *testing.B) {
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				l.ToHost(block, page)
			}
		})
	}
}

// holders returns the number of holders of a page.
func holders(pool kernels.PagePool, g kernels.DevicePage) int32 {
	p := pool.(*pagePool)
	p.mu.Lock()
	defer p.mu.Unlock()
	c, i := p.find(g)
	return c.refs[i]
}
