package safetensors

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/tensor"
)

// Whatever is written can be read back, is aligned, and does not depend on the order
// of metadata or on streaming.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		meta := rapid.MapOfN(rapid.String(), rapid.String(), 0, 4).Draw(t, "meta")
		names := rapid.SliceOfNDistinct(rapid.String().Filter(func(s string) bool { return s != metaName }), 0, 6, rapid.ID).Draw(t, "names")
		var list, streamed []Named
		for _, name := range names {
			typ := tensor.Type(rapid.IntRange(int(tensor.F32), int(tensor.C64)).Draw(t, "type"))
			shape := rapid.SliceOfN(rapid.IntRange(0, 4), 0, 3).Draw(t, "shape")
			x := tensor.Make(typ, shape...)
			copy(x.Data, rapid.SliceOfN(rapid.Byte(), len(x.Data), len(x.Data)).Draw(t, "data"))
			list = append(list, Named{Name: name, Tensor: x})
			streamed = append(streamed, Named{Name: name, Tensor: tensor.Tensor{Type: typ, Shape: shape},
				Stream: func(w io.Writer) error {
					for d := range slices.Chunk(x.Data, 3) {
						if _, err := w.Write(d); err != nil {
							return err
						}
					}
					return nil
				}})
		}
		var a, b bytes.Buffer
		require.NoError(t, Write(&a, list, meta))
		require.NoError(t, Write(&b, streamed, maps.Clone(meta)))
		require.Equal(t, a.Bytes(), b.Bytes())
		size, err := Size(streamed, meta)
		require.NoError(t, err)
		require.EqualValues(t, a.Len(), size)
		f, err := Parse("x", a.Bytes())
		require.NoError(t, err)
		require.Equal(t, len(list), f.Len())
		require.Equal(t, meta, f.Metadata())
		for _, want := range list {
			got, ok := f.Tensor(want.Name)
			require.True(t, ok)
			require.Equal(t, want.Tensor.String(), got.String())
			require.True(t, bytes.Equal(want.Tensor.Data, got.Data))
		}
		offset := a.Len()
		for _, m := range slices.Backward(f.tensors) {
			offset -= len(m.tensor.Data)
			require.Zero(t, offset%m.tensor.Type.Align(), "alignment of %v", m.tensor)
		}
		require.Zero(t, offset%8, "the data begin at a multiple of 8")
	})
}

func TestWriteKeepsOrderWithinSize(t *testing.T) {
	list := []Named{{Name: "u", Tensor: tensor.Make(tensor.U8, 1)}, {Name: "z", Tensor: tensor.Make(tensor.F32, 1)},
		{Name: "h", Tensor: tensor.Make(tensor.BF16, 1)}, {Name: "a", Tensor: tensor.Make(tensor.I32, 1)},
		{Name: "s", Tensor: tensor.Make(tensor.Bool, 1)}}
	var buf bytes.Buffer
	require.NoError(t, Write(&buf, list, nil))
	f, err := Parse("x", buf.Bytes())
	require.NoError(t, err)
	var names []string
	for name := range f.All() {
		names = append(names, name)
	}
	assert.Equal(t, []string{"z", "a", "h", "u", "s"}, names)
	assert.Equal(t, "u", list[0].Name, "the caller's slice stays as it was")
}

func TestWriteRefuses(t *testing.T) {
	ok := tensor.Make(tensor.F32, 2)
	stream := func(n int) func(io.Writer) error {
		return func(w io.Writer) error { _, err := w.Write(make([]byte, n)); return err }
	}
	boom := errors.New("boom")
	cases := map[string]struct {
		list []Named
		meta map[string]string
		want string
	}{
		"name twice":    {[]Named{{Name: "a", Tensor: ok}, {Name: "a", Tensor: ok}}, nil, "used twice"},
		"reserved name": {[]Named{{Name: metaName, Tensor: ok}}, nil, "reserved"},
		"bad name":      {[]Named{{Name: "\xff", Tensor: ok}}, nil, "UTF-8"},
		"bad key":       {nil, map[string]string{"\xff": ""}, "UTF-8"},
		"bad value":     {nil, map[string]string{"k": "\xff"}, "UTF-8"},
		"zero tensor":   {[]Named{{Name: "a"}}, nil, "invalid"},
		"short data":    {[]Named{{Name: "a", Tensor: tensor.Tensor{Type: tensor.F32, Shape: []int{2}, Data: ok.Data[:7]}}}, nil, "expected 8"},
		"negative dim":  {[]Named{{Name: "a", Tensor: tensor.Tensor{Type: tensor.F32, Shape: []int{-2}}}}, nil, "negative"},
		"short stream":  {[]Named{{Name: "a", Tensor: ok, Stream: stream(7)}}, nil, "1 bytes early"},
		"long stream":   {[]Named{{Name: "a", Tensor: ok, Stream: stream(9)}}, nil, "1 bytes more"},
		"failed stream": {[]Named{{Name: "a", Tensor: ok, Stream: func(io.Writer) error { return boom }}}, nil, "boom"},
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	for name, c := range cases {
		assert.ErrorContains(t, Write(io.Discard, c.list, c.meta), c.want, name)
		if _, err := Size(c.list, c.meta); !strings.HasSuffix(name, "stream") {
			assert.ErrorContains(t, err, c.want, name)
		}
		err := WriteFile(path, c.list, c.meta)
		assert.ErrorContains(t, err, c.want, name)
		assert.ErrorContains(t, err, path, name)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Len(t, left, 1, "%s: nothing half-written is left", name)
		old, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, "old", string(old), name)
	}
	assert.Error(t, WriteFile(filepath.Join(dir, "missing", "f"), nil, nil))
}

func TestWriteFileReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, v := range []float32{1, 2} {
		list := []Named{{Name: "a", Tensor: tensor.FromF32s(tensor.F32, []float32{v}, 1)}}
		require.NoError(t, WriteFile(path, list, map[string]string{"k": "v"}))
		f, err := Open(path)
		require.NoError(t, err)
		x, _ := f.Tensor("a")
		assert.Equal(t, []float32{v}, x.F32s())
		require.NoError(t, f.Close())
	}
}
