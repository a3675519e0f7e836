package lowbit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lukv/lukv/tensor"
)

// GPTQ: columns of the transposed weight, [cols·bits/32, rows], and zero points packed
// along the rows, [groups, rows·bits/32]. Version 1 stores zero points less one.

func parseGPTQ(s *settings) (*Scheme, error) {
	if s.Bits != 4 && s.Bits != 8 {
		return nil, refused("bits", s.Bits, "4 or 8")
	}
	for pattern := range s.Dynamic {
		if !strings.HasPrefix(pattern, "-:") { // modules that are not quantised
			return nil, refused("dynamic", fmt.Sprintf("%.40q", pattern), "none, or patterns of modules to leave alone")
		}
	}
	format, err := s.layout()
	if err != nil {
		return nil, err
	}
	one := int16(1)
	switch format {
	case "", "gptq":
	case "gptq_v2":
		one = 0
	default:
		return nil, refused("checkpoint_format", fmt.Sprintf("%q", format), "gptq or gptq_v2")
	}
	size := -1
	if s.Group != nil {
		size = *s.Group
	}
	return &Scheme{
		Name:   fmt.Sprintf("gptq %d bit", s.Bits),
		stored: named(".qweight"),
		read: func(m *module) (*Matrix, error) {
			// Without the groups of columns, those of sorted ones would be mixed up.
			if s.Sorted && size > 0 && size < m.cols && !has(m.src, m.name+".g_idx") {
				return nil, fmt.Errorf("tensor %q is missing, expected one as \"desc_act\" is true", m.name+".g_idx")
			}
			return m.gptq(s.Bits, size, one)
		},
	}, nil
}

// layout returns the layout that files of GPTQ and AWQ are of, which either of two keys
// names.
func (s *settings) layout() (string, error) {
	if s.CheckpointFormat != "" && s.Format != "" && s.CheckpointFormat != s.Format {
		return "", refused("format", fmt.Sprintf("%q", s.Format), fmt.Sprintf("that of \"checkpoint_format\", %q", s.CheckpointFormat))
	}
	return cmp.Or(s.CheckpointFormat, s.Format), nil
}

// AWQ: rows of the transposed weight, [cols, rows/8], whose words hold eight rows in an
// order of their own; zero points likewise, [groups, rows/8].

func parseAWQ(s *settings) (*Scheme, error) {
	if s.Bits != 4 {
		return nil, refused("bits", s.Bits, "4")
	}
	format, err := s.layout()
	if err != nil {
		return nil, err
	}
	if s.Version != "" && strings.ToLower(s.Version) != "gemm" {
		return nil, refused("version", fmt.Sprintf("%q", s.Version), "gemm")
	}
	if format != "" && format != "gemm" {
		return nil, refused("checkpoint_format", fmt.Sprintf("%q", format), "gemm")
	}
	if s.ZeroPoint != nil && !*s.ZeroPoint {
		return nil, refused("zero_point", false, "true")
	}
	size := 128
	if s.Group != nil {
		size = *s.Group
	}
	return &Scheme{
		Name:   "awq 4 bit",
		stored: named(".qweight"),
		read:   func(m *module) (*Matrix, error) { return m.awq(size) },
	}, nil
}

// inOrder and awqOrder give the nibble of a word that holds element i of it.
var (
	inOrder  = []int{0, 1, 2, 3, 4, 5, 6, 7}
	awqOrder = []int{0, 4, 1, 5, 2, 6, 3, 7}
)

// gptq reads a matrix whose stored zero points are less by one.
func (m *module) gptq(bits, size int, one int16) (*Matrix, error) {
	each, mask := 32/bits, uint32(1)<<bits-1
	if m.cols%each != 0 || m.rows%each != 0 {
		return nil, fmt.Errorf("%q: a weight of %s, expected multiples of %d", m.name, tensor.ShapeString([]int{m.rows, m.cols}), each)
	}
	group, err := m.groupSize(size) // the last one may have fewer columns
	if err != nil {
		return nil, fmt.Errorf("\"group_size\": %w", err)
	}
	group = min(group, m.cols)
	t, err := m.shaped(".qweight", []int{m.cols / each, m.rows}, tensor.I32)
	if err != nil {
		return nil, err
	}
	rows, cols := m.rows, m.cols
	x := &integers{m: m, group: group, count: (cols + group - 1) / group, high: int16(mask)}
	x.unpack = func(dst []int16, from, n int) {
		for i := range cols / each {
			for r := range n {
				w := word(t, i*rows+from+r)
				for j := range each {
					dst[r*cols+i*each+j] = int16(w >> (j * bits) & mask)
				}
			}
		}
	}
	if err := m.transposedScales(x, bits, one, inOrder); err != nil {
		return nil, err
	}
	if has(m.src, m.name+".g_idx") {
		x.index, err = m.groupIndex(".g_idx", group, x.count)
	}
	return x.matrix(), err
}

// transposedScales reads scales, [groups, rows], and packed zero points.
func (m *module) transposedScales(x *integers, bits int, one int16, order []int) error {
	each, mask := 32/bits, int16(1)<<bits-1
	scales, _, err := m.scales(".scales", []int{x.count, m.rows})
	if err != nil {
		return err
	}
	z, err := m.shaped(".qzeros", []int{x.count, m.rows / each}, tensor.I32)
	if err != nil {
		return err
	}
	x.scales, x.zeros = make([]float32, len(scales)), make([]int16, len(scales))
	for i := range scales {
		g, r := i/m.rows, i%m.rows
		w := word(z, g*(m.rows/each)+r/each)
		x.scales[r*x.count+g] = scales[i]
		x.zeros[r*x.count+g] = (int16(w>>(order[r%each]*bits))&mask + one) & mask
	}
	return nil
}

func (m *module) awq(size int) (*Matrix, error) {
	const bits, each = 4, 8
	if m.rows%each != 0 {
		return nil, fmt.Errorf("%q: a weight of %d rows, expected a multiple of %d", m.name, m.rows, each)
	}
	group, err := m.groups(size)
	if err != nil {
		return nil, fmt.Errorf("\"group_size\": %w", err)
	}
	t, err := m.shaped(".qweight", []int{m.cols, m.rows / each}, tensor.I32)
	if err != nil {
		return nil, err
	}
	rows, cols := m.rows, m.cols
	x := &integers{m: m, group: group, count: cols / group, high: 15}
	x.unpack = func(dst []int16, from, n int) {
		for c := range cols {
			for r := range n {
				w := word(t, c*(rows/each)+(from+r)/each)
				dst[r*cols+c] = int16(w >> (awqOrder[(from+r)%each] * bits) & 15)
			}
		}
	}
	return x.matrix(), m.transposedScales(x, bits, 0, awqOrder)
}

// MLX: words of a row-major matrix, with a scale and an offset for each group.

func parseMLX(s *settings) (*Scheme, error) {
	if err := s.checkMLX(); err != nil {
		return nil, err
	}
	own := map[string]*settings{} // of modules; nil: left alone
	for _, name := range slices.Sorted(maps.Keys(s.overrides)) {
		x, err := parseOverride(s.overrides[name], s)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		own[name] = x
	}
	of := func(module string) *settings {
		if x, ok := own[module]; ok {
			return x
		}
		return s
	}
	return &Scheme{
		Name:   fmt.Sprintf("mlx %d bit", s.Bits),
		stored: func(src Source, module string) bool { return of(module) != nil && has(src, module+".scales") },
		read: func(m *module) (*Matrix, error) {
			x := of(m.name)
			return m.mlx(x.Bits, *x.Group)
		},
	}, nil
}

func (s *settings) checkMLX() error {
	if s.Mode != "" && s.Mode != "affine" {
		return refused("mode", fmt.Sprintf("%q", s.Mode), "affine")
	}
	if s.Bits != 4 && s.Bits != 8 {
		return refused("bits", s.Bits, "4 or 8")
	}
	return nil
}

// parseOverride reads what is said of one module: settings, true for those of all, or false
// for none.
func parseOverride(text json.RawMessage, all *settings) (*settings, error) {
	switch string(text) {
	case "true":
		return all, nil
	case "false":
		return nil, nil
	}
	x := &settings{}
	if err := json.Unmarshal(text, x); err != nil {
		return nil, err
	}
	if x.Group == nil {
		return nil, refused("group_size", "nothing", "a number")
	}
	return x, x.checkMLX()
}

func (m *module) mlx(bits, size int) (*Matrix, error) {
	group, err := m.groups(size)
	if err != nil {
		return nil, fmt.Errorf("\"group_size\": %w", err)
	}
	each := 32 / bits
	if m.cols%each != 0 {
		return nil, fmt.Errorf("%q: %d columns, expected a multiple of %d", m.name, m.cols, each)
	}
	t, err := m.shaped(".weight", []int{m.rows, m.cols / each}, tensor.U32)
	if err != nil {
		return nil, err
	}
	x := &integers{m: m, group: group, count: m.cols / group, high: 1<<bits - 1, unpack: packedRows(t, m.cols, bits, 0)}
	if x.scales, _, err = m.scales(".scales", []int{m.rows, x.count}); err != nil {
		return nil, err
	}
	x.offsets, _, err = m.scales(".biases", []int{m.rows, x.count})
	return x.matrix(), err
}

// bitsandbytes.

func parseBitsAndBytes(s *settings) (*Scheme, error) {
	switch {
	case s.Load8 && !s.Load4:
		return &Scheme{Name: "bitsandbytes int8", stored: named(".SCB"), read: (*module).scb}, nil
	case s.Load4 && !s.Load8:
		return &Scheme{Name: "bitsandbytes 4 bit", stored: named(".weight.absmax"), read: (*module).table4}, nil
	}
	return nil, refused("load_in_4bit", "neither 4 nor 8 bits, or both", "one of load_in_4bit and load_in_8bit")
}

// scb reads bytes whose rows were scaled to 127.
func (m *module) scb() (*Matrix, error) {
	t, err := m.shaped(".weight", []int{m.rows, m.cols}, tensor.I8)
	if err != nil {
		return nil, err
	}
	if has(m.src, m.name+".weight_format") {
		f, err := m.get(".weight_format", tensor.U8)
		if err != nil {
			return nil, err
		}
		if len(f.Data) != 1 || f.Data[0] != 0 {
			return nil, fmt.Errorf("tensor %q: a layout of tiles is %w, expected 0, rows", m.name+".weight_format", ErrUnsupported)
		}
	}
	scales, _, err := m.scales(".SCB", []int{m.rows})
	if err != nil {
		return nil, err
	}
	for i := range scales {
		scales[i] /= 127
	}
	return (&integers{m: m, group: m.cols, count: 1, low: -128, high: 127, scales: scales, unpack: bytesOf(t, m.cols)}).matrix(), nil
}

// state is what bitsandbytes says about a matrix of 4 bits.
type state struct {
	Type   string  `json:"quant_type"`
	Block  int     `json:"blocksize"`
	Shape  []int   `json:"shape"`
	Nested int     `json:"nested_blocksize"`
	Offset float64 `json:"nested_offset"`
}

// table4 reads 4-bit indices into a table, the first of two in the high half of a byte,
// with a scale for every block of the flattened matrix.
func (m *module) table4() (*Matrix, error) {
	st, err := m.state()
	if err != nil {
		return nil, err
	}
	n := m.rows * m.cols
	t, err := m.get(".weight", tensor.U8, tensor.BF16, tensor.F16, tensor.F32)
	if err != nil {
		return nil, err
	}
	if len(t.Data) != (n+1)/2 {
		return nil, m.wrongShape(".weight", t, fmt.Sprintf("%d bytes", (n+1)/2))
	}
	table, _, err := m.scales(".weight.quant_map", []int{16})
	if err != nil {
		return nil, err
	}
	scales, err := m.absmax(st, (n+st.Block-1)/st.Block)
	if err != nil {
		return nil, err
	}
	cols := m.cols
	return &Matrix{Rows: m.rows, Cols: cols, rowsOf: func(dst []float32, from, _ int) {
		for i := range dst {
			at := from*cols + i
			dst[i] = table[t.Data[at/2]>>((1-at%2)*4)&15] * scales[at/st.Block]
		}
	}}, nil
}

func (m *module) state() (*state, error) {
	suffix := ".weight.quant_state.bitsandbytes__nf4"
	if !has(m.src, m.name+suffix) {
		suffix = ".weight.quant_state.bitsandbytes__fp4"
	}
	t, err := m.get(suffix, tensor.U8)
	if err != nil {
		return nil, err
	}
	st := &state{}
	if err := json.Unmarshal(t.Data, st); err != nil {
		return nil, fmt.Errorf("tensor %q: %w", m.name+suffix, err)
	}
	if st.Block < 1 || !slices.Equal(st.Shape, []int{m.rows, m.cols}) {
		return nil, fmt.Errorf("tensor %q: found blocks of %d of a weight of %v, expected blocks from 1 of a weight of %v",
			m.name+suffix, st.Block, st.Shape, []int{m.rows, m.cols})
	}
	st.Block = min(st.Block, m.rows*m.cols) // the last one may be shorter
	return st, nil
}

// absmax returns the scales of n blocks, which may themselves be stored in 8 bits.
func (m *module) absmax(st *state, n int) ([]float32, error) {
	const suffix = ".weight.absmax"
	t, err := m.shaped(suffix, []int{n}, tensor.F32, tensor.U8)
	if err != nil {
		return nil, err
	}
	if t.Type == tensor.F32 {
		x, _, err := m.numbers(suffix, t, [][]int{{n}})
		return x, err
	}
	if st.Nested < 1 {
		return nil, fmt.Errorf("tensor %q is of 8 bits, but the state has no \"nested_blocksize\"", m.name+suffix)
	}
	table, _, err := m.scales(".weight.nested_quant_map", []int{256})
	if err != nil {
		return nil, err
	}
	nested := min(st.Nested, n)
	outer, _, err := m.scales(".weight.nested_absmax", []int{(n + nested - 1) / nested})
	if err != nil {
		return nil, err
	}
	offset := float32(st.Offset)
	if !finite(offset) {
		return nil, fmt.Errorf("tensor %q: \"nested_offset\": found %v, expected a finite number", m.name+suffix, st.Offset)
	}
	out := make([]float32, n)
	for i, b := range t.Data {
		out[i] = float32(table[b]*outer[i/nested]) + offset
	}
	return out, nil
}

// 8-bit floats.

// storedFloat8 reports whether a module's weight is of 8-bit floats.
func storedFloat8(s Source, module string) bool {
	t, _, ok := s.Tensor(module + ".weight")
	return ok && t.Type == tensor.F8E4M3
}

func parseFP8(s *settings) (*Scheme, error) {
	if s.Fmt != "" && s.Fmt != "e4m3" {
		return nil, refused("fmt", fmt.Sprintf("%q", s.Fmt), "e4m3")
	}
	if s.BlockSize != nil && (len(s.BlockSize) != 2 || s.BlockSize[0] < 1 || s.BlockSize[1] < 1) {
		return nil, refused("weight_block_size", s.BlockSize, "two numbers from 1")
	}
	return &Scheme{
		Name:   "fp8",
		stored: storedFloat8,
		read: func(m *module) (*Matrix, error) {
			suffix := ".weight_scale_inv" // despite its name it multiplies
			if s.BlockSize == nil && !has(m.src, m.name+suffix) {
				suffix = ".weight_scale" // of files that AutoFP8 wrote
			}
			return m.float8(suffix, s.BlockSize)
		},
	}, nil
}

func parseFbgemm(*settings) (*Scheme, error) {
	return &Scheme{
		Name: "fbgemm fp8", stored: storedFloat8,
		read: func(m *module) (*Matrix, error) { return m.float8(".weight_scale", nil) },
	}, nil
}

func parseModelopt(s *settings) (*Scheme, error) {
	switch s.Algorithm {
	case "FP8":
		return &Scheme{
			Name: "modelopt FP8", stored: storedFloat8,
			read: func(m *module) (*Matrix, error) { return m.float8(".weight_scale", nil) },
		}, nil
	case "NVFP4":
		return &Scheme{
			Name: "modelopt NVFP4", stored: named(".weight_scale_2"),
			read: func(m *module) (*Matrix, error) {
				return m.nvfp4(".weight", ".weight_scale_2", func(a, b float32) float32 { return a * b })
			},
		}, nil
	}
	return nil, refused("quant_algo", fmt.Sprintf("%q", s.Algorithm), "FP8 or NVFP4")
}

func parseMistral(s *settings) (*Scheme, error) {
	if s.MistralFormat != "fp8_e4m3" {
		return nil, fmt.Errorf("\"quantization\": %w", refused("qformat_weight", fmt.Sprintf("%q", s.MistralFormat), "fp8_e4m3"))
	}
	return &Scheme{
		Name: "Mistral fp8", stored: storedFloat8,
		read: func(m *module) (*Matrix, error) { return m.float8(".qscale_weight", nil) },
	}, nil
}
