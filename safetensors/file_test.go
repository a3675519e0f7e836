package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/tensor"
)

// image builds a file from a header text and data.
func image(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func TestParse(t *testing.T) {
	img := image(`{"b":{"shape":[2,1],"dtype":"U8","data_offsets":[2,4]},`+
		`"__metadata__":{"k":"v\n"},"a":{"dtype":"BF16","data_offsets":[0,2],"shape":[]},`+
		`"e":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}}  `, 1, 2, 3, 4)
	f, err := Parse("img", img)
	require.NoError(t, err)
	var names []string
	for name := range f.All() {
		names = append(names, name)
	}
	assert.Equal(t, []string{"a", "e", "b"}, names, "in the order of the data")
	assert.Equal(t, 3, f.Len())
	b, ok := f.Tensor("b")
	require.True(t, ok)
	assert.Equal(t, "U8[2, 1]", b.String())
	assert.Equal(t, []byte{3, 4}, b.Data)
	assert.Equal(t, 2, cap(b.Data))
	_, ok = f.Tensor("c")
	assert.False(t, ok)
	m := f.Metadata()
	assert.Equal(t, map[string]string{"k": "v\n"}, m)
	m["k"] = "changed"
	assert.Equal(t, "v\n", f.Metadata()["k"])
	assert.Equal(t, "img", f.Name())
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
}

// The cases that the golden files lack. The constant a is a valid entry of one byte.
func TestParseStrictness(t *testing.T) {
	const a = `{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`
	deepObject := func(n int) string { return strings.Repeat(`{"y":`, n-1) + "{}" + strings.Repeat("}", n-1) }
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	cases := []struct {
		name, header, want string // want: part of the error, "" for none
	}{
		{"plain", `{"a":` + a + `}`, ""},
		{"white space inside", "{ \"a\"\t:\n" + a + "\r}", ""},
		{"surrogate pair", `{"\ud83d\uDE00":` + a + `}`, ""},
		{"all escapes", `{"\"\\\/\b\f\n\r\t\u00e9":` + a + `}`, ""},
		{"empty name", `{"":` + a + `}`, ""},
		{"unknown values skipped", `{"a":{"x":[1,-2.5e+3,{"y":null}],"z":"s","t":true,"f":false,"o":{},"l":[],"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, ""},
		{"nesting at the limit", `{"a":{"x":` + deep(64) + `,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, ""},
		{"nesting of objects at the limit", `{"a":{"x":` + deepObject(64) + `,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, ""},
		{"nesting of objects beyond", `{"a":{"x":` + deepObject(65) + `,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "nested"},
		{"exponents without a point", `{"a":{"x":[1e5,1E+2,0E0,-3e-7,9,90,1.09,1e90],"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, ""},
		{"number at the end", `{"a":{"x":12`, "expected"},
		{"fraction at the end", `{"a":{"x":1.5`, "expected"},
		{"nesting beyond", `{"a":{"x":` + deep(65) + `,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "nested"},
		{"white space after", "{\"a\":" + a + "} \r\n\t", ""},
		{"NUL after", "{\"a\":" + a + "}\n\x00", "expected the end"},
		{"leading space", ` {"a":` + a + `}`, "expected '{'"},
		{"lone surrogate", `{"\ud83d":` + a + `}`, "surrogate"},
		{"swapped surrogates", `{"\ude00\ud83d":` + a + `}`, "surrogate"},
		{"surrogate, then a backslash at the end", `{"\ud83d\`, "unpaired surrogate"},
		{"surrogate, then half an escape at the end", `{"\ud83d\u`, "does not end"},
		{"half pair", `{"\ud83d\u0041":` + a + `}`, "surrogate"},
		{"unknown escape", `{"\x41":` + a + `}`, "after a backslash"},
		{"short escape", `{"\u00g0":` + a + `}`, "hexadecimal"},
		{"raw control character", "{\"a\x01\":" + a + "}", "control character"},
		{"escape at the end", `{"a\`, "does not end"},
		{"hex at the end", `{"\u00`, "does not end"},
		{"open string", `{"a`, "does not end"},
		{"trailing comma", `{"a":` + a + `,}`, "expected a key"},
		{"missing comma", `{"a":` + a + ` "b":1}`, "expected ','"},
		{"leading comma", `{,"a":` + a + `}`, "expected a key"},
		{"missing colon", `{"a" ` + a + `}`, "expected ':'"},
		{"single quotes", `{'a':` + a + `}`, "expected a key"},
		{"comment", `{/**/"a":` + a + `}`, "expected a key"},
		{"repeated field", `{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, `"dtype" occurs twice`},
		{"repeated unknown field", `{"a":{"x":1,"\u0078":1,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, `"x" occurs twice`},
		{"repeated metadata", `{"__metadata__":{},"__metadata__":{},"a":` + a + `}`, `"__metadata__" occurs twice`},
		{"repeated metadata key", `{"__metadata__":{"k":"","\u006b":""},"a":` + a + `}`, `key "k" occurs twice`},
		{"metadata null", `{"__metadata__":null,"a":` + a + `}`, ""},
		{"metadata no word", `{"__metadata__":nul,"a":` + a + `}`, "__metadata__"},
		{"metadata as tensor", `{"__metadata__":` + a + `}`, "__metadata__"},
		{"leading zero", `{"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}`, "leading zero"},
		{"minus zero", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[-0,1]}}`, "data_offsets"},
		{"plus", `{"a":{"dtype":"U8","shape":[+1],"data_offsets":[0,1]}}`, "shape"},
		{"exponent", `{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}`, "shape"},
		{"point", `{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}`, "shape"},
		{"bad skipped number", `{"a":{"x":-,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "expected a digit"},
		{"bad skipped fraction", `{"a":{"x":1.,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "expected a digit"},
		{"bad skipped exponent", `{"a":{"x":1e+,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "expected a digit"},
		{"bad skipped word", `{"a":{"x":nul,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "expected a value"},
		{"NaN", `{"a":{"x":NaN,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "expected a value"},
		{"two to the 63", `{"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}}`, "expected a whole number"},
		{"many dimensions", `{"a":{"dtype":"U8","shape":[` + strings.Repeat("1,", 64) + `1],"data_offsets":[0,1]}}`, "more than 64"},
		{"most dimensions", `{"a":{"dtype":"U8","shape":[` + strings.Repeat("1,", 63) + `1],"data_offsets":[0,1]}}`, ""},
		{"four-bit floats", `{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, ""},
		{"half a byte", `{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, "3 elements are not whole blocks of 2"},
		{"no such floats", `{"a":{"dtype":"F5","shape":[8],"data_offsets":[0,1]}}`, `"F5" is not supported`},
		{"zero after overflow", `{"a":` + a + `,"b":{"dtype":"U8","shape":[65536,65536,65536,65536,0],"data_offsets":[1,1]}}`, "out of range"},
	}
	for _, c := range cases {
		f, err := Parse("x", image(c.header, 7))
		if c.want == "" {
			if assert.NoError(t, err, c.name) {
				assert.Equal(t, 1, f.Len(), c.name)
			}
			continue
		}
		assert.ErrorContains(t, err, c.want, c.name)
		assert.ErrorContains(t, err, `safetensors file "x": header: `, c.name)
	}
}

// A hostile name must not flood the log.
func TestLongNamesAreShortenedInErrors(t *testing.T) {
	name := strings.Repeat("n", 1<<20)
	_, err := Parse("x", image(`{"`+name+`":1}`))
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 500)
}

func TestShardNames(t *testing.T) {
	for _, name := range []string{"a.safetensors", "sub/a.safetensors", "...", "a b", "é"} {
		assert.NoError(t, checkShardName(name), name)
	}
	for _, name := range []string{"", ".", "..", "/a", "a/", "a//b", "./a", "a/..", "a/../b", "../a", `a\b`, `\\host\a`,
		"C:a", "a:b", "a\x00", "file:///a", "\xff"} {
		assert.Error(t, checkShardName(name), "%q", name)
	}
}

func TestIndexStrictness(t *testing.T) {
	cases := map[string]string{
		`{"weight_map":{"a":"x"}}` + "\n":               "",
		`{"metadata":{"total_size":1},"weight_map":{}}`: "",
		`{"weight_map":{"a":"x","\u0061":"y"}}`:         `"a" occurs twice`,
		`{"weight_map":{},"weight_map":{}}`:             `"weight_map" occurs twice`,
		`{"weight_map":{}} x`:                           "after the value",
		`{"Weight_Map":{}}`:                             `"weight_map" is missing`,
		`{"weight_map":{"a":null}}`:                     "expected the shard of tensor",
		"{\"weight_map\":{\"\xff\":\"x\"}}":             "UTF-8",
		``:                                              "end of the text",
	}
	for text, want := range cases {
		_, err := parseIndex([]byte(text))
		if want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, want, text)
		}
	}
}

func TestCheckpointPrefersSingleFileAndFollowsIndex(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, value float32, tensors ...string) {
		var list []Named
		for _, n := range tensors {
			list = append(list, Named{Name: n, Tensor: tensor.FromF32s(tensor.F32, []float32{value}, 1)})
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, WriteFile(filepath.Join(dir, name), list, nil))
	}
	write(SingleName, 1, "a", "b")
	c, err := OpenCheckpoint(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, c.Names())
	x, file, ok := c.Tensor("a")
	require.True(t, ok)
	assert.Equal(t, []float32{1}, x.F32s())
	assert.Equal(t, filepath.Join(dir, SingleName), file)
	require.NoError(t, c.Close())

	write("s1", 2, "a", "b")
	write("sub/s2", 3, "b", "unlisted")
	index := `{"weight_map":{"b":"sub/s2","a":"s1"}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, IndexName), []byte(index), 0o600))
	c, err = OpenCheckpoint(dir) // an index that the single file replaced, if nobody removed it
	require.NoError(t, err)
	x, _, _ = c.Tensor("a")
	assert.Equal(t, []float32{1}, x.F32s())
	require.NoError(t, c.Close())
	require.NoError(t, os.Remove(filepath.Join(dir, SingleName)))
	c, err = OpenCheckpoint(dir)
	require.NoError(t, err)
	c.WillNeed(1 << 20)
	assert.Equal(t, []string{"a", "b"}, c.Names())
	assert.Len(t, c.Files(), 2)
	for name, want := range map[string]float32{"a": 2, "b": 3} {
		x, _, ok := c.Tensor(name)
		require.True(t, ok)
		assert.Equal(t, []float32{want}, x.F32s(), name)
	}
	_, _, ok = c.Tensor("unlisted")
	assert.False(t, ok)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())

	c, err = OpenCheckpointFS(os.DirFS(dir))
	require.NoError(t, err)
	x, file, ok = c.Tensor("b")
	require.True(t, ok)
	assert.Equal(t, "sub/s2", file)
	assert.Equal(t, []float32{3}, x.F32s())
	require.NoError(t, c.Close())

	_, err = OpenCheckpoint(filepath.Join(dir, "nowhere"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "nowhere")
	_, err = OpenCheckpointFS(os.DirFS(filepath.Join(dir, "sub")))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// FuzzParse parses whole files. A file that is accepted must have a header that the
// standard library accepts, cover the data, and survive being rewritten.
func FuzzParse(f *testing.F) {
	paths, err := filepath.Glob(filepath.Join("testdata", "malformed", "files", "*.safetensors"))
	if err != nil || len(paths) == 0 {
		f.Fatal("no seed files", err)
	}
	for _, path := range paths {
		seed, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(seed) < 1<<14 {
			f.Add(seed)
		}
	}
	f.Fuzz(func(t *testing.T, img []byte) {
		defer testfuzz.Bound(t, len(img))()
		file, err := Parse("fuzz", img)
		if err != nil {
			return
		}
		n := binary.LittleEndian.Uint64(img)
		header, data := img[8:8+n], img[8+n:]
		var names map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(header, &names))
		delete(names, metaName)
		require.Equal(t, len(names), file.Len())
		var list []Named
		var all []byte
		for name, x := range file.All() {
			require.Contains(t, names, name)
			size, err := tensor.Bytes(x.Type, x.Shape)
			require.NoError(t, err)
			require.Len(t, x.Data, size)
			all = append(all, x.Data...)
			list = append(list, Named{Name: name, Tensor: x})
		}
		require.True(t, bytes.Equal(data, all), "tensors cover the data")
		var out bytes.Buffer
		require.NoError(t, Write(&out, list, file.Metadata()))
		again, err := Parse("rewritten", out.Bytes())
		require.NoError(t, err)
		requireSame(t, file, again)
	})
}

// FuzzIndex compares with the standard library, which must read an accepted index
// the same way.
func FuzzIndex(f *testing.F) {
	paths, _ := filepath.Glob(filepath.Join("testdata", "malformed", "folders", "*", IndexName))
	if len(paths) == 0 {
		f.Fatal("no seed files")
	}
	for _, path := range paths {
		seed, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testfuzz.Bound(t, len(text))()
		index, err := parseIndex(text)
		if err != nil {
			return
		}
		var any map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(text, &any))
		var want map[string]string
		require.NoError(t, json.Unmarshal(any["weight_map"], &want))
		require.Len(t, index, len(want))
		for _, a := range index {
			require.Equal(t, want[a.tensor], a.shard)
			require.NoError(t, checkShardName(a.shard))
		}
	})
}

func requireSame(t require.TestingT, want, got *File) {
	require.Equal(t, want.Len(), got.Len())
	for name, a := range want.All() {
		b, ok := got.Tensor(name)
		require.True(t, ok, name)
		require.Equal(t, a.Type, b.Type)
		require.True(t, b.HasShape(a.Shape...), "%v %v", a, b)
		require.True(t, bytes.Equal(a.Data, b.Data), name)
	}
	require.Equal(t, want.Metadata(), got.Metadata())
}

func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), SingleName)
	var list []Named
	for _, p := range []string{"q", "k", "v", "o", "gate", "up", "down", "norm", "norm2"} {
		for l := range 80 {
			list = append(list, Named{Name: "model.layers." + string(rune('0'+l/10)) + string(rune('0'+l%10)) + ".self_attn." + p + ".weight",
				Tensor: tensor.Make(tensor.BF16, 4, 4)})
		}
	}
	require.NoError(b, WriteFile(path, list, nil))
	b.ReportAllocs()
	for b.Loop() {
		f, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

// All stops when its caller does, for files and for checkpoints.
func TestAllStops(t *testing.T) {
	img := image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 1, 2, 3)
	f, err := Parse("x", img)
	require.NoError(t, err)
	c := single(f)
	for n := 1; n <= 3; n++ {
		for what, all := range map[string]iter.Seq2[string, tensor.Tensor]{"checkpoint": c.All(), "file": c.Files()[0].All()} {
			var names []string
			for name := range all {
				if names = append(names, name); len(names) == n {
					break
				}
			}
			assert.Equal(t, []string{"a", "b", "c"}[:n], names, what)
		}
	}
}

// A surrogate at the end of a string, or before something that only resembles another
// one, is rejected; a pair is one character.
func TestSurrogates(t *testing.T) {
	header := func(name string) string {
		return `{"` + name + `":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`
	}
	for _, name := range []string{`\ud800`, `\ud800x`, `\ud800u`, `\ud800\n`, `\ud800xu`, `\ud800xudc00`, `\ud800\ndc00`, `\ud800\u0041`, `\ud800\ud800`, `\udc00`} {
		_, err := Parse("x", image(header(name), 7))
		require.ErrorContains(t, err, "unpaired surrogate", name)
	}
	for name, want := range map[string]string{`\u0019`: "\x19", `\u00af`: "\u00af", `\u00AF`: "\u00af", `\u00f0`: "\u00f0"} {
		f, err := Parse("x", image(header(name), 7))
		require.NoError(t, err)
		_, ok := f.Tensor(want)
		assert.True(t, ok, name)
	}
	for _, bad := range []string{`\u00g0`, `\u00G0`, `\u00/0`, `\u00:0`, `\u00@0`} {
		_, err := Parse("x", image(header(bad), 7))
		require.ErrorContains(t, err, "hexadecimal", bad)
	}
	f, err := Parse("x", image(header(`a\ud83d\ude00b`), 7))
	require.NoError(t, err)
	_, ok := f.Tensor("a😀b")
	assert.True(t, ok)
}

// Names of up to 120 bytes are not shortened in messages.
func TestQuote(t *testing.T) {
	assert.Equal(t, `"`+strings.Repeat("n", 120)+`"`, quote(strings.Repeat("n", 120)))
	assert.Equal(t, `"`+strings.Repeat("n", 120)+`"... (121 bytes)`, quote(strings.Repeat("n", 121)))
}

// If ranges do not cover the data exactly, the error says whether by a hole or an overlap.
func TestHolesAndOverlaps(t *testing.T) {
	const a, b = `"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}`, `"b":{"dtype":"U8","shape":[1],"data_offsets":`
	_, err := Parse("x", image(`{`+a+`,`+b+`[3,4]}}`, 1, 2, 3, 4))
	assert.ErrorContains(t, err, "data begins at byte 3, expected 2, where the data before it ends (a hole)")
	_, err = Parse("x", image(`{`+a+`,`+b+`[1,2]}}`, 1, 2))
	assert.ErrorContains(t, err, "data begins at byte 1, expected 2, where the data before it ends (an overlap)")
	_, err = Parse("x", image(`{`+a+`,`+b+`[2,3]}}`, 1, 2, 3))
	assert.NoError(t, err)
}
