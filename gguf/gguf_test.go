package gguf

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/safetensors"
)

// golden is the folder of golden files.
func golden() string { return cmp.Or(os.Getenv("LUKV_GOLDEN_QUANT"), "testdata") }

// TestGoldenBlocks compares every element of every type bit for bit with the
// value that an independent program computed. For the larger file the repository
// holds only hashes of the values; LUKV_GOLDEN_QUANT names a folder that has all
// of them.
func TestGoldenBlocks(t *testing.T) {
	checks := 0
	seen := map[Type]bool{}
	for _, name := range []string{"gguf", "gguf_legacy"} {
		dir := filepath.Join(golden(), name)
		f, err := Open(filepath.Join(dir, "model.gguf"))
		require.NoError(t, err)
		defer f.Close()
		hashes, err := os.ReadFile(filepath.Join(dir, "expected.sha256"))
		if err != nil {
			hashes = nil
		}
		var want *safetensors.File
		if hashes == nil {
			want, err = safetensors.Open(filepath.Join(dir, "expected.safetensors"))
			require.NoError(t, err)
			defer want.Close()
		}
		for _, x := range f.Tensors() {
			rows := len(x.Data) / (x.rowLength() / blocks[x.Type].elements * blocks[x.Type].bytes)
			got := make([]float32, rows*x.rowLength())
			require.NoError(t, x.Rows(got, 0, rows))
			checks += len(got)
			if hashes != nil {
				var raw []byte
				for _, v := range got {
					raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
				}
				require.Contains(t, string(hashes), fmt.Sprintf("%x  %s\n", sha256.Sum256(raw), x.Name), "%s", x.Type)
			} else {
				w, ok := want.Tensor(x.Name)
				require.True(t, ok, x.Name)
				require.Equal(t, w.Shape, x.Shape)
				for i, v := range w.Float32s(nil) {
					if math.Float32bits(v) != math.Float32bits(got[i]) {
						t.Fatalf("%s, %s, element %d: want %v, got %v", x.Name, x.Type, i, v, got[i])
					}
				}
			}
			// A row read alone is the same as among others.
			one := make([]float32, x.rowLength())
			require.NoError(t, x.Rows(one, rows-1, 1))
			require.Equal(t, got[len(got)-len(one):], one)
			seen[x.Type] = true
		}
	}
	for _, want := range []Type{F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K} {
		require.True(t, seen[want], "%s", want)
	}
	fmt.Printf("golden gguf: %d checks\n", checks)
}

// image builds a file from encoded keys, tensors and data.
type image struct {
	version       uint32
	keys, tensors [][]byte
	data          []byte
}

func text(s string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(s))), s...)
}

func pair(key string, k kind, data ...byte) []byte {
	return append(binary.LittleEndian.AppendUint32(text(key), uint32(k)), data...)
}

func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

func (m *image) tensor(name string, typ Type, offset uint64, dims ...uint64) {
	b := binary.LittleEndian.AppendUint32(text(name), uint32(len(dims)))
	for _, d := range dims {
		b = binary.LittleEndian.AppendUint64(b, d)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(typ))
	m.tensors = append(m.tensors, binary.LittleEndian.AppendUint64(b, offset))
}

func (m *image) bytes() []byte {
	b := append([]byte("GGUF"), u32(m.version)...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(m.tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(m.keys)))
	for _, x := range append(m.keys, m.tensors...) {
		b = append(b, x...)
	}
	for len(b)%32 != 0 {
		b = append(b, 0)
	}
	return append(b, m.data...)
}

func sample() *image {
	m := &image{version: 3, data: make([]byte, 96)}
	m.keys = [][]byte{
		pair("u8", kindU8, 7), pair("i16", kindI16, 0xff, 0xff), pair("u64", kindU64, 1, 0, 0, 0, 0, 0, 0, 0),
		pair("f32", kindF32, 0, 0, 0x80, 0x3f), pair("yes", kindBool, 1), pair("name", kindText, text("é")...),
		pair("texts", kindArray, append(append(u32(uint32(kindText)), 2, 0, 0, 0, 0, 0, 0, 0), append(text("a"), text("")...)...)...),
		pair("ints", kindArray, append(append(u32(uint32(kindI32)), 1, 0, 0, 0, 0, 0, 0, 0), 0xfe, 0xff, 0xff, 0xff)...),
	}
	m.tensor("a", F32, 0, 3, 2)
	m.tensor("b", Q4_0, 32, 32)
	m.tensor("c", 10, 64, 0) // removed below
	m.tensors = m.tensors[:2]
	return m
}

func TestValues(t *testing.T) {
	for _, version := range []uint32{2, 3} {
		m := sample()
		m.version = version
		f, err := Parse("x", m.bytes())
		require.NoError(t, err)
		n, err := f.Uint("u8")
		require.NoError(t, err)
		assert.Equal(t, uint64(7), n)
		n, err = f.Uint("u64")
		require.NoError(t, err)
		assert.Equal(t, uint64(1), n)
		_, err = f.Uint("i16")
		assert.ErrorContains(t, err, `"i16": -1 is out of range`)
		x, err := f.Float("f32")
		require.NoError(t, err)
		assert.Equal(t, 1.0, x)
		yes, err := f.Bool("yes")
		require.NoError(t, err)
		assert.True(t, yes)
		s, err := f.Text("name")
		require.NoError(t, err)
		assert.Equal(t, "é", s)
		texts, err := f.Texts("texts")
		require.NoError(t, err)
		assert.Equal(t, []string{"a", ""}, texts)
		ints, err := f.Ints("ints")
		require.NoError(t, err)
		assert.Equal(t, []int64{-2}, ints)
		_, err = f.Texts("ints")
		assert.ErrorContains(t, err, "found an array of 1 × i32, expected an array of texts")
		_, err = f.Text("none")
		assert.ErrorContains(t, err, `key "none" is missing`)
		assert.Equal(t, []int{2, 3}, f.Tensor("a").Shape)
		assert.Nil(t, f.Tensor("c"))
	}
}

// Files that lie are refused with an error that names the fault, and cost no more
// memory than their size.
func TestHostile(t *testing.T) {
	edit := func(f func(m *image)) []byte {
		m := sample()
		f(m)
		return m.bytes()
	}
	counts := func(at int, n uint64) []byte {
		b := sample().bytes()
		binary.LittleEndian.PutUint64(b[at:], n)
		return b
	}
	const huge = math.MaxUint64 - 7
	for want, data := range map[string][]byte{
		"expected at least 24":                 []byte("GGUF"),
		`expected the magic`:                   append([]byte("GGML"), sample().bytes()[4:]...),
		"version 1":                            edit(func(m *image) { m.version = 1 }),
		"big-endian":                           edit(func(m *image) { m.version = 3 << 24 }),
		"18446744073709551608 tensors":         counts(8, huge),
		"18446744073709551608 keys":            counts(16, huge),
		"ends inside its header":               sample().bytes()[:100],
		"a name of 18446744073709551608 bytes": counts(24, huge),
		`"u8" appears twice`:                   edit(func(m *image) { m.keys = append(m.keys, m.keys[0]) }),
		`"a" appears twice`:                    edit(func(m *image) { m.tensors = append(m.tensors, m.tensors[0]) }),
		"array of arrays": edit(func(m *image) {
			m.keys = append(m.keys, pair("x", kindArray, append(u32(uint32(kindArray)), make([]byte, 8)...)...))
		}),
		"an array of 18446744073709551615 elements": edit(func(m *image) {
			m.keys = append(m.keys, pair("x", kindArray, append(u32(uint32(kindU64)), bytes.Repeat([]byte{255}, 8)...)...))
		}),
		"a value of type 13":         edit(func(m *image) { m.keys = append(m.keys, pair("x", 13)) }),
		`"general.alignment": 7`:     edit(func(m *image) { m.keys = append(m.keys, pair("general.alignment", kindU8, 7)) }),
		"5 dimensions":               edit(func(m *image) { m.tensor("x", F32, 64, 1, 1, 1, 1, 1) }),
		"0 dimensions":               edit(func(m *image) { m.tensor("x", F32, 64) }),
		"dimension 0":                edit(func(m *image) { m.tensor("x", F32, 64, 0) }),
		"dimension 4294967296":       edit(func(m *image) { m.tensor("x", F32, 64, 1<<32) }),
		"type 77 is not known":       edit(func(m *image) { m.tensor("x", 77, 64, 1) }),
		"type 36 (IQ4_NL_4_4) was":   edit(func(m *image) { m.tensor("x", 36, 64, 1) }),
		"the fork ik_llama.cpp":      edit(func(m *image) { m.tensor("x", 97, 64, 1) }),
		"a multiple of 32":           edit(func(m *image) { m.tensor("x", F32, 65, 1) }),
		"rows of 33 elements":        edit(func(m *image) { m.tensor("x", Q4_0, 64, 33) }),
		"overlap another tensor's":   edit(func(m *image) { m.tensor("x", F32, 32, 1) }),
		"truncated or damaged":       edit(func(m *image) { m.tensor("x", F32, 64, 9) }),
		`"far": its 4 bytes at 9223`: edit(func(m *image) { m.tensor("far", F32, 1<<63, 1) }),
		`"big"`:                      edit(func(m *image) { m.tensor("big", F32, 64, 1<<30, 1<<30, 1<<30) }),
	} {
		_, err := Parse("bad.gguf", data)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "bad.gguf")
	}
	f, err := Parse("x", edit(func(m *image) { m.tensor("odd", 24, 64, 4) }))
	require.NoError(t, err, "a type that is known is not read until it is asked for")
	require.ErrorContains(t, f.Tensor("odd").Rows(make([]float32, 4), 0, 1), `"odd": the type I8 is not supported`)
	require.False(t, f.Tensor("odd").Type.Readable())
	_, err = Open(t.TempDir())
	require.Error(t, err)
}

// seeds are the files that mutations start from.
func seeds() [][]byte {
	out := [][]byte{sample().bytes()}
	for _, name := range []string{"gguf", "gguf_legacy"} {
		if data, err := os.ReadFile(filepath.Join("testdata", name, "model.gguf")); err == nil {
			out = append(out, data[:min(len(data), 4000)])
		}
	}
	return out
}

// readAll reads everything in a file. None of it may panic, and whatever Parse
// accepts can be read.
func readAll(data []byte) error {
	file, err := Parse("x", data)
	if err != nil {
		return nil
	}
	for key, v := range file.values {
		file.Uint(key)
		file.Float(key)
		file.Bool(key)
		file.Text(key)
		file.Texts(key)
		file.Ints(key)
		file.Floats(key)
		_ = v.String()
	}
	for _, x := range file.Tensors() {
		if x.Type.Readable() {
			if err := x.Rows(make([]float32, x.rowLength()), 0, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

func FuzzParse(f *testing.F) {
	for _, data := range seeds() {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		if err := readAll(data); err != nil {
			t.Fatal(err)
		}
	})
}

var mutations = flag.Int("mutations", 20_000, "mutated files that TestMutations reads")

// Files that differ from a good one in lengths, counts, offsets, types or anything
// else, or are truncated or extended, are read or refused: go test ./gguf -run
// Mutations -mutations 1000000 reads a million.
func TestMutations(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	values := []uint64{0, 1, 2, 3, 8, 12, 31, 32, 33, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 40, 1<<62 + 1, 1<<63 - 1, 1 << 63, 1<<64 - 32, 1<<64 - 1}
	all := seeds()
	read := 0
	for range *mutations {
		data := bytes.Clone(all[random.IntN(len(all))])
		for range 1 + random.IntN(4) {
			if len(data) == 0 {
				break
			}
			at := random.IntN(min(len(data), 16<<random.IntN(9))) // mostly the header
			switch random.IntN(6) {
			case 0:
				data[at] ^= 1 << random.IntN(8)
			case 1:
				data[at] = byte(random.Uint32())
			case 2:
				copy(data[at:], binary.LittleEndian.AppendUint64(nil, values[random.IntN(len(values))]))
			case 3:
				copy(data[at:], binary.LittleEndian.AppendUint32(nil, uint32(values[random.IntN(len(values))])))
			case 4:
				data = data[:at]
			case 5:
				n := min(len(data)-at, random.IntN(64))
				data = slices.Insert(data, at, data[at:at+n]...)
			}
		}
		if err := readAll(data); err != nil {
			require.NoError(t, err, "%x", data)
		}
		if _, err := Parse("x", data); err == nil {
			read++
		}
	}
	t.Logf("%d files, of which %d could be read", *mutations, read)
	require.Positive(t, read)
	require.Less(t, read, *mutations/2)
}
