package kvcache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/internal/mapfile"
	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// sample returns a ragged cache: a window with dropped entries, a head with
// evictions, an empty head.
func sample(t testing.TB, at place, typ tensor.Type) *Cache {
	c := at.open(t, Options{Layers: 2, KVHeads: 2, HeadDim: 6, Type: typ, PageEntries: 16, Windows: []int{0, 24}})
	add(t, c, 0, 0, 0, 50)
	require.NoError(t, c.Keep(0, 0, []int32{0, 7, 8, 30, 49}))
	add(t, c, 1, 0, 0, 50)
	add(t, c, 1, 1, 0, 32)
	c.DropBefore(1, 32)
	return c
}

func wantSample(t testing.TB, c *Cache) {
	wantHead(t, c, 0, 0, 0, []int32{0, 7, 8, 30, 49})
	wantHead(t, c, 0, 1, 0, nil)
	wantHead(t, c, 1, 0, 32, span(32, 50))
	wantHead(t, c, 1, 1, 32, nil)
	require.EqualValues(t, 31, c.LastPosition(1, 1))
	require.NoError(t, c.Check())
}

func saved(t testing.TB, c *Cache, meta map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, c.Save(t.Context(), &b, meta))
	return b.Bytes()
}

// load returns the cache that Save wrote as data, and the metadata given to it.
func load(ctx context.Context, name string, data []byte, o Options) (*Cache, map[string]string, error) {
	f, err := newFile(name, &source{data: data})
	if err != nil {
		return nil, nil, err
	}
	return f.only(ctx, o)
}

func TestSaveLoad(t *testing.T) { everywhere(t, testSaveLoad) }

func testSaveLoad(t *testing.T, at place) {
	meta := map[string]string{"model": "m", "ratio": "0.8", "note": "ä\n\"\x01"}
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		file := saved(t, sample(t, at, typ), meta)
		for _, pages := range []int{0, 16, 32} {
			c, got, err := load(t.Context(), "x", file, at.options(Options{PageEntries: pages}))
			require.NoError(t, err)
			require.Equal(t, meta, got)
			wantSample(t, c)
			o := c.Options()
			want := at.options(Options{Layers: 2, KVHeads: 2, HeadDim: 6, Type: typ, PageEntries: max(16, pages), Windows: []int{0, 24}})
			if at.device != nil && at.layers == 0 {
				want.DeviceLayers = 2
			}
			want.CPU = o.CPU
			require.Equal(t, want, o)
			add(t, c, 1, 1, 32, 60)
			wantHead(t, c, 1, 1, 32, span(32, 60))
			require.NoError(t, c.Close())
			same, _, err := load(t.Context(), "x", file, o)
			require.NoError(t, err, "the options of a loaded cache fit")
			require.NoError(t, same.Close())
		}
		_, _, err := load(t.Context(), "x", file, at.options(Options{PageEntries: 64}))
		require.ErrorContains(t, err, "whole pages of 64")
		_, _, err = load(t.Context(), "x", file, at.options(Options{MaxBytes: 100}))
		require.ErrorIs(t, err, ErrFull)
		// Unaligned data loads as well.
		c, _, err := load(t.Context(), "x", append([]byte{0}, file...)[1:], at.options(Options{}))
		require.NoError(t, err)
		wantSample(t, c)
		require.NoError(t, c.Close())
	}
}

// TestLoadOnlyReads loads from memory that must not be written.
func TestLoadOnlyReads(t *testing.T) { everywhere(t, testLoadOnlyReads) }

func testLoadOnlyReads(t *testing.T, at place) {
	path := filepath.Join(t.TempDir(), "cache")
	require.NoError(t, sample(t, at, tensor.BF16).SaveFile(t.Context(), path, nil))
	m, err := mapfile.Open(path)
	require.NoError(t, err)
	defer m.Close()
	c, _, err := load(t.Context(), "x", m.Bytes(), at.options(Options{}))
	require.NoError(t, err)
	wantSample(t, c)
	require.NoError(t, c.Close())
}

// TestFileHoldsRows: keys and values are in the file row by row and are read back from it,
// also where tensors or pages are longer than what is read at a time and tiles are partial.
func TestFileHoldsRows(t *testing.T) {
	for _, o := range []Options{
		{HeadDim: 64, Type: tensor.BF16}, {HeadDim: 64, Type: tensor.F32, PageEntries: 1024}, {HeadDim: 10, Type: tensor.F16, PageEntries: 16},
	} {
		o.Layers, o.KVHeads = 1, 2
		c := open(t, o)
		add(t, c, 0, 0, 0, 1111)
		add(t, c, 0, 1, 5, 22)
		file := saved(t, c, nil)
		f, err := safetensors.Parse("x", file)
		require.NoError(t, err)
		for _, pages := range []int{16, 1024} {
			d, err := loadedFrom(t, file, pages)
			require.NoError(t, err)
			for h := range 2 {
				n := c.Len(0, h)
				require.NotZero(t, n)
				keys, _ := f.Tensor(partName(h, 2, "keys"))
				values, _ := f.Tensor(partName(h, 2, "values"))
				require.Equal(t, c.Keys(0, h, 0, n, nil), keys.Float32s(nil))
				require.Equal(t, c.Values(0, h, 0, n, nil), values.Float32s(nil))
				require.Equal(t, c.Keys(0, h, 0, n, nil), d.Keys(0, h, 0, n, nil))
				require.Equal(t, c.Values(0, h, 0, n, nil), d.Values(0, h, 0, n, nil))
				require.Equal(t, c.Positions(0, h, nil), d.Positions(0, h, nil))
			}
			require.NoError(t, d.Close())
		}
	}
}

// loadedFrom loads a file through an io.ReaderAt, with the given entries per page.
func loadedFrom(t testing.TB, file []byte, pages int) (*Cache, error) {
	f, err := NewFile("x", bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	defer f.Close()
	c, _, err := f.Load(t.Context(), Options{PageEntries: pages})
	return c, err
}

func TestLoadRefusesOtherShapes(t *testing.T) {
	file := saved(t, sample(t, place{}, tensor.F16), nil)
	for want, o := range map[string]Options{
		"layers: found 2, expected 3":                      {Layers: 3},
		"KV heads: found 2, expected 1":                    {KVHeads: 1},
		"head dimension: found 6, expected 8":              {HeadDim: 8},
		"element type: found F16, expected BF16":           {Type: tensor.BF16},
		"found 24 in layer 1, expected windows [0 0]":      {Windows: []int{0, 0}},
		"found 0 in layer 0, expected windows [1]":         {Windows: []int{1}},
		"8 entries per page, expected a power of two from": {PageEntries: 8},
	} {
		_, _, err := load(t.Context(), "some.cache", file, o)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `"some.cache"`)
	}
}

// TestDamage alters every byte of a file, and truncates it to every length.
func TestDamage(t *testing.T) { everywhere(t, testDamage) }

func testDamage(t *testing.T, at place) {
	file := saved(t, sample(t, at, tensor.BF16), map[string]string{"k": "v"})
	live := arena.Live()
	refused := 0
	try := func(b []byte, what string, i int) {
		c, _, err := load(t.Context(), "x", b, at.options(Options{}))
		if err == nil {
			require.NoError(t, c.Close())
			t.Fatalf("%s at %d of %d: loaded", what, i, len(file))
		}
		refused++
	}
	b := bytes.Clone(file)
	for i := range b {
		for _, bit := range []byte{0x01, 0x04, 0x20, 0x80} {
			b[i] ^= bit
			try(b, "flipped bit", i)
			b[i] ^= bit
		}
		try(b[:i], "cut", i)
	}
	try(append(b, 0), "longer", len(b))
	require.Equal(t, live, arena.Live(), "memory after refused files")
	require.Equal(t, 5*len(file)+1, refused)
	t.Logf("%d damaged files refused", refused)
}

// forge writes a file as Save does, with a correct checksum, but changes the tensors.
func forge(t testing.TB, c *Cache, change func(s []safetensors.Named) []safetensors.Named, meta map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	s, sum := c.sources(t.Context(), nil)
	require.NoError(t, safetensors.Write(io.MultiWriter(&b, sum), change(s), meta))
	return b.Bytes()
}

func TestLoadRefusesContradictions(t *testing.T) { everywhere(t, testLoadRefusesContradictions) }

func testLoadRefusesContradictions(t *testing.T, at place) {
	c := sample(t, at, tensor.F32)
	find := func(s []safetensors.Named, name string) *safetensors.Named {
		i := slices.IndexFunc(s, func(n safetensors.Named) bool { return n.Name == name })
		require.GreaterOrEqual(t, i, 0, name)
		return &s[i]
	}
	type sources = []safetensors.Named
	i64 := func(name string, i int, v int64) func(sources) sources {
		return func(s sources) sources {
			binary.LittleEndian.PutUint64(find(s, name).Tensor.Data[8*i:], uint64(v))
			return s
		}
	}
	drop := func(name string) func(sources) sources {
		return func(s sources) sources {
			return slices.DeleteFunc(s, func(n safetensors.Named) bool { return n.Name == name })
		}
	}
	reshape := func(name string, typ tensor.Type, shape ...int) func(sources) sources {
		return func(s sources) sources {
			*find(s, name) = safetensors.Named{Name: name, Tensor: tensor.Make(typ, shape...)}
			return s
		}
	}
	positions := func(v ...uint32) func(sources) sources {
		return func(s sources) sources {
			x := tensor.Make(tensor.I32, len(v))
			for i, p := range v {
				binary.LittleEndian.PutUint32(x.Data[4*i:], p)
			}
			*find(s, "layer.0.head.0.positions") = safetensors.Named{Name: "layer.0.head.0.positions", Tensor: x}
			return s
		}
	}
	good := map[string]string{formatKey: formatVersion}
	for _, x := range []struct {
		want   string
		change func(sources) sources
	}{
		{"layers: found 0", i64("options", 0, 0)},
		{"layers: found -1", i64("options", 0, -1)},
		{"2 windows for 3 layers", i64("options", 0, 3)},
		{"KV heads: found 4611686018427387904", i64("options", 1, 1<<62)},
		{"pairs", i64("options", 1, 1)},
		{"head dimension 7", i64("options", 2, 7)},
		{"expected F32[5, 4]", i64("options", 2, 4)},
		{"entries per page: found 5", i64("options", 3, 5)},
		{"entries per page, expected a power of two", i64("options", 3, 17)},
		{"window of layer 0: found -1", i64("windows", 0, -1)},
		{"without a window", i64("windows", 1, 0)},
		{"up to position 0 in a layer without a window", i64("pairs", 2, 0)},
		{"window of layer 1: found 2147483648", i64("windows", 1, math.MaxInt32+1)},
		{"layer 0 head 0: found -1 entries", i64("pairs", 0, -1)},
		{"layer 1 head 1: found -1 entries", i64("pairs", 9, -1)},
		{"expected I32[6]", i64("pairs", 0, 6)},
		{"expected I32[1000000000]", i64("pairs", 0, 1e9)},
		{"33 entries dropped up to position 31", i64("pairs", 7, 33)},
		{"whole pages", i64("pairs", 7, 8)},
		{"-16 entries dropped", i64("pairs", 7, -16)},
		{"up to position -2", i64("pairs", 8, -2)},
		{"position 32 of entry 0 is not above 40", i64("pairs", 8, 40)},
		{`tensor "options" is missing`, drop("options")},
		{`tensor "windows" is missing`, drop("windows")},
		{`tensor "pairs"`, drop("pairs")},
		{`tensor "sha256"`, drop("sha256")},
		{`layer.0.head.0.keys" is missing`, drop("layer.0.head.0.keys")},
		{"layer.1.head.0.values", drop("layer.1.head.0.values")},
		{"expected I64 with one dimension", reshape("options", tensor.I64, 2, 2)},
		{"expected I64 with one dimension", reshape("options", tensor.I32, 4)},
		{"element type I16", reshape("layer.0.head.0.keys", tensor.I16, 5, 6)},
		{"expected F32[5, 6]", reshape("layer.0.head.0.values", tensor.F16, 5, 6)},
		{"expected F32[5, 6]", reshape("layer.0.head.0.values", tensor.F32, 6, 5)},
		{"expected U8[32]", reshape("sha256", tensor.U8, 31)},
		{"checksum", reshape("sha256", tensor.U8, 32)},
		{"found 17 tensors, expected 16", func(s sources) sources {
			return append(sources{{Name: "more", Tensor: tensor.Make(tensor.I64, 1)}}, s...)
		}},
		{"position 7 of entry 2 is not above 7", positions(0, 7, 7, 30, 49)},
		{"position -1 of entry 4", positions(0, 7, 8, 30, 0xffffffff)},
	} {
		live := arena.Live()
		_, _, err := load(t.Context(), "x", forge(t, c, x.change, good), at.options(Options{}))
		require.ErrorContains(t, err, x.want)
		require.Equal(t, live, arena.Live())
	}
	same := func(s sources) sources { return s }
	for want, meta := range map[string]map[string]string{
		"not a saved cache":                {"a": "b"},
		`format version "2", expected "1"`: {formatKey: "2"},
	} {
		_, _, err := load(t.Context(), "x", forge(t, c, same, meta), at.options(Options{}))
		require.ErrorContains(t, err, want)
	}
	loaded, _, err := load(t.Context(), "x", forge(t, c, same, good), at.options(Options{}))
	require.NoError(t, err)
	wantSample(t, loaded)
	require.NoError(t, loaded.Close())
	loaded, _, err = load(t.Context(), "x", forge(t, c, i64("windows", 1, math.MaxInt32), good), at.options(Options{}))
	require.NoError(t, err, "the largest window")
	require.Equal(t, math.MaxInt32, loaded.Options().Windows[1])
	require.NoError(t, loaded.Close())
	require.ErrorContains(t, c.Save(t.Context(), io.Discard, good), "reserved")
}

// TestChecksumComesLast puts the checksum before what it covers.
func TestChecksumComesLast(t *testing.T) {
	f, err := safetensors.Parse("x", saved(t, sample(t, place{}, tensor.F32), nil))
	require.NoError(t, err)
	type entry struct {
		Type    string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header := map[string]any{"__metadata__": f.Metadata()}
	var data []byte
	put := func(name string, x tensor.Tensor) {
		header[name] = entry{x.Type.String(), x.Shape, [2]int{len(data), len(data) + len(x.Data)}}
		data = append(data, x.Data...)
	}
	sum, _ := f.Tensor(sumName)
	put(sumName, sum)
	for name, x := range f.All() {
		if name != sumName {
			put(name, x)
		}
	}
	text, err := json.Marshal(header)
	require.NoError(t, err)
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	_, _, err = load(t.Context(), "x", append(append(file, text...), data...), Options{})
	require.ErrorContains(t, err, "follows the checksum")
}

// TestExtra: extra tensors are loaded with the cache, can be listed before, and are
// covered by the checksum; the size of the file is known beforehand.
func TestExtra(t *testing.T) {
	c := sample(t, place{}, tensor.BF16)
	meta := map[string]string{"model": "m"}
	extra := []safetensors.Named{
		{Name: "sums", Tensor: tensor.FromI64s([]int64{1, 2, 3}, 3)},
		{Name: "rows", Tensor: tensor.FromF32s(tensor.F32, []float32{4, 5}, 1, 2)},
		{Name: "none", Tensor: tensor.Make(tensor.F32, 0, 2)},
	}
	var file bytes.Buffer
	require.NoError(t, c.Save(t.Context(), &file, meta, extra...))
	size, err := c.SavedSize(meta, extra...)
	require.NoError(t, err)
	require.EqualValues(t, file.Len(), size)
	f, err := NewFile("x", bytes.NewReader(file.Bytes()), size)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, meta, f.Meta())
	listed := f.Extra()
	got, found, err := f.Load(t.Context(), Options{})
	require.NoError(t, err)
	defer got.Close()
	wantSample(t, got)
	require.Len(t, found, len(extra))
	for _, x := range extra {
		require.Equal(t, x.Tensor.String(), listed[x.Name].String())
		require.Equal(t, x.Tensor.Data, found[x.Name].Data)
	}
	// The cache can be loaded without them.
	alone, _, err := load(t.Context(), "x", file.Bytes(), Options{})
	require.NoError(t, err)
	require.NoError(t, alone.Close())
	at := bytes.Index(file.Bytes(), extra[0].Tensor.Data)
	require.Positive(t, at)
	damaged := bytes.Clone(file.Bytes())
	damaged[at] ^= 1
	_, _, err = load(t.Context(), "x", damaged, Options{})
	require.ErrorContains(t, err, "checksum")
	short, err := NewFile("short", bytes.NewReader(file.Bytes()[:size-40]), size)
	require.NoError(t, err, "the header is there")
	_, _, err = short.Load(t.Context(), Options{})
	require.ErrorContains(t, err, "became shorter")
	require.NoError(t, short.Close())
	_, err = NewFile("short", bytes.NewReader(file.Bytes()[:20]), 20)
	require.ErrorContains(t, err, "short")
	_, err = NewFile("negative", bytes.NewReader(nil), -1)
	require.Error(t, err)
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestSaveFile(t *testing.T) { everywhere(t, testSaveFile) }

func testSaveFile(t *testing.T, at place) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.cache")
	c := sample(t, at, tensor.F32)
	require.NoError(t, c.SaveFile(t.Context(), path, map[string]string{"n": "1"}))
	loaded, meta, err := LoadFile(t.Context(), path, at.options(Options{}))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"n": "1"}, meta)
	wantSample(t, loaded)

	// A failure leaves the old file and no other.
	require.ErrorContains(t, loaded.SaveFile(t.Context(), path, map[string]string{"n": "\xff"}), path)
	require.NoError(t, loaded.SaveFile(t.Context(), path, map[string]string{"n": "2"}))
	require.Error(t, loaded.SaveFile(t.Context(), filepath.Join(dir, "none", "a.cache"), nil))
	require.NoError(t, loaded.Close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	_, meta, err = LoadFile(t.Context(), path, at.options(Options{MaxBytes: 1}))
	require.ErrorIs(t, err, ErrFull)
	require.Nil(t, meta)
	_, _, err = LoadFile(t.Context(), filepath.Join(dir, "none"), Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, _, err = LoadFile(t.Context(), path, at.options(Options{}))
	require.ErrorContains(t, err, path)

	size := len(saved(t, c, nil))
	for _, n := range []int{0, size / 2, size - 1} {
		require.ErrorContains(t, c.Save(t.Context(), &failingWriter{n}, nil), "disk full")
	}
	require.NoError(t, c.Save(t.Context(), &failingWriter{size}, nil))
}

// TestSaveStreams checks that saving does not copy the cache.
func TestSaveStreams(t *testing.T) { everywhere(t, testSaveStreams) }

func testSaveStreams(t *testing.T, at place) {
	c := at.open(t, Options{Layers: 4, KVHeads: 4, HeadDim: 64})
	for i := range 16 {
		add(t, c, i/4, i%4, 0, 1024)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, c.Save(t.Context(), io.Discard, nil))
	runtime.ReadMemStats(&after)
	require.Greater(t, c.Bytes(), int64(8<<20))
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2<<20), "bytes allocated by Save")
}

func FuzzLoad(f *testing.F) {
	for _, typ := range []tensor.Type{tensor.F32, tensor.BF16} {
		c := sample(f, place{}, typ)
		file := saved(f, c, map[string]string{"model": "m"})
		f.Add(file)
		f.Add(file[:len(file)/2])
		f.Add(forge(f, c, func(s []safetensors.Named) []safetensors.Named { return s[1:] }, nil))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		defer testfuzz.Bound(t, len(file))()
		if len(file) > sha256.Size {
			// Fix the checksum of what the fuzzer made, or nothing past that check is reached.
			file = bytes.Clone(file)
			sum := sha256.Sum256(file[:len(file)-sha256.Size])
			copy(file[len(file)-sha256.Size:], sum[:])
		}
		live := arena.Live()
		c, meta, err := load(t.Context(), "fuzz", file, Options{MaxBytes: 1 << 24})
		if err != nil {
			require.Nil(t, c)
			require.Equal(t, live, arena.Live())
			return
		}
		defer c.Close()
		require.NoError(t, c.Check())
		again := saved(t, c, meta)
		d, _, err := load(t.Context(), "again", again, Options{})
		require.NoError(t, err)
		defer d.Close()
		require.True(t, bytes.Equal(again, saved(t, d, meta)))
	})
}
