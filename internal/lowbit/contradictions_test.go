package lowbit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// tensors is a checkpoint in memory.
type tensors map[string]tensor.Tensor

func (s tensors) Tensor(name string) (tensor.Tensor, string, bool) {
	t, ok := s["x."+name[len("m."):]]
	return t, "model.safetensors", ok
}

// wordsOf returns a tensor of 32-bit words that f gives.
func wordsOf(f func(i int) uint32, shape ...int) tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	data := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(data[4*i:], f(i))
	}
	return tensor.Tensor{Type: tensor.I32, Shape: shape, Data: data}
}

func same(v uint32) func(int) uint32 { return func(int) uint32 { return v } }

// twoScales are scales of 0.5 and then 1, which change every n, [down, across].
func twoScales(n, down, across int) tensor.Tensor {
	x := make([]float32, down*across)
	for i := range x {
		x[i] = 0.5 * float32(1+i/n%2)
	}
	return tensor.FromF32s(tensor.F16, x, down, across)
}

// TestContradictions: where a file has more, less or other tensors than its config says,
// it is refused, or read as the format's own program reads it; never read as if the
// difference were not there.
func TestContradictions(t *testing.T) {
	const rows, cols = 8, 64
	packed := tensors{
		"x.weight_packed": wordsOf(func(i int) uint32 { return uint32(i) * 0x01234567 }, rows, cols/8),
		"x.weight_scale":  twoScales(1, rows, 2),
		"x.weight_shape":  tensor.Tensor{Type: tensor.I64, Shape: []int{2}, Data: append(binary.LittleEndian.AppendUint64(nil, rows), binary.LittleEndian.AppendUint64(nil, cols)...)},
	}
	transposed := tensors{
		"x.qweight": wordsOf(func(i int) uint32 { return uint32(i) * 0x01234567 }, cols/8, rows),
		"x.qzeros":  wordsOf(same(0x77777777), 2, 1),
		"x.scales":  twoScales(rows, 2, rows),
	}
	shifted := maps.Clone(transposed)
	shifted["x.qzeros"] = wordsOf(same(0x88888888), 2, 1)
	with := func(base tensors, name string, x tensor.Tensor) tensors {
		out := maps.Clone(base)
		out["x."+name] = x
		return out
	}
	fp8 := tensors{"x.weight": {Type: tensor.F8E4M3, Shape: []int{rows, cols}, Data: make([]byte, rows*cols)}}
	compressed := func(keys string) string {
		return `{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "sparsity_config": {"format": "dense"},
			"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32` + keys + `}}}}}`
	}
	gptq := func(keys string) string {
		return `{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32` + keys + `}}`
	}
	swapped := wordsOf(func(i int) uint32 { return uint32(1 - i/32) }, cols)
	one := tensor.FromF32s(tensor.F32, []float32{0.5}, 1)
	for i, test := range []struct {
		config string
		src    tensors
		err    string // "" if it is read
		first  bool   // whether the first column is of the first group
	}{
		{compressed(``), packed, "", true},
		{compressed(`, "actorder": "weight"`), packed, "", true},
		{compressed(`, "actorder": "GROUP"`), with(packed, "weight_g_idx", swapped), "", false},
		{compressed(``), with(packed, "weight_g_idx", swapped), "", false},
		{compressed(`, "actorder": null`), with(packed, "weight_g_idx", swapped), "", false},
		{compressed(`, "actorder": "group"`), packed, "weight_g_idx", false},
		{compressed(`, "actorder": "sorted"`), packed, "actorder", false},
		{compressed(``), with(packed, "weight_zero_point", wordsOf(same(0x88888888), 1, 2)), "", true},
		{compressed(``), with(packed, "weight_zero_point", wordsOf(same(0x88888889), 1, 2)), "weight_zero_point", true},
		{compressed(`, "symmetric": false`), packed, "weight_zero_point", true},
		{gptq(``), transposed, "", true},
		{gptq(`, "desc_act": true`), transposed, "g_idx", true},
		{gptq(`, "desc_act": true`), with(transposed, "g_idx", swapped), "", false},
		{gptq(``), with(transposed, "g_idx", swapped), "", false},
		{gptq(`, "format": "gptq", "checkpoint_format": "gptq"`), transposed, "", true},
		{gptq(`, "format": "gptq_v2"`), shifted, "", true},
		{gptq(`, "checkpoint_format": "gptq_v2"`), shifted, "", true},
		{gptq(`, "format": "gptq_v2", "checkpoint_format": "gptq"`), transposed, "format", true},
		{gptq(`, "format": "marlin"`), transposed, "marlin", true},
		{gptq(`, "dynamic": {"-:lm_head": {}}`), transposed, "", true},
		{gptq(`, "dynamic": {"-:lm_head": {}, "+:.*up_proj": {"bits": 8}}`), transposed, "dynamic", true},
		{`{"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": false}}`, transposed, "zero_point", true},
		{`{"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "format": "gemv"}}`, transposed, "gemv", true},
		{`{"quantization_config": {"quant_method": "fp8"}}`, with(fp8, "weight_scale", one), "", true},
		{`{"quantization_config": {"quant_method": "fp8"}}`, fp8, "weight_scale", true},
		{`{"quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 8]}}`, with(fp8, "weight_scale", one), "weight_scale_inv", true},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			var m *Matrix
			s, err := Parse([]byte(test.config))
			if err == nil {
				m, err = s.Matrix(test.src, "m", rows, cols)
			}
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			got := make([]float32, cols)
			m.Float32s(got, 0, 1)
			if m.ints == nil {
				return
			}
			// The first word is 0, which both formats store as −8: its scale shows the group.
			want := float32(-4)
			if !test.first {
				want = -8
			}
			require.Equal(t, want, got[0])
		})
	}
}

// TestShortGroups: the last group of a row of GPTQ may have fewer columns than the others,
// and a group as many as the row has at most.
func TestShortGroups(t *testing.T) {
	for _, test := range []struct{ cols, size, groups int }{{96, 64, 2}, {64, 128, 1}, {40, 32, 2}} {
		const rows = 8
		scale := func(i int) float32 { return float32(1 + i/rows) }
		scales := make([]float32, rows*test.groups)
		for i := range scales {
			scales[i] = scale(i)
		}
		src := tensors{
			"x.qweight": wordsOf(same(0x99999999), test.cols/8, rows),
			"x.qzeros":  wordsOf(same(0x77777777), test.groups, 1),
			"x.scales":  tensor.FromF32s(tensor.F16, scales, test.groups, rows),
		}
		s, err := Parse(fmt.Appendf(nil, `{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": %d}}`, test.size))
		require.NoError(t, err)
		m, err := s.Matrix(src, "m", rows, test.cols)
		require.NoError(t, err)
		got := make([]float32, test.cols)
		m.Float32s(got, rows-1, 1)
		for c, v := range got { // 9 with a zero point of 8
			require.Equal(t, float32(1+c/test.size), v, "column %d", c)
		}
		typ, exact := m.Type()
		require.Equal(t, test.cols%32 == 0, exact)
		if exact {
			data := make([]byte, typ.Bytes(rows*test.cols))
			m.Pack(data, typ, 0, rows)
			back := make([]float32, rows*test.cols)
			tensor.Tensor{Type: typ, Shape: []int{rows, test.cols}, Data: data}.Float32s(back)
			require.Equal(t, got, back[(rows-1)*test.cols:])
		}
	}
}

// TestHugeBlocks: blocks and groups of scales may be larger than what they divide, as large
// as an integer can be, and then are one; never none.
func TestHugeBlocks(t *testing.T) {
	const rows, cols = 5, 7 // an odd number of elements
	fp8 := tensors{"x.weight": {Type: tensor.F8E4M3, Shape: []int{rows, cols}, Data: bytes.Repeat([]byte{0x38}, rows*cols)}}
	state := func(block, nested int) tensor.Tensor {
		text := fmt.Appendf(nil, `{"quant_type": "nf4", "blocksize": %d, "nested_blocksize": %d, "nested_offset": 0, "shape": [%d, %d]}`, block, nested, rows, cols)
		return tensor.Tensor{Type: tensor.U8, Shape: []int{len(text)}, Data: text}
	}
	ones := func(shape ...int) tensor.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return tensor.FromF32s(tensor.F32, slices.Repeat([]float32{1}, n), shape...)
	}
	nf4 := func(block, nested, blocks, outer int) tensors {
		return tensors{
			"x.weight":                               {Type: tensor.U8, Shape: []int{(rows*cols + 1) / 2, 1}, Data: make([]byte, (rows*cols+1)/2)},
			"x.weight.quant_map":                     ones(16),
			"x.weight.absmax":                        {Type: tensor.U8, Shape: []int{blocks}, Data: make([]byte, blocks)},
			"x.weight.nested_quant_map":              ones(256),
			"x.weight.nested_absmax":                 ones(outer),
			"x.weight.quant_state.bitsandbytes__nf4": state(block, nested),
		}
	}
	const fp8Config = `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [9223372036854775807, 9223372036854775807]}}`
	const nf4Config = `{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}`
	for i, test := range []struct {
		config string
		src    tensors
		err    string
	}{
		{fp8Config, merged(fp8, tensors{"x.weight_scale_inv": ones(1, 1)}), ""},
		{fp8Config, merged(fp8, tensors{"x.weight_scale_inv": ones(0, 0)}), "weight_scale_inv"},
		{nf4Config, nf4(4, 2, 9, 5), ""}, // the last of both is short
		{nf4Config, nf4(math.MaxInt, math.MaxInt, 1, 1), ""},
		{nf4Config, nf4(8, math.MaxInt, 5, 0), "nested_absmax"},
		{nf4Config, nf4(8, math.MaxInt, 4, 1), "absmax"},
		{nf4Config, nf4(0, 1, 4, 4), "blocks of 0"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s, err := Parse([]byte(test.config))
			require.NoError(t, err)
			m, err := s.Matrix(test.src, "m", rows, cols)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			got := make([]float32, rows*cols)
			m.Float32s(got, 0, rows)
			require.Equal(t, slices.Repeat([]float32{1}, rows*cols), got)
		})
	}
}

// merged returns the tensors of both.
func merged(a, b tensors) tensors {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// TestScalars: one scale and one zero point for all may be of the shape [1] or [].
func TestScalars(t *testing.T) {
	s, err := Parse([]byte(`{"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized",
		"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": false}}}}}`))
	require.NoError(t, err)
	for _, shape := range [][]int{{1}, {}} {
		m, err := s.Matrix(tensors{
			"x.weight":            {Type: tensor.I8, Shape: []int{2, 2}, Data: []byte{1, 2, 3, 4}},
			"x.weight_scale":      tensor.FromF32s(tensor.F32, []float32{0.5}, shape...),
			"x.weight_zero_point": {Type: tensor.I8, Shape: shape, Data: []byte{2}},
		}, "m", 2, 2)
		require.NoError(t, err, "%v", shape)
		got := make([]float32, 4)
		m.Float32s(got, 0, 2)
		require.Equal(t, []float32{-0.5, 0, 0.5, 1}, got)
	}
}
