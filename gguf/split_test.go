package gguf

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// partOf returns a file of several with one tensor of its own.
func partOf(no, count, total uint16, name string) *image {
	u16 := func(v uint16) []byte { return binary.LittleEndian.AppendUint16(nil, v) }
	m := &image{version: 3, data: make([]byte, 32)}
	m.keys = append(m.keys, pair("split.no", kindU16, u16(no)...), pair("split.count", kindU16, u16(count)...),
		pair("split.tensors.count", kindI32, u32(uint32(total))...))
	m.tensor(name, F32, 0, 8)
	binary.LittleEndian.PutUint32(m.data, 0x3f800000+uint32(no))
	return m
}

// writeParts writes files of a model of len(parts) parts, without those that are nil.
func writeParts(t *testing.T, parts ...*image) string {
	dir := t.TempDir()
	for i, m := range parts {
		if m != nil {
			path := filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i+1, len(parts)))
			require.NoError(t, os.WriteFile(path, m.bytes(), 0o666))
		}
	}
	return filepath.Join(dir, fmt.Sprintf("m-00001-of-%05d.gguf", len(parts)))
}

func TestParts(t *testing.T) {
	first := writeParts(t, partOf(0, 3, 3, "a"), partOf(1, 3, 3, "b"), partOf(2, 3, 3, "c"))
	f, err := Open(first)
	require.NoError(t, err)
	require.Len(t, f.Parts(), 3)
	for i, name := range []string{"a", "b", "c"} {
		x := f.Tensor(name)
		require.NotNil(t, x)
		require.Equal(t, f.Parts()[i], x.File)
		require.Equal(t, uint32(0x3f800000+i), binary.LittleEndian.Uint32(x.Data), "its own data")
	}
	require.Len(t, f.Tensors(), 3)
	f.WillNeed(1 << 20)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())

	_, err = Open(filepath.Join(filepath.Dir(first), "m-00002-of-00003.gguf"))
	require.ErrorContains(t, err, "part 2 of 3: open the first part")

	alone := writeParts(t, partOf(0, 1, 1, "a"))
	f, err = Open(alone)
	require.NoError(t, err, "one part is a whole model")
	require.NoError(t, f.Close())
}

func TestPartsThatDoNotFit(t *testing.T) {
	for want, parts := range map[string][]*image{
		"m-00002-of-00002.gguf":                          {partOf(0, 2, 2, "a"), nil},
		`"split.count": found 3, expected 2`:             {partOf(0, 2, 2, "a"), partOf(1, 3, 2, "b")},
		`"split.no": found 0, expected 1`:                {partOf(0, 2, 2, "a"), partOf(0, 2, 2, "b")},
		`tensor "a" is also in`:                          {partOf(0, 2, 2, "a"), partOf(1, 2, 2, "a")},
		"3 tensors, but the 2 files have 2":              {partOf(0, 2, 3, "a"), partOf(1, 2, 3, "b")},
		`"split.count": first of 4 files`:                {partOf(0, 4, 2, "a"), partOf(1, 4, 2, "b")},
		`"split.count": found 60000, expected 1 to 1024`: {partOf(0, 60000, 2, "a"), partOf(1, 2, 2, "b")},
		`"split.no": found 9, expected 0 to 1`:           {partOf(9, 2, 2, "a"), partOf(1, 2, 2, "b")},
		`"split.tensors.count": found 0, expected 1 to`:  {partOf(0, 2, 0, "a"), partOf(1, 2, 0, "b")},
	} {
		_, err := Open(writeParts(t, parts...))
		require.ErrorContains(t, err, want)
	}
}

func TestPartNumber(t *testing.T) {
	before, after, number, count, ok := partNumber("/x/UD-Q4_K_XL/m-00002-of-00013.gguf")
	require.True(t, ok)
	require.Equal(t, "/x/UD-Q4_K_XL/m-", before)
	require.Equal(t, "-of-00013.gguf", after)
	require.Equal(t, [2]int{2, 13}, [2]int{number, count})
	for _, path := range []string{"m.gguf", "m-2-of-13.gguf", "m-00002-of-00013", "00002-of-00013.gguf.part"} {
		_, _, _, _, ok := partNumber(path)
		require.False(t, ok, path)
	}
}
