package kvcache

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// The simulation runs the cache against the simplest possible implementation: a
// slice of entries per head, copied on fork. An entry is its position and a
// number that determines its key and value, so that stale data does not pass for
// the entry that belongs there.
type naiveEntry struct {
	pos  int32
	seed int32
}

type naiveCache struct {
	heads [][]naiveEntry
	base  []int
	drop  []int32
}

// sim is the state machine: all open caches of one family.
type sim struct {
	o      Options
	at     place
	caches []*Cache
	naive  []*naiveCache
	seed   int32
}

func (n *naiveCache) clone() *naiveCache {
	c := &naiveCache{base: slices.Clone(n.base), drop: slices.Clone(n.drop)}
	for _, p := range n.heads {
		c.heads = append(c.heads, slices.Clone(p))
	}
	return c
}

func (n *naiveCache) last(i int) int32 {
	if p := n.heads[i]; len(p) > 0 {
		return p[len(p)-1].pos
	}
	return n.drop[i]
}

func simRows(seeds []int32, dim int) (k, v []float32) {
	k, v = make([]float32, 0, len(seeds)*dim), make([]float32, 0, len(seeds)*dim)
	for _, s := range seeds {
		for d := range dim {
			k, v = append(k, element(false, s, d)), append(v, element(true, s, d))
		}
	}
	return k, v
}

func (s *sim) pick(t *rapid.T) int { return rapid.IntRange(0, len(s.caches)-1).Draw(t, "cache") }

func (s *sim) head(t *rapid.T) (i, layer, head int) {
	i = rapid.IntRange(0, s.o.Layers*s.o.KVHeads-1).Draw(t, "head")
	return i, i / s.o.KVHeads, i % s.o.KVHeads
}

func (s *sim) window(i int) int { return s.o.Windows[i/s.o.KVHeads] }

func (s *sim) appendTo(t *rapid.T, c *Cache, n *naiveCache, i, count int) error {
	dim := s.o.HeadDim
	pos, seeds := make([]int32, count), make([]int32, count)
	x := n.last(i)
	for j := range pos {
		x += int32(rapid.SampledFrom([]int{1, 1, 1, 1, 2, 9}).Draw(t, "gap"))
		s.seed++
		pos[j], seeds[j] = x, s.seed
		n.heads[i] = append(n.heads[i], naiveEntry{x, s.seed})
	}
	k, v := simRows(seeds, dim)
	return c.Append(i/s.o.KVHeads, i%s.o.KVHeads, pos, k, v, dim)
}

func (s *sim) Append(t *rapid.T) {
	at := s.pick(t)
	i, _, _ := s.head(t)
	require.NoError(t, s.appendTo(t, s.caches[at], s.naive[at], i, rapid.IntRange(0, 40).Draw(t, "count")))
}

// Reserve appends as a pass on the device does; now and then the pass fails.
func (s *sim) Reserve(t *rapid.T) {
	at := s.pick(t)
	i, layer, head := s.head(t)
	c, n := s.caches[at], s.naive[at]
	count, first := rapid.IntRange(1, 40).Draw(t, "count"), c.Len(layer, head)
	pos, seeds := make([]int32, count), make([]int32, count)
	for j := range pos {
		s.seed++
		pos[j], seeds[j] = n.last(i)+1+int32(j), s.seed
	}
	err := c.Reserve(layer, head, pos)
	if layer >= c.Options().DeviceLayers {
		require.ErrorContains(t, err, "not on a device")
		return
	}
	require.NoError(t, err)
	for j, x := range pos {
		n.heads[i] = append(n.heads[i], naiveEntry{x, seeds[j]})
	}
	if rapid.IntRange(0, 3).Draw(t, "failure") == 0 && s.truncateTo(t, at, pos[0]) {
		return
	}
	k, v := simRows(seeds, s.o.HeadDim)
	pass(c, layer, head, first, pos, k, v)
}

// AppendAll appends to all heads at once, each from its own goroutine.
func (s *sim) AppendAll(t *rapid.T) {
	at := s.pick(t)
	c, n := s.caches[at], s.naive[at]
	count := rapid.IntRange(1, 20).Draw(t, "count")
	errs := make(chan error, len(n.heads))
	for i := range n.heads {
		pos, seeds := make([]int32, count), make([]int32, count)
		for j := range pos {
			s.seed++
			pos[j], seeds[j] = n.last(i)+1, s.seed
			n.heads[i] = append(n.heads[i], naiveEntry{pos[j], s.seed})
		}
		k, v := simRows(seeds, s.o.HeadDim)
		go func() { errs <- c.Append(i/s.o.KVHeads, i%s.o.KVHeads, pos, k, v, s.o.HeadDim) }()
	}
	for range n.heads {
		require.NoError(t, <-errs)
	}
}

func (s *sim) Keep(t *rapid.T) {
	at := s.pick(t)
	i, layer, head := s.head(t)
	n := s.naive[at]
	percent := rapid.SampledFrom([]int{0, 20, 50, 95, 100}).Draw(t, "percent")
	slots, kept := []int32{}, []naiveEntry{}
	for j, e := range n.heads[i] {
		if rapid.IntRange(0, 99).Draw(t, "keep") < percent {
			slots, kept = append(slots, int32(j)), append(kept, e)
		}
	}
	require.NoError(t, s.caches[at].Keep(layer, head, slots))
	if len(kept) < len(n.heads[i]) {
		n.heads[i], n.base[i] = kept, 0
	}
}

func (s *sim) Drop(t *rapid.T) {
	at := s.pick(t)
	n := s.naive[at]
	layer := rapid.IntRange(0, s.o.Layers-1).Draw(t, "layer")
	pos := int32(rapid.IntRange(0, 200).Draw(t, "position"))
	s.caches[at].DropBefore(layer, pos)
	if s.o.Windows[layer] == 0 {
		return
	}
	for i := layer * s.o.KVHeads; i < (layer+1)*s.o.KVHeads; i++ {
		for len(n.heads[i]) >= s.o.PageEntries && n.heads[i][s.o.PageEntries-1].pos < pos {
			n.drop[i] = n.heads[i][s.o.PageEntries-1].pos
			n.heads[i] = n.heads[i][s.o.PageEntries:]
			n.base[i] += s.o.PageEntries
		}
	}
}

func (s *sim) Truncate(t *rapid.T) {
	s.truncateTo(t, s.pick(t), int32(rapid.IntRange(0, 300).Draw(t, "position")))
}

// truncateTo truncates a cache, and reports whether it had what windows at pos need.
func (s *sim) truncateTo(t *rapid.T, at int, pos int32) bool {
	n := s.naive[at]
	err := s.caches[at].Truncate(pos)
	for i := range n.heads {
		if pos > 0 && n.drop[i] >= 0 && n.last(i) >= pos && int(n.drop[i]) > int(pos)-s.window(i) {
			require.Error(t, err)
			return false
		}
	}
	require.NoError(t, err)
	for i := range n.heads {
		for len(n.heads[i]) > 0 && n.last(i) >= pos {
			n.heads[i] = n.heads[i][:len(n.heads[i])-1]
		}
		if pos == 0 { // as new
			n.base[i], n.drop[i] = 0, -1
		}
	}
	return true
}

func (s *sim) Fork(t *rapid.T) {
	if len(s.caches) == 5 {
		return
	}
	at := s.pick(t)
	f, err := s.caches[at].Fork()
	require.NoError(t, err)
	s.caches = append(s.caches, f)
	s.naive = append(s.naive, s.naive[at].clone())
}

func (s *sim) Close(t *rapid.T) {
	if len(s.caches) == 1 {
		return
	}
	at := s.pick(t)
	require.NoError(t, s.caches[at].Close())
	s.caches, s.naive = slices.Delete(s.caches, at, at+1), slices.Delete(s.naive, at, at+1)
}

// Reload saves a cache, loads it as a separate family, compares, and closes it.
func (s *sim) Reload(t *rapid.T) {
	at := s.pick(t)
	var file, again bytes.Buffer
	require.NoError(t, s.caches[at].Save(t.Context(), &file, map[string]string{"who": "sim"}))
	o := s.at.options(Options{})
	if rapid.Bool().Draw(t, "to the host") {
		o = Options{}
	}
	c, meta, err := load(t.Context(), "sim", file.Bytes(), o)
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, map[string]string{"who": "sim"}, meta)
	s.compare(t, c, s.naive[at])
	require.NoError(t, c.Save(t.Context(), &again, meta))
	require.True(t, bytes.Equal(file.Bytes(), again.Bytes()), "saving a loaded cache gives the same file")
}

func (s *sim) compare(t *rapid.T, c *Cache, n *naiveCache) {
	require.NoError(t, c.Check())
	held := 0
	for i, p := range n.heads {
		layer, head := i/s.o.KVHeads, i%s.o.KVHeads
		pos, seeds := make([]int32, len(p)), make([]int32, len(p))
		for j, e := range p {
			pos[j], seeds[j] = e.pos, e.seed
		}
		k, v := simRows(seeds, s.o.HeadDim)
		s.round(layer, k, v)
		name := fmt.Sprintf("layer %d head %d", layer, head)
		require.Equal(t, n.base[i], c.Base(layer, head), name)
		require.Equal(t, n.last(i), c.LastPosition(layer, head), name)
		require.True(t, slices.Equal(pos, c.Positions(layer, head, nil)), "%s: got positions %v, want %v", name, c.Positions(layer, head, nil), pos)
		require.True(t, slices.Equal(k, c.Keys(layer, head, 0, len(p), nil)), "%s: keys", name)
		require.True(t, slices.Equal(v, c.Values(layer, head, 0, len(p), nil)), "%s: values", name)
		l := s.o.Layout(layer)
		held += (len(p) + s.o.PageEntries - 1) / s.o.PageEntries * l.Bytes()
	}
	require.Equal(t, int64(held), c.Bytes(), "bytes held")
	require.Equal(t, c.Bytes(), c.Stats().Bytes)
}

// round rounds keys and values to what a layer stores of them, each by itself.
func (s *sim) round(layer int, k, v []float32) {
	l := s.o.Layout(layer)
	l.PageEntries = 16
	page := make([]byte, l.Bytes())
	for _, side := range []struct {
		integers bool
		rows     kernels.PageRows
		x        []float32
	}{{l.IntKeys(), l.KeyRows(), k}, {l.IntValues(), l.ValueRows(), v}} {
		for x := side.x; side.integers && len(x) > 0; x = x[l.HeadDim:] {
			side.rows.Store(kernels.CPU{}, unsafe.Pointer(&page[0]), 3, x[:l.HeadDim])
			side.rows.Load(kernels.CPU{}, unsafe.Pointer(&page[0]), 3, x[:l.HeadDim])
		}
	}
}

// Check compares all caches and the reference counts of all pages.
func (s *sim) Check(t *rapid.T) {
	refs, remote := make(map[arena.Block]int), make(map[kernels.DevicePage]int)
	for at, c := range s.caches {
		s.compare(t, c, s.naive[at])
		for i := range c.heads {
			for _, b := range c.heads[i].blocks {
				refs[b]++
			}
			for _, r := range c.heads[i].remote {
				remote[r]++
			}
		}
	}
	if s.at.device != nil {
		require.Equal(t, remote, s.at.device.Holders(), "holders of the device's pages")
	}
	for b, n := range refs {
		require.Equal(t, n, b.Refs(), "references of a page")
	}
	p := s.caches[0].PoolStats()
	if s.o.WideKeys == nil {
		require.Equal(t, int64(len(refs))*s.caches[0].Stats().PageBytes, p.Bytes, "bytes of the family")
	}
	require.Equal(t, int64(len(s.caches)), p.Caches)
}

func TestSimulation(t *testing.T) { everywhere(t, testSimulation) }

func testSimulation(t *testing.T, at place) {
	rapid.Check(t, func(t *rapid.T) {
		s := &sim{at: at, o: at.options(Options{
			Layers:      2,
			KVHeads:     2,
			HeadDim:     rapid.SampledFrom([]int{2, 10}).Draw(t, "head dim"),
			Type:        rapid.SampledFrom([]tensor.Type{tensor.F32, tensor.F16, tensor.BF16}).Draw(t, "type"),
			PageEntries: rapid.SampledFrom([]int{16, 64}).Draw(t, "page"), // a page of one tile, and of four
			Windows:     []int{0, rapid.SampledFrom([]int{8, 60}).Draw(t, "window")},
		})}
		s.run(t)
	})
}

// TestSimulationOfIntegers is the simulation with entries of 8 and, on the host, 4 bits.
func TestSimulationOfIntegers(t *testing.T) { everywhere(t, testSimulationOfIntegers) }

func testSimulationOfIntegers(t *testing.T, at place) {
	all := [][2]tensor.Type{{tensor.I8}, {tensor.Q4_0}, {tensor.I8, tensor.Q4_0}}
	if at.device != nil {
		all = all[:1]
	}
	rapid.Check(t, func(t *rapid.T) {
		types := rapid.SampledFrom(all).Draw(t, "types")
		s := &sim{at: at, o: at.options(Options{
			Layers: 2, KVHeads: 2, Type: types[0], Values: types[1], PageEntries: 16,
			HeadDim: rapid.SampledFrom([]int{32, 96}).Draw(t, "head dim"),
			Windows: []int{0, 60}, WideKeys: rapid.SampledFrom([][]bool{nil, {false, true}, {true, false}, {true, true}}).Draw(t, "wide keys"),
		})}
		s.run(t)
	})
}

func (s *sim) run(t *rapid.T) {
	c, err := New(s.o)
	require.NoError(t, err)
	s.caches = []*Cache{c}
	s.naive = []*naiveCache{{heads: make([][]naiveEntry, 4), base: make([]int, 4), drop: []int32{-1, -1, -1, -1}}}
	defer func() {
		for _, c := range s.caches {
			require.NoError(t, c.Close())
		}
	}()
	t.Repeat(rapid.StateMachineActions(s))
}
