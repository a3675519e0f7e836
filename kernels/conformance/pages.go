package conformance

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// poolModel is what a pool of pages must do: its pages are blocks on the host.
type poolModel struct {
	t    *testing.T
	d    kernels.Device
	p    kernels.PagePool
	l    kernels.PageLayout
	rng  *rand.Rand
	held []kernels.DevicePage // an element per holder
	high int

	block map[kernels.DevicePage][]byte
	refs  map[kernels.DevicePage]int
}

// pages uses pools at random.
func (s *suite) pages(t *testing.T) {
	rng := random("pages")
	for i := range 40 {
		m := &poolModel{
			t: t, d: s.d, rng: rng, block: map[kernels.DevicePage][]byte{}, refs: map[kernels.DevicePage]int{},
			l: s.pageTypes[i%len(s.pageTypes)].layout([]int{4, 8, 20, 64}[rng.IntN(4)], []int{16, 64}[rng.IntN(2)]),
		}
		before := s.d.Memory().Buffers
		var err error
		m.p, err = s.d.Pages(m.l)
		ok(t, err)
		for range 1 + rng.IntN(30) {
			m.step()
		}
		m.same()
		for len(m.held) > 0 {
			m.unref(len(m.held) - 1)
		}
		if m.p.Bytes() != 0 {
			t.Fatalf("%d bytes are in use for no page", m.p.Bytes())
		}
		ok(t, m.p.Close())
		ok(t, m.p.Close())
		if after := s.d.Memory().Buffers; after != before {
			t.Fatalf("a pool leaves %d buffers", after-before)
		}
	}
	for _, l := range []kernels.PageLayout{{Type: tensor.F32, HeadDim: 16, PageEntries: 16}} {
		p, err := s.d.Pages(l)
		ok(t, err)
		page, err := p.Alloc(nil, 1)
		ok(t, err)
		if p.Write(t.Context(), page, make([]byte, l.Bytes()-1)) == nil || p.Read(t.Context(), make([]byte, 2*l.Bytes()), page) == nil {
			t.Error("blocks of the wrong size are accepted")
		}
		table, err := p.Table()
		ok(t, err)
		table.Free()
		table.Free()
		p.Unref(page)
		ok(t, p.Close())
	}
}

func (m *poolModel) alloc(n int) []kernels.DevicePage {
	pages, err := m.p.Alloc(nil, n)
	ok(m.t, err)
	for _, g := range pages {
		if g == 0 || m.refs[g] != 0 {
			m.t.Fatalf("page %#x was handed out twice", g)
		}
		block := make([]byte, m.l.Bytes())
		for i := range block {
			block[i] = byte(m.rng.Uint32())&0x3f | 1 // finite numbers
		}
		ok(m.t, m.p.Write(m.t.Context(), []kernels.DevicePage{g}, block))
		m.block[g], m.refs[g] = block, 1
	}
	m.held = append(m.held, pages...)
	return pages
}

func (m *poolModel) ref(g kernels.DevicePage) {
	m.p.Ref([]kernels.DevicePage{g})
	m.refs[g]++
	m.held = append(m.held, g)
}

func (m *poolModel) unref(i int) {
	g := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	m.p.Unref([]kernels.DevicePage{g})
	if m.refs[g]--; m.refs[g] == 0 {
		delete(m.block, g)
		delete(m.refs, g)
	}
}

func (m *poolModel) any() kernels.DevicePage { return m.held[m.rng.IntN(len(m.held))] }

func (m *poolModel) step() {
	switch op := m.rng.IntN(5); {
	case op == 0 || len(m.held) < 2:
		m.alloc(m.rng.IntN(6))
	case op == 1:
		m.ref(m.any())
	case op == 2:
		m.unref(m.rng.IntN(len(m.held)))
	case op == 3:
		if a, b := m.any(), m.any(); a != b && m.refs[a] == 1 {
			ok(m.t, m.p.Copy(a, b))
			copy(m.block[a], m.block[b])
		}
	case op == 4:
		m.compact()
	}
	m.high = max(m.high, len(m.refs))
	one := m.p.Bytes() / int64(max(len(m.refs), 1)) // devices arrange pages as they like
	if m.p.Bytes() != one*int64(len(m.refs)) || one > 0 && m.p.HighWater() != one*int64(m.high) || m.p.Taken() < m.p.Bytes() {
		m.t.Fatalf("found %d bytes, at most %d, of %d taken for %d pages, at most %d", m.p.Bytes(), m.p.HighWater(), m.p.Taken(), len(m.refs), m.high)
	}
}

// compact moves entries of a new list of pages, some of which are shared.
func (m *poolModel) compact() {
	src := m.alloc(1 + m.rng.IntN(12))
	for _, g := range src {
		if m.rng.IntN(4) == 0 {
			m.ref(g)
		}
	}
	perPage := m.l.PageEntries
	n := len(src) * perPage
	cut := m.rng.IntN(n)
	var slots []int32
	from := 0
	for e := range n {
		if e < cut || m.rng.IntN(3) > 0 {
			if e == len(slots) && from == len(slots) {
				from++
			}
			slots = append(slots, int32(e))
		}
	}
	// Shared pages that would be written are replaced.
	dst := slices.Clone(src[:(len(slots)+perPage-1)/perPage])
	for i, g := range dst {
		if (i+1)*perPage > from && m.refs[g] > 1 {
			dst[i] = m.alloc(1)[0]
			from = min(from, i*perPage)
		}
	}
	ok(m.t, m.p.Compact(dst, src, slots, from))
	old := map[kernels.DevicePage][]byte{}
	for _, g := range src {
		old[g] = slices.Clone(m.block[g])
	}
	for i := from; i < len(slots); i++ {
		s := int(slots[i])
		to, of := m.entry(m.block[dst[i/perPage]], i%perPage), m.entry(old[src[s/perPage]], s%perPage)
		for j := range to {
			copy(to[j], of[j])
		}
	}
}

// entry returns the bytes of an entry in a block: its position, elements and scales.
func (m *poolModel) entry(block []byte, e int) [][]byte {
	parts := [][]byte{block[m.l.PositionsAt()+4*e:][:4]}
	for _, s := range []side{keysOf(m.l), valuesOf(m.l)} {
		parts = append(parts, s.scale(block, e))
		for i := range s.dim {
			parts = append(parts, s.element(block, e, i))
		}
	}
	return parts
}

// same compares all pages with the model's.
func (m *poolModel) same() {
	pages := slices.Sorted(maps.Keys(m.block))
	blocks := make([]byte, len(pages)*m.l.Bytes())
	ok(m.t, m.p.Read(m.t.Context(), blocks, pages))
	for i, g := range pages {
		if !bytes.Equal(blocks[i*m.l.Bytes():(i+1)*m.l.Bytes()], m.block[g]) {
			m.t.Fatalf("page %#x differs from what was written", g)
		}
	}
	m.p.ResetHighWater()
	if m.p.HighWater() != m.p.Bytes() {
		m.t.Fatalf("high water %d after a reset at %d", m.p.HighWater(), m.p.Bytes())
	}
	m.high = len(m.refs)
}
