package gguf

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func stream(b []byte) func(io.Writer) error {
	return func(w io.Writer) error { _, err := w.Write(b); return err }
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gguf")
	rows, err := Encode(nil, Q8_0, []float32{127, 31: -127, 32: 1, 63: 0}, 32, nil)
	require.NoError(t, err)
	require.NoError(t, WriteFile(path, []Pair{
		{"general.architecture", "llama"}, {"a.bool", true}, {"a.u16", uint16(7)}, {"a.u32", uint32(8)}, {"a.i32", int32(-9)},
		{"a.u64", uint64(1 << 40)}, {"a.f32", float32(0.5)}, {"a.texts", []string{"", "x"}}, {"a.ints", []int32{-1, 2}},
		{"a.bools", []bool{true, false}}, {"a.floats", []float32{1.5}},
	}, []Entry{
		{"odd", F32, []int{1}, stream([]byte{0, 0, 128, 63})},
		{"rows", Q8_0, []int{2, 32}, stream(rows)},
	}))
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Len(t, f.Tensors(), 2)
	require.Equal(t, []int{2, 32}, f.Tensor("rows").Shape)
	require.Equal(t, rows, f.Tensor("rows").Data)
	got := make([]float32, 1)
	require.NoError(t, f.Tensor("odd").Rows(got, 0, 1))
	require.Equal(t, float32(1), got[0])
	s, err := f.Text("general.architecture")
	require.NoError(t, err)
	require.Equal(t, "llama", s)
	for key, want := range map[string]uint64{"a.u16": 7, "a.u32": 8, "a.u64": 1 << 40} {
		n, err := f.Uint(key)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	texts, err := f.Texts("a.texts")
	require.NoError(t, err)
	require.Equal(t, []string{"", "x"}, texts)
	ints, err := f.Ints("a.ints")
	require.NoError(t, err)
	require.Equal(t, []int64{-1, 2}, ints)
	floats, err := f.Floats("a.floats")
	require.NoError(t, err)
	require.Equal(t, []float64{1.5}, floats)
	yes, err := f.Bool("a.bool")
	require.NoError(t, err)
	require.True(t, yes)
	x, err := f.Float("a.f32")
	require.NoError(t, err)
	require.Equal(t, 0.5, x)
}

// A file that cannot be completed does not appear.
func TestWriteFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gguf")
	for want, f := range map[string]func() error{
		"3 bytes were written, expected 4": func() error {
			return WriteFile(path, nil, []Entry{{"a", F32, []int{1}, stream(make([]byte, 3))}})
		},
		"no more": func() error {
			return WriteFile(path, nil, []Entry{{"a", F32, []int{1}, func(io.Writer) error { return errors.New("no more") }}})
		},
		`key "k": a value of type int`: func() error { return WriteFile(path, []Pair{{"k", 1}}, nil) },
		"a multiple of 32":             func() error { return WriteFile(path, nil, []Entry{{"a", Q8_0, []int{33}, nil}}) },
	} {
		require.ErrorContains(t, f(), want)
		_, err := os.Stat(path)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}

// A preview has the keys and tensors of the file, and the data of vectors.
func TestPreview(t *testing.T) {
	pairs := []Pair{{"general.architecture", "llama"}}
	unread := func(io.Writer) error { return errors.New("is not read") }
	f, err := Preview(pairs, []Entry{{"m", Q8_0, []int{2, 32}, unread}, {"v", F32, []int{1}, stream([]byte{0, 0, 128, 63})}})
	require.NoError(t, err)
	defer f.Close()
	name, err := f.Text("general.architecture")
	require.NoError(t, err)
	require.Equal(t, "llama", name)
	require.Equal(t, []int{2, 32}, f.Tensor("m").Shape)
	require.Equal(t, Q8_0, f.Tensors()[0].Type)
	x := make([]float32, 1)
	require.NoError(t, f.Tensor("v").Rows(x, 0, 1))
	require.Equal(t, float32(1), x[0])
	_, err = Preview(pairs, []Entry{{"v", F32, []int{1}, unread}})
	require.ErrorContains(t, err, "is not read")
	_, err = Preview(pairs, []Entry{{"m", F32, []int{1, 1}, unread}, {"m", F32, []int{1, 1}, unread}})
	require.ErrorContains(t, err, "twice")
	_, err = Preview([]Pair{{"k", 1}}, nil)
	require.ErrorContains(t, err, "a value of type int")
}
